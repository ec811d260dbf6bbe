"""All-gather, against NCCL's."""

from __future__ import annotations

import torch

from tilelink.bench.contest import COMM, Contest, Place, Roles, Sizes, Turns, Variants
from tilelink.bench.subjects.moving import KIB, MIB, rotated, sized
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import all_gather


def shapes(ranks: int) -> list[BenchCase]:
    """Bytes of the whole."""
    del ranks
    return sized(64 * KIB, MIB, 16 * MIB, 64 * MIB)


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N, of all ranks together."""
    m, n = sizes["M"], sizes["N"]
    each, mine = place.part(m)
    calls, padded = rotated(place, 2 * m * n, each, n)
    out, turns, theirs = (
        place.empty(place.world.ranks * each, n),
        Turns([(x[:mine],) for x in padded]),
        Turns([(x,) for x in padded]),
    )
    found = Contest(
        inputs=padded, outputs=[out], turns=[turns, theirs], graphed=calls, roles=Roles("", COMM, "", (COMM,))
    )
    for name, op in ours.items():
        found.enter(name, op, turns, M=m)
    lib = place.libraries

    def nccl() -> torch.Tensor:
        (x,) = theirs()
        lib.all_gather(out, x)
        return out[:m]

    found.add(COMM, nccl, nccl, library=True)
    return found


SUBJECT = Subject("all_gather", all_gather, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
