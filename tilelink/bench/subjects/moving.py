"""What the benchmarks of collectives have in common: sizes, and inputs that take turns."""

from __future__ import annotations

import torch

from tilelink.bench.contest import Place
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
