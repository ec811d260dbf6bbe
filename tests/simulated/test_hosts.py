"""A rank's program is a thread of its own: what torch keeps by thread is not shared, and one rank runs at a time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from tilelink.runtime.simulated import SimulatedBackend, simulate


def test_modes_of_torch_are_a_ranks_own() -> None:
    """Each rank leaves its modes while another one is inside its own."""

    def main(backend: SimulatedBackend) -> list[tuple[bool, bool]]:
        seen = []
        for turn in range(4):
            with (
                torch.set_grad_enabled((turn + backend.rank) % 2 == 0),
                torch.autocast("cpu", enabled=backend.rank == 1),
            ):
                for _ in range(backend.rank + 1):
                    backend.agree(None)
                seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
                for _ in range(2 - backend.rank):
                    backend.agree(None)
        return [*seen, (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))]

    for seed in range(3):
        for rank, seen in enumerate(simulate(main, 2, seed=seed)):
            assert seen == [((turn + rank) % 2 == 0, rank == 1) for turn in range(4)] + [(True, False)]


def test_modes_are_handed_on() -> None:
    def main(backend: SimulatedBackend) -> tuple[bool, bool]:
        del backend
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with torch.no_grad():
        assert simulate(main, 2) == [(False, False)] * 2
    with torch.inference_mode():
        assert simulate(main, 1) == [(False, True)]
    assert simulate(main, 1) == [(True, False)]


class Sum(torch.autograd.Function):
    """Over the ranks; its gradient is the sum of theirs, so ranks meet in the middle of the backward pass."""

    @staticmethod
    def forward(ctx: Any, backend: SimulatedBackend, x: torch.Tensor) -> torch.Tensor:
        ctx.backend = backend
        return torch.stack(backend.agree(x.detach())).sum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, torch.stack(ctx.backend.agree(grads[0])).sum(0)


@pytest.mark.parametrize("seed", range(4))
def test_backward_passes_of_ranks_that_meet_in_them(seed: int) -> None:
    """Each rank's engine works off its own graph only."""

    def main(backend: SimulatedBackend) -> list[float]:
        x = torch.full((2,), backend.rank + 1.0, requires_grad=True)
        for scale in (1.0, 2.0):
            loss = Sum.apply(backend, Sum.apply(backend, x * (backend.rank + 1) * scale).square()).sum()
            loss.backward()
        assert x.grad is not None
        return x.grad.tolist()

    # y = Σ s r², z = 3 y², summed on 3 ranks: dx = 3 · 3 · 2 y · s r.
    expected = [[sum(3 * 3 * 2 * (14 * s) * s * r for s in (1, 2))] * 2 for r in (1, 2, 3)]
    assert simulate(main, 3, seed=seed) == expected


def never_waits(backend: SimulatedBackend) -> None:
    while backend.rank >= 0:
        time.sleep(0.001)


def always_meets(backend: SimulatedBackend) -> None:
    """Turns are handed over all the time, also when the interruption comes."""
    while backend.rank >= 0:
        backend.agree(None)


@pytest.mark.parametrize("main", [never_waits, *[always_meets] * 5])
def test_an_interrupted_run_ends(main: Callable[[SimulatedBackend], None]) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    old = signal.signal(signal.SIGALRM, interrupt)
    left = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(main, 2)
    finally:
        signal.signal(signal.SIGALRM, old)
        signal.setitimer(signal.ITIMER_REAL, *left)
    assert threading.active_count() == before
