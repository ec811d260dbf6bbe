"""All-gather, reduce-scatter and all-to-all against NCCL's, with inputs that take turns; of all-reduce, too, the sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink.bench.contest import COMM, Contest, Place, Roles, Sizes, Turns, Variants
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import all_gather, all_to_all, reduce_scatter

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

    found.rival(COMM, nccl, library=True)
    return found


def gathered(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N, of all ranks together."""
    m, n = sizes["M"], sizes["N"]
    each, mine = place.part(m)
    out = place.empty(place.backend.ranks * each, n)
    inputs = rotated(place, 2 * m * n, each, n)
    return against_nccl(ours, inputs, out, place.libraries.all_gather_into_tensor, lambda: out[:m], mine, M=m)


def summed(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N on every rank."""
    m, n = sizes["M"], sizes["N"]
    each, mine = place.part(m)
    out = place.empty(each, n)
    inputs = rotated(place, 2 * m * n, place.backend.ranks * each, n)
    return against_nccl(ours, inputs, out, place.libraries.reduce_scatter_tensor, lambda: out[:mine], m)


def exchanged(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N on every rank, equal parts for all."""
    m, n = sizes["M"], sizes["N"]
    ranks, out = place.backend.ranks, place.empty(m, n)
    inputs, uneven = rotated(place, 2 * m * n, m, n), f"{m} rows are not a multiple of {ranks}" if m % ranks else ""
    return against_nccl(ours, inputs, out, place.libraries.all_to_all_single, lambda: out.view(ranks, -1, n), m, uneven)


def shapes(_: int) -> list[BenchCase]:
    """Bytes on every rank; of an all-gather, of the whole."""
    return sized(64 * KIB, MIB, 16 * MIB, 64 * MIB)


SUBJECTS = tuple(
    Subject(op.name, op, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
    for op, contest in ((all_gather, gathered), (reduce_scatter, summed), (all_to_all, exchanged))
)
