"""Which axis of a tensor each axis of a signature means, and which sizes follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.frontend.symbolic import Extent, LogicalAxis, Record
from tilelink.frontend.wording import count
from tilelink.ir.formula import Formula, cdiv, of
from tilelink.ir.shape import (
    RANK_AXIS,
    Axis,
    Dim,
    Product,
    Shape,
    Signature,
    Size,
    Sum,
    dims_of,
    evaluated,
    ranks_along,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One axis of a signature's tensor over an axis of the tensor given. `declared` is None for an axis behind `...`.

    `at` None: the tensor has no such axis, the instance itself is this rank's slice.
    """

    dim: str
    declared: Axis | None
    at: int | None


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor in a call: which parameter it is for, its shape there, and itself."""

    param: str
    shape: Shape
    record: Record


@dataclass(frozen=True, slots=True)
class Ranks:
    """The axes of ranks that a signature may name: what each of its names is called by the whole operator, and how many
    ranks are along each axis of the operator's."""

    names: Mapping[str, str]
    sizes: Mapping[str, int]

    @staticmethod
    def of(axes: Mapping[str, int]) -> Ranks:
        """Those of the operator itself."""
        return Ranks({name: name for name in axes}, axes)

    def along(self, name: str) -> Ranks:
        """Those of a signature that says `R`, and speaks of the axis of this name."""
        return Ranks({RANK_AXIS: name}, self.sizes)

    def count(self, name: str) -> int:
        """How many ranks there are along an axis, by its name here."""
        return self.sizes[self.names[name]]

    def called(self, split: str | None) -> str | None:
        """The operator's name of what splits an axis; a table's is left as it is."""
        return self.names.get(split, split) if split is not None else None


@dataclass(frozen=True, slots=True)
class Seen:
    """A dimension, by the first tensor that has it."""

    size: Formula
    extent: int
    split: str | Record | None
    unit: bool
    by: str

    @property
    def over(self) -> str | None:
        """The axis of ranks over which it is split."""
        return self.split if isinstance(self.split, str) else None


def align(given: Given, user: str, loc: Loc | None, ranks: Ranks) -> tuple[Slot, ...]:
    """Which axis of the tensor every axis of the parameter means.

    Raises:
        TilelinkError: TL203 if they cannot be matched.
    """
    shape, record = given.shape, given.record
    wanted_own = {ranks.called(a.split): i for i, a in enumerate(shape.axes) if a.own_slice}
    have: list[int | None] = list(range(len(record.axes)))
    held = {a.over: i for i, a in enumerate(record.axes) if a.own_slice}
    for over, at in held.items():
        if over not in wanted_own:
            have.remove(at)  # squeezed: the program sees this rank's slice
    for over, at in wanted_own.items():
        if over not in held:
            behind = len(shape.axes) - at - 1
            before_rest = shape.rest is None or at < shape.rest
            have.insert(at if before_rest else max(len(have) - behind, 0), None)
    spare = len(have) - len(shape.axes)
    if spare < 0 or (spare and shape.rest is None):
        _mismatch(given, user, loc, f"{count(len(shape.axes), 'axis', 'axes')} wanted, {len(have)} given")
    at = len(shape.axes) if shape.rest is None else shape.rest
    wanted: list[Axis | None] = [*shape.axes[:at], *(None for _ in range(spare)), *shape.axes[at:]]
    slots: list[Slot] = []
    for declared, index in zip(wanted, have, strict=True):
        if declared is not None and index is not None and declared.own_slice != record.axes[index].own_slice:
            _mismatch(given, user, loc, f"`{declared}` is not `{record.axes[index]}`")
        rest = sum(s.declared is None for s in slots)
        slots.append(Slot(f"_{rest}" if declared is None else declared.name, declared, index))
    return tuple(slots)


def _mismatch(given: Given, user: str, loc: Loc | None, why: str) -> None:
    raise TilelinkError(
        "TL203",
        f"{given.record.label} does not fit `{given.param}` of `{user}`",
        loc=loc,
        why=f"`{given.param}` is `{given.shape}`, the tensor is `{given.record}`: {why}",
        hint="call it with another tensor, or write another signature",
        notes=() if given.record.loc is None else (Note(f"{given.record.label} comes from here", given.record.loc),),
    )


