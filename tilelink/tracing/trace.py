"""A traced call: who did what when, on every rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tilelink.ir import Shown
from tilelink.tracing.chrome import write_trace
from tilelink.tracing.spans import KINDS, Kind, Lane
from tilelink.tracing.timeline import timeline_svg

SIMULATED = "one row per stream, and per SM and the steps it ran; simulated time shows who waits for whom, not how fast a GPU is"
MEASURED = "one row per stream and worker; clocks of the ranks agree to within a few microseconds"


@dataclass(frozen=True, slots=True)
class Total:
    """Microseconds that one worker, or one stream (`worker` None), spent; `idle`: while the call ran and it did nothing."""

    rank: int
    stream: int
    worker: int | None
    sm: int | None
    label: str
    kinds: tuple[tuple[Kind, float], ...]
    idle: float

    def of(self, *kinds: Kind) -> float:
        return sum(time for kind, time in self.kinds if kind in kinds)


@dataclass(frozen=True, slots=True, repr=False)
class Trace(Shown):
    """A traced call of an operator. Times are microseconds since its begin, on one clock for all ranks.

    Attributes:
        lanes: by rank, streams before workers.
        backend: `simulated`, where times are simulated ones, `peer` or `nvshmem`.
        ms: of a traced call, of the slowest rank; `ms_untraced`: of one that is not traced, measured alternately; None where
            clocks are simulated, which tracing does not slow.
    """

    title: str
    backend: str
    lanes: tuple[Lane, ...]
    ms: float
    ms_untraced: float | None

    def __repr__(self) -> str:
        ranks = len({lane.rank for lane in self.lanes})
        return (
            f"<trace of {self.title}: {ranks} ranks, {len(self.lanes)} lanes, {self.ms:.3g} ms, backend {self.backend}>"
        )

    @property
    def cost(self) -> float:
        """What tracing costs, as a part of the untraced time."""
        return self.ms / self.ms_untraced - 1 if self.ms_untraced else 0.0

    @property
    def span(self) -> float:
        """Microseconds from the first begin to the last end."""
        return max((s.end for lane in self.lanes for s in lane.spans), default=0.0)

    def totals(self) -> tuple[Total, ...]:
        """Waiting, computing and communicating per worker (one per SM) and per stream."""
        found: list[Total] = []
        for lane in self.lanes:
            kinds: tuple[tuple[Kind, float], ...] = tuple(
                (k, sum(s.end - s.begin for s in lane.spans if s.kind == k)) for k in KINDS
            )
            idle = self.span - sum(time for _, time in kinds)
            found.append(Total(lane.rank, lane.stream, lane.worker, lane.sm, lane.label, kinds, idle))
        return tuple(found)

    def svg(self, title: str | None = None) -> str:
        """The timeline."""
        simulated = self.backend == "simulated"
        axis, note = ("simulated time, µs", SIMULATED) if simulated else ("µs", MEASURED)
        return timeline_svg(self.lanes, title or self.title, note, axis=axis)

    def picture(self, path: Path | str, title: str | None = None) -> Path:
        """Write the timeline as SVG, its folder made if need be."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.svg(title), encoding="utf-8")
        return path

    def chrome(self, path: Path | str) -> Path:
        """Write it for ui.perfetto.dev and chrome://tracing, as JSON, its folder made if need be."""
        return write_trace(Path(path), self.lanes)


def together(parts: Iterable[tuple[Lane, ...]]) -> tuple[Lane, ...]:
    """The lanes of all ranks, on one clock that begins with the first of them."""
    lanes = [lane for part in parts for lane in part]
    begin = min((s.begin for lane in lanes for s in lane.spans), default=0.0)
    return tuple(
        replace(lane, spans=tuple(replace(s, begin=s.begin - begin, end=s.end - begin) for s in lane.spans))
        for lane in sorted(lanes, key=lambda lane: lane.rank)
    )
