"""Blocks of values as a rehearsal has them: what all lanes make, beside what those that count alone would make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from tilelink.ir.program import Together

Array: TypeAlias = "np.ndarray[Any, Any]"
IN, INDEX, PAST = range(3)
"""Marks of lanes: an element; past an edge, and made of positions alone; past an edge."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Whose lanes an axis of a block are: along axis `dim` of a parameter, those of tile `var` ("": of the whole axis).
    `loaded`: as a load has left them."""

    param: str
    dim: str
    var: str
    loaded: bool = True


def made(edges: Iterable[Edge | None]) -> tuple[Edge | None, ...]:
    """Of what no load has left so."""
    return tuple(e and replace(e, loaded=False) for e in edges)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """`value`: what all lanes make, then what those that count make, if it is something else, along a first axis; behind it the
    axes of the block (none: one value). `mark`: of each lane, None: all are elements. `data`: some of it was loaded. `known`: it
    is written out, and the same in every call; `static`: Triton computes it when it compiles, as Python does. `coordinate`: a
    rank's. `bare`: positions, or what was loaded, as they are. `odd`: refuses the call that made both differ. `taken`: of what it
    is made that takes tiles of the domain together. `lanes`: of the length of a block, the positions along the axis."""

    value: Array
    mark: Array | None = None
    edges: tuple[Edge | None, ...] = ()
    data: bool = False
    known: bool = False
    static: bool = False
    coordinate: bool = False
    bare: bool = False
    odd: Callable[[], NoReturn] | None = None
    taken: frozenset[Together] = frozenset()
    lanes: Block | None = None

    @property
    def rank(self) -> int:
        return self.value.ndim - 1

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.value.shape[1:]

    @property
    def marks(self) -> Array:
        return np.zeros(self.lengths, np.int8) if self.mark is None else self.mark

    @property
    def past(self) -> bool:
        """Whether something of it lies past an edge."""
        return self.mark is not None and bool(self.mark.any())

    @property
    def counts_lanes(self) -> bool:
        """One number that is made of the length of a block."""
        return self.rank == 0 and self.mark is not None

    @property
    def number(self) -> float:
        """As one number: the first."""
        return float(np.nan_to_num(self.value.flat[0]))

    def moved(self, change: Callable[[Array], Array], edges: Iterable[Edge | None]) -> Block:
        """The same lanes in other places; `change` gets arrays that have a first axis more."""
        mark = None if self.mark is None else change(self.mark[None])[0]
        return replace(self, value=change(self.value), mark=mark, edges=tuple(edges), lanes=None)

    def along(self, axis: int) -> Block:
        """The length of an axis."""
        edge, marks = self.edges[axis], self.marks.min(axis=tuple(k for k in range(self.rank) if k != axis))
        inside = edge is None and not marks.any()
        lanes = Block(np.arange(len(marks))[None], None if inside else marks, (edge,))
        return Block(np.asarray([len(marks)]), None if inside else np.asarray(PAST), static=True, lanes=lanes)


def number(value: Any, **more: Any) -> Block:
    return Block(np.asarray([value]), **more)


def spread(array: Array, lengths: Sequence[int]) -> Array:
    """With as many axes as `lengths`, of these lengths or of 1; the first axis stays. Where it has more lanes (of a block that
    is as long as the tile by the schedule, which a rehearsal does not have), the first of them."""
    array = array.reshape(array.shape[:1] + (1,) * (len(lengths) + 1 - array.ndim) + array.shape[1:])
    for axis, wanted in enumerate(lengths, 1):
        if array.shape[axis] not in (1, wanted):
            array = np.take(array, np.arange(wanted) % array.shape[axis], axis)
    return array


def common(values: Sequence[Block]) -> list[int]:
    """The lengths of what blocks are broadcast to."""
    rank = max((b.rank for b in values), default=0)
    shapes = [(1,) * (rank - b.rank) + b.lengths for b in values]
    return [min((n for n in along if n != 1), default=1) for along in zip(*shapes, strict=True)]


def broadcast(values: Sequence[Block]) -> tuple[list[Array], list[Array] | None, dict[str, Any]]:
    """Values and marks of blocks that go together (no marks: all lanes are elements), and what else is known of the result."""
    lengths = common(values)
    arrays = [spread(b.value, lengths) for b in values]
    marks = None
    if any(b.mark is not None for b in values):
        marks = [np.broadcast_to(spread(b.marks[None], lengths)[0], lengths) for b in values]
    sides = [(None,) * (len(lengths) - b.rank) + b.edges for b in values]
    edges = made(next((e for e in along if e), None) for along in zip(*sides, strict=True))
    taken = frozenset[Together]().union(*(b.taken for b in values))
    odd = next((b.odd for b in values if b.odd is not None), None)
    of_all = {word: all(getattr(b, word) for b in values) for word in ("known", "static")}
    return arrays, marks, {"edges": edges, "odd": odd, "taken": taken, "data": any(b.data for b in values), **of_all}


def elementwise(function: Callable[..., Any], *values: Block) -> Block:
    """A function of values that go together: of what lies past an edge it makes what lies past it."""
    arrays, marks, more = broadcast(values)
    return Block(np.asarray(function(*arrays)), None if marks is None else np.maximum.reduce(marks), **more)


def compared(function: Callable[..., Any], a: Block, b: Block) -> Block:
    """A comparison. A position past an end is past any that was loaded, as long as nothing else has been made of both."""
    found = elementwise(function, a, b)
    if found.mark is None or not found.data or not (a.bare and b.bare):
        return found
    (x, y), marks, _ = broadcast([a, b])
    first, second = marks or (np.zeros(0),) * 2
    sides = (
        np.where((first == INDEX) & (second == IN), np.inf, x),
        np.where((second == INDEX) & (first == IN), np.inf, y),
    )
    return replace(found, value=np.asarray(function(*sides)))


def difference(function: Callable[..., Any], a: Block, b: Block) -> Block:
    """Of positions less a position that was loaded, as those of a sequence among others, it is known as much as of them."""
    return replace(elementwise(function, a, b), bare=a.bare and b.bare and b.data and not a.data)


def filled(shape: Sequence[Block], value: Block) -> Block:
    """A block of a shape that holds one value."""
    lengths = [max(int(n.number), 1) for n in shape]
    marks = np.full(lengths, IN if value.mark is None else PAST, np.int8)
    for axis, n in enumerate(shape):
        if n.lanes is not None:
            own = spread(n.lanes.marks[None], lengths[axis : axis + 1])[0]
            marks = np.maximum(marks, own.reshape([-1 if k == axis else 1 for k in range(len(lengths))]))
    edges = made(n.lanes and n.lanes.edges[0] for n in shape)
    values = np.broadcast_to(value.value.reshape([-1] + [1] * len(lengths)), [len(value.value), *lengths])
    return replace(value, value=values, mark=marks if marks.any() else None, edges=edges)


def like(block: Block, other: Block) -> Block:
    """A block in the shape of another one: what it does not hold past an edge itself lies past the other's."""
    (value, _), marks, more = broadcast([block, replace(other, data=False, odd=None, taken=frozenset())])
    mark = None if marks is None else np.where(marks[0] != IN, marks[0], np.where(marks[1] != IN, PAST, IN))
    whole = np.broadcast_to(value, [len(value), *common([block, other])])
    return Block(whole, mark, **more)


