"""What Triton derives from a shape, derived once: it is most of what making a tensor costs in the interpreter.

Each tensor gets its shape as a tuple of constants with types, and each block type checks its shape and writes its name.
Both depend on the shape and on the elements' type alone, and nobody changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl

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
