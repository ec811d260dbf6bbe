"""`Operator.trace`: a call of the traced variant, and what it wrote down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilelink.runtime.session import Session
from tilelink.tracing import Trace, lanes_of_events, together
from tilelink.tuning import interleaved

ROUNDS = 7
"""In which the traced and the untraced call take turns, where time is real."""


def traced_call(session: Session, title: str, plain: Callable[[], Any], traced: Callable[[], Any]) -> Trace:
    """Time both variants, then trace one call. Collective.

    Args:
        traced: makes a call and gives what it was made with (`runtime.call.Prepared`).
    """
    world = session.world
    rounds = 1 if world.topology.world == "simulated" else ROUNDS
    times, missing = interleaved(world, {"plain": plain, "traced": traced}, rounds, lambda: None)
    assert not missing, missing
    ready = traced()
    for kept in ready.slots:
        kept.events.clear()
    world.barrier()
    ready = traced()
    world.barrier()
    # The workspace has moved on to the next slot.
    slot = (ready.workspace.calls - 1) % ready.plan.schedule.slots
    lanes = lanes_of_events(world, ready.plan, ready.loaded.source, ready.slots[slot].events)
    return Trace(
        title=title,
        world=world.topology.world,
        lanes=together(world.agree(lanes)),
        ms=times["traced"].median,
        ms_untraced=times["plain"].median,
    )
