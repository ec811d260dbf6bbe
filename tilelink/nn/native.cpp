// Steps of autograd of layers whose parameters are DTensors, for torch's engine to take without Python: it enters Python for a
// product that communicates, and to make the parameter's gradient a DTensor. `local.py` and `split_linear.py` have the same in
// Python, for machines without a compiler of C++, for calls that are traced, and for gradients that are differentiated again.

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// An object of Python that autograd keeps: a `Whole` of `local.py`, or a `_Layer` of `split_linear.py`.
struct Object : torch::CustomClassHolder {
  explicit Object(PyObject* of) : python(Py_NewRef(of)) {}

  ~Object() override {
    if (!Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire held;
    Py_DECREF(python);
  }

  // `python.name(*tensors)`, which gives a tensor, or as many as there are in `found`, each perhaps None.
  template <typename... Tensors>
  void call(const char* name, at::ArrayRef<Tensor*> found, const Tensors&... tensors) const {
    pybind11::gil_scoped_acquire held;
    THPObjectPtr method(PyUnicode_InternFromString(name));
    THPObjectPtr wrapped[] = {THPObjectPtr(THPVariable_Wrap(tensors))...};
    PyObject* given[1 + sizeof...(tensors)] = {python};
    for (size_t i = 0; i < sizeof...(tensors); ++i) given[1 + i] = wrapped[i].get();
    THPObjectPtr result(PyObject_VectorcallMethod(method.get(), given, 1 + sizeof...(tensors), nullptr));
    if (!result) {
      python_error error;
      error.persist();
      throw error;
    }
    for (size_t i = 0; i < found.size(); ++i) {
      PyObject* one = found.size() == 1 ? result.get() : PyTuple_GetItem(result.get(), i);
      if (one != Py_None) *found[i] = THPVariable_Unpack(one);
    }
  }

  PyObject* python;
};

using Kept = c10::intrusive_ptr<Object>;

Kept kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Object>(ctx->saved_data["object"].toCapsule());
}

// `[..., features]`, perhaps of one row, as a matrix.
Tensor rows_of(const Tensor& x) {
  return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
}

// Whether nothing else has this memory, and each element has its own; a tensor of which this is the only view counts for nothing.
bool is_held_once(const Tensor& t) {
  const bool of_another = t.is_view() && t._base().use_count() == 1;
  return t.is_contiguous() && t.use_count() == 1 && t.storage().use_count() == 1 + of_another;
}

// Puts a gradient into the parameter's `grad` as AccumulateGrad does, but for one that it would take over by `detach`: of a DTensor
// that costs the host more than the product does, and what comes from here has nothing to be detached from.
struct Taking : torch::autograd::AccumulateGrad {
  using AccumulateGrad::AccumulateGrad;

  variable_list apply(variable_list&& grads) override {
    const Tensor& grad = grads.at(0);
    if (grad.defined() && is_free(grad)) {
      std::lock_guard<std::mutex> lock(mutex_);
      Tensor& held = variable.mutable_grad();
      if (!held.defined()) {
        held = std::move(grads[0]);
        return {};
      }
    }
    return AccumulateGrad::apply(std::move(grads));
  }

  std::string name() const override {
    return "torch::autograd::AccumulateGrad";  // which tools look for
  }

  // Whether AccumulateGrad would take its memory, and nobody has or sees anything of it.
  bool is_free(const Tensor& grad) const {
    return variable.requires_grad() && !variable.grad_fn() && tensor_post_acc_grad_hooks() == nullptr &&
        !at::GradMode::is_enabled() && !grad.requires_grad() && !grad.is_view() && grad.layout() == at::kStrided &&
        torch::autograd::impl::is_tensor_stealable(grad) &&
        torch::autograd::utils::obeys_layout_contract(grad, variable);
  }
};

// The node that takes a parameter's gradients, which is to be held until a graph holds it; torch's own, where there is one. Its
// pointers are of one kind in torch 2.11 and of another in 2.13.
template <
    typename Held = decltype(torch::autograd::impl::try_get_grad_accumulator(Tensor())),
    typename Made = Taking>
