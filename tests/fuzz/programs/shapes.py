"""Shapes as signatures write them, read by a few lines of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Axis:
    """`M/R` as written: the size, what splits it; `rank`: it counts ranks, `own`: and is this rank's slice."""

    size: str
    split: str | None
    rank: bool

    @property
    def own(self) -> bool:
        return self.rank and self.split is not None

    @property
    def unit(self) -> bool:
        return self.rank or self.size[:1].islower()

    def extent(self, sizes: Mapping[str, int]) -> int:
        """Of a size such as `M`, `4`, `e+1` or `T*k`."""
        parts = re.split(r"([+*])", self.size)
        numbers = [int(p) if p.isdecimal() else sizes[p] for p in parts[::2]]
        if len(numbers) == 1:
            return numbers[0]
        return numbers[0] + numbers[1] if parts[1] == "+" else numbers[0] * numbers[1]


@dataclass(frozen=True)
class Shape:
    """`rest`: where `...` stands. `contract`: `offsets`, `permutation`, or `<` and a size."""

    axes: tuple[Axis, ...]
    rest: int | None
    dtype: str | None
    contract: str | None


@dataclass(frozen=True)
class Signature:
    inputs: tuple[Shape, ...]
    results: tuple[Shape, ...]

    def split(self, ranks: tuple[str, ...]) -> frozenset[str]:
        """Dimensions whose positions count over all ranks."""
        axes = [a for s in (*self.inputs, *self.results) for a in s.axes]
        return frozenset(a.size for a in axes if a.split in ranks and not a.rank)


@cache
def read(text: str, ranks: tuple[str, ...]) -> Signature:
    """`ranks`: the names of axes of ranks."""
    sides = [[_shape(t, ranks) for t in side.split(",") if t.strip()] for side in (*text.split("->"), "")[:2]]
    return Signature(tuple(sides[0]), tuple(sides[1]))


def _shape(text: str, ranks: tuple[str, ...]) -> Shape:
    axes: list[Axis] = []
    rest = dtype = contract = None
    for word in text.split():
        if word == "...":
            rest = len(axes)
        elif word in ("f32", "bf16", "f16", "i32", "i64"):
            dtype = word
        elif word in ("offsets", "permutation") or word.startswith("<"):
            contract = word
        elif word in ("once", "partial"):
            continue  # promises of what data decides: nothing follows from them here
        else:
            size, _, split = word.partition("/")
            axes.append(Axis(size, split or None, size in ranks))
    return Shape(tuple(axes), rest, dtype, contract)
