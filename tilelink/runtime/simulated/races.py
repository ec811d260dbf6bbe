"""The race detector: no two accesses of which one writes may be without an order that the run itself made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.runtime.memory import WORD
from tilelink.runtime.simulated.agents import (
    OF_CALL,
    AccessKind,
    Agent,
    Atomic,
    Block,
    Histories,
    Proxy,
    Scatter,
    Span,
    Target,
)
from tilelink.runtime.simulated.machine import Observer
from tilelink.runtime.simulated.shadow import Cells, ShadowMemory

Missing = Literal["signal", "release", "acquire", "scope", "count", "barrier", "proxy fence", "bulk store wait"]
"""What would have ordered the two accesses: `WHY` says what each is."""

WHY: dict[Missing, str] = {
    "signal": "no signal that is sent after the first access is waited for before the second",
    "release": "the signal between the two is relaxed: what was written before it may arrive after it",
    "acquire": "the wait between the two is relaxed: what follows it may be read before it",
    "scope": "the signal between the two is ordered for one GPU only, and the accesses are on two",
    "count": "the wait between the two is satisfied before the signal that follows the first access",
    "barrier": "the signal is one thread's, and no barrier of the program's threads lies between it and the access",
    "proxy fence": "a bulk copy (TMA) may see memory as it was before the wait, unless a proxy fence lies in between",
    "bulk store wait": "a bulk store (TMA) goes on in the background: nothing has waited for its end",
}
HINT: dict[Missing, str] = {
    "signal": "notify after the first, and wait for that tile before the second",
    "release": 'signal with sem="release"',
    "acquire": 'wait with sem="acquire"',
    "scope": 'signal and wait with scope="sys"',
    "count": "wait for as many signals as are sent for the tiles that are read",
    "barrier": "put tl.debug_barrier() in front of the signal, as shmem.signal_op does",
    "proxy fence": "put shmem.async_load_fence() behind the wait",
    "bulk store wait": "put shmem.async_store_quiet() in front of the signal",
}


@dataclass(frozen=True, slots=True)
class Access:
    """One side of a race. `line`: of the emitted file, 0 for a stream's copy. `what`: `rows[64:128, 0:64]`."""

    agent: Agent
    kind: AccessKind
    proxy: Proxy
    function: str
    line: int
    what: str = ""

    @property
    def loc(self) -> Loc | None:
        """The user's line that it comes from, or the emitted one where there is no user's."""
        return None if self.agent.launch is None else self.agent.launch.location(self.line)

    def __str__(self) -> str:
        verb = {"load": "reads", "store": "writes"}[self.kind]
        how = {"bulk": " by a bulk copy", "atomics": " atomically"}.get(self.proxy, "")
        place = f" ({self.function}, emitted line {self.line})" if self.line else ""
        return f"{self.agent} {verb} {self.what}{how}{place}"


@dataclass(frozen=True, slots=True)
class Race:
    """`earlier` came first in this run, and under another schedule need not. `context`: sentences about the signals of
    the one and the waits of the other."""

    earlier: Access
    later: Access
    missing: Missing
    context: tuple[str, ...] = ()


class RaceError(TilelinkError):
    """TL507. `race`: the same as data."""

    def __init__(self, race: Race) -> None:
        self.race = race
        earlier, later = race.earlier, race.later
        super().__init__(
            "TL507",
            f"a race: {later}",
            loc=later.loc,
            why=WHY[race.missing],
            hint=HINT[race.missing],
            notes=(
                Note(f"unordered with: {earlier}", earlier.loc),
                Note(f"the missing edge: {race.missing}"),
                *(Note(text) for text in race.context),
            ),
        )


# ---------------------------------------------------------------------------------------------------------------------
# Vector clocks: what each strand of a run has for certain seen of every other.
#
# A strand is what runs in order: a host, a stream, and three in every program: all its threads, the one thread that does
# scalar atomics, and the bulk copies (TMA), which are a memory client of their own.


class Strands(NamedTuple):
    """The rows of one agent; the same one three times where it is no program."""

    threads: int
    leader: int
    bulk: int


