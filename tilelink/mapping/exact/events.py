"""What happens in a call: events, the memory they touch and the words by which they wait for one another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tilelink.errors import Loc

Box: TypeAlias = "tuple[tuple[int, int], ...]"
"""`(begin, end)` per stored axis."""
Instance: TypeAlias = "tuple[str, int]"
"""(tensor, rank that holds it); `tensor@stage` for the staged copy of an argument."""
Word: TypeAlias = "tuple[str, int, int]"
"""(channel, or `entered` | `ready` | `left`; rank whose word it is; number of the word)."""


@dataclass(frozen=True, slots=True)
class Access:
    instance: Instance
    box: Box


@dataclass(slots=True, eq=False)
class Event:
    """One op of one tile on one rank, or a step of the host.

    `kind`: wait | notify | read | write | copy | host. `executor`: whose worker or stream it is; `position`: of the tile
    in the executor's order.
    """

    rank: int
    executor: str
    path: str
    kind: str
    loc: Loc | None
    position: int = 0
    tile: tuple[int, ...] = ()
    what: str = ""
    reads: list[Access] = field(default_factory=list[Access])
    writes: list[Access] = field(default_factory=list[Access])
    waits: list[Word] = field(default_factory=list[Word])
    raises: list[Word] = field(default_factory=list[Word])
    bell: bool = False
    """It waits for a bell, and resets it."""
    peer: int | None = None
    """The rank that a wait names."""

    @property
    def tile_text(self) -> str:
        return f"({', '.join(str(i) for i in self.tile)})" if self.tile else ""


@dataclass(slots=True)
class Recorder:
    """Events of one strand in order. What happens between two signals is kept together by the line that does it."""

    rank: int
    executor: str
    position: int
    events: list[Event] = field(default_factory=list[Event])
    _segment: dict[tuple[str, str, Loc | None], Event] = field(default_factory=dict[tuple[str, str, Loc | None], Event])
    _written: set[str] = field(default_factory=set[str])

    def access(self, path: str, tile: tuple[int, ...], kind: str, loc: Loc, found: Access) -> None:
        name = found.instance[0]
        if kind == "read" and name in self._written:
            self._close()
        key = path, kind, loc
        event = self._segment.get(key)
        if event is None:
            event = self._segment[key] = self._add(path, tile, kind, loc, name)
        (event.reads if kind == "read" else event.writes).append(found)
        if kind == "write":
            self._written.add(name)

    def signal(
        self,
        path: str,
        tile: tuple[int, ...],
        kind: str,
        loc: Loc,
        what: str,
        words: list[Word],
        peer: int | None = None,
    ) -> None:
        self._close()
        if words or self._notes_all():
            event = self._add(path, tile, kind, loc, what)
            event.peer = peer
            (event.waits if kind == "wait" else event.raises).extend(words)

    def _notes_all(self) -> bool:
        """Whether a signal of no words is an event, too."""
        return False

    def _close(self) -> None:
        self._segment.clear()
        self._written.clear()

    def _add(self, path: str, tile: tuple[int, ...], kind: str, loc: Loc | None, what: str) -> Event:
        event = Event(self.rank, self.executor, path, kind, loc, self.position, tile, what)
        self.events.append(event)
        return event
