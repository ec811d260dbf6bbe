"""What the benchmarks of collectives have in common: sizes, inputs that take turns, and NCCL's as the one to beat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink.bench.contest import COMM, Contest, Place, Roles, Turns, Variants
from tilelink.bench.subjects.subject import BenchCase

KIB, MIB = 1024, 1024 * 1024
COLUMNS = 2048
CALLS = 10
"""Calls of a captured graph, where a call takes less than starting one does."""


def sized(*nbytes: int) -> list[BenchCase]:
    """Cases of so many bytes of bf16, in rows."""
    return [
        BenchCase(f"{b // MIB} MiB" if b >= MIB else f"{b // KIB} KiB", {"M": b // (2 * COLUMNS), "N": COLUMNS})
        for b in nbytes
    ]


def rotated(place: Place, nbytes: int, *shape: int) -> tuple[int, list[torch.Tensor]]:
    """Calls of a graph, and as many inputs."""
    calls = CALLS if nbytes <= 2 * MIB and not place.simulated else 2
    return calls, [place.random(*shape) for _ in range(calls)]


def against_nccl(
    ours: Variants,
    rotation: tuple[int, list[torch.Tensor]],
    out: torch.Tensor,
    collective: Callable[[torch.Tensor, torch.Tensor], None],
    result: Callable[[], torch.Tensor],
    rows: int,
    missing: str = "",
    **given: Any,
) -> Contest:
    """Ours on the first `rows` of each input that takes turns, and `collective(out, input)` on all of them.

    `result`: what of `out` is compared. `missing`: why NCCL cannot do this; empty where it can. `given`: passed to ours.
    """
    calls, padded = rotation
    turns, theirs = Turns([(x[:rows],) for x in padded]), Turns([(x,) for x in padded])
    roles = Roles("", COMM, "", (COMM,))
    found = Contest(inputs=padded, outputs=[out], turns=[turns, theirs], graphed=calls, roles=roles)
    for name, op in ours.items():
        found.enter(name, op, turns, **given)
    if missing:
        found.missing[COMM] = missing
        return found

    def nccl() -> torch.Tensor:
        collective(out, *theirs())
        return result()

    found.add(COMM, nccl, nccl, library=True)
    return found
