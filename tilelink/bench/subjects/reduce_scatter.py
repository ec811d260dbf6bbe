"""Reduce-scatter, against NCCL's."""

from __future__ import annotations

import torch

from tilelink.bench.contest import COMM, Contest, Place, Roles, Sizes, Turns, Variants
from tilelink.bench.subjects.moving import KIB, MIB, rotated, sized
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import reduce_scatter


def shapes(ranks: int) -> list[BenchCase]:
    """Bytes on every rank."""
    del ranks
    return sized(64 * KIB, MIB, 16 * MIB, 64 * MIB)


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N on every rank."""
    m, n = sizes["M"], sizes["N"]
    each, mine = place.part(m)
    calls, padded = rotated(place, 2 * m * n, place.world.ranks * each, n)
    out, turns, theirs = place.empty(each, n), Turns([(x[:m],) for x in padded]), Turns([(x,) for x in padded])
    found = Contest(
        inputs=padded, outputs=[out], turns=[turns, theirs], graphed=calls, roles=Roles("", COMM, "", (COMM,))
    )
    for name, op in ours.items():
        found.enter(name, op, turns)
    lib = place.libraries

    def nccl() -> torch.Tensor:
        (x,) = theirs()
        lib.reduce_scatter(out, x)
        return out[:mine]

    found.add(COMM, nccl, nccl, library=True)
    return found


SUBJECT = Subject("reduce_scatter", reduce_scatter, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
