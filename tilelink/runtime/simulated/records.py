"""The trace of a run: what a timeline draws and what tests look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

What = Literal["launch", "wait", "resume", "signal", "copy", "compute", "end"]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened, in the order in which it happened (`step`).

    `time`, `until`: simulated microseconds; they differ for a copy and for a library
    function. `stream`: 0 is the main stream, side stream i is
    i + 1. `worker`: None for what a stream itself does. `kernel`: the launched function; `function`: the innermost
    function of the emitted file, `line` its line (0: not in an emitted file). `detail`: the word or buffer and values.
    """

    step: int
    time: float
    until: float
    rank: int
    stream: int
    worker: int | None
    kernel: str
    function: str
    what: What
    line: int
    detail: str


@dataclass(slots=True)
class Recorder:
    """Pass one to `simulate` to keep the trace of the run."""

    records: list[Record] = field(default_factory=list)

    def of_rank(self, rank: int) -> list[Record]:
        return [r for r in self.records if r.rank == rank]

    @property
    def span(self) -> float:
        """Simulated microseconds from the beginning to the end of the run."""
        return max((r.until for r in self.records), default=0.0)
