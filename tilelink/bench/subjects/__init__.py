"""The operators that can be benchmarked, one file each: its cases and its contenders."""

from __future__ import annotations

from tilelink.bench.subjects import (
    ag_attention,
    ag_moe,
    all_reduce,
    ep,
    flash_decode,
    gemm_ar,
    gemms,
    mlp,
    moe_rs,
    moving,
)
from tilelink.bench.subjects.subject import BenchCase, Subject

SUBJECTS: dict[str, Subject] = {
    s.name: s
    for s in (
        *gemms.SUBJECTS, mlp.SUBJECT, ag_moe.SUBJECT, moe_rs.SUBJECT, ag_attention.SUBJECT, flash_decode.SUBJECT, ep.SUBJECT,
        gemm_ar.SUBJECT, all_reduce.SUBJECT, *moving.SUBJECTS,
    )
}  # fmt: skip
"""By the name that `tilelink bench` takes."""


def sweep(ranks: int) -> tuple[int, ...]:
    """Rows from 1 to 16384: the powers of two, and 997 on each rank."""
    return tuple(sorted([2**i for i in range(15)] + [997 * ranks]))


__all__ = ["SUBJECTS", "BenchCase", "Subject", "sweep"]
