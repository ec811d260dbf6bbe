"""The small call that a rehearsal runs: sizes of axes, tiles of them, what tensors hold, and where an index lies."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilelink.frontend.rehearsal.blocks import IN, INDEX, Array, Block, Edge, number, spread
from tilelink.ir.program import Constant, Param
from tilelink.ir.shape import RANK_AXIS, Axis, Dim, Signature, dims_of, evaluated

TILE, RANKS = 4, 3
"""Elements of a tile, and how many ranks there are."""
SIZES = ((3, 6, 5, 7), (1, 2, 3, 5), (6, 3, 7, 1), (2, 1, 6, 3), (5, 7, 1, 2), (7, 5, 2, 6), (6, 3, 2, 5))
"""By rehearsal, sizes of dimensions in the order of the signature: of one tile or of two, the last of which is no whole one."""
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
class Drawn:
    """Which call it is. `least`: axes have more elements than a program counts by constants; `near`: one has, or all have, about
    as many as a constant that positions are compared with; `axis`: which one, -1: all. `half`: of tiles of the domain along this
    index, 0: the first half, 1: the second; of those of a walk, how long they are. `first`: quotients are judged, in the first
    tile of the domain, or in the last."""

    which: int
    least: int = 0
    near: int = 0
    axis: int = -1
    half: tuple[str, int] | None = None
    first: bool | None = None

    def size(self, k: int) -> int:
        sizes = SIZES[(self.which + self.which // len(SIZES)) % len(SIZES)]
        return self.near if self.near and self.axis in (-1, k) else self.least + sizes[k % len(sizes)]


@dataclass(slots=True)
class Paths:
    """Which sides of branches rehearsals have taken. `ways`: how the first one came to a branch, and by which sides. `known`:
    what names stand for."""

    seen: dict[ast.AST, set[bool]] = field(default_factory=dict[ast.AST, set[bool]])
    ways: dict[ast.AST, tuple[Drawn, dict[ast.AST, bool]]] = field(default_factory=dict[Any, Any])
    tried: set[ast.AST] = field(default_factory=set[ast.AST])
    known: dict[ast.AST, Any] = field(default_factory=dict[ast.AST, Any])

    def untaken(self) -> tuple[Drawn, dict[ast.AST, bool]] | None:
        """A way to a side that nobody has taken."""
        for node, sides in self.seen.items():
            if len(sides) == 1 and node not in self.tried:
                self.tried.add(node)
                drawn, way = self.ways[node]
                return drawn, {**way, node: not next(iter(sides))}
        return None


class Given(str):
    """A text that is given at each call."""

    __slots__ = ()


def values_of(constant: Constant) -> tuple[float, ...]:
    """What rehearsals give an integer or a float: its default most often; of one above 0 others above it, or 0 of integers."""
    default = constant.default
    if default is None:
        return (0.5, 1.5, -0.5, 0.0) if constant.kind == "float" else (1, 2, 4, 0, 8, 3, -1)
    assert not isinstance(default, str)
    if default <= 0:
        return default, 1, -1, default, 2, 0
    return default, 2 * default, default, default / 2 if constant.kind == "float" else 0


def _value(constant: Constant, which: int, k: int) -> Any:
    """A value of the `k`-th constant."""
    if constant.kind == "str":
        return Given(constant.default or "")
    if constant.kind == "bool":
        return number(bool(np.random.default_rng((which, k)).integers(2)), static=True)
    values = values_of(constant)
    return number(values[(which + k + which // len(KINDS) * k) % len(values)], static=constant.kind == "int")


def is_new(constant: Constant, given: bool | int | float | str) -> bool:
    """Whether a call gives a constant what rehearsals do not: an integer, for which a kernel is compiled anyway, or a float below
    all of theirs."""
    if constant.kind == "int":
        return given not in values_of(constant)
    return constant.kind == "float" and isinstance(given, float) and given <= 0 < min(values_of(constant))


@dataclass(frozen=True, slots=True)
class TileAt:
    """A tile of an axis: positions from `begin` on, before `end`. `var`: what ops call it. `lanes`: of a block."""

    var: str
    dim: str
    axis: int
    param: str
    begin: int
    end: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Of an index: its positions, which of them there are, and the axis of the block that they go along (None: it is one)."""

    at: Block
    there: Array
    axis: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """What an index names: a block of these lengths."""

    entries: tuple[Entry, ...]
    lengths: tuple[int, ...]

    @property
    def edges(self) -> tuple[Edge | None, ...]:
        along = ((x for e in self.entries if e.axis == k for x in e.at.edges) for k in range(len(self.lengths)))
        return tuple(next((x for x in each if x), None) for each in along)

    @property
    def there(self) -> Array:
        """Which lanes are elements of the tensor."""
        found = np.ones(self.lengths, bool)
        for e in self.entries:
            found = found & self.along(e.there, e)
        return found

    def along(self, array: Array, entry: Entry) -> Array:
        """An array of an entry as one of the block."""
        if entry.axis is None:
            return array
        lengths = [n if k == entry.axis else 1 for k, n in enumerate(self.lengths)]
        return spread(array[None], lengths[entry.axis : entry.axis + 1]).reshape(lengths)


