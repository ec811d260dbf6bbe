"""A finding told as a short interleaving: what has to happen so that it goes wrong, and nothing else."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Counterexample, Instant
from tilelink.mapping.exact.events import Event
from tilelink.mapping.exact.findings import Exact, Finding, Moment, examine
from tilelink.mapping.exact.tiles import NotExact
from tilelink.mapping.exact.worlds import described, small_worlds

WAITS = 3
"""How many of the waits before a step are told, the last ones."""


def counterexample(plan: Plan) -> Counterexample | None:
    """What goes wrong in the smallest world in which it does; None: nothing does in a world small enough to look at."""
    for small in (*small_worlds(plan), plan):
        try:
            exact = examine(small)
        except (NotExact, TilelinkError):
            continue
        finding = exact.finding or next(iter(exact.findings), None)
        if finding is not None:
            return _told(exact, finding)
    return None


def _told(exact: Exact, finding: Finding) -> Counterexample:
    steps, edges, missing = _circle(finding) if finding.circle else _pair(exact, finding)
    instants = tuple(_instant(m, late, bool(finding.circle)) for m, late in steps)
    return Counterexample(finding.kind, described(exact.plan), finding.text, instants, tuple(edges), missing)


Steps = list[tuple[Moment, bool]]
"""Moments in order; whether one comes too late."""
Told = tuple[Steps, list[tuple[int, int]], tuple[int, int] | None]


def _circle(finding: Finding) -> Told:
    count = len(finding.circle)
    return [(m, False) for m in finding.circle], [(k, (k + 1) % count) for k in range(count)], None


def _pair(exact: Exact, finding: Finding) -> Told:
    """`second` happens with all that has to happen before it, and `first` only then."""
    steps: Steps = []
    edges: list[tuple[int, int]] = []
    early = finding.second or finding.first
    if early is None:
        return steps, edges, None
    late = finding.first if finding.second is not None else None
    if finding.kind in ("count", "twice") and late is not None:
        return [(late, False), (early, False)], edges, None
    if exact.known:
        _history(exact, early, steps, edges)
    at = len(steps)
    if steps:
        edges.append((at - 1, at))
    steps.append((early, False))
    if late is None or late is early:
        return steps, edges, None
    steps.append((late, True))
    # What happens too late should have been known to what has happened.
    return steps, edges, (at + 1, at)


def _history(exact: Exact, moment: Moment, steps: Steps, edges: list[tuple[int, int]]) -> None:
    """The last waits of the tile, or of the host, and the notifies by which each ended."""
    e = moment.event
    same = [
        f for f in exact.call.events
        if f.waits and (f.rank, f.executor, f.path == "host") == (e.rank, e.executor, e.path == "host")
        and (f.position == e.position or f.path == "host")
    ]  # fmt: skip
    before = [f for f in same if exact.ordered(exact.node(Moment(moment.call, f)), exact.node(moment))]
    for wait in before[-WAITS:]:
        raiser = next((f for f in exact.call.events if set(f.raises) & set(wait.waits) and f.rank != e.rank), None)
        raiser = raiser or next((f for f in exact.call.events if set(f.raises) & set(wait.waits)), None)
        if raiser is not None:
            steps.append((Moment(moment.call, raiser), False))
            edges.append((len(steps) - 1, len(steps)))
        if steps and raiser is None:
            edges.append((len(steps) - 1, len(steps)))
        steps.append((Moment(moment.call, wait), False))


def _instant(moment: Moment, late: bool, never: bool) -> Instant:
    e = moment.event
    path = e.path if e.kind != "host" else "the host"
    does = f"would notify `{e.what}`" if never and e.raises and e.kind != "host" else _does(e)
    return Instant(e.rank, path, e.tile_text, e.loc, f"{does} only now" if late else does, moment.call)


def _does(e: Event) -> str:
    if e.kind == "host":
        return e.what
    if e.waits:
        return f"waits for `{e.what}`"
    if e.raises:
        return f"notifies `{e.what}`"
    done: list[str] = []
    for verb, found in (("reads", e.reads), ("writes", e.writes)):
        names = dict.fromkeys(f"`{a.instance[0]}` of rank {a.instance[1]}" for a in found)
        done += [f"{verb} {name}" for name in names]
    return " and ".join(done) or e.what


__all__ = ["counterexample"]
