"""What is passed in a call: which axis of a tensor each axis of a signature means, and which sizes follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from typing import Any, NoReturn

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.frontend.source import call_site
from tilelink.frontend.symbolic import Extent, LogicalAxis, Record, SymbolicTensor
from tilelink.frontend.wording import count, meant
from tilelink.ir.formula import cdiv
from tilelink.ir.shape import RANK_AXIS, Axis, Dim, Shape, Signature, Size, dims_of, evaluated, ranks_along, solved
from tilelink.ir.wiring import ViewAxis


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

    def along(self, name: str) -> Ranks:
        """Those of a signature that says `R`, and speaks of the axis of this name."""
        return Ranks({RANK_AXIS: name}, self.sizes)

    def called(self, split: str) -> str:
        """The operator's name of what splits an axis; a table's is left as it is."""
        return self.names.get(split, split)


@dataclass(frozen=True, slots=True)
class Seen:
    """A dimension, by the first tensor that has it."""

    axis: LogicalAxis
    by: str

    @staticmethod
    def of(name: str, value: int, by: str) -> Seen:
        """A size by itself; whether an axis of it is walked singly, its name says."""
        return Seen(LogicalAxis(name, Extent.of(value), None, False), by)


def given_tensor(user: str, param: str, shape: Shape, tensor: object, loc: Loc | None) -> Given:
    """A tensor that is passed to a program or an operator. TL202: it is none."""
    if isinstance(tensor, SymbolicTensor):
        return Given(param, shape, tensor.record)
    message = f"`{param}` of `{user}` is an object of type `{type(tensor).__name__}`"
    why = "in an operator's body tile programs connect its arguments, results of programs, and `tilelink.symmetric`"
    raise TilelinkError("TL202", message, loc=loc, why=why, hint="pass one of those")


def wrong_count(user: str, given: int, signature: Signature, loc: Loc | None) -> NoReturn:
    message = f"`{user}` takes {count(len(signature.inputs), 'tensor')}, not {given}"
    why, hint = f"its signature is `{signature}`", "pass one tensor for each input"
    raise TilelinkError("TL202", message, loc=loc, why=why, hint=hint)


def check_keywords(
    user: str, fn: Callable[..., Any], read: Signature, given: Iterable[str], *more: str, loc: Loc | None = None
) -> None:
    """Keywords of an operator's call are sizes of its inputs and its constants, and none of these is missing.

    Args:
        user: the operator's name.
        fn: its body.
        read: its signature.
        given: the keywords.
        more: others that this call takes.
        loc: the call; None: wherever this is called from.

    Raises:
        TilelinkError: TL209, on the call.
    """
    parameters = signature(fn).parameters.values()
    constants = {p.name: p for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    any_name = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    known, passed = [*constants, *sizes_of(read), *more], [*given]
    for key in passed:
        if key not in known and not any_name:
            why = "keywords are the constants of an operator, and sizes of its inputs"
            raise unknown_keyword(user, key, known, why, loc or call_site())
    for name, parameter in constants.items():
        if name not in passed and parameter.default is Parameter.empty:
            hint = f"pass `{name}=`, or give it a default where `{user}` is defined"
            message = f"`{user}` needs `{name}=`"
            raise TilelinkError("TL209", message, loc=loc or call_site(), why="it has no default", hint=hint)


def unknown_keyword(user: str, key: str, known: Sequence[str], why: str, loc: Loc | None) -> TilelinkError:
    hint = meant(key, known, f"it takes {', '.join(f'`{k}=`' for k in known) or 'none'}", "`{}=`")
    return TilelinkError("TL209", f"`{user}` has no `{key}=`", loc=loc, why=why, hint=hint)


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
        self.seen = {
            name: Seen.of(name, Extent(ranks.sizes[axis], ranks_along(axis)), "the number of ranks")
            for name, axis in ranks.names.items()
        }
        self.rest: tuple[LogicalAxis, ...] | None = None
        self._rest_by = ""

    def _fail(self, code: str, message: str, why: str, hint: str, notes: tuple[Note, ...] = ()) -> NoReturn:
        raise TilelinkError(code, message, loc=self.loc, why=why, hint=hint, notes=notes)

    def align(self, given: Given) -> tuple[tuple[Axis, int | None], ...]:
        """Which axis of the tensor every axis of the parameter means. None: the tensor has no such axis, the instance itself is
        this rank's slice.

        Raises:
            TilelinkError: TL203 if they cannot be matched.
        """
        shape, record = given.shape, given.record
        wanted_own = {self.ranks.called(a.name): i for i, a in enumerate(shape.axes) if a.own_slice}
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
            self._mismatch(given, f"{count(len(shape.axes), 'axis', 'axes')} wanted, {len(have)} given")
        found = tuple(zip(shape.spread(len(have)), have, strict=True))
        for declared, at in found:
            if declared in shape.axes and at is not None and declared.own_slice != record.axes[at].own_slice:
                self._mismatch(given, f"`{declared}` is not `{record.axes[at]}`")
        return found

    def _mismatch(self, given: Given, why: str) -> NoReturn:
        label, comes_from = given.record.label, given.record.loc
        message = f"{label} does not fit `{given.param}` of `{self.user}`"
        why = f"`{given.param}` is `{given.shape}`, the tensor is `{given.record}`: {why}"
        notes = () if comes_from is None else (Note(f"{label} comes from here", comes_from),)
        self._fail("TL203", message, why, "call it with another tensor, or write another signature", notes)

    def _is_local(self, declared: Axis, axis: LogicalAxis) -> bool:
        """Positions count from this rank's part: the tensor splits the axis, the signature does not say so."""
        said = declared.split is not None or declared.name in self._globals
        return axis.over is not None and not axis.own_slice and not said

    def view(self, given: Given) -> Iterator[ViewAxis]:
        """The axes of a program's parameter over its tensor."""
        for declared, at in self.align(given):
            local = at is not None and self._is_local(declared, given.record.axes[at])
            # Whether an axis is walked singly is the program's word, whatever an operator's signature calls it.
            yield ViewAxis(declared.name, at, local, declared.unit)

    def relabelled(self, given: Given) -> SymbolicTensor:
        """A tensor with the names and sizes that an inlined operator sees: of a split axis that it takes as whole, this rank's
        part."""
        axes = list(given.record.axes)
        for declared, at in self.align(given):
            if at is not None:
                axis = axes[at]
                size = self.part(axis) if self._is_local(declared, axis) else axis.size
                axes[at] = replace(axis, name=declared.name, size=size)
        return SymbolicTensor(given.record, tuple(axes))

    def take(self, given: Sequence[Given], sizes: Mapping[str, int] | None = None) -> None:
        """Takes up the sizes of tensors, and those that are passed by name.

        Raises:
            TilelinkError: TL203 (axes), TL204 (sizes), TL206 (dtypes), TL207 (splits).
        """
        axes = [[(d, one.record.axes[at]) for d, at in self.align(one) if at is not None] for one in given]
        for one, mine in zip(given, axes, strict=True):
            wanted, have = one.shape.dtype, one.record.dtype
            if wanted is not None and wanted != have:
                message = f"{one.record.label} is {have}; `{one.param}` of `{self.user}` is {wanted}"
                hint = "pass a tensor of that type, or change the signature"
                self._fail("TL206", message, f"the signature says `{one.shape}`", hint)
            named = one.shape.axes
            if one.shape.rest is not None:
                self._same_rest(tuple(axis for declared, axis in mine if declared not in named), one.record.label)
            for declared, axis in ((d, axis) for d, axis in mine if d in named):
                self._check_split(one, declared, axis)
                if isinstance(declared.size, Dim):
                    self._unify(declared.name, Seen(axis, one.record.label))
        for name, value in (sizes or {}).items():
            new = Seen.of(name, value, f"`{name}={int(value)}`")
            old = self.seen.setdefault(name, new)
            if old.axis.size != new.axis.size:
                self._contradiction(name, old, new)
        for one, mine in zip(given, axes, strict=True):
            self._check_compound(one.record.label, mine)

    def _same_rest(self, rest: tuple[LogicalAxis, ...], by: str) -> None:
        if self.rest is None:
            self.rest, self._rest_by = rest, by
        elif [(a.size, a.split) for a in rest] != [(a.size, a.split) for a in self.rest]:
            old, new = (" ".join(f"{a}={a.size}" for a in axes) or "nothing" for axes in (self.rest, rest))
            why = f"it is {old} in {self._rest_by} and {new} in {by}"
            message = f"`...` of `{self.user}` stands for two things"
            self._fail("TL204", message, why, "pass tensors whose last axes agree")

    def _check_split(self, given: Given, declared: Axis, axis: LogicalAxis) -> None:
        if declared.name in self.ranks.names:
            return
        wanted = self.ranks.names.get(declared.split or "")
        how, hint = None, "gather it first"
        if wanted is not None and axis.over != wanted:
            over = "the ranks" if wanted == RANK_AXIS else f"the ranks of axis {wanted}"
            how, hint = f"is split over {over}", "pass a tensor that is split there"
        elif wanted is None and axis.over is not None and (declared.name in self._globals or self._operator):
            how = "is whole on every rank"
        if how is not None:
            message = f"{given.record.label} does not fit `{given.param}` of `{self.user}`"
            why = f"`{given.param}` is `{given.shape}`: `{declared}` {how}; the tensor is `{given.record}`"
            self._fail("TL207", message, why, f"{hint}, or write another signature")

    def _unify(self, name: str, new: Seen) -> None:
        old = self.seen.setdefault(name, new)
        if old.axis.size != new.axis.size:
            self._contradiction(name, old, new)
        spread = name in self._globals or name in self.ranks.names or self._operator
        if not spread and old.axis.over != new.axis.over:
            one, two = (old.by, new.by) if old.axis.over is not None else (new.by, old.by)
            why = f"{one} has this rank's part of it, {two} has all"
            message = f"`{name}` of `{self.user}` is split and whole at once"
            self._fail("TL207", message, why, "gather the one, or split the other")

    def _contradiction(self, name: str, a: Seen, b: Seen) -> NoReturn:
        message = f"`{name}` of `{self.user}` is {a.axis.size} and {b.axis.size}"
        why = f"it is {a.axis.size} by {a.by}, and {b.axis.size} by {b.by}"
        hint = "pass tensors that agree, or give the axes different names in the signature"
        self._fail("TL204", message, why, hint)

    def _check_compound(self, label: str, axes: Sequence[tuple[Axis, LogicalAxis]]) -> None:
        """Compares sizes such as `9` and `e+1` with the tensors; an `e` that nothing else gives follows from them."""
        for size, axis in ((d.size, axis) for d, axis in axes if not isinstance(d.size, Dim)):
            if found := solved(size, axis.size):
                dim, value = found
                self.seen.setdefault(dim.name, Seen.of(dim.name, value, label))
            if all(d in self.seen for d in dims_of(size)) and (wanted := self.visible(size)) != axis.size:
                by = "the signature" if isinstance(size, int) else "the other sizes"
                self._contradiction(str(size), Seen.of("", wanted, by), Seen(axis, label))

    def visible(self, size: Size) -> Extent:
        """A size as the program sees it: of a dimension that is local to it, the most that a rank can have (TL205)."""

        def known(dim: Dim) -> Extent:
            axis = self.get(dim.name).axis
            local = axis.over is not None and dim.name not in self._globals and not self._operator
            return self.part(axis) if local else axis.size

        return Extent.of(evaluated(size, known))

    def part(self, axis: LogicalAxis) -> Extent:
        """The most that a rank can have of a split axis."""
        assert axis.over is not None
        formula = cdiv(axis.size.formula, ranks_along(axis.over))
        return Extent(-(-int(axis.size) // self.ranks.sizes[axis.over]), formula)

    def extended(self, more: Mapping[str, tuple[int, str]]) -> Dimensions:
        """These with sizes in front of them, each with what gives it."""
        made = copy(self)
        made.seen = self.seen | {name: Seen.of(name, size, by) for name, (size, by) in more.items()}
        return made

    def get(self, name: str) -> Seen:
        if name not in self.seen:
            message, why = f"the size `{name}` of `{self.user}` is not known", "no tensor that is passed has it"
            self._fail("TL205", message, why, f"pass it by name: `{self.user}(..., {name}=...)`")
        return self.seen[name]

    def allocate(self, shape: Shape, tables: Mapping[str, Given], label: str) -> tuple[LogicalAxis, ...]:
        """The axes of a result. `tables`: what parameters are that may split one.

        Raises:
            TilelinkError: TL205 (a size nobody gives), TL207 (two axes split over the ranks).
        """
        axes = [self._allocated(axis, tables) for axis in shape.axes]
        if shape.rest is not None:
            axes[shape.rest : shape.rest] = self.rest or ()
        for over in self.ranks.sizes:
            split = [f"`{a}`" for a in axes if a.over == over]
            if len(split) > 1:
                message = f"{label} would be split twice, over {' and '.join(split)}"
                why = "every element of a tensor has one owner, found from one axis"
                self._fail("TL207", message, why, "gather one of the axes first")
        return tuple(axes)

    def _allocated(self, axis: Axis, tables: Mapping[str, Given]) -> LogicalAxis:
        split: str | Record | None = None
        if axis.split is not None:
            split = tables[axis.split].record if axis.split in tables else self.ranks.called(axis.split)
        if not isinstance(axis.size, Dim):
            return LogicalAxis(axis.name, self.visible(axis.size), split, axis.unit)
        seen, name = self.get(axis.size.name).axis, axis.name
        if split is None and name not in self._globals and name not in self.ranks.names:
            split = seen.split
        return LogicalAxis(self.ranks.called(name), seen.size, split, axis.unit or seen.unit)


def sizes_of(signature: Signature) -> tuple[str, ...]:
    """The dimensions of the inputs: what a call may pass by name."""
    return replace(signature, outputs=()).dims
