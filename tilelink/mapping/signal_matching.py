"""Signal matching: which waits and notifies belong together, which tiles of its step's domain each of them names, and which
steps touch other ranks' local tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Gather, Holder, IndexEntry, Notify, OfTile, Store, Wait, Whole, walk
from tilelink.ir.wiring import TensorAxis, TensorDecl, entry_on, indexed
from tilelink.mapping.libraries import axis_of


def reads_remote(s: StepPlan, param: str) -> bool:
    """Whether the step reads instances of other ranks: only a pulling copy program does."""
    copy_program = s.step.program.copy_program
    if copy_program is None or s.push or copy_program.source != param:
        return False
    # A program that sees one part or slice alone sees its own.
    return s.step.binding(param).names_holders


def crosses(s: StepPlan, param: str) -> bool:
    """Whether the step writes instances of other ranks."""
    copy_program = s.step.program.copy_program
    if copy_program is not None:
        return bool(s.push) and param == copy_program.destination
    return any(isinstance(op, Store) and op.to == "holders" and op.param == param for op in walk(s.step.program.body))


@dataclass(frozen=True, slots=True)
class Match:
    """A wait, and one of the notifies that complete what it waits for."""

    consumer: StepPlan
    wait: Wait
    producer: StepPlan
    notify: Notify

    def told(self, a: int) -> tuple[IndexEntry, GridAxis | None]:
        """The notify's index on axis `a` of the tensor, and the partition of the domain that it names, if it is a tile of it."""
        entry = entry_on(self.producer.step, self.notify.param, self.notify.index, a) or Whole()
        return entry, domain_axis(self.producer, entry)

    def waited(self, a: int) -> GridAxis | At | None:
        """The partition of the consumer's domain, or of its panels, that the wait of a copy program or of a library function
        names on axis `a`, or a position; None: it waits for all."""
        s, entry = self.consumer, entry_on(self.consumer.step, self.wait.param, self.wait.index, a)
        if entry is None or isinstance(entry, At):
            return entry
        found = domain_axis(s, entry)
        return axis_of(s) if found is None and s.by_panels and isinstance(entry, OfTile) else found

    @property
    def as_a_whole(self) -> bool:
        """Whether the consumer takes its tiles as wholes: its wait says no more than which tile."""
        return self.consumer.copies or self.consumer.library is not None

    def by_tile(self, a: int) -> bool:
        """Whether the wait is for less than all of axis `a`."""
        if not self.as_a_whole:
            return isinstance(entry_on(self.consumer.step, self.wait.param, self.wait.index, a), (OfTile, At, Gather))
        found = self.waited(a)
        if not isinstance(found, GridAxis):
            return found is not None
        # A library function that takes all of an axis waits for each flag that a stream sets there.
        one_by_one = self.consumer.library is not None and not self.producer.engine.adds
        return _cuts(found) or one_by_one

    def taken(self, a: int) -> list[GridAxis]:
        """The tiles in which the consumer takes axis `a` as wholes; none where it waits for all."""
        found = self.waited(a) if self.as_a_whole else None
        return [found] if isinstance(found, GridAxis) and _cuts(found) else []


def _cuts(grid: GridAxis) -> bool:
    return grid.tile is not None or grid.kind in ("cut", "mine")


@dataclass(frozen=True)
class Matching:
    """All waits for a tensor with the notifies that serve them."""

    plan: Plan
    tensor: TensorDecl
    matches: tuple[Match, ...]

    @property
    def wanted(self) -> int:
        """Elements per flag that the schedule asks for; 0: it does not say."""
        return dict(self.plan.schedule.channels).get(self.tensor.name, 0)

    @cached_property
    def least(self) -> dict[str, F.Number]:
        """Sizes, on the rank that has least: parts get no longer with the rank's coordinates."""
        return self.plan.env(self.plan.topology.ranks - 1)

    @cached_property
    def told(self) -> list[Match]:
        """One match per notify."""
        found: dict[tuple[str, Notify], Match] = {}
        for m in self.matches:
            found.setdefault((m.producer.path, m.notify), m)
        return list(found.values())

    @cached_property
    def pulled(self) -> bool:
        """Whether other ranks take the tensor."""
        return any(self.pulls(m) for m in self.matches)

    @cached_property
    def remote(self) -> bool:
        """Whether it crosses ranks."""
        return self.pulled or any(crosses(m.producer, m.notify.param) for m in self.told)

    def pulls(self, m: Match) -> bool:
        return reads_remote(m.consumer, m.wait.param)

    @property
    def waiting_axis(self) -> int | None:
        """The axis of a pulled tensor whose parts say which rank waits for a tile, which is the only one: all who wait pull
        their own part along it. None: several may wait for a tile, or the tensor itself is split, and its parts say who makes
        a tile."""
        if any(self.tensor.split_over(m.producer.axis) for m in self.matches):
            return None
        found: set[int | None] = set()
        for m in self.matches:
            view = m.consumer.step.binding(m.wait.param).view if self.pulls(m) else ()
            own = (
                v.axis for v, g in zip(view, m.consumer.grid, strict=False) if v.axis is not None and g.kind == "mine"
            )
            found.add(next(own, None))
        return found.pop() if len(found) == 1 else None


# -------------------------------------------------------------------------------------------------------- what is named
def owned(s: StepPlan, grid: GridAxis) -> TensorAxis | None:
    """The axis of the domain whose owner map says which rank runs a tile of `grid`; None: no map does."""
    found = (v.of for v, g in zip(s.step.binding(s.domain).view, s.grid, strict=True) if g is grid)
    return next((of for of in found if of is not None and of.owner is not None and s.own_axis is not None), None)


def domain_axis(s: StepPlan, entry: IndexEntry) -> GridAxis | None:
    """The partition of the domain of which an index entry is a tile; this rank's coordinate is one, by whatever name."""
    name = _position(entry)
    if name is not None and name in own_names(s):
        return GridAxis(name, "own", s.ranks, None, name, over=s.axis)
    return _named_axis(s, entry)


def _position(entry: IndexEntry) -> str | None:
    """What a single position is called, or on an axis of ranks what it is a shift of."""
    if not isinstance(entry, At):
        return None
    return entry.ring[0] if entry.ring is not None else entry.expr.text


def own_names(s: StepPlan) -> frozenset[str]:
    """What a program calls its own coordinate by asking whose a tile of its domain is, where all of these are this rank's."""
    found: set[str] = set()
    for op in (op for op in walk(s.step.program.body) if isinstance(op, Holder)):
        split = (e for v, e in indexed(s.step, op.param, op.index) if v.by_parts)
        grid = next((_named_axis(s, e) for e in split), None)
        if grid is not None and grid.kind in ("mine", "own"):
            found.add(op.name)
    return frozenset(found)


def _named_axis(s: StepPlan, entry: IndexEntry) -> GridAxis | None:
    """Of positions, axes alone that are walked singly, also those of a part that is counted from its own begin."""
    if isinstance(entry, OfTile):
        return next((g for g in s.grid if g.var == entry.var), None)
    at = [g for g in s.grid if g.kind in ("unit", "own", "mine") or (g.kind == "plain" and g.tile == 1)]
    return next((g for g in at if g.var == _position(entry)), None) if isinstance(entry, At) else None
