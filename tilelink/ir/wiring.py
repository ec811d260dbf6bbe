"""An operator's frozen form: logical tensors, and the steps (tile programs) that connect them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilelink.errors import Loc
from tilelink.ir.formula import Formula, Like, of, substitute
from tilelink.ir.partition import here, part
from tilelink.ir.program import IndexEntry, OfTile, Store, TileProgram, Whole, walk
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import RANK_AXIS, Contract, MapTerm, Signature, ranks_along


@dataclass(frozen=True, slots=True)
class TensorAxis:
    """`size` is global; `split` is `"R"` or another axis of ranks, the *tensor name* of an offsets table, or None (whole on
    every rank). `over`: the same where it is an axis of ranks. `name` is that of the axis where it is one of ranks; an axis
    `R/R` is this rank's own slice. `owner`: the owner map that says who holds what along it."""

    name: str
    size: Formula
    split: str | None
    unit: bool
    over: str | None = None
    owner: MapTerm | None = None

    @property
    def own_slice(self) -> bool:
        return self.over is not None and self.name == self.over

    @property
    def here(self) -> Formula:
        """Of an axis that is split over ranks, elements that this one holds."""
        return here(self.size, over=self.over)

    @property
    def part(self) -> Formula:
        """Of such an axis, elements of a rank that holds a whole part."""
        return part(self.size, self.over)

    def holder(self, at: Like) -> Formula:
        """f_R: the rank that holds position `at`, by an owner map, else by the shape."""
        if self.owner is not None:
            return substitute(self.owner.formula, dict.fromkeys(self.owner.variables, at))
        return of(at) if self.own_slice else of(at) // self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDecl:
    """`origin` is argument | program | declared (`tilelink.symmetric`)."""

    name: str
    axes: tuple[TensorAxis, ...]
    dtype: str
    origin: str
    contract: Contract | None = None
    loc: Loc | None = None

    @property
    def owned(self) -> int | None:
        """The axis along which an owner map says who holds what."""
        return next((a for a, axis in enumerate(self.axes) if axis.owner is not None), None)

    def split_over(self, axis: str) -> bool:
        """Whether the ranks along an axis hold parts or slices of it."""
        return any(a.over == axis for a in self.axes)


@dataclass(frozen=True, slots=True)
class ViewAxis:
    """One axis of a program's parameter over its tensor. `dim`: the program's own name for it (names standing for `...` are
    `_0`, `_1`, …). `axis`: position in the tensor, whose axis is `of`; both are None when the tensor has no such axis and the
    instance itself is slice `rank` (an `R/R` axis over a plain one). `local`: positions count from this rank's part (the tensor
    splits the axis, the program does not say so; so it is wherever the tensor is split over another axis of ranks than the
    step's)."""

    dim: str
    axis: int | None
    local: bool
    unit: bool
    of: TensorAxis | None = field(default=None, compare=False)

    @property
    def stored(self) -> bool:
        """Whether a rank's memory has such an axis: a slice of its own has none for the ranks."""
        return self.of is not None and not self.of.own_slice

    @property
    def over(self) -> str | None:
        """The axis of ranks that the tensor splits it over."""
        return None if self.of is None else self.of.over

    @property
    def names_holder(self) -> bool:
        """Whether a position says which rank holds it, of those along the axis that the step speaks of."""
        return self.by_parts or (self.of is not None and self.of.owner is not None and not self.local)

    def extent(self, along: str) -> Formula:
        """Positions that a program sees, in its own coordinates; `along`: its axis of ranks."""
        if self.of is None:
            return ranks_along(along)
        return self.of.here if self.local else self.of.size

    def held(self, along: str) -> Formula:
        """Positions of the whole axis that a rank's own memory has: of a split one those of its part."""
        return self.extent(along) if self.of is None or self.of.over is None else self.of.here

    @property
    def by_parts(self) -> bool:
        """Whether this rank has a part of the axis, and the program counts over all ranks."""
        return self.over is not None and not self.local


@dataclass(frozen=True, slots=True)
class Binding:
    """Parameter `param` of a step over tensor `tensor`. Tensor axes that no view axis names are own slices."""

    param: str
    tensor: str
    view: tuple[ViewAxis, ...]

    @property
    def names_holders(self) -> bool:
        """Whether a tile lies on one rank only; else every rank has its own."""
        return any(v.axis is None or v.names_holder for v in self.view)


