"""A trace as spans of time: who did what from when to when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tilelink.ir.plan import Plan
from tilelink.runtime.simulated.records import Record

Kind = Literal["compute", "communicate", "wait", "set up"]
KINDS: tuple[Kind, ...] = ("compute", "communicate", "wait", "set up")


@dataclass(frozen=True, slots=True)
class Span:
    """Simulated microseconds `begin` to `end`. `line`: of the emitted file, 0 for none. `detail`: word or bytes."""

    begin: float
    end: float
    kind: Kind
    name: str
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What one worker (`worker` counts within its kernels) or, without one, one stream of a rank did, in order."""

    rank: int
    stream: int
    worker: int | None
    spans: tuple[Span, ...]

    @property
    def label(self) -> str:
        """The steps that ran here."""
        if self.worker is None:
            return "main stream" if self.stream == 0 else "copy engine"
        return ", ".join(dict.fromkeys(s.name for s in self.spans if s.kind in ("compute", "communicate")))


def lanes_of(records: Iterable[Record], plan: Plan) -> tuple[Lane, ...]:
    """Lanes by rank, streams before workers.

    Args:
        records: of a simulated run of the plan.
        plan: says which functions of the emitted file move and which compute; all others begin or end a call.
    """
    kinds = _kinds(plan)
    split: dict[tuple[int, int, int | None], list[Record]] = {}
    for r in records:
        if r.stream >= 0:
            split.setdefault((r.rank, r.stream, r.worker), []).append(r)
    spans: dict[tuple[int, int, int | None], list[Span]] = {}
    for (rank, stream, worker), mine in split.items():
        for span in _spans(mine, worker, kinds):
            # The one-block kernels around a call are the stream's own doing.
            at = None if span.kind == "set up" or (span.kind == "wait" and span.name not in kinds) else worker
            spans.setdefault((rank, stream, at), []).append(span)
    order = sorted(spans, key=lambda k: (k[0], k[2] is not None, k[1], -1 if k[2] is None else k[2]))
    return tuple(Lane(*k, tuple(sorted(spans[k], key=lambda s: (s.begin, s.end)))) for k in order)


def _kinds(plan: Plan) -> dict[str, Kind]:
    """Emitted function -> what it does."""
    found: dict[str, Kind] = {
        s.path.replace(".", "_"): "compute" if s.step.program.movement is None else "communicate" for s in plan.steps
    }
    return {k.name: "compute" for k in plan.kernels} | found


def _spans(records: list[Record], worker: int | None, kinds: Mapping[str, Kind]) -> list[Span]:
    found = [
        Span(r.time, r.until, "communicate", "copy", 0, r.detail) for r in records if r.what == "copy" and worker is None
    ]
    for before, after in pairwise(records):
        if before.what == "wait" and after.what == "resume":
            found.append(_span(before, after, "wait", after.function or "stream"))
        elif worker is not None and before.what != "end" and after.what != "launch":
            names = [r.function for r in (before, after) if r.what not in ("launch", "end")] or [after.kernel]
            found.append(_span(before, after, _kind(names, kinds), " + ".join(dict.fromkeys(names))))
    return [s for s in found if s.end > s.begin]


def _span(before: Record, after: Record, kind: Kind, name: str) -> Span:
    return Span(before.time, after.time, kind, name, after.line, after.detail)


def _kind(names: list[str], kinds: Mapping[str, Kind]) -> Kind:
    """Of what ran between two records, by the functions they come from: moving only where nothing computes."""
    found = [kinds.get(n, "set up") for n in names]
    return "compute" if "compute" in found else found[-1]
