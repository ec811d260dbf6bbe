# pyright: reportArgumentType=false
"""A fused step that takes its host's tile in subtiles: the same result, one wait for all subtiles, in every variant."""

from __future__ import annotations

import re

import pytest
import torch

import tilelink
from tests.mapping.plans import emitted
from tests.operators.problems import RS
from tests.selection import table
from tilelink import Operator, copy_engine, fused, sms
from tilelink.ir.kernel import Checks
from tilelink.ir.plan import Plan
from tilelink.ops import gemm_rs

MATMUL = sms(3, M=16, N=64, K=16, order="ring+1")
OPERATORS: dict[str, Operator] = {
    "copy engine": gemm_rs.schedule(matmul=MATMUL, scatter=copy_engine(M=16), reduce=fused("matmul", N=16)),
    "fused push": gemm_rs.schedule(matmul=MATMUL, scatter=fused("matmul"), reduce=fused("matmul", N=32)),
}


@pytest.mark.parametrize(
    ("watchdog", "ranks"), [(None, 1), (None, 2), pytest.param(None, 3, marks=pytest.mark.each_triton), (60.0, 2)]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_against_torch(name: str, watchdog: float | None, ranks: int) -> None:
    """Sizes that end inside a tile, a subtile and a part; the watched variant passes the tile's number along."""
    operator = OPERATORS[name]
    calls = [RS.call(37, n, 24, ranks, torch.bfloat16, salt=n) for n in (100, 64, 7)]

    def main() -> None:
        me = tilelink.rank()
        for call in calls:
            call.assert_on(me, operator(*call.tensors[me], **dict(call.sizes)))

    tilelink.launch(main, ranks, seed=ranks, straggler=ranks - 1, watchdog=watchdog)


def planned(name: str) -> Plan:
    call = RS.call(48, 128, 24, 3, torch.bfloat16)
    return tilelink.launch(lambda: OPERATORS[name].plan(*call.tensors[tilelink.rank()], **dict(call.sizes)), 3)[0]


@table("checks", [Checks(), Checks(watchdog=True)], ids=["plain", "watched"])
def test_the_first_subtile_waits_for_all(checks: Checks) -> None:
    """Flags of parts know no columns."""
    text = emitted(planned("copy engine"), checks).text
    assert re.findall(r"^ +reduce\(.*?(True|False), ", text, re.MULTILINE) == ["True", "False", "False", "False"]
    body = text.split("def reduce(")[1].split("@triton.jit")[0]
    lines = [line.strip() for line in body.splitlines() if "#" not in line]
    at = lines.index("if first_subtile:")
    # Without a limit the flags of all ranks are looked at side by side.
    assert lines[at + 1] == ("for s in range(0, RANKS):" if checks.watchdog else "s_each = tl.arange(0, 4)")
    waits = [k for k, line in enumerate(lines) if "signal_wait" in line]
    assert len(waits) == 1
    assert at < waits[0] < next(k for k, line in enumerate(lines) if line.startswith("for s in tl.static_range("))


def test_each_subtile_waits_where_flags_know_columns() -> None:
    """Pushed tiles have a flag each: with flags of half a tile's columns, subtiles have flags of their own."""
    text = emitted(planned("fused push")).text
    channel = planned("fused push").channel("dst")
    assert [a.axis for a in channel.axes] == [0, 1, 2]
    assert "first_subtile" not in text
