"""Rule 3, coverage: whatever is read, or returned, is written exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.partition import here
from tilelink.ir.plan import Plan
from tilelink.ir.program import At, Gather
from tilelink.ir.shape import RANK_AXIS
from tilelink.ir.wiring import TensorDecl
from tilelink.mapping.verify.accesses import Access, reads, writes
from tilelink.mapping.verify.covers import Cover, beside, contains, cover, flattened
from tilelink.mapping.verify.geometry import NOWHERE, Bools, Ints, Spans, World
from tilelink.mapping.verify.reach import Laid

PAIRS = 50_000_000
"""Gaps times tiles that may be compared one by one."""


def check_coverage(plan: Plan, world: World, laid: Mapping[str, Laid], trust: list[str]) -> str:
    """Per tensor and axis the writers' cuts tile the axis exactly once; sources that meet in one instance differ along
    one axis. Gaps are allowed where nobody reads. `trust` gets what is taken for granted.

    Raises:
        TilelinkError: TL604; TL606 where neither this nor the contrary can be shown.
    """
    made, used = writes(plan, laid), reads(plan, laid)
    done: list[str] = []
    assumed: list[str] = []
    for tensor in plan.wiring.tensors:
        mine = [w for w in made if w.tensor == tensor.name]
        if mine:
            found = _Tensor(plan, world, tensor, mine, [r for r in used if r.tensor == tensor.name])
            found.check()
            done.append(tensor.name)
            assumed += found.assumed
            trust += [a for a in found.assumed if a.startswith("assumed")]
    text = f"each element written once: {', '.join(f'`{n}`' for n in done)}" if done else "nothing is written"
    return "; ".join([text, *dict.fromkeys(assumed)])


@dataclass(slots=True)
class _Tensor:
    plan: Plan
    world: World
    tensor: TensorDecl
    writes: list[Access]
    reads: list[Access]
    assumed: list[str] = field(default_factory=list[str])

    def check(self) -> None:
        self._check_forwarding()
        for w in self.writes:
            self._check_tiles(w)
            self._check_sent(w)
            if w.by_data:
                by = f" (`{self.tensor.contract}`)" if self.tensor.contract is not None else ""
                self.assumed.append(f"assumed for `{self.tensor.name}`: what data decides is disjoint{by}")
        stored = [a for a, axis in enumerate(self.tensor.axes) if not axis.own_slice]
        stored = [a for a in stored if all(a in w.axes and w.axes[a].spans is not None for w in self.writes)]
        shared = [self._shared(w) for w in self.writes]
        if any(shared) and not all(shared):
            raise self._unproven("some writers keep their tiles and others send them to everyone")
        if any(shared):
            stored += self._slices()
        if stored:
            self._check_axes(stored, shared=any(shared))

    # ---------------------------------------------------------------------------------------------- who meets whom
    def _along(self) -> str:
        """The axis of ranks along which the writers' tiles go."""
        found = dict.fromkeys(w.laid.step.axis for w in self.writes if w.remote)
        if len(found) > 1:
            raise self._unproven(f"it is written along {' and '.join(found)}")
        return next(iter(found), RANK_AXIS)

    def _shared(self, w: Access) -> bool:
        """Whether the tiles of several ranks meet in one instance."""
        if not w.remote:
            return False
        axis = w.holder_axis()
        holder = w.holder()
        if axis is None or not self.tensor.axes[axis].own_slice or holder is None or holder[0] is not None:
            return True
        if not holder[1].shape[1]:
            return False  # there is no tile
        return len(np.unique(self.world.each(holder[1]))) < self.world.ranks

    def _slices(self) -> list[int]:
        """The axis whose slices the writers' tiles go to. Of what meets there each source writes to every rank that reads it."""
        axes = [a for a, of in enumerate(self.tensor.axes) if of.own_slice and of.over == self._along()]
        return [a for a in axes if all(a not in w.axes or w.axes[a].spans is not None for w in self.writes)]

    def _line(self, axis: int) -> Spans:
        """All slices of a line."""
        of = self.tensor.axes[axis]
        assert of.over is not None
        return self.world.whole(F.of(self.world.along(of.over)))

    def _read(self, r: Access, axis: int) -> Spans | None:
        """What is read along an axis; of slices a rank reads its own, unless it pulls."""
        of = self.tensor.axes[axis]
        if not of.own_slice or r.remote or of.over is None:
            return r.spans(axis)
        own = self.world.at(of.over)
        return Spans(own, own + 1, np.asarray(~r.idle()))

    def _instance(self, w: Access, spans: Spans) -> Spans:
        """Rows by the rank that writes become rows by the rank that holds."""
        holder = w.holder() if w.remote else None
        if holder is None or spans.rows == 1 or not holder[1].shape[1]:
            return spans
        source = np.argsort(self.world.each(holder[1]))
        begin, end = (a if len(a) == 1 else a[source] for a in (spans.begin, spans.end))
        return Spans(begin, end, spans.real if len(spans.real) == 1 else spans.real[source])

    def _extent(self, axis: int, *, shared: bool) -> tuple[Ints, Ints]:
        of = self.tensor.axes[axis]
        if of.own_slice:
            line = self._line(axis)
            return line.begin, line.end
        # Where tiles of a line meet, each rank of it has a part of what is split along it; of the rest they have the same.
        if of.over is not None and not (shared and of.over == self._along()):
            first = self.world.at(of.over) * self.world.part(of.size, of.over)
            return first, first + self.world.value(here(of.size, over=of.over))
        size = self.world.value(of.size).astype(np.int64)
        return np.zeros_like(size), size

    # ------------------------------------------------------------------------------------------------------- the axes
    def _check_axes(self, axes: list[int], *, shared: bool) -> None:
        if len(self.writes) == 1 and not shared:
            self._settle([(a, self._united(a, shared=shared)) for a in axes], shared=shared)
            return
        united = {a: self._united(a, shared=shared) for a in axes}
        alone = {a: [self._alone(w, a, shared=shared) for w in self.writes] for a in axes}
        # Sources differ along one axis; along the others each writes everything, itself just once.
        gap: TilelinkError | None = None
        for s in sorted(axes, key=lambda a: not united[a].exact):
            others = [c for a in axes if a != s for c in alone[a]]
            if united[s].twice is None and all(c.twice is None for c in others):
                said = len(self.assumed)
                try:
                    self._settle([(s, united[s])], shared=shared)
                    for a in axes:
                        if a != s:
                            self._settle_sources(a, s, alone[a], shared=shared)
                except TilelinkError as error:
                    del self.assumed[said:]
                    gap = gap or error  # unless they differ along another axis as well
                else:
                    return
        if gap is not None:
            raise gap
        if self._apart_by_data() and all(c.twice is None for covers in alone.values() for c in covers):
            for a in axes:
                self._settle([(a, c) for c in alone[a]], shared=shared)
            return
        a = axes[0]
        offence = next((c.twice for c in united.values() if c.twice is not None), None)
        raise self._twice(a, offence)

    def _apart_by_data(self) -> bool:
        """Whether data says along one axis which source writes where: `what data decides is disjoint` is said of it."""
        return any(all(_told_by_data(w, axis) for w in self.writes) for axis in range(len(self.tensor.axes)))

    def _settle_sources(self, axis: int, apart: int, covers: list[Cover], *, shared: bool) -> None:
        """A source need not write what nobody reads of it."""
        positions = self._spans(self.writes[0], apart)
        own = positions.begin.shape == (self.world.ranks, 1) and self.tensor.name not in self.plan.wiring.results
        if len(covers) == 1 and covers[0].never is not None and shared and own:
            self._check_source_gaps(axis, apart, covers[0], positions)
            return
        for c in covers:
            if c.never is not None and shared and c.spans.rows > 1:
                # Rows are sources here, and readers read what several of them wrote.
                raise self._never(axis, c.never, next(iter(self.reads), None))
        self._settle([(axis, c) for c in covers], shared=shared)

    def _check_source_gaps(self, axis: int, apart: int, found: Cover, positions: Spans) -> None:
        """Each source writes one coordinate along `apart`; who reads there must not read its gaps along `axis`."""
        low, high = self._extent(axis, shared=True)
        rows, first, last = found.gaps(low, high)
        if found.spans.filled.shape[0] == 1 and max(len(low), len(high)) == 1:
            # One row for all sources.
            rows = np.repeat(np.arange(self.world.ranks), len(first))
            first, last = np.tile(first, self.world.ranks), np.tile(last, self.world.ranks)
        near = self.world.same_line(self._along())
        for r in self.reads:
            along, across = self._read(r, axis), self._read(r, apart)
            if along is None or across is None or r.remote:
                raise self._unproven(f"`{r.path}` reads what some ranks do not write, where data says")
            if len(rows) * along.begin.size > PAIRS:
                raise self._unproven(
                    f"`{r.path}` reads what some ranks do not write, at too many places to look at each"
                )
            for row, lo, hi in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
                at = int(positions.begin[row, 0])
                here = (along.filled & (along.begin < hi) & (along.end > lo)).any(axis=1)
                there = (across.filled & (across.begin <= at) & (across.end > at)).any(axis=1)
                missed = here & there & near[row]
                if bool(missed.any()):
                    raise self._never(axis, (int(np.flatnonzero(missed)[0]), lo, hi), r)
        self.assumed.append(f"`{self.tensor.name}` only where it is read")

    def _united(self, axis: int, *, shared: bool) -> Cover:
        """All sources of an instance together."""
        low, high = self._extent(axis, shared=shared)
        found = [self._spans(w, axis) for w in self.writes]
        if shared:
            lines, void = self.world.lines(self._along()), self._void(shared=True)
            if lines is None:
                low, high, void = low[:1], high[:1], void[:1]
            return cover(flattened(found, self.world.ranks, lines), low, high, exempt=void)
        instances = [self._instance(w, spans) for w, spans in zip(self.writes, found, strict=True)]
        return cover(beside(instances), low, high, exempt=self._void(shared=False))

    def _alone(self, w: Access, axis: int, *, shared: bool) -> Cover:
        """Each source for itself; one that has no tiles at all need not cover anything."""
        low, high = self._extent(axis, shared=shared)
        spans = self._spans(w, axis)
        spans = spans if shared else self._instance(w, spans)
        return cover(spans, low, high, exempt=spans.nowhere | self._void(shared=shared))

    def _spans(self, w: Access, axis: int) -> Spans:
        of = self.tensor.axes[axis]
        if of.own_slice and (axis not in w.axes or w.axes[axis].whole):
            return self._line(axis).where(np.asarray(~w.idle()))
        found = w.spans(axis)
        assert found is not None
        return found

    def _void(self, *, shared: bool) -> Bools:
        """Instances without elements."""
        void = NOWHERE
        for a, axis in enumerate(self.tensor.axes):
            if not axis.own_slice:
                low, high = self._extent(a, shared=shared)
                void = void | (low >= high)
        return void

    def _settle(self, covers: list[tuple[int, Cover]], *, shared: bool) -> None:
        """Gaps must not be read."""
        for axis, found in covers:
            if found.twice is not None:
                raise self._twice(axis, found.twice)
            if found.never is not None:
                self._check_gap(axis, found, shared=shared)

    def _check_gap(self, axis: int, found: Cover, *, shared: bool) -> None:
        assert found.never is not None
        if self.tensor.name in self.plan.wiring.results:
            raise self._never(axis, found.never, None)
        for r in self.reads:
            spans = self._read(r, axis)
            if spans is None:
                self.assumed.append(f"assumed for `{self.tensor.name}`: data reads only what was written")
                continue
            written = found.spans
            if r.remote and not shared:
                if self.tensor.axes[axis].over != r.laid.step.axis or len(self.plan.axes) > 1:
                    raise self._unproven(f"`{r.path}` reads instances of other ranks that are not all written")
                written = cover(flattened([written], self.world.ranks), *self._extent(axis, shared=True)).spans
            missing = contains(written, spans)
            if missing is not None:
                raise self._never(axis, missing, r)
        self.assumed.append(f"`{self.tensor.name}` only where it is read")

    # ------------------------------------------------------------------------------------------------------ the tiles
    def _check_tiles(self, w: Access) -> None:
        """A domain axis that the index does not mention writes the same place again and again."""
        used = w.keys()
        if len(used) < sum(r.key is not None for r in w.axes.values()) and not w.by_data:
            raise self._unproven("one tile index stands on two axes")
        for a, g in enumerate(w.laid.step.grid):
            found = w.laid.spans[a]
            if a in used or g.kind == "own" or found is None or w.by_data:
                continue
            if w.laid.step.step.program.movement is not None:
                continue
            often = int(w.mask.on(found, a).filled.sum(axis=1).max(initial=0))
            if often > 1:
                raise TilelinkError(
                    "TL604",
                    f"`{w.param}` is stored {often} times, once for each tile along `{g.dim}`",
                    loc=w.loc,
                    why="tiles run on different workers, so nobody knows whose value stays",
                    hint=f"index `{w.param}` by the tile of `{g.dim}`, or store under a test of it",
                )

    def _check_sent(self, w: Access) -> None:
        """What a rank sees of its own part alone, from 0 on, names nobody who holds it: all of its line get it."""
        axis = w.laid.step.axis
        if not (w.remote and self.tensor.split_over(axis) and w.holder_axis() is None):
            return
        senders = self.world.each(~w.idle())
        lines = self.world.lines(axis)
        if bool(((senders if lines is None else senders[lines]).sum(axis=-1) > 1).any()):
            raise self._twice(next(a for a, of in enumerate(self.tensor.axes) if of.over == axis), None)

    def _check_forwarding(self) -> None:
        """What a movement leaves on its own rank must be taken from registers by everyone who reads it."""
        for w in self.writes:
            if w.laid.step.skip_own and not w.laid.step.push:
                raise self._nothing_moved(w)
            if not w.laid.keeps_own:
                continue
            for r in self.reads:
                if self.tensor.name not in r.laid.step.forwarded:
                    raise TilelinkError(
                        "TL604",
                        f"this rank's own tiles of `{r.param}` are never written, and `{r.path}` reads them",
                        loc=r.loc,
                        why=f"`{w.path}` hands them over in registers, which only programs fused with it can see",
                        hint=f"fuse `{r.path}` as well, or none of the readers",
                    )

    # ----------------------------------------------------------------------------------------------------- diagnostics
    def _nothing_moved(self, w: Access) -> TilelinkError:
        return TilelinkError(
            "TL604",
            f"`{w.path}` pulls, and is to leave out what stays on its rank",
            loc=w.loc,
            why="whatever a rank pulls ends on that rank: all of it would be left out",
            hint=f"let `{w.path}` push, or fuse none of the programs that read `{self.tensor.name}`",
        )

    def _axis(self, axis: int) -> str:
        return f"axis `{self.tensor.axes[axis].name}`"

    def _twice(self, axis: int, offence: tuple[int, int, int] | None) -> TilelinkError:
        where = f": positions {offence[1]} to {offence[2]} of {self._axis(axis)}" if offence is not None else ""
        others = tuple(Note("written here too", w.loc) for w in self.writes[1:])
        return TilelinkError(
            "TL604",
            f"`{self.tensor.name}` is written more than once{where}",
            loc=self.writes[0].loc,
            why="the tiles of a tensor's writers, over all ranks, must not overlap",
            hint="let the writers differ in one coordinate, for example this rank's own on an axis R",
            notes=others,
        )

    def _never(self, axis: int, gap: tuple[int, int, int], reader: Access | None) -> TilelinkError:
        row, first, last = gap
        who = "and it is a result" if reader is None else f"and `{reader.path}` reads it"
        hint = "store every tile" if reader is None else "store every tile that is read"
        notes = (Note("read here", reader.loc),) if reader is not None else ()
        return TilelinkError(
            "TL604",
            f"positions {first} to {last} of {self._axis(axis)} of `{self.tensor.name}` are never written, {who}",
            loc=self.writes[0].loc,
            why=f"the tiles of {self._writers()} do not reach there, for example on rank {row}",
            hint=hint,
            notes=notes,
        )

    def _writers(self) -> str:
        return ", ".join(dict.fromkeys(f"`{w.path}`" for w in self.writes))

    def _unproven(self, what: str) -> TilelinkError:
        return TilelinkError(
            "TL606",
            f"it cannot be shown that `{self.tensor.name}` is written exactly once",
            loc=self.writes[0].loc,
            why=what,
            hint="write it with one program, tile by tile",
        )


def _told_by_data(w: Access, axis: int) -> bool:
    """Whether data, and not where tiles lie, says what is written along an axis of the tensor."""
    found = [e for v, e in w.laid.index(w.param, w.index) if v.axis == axis]
    return any(isinstance(e, (At, Gather)) and not e.expr.positional for e in found)
