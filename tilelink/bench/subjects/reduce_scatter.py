"""Reduce-scatter, against NCCL's."""

from __future__ import annotations

from tilelink.bench.contest import Contest, Place, Sizes, Variants
from tilelink.bench.subjects.moving import KIB, MIB, against_nccl, rotated, sized
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
    out = place.empty(each, n)
    inputs = rotated(place, 2 * m * n, place.backend.ranks * each, n)
    return against_nccl(ours, inputs, out, place.libraries.reduce_scatter, lambda: out[:mine], m)


SUBJECT = Subject("reduce_scatter", reduce_scatter, shapes, contest, {"M": 8, "N": 64}, "NCCL's")
