"""What a race detector remembers of each access, so that a report can name it and say which edge is missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.clocks import Clocks, Strands
from tilelink.runtime.simulated.observing import Atomic, Block, Proxy, Span
from tilelink.runtime.simulated.raceerror import Access, Missing

SIGNALS = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Accesses that are alike: by one strand, from one line, without a signal or a barrier in between.

    `line`: of the emitted file. `lead`: the leader's clock at that time. `spans`: all of them.
    """

    agent: Agent
    strands: Strands
    kind: Literal["load", "store"]
    proxy: Proxy
    function: str
    line: int
    lead: int
    spans: list[Block]

    def touching(self, other: Block) -> Block:
        """The span that another one meets; the last one in doubt."""
        low, high = other.bounds
        return next((s for s in reversed(self.spans) if s.bounds[0] < high and low < s.bounds[1]), self.spans[-1])

    def access(self, span: Block, name: Callable[[Agent, Block], str]) -> Access:
        launch = self.agent.launch
        return Access(
            rank=self.agent.rank,
            agent=self.agent.name,
            kind=self.kind,
            proxy=self.proxy,
            what=name(self.agent, span),
            function=self.function,
            file=launch.file if launch is not None else "",
            line=self.line,
            loc=launch.location(self.line) if launch is not None else None,
        )


@dataclass(frozen=True, slots=True)
class State:
    """Of some bytes: the access that wrote them last, and those that have read them since, by strand."""

    writer: int
    readers: dict[int, int]


UNTOUCHED = State(0, {})


@dataclass(slots=True)
class AccessLog:
    """Accesses by number, from 1: which strand, at which of its clocks. States by number, 0 is that of untouched bytes."""

    who: list[int] = field(default_factory=lambda: [0])
    when: list[int] = field(default_factory=lambda: [0])
    entries: list[Entry | None] = field(default_factory=lambda: [None])
    states: list[State] = field(default_factory=lambda: [UNTOUCHED])
    atomics: dict[Strands, deque[tuple[int, Atomic]]] = field(default_factory=dict)
    known: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    """What was known by who stored words of 64 bits, by access."""
    _alike: dict[tuple[object, ...], int] = field(default_factory=dict)
    _after: dict[tuple[int, int], int] = field(default_factory=dict)
    _written: dict[int, int] = field(default_factory=dict)

    def find(self, key: tuple[object, ...], span: Block) -> int:
        """The number of an access like this one, or 0."""
        number = self._alike.get(key, 0)
        if number:
            self.entry(number).spans.append(span)
        return number

    def add(self, key: tuple[object, ...], row: int, clock: int, entry: Entry) -> int:
        self.who.append(row)
        self.when.append(clock)
        self.entries.append(entry)
        self._alike[key] = number = len(self.who) - 1
        return number

    def after_write(self, number: int) -> int:
        """The state of bytes that access `number` has written."""
        if number not in self._written:
            self._written[number] = self._add_state(State(number, {}))
        return self._written[number]

    def after_read(self, state: int, number: int, known: np.ndarray) -> int:
        """The state after a further read. Readers that the new one knows are left out: who comes after it, comes after them."""
        after = self._after.get((state, number))
        if after is None:
            before = self.states[state]
            readers = {w: r for w, r in before.readers.items() if known[w] < self.when[r]}
            readers[self.who[number]] = number
            after = state if readers == before.readers else self._add_state(State(before.writer, readers))
            self._after[state, number] = after
        return after

    def _add_state(self, state: State) -> int:
        self.states.append(state)
        return len(self.states) - 1

    def add_atomic(self, strands: Strands, number: int, atomic: Atomic) -> None:
        self.atomics.setdefault(strands, deque(maxlen=SIGNALS)).append((number, atomic))

    def entry(self, number: int) -> Entry:
        found = self.entries[number]
        assert found is not None
        return found

    def clear(self) -> None:
        del self.who[1:], self.when[1:], self.entries[1:], self.states[1:]
        for found in (self.atomics, self.known, self._alike, self._after, self._written):
            found.clear()

    # --------------------------------------------------------------------------------------------------------- the report
    def missing(self, earlier: int, later: int, clocks: Clocks) -> Missing:
        """The edge without which the two are unordered."""
        first, second = self.entry(earlier), self.entry(later)
        row, clock, rows = self.who[earlier], self.when[earlier], clocks.rows
        mine, theirs = second.strands, first.strands
        if mine == theirs:
            return _inside(first, second)
        if rows[mine.threads, row] >= clock:
            return "proxy fence"
        if rows[mine.leader, row] >= clock:
            return "barrier"
        if rows[mine.leader, theirs.leader] >= first.lead:
            return "bulk store wait" if first.proxy == "bulk" else "barrier"
        return self._missing_signal(earlier, first.agent.rank != second.agent.rank, theirs, mine)

    def signals(self, strands: Strands, after: int) -> list[Atomic]:
        """What a program has signalled since access number `after`."""
        return [a for number, a in self.atomics.get(strands, ()) if number > after and a.writes]

    def waits(self, strands: Strands) -> list[Atomic]:
        return [a for _, a in self.atomics.get(strands, ()) if not a.writes or a.acquire]

    def _missing_signal(self, earlier: int, remote: bool, theirs: Strands, mine: Strands) -> Missing:
        sent = {a.address: a for a in self.signals(theirs, earlier)}
        for wait in self.waits(mine):
            signal = sent.get(wait.address)
            if signal is None:
                continue
            if not signal.release:
                return "release"
            if not wait.acquire:
                return "acquire"
            return "scope" if remote and "device" in (signal.scope, wait.scope) else "count"
        return "signal"


def _inside(first: Entry, second: Entry) -> Missing:
    """Of two accesses of one program."""
    if second.proxy == "bulk":
        return "proxy fence"
    return "bulk store wait" if first.proxy == "bulk" else "barrier"


def outline(span: Span) -> Block:
    """A span that is small to keep: of a scatter, all from its first byte to its last."""
    if isinstance(span, Block):
        return span
    low, high = span.bounds
    return Block(low, ((high - low) // span.itemsize,), (span.itemsize,), span.itemsize)
