"""What one tile of a step does whatever data says: its signals in order, and that something is accessed between them.

What data decides is left out: a wait of it brings no order, and a signal whose words are not known raises none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilelink.errors import Loc
from tilelink.ir.program import Bounds, Holder, If, Load, Loop, Move, Notify, Op, Store, Tiles, Wait, walk
from tilelink.mapping.exact.events import Access, Recorder
from tilelink.mapping.exact.tiles import NotExact, TileRun

SomeSignal = tuple[str, Wait | Notify]
"""By the path of its step, and where it stands there."""


@dataclass(slots=True)
class Signals(Recorder):
    """Of signals and accesses. `unknown`: signals of which data decides the words, or whether there are any."""

    unknown: list[SomeSignal] = field(default_factory=list[SomeSignal])

    def access(self, path: str, tile: tuple[int, ...], kind: str, loc: Loc, found: Access) -> None:
        del kind, found
        self.touch(path, tile, loc)

    def touch(self, path: str, tile: tuple[int, ...], loc: Loc | None) -> None:
        """Something is accessed here."""
        last = self.events[-1] if self.events else None
        if last is None or (last.kind, last.path) != ("access", path):
            self._add(path, tile, "access", loc, "")

    def _notes_all(self) -> bool:
        """Data may decide of which words it is: it keeps its place among the accesses."""
        return True


@dataclass(slots=True)
class Outline(TileRun):
    """A tile, or every tile of those that data makes: then nothing is known of its positions."""

    @property
    def _signals(self) -> Signals:
        assert isinstance(self.recorder, Signals)
        return self.recorder

    def any_tile(self) -> None:
        self.names |= self.step.step.compiled
        self._body(self.step.step.program.body)

    def _op(self, op: Op) -> None:
        if isinstance(op, (Load, Store, Move)):
            self._signals.touch(self.step.path, self.tile, op.loc)
        elif isinstance(op, (Tiles, Loop, If, Wait, Notify)):
            self._known(lambda: TileRun._op(self, op), (op,))
        elif isinstance(op, (Holder, Bounds)):
            self.names.pop(op.name, None)
            self._known(lambda: TileRun._op(self, op), ())

    def _known(self, play: Callable[[], None], ops: Sequence[Op]) -> None:
        """Play something; where data decides it, only that it may be there."""
        before = len(self._signals.events)
        try:
            play()
        except (NotExact, KeyError):
            del self._signals.events[before:]
            for op in walk(tuple(ops)):
                if isinstance(op, (Wait, Notify)):
                    self._signals.unknown.append((self.step.path, op))
                    kind = "wait" if isinstance(op, Wait) else "notify"
                    self._signals.signal(self.step.path, self.tile, kind, op.loc, op.param, [])
                elif isinstance(op, (Load, Store, Move)):
                    self._signals.touch(self.step.path, self.tile, op.loc)
