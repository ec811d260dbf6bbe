# pyright: reportArgumentType=false
"""A fused step that takes its host's tile in subtiles, or behind all of the host's: the same result, whoever takes which tile."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink.language as tl
from tests.mapping.oracle import assert_right
from tests.mapping.plans import emitted, plan_of
from tests.operators.problems import RS, assert_solves
from tests.selection import table
from tilelink import Operator, copy_engine, fused, operator, program, sms
from tilelink.codegen import emit
from tilelink.errors import TilelinkError
from tilelink.ir.kernel import Checks, KernelSource
from tilelink.ir.plan import Plan
from tilelink.ops import gemm_rs
from tilelink.ops.programs import gather, matmul, reduce, scatter

MATMUL = sms(3, M=16, N=64, K=16, order=("ring+1", "group 2"))
BEHIND: dict[str, Operator] = {
    "copy engine": gemm_rs.schedule(
        matmul=MATMUL, scatter=copy_engine(M=32, order="ring+1"), reduce=fused("matmul", deferred=True, N=16)
    ),
    "by workers": gemm_rs.schedule(
        matmul=MATMUL,
        scatter=sms(1, M=32, order="ring+1", own_kernel=True),
        reduce=fused("matmul", deferred=True, N=64),
    ),
}
AT_ONCE: dict[str, Operator] = {
    "copy engine, at once": gemm_rs.schedule(matmul=MATMUL, scatter=copy_engine(M=16), reduce=fused("matmul", N=16)),
    "fused push, at once": gemm_rs.schedule(matmul=MATMUL, scatter=fused("matmul"), reduce=fused("matmul", N=32)),
}
SIZES = {"M": 48, "K": 16, "N": 64}


@pytest.mark.parametrize(
    ("watchdog", "ranks"), [(None, 1), (None, 2), pytest.param(None, 3, marks=pytest.mark.each_triton), (60.0, 2)]
)
@pytest.mark.parametrize("name", BEHIND | AT_ONCE)
def test_against_torch(name: str, watchdog: float | None, ranks: int) -> None:
    """Sizes that end inside a tile, a subtile and a part, and ranks without rows; the counter of work indices begins anew, and
    the watched variant passes the tile's number along."""
    calls = [RS.call(m, n, 24, ranks, torch.bfloat16, salt=n) for m, n in ((37, 100), (1, 64), (37, 7))]
    assert_solves((BEHIND | AT_ONCE)[name], calls, seed=ranks, straggler=ranks - 1, watchdog=watchdog)


@table("name", BEHIND)
def test_the_plan_is_right(name: str) -> None:
    entries = dict(BEHIND[name].schedules.entries)
    plan = plan_of(gemm_rs, 3, SIZES, **entries)
    assert_right(plan)


def without_waiting(text: str) -> str:
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if "local_wait_until(reduce_made" not in line]
    assert len(kept) == len(lines) - 1
    return "".join(kept)


def told_at_once(text: str) -> str:
    """What is waited for is what the call before has said."""
    wanted = "shmem.CMP_GE, tl.load(epoch_at))"
    lines = text.splitlines(keepends=True)
    at = next(k for k, line in enumerate(lines) if "local_wait_until(reduce_made" in line)
    assert wanted in lines[at]
    lines[at] = lines[at].replace(wanted, "shmem.CMP_GE, tl.load(epoch_at) - 1)")
    return "".join(lines)


@pytest.mark.parametrize("wrong", [without_waiting, told_at_once])
def test_a_tile_that_is_taken_before_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, wrong: Any) -> None:
    """The simulation sees it: nothing else orders the two workers."""
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))

    def spoilt(*args: Any, **more: Any) -> KernelSource:
        source = emit(*args, **more)
        return replace(source, text=wrong(source.text)) if source.name == "gemm_rs" else source

    monkeypatch.setattr(sys.modules[Operator.__module__], "emit", spoilt)
    operator = gemm_rs.schedule(dict(BEHIND["copy engine"].schedules.entries))
    call = RS.call(32, 128, 24, 2, torch.bfloat16)

    def some_seeds() -> None:
        for seed in range(6):
            assert_solves(operator, [call], seed=seed)

    with pytest.raises(TilelinkError, match="TL507"):
        some_seeds()


def last_first(tile: tuple[int, ...], rank: int, ranks: int) -> int:
    return -tile[0]


