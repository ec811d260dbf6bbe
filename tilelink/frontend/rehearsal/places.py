"""The small call that a rehearsal runs: sizes of axes, tiles of them, what tensors hold, and where an index lies."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilelink.errors import Loc
from tilelink.frontend.rehearsal.blocks import IN, INDEX, Array, Block, Edge, number
from tilelink.frontend.rehearsal.drawn import SIZES, TILE, Drawn, Findings, Paths, Rehearsed
from tilelink.ir.program import Param
from tilelink.ir.shape import RANK_AXIS, Axis, Dim, dims_of, evaluated

RANKS = 3
"""How many ranks there are."""
TURNS, ENOUGH = 4, 32
"""Turns of a loop that are rehearsed; in the first rehearsal, and of a loop that is unrolled, there are enough."""
REST = 6
"""Elements that the axes have which `...` stands for."""
KINDS: Sequence[Callable[[Array], Array]] = (
    lambda chance: 12 * chance - 6, lambda chance: -0.2 - 9 * chance, lambda chance: 0.2 + 9 * chance,
    lambda chance: chance - 0.5, lambda chance: -900 - 9 * chance, lambda chance: np.floor(5 * chance) - 2,
    lambda chance: 300 + 9 * chance,
)  # fmt: skip
"""By rehearsal, and by tensor, which numbers one holds."""
LEAST = (0, -3, 0, 1000, -3, 0, -1000)
"""By rehearsal, the least of five integers that a tensor holds of which the signature says no more."""
LARGE = 1024
"""A constant size above is rehearsed as a smaller one."""


@dataclass(frozen=True, slots=True)
class Span:
    """A tile of an axis, or an entry of an index: positions, of which there are those from `begin` on, before `end`."""

    at: Block
    begin: int
    end: int

    def there(self, at: Array) -> Array:
        """Which positions there are."""
        return (at >= self.begin) & (at < self.end)


class Trial:
    """One small call; sizes, data and constants differ from one to the next. `way`: sides of branches to take; `sides`: those
    taken; `tiles`: by index of the domain; `stored`: by tensor and position, where `half` asks."""

    def __init__(
        self, program: Rehearsed, of: Drawn, paths: Paths, found: Findings, way: Mapping[ast.AST, bool]
    ) -> None:
        self.program, self.drawn, self.paths, self.found, self.way = program, of, paths, found, way
        self.once = of.half is None
        self.sides: dict[ast.AST, bool] = {}
        self.tiles: dict[str, Span] = {}
        self.stored: dict[tuple[Any, ...], tuple[float, Loc]] = {}
        axes = [a for shape in program.signature.shapes for a in shape.axes]
        names = dict.fromkeys(d for a in axes for d in dims_of(a.size))
        split = {d for a in axes if a.split for d in dims_of(a.size)}
        self.which, self.rank = of.which, (of.which + 1) % RANKS
        sizes = {n: of.size(k) for k, n in enumerate(names)}
        self.sizes = {n: RANKS * size + RANKS - 1 if n in split else size for n, size in sizes.items()}
        self.constants = {c.name: of.constant(c, k) for k, c in enumerate(program.constants)}
        self.constants |= {name: number(value, static=isinstance(value, int)) for name, value in program.given.items()}
        turn = of.which // len(SIZES)  # first all hold the same, then each what another held
        self._kinds = {name: KINDS[(of.which + turn * k) % len(KINDS)] for k, name in enumerate(program.params)}

    @property
    def turns(self) -> int:
        """Of a loop that is not unrolled."""
        return TURNS if self.once and (self.drawn.which or self.drawn.near) else ENOUGH

    def size(self, axis: Axis) -> int:
        """Elements of an axis, of all ranks together."""

        def of(dim: Dim) -> int:
            return RANKS if dim.ranks or dim.name == RANK_AXIS else self.sizes.get(dim.name, 2)

        found = int(evaluated(axis.size, of))
        if isinstance(axis.size, int) and found.bit_count() == 1:
            return min(found, LARGE // 2)
        return found if found <= LARGE or not isinstance(axis.size, int) else LARGE // 2 + 3

    def part(self, axis: Axis) -> tuple[int, int]:
        """Where this rank's part of an axis begins and ends, or that of a segment."""
        size = self.size(axis)
        if axis.split is None or axis.own_slice:
            return 0, size
        part = -(-size // RANKS)
        return self.rank * part, min(self.rank * part + part, size)

    def whole(self, param: Param, on: Axis | None) -> Span:
        """A whole axis, or this rank's part of it. None: those that `...` stands for."""
        begin, end = (0, REST) if on is None else self.part(on)
        if on is not None and isinstance(on.size, int) and on.size.bit_count() == 1 and on.split is None:
            return spanning(None, 0, end, end)
        lanes = max(TILE, 1 << max(end - begin - 1, 0).bit_length())
        return spanning(Edge(param.name, "..." if on is None else on.name, ""), begin, end, lanes)

    def index(self, param: Param, given: Any) -> list[Span]:
        """Tiles, positions and vectors of them, which all go along one axis: by axis of a tensor, as blocks that go together."""
        axes: list[Axis | None] = [*param.shape.axes]
        parts: list[Any] = [*given] if isinstance(given, tuple) else [given]  # pyright: ignore[reportUnknownArgumentType]
        parts += [None] * (len(axes) - len(parts))
        if param.shape.rest is not None:
            axes.insert(param.shape.rest, None)
            parts.insert(param.shape.rest, None)
        entries = [self._entry(param, on, part) for on, part in zip(axes, parts, strict=True)]
        vectors = [k for k, part in enumerate(parts) if isinstance(part, Block) and part.rank]
        own = [k for k, e in enumerate(entries) if e.at.rank and k not in vectors[1:]]
        axis = [own.index(vectors[0] if k in vectors else k) if e.at.rank else 0 for k, e in enumerate(entries)]
        return [replace(e, at=e.at.placed(axis[k], len(own))) for k, e in enumerate(entries)]

    def _entry(self, param: Param, on: Axis | None, part: Any) -> Span:
        if on is None or part is None:
            return self.whole(param, on)
        if isinstance(part, Span):
            edges = tuple(e and Edge(param.name, on.name, e.var) for e in part.at.edges)
            return part if edges == part.at.edges else replace(part, at=replace(part.at, edges=edges))
        at = replace(part, value=np.trunc(np.nan_to_num(part.value.astype(float))).astype(int))
        found = Span(at, *self.part(on))
        if at.rank and not at.data and at.mark is None and not any(at.edges):
            mark = np.where(found.there(at.value[0]), IN, INDEX)  # positions of no axis end where this one does
            return replace(found, at=replace(at, mark=mark))
        return found

    def data(self, param: Param, *positions: Array) -> Array:
        """What a tensor holds there."""
        contract, dtype = param.shape.contract, param.shape.dtype or ""
        if contract is not None and contract.kind == "offsets":  # all that there is lies in the last part
            last = self.size(param.shape.axes[0]) - 1
            return np.where(positions[0] < last, 0, max(self.sizes.values()))
        mixed = np.asarray([0.37 + [*self._kinds].index(param.name) + 0.11 * self.which])
        for k, at in enumerate(positions):
            mixed = mixed * 1.7 + np.sin(at * (12.9898 + k) + k + self.which)
        chance = np.modf(np.abs(np.sin(mixed * 78.233) * 43758.5453))[0]
        if contract is not None or dtype.startswith(("i", "u")):
            most = 5 if contract is None or contract.of is None else self.size(Axis(contract.of))
            least = LEAST[self.which % len(LEAST)] if contract is None else 0
            return np.floor(chance * most).astype(int) + (least if dtype.startswith("i") else max(least, 0))
        return self._kinds[param.name](chance)


def spanning(edge: Edge | None, begin: int, end: int, lanes: int) -> Span:
    """A block of positions, of which those from `end` on lie past it."""
    at = begin + np.arange(lanes)
    mark = np.where(at < end, IN, INDEX) if (at >= end).any() else None
    return Span(Block(at[None], mark, (edge,), bare=True), begin, end)
