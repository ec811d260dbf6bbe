"""Parts of rows that end within a tile: a tile of the next part begins where they end, and TMA reads no further."""

from __future__ import annotations

import pytest
import torch

from tests.operators.problems import AG, RS, assert_solves
from tilelink import Operator, copy_engine, sms
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm, gemm_rs

RANKS, N, K = 3, 48, 64
GATHERS = ag_gemm.schedule(gather=copy_engine(push=True), matmul=sms(M=16, N=16, K=16, order=("ring", "group 2")))
SCATTERS = gemm_rs.schedule(matmul=sms(M=16, N=16, K=16, order=("ring+1", "group 2")))


@pytest.mark.parametrize("operator", [GATHERS, SCATTERS], ids=["ag_gemm", "gemm_rs"])
@pytest.mark.parametrize(("m", "parts"), [(141, (0, 47)), (140, None), (144, None)])
def test_tiles_end_with_their_part(operator: Operator, m: int, parts: tuple[int, int] | None) -> None:
    """141 rows are three parts of 47: these have an axis in the descriptor. Of 140 the last one is shorter."""
    kind, depth = (AG, K) if operator is GATHERS else (RS, K * RANKS)
    problem, part = kind.call(m, N, depth, RANKS, torch.bfloat16), -(-m // RANKS)
    assert_solves(operator, [problem] * 3, seed=1, straggler=1)
    tiled, bound = operator.calls.planned_for(list(problem.inputs[0]), None, Topology(RANKS), problem.given)
    made = tiled.compiled(bound)
    rows = {tile[0] for tile in made.plan.step("matmul").spans(made.plan.env(0))}
    assert all(a // part == (b - 1) // part for a, b in rows)
    assert sum(b - a for a, b in rows) == m
    descriptors = {a.of: a for k in made.source.kernels for a in k.args if a.kind == "descriptor" and a.of != "weight"}
    reads = {"rows", "x", "out"} if operator is GATHERS else {"x", "matmul_out"}
    if parts is not None:
        assert {name for name, a in descriptors.items() if a.parts == parts} == reads
        assert all(descriptors[name].block == (1, 16, 16) for name in reads)
    else:
        assert (reads <= descriptors.keys()) == (m == 144)
        assert all(a.parts is None for a in descriptors.values())
