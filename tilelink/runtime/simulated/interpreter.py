"""Runs Triton functions in Triton's own interpreter: with `builder`, all that depends on its version.

The emitted file is not changed, not imported a second time and not compiled: while a run lasts, calling a `triton.jit`
function executes its source with the interpreter's language, and the builder's memory operations go to the machine.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Lock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.jit import JITFunction

from tilelink.errors import TilelinkError
from tilelink.runtime.backend import Descriptor
from tilelink.runtime.kernels import INTERPRETED
from tilelink.runtime.memory import WORD
from tilelink.runtime.simulated.agents import NUMBER, OF_CALL, Block, Target
from tilelink.runtime.simulated.builder import NARROW, Builder, span_of
from tilelink.runtime.simulated.machine import Machine

_CMP_EQ = 0
_running = Lock()
_compiled: WeakKeyDictionary[Callable[..., Any], CodeType] = WeakKeyDictionary()
"""Function -> its rewritten module code. Rewriting takes longer than many a kernel runs."""

Function = Callable[..., Any]


class Interpreter:
    """Executes Triton functions for the agents of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._functions: dict[Function, Function] = {}
        self._names: dict[int, dict[str, Any]] = {}
        self._scope = stock._LangPatchScope()
        waits = ("signal_wait_until", "local_wait_until", "signal_wait_within", "local_wait_within")
        self._special: dict[str, Callable[[Function], Function]] = {
            **dict.fromkeys(waits, self._waiting),
            "signal_wait_each": self._one_by_one,
            **dict.fromkeys(("ll_load", "ll_load_within"), self._numbered),
            "look_at_clock": self._aside,
        }
        """Device functions that are more to the machine than what they do -> what makes that of them."""

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Triton's language means the interpreter's, for the whole process, while this lasts."""
        if not _running.acquire(blocking=False):
            raise TilelinkError(
                "TL450",
                "a simulation is running in this process",
                why="Triton's language means the interpreter's for the whole process meanwhile",
                hint="call tilelink.launch in one thread at a time, and not inside a rank",
            )
        try:
            self._scope.set_attr(stock.interpreter_semantic, "builder", Builder(self.machine))
            self._patch_language()
            yield
        finally:
            self._scope.restore()
            _running.release()

    def function(self, jit: JITFunction) -> Function:
        """The Python function that executes `jit`."""
        fn: FunctionType = jit.fn
        made = self._functions.get(fn)
        if made is None:
            code = _compiled.get(fn)
            if code is None:
                code = _compiled[fn] = _rewritten(jit)
            names = self._module_names(fn)
            if fn.__closure__:
                # The closure of a function that is not at the top of its module becomes names of a further copy.
                names = {**names, **inspect.getclosurevars(fn).nonlocals}
            scope: dict[str, Any] = {}
            exec(code, names, scope)
            made = scope[fn.__name__]
            made = self._functions[fn] = self._special.get(fn.__name__, lambda same: same)(made)
        return made

    def arguments(self, kernel: JITFunction, args: Mapping[str, Any]) -> dict[str, Any]:
        """What a launch passes: tensors become pointers, descriptors TMA descriptors, constants stay."""
        given = {name: v.of_argument(name) if isinstance(v, Descriptor) else v for name, v in args.items()}
        constant = {p.name for p in kernel.params if p.is_constexpr}
        return {name: v if name in constant else stock._implicit_cvt(v) for name, v in given.items()}

    def _module_names(self, fn: FunctionType) -> dict[str, Any]:
        """A copy of the names of the function's module, with its own builtins bound to the interpreter."""
        names = self._names.get(id(fn.__globals__))
        if names is None:
            names = {**vars(stock), **fn.__globals__, INTERPRETED: True}
            for name, value in fn.__globals__.items():
                if tl.core.is_builtin(value) and isinstance(value, FunctionType):
                    names[name] = partial(value, _semantic=stock.interpreter_semantic)
                elif isinstance(value, tl.constexpr):
                    # What one makes with a tensor is a constant to Python, which it cannot be.
                    names[name] = value.value
                elif isinstance(value, ModuleType) and value.__name__.startswith("triton.language.extra"):
                    # Builtins besides the language itself, such as libdevice.
                    stock._patch_builtin(value, stock.interpreter_semantic.builder, self._scope)
            self._names[id(fn.__globals__)] = names
        return names

    def _waiting(self, fn: Function) -> Function:
        """A function `(flag, cmp, value, …)` that polls: knowing the condition gives better reports and clocks."""
        signature = inspect.signature(fn)

        def wait(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            flag = Block(int(given["flag"].handle.data.item()), (1,), (0,), WORD)
            comparison = "=" if operator.index(given["cmp"]) == _CMP_EQ else ">="
            with self.machine.waiting(Target(flag, comparison, operator.index(given["value"]))):
                return fn(*args, **kwargs)

        return wait

    def _one_by_one(self, fn: Function) -> Function:
        """A function `(flags, cmp, values, inside)` that waits for a block of flags: to have seen all of them is the same as to
        have seen one after the other."""
        wait = fn.__globals__["signal_wait_until"]

        def each(words: Any, cmp: Any, values: Any, inside: Any) -> None:
            pointers, live = words.handle.data, np.broadcast_to(inside.handle.data, words.handle.data.shape)
            targets = np.broadcast_to(values.handle.data, pointers.shape)
            for at in np.argwhere(live):
                lane = tuple(at)
                word = stock.TensorHandle(pointers[lane].reshape(1), words.handle.dtype)
                value = stock.TensorHandle(targets[lane].reshape(1), tl.int64)
                self.function(wait)(tl.tensor(word, words.dtype), cmp, tl.tensor(value, tl.int64))

        return each

    def _numbered(self, fn: Function) -> Function:
        """A function `(flags, number, mask, …)` that loads a block of flags until all of them hold the number: the report names
        the first that does not."""

        def load(words: Any, number: Any, mask: Any, *rest: Any) -> Any:
            live = mask.handle.data if isinstance(mask, tl.tensor) else None
            span = span_of(words.handle.data, live, WORD)
            if span is None:
                return fn(words, number, mask, *rest)
            with self.machine.waiting(Target(span, OF_CALL, operator.index(number) & NUMBER)):
                return fn(words, number, mask, *rest)

        return load

    def _aside(self, fn: Function) -> Function:
        """What a poll loop calls besides: no progress, nor a point where others run."""

        def look(*args: Any) -> Any:
            agent = self.machine.scheduler.running()
            agent.aside = True
            try:
                return fn(*args)
            finally:
                agent.aside = False

        return look

    # -------------------------------------------------------------------------------------------------------- patching
    def _patch_language(self) -> None:
        scope = self._scope
        for owner in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
            stock._patch_builtin(owner, stock.interpreter_semantic.builder, scope)
        for module in (tl, tl.core):
            stock._patch_lang_core(module, scope)
            scope.set_attr(module, "multiple_of", self._multiple_of)
        stock._patch_lang_tensor(tl.tensor, scope)
        # Stock's `int(array)` needs a 0-dimensional array since numpy 2.4.
        scope.set_attr(tl.tensor, "__index__", lambda tensor: int(tensor.handle.data.item()))
        for (owner, name), short in short_forms().items():
            scope.set_attr(owner, name, short(getattr(owner, name)))
        scope.set_attr(
            tl.tensor, "__init__", derived_once(tl.tensor.__init__, "handle", lambda handle, type: type.name)
        )
        scope.set_attr(tl.block_type, "__init__", derived_once(tl.block_type.__init__, "element_ty", _kind_of_block))
        scope.set_attr(stock.ReduceScanOpInterface, "apply", _wide(stock.ReduceScanOpInterface.apply))
        scope.set_attr(stock.ReduceOps, "min_max", _of_numbers(stock.ReduceOps.min_max))
        # Stock builds a table of types at every call, a tenth of a run.
        slow, known = stock._get_np_dtype, dict[str, Any]()  # by name: not every Triton type can be hashed
        by_name = lambda ty: known[ty.name] if ty.name in known else known.setdefault(ty.name, slow(ty))  # noqa: E731
        scope.set_attr(stock, "_get_np_dtype", by_name)

        def call(jit: JITFunction, *args: Any, **kwargs: Any) -> Any:
            return self.function(jit)(*args, **kwargs)

        def bind(jit: JITFunction, instance: Any, owner: Any = None) -> Any:
            """`v.sum(0)` is a jit function found on the tensor's class; 3.6 does not bind it."""
            return jit if instance is None else MethodType(jit, instance)

        scope.set_attr(JITFunction, "__call__", call)
        scope.set_attr(stock.InterpretedFunction, "__call__", call)
        scope.set_attr(JITFunction, "__get__", bind)

    def _multiple_of(self, value: Any, values: Any) -> Any:
        """Checks the promise: compiled code would access memory wrongly where it is broken."""
        promised = values.value if isinstance(values, tl.constexpr) else values
        if isinstance(value, tl.tensor) and value.handle.data.size == 1 and isinstance(promised, int):
            actual = int(value.handle.data.item())
            if actual % promised:
                raise self.machine.diagnostic(
                    "TL505",
                    f"tl.multiple_of promises a multiple of {promised}, but the value is {actual}",
                    hint="align the buffer, or leave the hint out",
                )
        return value


def _rewritten(jit: JITFunction) -> CodeType:
    """As the stock rewriter does it, but of the source that Triton has found already, which takes longer than all else here; and
    not executed in the emitted module, which would get 50 names more."""
    tree = stock.FunctionRewriter.ast_transformer.visit(jit.parse())
    # Lines of decorators are not in `src`.
    before = jit.starting_line_number - 1 + len(jit.raw_src) - jit.src.count("\n")
    return compile(ast.increment_lineno(ast.fix_missing_locations(tree), before), jit.fn.__code__.co_filename, "exec")


def _of_numbers(min_max: Callable[..., Any]) -> Callable[..., Any]:
    """Where no lane is a number, as in rows past an edge, stock finds no greatest one, and raises; a GPU takes the first."""

    def run(ops: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        def index(data: Any, axis: int | None, keepdims: bool) -> Any:
            none = np.isnan(data).all(axis=axis, keepdims=True)
            return idx_reduce_op(np.where(none, 0, data), axis=axis, keepdims=keepdims)

        return min_max(ops, input, val_reduce_op, idx_reduce_op and index)

    return run


def _wide(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions and scans of narrow types are computed in float32 and rounded once."""

    def run(ops: Any, input: Any) -> Any:
        if not isinstance(input, tuple):
            return apply(ops, input)  # which comes back with a tuple of one
        made = apply(ops, tuple(t.to(tl.float32) if _element(t) in NARROW else t for t in input))
        return tuple(r.to(t.dtype) if _element(t) in NARROW else r for r, t in zip(made, input, strict=True))

    return run


# ---------------------------------------------------------------------------------------------------------------------
# A short way for arithmetic on integers and pointers, single ones and blocks: most of what a kernel does between its dots.
#
# Triton's semantics take 20 to 100 microseconds to add two indices, most of it to find the type of the result. That depends on
# nothing but the types of the two sides: where these are signed integers or truth values, or the left one is a pointer, it is
# looked up once. Everything else goes the long way.

_WHOLE = ("int32", "int64")
_SMALL = range(-(1 << 31), 1 << 31)
_ARITHMETIC: dict[str, Function] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: (a - np.fmod(a, b)) // b,  # towards zero, as on a GPU
    "mod": np.fmod,
}


def short_forms() -> dict[tuple[Any, str], partial[Function]]:
    """Method of `tl.tensor`, or function of a module -> what makes its short form out of its long one."""
    comparisons = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
    made = {f"__{name}__": partial(_short, compute) for name, compute in (_ARITHMETIC | comparisons).items()}
    made |= {f"__r{name}__": partial(_short, lambda a, b, c=compute: c(b, a)) for name, compute in _ARITHMETIC.items()}
    made["__add__"] = partial(_short, operator.add, pointers=True)
    for name, compute in (("__and__", operator.and_), ("__or__", operator.or_)):
        made[name] = partial(_short, compute, elements=("int1",))
    extremes = {"minimum": partial(_short, np.minimum), "maximum": partial(_short, np.maximum)}
    functions = {(module, name): short for module in (tl, tl.core) for name, short in extremes.items()}
    return functions | {(tl.tensor, name): short for name, short in made.items()}


def _short(
    compute: Function, long_way: Function, *, elements: tuple[str, ...] = _WHOLE, pointers: bool = False
) -> Function:
    """`compute`, once the long way has shown which type the result has for two sides of these types.

    `elements`: of both sides, where a small number may be on the right of whole ones. `pointers`: they may be on the left.
    """
    known: dict[tuple[Any, Any], tuple[Any, np.uint64 | None]] = {}

    def short_way(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        key = _type(left), _type(right)
        found = known.get(key)
        if found is None or (key[1] is int and right not in _SMALL):
            made = long_way(left, right, *args, **kwargs)
            step = None  # bytes from what a pointer points to to what follows it
            if pointers and isinstance(left.dtype, tl.pointer_type):
                step = np.uint64(max(1, left.dtype.element_ty.primitive_bitwidth // 8))
            small = elements is _WHOLE and key[1] is int and right in _SMALL
            if not ((step or _element(left) in elements) and (small or _element(right) in elements)):
                return made
            # Only its type: one truth value beside a block of them would be spread as what its handle says, as an integer.
            found = known[key] = made.type, step
        ty, step = found
        data = left.handle.data
        other = np.array([right]).astype(data.dtype) if key[1] is int else right.handle.data
        if step is not None:
            other = other.astype(np.uint64) * step
        return tl.tensor(stock.TensorHandle(compute(data, other), ty.scalar), ty)

    return short_way


def _type(value: Any) -> Any:
    """By name, where it is one of Triton's."""
    ty: Any = value.type if isinstance(value, tl.tensor) else None
    return type(value) if ty is None else ty.name


def _element(value: Any) -> str:
    """The name of the elements' type; empty for what is no tensor."""
    ty: Any = value.dtype if isinstance(value, tl.tensor) else None
    return "" if ty is None else ty.name


# ---------------------------------------------------------------------------------------------------------------------
# What Triton derives from a shape, derived once: it is most of what making a tensor costs in the interpreter.
#
# Each tensor gets its shape as a tuple of constants with types, and each block type checks its shape and writes its name.
# Both depend on the shape and on the elements' type alone, and nobody changes them.


def derived_once(slow: Function, fresh: str, key: Callable[[Any, Any], object]) -> Function:
    """An `__init__` of two arguments, which gives an object what the first one with that `key` got, and its own attribute
    `fresh`, the first argument. A `key` of None: nothing is known."""
    known: dict[object, dict[str, Any]] = {}

    def init(self: Any, first: Any, second: Any) -> None:
        kind = key(first, second)
        derived = known.get(kind)
        if derived is not None:
            self.__dict__.update(derived)
            self.__dict__[fresh] = first
            return
        slow(self, first, second)
        if kind is not None:
            known[kind] = {name: value for name, value in vars(self).items() if name != fresh}

    return init


def _kind_of_block(element: Any, shape: Any) -> tuple[str, tuple[int, ...]] | None:
    """None where Triton is to say what it thinks of the sizes."""
    if isinstance(shape, tl.tuple):
        shape = shape.values
    if not isinstance(shape, list):
        return None
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    return (element.name, sizes) if set(map(type, sizes)) == {int} else None
