"""The interpreter's arithmetic: right where Triton's own is wrong, and short where it is slow."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.runtime.simulated.machine import Machine

# ---------------------------------------------------------------------------------------------------------------------
# Floating point types that numpy has not: bfloat16 and the 8-bit ones, kept as bits between operations.
#
# Triton's own interpreter multiplies the bits, truncates, and loses carries; here every conversion is torch's.

NARROW = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
"""Triton's name of a type whose values are kept as bits -> torch's type."""


def widen(bits: np.ndarray, name: str) -> np.ndarray:
    """Values of Triton type `name` in a type that numpy computes with: bits become float32, the rest stays."""
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name not in NARROW:
        return bits
    return torch.from_numpy(_own(bits)).view(NARROW[name]).float().numpy()


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Round to nearest even, and return the bits. 8-bit types saturate, as NVIDIA's conversions do."""
    ty = NARROW[name]
    wide = torch.from_numpy(_own(values.astype(np.float32, copy=False)))
    if name == "bf16":
        return wide.to(ty).view(torch.int16).numpy().view(np.uint16)
    top = torch.finfo(ty).max
    return wide.clamp(-top, top).to(ty).view(torch.uint8).numpy()


def truncate(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits, towards zero."""
    return (_own(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def dot(a: np.ndarray, b: np.ndarray, out: np.dtype) -> np.ndarray:
    """The matrix product in `out`; products of integers are exact (they go through float64's BLAS)."""
    wide = np.float64 if np.issubdtype(out, np.integer) or out == np.float64 else np.float32
    return np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False)).astype(out, copy=False)


def _own(values: np.ndarray) -> np.ndarray:
    """Contiguous and writable: torch warns about views it may not write to."""
    own = np.ascontiguousarray(values)
    return own if own.flags.writeable else own.copy()


Handle = stock.TensorHandle


def _wide(value: Handle) -> np.ndarray:
    ty: Any = value.dtype.scalar
    return widen(value.data, ty.name)


def _on_wide(name: str, op: Callable[..., np.ndarray] | None = None) -> Callable[..., Handle]:
    """The builder's method `name`, which applies `op`, or what it is given last, to the elements of its operands."""
    long_way = getattr(stock.InterpreterBuilder, name)

    def method(self: Any, *given: Any) -> Handle:
        del self
        *values, compute = (*given, op) if op is not None else given
        ty: Any = values[-1].dtype.scalar
        if compute is np.where or ty.name not in NARROW:
            return long_way(stock.interpreter_builder, *given)
        made = compute(*map(_wide, values))
        # Comparisons stay bool; the rest goes back into its type.
        return Handle(made if made.dtype == np.bool_ else narrow(made, ty.name), ty)

    return method


