"""Translation validation: an emitted file, run on simulated ranks, does what its lowered plan says, event by event.

Takes: a lowered plan, and the file that was emitted from it, loaded.
Gives: `Validation`: what was compared, what the file leaves out and why it may, and what differs.
Knows: the lowered plan's ops, addresses of a workspace, the simulated backend's observer.
Never knows: how a file is emitted, or why a plan is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ir.lowered import Lowered
from tilelink.ir.topology import Device
from tilelink.runtime.call import Loaded
from tilelink.validation.comparison import Comparison
from tilelink.validation.expanding import opaque
from tilelink.validation.report import Difference, Validation
from tilelink.validation.running import Run, run

__all__ = ["Difference", "Validation", "compared", "run", "validate"]


def validate(
    name: str,
    lowered: Lowered,
    loaded: Sequence[Loaded],
    arguments: Sequence[Sequence[torch.Tensor]],
    *,
    device: Device | None = None,
    calls: int | None = None,
) -> Validation:
    """Run what was emitted for a plan, and compare all that it does with the plan.

    Args:
        name: of the operator.
        lowered: what it is to do.
        loaded: by rank, what runs.
        arguments: by rank, contiguous tensors; what they hold decides what the plan leaves to data.
        device: what ranks run on, instead of what the plan was made for.
        calls: how many, one after the other; None: one more than there are slots, so that one of them comes again.
    """
    raw = opaque(lowered)
    if raw is not None:
        return Validation(name, 0, opaque=raw)
    done = run(lowered, loaded, arguments, calls or lowered.slots + 1, device=device)
    return compared(name, lowered, loaded[0], done)


def compared(name: str, lowered: Lowered, loaded: Loaded, done: Run) -> Validation:
    """What a run did beside what the plan says."""
    comparison = Comparison(lowered, loaded.plan, loaded.source, done)
    found = tuple(comparison.all())
    tally = comparison.tally
    elided = tuple((what, count) for what, count in sorted(tally.elided.items()) if count)
    return Validation(name, done.calls, tuple(sorted(tally.compared.items())), elided, found)
