# pyright: reportArgumentType=false
"""Names of users that coincide with those of an emitted file compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_names import assert_right, case, module, plain
from tests.compiled.checking import assert_compiles, emitted
from tilelink import fused, sms

SHADOWS: list[dict[str, str]] = [
    {"rows": "worker", "weight": "t", "acc": "rank", "k": "shmem", "m": "ctx", "n": "epoch", "loaded": "out_tile"},
    {
        "rows": "x_stage",
        "x": "call_entry",
        "w": "ready",
        "out": "expected",
        "matmul": "rank",
        "gather": "t",
        "scatter": "worker",
    },
    {
        "M": "M_part",
        "N": "M_first",
        "K": "M_here",
        "tile": "M_part_begin",
        "m": "i0",
        "n": "turned",
        "acc": "group_top",
    },
]


@pytest.mark.parametrize(
    ("names", "target"),
    list(zip(SHADOWS, ["sm_90", "gfx942", "sm_90"], strict=True)),
    ids=("functions", "arguments", "sizes"),
)
def test_they_compile(names: dict[str, str], target: str, tmp_path: Path) -> None:
    whole = plain(**names)
    into = fused(whole["matmul"])
    both = case(module(tmp_path / "shadows.py", whole), whole, sms(1, **{whole["M"]: 16}), into, into)
    assert_right(both)
    assert_compiles(
        *emitted(both.gemm_rs, [torch.empty(128, 32), torch.empty(32, 32)], target), target, pipelined=False
    )