class Clocks:
    """`rows[a, b]`: strand a knows everything that strand b did while `rows[b, b]` was at most that."""

    def __init__(self) -> None:
        self.rows = np.zeros((64, 64), dtype=np.int32)
        self._count = 0
        self._strands: dict[tuple[int, int, int], Strands] = {}

    def strands(self, agent: Agent) -> Strands:
        """Workers of the same number on one stream are one: their launches are in order."""
        found = self._strands.get(agent.place)
        if found is None:
            count = 1 if agent.worker is None else 3
            if self._count + count > len(self.rows):
                self.rows = np.pad(self.rows, (0, len(self.rows)))
            rows = [self._count + strand % count for strand in range(3)]
            self._count += count
            self.rows[rows, rows] = 1
            found = self._strands[agent.place] = Strands(*rows)
        return found

    def snapshot(self, *rows: int) -> np.ndarray:
        """What these strands know together. Whatever they do afterwards is not in it."""
        made = self.rows[rows[0]].copy()
        for row in rows[1:]:
            np.maximum(made, self.rows[row], out=made)
        for row in rows:
            self.rows[row, row] += 1
        return made

    def learn(self, row: int, known: np.ndarray) -> None:
        mine = self.rows[row, : len(known)]
        np.maximum(mine, known, out=mine)

    def tell(self, source: int, target: int) -> None:
        """`target` goes on after everything that `source` has done."""
        self.learn(target, self.rows[source])
        self.rows[source, source] += 1


