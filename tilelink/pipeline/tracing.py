"""`Operator.trace`: a call of the traced variant, and what it wrote down."""

from __future__ import annotations

from collections.abc import Sequence
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
    prepared = Prepared(operator, session, tensors, (), given, traced=True)

    def traced() -> Prepared:
        prepared.run(tensors)
        return prepared

    if backend.topology.backend == "simulated":
        # Simulated clocks do not notice that somebody writes down what they say: one call says all.
        ms, untraced = max(backend.agree(backend.timed(traced))), None
        ready: Any = prepared
    else:
        plain = Prepared(operator, session, tensors, (), given)
        runs = {"plain": lambda: plain.run(tensors), "traced": traced}
        times, missing = interleaved(backend, runs, ROUNDS)
        assert not missing, missing
        ms, untraced = times["traced"].median, times["plain"].median
        before: Any = traced()
        for kept in before.slots:
            kept.events.clear()
        backend.barrier()
        ready = traced()
        backend.barrier()
    # The workspace has moved on to the next slot.
    slot = (ready.workspace.calls - 1) % ready.plan.schedule.slots
    lanes = lanes_of_events(backend, ready.plan, ready.loaded.source, ready.slots[slot].events)
    sizes = " ".join(f"{name}={size}" for name, size in prepared.plan.sizes)
    return Trace(
        title=f"{operator.name}: {sizes}",
        backend=backend.topology.backend,
        lanes=together(backend.agree(lanes)),
        ms=ms,
        ms_untraced=untraced,
    )
