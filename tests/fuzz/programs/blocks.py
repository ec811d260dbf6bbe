"""Blocks of values as a tile program sees them, in numpy: padded to their tile, and aware of whether data made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch


class Origin(Protocol):
    """Who computes with data. `steered`: data has decided where it goes."""

    steered: bool


class Block(np.ndarray[Any, Any]):
    """Values, `origin`: of the run that loaded any of them from a tensor; None: they follow from positions and constants."""

    origin: Origin | None

    def __array_finalize__(self, obj: Any) -> None:
        self.origin = getattr(obj, "origin", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Any:
        given.pop("out", None)  # `a += b` makes a value of its own
        return lifted(getattr(ufunc, method))(*inputs, **given)

    def __bool__(self) -> bool:
        return bool(self._decided())

    def __index__(self) -> int:
        return int(self._decided())

    __int__ = __index__

    def _decided(self) -> Any:
        if self.origin is not None:
            self.origin.steered = True
        return np.asarray(self).item()

    def to(self, dtype: Any) -> Block:
        """`dtype`: a word, or what another block's `dtype` is."""
        return block(held_as(dtype, np.asarray(self)), self.origin) if isinstance(dtype, str) else self


def block(values: Any, origin: Origin | None = None) -> Block:
    made = np.asarray(values).view(Block)
    made.origin = origin
    return made


def of_data(*values: Any) -> Origin | None:
    """The run whose data any of the values, or entries of an index, come from."""
    for v in values:
        found = of_data(*v) if isinstance(v, (tuple, list)) else v.origin if isinstance(v, Block) else None
        if found is not None:
            return found
    return None


def lifted(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for blocks."""

    def call(*args: Any, **given: Any) -> Block:
        plain = [np.asarray(a) if isinstance(a, Block) else a for a in args]
        return block(f(*plain, **given), of_data(*args))

    return call


def held_as(dtype: str, values: Any) -> Any:
    """Values as a tensor of the dtype holds them; numbers are 64 bits wide here."""
    kept = torch.from_numpy(np.ascontiguousarray(values)).to(TORCH[dtype])
    wide = kept.to(torch.float64 if kept.is_floating_point() else torch.int64)
    return wide.numpy().reshape(np.shape(values))


TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32, "i64": torch.int64}


@dataclass(frozen=True)
class Tile:
    """Positions from `begin` to `end` of one axis, in a block of `width`."""

    begin: int
    end: int
    width: int

    @property
    def range(self) -> Any:
        return np.arange(self.begin, self.begin + self.width)

    @property
    def positions(self) -> Any:
        """Those past the end are nowhere."""
        return np.where(self.range < self.end, self.range, -1)


def power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def word(f: Callable[..., Any]) -> Any:
    return staticmethod(lifted(f))


class Arithmetic:
    """What tile programs take from Triton's language itself."""

    float32, bfloat16, float16, int32, int64 = "f32", "bf16", "f16", "i32", "i64"
    where, maximum, minimum, abs = word(np.where), word(np.maximum), word(np.minimum), word(np.abs)
    trans, ravel, cumsum = word(np.transpose), word(np.ravel), word(np.cumsum)
    sum, max, min = word(np.sum), word(np.max), word(np.min)
    static_range = range

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> Block:
        return block(np.zeros(shape, np.int64 if str(dtype).startswith("i") else np.float64))

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any) -> Block:
        return Arithmetic.zeros(shape, dtype) + value

    @staticmethod
    def arange(start: int, stop: int) -> Block:
        return block(np.arange(start, stop))

    @staticmethod
    def dot(a: Any, b: Any, acc: Any = 0, out_dtype: Any = None) -> Block:
        del out_dtype
        return lifted(np.matmul)(a, b) + acc

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return -(-a // b)
