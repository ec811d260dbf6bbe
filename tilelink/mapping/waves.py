"""How long a matmul takes in tiles of a shape while its rows come from other ranks, or its result goes there.

Workers take tiles in waves, and the last wave takes as long as a full one; a tile whose rows are not there waits. It is a
model of H200s, by which tiles are chosen; `benchmarks/results` are what it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and columns of a tile, and how many warps and stages make it.

    `fixed`, `per`: microseconds of a tile of 16-bit elements on an SM, whatever its depth and for each element of that.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    fixed: float
    per: float

    def us(self, depth: int) -> float:
        """Microseconds of a tile."""
        return self.fixed + self.per * depth


LARGE = Shape(128, 256, 8, 3, 6.5, 0.0094)
SHAPES = (LARGE, Shape(64, 256, 4, 4, 8.0, 0.0047))
"""Of emitted matmuls; by default the first of those that are equally fast."""
DEPTH = 64
"""Elements along what is summed that a step of the loop takes."""
MORE = 1 / 8
"""Tiles end where ranks' parts do unless that makes more than so many more of them."""
WAVES = 64
"""With more waves than these, the last one being half empty costs nothing that counts."""


@dataclass(frozen=True, slots=True)
class Moving:
    """Bytes per microsecond, and microseconds. `link`: of a copy engine over NVLink, which no file of results has by itself.
    `start`: what a call does before its matmul runs. `given`, `made`: the fixed cost of a copy of an argument, and of what a
    matmul makes."""

    link: float = 3.6e5
    start: float = 11.0
    given: float = 5.5
    made: float = 8.5

    def arrivals(self, nbytes: float, ranks: int) -> tuple[float, ...]:
        """When the parts of so many bytes are there, in the order of the ring: the first one is this rank's own."""
        return tuple(at * (self.given + nbytes / self.link) for at in range(ranks))

    def sent(self, ready: Iterable[float], nbytes: float) -> float:
        """When the last of some chunks of so many bytes is there, which are sent one after the other when they are ready."""
        at = 0.0
        for each in ready:
            at = max(at, float(each)) + self.made + nbytes / self.link
        return at


@dataclass(frozen=True, slots=True)
class Product:
    """Sizes of `[rows, depth] @ [depth, columns]`; `parts`: of its rows, which come or go one after the other."""

    rows: int
    columns: int
    depth: int
    parts: int = 1

    def part(self, shape: Shape) -> int:
        """Tiles of a part; about so many where tiles do not end with it."""
        whole, each = -(-self.rows // shape.rows), -(-self.rows // self.parts)
        cut = self.parts * -(-each // shape.rows)
        rows = cut if cut - whole <= whole * MORE else whole
        return -(-rows * -(-self.columns // shape.columns) // self.parts)

    def waves(self, shape: Shape, sms: int) -> int:
        return -(-self.part(shape) * self.parts // sms)

    def us(self, shape: Shape, sms: int) -> float:
        """Microseconds of all of it on so many SMs, where nothing is waited for."""
        return self.waves(shape, sms) * shape.us(self.depth)

    def ends(self, shape: Shape, sms: int, arrivals: Sequence[float]) -> NDArray[np.float64]:
        """When each tile is made; `arrivals`: when the rows of each part are there."""
        there = np.repeat(np.array(arrivals), self.part(shape))
        ends, free = np.empty(len(there)), np.zeros(sms)
        for at in range(0, len(there), sms):
            wave = there[at : at + sms]
            free[: len(wave)] = np.maximum(free[: len(wave)], wave) + shape.us(self.depth)
            ends[at : at + sms] = free[: len(wave)]
        return ends

    def overlapped(
        self, shape: Shape, sms: int, moving: Moving, *, coming: float = 0.0, going: float = 0.0, chunks: int = 1
    ) -> float:
        """Microseconds until all is made, and is where it goes.

        Args:
            coming: bytes of a part of the rows, which are waited for; the first part is this rank's own.
            going: bytes of a part of the result, in so many `chunks`; the last part stays here.
        """
        there = moving.arrivals(coming, self.parts) if coming else (0.0,) * self.parts
        ends = np.maximum.accumulate(self.ends(shape, sms, there))
        if not going or self.parts < 2:
            return float(ends[-1])
        per = self.part(shape)
        last = [at * per + -(-per * (c + 1) // chunks) - 1 for at in range(self.parts - 1) for c in range(chunks)]
        return max(float(ends[-1]), moving.sent(ends[last], going / chunks))

    def best(self, shapes: Sequence[Shape], sms: int, *, coming: float = 0.0, going: float = 0.0) -> Shape:
        """The fastest of some shapes, the first of those that are equally fast."""
        if self.waves(shapes[0], sms) > WAVES:
            return shapes[0]
        return min(shapes, key=lambda shape: self.overlapped(shape, sms, Moving(), coming=coming, going=going))