class Trial:
    """One small call. Sizes, data and constants differ from one to the next."""

    def __init__(
        self,
        signature: Signature,
        params: Mapping[str, Param],
        constants: Sequence[Constant],
        of: Drawn,
        given: Mapping[str, Any],
    ) -> None:
        axes = [a for shape in signature.shapes for a in shape.axes]
        names = dict.fromkeys(d for a in axes for d in dims_of(a.size))
        split = {d for a in axes if a.split for d in dims_of(a.size)}
        self.which, self.rank = of.which, (of.which + 1) % RANKS
        sizes = [of.size(k) for k in range(len(names))]
        self.sizes = {n: RANKS * size + RANKS - 1 if n in split else size for n, size in zip(names, sizes, strict=True)}
        self.constants = {c.name: _value(c, of.which, k) for k, c in enumerate(constants)}
        self.constants |= {name: number(value, static=isinstance(value, int)) for name, value in given.items()}
        turn = of.which // len(KINDS)  # first all hold the same, then each what another held
        self._kinds = {name: KINDS[(of.which + turn * k) % len(KINDS)] for k, name in enumerate(params)}

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

    def tile(self, param: Param, axis: int, var: str, begin: int, end: int, lanes: int = TILE) -> TileAt:
        return TileAt(var, param.shape.axes[axis].name, axis, param.name, begin, min(begin + lanes, end), lanes)

    def lanes(self, param: Param, axis: int, tile: TileAt | None) -> Block:
        """The positions of a tile; None: of the whole axis, or of this rank's part of it."""
        on = param.shape.axes[axis]
        begin, end = (tile.begin, tile.end) if tile is not None else self.part(on)
        full = tile is None and isinstance(on.size, int) and on.size.bit_count() == 1 and on.split is None
        lanes = (
            tile.lanes if tile is not None else end if full else max(TILE, 1 << max(end - begin - 1, 0).bit_length())
        )
        at = begin + np.arange(lanes)
        edge = None if full else Edge(param.name, on.name, "" if tile is None else tile.var)
        return Block(at[None], np.where(at < end, IN, INDEX) if (at >= end).any() else None, (edge,), bare=True)

    def place(self, param: Param, given: Any) -> Place:
        """Where an index lies: tiles, positions and vectors of them, all of which go along one axis of the block."""
        parts: list[Any] = list(given) if isinstance(given, tuple) else [given]  # pyright: ignore[reportUnknownArgumentType]
        parts += [None] * (len(param.shape.axes) - len(parts))
        found, lengths, vectors = list[Entry](), list[int](), None
        for k, part in enumerate(parts):
            if k == param.shape.rest:
                found.append(self._rest(param, len(lengths)))
                lengths.append(len(found[-1].there))
            entry, gathers = self._entry(param, k, part), isinstance(part, Block)
            if entry.axis is not None:
                axis = vectors if gathers and vectors is not None else len(lengths)
                vectors, entry = axis if gathers else vectors, replace(entry, axis=axis)
                n = len(entry.there)
                lengths[axis:] = [n] if axis == len(lengths) else [min(n, lengths[axis]), *lengths[axis + 1 :]]
            found.append(entry)
        if param.shape.rest == len(parts):
            found.append(self._rest(param, len(lengths)))
            lengths.append(len(found[-1].there))
        return Place(tuple(found), tuple(lengths))

    def _entry(self, param: Param, axis: int, part: Any) -> Entry:
        on = param.shape.axes[axis]
        if not isinstance(part, Block):
            at = self.lanes(param, axis, part if isinstance(part, TileAt) else None)
            return Entry(at, at.marks == IN, 0)
        at = replace(part, value=np.trunc(np.nan_to_num(part.value.astype(float))).astype(int))
        begin, end = self.part(on)
        there = (at.value[0] >= begin) & (at.value[0] < end)
        if (
            at.rank and not at.data and at.mark is None and not any(at.edges)
        ):  # positions of no axis end where this one does
            at = replace(at, mark=np.where(there, IN, INDEX))
        return Entry(at, there, 0 if at.rank else None)

    @staticmethod
    def _rest(param: Param, axis: int) -> Entry:
        """The axes that `...` stands for: as one, of 6."""
        lanes = np.arange(8)
        at = Block(lanes[None], np.where(lanes < 6, IN, INDEX), (Edge(param.name, "...", ""),))
        return Entry(at, lanes < 6, axis)

    def data(self, param: Param, place: Place) -> Array:
        """What a tensor holds there."""
        positions = [place.along(e.at.value[0], e) for e in place.entries]
        contract, dtype = param.shape.contract, param.shape.dtype or ""
        if contract is not None and contract.kind == "offsets":  # all that there is lies in the last part
            last = self.size(param.shape.axes[0]) - 1
            return np.where(np.broadcast_to(positions[0], place.lengths) < last, 0, max(self.sizes.values()))
        mixed = np.full(place.lengths, 0.37 + [*self._kinds].index(param.name) + 0.11 * self.which)
        for k, at in enumerate(positions):
            mixed = mixed * 1.7 + np.sin(at * (12.9898 + k) + k + self.which)
        chance = np.modf(np.abs(np.sin(mixed * 78.233) * 43758.5453))[0]
        if contract is not None or dtype.startswith(("i", "u")):
            most = 5 if contract is None or contract.of is None else self.size(Axis(contract.of))
            least = LEAST[self.which % len(LEAST)] if contract is None else 0
            return np.floor(chance * most).astype(int) + (least if dtype.startswith("i") else max(least, 0))
        return self._kinds[param.name](chance)
