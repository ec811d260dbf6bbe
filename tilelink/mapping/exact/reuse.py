"""Memory that is used again in the next call: whether everybody is through with it, whatever data says."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Move, Store, walk
from tilelink.ir.verdict import Proof
from tilelink.mapping.exact.calls import call_of
from tilelink.mapping.exact.events import Event
from tilelink.mapping.exact.findings import Exact
from tilelink.mapping.exact.tiles import Outside, Sizes

CALLS = 2


def reused(plan: Plan, fewer: Plan) -> Proof | None:
    """Show that a plan which is right may do with fewer slots: in the next call nobody writes what others still use in this
    one, and nobody who still waits for a word takes the next call's for it; None: somebody may.

    All accesses of a step stand for one another, on all ranks: this shows less than `equivalent` does, of more plans.

    Args:
        fewer: the plan, with fewer slots of some buffers or of all, and nothing else changed.

    Raises:
        NotExact: the world is too large.
    """
    sizes = Sizes(fewer)
    try:
        exact = Exact(fewer, sizes, CALLS, call_of(sizes, outline=True))
    except Outside:
        return None
    exact.connect()
    if not exact.call.enters or not nx.is_directed_acyclic_graph(exact.graph):
        return None
    exact.reach()
    turns = fewer.schedule.slots == plan.schedule.slots
    again = [
        b.tensor for b, one in zip(plan.buffers, fewer.buffers, strict=True) if b.slots > (one.slots if turns else 1)
    ]
    pairs = [_of_buffer(exact, tensor) for tensor in again]
    if not turns:
        pairs += [_of_words(exact, c.name) for c in fewer.channels]
    for before, after in pairs:
        used = sum(1 << at for at in before)
        if any(exact.known[at + exact.events] & used != used for at in after):
            return None
    text = f"what a call does with {', '.join(f'`{t}`' for t in again)} comes before what the next one writes there"
    return Proof("reused", f"{text}, on {sizes.ranks} ranks, by the graph of {exact.events} events a call", 0.0)


def _of_buffer(exact: Exact, tensor: str) -> tuple[set[int], set[int]]:
    """Events that touch it, and those that write it."""
    touch, write = set[str](), set[str]()
    for step in exact.plan.steps:
        names = {step.step.binding(p.name).tensor for p in step.step.program.params}
        touch |= {step.path} if tensor in names else set[str]()
        write |= {step.path} if tensor in _written(step) else set[str]()
    touched = {at for at, e in enumerate(exact.call.events) if _accesses(e, touch, tensor, writing=False)}
    return touched, {at for at, e in enumerate(exact.call.events) if _accesses(e, write, tensor, writing=True)}


def _written(step: StepPlan) -> Iterator[str]:
    for op in walk(step.step.program.body):
        if isinstance(op, (Store, Move)):
            yield step.step.binding(op.param).tensor


def _accesses(event: Event, paths: set[str], tensor: str, *, writing: bool) -> bool:
    """A tile of one of the steps, or what the host, or a copy engine, does to the tensor."""
    found = event.writes if writing else [*event.reads, *event.writes]
    named = any(a.instance[0].removesuffix("@stage") == tensor for a in found)
    return named or (event.kind == "access" and event.path in paths)


def _of_words(exact: Exact, name: str) -> tuple[set[int], set[int]]:
    """Events that wait for words of a channel, and those that raise them, with those of which data decides the words."""
    said = {(s.path, s.op.param) for s in exact.plan.signals if s.channel == name}

    def of(kind: str) -> set[int]:
        return {
            at
            for at, e in enumerate(exact.call.events)
            if any(w[0] == name for w in (e.waits if kind == "wait" else e.raises))
            or (e.kind == kind and (e.path, e.what) in said)
        }

    return of("wait"), of("notify")
