"""An observer that writes down what each worker and stream does, in the words of the plan's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilelink.ir.kernel import OF_EVERY_FILE
from tilelink.runtime.simulated.agents import OF_CALL, AccessKind, Agent, Atomic, Proxy, Span, Target, frames
from tilelink.runtime.simulated.races import RaceDetector
from tilelink.validation.events import Event, Kind, Where
from tilelink.validation.places import Places

TILE = "t"
"""What an emitted loop calls the position of its tile."""


@dataclass(frozen=True, slots=True)
class Line:
    """Whose events they are: of a call on a rank, a worker of a kernel, or what a stream does itself (None)."""

    call: int
    rank: int
    stream: int
    kernel: str | None = None
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """What an agent has done: in which call it is, and what the race detector marks."""

    call: int
    inner: object


class Recording(RaceDetector):
    """Collects races, too. `functions`: emitted function -> the path of the loop whose tiles it takes."""

    def __init__(self, functions: dict[str, str]) -> None:
        super().__init__(collect=True)
        self.places = Places()
        self.functions = functions
        self.lines: dict[Line, list[Event]] = {}
        self.strays: list[tuple[Line, Where, str]] = []
        """Accesses of memory that the plan has nothing in."""
        self.calls: dict[int, int] = {}
        """By rank, which call its host is in."""
        self._in: dict[int, int] = {}
        """By agent, the call that it works for."""
        self._agents: list[Agent] = []
        self._polled: dict[int, Atomic] = {}
        self._count = 0

    # ------------------------------------------------------------------------------------------------------- whose turn
    def mark(self, agent: Agent) -> object:
        return _Mark(self._call(agent), super().mark(agent))

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        found = [m for m in marks if isinstance(m, _Mark)]
        if agent.stream is not None:
            if id(agent) not in self._in:
                self._agents.append(agent)  # whose id nobody else gets
            self._in[id(agent)] = max([self._in.get(id(agent), 0), *(m.call for m in found)])
        super().after(agent, [m.inner for m in found])

    def _call(self, agent: Agent) -> int:
        return self.calls.get(agent.rank, 0) if agent.stream is None else self._in.get(id(agent), 0)

    # ----------------------------------------------------------------------------------------------------------- events
    def access(self, agent: Agent, span: Span, proxy: Proxy, kind: AccessKind) -> None:
        self._access(agent, "read" if kind == "load" else "write", span, proxy)
        super().access(agent, span, proxy, kind)

    def atomic(self, agent: Agent, atomic: Atomic) -> None:
        self._polled[id(agent)] = atomic
        if atomic.writes:
            self._signal(agent, atomic)
        super().atomic(agent, atomic)

    def waited(self, agent: Agent, target: Target) -> None:
        super().waited(agent, target)
        if target.comparison == OF_CALL:
            self._access(agent, "read", target.span, "flags", value=target.number)
            return
        place = self.places.find(target.address)
        poll = self._polled[id(agent)]
        wide, name, index = poll.scope == "system", "", 0
        if place is not None:
            name, index = place.name, (target.address - place.start) // place.size
        if place is None or place.kind != "flags" or target.comparison != ">=":
            self._stray(agent, f"waits for memory that is no flag, or compares otherwise than by `{target.comparison}`")
            return
        self._add(
            agent, "await", name, place.rank, place.slot, index, value=target.number, wide=wide, ordered=poll.acquire
        )

    def fence(self, agent: Agent, meaning: str) -> None:
        if meaning == "bulk_store_wait":
            self._add(agent, "drain", "", agent.rank, None, 0)
        elif meaning == "proxy_fence":
            self._add(agent, "fence", "", agent.rank, None, 0)
        super().fence(agent, meaning)

    # --------------------------------------------------------------------------------------------------------- in words
    def _access(self, agent: Agent, kind: Kind, span: Span, how: str, value: int = 0) -> None:
        place, index = self.places.touched(span)
        if place is None:
            # Tables of orders, contexts and descriptors are read only.
            if kind == "write" or self.places.own(span.addresses):
                self._stray(agent, f"{kind}s memory that holds nothing of the plan's")
        elif place.kind in ("data", "ll"):
            self._add(agent, kind, place.name, place.rank, place.slot, index, value=value, how=how)
        elif kind == "write" and place.kind == "flags":
            self._stray(agent, f"stores to flags of `{place.name}` as to any memory")

    def _signal(self, agent: Agent, atomic: Atomic) -> None:
        place = self.places.find(atomic.address)
        if place is None:
            self._stray(agent, "signals where no flag is")
            return
        index, wide = (atomic.address - place.start) // place.size, atomic.scope == "system"
        known = {"flags": "signal", "counts": "count"}
        doorbell: Kind = "await" if agent.worker is None and atomic.acquire else "signal"
        kind: Any = doorbell if place.kind == "doorbells" else known.get(place.kind)
        if kind is None:
            if place.kind != "state":
                self._stray(agent, f"changes `{place.name}` atomically")
                return
            kind = "mark"
        how = "doorbell" if place.kind == "doorbells" else "threads"
        ordered = atomic.acquire if kind == "await" else atomic.release
        self._add(
            agent, kind, place.name, place.rank, place.slot, index,
            value=atomic.after, before=atomic.before, wide=wide, ordered=ordered, how=how,
        )  # fmt: skip

    def _stray(self, agent: Agent, text: str) -> None:
        self.strays.append((self._line(agent), self._where(agent), text))

    def _add(self, agent: Agent, kind: Kind, name: str, rank: int, slot: int | None, index: Any, **more: Any) -> None:
        self._count += 1
        event = Event(self._count, kind, name, rank, slot, index, self._where(agent), **more)
        self.lines.setdefault(self._line(agent), []).append(event)

    def _line(self, agent: Agent) -> Line:
        stream = -1 if agent.stream is None else agent.stream
        kernel = None if agent.launch is None else agent.launch.kernel
        return Line(self._call(agent), agent.rank, stream, kernel, agent.worker)

    def _where(self, agent: Agent) -> Where:
        """The innermost function that takes tiles, or is about to; none while a call begins or ends."""
        if agent.launch is None:
            return Where()
        function, line, path, tile = "", 0, "", None
        for frame in frames(sys._getframe(1), agent.launch.file):
            name = frame.f_code.co_name
            if not function:
                function, line = name, frame.f_lineno
            if name in OF_EVERY_FILE:
                return Where(function, line)
            if name in self.functions and tile is None:
                if TILE in frame.f_locals:
                    path, tile = self.functions[name], int(frame.f_locals[TILE])
                path = path or self.functions[name]
        return Where(function, line, path, tile)
