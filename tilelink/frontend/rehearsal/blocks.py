"""Blocks of values as a rehearsal has them: what all lanes make, beside what those that count alone would make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from tilelink.ir.program import Together

Array: TypeAlias = "np.ndarray[Any, Any]"
IN, INDEX, PAST = range(3)
"""Marks of lanes: an element; past an edge, and made of positions alone; past an edge."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Whose lanes an axis of a block are: along axis `dim` of a parameter, those of tile `var` ("": of the whole axis)."""

    param: str
    dim: str
    var: str


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
    def loaded(self) -> bool:
        """Whether it is as a load has left it."""
        return self.bare and self.data

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

    def placed(self, axis: int, rank: int) -> Block:
        """A vector as a block of more axes, which goes along one of them; one value as it is."""
        if not self.rank or self.rank == rank == 1:
            return self
        lengths = [-1 if k == axis else 1 for k in range(rank)]
        return self.moved(
            lambda v: v.reshape(len(v), *lengths), (self.edges[0] if k == axis else None for k in range(rank))
        )

    def along(self, axis: int) -> Block:
        """The length of an axis."""
        edge, marks = self.edges[axis], self.marks.min(axis=tuple(k for k in range(self.rank) if k != axis))
        inside = edge is None and not marks.any()
        lanes = Block(np.arange(len(marks))[None], None if inside else marks, (edge,))
        return Block(np.asarray([len(marks)]), None if inside else np.asarray(PAST), static=True, lanes=lanes)


def number(value: Any, **more: Any) -> Block:
    return Block(np.asarray([value]), **more)


def literal(value: Any) -> Any:
    """What is written out."""
    return value if value is None or isinstance(value, str) else number(value, known=True, static=True)


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
        marks = [spread(b.marks[None], lengths)[0] for b in values]
    sides = [(None,) * (len(lengths) - b.rank) + b.edges for b in values]
    edges = tuple(next((e for e in along if e), None) for along in zip(*sides, strict=True))
    taken = frozenset[Together]().union(*(b.taken for b in values))
    odd = next((b.odd for b in values if b.odd is not None), None)
    of_all = {word: all(getattr(b, word) for b in values) for word in ("known", "static")}
    return arrays, marks, {"edges": edges, "odd": odd, "taken": taken, "data": any(b.data for b in values), **of_all}


def elementwise(function: Callable[..., Any], *values: Block) -> Block:
    """A function of values that go together: of what lies past an edge it makes what lies past it."""
    arrays, marks, more = broadcast(values)
    return Block(np.asarray(function(*arrays)), None if marks is None else reduce(np.maximum, marks), **more)


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
    along = [n.lanes or Block(np.arange(max(int(n.number), 1))[None], edges=(None,)) for n in shape]
    axes = [block.placed(k, len(along)) for k, block in enumerate(along)]
    return like(value, elementwise(lambda *at: np.zeros((1, *np.broadcast_shapes(*(a.shape[1:] for a in at)))), *axes))


def like(block: Block, other: Block) -> Block:
    """A block in the shape of another one: what it does not hold past an edge itself lies past the other's."""
    (value, _), marks, more = broadcast([block, replace(other, data=False, odd=None, taken=frozenset())])
    mark = None if marks is None else np.where(marks[0] != IN, marks[0], marks[1])
    return Block(np.broadcast_to(value, [len(value), *common([block, other])]), mark, **more)


def reshaped(block: Block, lengths: Sequence[int]) -> Block:
    """In another shape: axes from the left and from the right that are as long stay, and between those values move. Where a
    rehearsal has other lengths than the program, any lane may come anywhere."""
    old, rank, lengths = block.lengths, len(lengths), [max(n, 1) for n in lengths]
    left = next((k for k in range(min(len(old), rank)) if old[k] != lengths[k]), min(len(old), rank))
    rest = min(len(old), rank) - left
    right = next((k for k in range(rest) if old[-1 - k] != lengths[-1 - k]), rest)
    inner = [e for e in block.edges[left : len(old) - right] if e]
    edges = (*block.edges[:left], *(inner[:1] or [None]) * (rank - left - right), *block.edges[len(old) - right :])
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
    return Block(whole, None if marks is None else np.stack(np.broadcast_arrays(*marks), axis), tuple(edges), **more)


def flat(value: Any) -> Iterator[Block]:
    """The blocks in what may be one, or a tuple of some."""
    if isinstance(value, Block):
        yield value
    elif isinstance(value, tuple):
        yield from chain.from_iterable(map(flat, cast("tuple[Any, ...]", value)))


def holds(found: Any) -> bool:
    return bool(found.value.any()) if isinstance(found, Block) else bool(found)


def part(found: Any, k: int) -> Any:
    """An entry of a tuple, the last or the first if a rehearsal asks for one that it does not have; None: there are none."""
    parts: Any = found
    return parts[max(min(k, len(parts) - 1), -len(parts))] if isinstance(found, tuple) and parts else None


def integer(found: Any, default: int) -> int:
    return int(found.number) if isinstance(found, Block) else default


def same(value: Array, where: Array) -> bool:
    """Whether all lanes make, at these, what those that count make."""
    if len(value) == 1:
        return True
    a, b = np.broadcast_to(value, [2, *where.shape])[:, where].astype(float)
    return bool((a == b).all() or np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True).all())


def agreed(value: Any, where: Array | None = None) -> Any:
    """Refuses a value that is another for what lies past an edge."""
    if isinstance(value, Block) and value.odd and not same(value.value, value.marks == IN if where is None else where):
        value.odd()
    return value
