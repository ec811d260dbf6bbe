"""All-to-all, against NCCL's."""

from __future__ import annotations

from tilelink.bench.contest import Contest, Place, Sizes, Variants
from tilelink.bench.subjects.moving import KIB, MIB, against_nccl, rotated, sized
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import all_to_all


def shapes(ranks: int) -> list[BenchCase]:
    """Bytes on every rank."""
    del ranks
    return sized(64 * KIB, MIB, 16 * MIB, 64 * MIB)


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N on every rank, equal parts for all."""
    m, n = sizes["M"], sizes["N"]
    ranks, out = place.backend.ranks, place.empty(m, n)
    inputs, uneven = rotated(place, 2 * m * n, m, n), f"{m} rows are not a multiple of {ranks}" if m % ranks else ""
    return against_nccl(ours, inputs, out, place.libraries.all_to_all, lambda: out.view(ranks, -1, n), m, uneven)


SUBJECT = Subject("all_to_all", all_to_all, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
