"""Orders that a plan keeps without some of its signals, whatever data says."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Proof
from tilelink.mapping.exact.calls import call_of
from tilelink.mapping.exact.events import Event
from tilelink.mapping.exact.findings import Exact
from tilelink.mapping.exact.outline import SomeSignal
from tilelink.mapping.exact.tiles import NotExact, Outside, Sizes


def implied(plan: Plan, without: Plan) -> Proof | None:
    """Show that a plan which is right orders all accesses of a call as before without some signals; None: it may not.

    Where `equivalent` has to know every access, this looks at the orders that the signals made, each of which has to be
    made by others. So data may decide what is accessed, and how many tiles there are.

    Args:
        without: the plan, with signals left out or with words of a narrower scope, and nothing else changed.

    Raises:
        NotExact: data decides what the signals are that were left out, or the world is too large.
    """
    try:
        before, after = _outlined(plan), _outlined(without)
    except Outside:
        return None
    unknown = [*before.call.unknown, *after.call.unknown]
    for one in _concerned(plan, without):
        if one in unknown:
            raise NotExact(f"data decides which words of `{one[1].param}` these are")
    if [_place(e) for e in before.call.events] != [_place(e) for e in after.call.events]:
        return None
    if not nx.is_directed_acyclic_graph(after.graph):
        return None
    after.reach()
    kept = set(_edges(after))
    lost = [edge for edge in _edges(before) if edge not in kept]
    for told, waiting in lost:
        if not all(after.ordered(told, then) for then in _next(after, waiting)):
            return None
    text = f"all orders of {len(lost)} signals in a call are made by others too, on {plan.topology.ranks} ranks"
    return Proof("implied", f"{text}, by the graph of {after.events} events", 0.0)


def _outlined(plan: Plan) -> Exact:
    sizes = Sizes(plan)
    exact = Exact(plan, sizes, 1, call_of(sizes, outline=True))
    exact.connect()
    return exact


def _concerned(plan: Plan, without: Plan) -> Iterator[SomeSignal]:
    """The signals that were changed, and all others on their channels."""
    signals = [s for s, new in zip(plan.signals, without.signals, strict=True) if s != new]
    channels = {c.name for c, new in zip(plan.channels, without.channels, strict=True) if c != new}
    channels |= {s.channel for s in signals if s.channel is not None}
    for s in plan.signals:
        if s in signals or s.channel in channels:
            yield s.path, s.op


def _place(event: Event) -> object:
    return event.rank, event.executor, event.path, event.kind, event.loc, event.tile, event.what


def _edges(exact: Exact) -> Iterator[tuple[int, int]]:
    """Who tells whom by a word."""
    for word in exact.graph:
        if isinstance(word, tuple):
            for told in exact.graph.predecessors(word):
                for waiting in exact.graph.successors(word):
                    assert isinstance(told, int)
                    assert isinstance(waiting, int)
                    yield told, waiting


def _next(exact: Exact, waiting: int) -> Iterator[int]:
    """What comes first behind a wait and is none: until there nobody has to know anything."""
    for then in exact.graph.successors(waiting):
        if isinstance(then, int):
            if exact.call.events[then].kind == "wait":
                yield from _next(exact, then)
            else:
                yield then
