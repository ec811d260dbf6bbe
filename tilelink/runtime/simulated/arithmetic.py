"""The interpreter's arithmetic: right where Triton's own is wrong, and short where it is slow."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as stock

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
    return torch.from_numpy(own(bits)).view(NARROW[name]).float().numpy()


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Round to nearest even, and return the bits. 8-bit types saturate, as NVIDIA's conversions do."""
    ty = NARROW[name]
    wide = torch.from_numpy(own(values.astype(np.float32, copy=False)))
    if name == "bf16":
        return wide.to(ty).view(torch.int16).numpy().view(np.uint16)
    top = torch.finfo(ty).max
    return wide.clamp(-top, top).to(ty).view(torch.uint8).numpy()


def dot(a: np.ndarray, b: np.ndarray, out: np.dtype) -> np.ndarray:
    """The matrix product in `out`; products of integers are exact (they go through float64's BLAS)."""
    wide = np.float64 if np.issubdtype(out, np.integer) or out == np.float64 else np.float32
    return np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False)).astype(out, copy=False)


def own(values: np.ndarray) -> np.ndarray:
    """Contiguous and writable: torch warns about views it may not write to."""
    own = np.ascontiguousarray(values)
    return own if own.flags.writeable else own.copy()


# ---------------------------------------------------------------------------------------------------------------------
# A short way for arithmetic on integers and pointers, single ones and blocks: most of what a kernel does between its dots.
#
# Triton's semantics take 20 to 100 microseconds to add two indices, most of it to find the type of the result. That depends on
# nothing but the types of the two sides: where these are signed integers or truth values, or the left one is a pointer, it is
# looked up once. Everything else goes the long way.

Binary = Callable[..., Any]

_WHOLE = ("int32", "int64")
_SMALL = range(-(1 << 31), 1 << 31)
_ARITHMETIC: dict[str, Binary] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: (a - np.fmod(a, b)) // b,  # towards zero, as on a GPU
    "mod": np.fmod,
}


def short_forms() -> dict[tuple[Any, str], partial[Binary]]:
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


def _short(compute: Binary, long_way: Binary, *, elements: tuple[str, ...] = _WHOLE, pointers: bool = False) -> Binary:
    """`compute`, once the long way has shown which type the result has for two sides of these types.

    `elements`: of both sides, where a small number may be on the right of whole ones. `pointers`: they may be on the left.
    """
    known: dict[tuple[Any, Any], tuple[Any, np.uint64 | None]] = {}

    def short_way(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        key = _type(left), _type(right)
        found = known.get(key)
        if found is None or (key[1] is int and right not in _SMALL):
            made = long_way(left, right, *args, **kwargs)
            step = _step(left) if pointers else None
            small = elements is _WHOLE and key[1] is int and right in _SMALL
            if (step or _element(left) in elements) and (small or _element(right) in elements):
                known[key] = made.type, step
            return made
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


def _step(value: Any) -> np.uint64 | None:
    """Bytes from what a pointer points to to what follows it; None for what is no pointer."""
    ty: Any = value.dtype
    return np.uint64(max(1, ty.element_ty.primitive_bitwidth // 8)) if isinstance(ty, tl.pointer_type) else None


# ---------------------------------------------------------------------------------------------------------------------
# What Triton derives from a shape, derived once: it is most of what making a tensor costs in the interpreter.
#
# Each tensor gets its shape as a tuple of constants with types, and each block type checks its shape and writes its name.
# Both depend on the shape and on the elements' type alone, and nobody changes them.

Init = Callable[..., None]


def derived_once(slow: Init, fresh: str, key: Callable[[Any, Any], object]) -> Init:
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


def tensor_init(slow: Init) -> Init:
    """`tl.tensor.__init__`, of a handle and a type."""
    return derived_once(slow, "handle", lambda handle, type: type.name)


def block_type_init(slow: Init) -> Init:
    """`tl.block_type.__init__`, of the elements' type and a shape."""
    return derived_once(slow, "element_ty", _kind_of_block)


def _kind_of_block(element: Any, shape: Any) -> tuple[str, tuple[int, ...]] | None:
    """None where Triton is to say what it thinks of the sizes."""
    if isinstance(shape, tl.tuple):
        shape = shape.values
    if not isinstance(shape, list):
        return None
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    return (element.name, sizes) if set(map(type, sizes)) == {int} else None
