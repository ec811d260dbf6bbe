"""How an operator's tensors become parameters of its programs: axes, sizes, and what each rank sees of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.programs.memory import Extent, Memory, Param, Ranks, Unjudged, View
from tests.fuzz.programs.shapes import Axis, Shape, Signature

Sizes = dict[str, Extent]


@dataclass(frozen=True)
class Placement:
    """A schedule's entry: only the sizes of tiles have a meaning, and whose tiles they are."""

    sizes: Mapping[str, int]
    host: str | None = None


@dataclass(eq=False)
class Program:
    """A tile program. `step`: what a call of it in an operator's body does."""

    step: Callable[..., Any]
    signature: Signature
    axes: tuple[str, ...]
    fn: Callable[..., Any]
    name: str

    def __call__(self, *tensors: Memory, name: str | None = None, over: str | None = None, **given: Any) -> Any:
        return self.step(self, tensors, name or self.name, over, given)


@dataclass(eq=False)
class Operator:
    fn: Callable[..., Any]
    signature: Signature
    axes: tuple[str, ...]
    placements: dict[str, Placement] = field(default_factory=dict[str, Placement])

    def schedule(self, entries: Mapping[str, Placement] | None = None, **given: Any) -> Operator:
        named = {n: p for n, p in given.items() if isinstance(p, Placement)}
        return Operator(self.fn, self.signature, self.axes, {**self.placements, **(entries or {}), **named})


@dataclass(frozen=True)
class Bound:
    """A tensor for a parameter. `axes`: of each axis of the parameter how it is written (None: one of `...`), the tensor's own,
    and the axis of an instance (None: it is this rank's slice)."""

    shape: Shape
    memory: Memory
    axes: tuple[tuple[Axis | None, Extent, int | None], ...]


def extent(a: Axis, sizes: Sizes, ranks: Ranks, over: str | None) -> Extent:
    """An axis of a new tensor. `over`: what `R` stands for; None: names are those of the operator."""
    if a.rank:
        along = over or a.size
        return Extent(ranks.sizes[along], along if a.own else None, a.own, ranks=True)
    known = sizes.get(a.size)
    size = a.extent({n: e.size for n, e in sizes.items()}) if known is None else known.size
    if a.split in ranks.sizes or a.split == "R":
        return Extent(size, over or a.split)
    return Extent(size, known.over if known is not None else None)


def bound(shape: Shape, memory: Memory) -> Bound:
    held = [e for e in memory.axes if not e.own]
    own = next((e for e in memory.axes if e.own), None)
    spare = len(held) - sum(not a.own for a in shape.axes)
    if spare < 0 or (spare and shape.rest is None):
        raise Unjudged("other axes")
    at = len(shape.axes) if shape.rest is None else shape.rest
    out: list[tuple[Axis | None, Extent, int | None]] = []
    for a in [*shape.axes[:at], *[None] * spare, *shape.axes[at:]]:
        if a is not None and a.own:
            out.append((a, own or Extent(0, "", own=True), None))
        else:
            k = sum(i is not None for *_, i in out)
            out.append((a, held[k], k))
    return Bound(shape, memory, tuple(out))


def axis_of(p: Program, taken: Sequence[Bound], ranks: Ranks) -> str:
    """The axis of ranks that a step speaks of."""
    split = [e.over for b in taken for a, e, _ in b.axes if a is not None and a.split in p.axes and e.over]
    return next((axis for axis in (*split, *p.axes) if axis in ranks.sizes), next(iter(ranks.sizes)))


def sizes_of(p: Program, taken: Sequence[Bound], given: Mapping[str, Any]) -> tuple[Sizes, tuple[Extent, ...]]:
    """What names stand for, and `...`."""
    wide = p.signature.split(p.axes)
    sizes: Sizes = {n: Extent(v) for n, v in given.items() if isinstance(v, int)}
    rest: tuple[Extent, ...] = ()
    for b in taken:
        for a, e, _ in b.axes:
            if a is None or a.rank:
                continue
            name, found = a.size, Extent(e.size) if a.size in wide else e
            if name.endswith("+1") and name[:-2] not in sizes:
                name, found = name[:-2], Extent(e.size - 1)
            if name.isidentifier() and sizes.setdefault(name, found).size != found.size:
                raise Unjudged(f"{name} is of two sizes")
        rest = tuple(e for a, e, _ in b.axes if a is None) or rest
    return sizes, rest


def param_of(p: Program, name: str, b: Bound, rank: int, axis: str, ranks: Ranks, cut: str | None) -> Param:
    """`cut`: tiles of whole axes end where the parts of the ranks along this axis would."""
    wide, views, owned = p.signature.split(p.axes), list[View](), b.memory.owner
    for a, e, at in b.axes:
        if a is not None and a.own:
            views.append(View("own", ranks.sizes[axis], 1, None, axis))
        elif a is not None and a.rank:
            views.append(View("ranks", e.size, 1, at, axis))
        elif a is not None and a.split in p.axes:
            views.append(View("split", e.size, e.part(ranks), at, axis))
        else:
            local = e.over is not None and (a is None or a.size not in wide)
            whole = ranks.sizes[axis] if a is not None and a.size in wide else 1
            whole = ranks.sizes[cut] if cut is not None and a is not None and not local else whole
            size = e.here(ranks, rank) if local else e.size
            views.append(View("plain", size, max(1, -(-e.size // whole)), at, axis, owned))
        owned = None if at is not None else owned
    units = tuple(a is not None and a.unit for a, *_ in b.axes)
    dims = tuple("" if a is None else a.size for a, *_ in b.axes)
    tables = tuple(a.split if a is not None and a.split not in (None, *p.axes) else None for a, *_ in b.axes)
    return Param(name, b.memory, tuple(views), rank, ranks, ranks.line(rank, axis), units, dims, tables=tables)