def reshaped(block: Block, lengths: Sequence[int]) -> Block:
    """In another shape: axes from the left and from the right that are as long stay, and between those values move. Where a
    rehearsal has other lengths than the program, any lane may come anywhere."""
    old, rank, lengths = block.lengths, len(lengths), [max(n, 1) for n in lengths]
    left = next((k for k in range(min(len(old), rank)) if old[k] != lengths[k]), min(len(old), rank))
    rest = min(len(old), rank) - left
    right = next((k for k in range(rest) if old[-1 - k] != lengths[-1 - k]), rest)
    inner = [e for e in block.edges[left : len(old) - right] if e]
    edges = (*block.edges[:left], *made(inner[:1] or (None,)) * (rank - left - right), *block.edges[len(old) - right :])
    head, tail, wanted = old[:left], old[len(old) - right :], list(lengths[left : rank - right])
    size = int(np.prod(old[left : len(old) - right]))
    pick = np.arange(size)
    if size != np.prod(wanted):
        wanted = [min(n, 8) for n in wanted]
        pick = np.random.default_rng(size).integers(0, size, int(np.prod(wanted)))

    def change(array: Array) -> Array:
        flat = array.reshape(len(array), *head, size, *tail)
        return np.take(flat, pick, left + 1).reshape(len(array), *head, *wanted, *tail)

    return block.moved(change, edges)


def stacked(values: Sequence[Block], axis: int) -> Block:
    """Blocks beside one another along an axis that they get."""
    arrays, marks, more = broadcast(values)
    size = max(len(a) for a in arrays)
    whole = np.stack([np.broadcast_to(a, [size, *common(values)]) for a in arrays], axis + 1)
    edges = [*more.pop("edges")]
    edges.insert(axis, None)
    return Block(whole, None if marks is None else np.stack(marks, axis), tuple(edges), **more)


def row(index: Any, k: int) -> Any:
    """An index as all lanes have it, or as it is meant."""
    if isinstance(index, tuple):
        return tuple(row(part, k) for part in cast("tuple[Any, ...]", index))
    return replace(index, value=index.value[k][None]) if isinstance(index, Block) else index


def holds(found: Any) -> bool:
    return bool(found.value.any()) if isinstance(found, Block) else bool(found)


def part(found: Any, k: int) -> Any:
    """An entry of a tuple, the last or the first if a rehearsal asks for one that it does not have; None: there are none."""
    parts: Any = found
    return parts[max(min(k, len(parts) - 1), -len(parts))] if isinstance(found, tuple) and parts else None


def integer(found: Any, default: int) -> int:
    return int(found.number) if isinstance(found, Block) else default
