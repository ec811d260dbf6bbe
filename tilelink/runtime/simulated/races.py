"""The race detector: no two accesses of which one writes may be without an order that the run itself made.

Orders come from the memory orders of the atomics, the barriers and the fences that the emitted code executes, from
streams, events, launches and collective calls; never from which access happened to come first. So a race is found
under nearly every schedule. Three strands of a program are kept apart (`clocks`): a signal without the barrier before
it covers one thread's stores only, and a bulk load without a proxy fence before it may see what was there earlier.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np

from tilelink.runtime.simulated.accesslog import AccessLog, Entry, outline
from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.clocks import Clocks, Strands
from tilelink.runtime.simulated.observing import Atomic, Block, Observer, Proxy, Span
from tilelink.runtime.simulated.raceerror import Race, RaceError
from tilelink.runtime.simulated.releases import Releases
from tilelink.runtime.simulated.shadow import Cells, ShadowMemory
from tilelink.runtime.simulated.words import WORD

if TYPE_CHECKING:
    from tilelink.runtime.simulated.machine import Machine

LIMIT = 300_000
"""Accesses remembered. Then all are forgotten, and a race with one of them stays unseen."""


class RaceDetector(Observer):
    """Pass one to `simulate` as `observer`.

    Args:
        collect: keep races in `races`, one for each pair of lines, instead of raising at the first.

    Raises:
        RaceError: TL507, in the program that makes the second of two unordered accesses.
    """

    def __init__(self, *, collect: bool = False) -> None:
        self.races: list[Race] = []
        self._collect = collect
        self._clocks = Clocks()
        self._releases = Releases()
        self._memory = ShadowMemory()
        self._log = AccessLog()
        self._found: set[tuple[object, ...]] = set()

    def attached(self, machine: Machine) -> None:
        self._machine = machine

    # ------------------------------------------------------------------------------------------------------------- order
    def mark(self, agent: Agent) -> object:
        s = self._clocks.strands(agent)
        return self._clocks.snapshot(s.threads, s.leader, s.bulk) if s.program else self._clocks.snapshot(s.threads)

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        s = self._clocks.strands(agent)
        for mark in marks:
            assert isinstance(mark, np.ndarray)
            for row in {s.threads, s.leader, s.bulk}:
                self._clocks.learn(row, mark)

    def barrier(self, agent: Agent) -> None:
        s = self._clocks.strands(agent)
        both = self._clocks.snapshot(s.threads, s.leader)
        self._clocks.learn(s.threads, both)
        self._clocks.learn(s.leader, both)

    def fence(self, agent: Agent, meaning: str) -> None:
        s = self._clocks.strands(agent)
        if meaning == "proxy_fence":
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
            self._releases.write(
                atomic.address, atomic.before, atomic.after, agent.rank, atomic.scope, known, atomic=atomic.exchange
            )

    def _acquire(self, agent: Agent, s: Strands, atomic: Atomic) -> None:
        target = agent.target
        condition = target.condition if target is not None and target.address == atomic.address else None
        if condition is not None and not condition(atomic.before):
            return
        release = self._releases.satisfied(atomic.address, condition)
        if release is not None:
            for known in release.reaches(agent.rank, atomic.scope):
                self._clocks.learn(s.leader, known)
        # All threads get the result, and with it what the one thread has learnt.
        if s.program:
            self._clocks.tell(s.leader, s.threads)

    # ------------------------------------------------------------------------------------------------------------ memory
    def opened(self, start: int, end: int, keep: object) -> None:
        self._memory.open(start, end, keep)

    def freed(self, start: int, end: int) -> None:
        self._memory.close(start, end)
        self._releases.forget(start, end)

    def load(self, agent: Agent, span: Span, proxy: Proxy) -> None:
        shadow = self._memory.find(span)
        if shadow is not None:
            s = self._clocks.strands(agent)
            # A bulk load sees what its proxy sees; that it has ended is known to all threads, which use what it brought.
            eyes = s.bulk if proxy == "bulk" else s.threads
            self._read(shadow.cells(span), eyes, self._record(agent, s, s.threads, "load", proxy, span))

    def store(self, agent: Agent, span: Span, proxy: Proxy) -> None:
        shadow = self._memory.find(span)
        if shadow is not None:
            s = self._clocks.strands(agent)
            me = s.bulk if proxy == "bulk" else s.threads
            number = self._record(agent, s, me, "store", proxy, span)
            self._write(shadow.cells(span), me, number)
            if span.itemsize == WORD and me == s.threads:
                self._log.known[number] = self._clocks.snapshot(me)

    def look(self, agent: Agent, span: Span) -> None:
        """Who sees a word of 64 bits knows what its writer had read and knew then: that is behind it. (What the writer had
        stored elsewhere may not have arrived; a plan lets nobody read it for that.)"""
        shadow = self._memory.find(span)
        if shadow is None:
            return
        s, log = self._clocks.strands(agent), self._log
        for state in shadow.cells(span).states():
            known = log.known.get(log.states[state].writer)
            if known is not None:
                self._clocks.learn(s.threads, known)
        self.load(agent, span, "threads")

    def _touch_word(self, agent: Agent, s: Strands, atomic: Atomic) -> None:
        """An atomic and an ordinary access of one word want an order as any two; two atomics do not."""
        span = Block(atomic.address, (1,), (0,), atomic.size)
        shadow = self._memory.find(span)
        if shadow is None:
            return
        number = self._record(agent, s, s.leader, "store" if atomic.writes else "load", "atomics", span)
        self._log.add_atomic(s, number, atomic)
        (self._write if atomic.writes else self._read)(shadow.cells(span), s.leader, number)

    # ----------------------------------------------------------------------------------------------------------- checking
    def _read(self, cells: Cells, me: int, number: int) -> None:
        log = self._log
        states = cells.states()
        for state in states:
            writer = log.states[state].writer
            if writer:
                self._check(writer, me, number)
            after = log.after_read(state, number, self._clocks.rows[log.who[number]])
            if after == state:
                continue
            if len(states) == 1:
                cells.fill(after)
            else:
                cells.replace(state, after)

    def _write(self, cells: Cells, me: int, number: int) -> None:
        log = self._log
        for state in cells.states():
            known = log.states[state]
            if known.writer:
                self._check(known.writer, me, number)
            for reader in known.readers.values():
                self._check(reader, me, number)
        cells.fill(log.after_write(number))

    def _check(self, earlier: int, me: int, number: int) -> None:
        log = self._log
        if self._clocks.rows[me, log.who[earlier]] >= log.when[earlier]:
            return
        before, now = log.entry(earlier), log.entry(number)
        if before.proxy == now.proxy == "atomics":
            return
        # A bulk load of the same program has ended before anything that follows it begins.
        if before.strands is now.strands and before.proxy == "bulk" and before.kind == "load":
            return
        self._race(earlier, number)

    def _record(
        self, agent: Agent, s: Strands, row: int, kind: Literal["load", "store"], proxy: Proxy, span: Span
    ) -> int:
        log, rows = self._log, self._clocks.rows
        function, line = self._machine.place(agent)
        clock = int(rows[row, row])
        lead = int(rows[s.leader, s.leader])
        key = (row, clock, lead, line, kind, proxy)
        outlined = outline(span)
        number = log.find(key, outlined)
        if number:
            return number
        if len(log.who) > LIMIT:
            log.clear()
            self._memory.clear()
        return log.add(key, row, clock, Entry(agent, s, kind, proxy, function, line, lead, [outlined]))

    # ---------------------------------------------------------------------------------------------------------- reporting
    def _race(self, earlier: int, later: int) -> None:
        log, machine = self._log, self._machine
        if machine.gave_up:
            return  # a wait has ended without what it waited for, and that is reported
        first, second = log.entry(earlier), log.entry(later)
        here = second.spans[-1]
        race = Race(
            earlier=first.access(first.touching(here), machine.span_name),
            later=second.access(here, machine.span_name),
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
        first, second = self._log.entry(earlier), self._log.entry(later)
        if first.strands == second.strands:
            return ()
        sent = self._names(first.agent, self._log.signals(first.strands, earlier))
        seen = self._names(second.agent, self._log.waits(second.strands))
        return (
            f"since then, rank {first.agent.rank}, {first.agent.name} has signalled: {sent or 'nothing'}",
            f"until then, rank {second.agent.rank}, {second.agent.name} has waited for: {seen or 'nothing'}",
        )

    def _names(self, agent: Agent, atomics: list[Atomic]) -> str:
        names = dict.fromkeys(self._machine.name_of(agent, a.address) for a in reversed(atomics))
        return ", ".join(list(names)[:4])