class Dimensions:
    """The sizes that the tensors of one call give to the names of a signature."""

    def __init__(
        self, user: str, signature: Signature, ranks: Ranks, loc: Loc | None, *, operator: bool = False
    ) -> None:
        self.user = user
        self.loc = loc
        self._operator = operator
        self._globals = signature.global_dims()
        self.ranks = ranks
        self.seen: dict[str, Seen] = {
            name: Seen(ranks_along(axis), ranks.count(name), None, True, "the number of ranks")
            for name, axis in ranks.names.items()
        }
        self.rest: tuple[LogicalAxis, ...] | None = None
        self._rest_by = ""

    def is_local(self, declared: Axis | None, axis: LogicalAxis) -> bool:
        """Positions count from this rank's part: the tensor splits the axis, the signature does not say so."""
        return (
            axis.over is not None
            and not axis.own_slice
            and (declared is None or (declared.split is None and not self._global(declared)))
        )

    def _global(self, declared: Axis) -> bool:
        return declared.name in self._globals

    def add(self, given: Given, slots: tuple[Slot, ...]) -> None:
        """Takes up the plain dimensions of one tensor.

        Raises:
            TilelinkError: TL204 (sizes), TL207 (splits).
        """
        rest = tuple(given.record.axes[s.at] for s in slots if s.declared is None and s.at is not None)
        if given.shape.rest is not None:
            self._same_rest(given, rest)
        for slot in slots:
            if slot.declared is None or slot.at is None:
                continue
            axis = given.record.axes[slot.at]
            self._check_split(given, slot.declared, axis)
            if isinstance(slot.declared.size, Dim):
                self._unify(slot.declared.size.name, axis, given)
            elif isinstance(slot.declared.size, int) and slot.declared.size != axis.extent:
                self._contradiction(
                    slot.declared.name, slot.declared.size, "the signature", axis.extent, given.record.label
                )

    def _same_rest(self, given: Given, rest: tuple[LogicalAxis, ...]) -> None:
        if self.rest is None:
            self.rest, self._rest_by = rest, given.record.label
        elif [(a.extent, a.split) for a in rest] != [(a.extent, a.split) for a in self.rest]:
            shown = [" ".join(f"{a}={a.extent}" for a in axes) or "nothing" for axes in (self.rest, rest)]
            raise TilelinkError(
                "TL204",
                f"`...` of `{self.user}` stands for two things",
                loc=self.loc,
                why=f"it is {shown[0]} in {self._rest_by} and {shown[1]} in {given.record.label}",
                hint="pass tensors whose last axes agree",
            )

    def _check_split(self, given: Given, declared: Axis, axis: LogicalAxis) -> None:
        if declared.name in self.ranks.names:
            return
        wanted = self.ranks.names.get(declared.split or "")
        if wanted is not None and axis.over != wanted:
            over = "the ranks" if wanted == RANK_AXIS else f"the ranks of axis {wanted}"
            self._split_error(given, declared, f"is split over {over}", "pass a tensor that is split there")
        whole_wanted = self._global(declared) or self._operator
        if wanted is None and axis.over is not None and whole_wanted:
            self._split_error(given, declared, "is whole on every rank", "gather it first")

    def _split_error(self, given: Given, declared: Axis, how: str, hint: str) -> None:
        raise TilelinkError(
            "TL207",
            f"{given.record.label} does not fit `{given.param}` of `{self.user}`",
            loc=self.loc,
            why=f"`{given.param}` is `{given.shape}`: `{declared}` {how}; the tensor is `{given.record}`",
            hint=f"{hint}, or write another signature",
        )

    def _unify(self, name: str, axis: LogicalAxis, given: Given) -> None:
        old = self.seen.get(name)
        if old is None:
            self.seen[name] = Seen(axis.size, axis.extent, axis.split, axis.unit, given.record.label)
            return
        if old.extent != axis.extent:
            self._contradiction(name, old.extent, old.by, axis.extent, given.record.label)
        if name not in self._globals and name not in self.ranks.names and not self._operator and old.over != axis.over:
            one, two = (old.by, given.record.label) if old.over is not None else (given.record.label, old.by)
            raise TilelinkError(
                "TL207",
                f"`{name}` of `{self.user}` is split and whole at once",
                loc=self.loc,
                why=f"{one} has this rank's part of it, {two} has all",
                hint="gather the one, or split the other",
            )

    def _contradiction(self, name: str, a: int, by_a: str, b: int, by_b: str) -> None:
        raise TilelinkError(
            "TL204",
            f"`{name}` of `{self.user}` is {a} and {b}",
            loc=self.loc,
            why=f"it is {a} by {by_a}, and {b} by {by_b}",
            hint="pass tensors that agree, or give the axes different names in the signature",
        )

    def give(self, name: str, value: int) -> None:
        """Takes up a size that is passed by name."""
        extent = value if isinstance(value, Extent) else Extent(value)
        old = self.seen.get(name)
        if old is not None and old.extent != int(value):
            self._contradiction(name, old.extent, old.by, int(value), f"`{name}={int(value)}`")
        if old is None:
            self.seen[name] = Seen(extent.formula, int(extent), None, Dim(name).unit, f"`{name}={int(value)}`")

    def check_compound(self, given: Given, slots: tuple[Slot, ...]) -> None:
        """Compares sizes such as `e+1` with the tensors; an `e` that nothing else gives follows from them.

        Raises:
            TilelinkError: TL204.
        """
        for slot in slots:
            if slot.declared is None or slot.at is None or not isinstance(slot.declared.size, (Sum, Product)):
                continue
            axis = given.record.axes[slot.at]
            self._derive(slot.declared.size, axis, given.record.label)
            if all(d in self.seen for d in dims_of(slot.declared.size)):
                _, extent = self.visible(slot.declared.size)
                if extent != axis.extent:
                    self._contradiction(slot.declared.name, extent, "the other sizes", axis.extent, given.record.label)

    def _derive(self, size: Size, axis: LogicalAxis, by: str) -> None:
        if (
            isinstance(size, Sum)
            and isinstance(size.left, Dim)
            and isinstance(size.right, int)
            and size.left.name not in self.seen
        ):
            name, less = size.left.name, size.right
            self.seen[name] = Seen(axis.size - less, axis.extent - less, None, size.left.unit, by)

    def visible(self, size: Size) -> tuple[Formula, int]:
        """A size as the program sees it: of a dimension that is local to it, the most that a rank can have.

        Raises:
            TilelinkError: TL205.
        """
        return evaluate_size(size, self._visible)

    def _visible(self, name: str) -> tuple[Formula, int]:
        seen = self.get(name)
        if seen.over is not None and name not in self._globals and not self._operator:
            return cdiv(seen.size, ranks_along(seen.over)), -(-seen.extent // self.ranks.sizes[seen.over])
        return seen.size, seen.extent

    def part(self, axis: LogicalAxis) -> Extent:
        """The most that a rank can have of a split axis."""
        assert axis.over is not None
        return Extent(-(-axis.extent // self.ranks.sizes[axis.over]), cdiv(axis.size, ranks_along(axis.over)))

    def extended(self, more: Mapping[str, Seen]) -> Dimensions:
        """These dimensions with others in front of them."""
        made = copy(self)
        made.seen = {**self.seen, **more}
        return made

    def get(self, name: str) -> Seen:
        if name in self.seen:
            return self.seen[name]
        raise TilelinkError(
            "TL205",
            f"the size `{name}` of `{self.user}` is not known",
            loc=self.loc,
            why="no tensor that is passed has it",
            hint=f"pass it by name: `{self.user}(..., {name}=...)`",
        )

    def allocate(self, shape: Shape, tables: Mapping[str, Record], label: str) -> tuple[LogicalAxis, ...]:
        """The axes of a result.

        Raises:
            TilelinkError: TL205 (a size nobody gives), TL207 (two axes split over the ranks).
        """
        axes: list[LogicalAxis] = []
        for number, axis in enumerate(shape.axes):
            if number == shape.rest:
                axes += self.rest or ()
            axes.append(self._allocated(axis, tables))
        if shape.rest == len(shape.axes):
            axes += self.rest or ()
        for over in self.ranks.sizes:
            split = [a for a in axes if a.over == over]
            if len(split) > 1:
                shown = " and ".join(f"`{a}`" for a in split)
                raise TilelinkError(
                    "TL207",
                    f"{label} would be split twice, over {shown}",
                    loc=self.loc,
                    why="every element of a tensor has one owner, found from one axis",
                    hint="gather one of the axes first",
                )
        return tuple(axes)

    def _allocated(self, axis: Axis, tables: Mapping[str, Record]) -> LogicalAxis:
        split: str | Record | None = (
            None if axis.split is None else tables.get(axis.split, self.ranks.called(axis.split))
        )
        if not isinstance(axis.size, Dim):
            size, extent = self.visible(axis.size)
            return LogicalAxis(axis.name, size, extent, split, axis.unit)
        seen = self.get(axis.size.name)
        if split is None and axis.name not in self._globals and axis.name not in self.ranks.names:
            split = seen.split
        name = self.ranks.names.get(axis.name, axis.name)
        return LogicalAxis(name, seen.size, seen.extent, split, axis.unit or seen.unit)


def evaluate_size(size: Size, known: Callable[[str], tuple[Formula, int]]) -> tuple[Formula, int]:
    """A size as a formula and as a number."""
    return of(evaluated(size, lambda dim: known(dim.name)[0])), evaluated(size, lambda dim: known(dim.name)[1])


def sizes_of(signature: Signature) -> tuple[str, ...]:
    """The dimensions of the inputs: what a call may pass by name."""
    return names_of(replace(signature, outputs=()))


def names_of(signature: Signature) -> tuple[str, ...]:
    """Every dimension of a signature, once, in order; axes of ranks left out."""
    found = (d for s in signature.shapes for a in s.axes for d in dims_of(a.size))
    return tuple(dict.fromkeys(d for d in found if d not in signature.axes))
