"""A short way for arithmetic on integers and pointers, single ones and blocks: most of what a kernel does between its dots.

Triton's semantics take 20 to 100 microseconds to add two indices, most of it to find the type of the result. Where both
sides are signed integers, or one is a pointer, the type is known at a look; everything else goes the long way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock

Binary = Callable[..., Any]

_LIMITS = {"int32": 1 << 31, "int64": 1 << 63}
_TRUTH = "int1"


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as on a GPU."""
    return (a - np.fmod(a, b)) // b


_ARITHMETIC: dict[str, Binary] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _quotient,
    "mod": np.fmod,
}
_COMPARISONS: dict[str, Binary] = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_LOGIC: dict[str, Binary] = {"and": operator.and_, "or": operator.or_}
_FUNCTIONS: dict[str, Binary] = {"minimum": np.minimum, "maximum": np.maximum}


def methods() -> dict[str, Callable[[Binary], Binary]]:
    """Method of `tl.tensor` -> what makes its short form out of its long one."""
    made = {f"__{name}__": _maker(compute, _wider) for name, compute in _ARITHMETIC.items()}
    made |= {f"__r{name}__": _maker(_swapped(compute), _wider) for name, compute in _ARITHMETIC.items()}
    made |= {f"__{name}__": _maker(compute, _truth) for name, compute in _COMPARISONS.items()}
    made |= {f"__{name}__": _logic(compute) for name, compute in _LOGIC.items()}
    plus = made["__add__"]
    made["__add__"] = lambda long_way: plus(_pointer_plus(long_way))
    return made


def functions() -> dict[str, Callable[[Binary], Binary]]:
    """The same for functions of `triton.language`."""
    return {name: _maker(compute, _wider) for name, compute in _FUNCTIONS.items()}


def _maker(compute: Binary, element: Binary) -> Callable[[Binary], Binary]:
    """`element`: the elements' type of the result, of those of both sides."""

    def make(long_way: Binary) -> Binary:
        def short_way(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
            pair = None if args or kwargs else _integers(left, right)
            if pair is None:
                return long_way(left, right, *args, **kwargs)
            return _made(left, right, compute(*pair), element(left, right))

        return short_way

    return make


def _logic(compute: Binary) -> Callable[[Binary], Binary]:
    def make(long_way: Binary) -> Binary:
        def short_way(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or not (_element(left) == _element(right) == _TRUTH and _meet(left, right)):
                return long_way(left, right, *args, **kwargs)
            return _made(left, right, compute(left.handle.data, right.handle.data), left.dtype)

        return short_way

    return make


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


def _truth(left: Any, right: Any) -> Any:
    return tl.int1


def _made(left: Any, right: Any, data: np.ndarray, element: Any) -> Any:
    """A tensor of such elements, a block if either side is one; like the left side where nothing but the value differs."""
    block = _is_block(left)
    if element is left.dtype and data.shape == left.handle.data.shape and (block or not _is_block(right)):
        return _like(left, data)
    if block or _is_block(right):
        return tl.tensor(stock.TensorHandle(data, element), tl.block_type(element, list(data.shape)))
    return tl.tensor(stock.TensorHandle(data, element), element)


def _like(model: Any, data: np.ndarray) -> Any:
    """A tensor of the type of another one: everything but the value is shared."""
    made = object.__new__(tl.tensor)
    made.__dict__.update(model.__dict__)
    made.handle = stock.TensorHandle(data, model.handle.dtype)
    return made


def _swapped(compute: Binary) -> Binary:
    return lambda a, b: compute(b, a)


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
