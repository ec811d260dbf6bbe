"""`Operator.trace`: a call of the traced variant, and what it wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tilelink.pipeline.operator import Operator
from tilelink.pipeline.prepared import Prepared, bind_here
from tilelink.runtime.refusals import no_kernels
from tilelink.runtime.session import Session
from tilelink.tracing import Trace, lanes_of_events, together
from tilelink.tuning.measuring import interleaved

ROUNDS = 7
"""In which the traced and the untraced call take turns."""


def traced_call(operator: Operator, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> Trace:
    """Trace one call; on GPUs behind some that are timed, traced and not. Collective; arguments as of `Operator.trace`."""
    if session.backend.only_references:
        raise no_kernels()
    operator = operator.calls.tiled(bind_here(operator, session, tensors, given))
    backend = session.backend
    prepared: Any = Prepared(operator, session, tensors, (), given, traced=True)
    traced = partial(prepared.run, tensors)
    if backend.topology.backend == "simulated":
        # Simulated clocks do not notice that somebody writes down what they say: one call says all.
        ms, untraced = max(backend.agree(backend.timed(traced))), None
    else:
        plain = Prepared(operator, session, tensors, (), given)
        times, missing = interleaved(backend, {"plain": partial(plain.run, tensors), "traced": traced}, ROUNDS)
        assert not missing, missing
        ms, untraced = times["traced"].median, times["plain"].median
        traced()
        for kept in prepared.slots:
            kept.events.clear()
        backend.barrier()
        traced()
        backend.barrier()
    # The workspace has moved on to the next slot.
    slot = (prepared.workspace.calls - 1) % prepared.plan.schedule.slots
    lanes = lanes_of_events(backend, prepared.plan, prepared.loaded.source, prepared.slots[slot].events)
    sizes = " ".join(f"{name}={size}" for name, size in prepared.plan.sizes)
    return Trace(
        title=f"{operator.name}: {sizes}",
        backend=backend.topology.backend,
        lanes=together(backend.agree(lanes)),
        ms=ms,
        ms_untraced=untraced,
    )
