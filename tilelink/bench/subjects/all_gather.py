"""All-gather, against NCCL's."""

from __future__ import annotations

from tilelink.bench.contest import Contest, Place, Sizes, Variants
from tilelink.bench.subjects.moving import KIB, MIB, against_nccl, rotated, sized
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
    out = place.empty(place.backend.ranks * each, n)
    inputs = rotated(place, 2 * m * n, each, n)
    return against_nccl(ours, inputs, out, place.libraries.all_gather, lambda: out[:m], mine, M=m)


SUBJECT = Subject("all_gather", all_gather, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
