"""What traced kernels and streams have written down, as lanes of spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from tilelink.ir.kernel import KernelSource, TraceLayout, TraceRole, TraceSite
from tilelink.ir.plan import Launch, Plan
from tilelink.runtime.backend import Backend
from tilelink.runtime.call import CallEvents, KernelEvents
from tilelink.tracing.spans import Kind, Lane, Span, kind_of

AROUND = frozenset({"call_entry", "ready", "call_exit"})
"""Kernels around a call."""
Steps: TypeAlias = Mapping[str, tuple[str, Kind]]
"""Emitted function -> its step, and what that does; functions of none set a call up."""


def lanes_of_events(backend: Backend, plan: Plan, source: KernelSource, events: CallEvents) -> tuple[Lane, ...]:
    """This rank's lanes, in microseconds of rank 0's clock. Collective.

    Kernels and streams are to be done. The kernels around a call belong to the main stream's lane.

    Args:
        source: the traced variant, which says whose step a function is.
        events: what a call of it has written down on this rank.
    """
    steps: Steps = {function: (path, kind_of(plan, path)) for function, path in source.functions}
    skew = backend.skew()
    streams = {h.kernel: 0 if h.stream == 0 else h.stream + 1 for h in plan.host if isinstance(h, Launch)}
    lanes: list[Lane] = []
    main: list[Span] = []
    for name, kernel in events.kernels.items():
        for worker, (sm, intervals) in enumerate(_workers(steps, kernel)):
            spans = _spans(intervals, skew)
            if name in AROUND:
                main += spans
            elif spans:
                lanes.append(Lane(backend.rank, streams[name], worker, spans, sm))
    if main:
        lanes.append(Lane(backend.rank, 0, None, tuple(sorted(main, key=lambda s: s.begin))))
    lanes += _stream_lanes(backend, events, skew)
    return tuple(sorted(lanes, key=lambda a: (a.worker is not None, a.stream, a.worker or 0)))


def _workers(steps: Steps, kernel: KernelEvents) -> list[tuple[int, list[Span]]]:
    """Each worker's multiprocessor and what it did, in nanoseconds: of two that overlap the one behind is inside the other."""
    layout = kernel.layout
    words = kernel.memory.view(kernel.workers, 1 + layout.turns * kernel.tiles * layout.slots).tolist()
    found: list[tuple[int, list[Span]]] = []
    for worker, row in enumerate(words):
        intervals: list[Span] = []
        for role in _roles_of(layout, worker):
            first = role.turn * kernel.tiles
            tiles = (row[1 + k * layout.slots : 1 + (k + 1) * layout.slots] for k in range(first, first + kernel.tiles))
            intervals += [i for tile in tiles if tile[0] for i in _tile(steps, role, tile)]
        found.append((row[0], intervals))
    return found


def _roles_of(layout: TraceLayout, worker: int) -> list[TraceRole]:
    """What a worker does: one thing, or several in turn."""
    for role in layout.roles:
        if role.workers is None:
            break
        if worker < role.workers:
            return [role]
        worker -= role.workers
    return [role for role in layout.roles if role.workers is None]


def _tile(steps: Steps, role: TraceRole, slots: Sequence[int]) -> list[Span]:
    name, kind = steps.get(role.function, (role.function, "set up"))
    begins = {role.function: slots[0]}
    found = [Span(slots[0], slots[1], kind, name, 0, "")]
    for site in role.sites:  # those inside a fused function follow it
        begin, end = slots[site.slot], slots[site.slot + 1]
        name, kind = steps.get(site.function, (site.function, "set up"))
        if site.what == "part" and begin:
            begins[site.function] = begin
            found.append(Span(begin, end, kind, name, 0, _where(site)))
        elif site.what == "wait" and begin:
            found.append(Span(begin, end, "wait", name, 0, _where(site)))
        elif site.what == "waits" and end and site.function in begins:
            # How long all of them took is known, and not when each was: they are shown together.
            at = begins[site.function]
            found.append(Span(at, at + end, "wait", name, 0, f"in pieces, {_where(site)}"))
    return found


def _where(site: TraceSite) -> str:
    return str(site.loc) if site.loc is not None else ""


def _spans(intervals: list[Span], skew: int) -> tuple[Span, ...]:
    """What is on top, from moment to moment, in microseconds: of two that overlap the inner one."""
    edges = sorted({t for i in intervals for t in (i.begin, i.end)})
    found: list[Span] = []
    order = sorted(range(len(intervals)), key=lambda k: intervals[k].begin)
    live: list[int] = []
    at, before = 0, -1
    for begin, end in pairwise(edges):
        while at < len(order) and intervals[order[at]].begin <= begin:
            live.append(order[at])
            at += 1
        live = [k for k in live if intervals[k].end > begin]
        if not live:
            continue
        seen = max(live)
        top = replace(intervals[seen], begin=begin, end=end)
        last = found[-1] if found else None
        if last is not None and last.end == begin and (seen == before or _waits_on(last, top)):
            found[-1] = replace(top, begin=last.begin)
        else:
            found.append(top)
        before = seen
    return tuple(replace(s, begin=(s.begin - skew) / 1000, end=(s.end - skew) / 1000) for s in found)


def _waits_on(last: Span, top: Span) -> bool:
    """Whether one wait goes on; tiles of one step stay apart."""
    return last.kind == top.kind == "wait" and (last.name, last.detail) == (top.name, top.detail)


def _stream_lanes(backend: Backend, events: CallEvents, skew: int) -> list[Lane]:
    stamps = [s for e in events.streams for s in (e.begin, e.end)]
    times = [(t - skew) / 1000 for t in backend.read(stamps)] if stamps else []
    found: dict[int, list[Span]] = {}
    for k, e in enumerate(events.streams):
        span = Span(times[2 * k], times[2 * k + 1], e.kind, e.path, 0, e.detail)
        if span.end > span.begin:
            found.setdefault(e.stream + 1, []).append(span)
    return [Lane(backend.rank, stream, None, tuple(spans)) for stream, spans in found.items()]
