"""The report of a run that stands still: who waits where, for what, with which values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import triton.language as tl

from tilelink.errors import Loc, Note, TilelinkError, whole_line
from tilelink.runtime.simulated.agents import Agent, chain

_PACKAGE = str(Path(__file__).parents[2]) + "/"
_HOST_FRAMES = (_PACKAGE, "/greenlet/", "/contextlib.py", "/functools.py")
"""Files whose lines are not the user's."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One agent of a standstill. `line`: the innermost of the emitted file; `loc`: the user's line that it comes from, or
    the emitted one. `helpers`: the functions that the kernel is in, outermost first."""

    rank: int
    agent: str
    worker: int | None
    kernel: str
    file: str
    line: int
    helpers: tuple[str, ...]
    awaits: str
    values: tuple[tuple[str, int], ...]
    """Scalars of the emitted function at that line."""
    loc: Loc | None = None

    def __str__(self) -> str:
        through = f" in {' > '.join(self.helpers)}" if self.helpers else ""
        values = ", ".join(f"{name}={value}" for name, value in self.values)
        return f"rank {self.rank}, {self.agent}{through}: {self.awaits}" + (f" ({values})" if values else "")


class StandstillError(TilelinkError):
    """TL501. `waiting`: every agent, for tools and tests."""

    def __init__(self, waiting: tuple[Waiting, ...], total: int) -> None:
        self.waiting = waiting
        ranks = sorted({w.rank for w in waiting})
        notes, seen = [], None
        # Programs first: streams and hosts wait for them. A line that many wait at is shown once.
        for place in sorted(waiting, key=lambda w: (w.worker is None, w.file, w.line)):
            loc = place.loc if (place.file, place.line) != seen else None
            seen = (place.file, place.line)
            notes.append(Note(str(place), loc))
        why = "every one of them waits for a signal, a copy or an SM that only another waiting one could give"
        hint = "look for the wait whose signal is never sent; `verify` proves this before a launch"
        gone = [str(rank) for rank in range(total) if rank not in ranks]
        if gone and all(w.agent == "host" for w in waiting):
            why = f"they wait in a call that all ranks make, and rank {', rank '.join(gone)} has returned"
            hint = "make the same calls on every rank, or pass operators the group of those that make them"
        super().__init__(
            "TL501",
            f"the simulation stands still: {len(waiting)} agents of ranks {ranks} wait, and nobody can go on",
            why=why,
            hint=hint,
            notes=tuple(notes),
        )


def report(agents: list[Agent], codes: set[CodeType], ranks: int) -> StandstillError:
    return StandstillError(tuple(_waiting(agent, codes) for agent in agents), ranks)


def _waiting(agent: Agent, codes: set[CodeType]) -> Waiting:
    awaits = agent.wait.text() if agent.wait is not None else "could run"
    frame = agent.coroutine.gr_frame if agent.coroutine is not None else None
    if agent.launch is None:
        file, line = _host_line(frame) if agent.stream is None else ("", 0)
        loc = whole_line(file, line) if line else None
        return Waiting(agent.rank, agent.name, None, "", file, line, (), awaits, (), loc)
    steps = chain(frame, codes)
    place = next((step for step in steps if step.file == agent.launch.file), None)
    return Waiting(
        rank=agent.rank,
        agent=agent.name,
        worker=agent.worker,
        kernel=agent.launch.kernel,
        file=agent.launch.file,
        line=place.line if place is not None else 0,
        helpers=tuple(s.function for s in reversed(steps[:-1])),
        awaits=awaits,
        values=_scalars(place.frame) if place is not None else (),
        loc=agent.launch.location(place.line) if place is not None else None,
    )


def _host_line(frame: FrameType | None) -> tuple[str, int]:
    """The line of the user's program that called into the backend."""
    while frame is not None:
        if not any(part in frame.f_code.co_filename for part in _HOST_FRAMES):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _scalars(frame: FrameType) -> tuple[tuple[str, int], ...]:
    values = ((name, _integer(value)) for name, value in frame.f_locals.items())
    return tuple((name, value) for name, value in values if value is not None)


def _integer(value: Any) -> int | None:
    """Whole numbers only: pointers and blocks say nothing to a reader."""
    if isinstance(value, tl.tensor):
        ty: Any = value.type
        scalar = not ty.is_block() and not value.dtype.is_ptr() and value.dtype.is_int()
        return int(value.handle.data.item()) if scalar else None
    if isinstance(value, tl.constexpr):
        value = value.value
    return int(value) if isinstance(value, int) else None