Held accumulator_of(const Tensor& parameter) {
  Held held = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!held && parameter.is_leaf() && parameter.requires_grad()) {
    if constexpr (std::is_same_v<Held, std::shared_ptr<torch::autograd::Node>>) {
      held = std::make_shared<Made>(parameter);
      torch::autograd::impl::set_grad_accumulator(parameter, std::weak_ptr(held));
    } else {
      held = c10::make_intrusive<Made>(parameter);
      torch::autograd::impl::set_grad_accumulator(parameter, c10::weak_intrusive_ptr(held));
    }
  }
  return held;
}

struct Part : Function<Part> {
  static Tensor forward(AutogradContext* ctx, const Tensor& parameter, const Tensor& part, const Kept& whole) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({parameter});  // whose versions torch counts, as it does not those of the part
    ctx->saved_data["object"] = c10::IValue::make_capsule(whole);
    return part.view(part.sizes());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list found(3);
    const Tensor& grad = grads[0];
    if (!grad.defined()) return found;
    ctx->get_saved_variables();
    // Autograd takes the parameter's DTensor over, memory and all, whoever has that memory too.
    const bool takes = at::GradMode::is_enabled() || is_held_once(grad);
    kept(ctx)->call("gradient", {&found[0]}, takes ? grad : grad.clone(at::MemoryFormat::Contiguous));
    return found;
  }
};

struct Linear : Function<Linear> {
  static Tensor forward(
      AutogradContext* ctx,
      const Tensor& x,
      const Tensor& parameter,
      const Tensor& part,
      const Kept& layer,
      bool sums_result,
      bool sums_gradient) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, parameter, part});
    ctx->saved_data["object"] = c10::IValue::make_capsule(layer);
    ctx->saved_data["sums_gradient"] = sums_gradient;
    if (!sums_result) return at::linear(x, part);
    Tensor y;
    layer->call("product", {&y}, rows_of(x), part.t());
    auto shape = x.sizes().vec();
    shape.back() = part.size(0);
    return at::_unsafe_view(y, shape);  // as `reshaped` of `rows.py`
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &parameter = saved[1], &part = saved[2], &grad = grads[0];
    const Kept layer = kept(ctx);
    variable_list found(6);
    if (!grad.defined()) return found;
    if (at::GradMode::is_enabled()) {
      layer->call("gradients", {&found[0], &found[1]}, grad, x, parameter);
      return found;
    }
    const Tensor rows = rows_of(grad);
    if (ctx->needs_input_grad(0)) {
      if (ctx->saved_data["sums_gradient"].toBool()) {
        layer->call("product", {&found[0]}, rows.contiguous(), part);
      } else {
        found[0] = at::mm(rows, part);
      }
      found[0] = found[0].view(x.sizes());
    }
    if (ctx->needs_input_grad(1)) layer->call("gradient", {&found[1]}, at::mm(rows.t(), rows_of(x)));
    return found;
  }
};

// part(parameter, part, whole): `part` as a function of `parameter`.
PyObject* part(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const auto whole = c10::make_intrusive<Object>(given[2]);
  const Tensor& parameter = THPVariable_Unpack(given[0]);
  const auto accumulator = accumulator_of(parameter);
  return THPVariable_Wrap(Part::apply(parameter, THPVariable_Unpack(given[1]), whole));
  END_HANDLE_TH_ERRORS
}

// linear(x, parameter, part, layer, sums_result, sums_gradient): `x @ part.T` as a function of `x` and `parameter`; which of the
// result and the gradient of `x` is summed over the ranks, by the layer's product.
PyObject* linear(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const auto layer = c10::make_intrusive<Object>(given[3]);
  const Tensor x = THPVariable_Unpack(given[0]), parameter = THPVariable_Unpack(given[1]), part = THPVariable_Unpack(given[2]);
  const bool sums_result = given[4] == Py_True, sums_gradient = given[5] == Py_True;
  const auto accumulator = accumulator_of(parameter);
  Tensor y;
  {
    pybind11::gil_scoped_release released;
    y = Linear::apply(x, parameter, part, layer, sums_result, sums_gradient);
  }
  return THPVariable_Wrap(y);
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyMODINIT_FUNC PyInit_native() {
  static PyMethodDef methods[] = {
      {"part", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(part)), METH_FASTCALL, nullptr},
      {"linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(linear)), METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, methods};
  return PyModule_Create(&module);
}
