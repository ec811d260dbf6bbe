"""A trace as spans of time: who did what from when to when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from tilelink.ir.kernel import KernelSource
from tilelink.ir.plan import Plan
from tilelink.runtime.simulated.machine import Record

Kind = Literal["compute", "compute + communicate", "communicate", "wait", "set up"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Span:
    """Microseconds `begin` to `end`. `line`: of the emitted file, 0 for none. `detail`: flag or bytes."""

    begin: float
    end: float
    kind: Kind
    name: str
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What one worker (`worker` counts within its kernels) or, without one, one stream of a rank did, in order.

    `sm`: the multiprocessor that ran the worker, where that is known; `title`: of what is no worker and no stream.
    """

    rank: int
    stream: int
    worker: int | None
    spans: tuple[Span, ...]
    sm: int | None = None
    title: str = ""

    @property
    def label(self) -> str:
        """The steps that ran here."""
        if self.title:
            return self.title
        if self.worker is None and any(s.kind == "compute" for s in self.spans):
            return "library"
        if self.worker is None:
            return "main stream" if self.stream == 0 else "copy engine"
        return ", ".join(dict.fromkeys(s.name for s in self.spans if s.kind not in ("wait", "set up")))

    @property
    def place(self) -> str:
        """Where it ran."""
        if self.worker is None:
            return self.label if self.title else f"{self.label}, stream {self.stream}"
        return f"worker {self.worker}" + (f" on SM {self.sm}" if self.sm is not None else "")


def lanes_of(records: Iterable[Record], plan: Plan, source: KernelSource) -> tuple[Lane, ...]:
    """Lanes by rank, streams before workers.

    Args:
        records: of a simulated run of the plan.
        plan: says which steps move and which compute.
        source: says which functions of the emitted file do so; all others begin or end a call.
    """
    steps = _functions(plan, source)
    split: dict[tuple[int, int, int | None], list[Record]] = {}
    for r in records:
        if r.stream >= 0:
            split.setdefault((r.rank, r.stream, r.worker), []).append(r)
    spans: dict[tuple[int, int, int | None], list[Span]] = {}
    for (rank, stream, worker), mine in split.items():
        for function, span in _spans(mine, worker, steps):
            # The one-block kernels around a call are the stream's own doing.
            at = worker if function in steps else None
            spans.setdefault((rank, stream, at), []).append(span)
    order = sorted(spans, key=lambda k: (k[0], k[2] is not None, k[1], -1 if k[2] is None else k[2]))
    return tuple(Lane(*k, tuple(sorted(spans[k], key=lambda s: (s.begin, s.end)))) for k in order)


def _functions(plan: Plan, source: KernelSource) -> dict[str, tuple[str, Kind]]:
    """Emitted function -> the steps that run in its workers, and what they do."""
    together = {s.path: [s.path] for s in plan.steps if s.into is None}
    for s in plan.steps:
        if s.into is not None:
            together[s.executor].append(s.path)
    found: dict[str, tuple[str, Kind]] = {}
    for paths in together.values():
        found |= dict.fromkeys(paths, (" + ".join(paths), kind_of(plan, *paths)))
    return {function: found[path] for function, path in source.functions}


def kind_of(plan: Plan, *paths: str) -> Kind:
    """What steps do that run in the same workers."""
    moving = [plan.step(path).copies for path in paths]
    if all(moving):
        return "communicate"
    telling = any(g.path in paths and g.action == "notify" and g.to != "self" for g in plan.signals)
    return "compute + communicate" if any(moving) or telling else "compute"


def _spans(records: list[Record], worker: int | None, steps: Mapping[str, tuple[str, Kind]]) -> list[tuple[str, Span]]:
    """Spans with the function that they come from."""
    found: list[tuple[str, Span]] = []
    if worker is None:
        found += [("", Span(r.time, r.until, "communicate", "copy", 0, r.detail)) for r in records if r.what == "copy"]
        found += [("", Span(r.time, r.until, "compute", r.detail, 0, "")) for r in records if r.what == "compute"]
    for before, after in pairwise(records):
        # A span is named by where it ends, and the last one of a kernel by where it begins.
        names = [r.function for r in (after, before) if r.what not in ("launch", "end")]
        function = names[0] if names else after.kernel
        name, kind = steps.get(function, (function or "stream", "set up"))
        if before.what == "wait" and after.what == "resume":
            kind = "wait"
        elif worker is None or before.what == "end" or after.what == "launch":
            continue
        found.append((function, Span(before.time, after.time, kind, name, after.line, after.detail)))
    return [(function, s) for function, s in found if s.end > s.begin]