@dataclass(frozen=True, slots=True)
class Step:
    """One use of a tile program. `path` addresses it in a schedule (`gather`, `gemm_rs.matmul`). `shipped`: the placement that
    an inlined operator, or the call in the operator's body, brings along for it; `placement`: the one that a plan gives it,
    which is not compared, since several may come to the same. `axis`: the axis of ranks that it speaks of: `R` in its program,
    this rank's coordinate and its peers are those along this axis."""

    path: str
    program: TileProgram
    bindings: tuple[Binding, ...]
    constants: tuple[tuple[str, bool | int | float | str], ...]
    loc: Loc
    shipped: Placement | None = None
    axis: str = RANK_AXIS
    placement: Placement | None = field(default=None, compare=False)

    def binding(self, param: str) -> Binding:
        return next(b for b in self.bindings if b.param == param)

    @property
    def compiled(self) -> dict[str, Any]:
        """Its constants that are compiled in, which formulas may name."""
        kept = ((name, value) for name, value in self.constants if not isinstance(value, float))
        return {name: value if isinstance(value, str) else int(value) for name, value in kept}

    @property
    def takes(self) -> tuple[str, ...]:
        """The tensors of its inputs."""
        return tuple(b.tensor for b in self.bindings if self.program.param(b.param).role == "in")

    @property
    def makes(self) -> tuple[str, ...]:
        """The tensors of its outputs."""
        return tuple(b.tensor for b in self.bindings if self.program.param(b.param).role == "out")

    @property
    def writes(self) -> frozenset[str]:
        """The tensors that it stores to or moves into, also those that the operator has declared."""
        stored = {self.binding(op.param).tensor for op in walk(self.program.body) if isinstance(op, Store)}
        return frozenset(stored if self.moved_to is None else stored | {self.moved_to})

    @property
    def moves(self) -> tuple[Binding, Binding] | None:
        """What a copy program takes, and what it fills; None: it is none."""
        copies = self.program.copy_program
        return None if copies is None else (self.binding(copies.source), self.binding(copies.destination))

    @property
    def moved_axes(self) -> tuple[tuple[ViewAxis, ViewAxis], ...]:
        """Each axis of what a copy program takes, with that of what it fills."""
        return () if self.moves is None else tuple(zip(*(b.view for b in self.moves), strict=True))

    @property
    def moved_from(self) -> str | None:
        return None if self.moves is None else self.moves[0].tensor

    @property
    def moved_to(self) -> str | None:
        return None if self.moves is None else self.moves[1].tensor


@dataclass(frozen=True, slots=True)
class Wiring:
    """`sizes`: names of the run-time sizes (kernel arguments), in order; `arguments`, `results`: tensor names. `axes`: the
    axes of ranks, the outermost first."""

    name: str
    signature: Signature
    sizes: tuple[str, ...]
    tensors: tuple[TensorDecl, ...]
    steps: tuple[Step, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    loc: Loc
    axes: tuple[str, ...] = (RANK_AXIS,)

    def tensor(self, name: str) -> TensorDecl:
        return next(t for t in self.tensors if t.name == name)

    def moved_from(self, tensor: str, made: Collection[str]) -> str:
        """The one of `made` that copy programs make `tensor` of; itself, if it is among them."""
        while tensor not in made:
            # Also into what an operator has declared.
            tensor = next(b[0].tensor for s in self.steps if (b := s.moves) is not None and b[1].tensor == tensor)
        return tensor

    def producers(self, tensor: str) -> tuple[Step, ...]:
        """The steps that have `tensor` as an output, in order."""
        return tuple(s for s in self.steps if tensor in s.makes)

    def read_from(self, step: Step) -> set[str]:
        """The tensors that a step takes, and those that they are made of."""
        found: set[str] = set()
        ahead = [*step.takes]
        while ahead:
            tensor = ahead.pop()
            if tensor not in found:
                found.add(tensor)
                ahead += [t for s in self.producers(tensor) for t in s.takes]
        return found


def entries(step: Step, param: str, index: tuple[IndexEntry, ...] | None) -> tuple[IndexEntry, ...]:
    """One entry per view axis of `param`: what the index leaves out, and what stands for `...`, is whole."""
    view = step.binding(param).view
    given = index or ()
    rest = step.program.param(param).shape.rest
    if rest is not None:
        wholes = len(view) - len(step.program.param(param).shape.axes)
        given = given[:rest] + (Whole(),) * wholes + given[rest:]
    return given + (Whole(),) * (len(view) - len(given))


Entries: TypeAlias = tuple[tuple[ViewAxis, IndexEntry], ...]


def indexed(step: Step, param: str, index: tuple[IndexEntry, ...] | None) -> Entries:
    """Each view axis with its entry. A copy program takes tiles along all of them, also where it has no name for one: they are
    known by their position."""
    view = step.binding(param).view
    tiles = tuple(OfTile(str(k)) for k in range(len(view)))
    return tuple(zip(view, entries(step, param, index) if step.moves is None else tiles, strict=True))


def entry_on(step: Step, param: str, index: tuple[IndexEntry, ...] | None, axis: int | None) -> IndexEntry | None:
    """What an index says along an axis of the tensor; None: the program sees no such axis."""
    return next((e for v, e in indexed(step, param, index) if v.axis == axis), None)