def union(known: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    """Both together; neither is changed."""
    if known is None:
        return more
    short, long = sorted((known, more), key=len)
    return np.maximum(long, np.pad(short, (0, len(long) - len(short))))


# ---------------------------------------------------------------------------------------------------------------------
# What an acquire of a flag learns: everything that was released into it up to the write that it had to see.

KEPT = 64
"""Writes remembered per flag: to forget older ones may hide a race, and never invents one."""


Released = dict[int, np.ndarray]
"""What came with a value of a flag, by the rank that it is released to: see `reach`."""
EVERYBODY = -1


def reach(agent: Agent, atomic: Atomic) -> tuple[int, ...]:
    """To which ranks something is released, or from which it is acquired: a rank alone, or every rank as well."""
    return (agent.rank, EVERYBODY) if atomic.scope == "system" else (agent.rank,)


# ---------------------------------------------------------------------------------------------------------------------
# What was accessed: who, where, and when by the clocks.

SIGNALS = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Accesses that are alike: by one strand, from one line, without a signal or a barrier in between.

    `row`, `clock`: of the strand. `lead`: the leader's clock at that time. `spans`: all that were accessed.
    """

    access: Access
    strands: Strands
    row: int
    clock: int
    lead: int
    spans: list[Block]


class State(NamedTuple):
    """Of some bytes: the access that wrote them last, and those that have read them since, each with its strand."""

    writer: int
    readers: tuple[tuple[int, int], ...] = ()


NOBODY = Entry(Access(Agent(-1), "load", "threads", "", 0), Strands(0, 0, 0), 0, 0, 0, [])


@dataclass(slots=True)
class AccessLog:
    """Accesses by number, from 1. States by number, 0 is that of untouched bytes."""

    entries: list[Entry] = field(default_factory=lambda: [NOBODY])
    states: list[State] = field(default_factory=lambda: [State(0)])
    atomics: dict[Strands, deque[tuple[int, Atomic]]] = field(default_factory=dict)
    known: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    """What was known by who stored words of 64 bits, by access."""
    alike: dict[tuple[object, ...], int] = field(default_factory=dict)
    _numbers: dict[State, int] = field(default_factory=lambda: {State(0): 0})
    _after: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, state: State) -> int:
        found = self._numbers.setdefault(state, len(self.states))
        if found == len(self.states):
            self.states.append(state)
        return found

    def after_read(self, state: int, number: int, known: np.ndarray) -> int:
        """The state after a further read. Readers that the new one knows are left out: who comes after it, comes after them."""
        after = self._after.get((state, number))
        if after is None:
            before, row = self.states[state], self.entries[number].row
            others = ((w, r) for w, r in before.readers if w != row and known[w] < self.entries[r].clock)
            after = self._after[state, number] = self.number(State(before.writer, (*others, (row, number))))
        return after

    # --------------------------------------------------------------------------------------------------------- the report
    def missing(self, earlier: int, later: int, clocks: Clocks) -> Missing:
        """The edge without which the two are unordered."""
        first, second, rows = self.entries[earlier], self.entries[later], clocks.rows
        mine, theirs = second.strands, first.strands
        ended = "bulk store wait" if first.access.proxy == "bulk" else "barrier"
        if mine == theirs:
            return "proxy fence" if second.access.proxy == "bulk" else ended
        if rows[mine.threads, first.row] >= first.clock:
            return "proxy fence"
        if rows[mine.leader, first.row] >= first.clock:
            return "barrier"
        if rows[mine.leader, theirs.leader] >= first.lead:
            return ended
        sent = {a.address: a for a in self.signals(theirs, earlier)}
        for wait in self.waits(mine):
            signal = sent.get(wait.address)
            if signal is None:
                continue
            if not signal.release:
                return "release"
            if not wait.acquire:
                return "acquire"
            remote = first.access.agent.rank != second.access.agent.rank
            return "scope" if remote and "device" in (signal.scope, wait.scope) else "count"
        return "signal"

    def signals(self, strands: Strands, after: int) -> list[Atomic]:
        """What a program has signalled since access number `after`."""
        return [a for number, a in self.atomics.get(strands, ()) if number > after and a.writes]

    def waits(self, strands: Strands) -> list[Atomic]:
        return [a for _, a in self.atomics.get(strands, ()) if not a.writes or a.acquire]


# ---------------------------------------------------------------------------------------------------------------------
# Orders come from the memory orders of the atomics, the barriers and the fences that the emitted code executes, from
# streams, events, launches and collective calls; never from which access happened to come first. So a race is found
# under nearly every schedule. Three strands of a program are kept apart (`Strands`): a signal without the barrier before
# it covers one thread's stores only, and a bulk load without a proxy fence before it may see what was there earlier.

LIMIT = 300_000
"""Accesses remembered. Then all are forgotten, and a race with one of them stays unseen."""


class RaceDetector(Observer):
    """Pass one to `simulate` as `observer`. Raises TL507, in the program that makes the second of two unordered accesses.

    Args:
        collect: keep races in `races`, one for each pair of lines, instead of raising at the first.
    """

    def __init__(self, *, collect: bool = False) -> None:
        self.races: list[Race] = []
        self._collect = collect
        self._clocks = Clocks()
        self._releases = Histories(Released(), KEPT)
        self._memory = ShadowMemory()
        self._log = AccessLog()
        self._found: set[tuple[object, ...]] = set()

    # ------------------------------------------------------------------------------------------------------------- order
    def mark(self, agent: Agent) -> object:
        return self._clocks.snapshot(*set(self._clocks.strands(agent)))

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        for mark in marks:
            assert isinstance(mark, np.ndarray)
            for row in set(self._clocks.strands(agent)):
                self._clocks.learn(row, mark)

    def fence(self, agent: Agent, meaning: str) -> None:
        s = self._clocks.strands(agent)
        if meaning == "barrier":
            both = self._clocks.snapshot(s.threads, s.leader)
            self._clocks.learn(s.threads, both)
            self._clocks.learn(s.leader, both)
        elif meaning == "proxy_fence":
            self._clocks.tell(s.threads, s.bulk)
        elif meaning == "bulk_store_wait":
            self._clocks.tell(s.bulk, s.threads)

    def atomic(self, agent: Agent, atomic: Atomic) -> None:
        s = self._clocks.strands(agent)
        self._touch_word(agent, s, atomic)
        if atomic.acquire:
            self._acquire(agent, s, atomic)
        if atomic.writes:
            known = self._clocks.snapshot(s.leader) if atomic.release else None

            def following(last: Released) -> Released:
                """An atomic change passes on what was released before, with or without releasing itself."""
                before = last if atomic.exchange else Released()
                if known is None:
                    return before
                return before | {rank: union(before.get(rank), known) for rank in reach(agent, atomic)}

            self._releases.write(atomic.address, atomic.before, atomic.after, following)

    def _acquire(self, agent: Agent, s: Strands, atomic: Atomic) -> None:
        target, at = agent.target, atomic.address
        if target is None or target.address != at:
            release = self._releases.latest(at)
        elif target.condition(atomic.before):
            release = self._releases.satisfied(at, target.condition)
        else:
            return
        for rank in reach(agent, atomic):
            if rank in release:
                self._clocks.learn(s.leader, release[rank])
        # All threads get the result, and with it what the one thread has learnt.
        self._clocks.tell(s.leader, s.threads)

    # ------------------------------------------------------------------------------------------------------------ memory
    def opened(self, start: int, end: int, keep: object) -> None:
        self._memory.open(start, end, keep)

    def freed(self, start: int, end: int) -> None:
        self._memory.close(start, end)
        self._releases.forget(start, end)

    def access(self, agent: Agent, span: Span, proxy: Proxy, kind: AccessKind) -> None:
        shadow = self._memory.find(span)
        if shadow is None:
            return
        s = self._clocks.strands(agent)
        eyes = s.bulk if proxy == "bulk" else s.threads
        # A bulk load sees what its proxy sees; that it has ended is known to all threads, which use what it brought.
        row = s.threads if kind == "load" else eyes
        number = self._record(agent, s, row, kind, proxy, span)
        (self._read if kind == "load" else self._write)(shadow.cells(span), eyes, number)
        if kind == "store" and span.itemsize == WORD and row == s.threads:
            self._log.known[number] = self._clocks.snapshot(row)

    def waited(self, agent: Agent, target: Target) -> None:
        """Who sees a word of 64 bits knows what its writer had read and knew then: that is behind it. (What the writer had
        stored elsewhere may not have arrived; a plan lets nobody read it for that.)"""
        shadow = self._memory.find(target.span) if target.comparison == OF_CALL else None
        if shadow is None:
            return
        s, log = self._clocks.strands(agent), self._log
        for state in shadow.cells(target.span).states():
            known = log.known.get(log.states[state].writer)
            if known is not None:
                self._clocks.learn(s.threads, known)
        # Of an observer that records both, such a read is no access.
        RaceDetector.access(self, agent, target.span, "threads", "load")

    def _touch_word(self, agent: Agent, s: Strands, atomic: Atomic) -> None:
        """An atomic and an ordinary access of one flag want an order as any two; two atomics do not."""
        span = Block(atomic.address, (1,), (0,), atomic.size)
        shadow = self._memory.find(span)
        if shadow is None:
            return
        number = self._record(agent, s, s.leader, "store" if atomic.writes else "load", "atomics", span)
        self._log.atomics.setdefault(s, deque(maxlen=SIGNALS)).append((number, atomic))
        (self._write if atomic.writes else self._read)(shadow.cells(span), s.leader, number)

    # ----------------------------------------------------------------------------------------------------------- checking
    def _read(self, cells: Cells, me: int, number: int) -> None:
        log = self._log
        states = cells.states()
        for state in states:
            writer = log.states[state].writer
            if writer:
                self._check(writer, me, number)
            after = log.after_read(state, number, self._clocks.rows[log.entries[number].row])
            if after != state:
                cells.fill(after, old=None if len(states) == 1 else state)

    def _write(self, cells: Cells, me: int, number: int) -> None:
        log = self._log
        for state in cells.states():
            known = log.states[state]
            if known.writer:
                self._check(known.writer, me, number)
            for _, reader in known.readers:
                self._check(reader, me, number)
        cells.fill(log.number(State(number)))

    def _check(self, earlier: int, me: int, number: int) -> None:
        before, now = self._log.entries[earlier], self._log.entries[number]
        if self._clocks.rows[me, before.row] >= before.clock:
            return
        if before.access.proxy == now.access.proxy == "atomics":
            return
        # A bulk load of the same program has ended before anything that follows it begins.
        if before.strands is now.strands and (before.access.proxy, before.access.kind) == ("bulk", "load"):
            return
        self._race(earlier, number)

    def _record(self, agent: Agent, s: Strands, row: int, kind: AccessKind, proxy: Proxy, span: Span) -> int:
        log, rows = self._log, self._clocks.rows
        function, line = self.machine.place(agent)
        clock, lead = int(rows[row, row]), int(rows[s.leader, s.leader])
        if isinstance(span, Scatter):
            # What is small to keep: all from its first byte to its last.
            low, high = span.bounds
            span = Block(low, ((high - low) // span.itemsize,), (span.itemsize,), span.itemsize)
        key = (row, clock, lead, line, kind, proxy)
        number = log.alike.get(key)
        if number is not None:
            log.entries[number].spans.append(span)
            return number
        if len(log.entries) > LIMIT:
            log = self._log = AccessLog()
            self._memory.clear()
        log.alike[key] = number = len(log.entries)
        log.entries.append(Entry(Access(agent, kind, proxy, function, line), s, row, clock, lead, [span]))
        return number

    # ---------------------------------------------------------------------------------------------------------- reporting
    def _race(self, earlier: int, later: int) -> None:
        log, machine = self._log, self.machine
        if machine.gave_up:
            return  # a wait has ended without what it waited for, and that is reported
        first, second = log.entries[earlier], log.entries[later]
        here = second.spans[-1]
        low, high = here.bounds
        there = [span for span in first.spans if span.bounds[0] < high and low < span.bounds[1]] or first.spans
        race = Race(
            earlier=replace(first.access, what=machine.span_name(first.access.agent, there[-1])),
            later=replace(second.access, what=machine.span_name(second.access.agent, here)),
            missing=log.missing(earlier, later, self._clocks),
            context=self._context(earlier, later),
        )
        if not self._collect:
            raise RaceError(race)
        key = (race.earlier.function, race.earlier.line, race.later.function, race.later.line, race.missing)
        if key not in self._found:
            self._found.add(key)
            self.races.append(race)

    def _context(self, earlier: int, later: int) -> tuple[str, ...]:
        first, second = self._log.entries[earlier], self._log.entries[later]
        if first.strands == second.strands:
            return ()
        signaller, waiter = first.access.agent, second.access.agent
        sent = self._names(signaller, self._log.signals(first.strands, earlier))
        seen = self._names(waiter, self._log.waits(second.strands))
        return (
            f"since then, {signaller} has signalled: {sent or 'nothing'}",
            f"until then, {waiter} has waited for: {seen or 'nothing'}",
        )

    def _names(self, agent: Agent, atomics: list[Atomic]) -> str:
        names = dict.fromkeys(self.machine.name_of(agent, a.address) for a in reversed(atomics))
        return ", ".join(list(names)[:4])