class Arithmetic:
    """Builder methods. What needs no care goes to the stock method."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def get_bf16(self, value: float) -> Handle:
        return Handle(narrow(np.array([value]), "bf16"), tl.bfloat16)

    # ------------------------------------------------------------------------------------------------------------ casts
    def cast_impl(self, src: Handle, dst_type: Any) -> Handle:
        old: Any = src.dtype.scalar
        new = dst_type.scalar
        if old == new:
            return Handle(src.data, new)
        wide = widen(src.data, old.name)
        if new.name in NARROW:
            return Handle(narrow(wide, new.name), new)
        return Handle(wide.astype(stock._get_np_dtype(new)), new)

    def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding: Any) -> Handle:
        if rounding == ir.ROUNDING_MODE.RTZ:
            if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
                kinds = f"{src.dtype.scalar} to {dst_type.scalar}"
                raise self.machine.refusal(f"rounding {kinds} towards zero", "round to nearest even")
            return Handle(truncate(src.data), tl.bfloat16)
        return self.cast_impl(src, dst_type)

    # ------------------------------------------------------------------------------------------------------- elementwise
    unary_op = _on_wide("unary_op")
    binary_op = _on_wide("binary_op")
    ternary_op = _on_wide("ternary_op")
    create_fma = _on_wide("create_fma", lambda a, b, c: a * b + c)

    def create_erf(self, arg: Handle) -> Handle:
        return Handle(torch.erf(torch.from_numpy(_own(arg.data))).numpy(), arg.dtype.scalar)

    # -------------------------------------------------------------------------------------------------------------- dots
    def create_dot(self, a: Handle, b: Handle, d: Handle, *precision: Any) -> Handle:
        agent = self.machine.scheduler.running()
        agent.clock += self.machine.costs.per_depth(1, d.data.size) * a.data.shape[-1]
        ty: Any = d.dtype.scalar
        left, right, wide = map(_wide, (a, b, d))
        exact = np.dtype(np.float32) if wide.dtype == np.float16 else wide.dtype
        result = dot(left, right, exact) + wide
        if ty.name in NARROW:
            return Handle(narrow(result, ty.name), ty)
        return Handle(result.astype(d.data.dtype, copy=False), ty)


# ---------------------------------------------------------------------------------------------------------------------
# A short way for arithmetic on integers and pointers, single ones and blocks: most of what a kernel does between its dots.
#
# Triton's semantics take 20 to 100 microseconds to add two indices, most of it to find the type of the result. Where both
# sides are signed integers, or one is a pointer, the type is known at a look; everything else goes the long way.

Binary = Callable[..., Any]

_LIMITS = {"int32": 1 << 31, "int64": 1 << 63}
_ARITHMETIC: dict[str, Binary] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: (a - np.fmod(a, b)) // b,  # towards zero, as on a GPU
    "mod": np.fmod,
}
_COMPARISONS: dict[str, Binary] = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_LOGIC: dict[str, Binary] = {"and": operator.and_, "or": operator.or_}
_FUNCTIONS: dict[str, Binary] = {"minimum": np.minimum, "maximum": np.maximum}


def short_methods() -> dict[str, Callable[[Binary], Binary]]:
    """Method of `tl.tensor` -> what makes its short form out of its long one."""
    made = {f"__{name}__": _maker(compute, _wider) for name, compute in _ARITHMETIC.items()}
    made |= {f"__r{name}__": _maker(lambda a, b, c=compute: c(b, a), _wider) for name, compute in _ARITHMETIC.items()}
    made |= {f"__{name}__": _maker(compute, lambda left, right: tl.int1) for name, compute in _COMPARISONS.items()}
    made |= {f"__{name}__": _maker(compute, _wider, _truths) for name, compute in _LOGIC.items()}
    plus = made["__add__"]
    made["__add__"] = lambda long_way: plus(_pointer_plus(long_way))
    return made


def short_functions() -> dict[str, Callable[[Binary], Binary]]:
    """The same for functions of `triton.language`."""
    return {name: _maker(compute, _wider) for name, compute in _FUNCTIONS.items()}


def _maker(compute: Binary, element: Binary, sides: Binary | None = None) -> Callable[[Binary], Binary]:
    """`element`: the elements' type of the result. `sides`: what is computed with, of both sides; None: the long way goes."""
    operands = sides or _integers

    def make(long_way: Binary) -> Binary:
        def short_way(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
            pair = None if args or kwargs else operands(left, right)
            if pair is None:
                return long_way(left, right, *args, **kwargs)
            return _made(left, right, compute(*pair), element(left, right))

        return short_way

    return make


def _truths(left: Any, right: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Both sides, where both are truth values whose shapes meet."""
    both = _element(left) == _element(right) == "int1" and _meet(left, right)
    return (left.handle.data, right.handle.data) if both else None


def _integers(left: Any, right: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Both sides in the wider of their types, where both are signed integers whose shapes meet."""
    name = _element(left)
    limit = _LIMITS.get(name)
    if limit is None:
        return None
    data = left.handle.data
    if type(right) is int:
        return (data, np.array([right], dtype=data.dtype)) if -limit <= right < limit else None
    other = _element(right)
    if other not in _LIMITS or not _meet(left, right):
        return None
    if other == name:
        return data, right.handle.data
    return data.astype(np.int64), right.handle.data.astype(np.int64)


def _element(value: Any) -> str:
    """The name of the elements' type; empty for what is no tensor."""
    ty: Any = value.dtype if isinstance(value, tl.tensor) else None
    return "" if ty is None else ty.name


def _is_block(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.type is not value.dtype


def _meet(left: Any, right: Any) -> bool:
    """Whether numpy's broadcasting is Triton's here: blocks of as many axes, or one side is single."""
    a, b = left.handle.data.shape, right.handle.data.shape
    if a == b or not (_is_block(left) and _is_block(right)):
        return True
    return len(a) == len(b) and all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True))


def _wider(left: Any, right: Any) -> Any:
    return right.dtype if _element(right) == "int64" else left.dtype


def _made(left: Any, right: Any, data: np.ndarray, element: Any) -> Any:
    """A tensor of such elements, a block if either side is one; like the left side where nothing but the value differs."""
    block = _is_block(left)
    if element is left.dtype and data.shape == left.handle.data.shape and (block or not _is_block(right)):
        made = object.__new__(tl.tensor)
        made.__dict__.update(left.__dict__)
        made.handle = stock.TensorHandle(data, left.handle.dtype)
        return made
    if block or _is_block(right):
        return tl.tensor(stock.TensorHandle(data, element), tl.block_type(element, list(data.shape)))
    return tl.tensor(stock.TensorHandle(data, element), element)


def _pointer_plus(long_way: Binary) -> Binary:
    def short_way(left: Any, right: Any) -> Any:
        ty = left.dtype
        if not isinstance(ty, tl.pointer_type):
            return long_way(left, right)
        if type(right) is int:
            offset = np.array([right % (1 << 64)], dtype=np.uint64)
        elif _element(right) in _LIMITS and _meet(left, right):
            offset = right.handle.data.astype(np.uint64)
        else:
            return long_way(left, right)
        step = np.uint64(max(1, ty.element_ty.primitive_bitwidth // 8))
        return _made(left, right, left.handle.data + offset * step, ty)

    return short_way


# ---------------------------------------------------------------------------------------------------------------------
# What Triton derives from a shape, derived once: it is most of what making a tensor costs in the interpreter.
#
# Each tensor gets its shape as a tuple of constants with types, and each block type checks its shape and writes its name.
# Both depend on the shape and on the elements' type alone, and nobody changes them.

Init = Callable[..., None]


def tensor_init(slow: Init) -> Init:
    """`tl.tensor.__init__`, whose `numel` and `shape` are those of the first tensor of the type."""
    known: dict[str, dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        derived = known.get(type.name)
        if derived is None:
            slow(self, handle, type)
            known[type.name] = {name: vars(self)[name] for name in ("numel", "shape")}
        else:
            self.__dict__.update(derived, handle=handle, type=type, dtype=type.scalar)

    return init


def block_type_init(slow: Init) -> Init:
    """`tl.block_type.__init__`, whose `shape`, `numel` and `name` are those of the first block like it."""
    known: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = _sizes(shape)
        if sizes is None:
            return slow(self, element_ty, shape)
        derived = known.get((element_ty.name, sizes))
        if derived is None:
            slow(self, element_ty, shape)
            known[element_ty.name, sizes] = {name: vars(self)[name] for name in ("shape", "numel", "name")}
        else:
            self.__dict__.update(derived, element_ty=element_ty)

    return init


def _sizes(shape: Any) -> tuple[int, ...] | None:
    """The sizes as numbers; None where Triton is to say what it thinks of them."""
    if isinstance(shape, tl.tuple):
        shape = shape.values
    if not isinstance(shape, list):
        return None
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    return sizes if set(map(type, sizes)) == {int} else None