@table(
    "schedule, why",
    [
        ({"matmul": sms(M=16, N=64, K=16, order="ring")}, "`matmul` does not make this rank's own tiles last"),
        ({"matmul": sms(M=16, N=64, K=16, order="column")}, "`matmul` does not make this rank's own tiles last"),
        (
            {"matmul": sms(M=16, N=64, K=16, order=("ring+1", last_first))},
            "`matmul` does not make this rank's own tiles last",
        ),
        ({"scatter": sms(1, M=32)}, "`matmul` shares its workers with other steps"),
        ({"scatter": fused("matmul")}, "`matmul` hands its tiles over and stores none: nobody moves them from memory"),
        (
            {"scatter": fused("matmul", deferred=True), "reduce": fused("matmul")},
            "it does not compute for this rank's own rows alone",
        ),
    ],
)
def test_what_cannot_come_behind(schedule: dict[str, Any], why: str) -> None:
    placed = {"matmul": MATMUL, "scatter": copy_engine(M=32), "reduce": fused("matmul", deferred=True)}
    with pytest.raises(TilelinkError, match="TL333") as caught:
        plan_of(gemm_rs, 3, SIZES, **(placed | schedule))
    assert caught.value.message.endswith("cannot come behind the tiles of `matmul`")
    assert caught.value.why == why


@program("M N -> M N")
def positive(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), tl.maximum(tl.tile_load(x, (m, n)), 0))


@operator("M K/R, K/R N -> M/R N, M N")
def sums_and_parts(x: Any, weight: Any) -> Any:
    partial = matmul(x, weight)
    return reduce(scatter(partial)), positive(partial)


def test_what_runs_for_all_tiles_cannot_come_behind() -> None:
    placed = {"matmul": MATMUL, "scatter": copy_engine(M=32), "reduce": fused("matmul", deferred=True)}
    plan = plan_of(sums_and_parts, 3, SIZES, **placed, positive=fused("matmul", deferred=None))
    assert [s.path for s in plan.steps if s.deferred] == ["reduce"]
    with pytest.raises(TilelinkError, match="TL333") as caught:
        plan_of(sums_and_parts, 3, SIZES, **placed, positive=fused("matmul", deferred=True))
    assert caught.value.why == "it does not compute for this rank's own rows alone"


@operator("M/R K, K N -> M/R N")
def gathered_first(x: Any, weight: Any) -> Any:
    return reduce(scatter(matmul(gather(x), weight)))


def test_nothing_comes_behind_a_host_that_waits() -> None:
    """A worker that waits for a work index's flags could hold up the one whose tile a peer waits for."""
    placed = {"gather": copy_engine(push=True), "matmul": MATMUL, "scatter": copy_engine(M=32)}
    assert (
        not plan_of(gathered_first, 3, SIZES, **placed, reduce=fused("matmul", deferred=None)).step("reduce").deferred
    )
    with pytest.raises(TilelinkError, match="TL333") as caught:
        plan_of(gathered_first, 3, SIZES, **placed, reduce=fused("matmul", deferred=True))
    assert caught.value.why == "`matmul` waits for others"


def test_a_tile_that_is_still_on_its_way_to_memory() -> None:
    """Stored through a descriptor, it is there when the copy has ended, and no sooner."""
    sizes = {"M": 64, "K": 32, "N": 64}
    plan = plan_of(gemm_rs, 2, sizes, **dict(BEHIND["copy engine"].schedules.entries))
    lines = [line.strip() for line in emitted(plan).text.splitlines()]
    (stored,) = [k for k, line in enumerate(lines) if re.match(r"matmul_out_\w+\.store\(", line)]
    (told,) = [k for k, line in enumerate(lines) if line.startswith("shmem.local_set(reduce_made")]
    assert stored < told
    assert lines[told - 1] == "shmem.async_store_quiet()"


@operator("M K/R, K/R N -> M N")
def fetched(x: Any, weight: Any) -> Any:
    """GEMM+AR whose sums others come for."""
    return gather(reduce(scatter(matmul(x, weight))))


def test_what_somebody_waits_for_cannot_come_behind() -> None:
    placed = {"matmul": MATMUL, "scatter": copy_engine(M=32), "reduce": fused("matmul", deferred=True)}
    with pytest.raises(TilelinkError, match="TL333") as caught:
        plan_of(fetched, 3, SIZES, **placed, gather=copy_engine(push=False))
    assert caught.value.why == "somebody waits for what it makes"


# -------------------------------------------------------------------------------------------------------------- subtiles
def planned(name: str) -> Plan:
    call = RS.call(48, 128, 24, 3, torch.bfloat16)
    return AT_ONCE[name].plan(*call.inputs[0], ranks=3, **call.given)


@table("checks", [Checks(), Checks(watchdog=True)], ids=["plain", "watched"])
def test_the_first_subtile_waits_for_all(checks: Checks) -> None:
    """Flags of parts know no columns."""
    text = emitted(planned("copy engine, at once"), checks).text
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
    text = emitted(planned("fused push, at once")).text
    channel = planned("fused push, at once").channel("dst")
    assert [a.axis for a in channel.axes] == [0, 1, 2]
    assert "first_subtile" not in text
