"""All-to-all, against NCCL's."""

from __future__ import annotations

import torch

from tilelink.bench.contest import COMM, Contest, Place, Roles, Sizes, Turns, Variants
from tilelink.bench.subjects.moving import KIB, MIB, rotated, sized
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import all_to_all


def shapes(ranks: int) -> list[BenchCase]:
    """Bytes on every rank."""
    del ranks
    return sized(64 * KIB, MIB, 16 * MIB, 64 * MIB)


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N on every rank, equal parts for all."""
    m, n = sizes["M"], sizes["N"]
    calls, xs = rotated(place, 2 * m * n, m, n)
    out, turns, theirs = place.empty(m, n), Turns([(x,) for x in xs]), Turns([(x,) for x in xs])
    found = Contest(inputs=xs, outputs=[out], turns=[turns, theirs], graphed=calls, roles=Roles("", COMM, "", (COMM,)))
    for name, op in ours.items():
        found.enter(name, op, turns)
    if m % place.world.ranks:
        found.missing[COMM] = f"{m} rows are not a multiple of {place.world.ranks}"
        return found
    lib = place.libraries

    def nccl() -> torch.Tensor:
        (x,) = theirs()
        lib.all_to_all(out, x)
        return out.view(place.world.ranks, -1, n)

    found.add(COMM, nccl, nccl, library=True)
    return found


SUBJECT = Subject("all_to_all", all_to_all, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
