"""A run of an emitted file beside its lowered plan: who does which tiles, each tile, and what begins and ends a call."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.kernel import AWAIT_FLAG, KernelSource
from tilelink.ir.lowered import ENTERED, STATES, Buffer, Copy, Executor, Lowered, Signal, Tiles, Write, walk
from tilelink.ir.plan import COPIES, MAIN, Keep, Plan, Stage, Transfer
from tilelink.validation.event_matching import Facts, Flag, Found, Match, Tally
from tilelink.validation.events import Event, Said, Where
from tilelink.validation.expanding import Expansion, number
from tilelink.validation.places import place_of
from tilelink.validation.recording import Line
from tilelink.validation.report import Difference
from tilelink.validation.running import Run

HEARD = "a credit that is known from what was heard in the call before"
"""Of calls that are signalled by their number."""


@dataclass(eq=False)
class Comparison:
    """`differences`: what was found, in the order of calls, ranks and workers."""

    lowered: Lowered
    plan: Plan
    source: KernelSource
    run: Run
    tally: Tally = field(default_factory=Tally)
    differences: list[Difference] = field(default_factory=list[Difference])

    def all(self) -> list[Difference]:
        for line, where, does in self.run.recording.strays:
            self._add(line, Found(does, "nothing of the kind", None), where)
        if self.run.error is not None:
            self._until_it_ended(self.run.error)
            return self.differences
        for call in range(self.run.calls):
            for rank in range(self.lowered.topology.ranks):
                self._call(call, rank)
            self._written(call)
        if not self.differences:
            self._left_behind()
        self._races()
        return self.differences

    def _until_it_ended(self, error: TilelinkError) -> None:
        """Of a run that did not come to its end, the tiles that did; then what ended it."""
        lines = self.run.recording.lines
        for line in sorted(lines, key=lambda x: (x.call, lines[x][0].at)):
            # The last tile is perhaps not through.
            through = [e for e in lines[line] if e.where.tile != lines[line][-1].where.tile]
            for executor in self._kernels:
                self._workers(self._facts(line.call, line.rank), executor, {line: through})
        self._races()
        self.differences.append(
            Difference(
                f"cannot run: {error.code} {error.message}", "it runs to its end", "simulated ranks", loc=error.loc
            )
        )

    def _races(self) -> None:
        for race in self.run.recording.races:
            line = race.later.line
            does = f"has a race: {race.later}, unordered with {race.earlier}"
            text = self._text(line)
            found = Difference(
                does,
                f"the two are ordered; what is missing: {race.missing}",
                race.later.agent.name,
                line,
                text,
                race.later.loc,
            )
            self.differences.append(found)

    # -------------------------------------------------------------------------------------------------------------- plan
    @cached_property
    def ranks(self) -> list[Expansion]:
        """What the plan says of each rank."""
        return [Expansion(self.lowered, rank) for rank in range(self.lowered.topology.ranks)]

    @cached_property
    def _kernels(self) -> list[Executor]:
        return [e for e in self.lowered.executors if e.engine.by == "kernel"]

    @cached_property
    def _streams(self) -> dict[int, list[tuple[Executor, int]]]:
        """By number of the stream, the executors that it runs, and which of their streams it is."""
        out: dict[int, list[tuple[Executor, int]]] = defaultdict(list)
        for h in self.plan.host:
            if isinstance(h, Transfer | Keep | Stage):
                executor = self.lowered.executor(h.executor)
                for k in range(executor.workers):
                    out[(MAIN if isinstance(h, Stage) else h.stream) + k].append((executor, k))
        return out

    def _facts(self, call: int, rank: int) -> Facts:
        loops = (loop for found in self._streams.values() for e, _ in found for loop in e.loops)
        said = (s for loop in loops for tile in self.ranks[rank].tiles(loop) for s in tile)
        return Facts(self.ranks, rank, call + 1, frozenset((s.name, s.index) for s in said if s.doorbell))

    # -------------------------------------------------------------------------------------------------------------- calls
    def _call(self, call: int, rank: int) -> None:
        facts, lines = self._facts(call, rank), self.run.recording.lines
        mine = {line: events for line, events in lines.items() if (line.call, line.rank) == (call, rank)}
        for e in self._kernels:
            taken = self._workers(facts, e, mine)
            for loop in e.loops:
                self._each_once(facts, e, loop, taken[loop.path])
        self._stream_work(facts, mine)
        self._begin_and_end(facts, mine)
        for line, events in mine.items():
            self._fences(line, events)

    # ------------------------------------------------------------------------------------------------------------ workers
    def _workers(self, facts: Facts, executor: Executor, lines: dict[Line, list[Event]]) -> dict[str, Counter[int]]:
        """What each worker does; by loop, how often each position was taken."""
        paths = [loop.path for loop in executor.loops]
        taken: dict[str, Counter[int]] = {path: Counter() for path in paths}
        for line, events in lines.items():
            own = [e for e in events if e.where.path in paths]
            known: set[Flag] = set()
            turns = [paths.index(e.where.path) for e in own]
            if turns != sorted(turns):
                at = next(k for k in range(1, len(turns)) if turns[k] < turns[k - 1])
                self._add(line, Found("goes back to an earlier loop", f"loops come in turn: {paths}", own[at]))
            for loop in executor.loops:
                found = [e for e in own if e.where.path == loop.path]
                if found:
                    self._loop(facts, executor, loop, line, found, known, taken[loop.path])
        return taken

    def _loop(
        self, facts: Facts, executor: Executor, loop: Tiles, line: Line, events: list[Event],
        known: set[Flag], taken: Counter[int],
    ) -> None:  # fmt: skip
        """What one worker does of a loop: tile after tile."""
        tiles, making = facts.said(loop), self._mainloop(executor, loop)
        head, found = _by_tile(events)
        mainloop = [] if making is None else facts.said(making)
        # A deferred epilogue counts the positions of its mainloop step, of which its own are the last.
        offset = len(mainloop) - len(tiles) if making is not None else 0
        made = frozenset(s.name for tile in mainloop for s in tile if s.kind == "write" and s.rank == facts.rank)
        if [t for t, _ in found] != sorted({t for t, _ in found}):
            self._add(line, Found("takes tiles in another order, or one twice", "positions grow", found[0][1][0]))
            return
        if not found and head:
            self._headed(facts, line, head, tiles, loop)
        for t, own in found:
            taken[t - offset] += 1
            self.tally.compared["tiles"] += 1
            events = [*head, *own]
            if loop.by_data is not None:
                self._match(facts, line, tiles, events, known)
            elif not 0 <= t - offset < len(tiles):
                self._add(line, Found(f"takes tile {t} of `{loop.path}`", f"there are {len(tiles)}", own[0]))
            else:
                self._match(facts, line, [tiles[t - offset]], events, known, made)

    def _headed(self, facts: Facts, line: Line, head: list[Event], tiles: list[list[Said]], loop: Tiles) -> None:
        """A worker without a tile may have read tables, and tells for nobody what data leaves without a tile."""
        said = {(s.name, s.rank) for tile in tiles[:1] for s in tile if s.kind == "read"}
        for e in head:
            if e.kind == "signal" and loop.by_data is not None:
                added, by = facts.ranks[e.rank].arrivals(e.name, e.index), e.value - e.before
                if by != added or e.rank != facts.rank:
                    self._add(line, Found(f"adds {by} to flag {e.index} of `{e.name}`", f"{added} is added", e))
            elif e.kind in ("drain", "fence", "mark") or (e.kind == "read" and (e.name, e.rank) in said):
                continue
            else:
                self._add(line, Found(f"{e.kind}s `{e.name}` outside of any tile", "tiles do", e))

    def _match(
        self, facts: Facts, line: Line, tiles: list[list[Said]], events: list[Event], known: set[Flag],
        made: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """A tile is what the plan says; one that data has placed is one of those that it says."""
        best: tuple[list[Found], Tally, set[Flag]] | None = None
        for tile in tiles:
            tally, heard = Tally(), set(known)
            found = Match(facts, tally, tile, events, heard, made).run()
            if best is None or len(found) < len(best[0]):
                best = found, tally, heard
            if not found:
                break
        if best is None:
            self._add(line, Found("takes a tile", "there is none", events[0]))
            return
        for one in best[0]:
            self._add(line, one)
        self.tally.compared += best[1].compared
        self.tally.elided += best[1].elided
        known |= best[2]

    @staticmethod
    def _mainloop(executor: Executor, loop: Tiles) -> Tiles | None:
        """The loop of the executor that makes the tiles of a deferred epilogue; None: it is none."""
        told = ((x, o) for x in executor.loops for o in walk(x.body) if isinstance(o, Signal))
        return next((x for x, o in told if o.flags == f"made.{loop.path}"), None)

    def _each_once(self, facts: Facts, executor: Executor, loop: Tiles, taken: Counter[int]) -> None:
        for t, tile in enumerate(facts.said(loop) if loop.by_data is None else []):
            acts = any(
                s.kind in ("read", "write") or (s.kind == "signal" and self.lowered.flag(s.name).style != "data")
                for s in tile
            )
            if taken[t] != 1 and (taken[t] or (acts and not all(s.data for s in tile))):
                line = Line(facts.epoch - 1, facts.rank, 0, executor.kernel)
                does = f"takes tile {t} of `{loop.path}` {taken[t]} times"
                self._add(line, Found(does, "each position is taken once", None, loop.loc))

    # ------------------------------------------------------------------------------------------------------------ streams
    def _stream_work(self, facts: Facts, lines: dict[Line, list[Event]]) -> None:
        for stream, executors in {MAIN: [], **self._streams}.items():
            loops = ((e, k, facts.said(loop)) for e, k in executors for loop in e.loops)
            turns = (tile for e, k, tiles in loops for t, tile in enumerate(tiles) if t % e.workers == k)
            # What kernels of the call's entry and exit do is compared by itself.
            own = (s for tile in turns for s in tile if s.kind != "signal" or s.name not in STATES)
            said = [replace(s, at=at) for at, s in enumerate(own)]
            there = stream + (stream != MAIN)  # side streams follow one that is nobody's
            mine = {line: es for line, es in lines.items() if line.stream == there and self._streams_own(line)}
            events = sorted((e for es in mine.values() for e in es), key=lambda e: e.at)
            if said or events:
                line = Line(facts.epoch - 1, facts.rank, stream)
                # Two tiles that wait for one doorbell wait once.
                self._match(facts, line, [said], events, set())

    @staticmethod
    def _streams_own(line: Line) -> bool:
        return line.worker is None or line.kernel == AWAIT_FLAG

    # ------------------------------------------------------------------------------------------------------ begin and end
    def _begin_and_end(self, facts: Facts, lines: dict[Line, list[Event]]) -> None:
        """The call's own flags: who has entered, staged, left; and the credits."""
        executors = [e for e in self.lowered.executors if e.engine.by == "host" or e.name == "stage"]
        said = [s for e in executors for tile in facts.said(e.loops[0]) for s in tile if s.name in STATES]
        credits = [s for s in said if s.kind == "await" and s.back]
        if not credits and self.run.credits[facts.epoch - 1]:
            # A first call takes those that others imply, too.
            every = range(self.lowered.topology.ranks)
            credits = [Said(rank, "await", ENTERED, facts.rank, rank, None, back=1) for rank in every]
        if self.plan.epoch_signalled and self._used(facts) < facts.epoch - 1:
            self.tally.elided[HEARD] += len(credits)
            said, credits = [], []
        # Who has entered a later call has left the one that used the slot last.
        credits = [replace(s, back=facts.epoch - self._used(facts) - 1) for s in credits]
        kernels = self.plan.whole_call or ("call_entry",)
        own = {
            line: [e for e in events if e.name in STATES and not e.where.path and e.kind in ("signal", "await")]
            for line, events in lines.items()
            if not self._streams_own(line)
        }
        told = [e for events in own.values() for e in events if e.kind == "signal"]
        signals = [s for s in said if s.kind == "signal"]
        self._match(facts, Line(facts.epoch - 1, facts.rank, 0), [signals], told, set())
        taking = self.run.credits[facts.epoch - 1]
        for line, events in own.items():
            awaits = credits if line.kernel == kernels[0] and taking else []
            if line.kernel == "call_exit":
                awaits = [s for s in said if s.kind == "await" and not s.back]
            made = [e for e in events if e.kind == "await"]
            self._match(facts, line, [awaits], made, set())
            early = next((e for e in lines[line] if e.kind in ("read", "write")), None)
            if early is not None and made and early.at < made[-1].at and line.kernel != "call_exit":
                self._add(
                    line, Found(f"{early.kind}s `{early.name}` before all credits are there", "credits first", early)
                )

    def _used(self, facts: Facts) -> int:
        """The number of the last call that used the slot; 0: none."""
        return max(facts.epoch - self.lowered.slots, 0)

    # ------------------------------------------------------------------------------------------------------ what is written
    def _written(self, call: int) -> None:
        """By all ranks: nothing is read that nobody writes, and what data places is written once, and all of it."""
        touched: dict[tuple[str, int, str], list[tuple[Line, Event]]] = defaultdict(list)
        for line, events in self.run.recording.lines.items():
            for e in events if line.call == call else []:
                if e.kind in ("read", "write"):
                    touched[e.name, e.rank, e.kind].append((line, e))
        for buffer in self.lowered.buffers:
            for rank in range(self.lowered.topology.ranks) if buffer.space != "argument" else ():
                writes, reads = touched[buffer.name, rank, "write"], touched[buffer.name, rank, "read"]
                size = 1 + max((int(e.index.max()) for _, e in (*writes, *reads)), default=0)
                there = math.prod(number(e, self.lowered.env(rank)) for e in buffer.extents)
                often = np.zeros(max(size, there), np.int64)
                for _, e in writes:
                    often[np.unique(e.index)] += 1
                for line, e in (x for x in reads if not often[x[1].index].all()):
                    self._add(line, Found(f"reads elements of `{e.name}` that nobody writes", "somebody does", e))
                    break
                if buffer.name in self._placed:
                    self._once(buffer, rank, often, writes)

    def _once(self, buffer: Buffer, rank: int, often: Any, writes: list[tuple[Line, Event]]) -> None:
        for line, e in (x for x in writes if (often[x[1].index] > 1).any()):
            self._add(line, Found(f"writes elements of `{e.name}` that others write", "each is written once", e))
            return
        if buffer.space == "result" and buffer.written != "partial" and not often.all():
            line = Line(0, rank, 0)
            does = f"leaves {int((often == 0).sum())} elements of `{buffer.name}` unwritten"
            self._add(line, Found(does, "each is written once", None, buffer.loc))

    @cached_property
    def _placed(self) -> frozenset[str]:
        """The buffers that data places elements in."""
        ops = (op for e in self.lowered.executors for loop in e.loops for op in walk(loop.body))
        writes = (op.target if isinstance(op, Copy) else op for op in ops)
        return frozenset(op.buffer for op in writes if isinstance(op, Write) and op.by_data is not None)

    def _fences(self, line: Line, events: list[Event]) -> None:
        """Bulk stores have ended when something is signalled, and bulk loads see what an await before them has made readable."""
        stored: Event | None = None
        awaited: dict[str, Event] = {}
        for e in events:
            if e.kind == "write" and e.how == "bulk":
                stored = e
            elif e.kind == "drain":
                stored = None
                self.tally.compared["drains"] += 1
            elif e.kind == "fence":
                awaited.clear()
                self.tally.compared["fences"] += 1
            elif e.kind == "await":
                awaited[e.name] = e
            elif e.kind in ("signal", "count", "mark") and stored is not None:
                does = f"{e.kind}s `{e.name}` while a bulk store to `{stored.name}` is under way"
                self._add(line, Found(does, "it has ended before", e))
                stored = None
            elif e.kind == "read" and e.how == "bulk" and e.name in awaited:
                does = f"loads `{e.name}` in bulk behind an await without a proxy fence"
                self._add(line, Found(does, "a fence comes between", e))
                awaited.clear()

    # ------------------------------------------------------------------------------------------------------- what is left
    def _left_behind(self) -> None:
        """What calls keep to themselves, as the next call would find it."""
        calls, slots = self.run.calls, self.lowered.slots
        counted = {f.name: f.count for f in self.lowered.flags if f.style == "count"}
        for rank, space in enumerate(self.run.spaces):
            if space is None:
                continue
            for region in space.capacity.values():
                place = place_of(self.lowered, region.name, rank)
                words = space.view(region.name, torch.int64, region.nbytes // 8).numpy()
                if region.name == "epoch":
                    self._is(rank, "the number of the call", words, np.full(COPIES, calls))
                elif region.name == "last":
                    last = [max((c + 1 for c in range(calls) if c % slots == k), default=0) for k in range(slots)]
                    self._is(rank, "the last call of each slot", words, np.repeat(last, COPIES))
                elif (
                    region.name == "through"
                    or place.kind in ("doorbells", "counts")
                    or region.name.rpartition("/")[0].endswith(".work_indices")
                ):
                    self._is(rank, f"`{region.name}` between calls", words, np.zeros(len(words), np.int64))
                elif place.kind in ("flags", "expected") and place.name in counted:
                    uses, many = (
                        len(range(place.slot or 0, calls, slots)),
                        number(counted[place.name], self.lowered.env(rank)),
                    )
                    count = [uses * self.ranks[rank].arrivals(place.name, k) for k in range(many)]
                    what = "signalled" if place.kind == "flags" else "expected"
                    self._is(rank, f"what is {what} of `{place.name}`", words, np.array(count, np.int64))

    def _is(self, rank: int, what: str, words: Any, expected: Any) -> None:
        wrong = np.flatnonzero(words[: len(expected)] != expected)
        if len(wrong):
            k = int(wrong[0])
            line = Line(self.run.calls - 1, rank, 0)
            self._add(line, Found(f"leaves {words[k]} at {k} of {what}", f"{expected[k]}", None))
        else:
            self.tally.compared["numbers that calls keep"] += len(expected)

    # ----------------------------------------------------------------------------------------------------------- reporting
    def _add(self, line: Line, found: Found, where: Where | None = None) -> None:
        where = found.event.where if found.event is not None else where or Where()
        loc: Loc | None = found.loc or (self.source.location(where.line) if where.line else None)
        who = f"worker {line.worker} of {line.kernel}" if line.worker is not None else f"stream {line.stream}"
        tile = f", tile {where.tile} of `{where.path}`" if where.tile is not None else ""
        said = f"rank {line.rank}, {who}, call {line.call + 1}{tile}"
        self.differences.append(Difference(found.does, found.says, said, where.line, self._text(where.line), loc))

    def _text(self, line: int) -> str:
        """A line of the emitted file."""
        texts = self.source.text.splitlines()
        return texts[line - 1] if 0 < line <= len(texts) else ""


def _by_tile(events: list[Event]) -> tuple[list[Event], list[tuple[int, list[Event]]]]:
    """What comes before the first tile, and the tiles in order."""
    tiles = groupby((e for e in events if e.where.tile is not None), key=attrgetter("where.tile"))
    return [e for e in events if e.where.tile is None], [(t, [*own]) for t, own in tiles]
