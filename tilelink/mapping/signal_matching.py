"""Signal matching: which waits and notifies belong together, and which tiles of its step's domain each of them names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import At, Gather, Holder, IndexEntry, Notify, OfTile, Wait, Whole, walk
from tilelink.ir.wiring import TensorDecl, Wiring, entry_on, indexed
from tilelink.mapping.libraries import RUN, axis_of, tiled
from tilelink.mapping.remote import crosses, reads_remote


@dataclass(frozen=True, slots=True)
class Match:
    """A wait, and one of the notifies that complete what it waits for."""

    consumer: StepPlan
    wait: Wait
    producer: StepPlan
    notify: Notify

    def told(self, a: int) -> tuple[IndexEntry, GridAxis | None]:
        """What the notify names on axis `a` of the tensor."""
        return notify_entry(self.producer, self.notify, a)

    def waited(self, a: int) -> GridAxis | At | None:
        """The partition of the consumer's domain, or of its panels, that the wait of a copy program or of a library function
        names on axis `a`, or a position; None: it waits for all."""
        s = self.consumer
        view = s.step.binding(self.wait.param).view
        if s.step.program.copy_program is not None:
            return next((s.grid[k] for k, v in enumerate(view) if v.axis == a), None)
        names = tiled(s.step, self.wait.param, self.wait.index, runs=s.by_panels)
        for (v, e), name in zip(indexed(s.step, self.wait.param, self.wait.index), names, strict=True):
            if v.axis == a:
                return e if isinstance(e, At) else axis_of(s) if name == RUN else domain_axis(s, e)
        return None

    @property
    def as_a_whole(self) -> bool:
        """Whether the consumer takes its tiles as wholes: its wait says no more than which tile."""
        return self.consumer.step.program.copy_program is not None or self.consumer.library is not None

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

    wiring: Wiring
    tensor: TensorDecl
    matches: tuple[Match, ...]

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
        return reads_remote(m.consumer, m.wait.param, self.tensor)

    def owned(self, s: StepPlan, grid: GridAxis) -> tuple[TensorDecl, int] | None:
        """The tensor whose owner map says which rank runs a tile of `grid`, and the map's axis; None: no map does."""
        binding = s.step.binding(s.domain)
        tensor = self.wiring.tensor(binding.tensor)
        found = (v.axis for v, g in zip(binding.view, s.grid, strict=True) if g is grid)
        axis = next((a for a in found if a is not None and a == tensor.owned), None)
        return None if axis is None or not s.own_rows else (tensor, axis)

    @property
    def waiting_axis(self) -> int | None:
        """The axis of a pulled tensor whose parts say which rank waits for a tile, which is the only one: all who wait pull
        their own part along it. None: several may wait for a tile, or the tensor itself is split, and its parts say who makes
        a tile."""
        if any(self.tensor.split_over(m.producer.axis) for m in self.matches):
            return None
        found = {self._own_part(m) for m in self.matches}
        return found.pop() if len(found) == 1 else None

    def _own_part(self, m: Match) -> int | None:
        """The axis along which a step pulls its own part."""
        if not self.pulls(m):
            return None
        grid = zip(m.consumer.step.binding(m.wait.param).view, m.consumer.grid, strict=True)
        return next((v.axis for v, g in grid if v.axis is not None and g.kind == "mine"), None)


# -------------------------------------------------------------------------------------------------------- what is named
def notify_entry(s: StepPlan, notify: Notify, a: int) -> tuple[IndexEntry, GridAxis | None]:
    """The notify's index on tensor axis `a`, and the partition of the domain that it names, if it is a tile of it."""
    if s.step.program.copy_program is not None:
        for k, v in enumerate(s.step.binding(notify.param).view):
            if v.axis == a:
                return OfTile(str(k)), s.grid[k]
        return Whole(), None
    entry = entry_on(s.step, notify.param, notify.index, a) or Whole()
    return entry, domain_axis(s, entry)


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
    return frozenset(op.name for op in walk(s.step.program.body) if isinstance(op, Holder) and _is_own(s, op))


def _is_own(s: StepPlan, op: Holder) -> bool:
    for v, e in indexed(s.step, op.param, op.index):
        if v.axis is not None and v.split == "R" and not v.local:
            found = _named_axis(s, e)
            return found is not None and found.kind in ("mine", "own")
    return False


def _named_axis(s: StepPlan, entry: IndexEntry) -> GridAxis | None:
    if isinstance(entry, OfTile):
        return next((g for g in s.grid if g.var == entry.var), None)
    if isinstance(entry, At):
        name = _position(entry)
        return next((g for g in s.grid if g.var == name and _of_one(g)), None)
    return None


def _of_one(grid: GridAxis) -> bool:
    """Whether a position names a tile: axes that are walked singly, also those of a part that is counted from its own begin."""
    return grid.kind in ("unit", "own", "mine") or (grid.kind == "plain" and grid.tile == 1)
