"""Every kernel of every operator in every placement compiles, and keeps the orders that it must keep.

What is emitted is one of two texts, with TMA or without. Each is compiled for one target in every placement, and for the
other target where it is another kernel and not the same with other numbers of flags and streams.
"""

from __future__ import annotations

import re

import pytest
import torch

from tests.compiled import hazards
from tests.compiled.checking import RANKS, assert_compiles, emitted
from tests.compiled.compiling import EACH_TARGET, TARGETS, functions, texts
from tests.operators import loops, raw, splits
from tests.operators import test_copy_programs as copy_programs
from tests.operators.placements import Placed, placements
from tests.operators.problems import AG
from tilelink import sms
from tilelink.ops import ag_gemm

PLACEMENTS = placements(tile=32)


def of_rank(placed: Placed, m: int, n: int, k: int) -> list[torch.Tensor]:
    shapes = [(m, k), (k, n)] if placed.kind is AG else [(RANKS * m, k), (k, n)]
    return [torch.empty(s, dtype=torch.bfloat16) for s in shapes]


OF_ONE_TEXT = {"sm_80": "gfx942", "sm_100": "sm_90"}
ALIKE = re.compile("copy engine (.*in whole parts|.*over 2 streams|pull)|copy engine, reduction|as it comes")
"""In kernels, what another placement of a copy engine is: they wait for flags that a stream sets."""
LARGE = [("ag_gemm by default", "sm_80"), ("gemm_rs_ring by default", "sm_100")]
"""Tiles as large as they come take seconds to compile: one for either target, the others are in `test_large_tiles`."""
CASES = [
    *(pytest.param(p, t, marks=pytest.mark.each_triton) for p in PLACEMENTS for t in OF_ONE_TEXT.values()),
    *((p, t) for p in PLACEMENTS for t in OF_ONE_TEXT if not ALIKE.search(p.name) or (p.name, t) in LARGE),
]


@pytest.mark.parametrize(("placed", "target"), CASES, ids=str)
def test_kernels(placed: Placed, target: str) -> None:
    assert_compiles(*emitted(placed.operator, of_rank(placed, 64, 64, 64), target), target)


def test_targets_with_tma_have_one_text_and_those_without_have_another() -> None:
    """Where somebody has said all tiles: by default they are those that the cost model prefers, on Hopper alone."""
    for placed in PLACEMENTS:
        sources = {t: emitted(placed.operator, of_rank(placed, 64, 64, 64), t)[1] for t in TARGETS}
        for target, source in sources.items():
            used = any(a.kind == "descriptor" for k in source.kernels for a in k.args)
            assert used == (target in ("sm_90", "sm_100"))
        for target, alike in OF_ONE_TEXT.items() if "by default" not in placed.name else ():
            one, other = sources[target], sources[alike]
            assert [k.name for k in one.kernels] == [k.name for k in other.kernels]
            assert all(functions(one, k.name) == functions(other, k.name) for k in one.kernels)


@pytest.mark.each_triton
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize(
    "placed", [p for p in PLACEMENTS if p.name in ("ag_gemm SMs pull", "gemm_rs fused, reduction fused")], ids=str
)
def test_sizes_that_do_not_divide(placed: Placed, target: str) -> None:
    plan, source = emitted(placed.operator, of_rank(placed, 37, 41, 29), target)
    assert not any(a.kind == "descriptor" for k in source.kernels for a in k.args)
    assert_compiles(plan, source, target, pipelined=False)


@pytest.mark.parametrize(("k", "wide"), [(256, ["out", "rows", "weight", "x"]), (512, ["out"])])
def test_blocks_that_are_too_long_for_descriptors(k: int, wide: list[str]) -> None:
    tensors = [torch.empty(64, 512, dtype=torch.bfloat16), torch.empty(512, 128, dtype=torch.bfloat16)]
    _, source = emitted(ag_gemm.schedule(matmul=sms(M=64, N=64, K=k)), tensors, "sm_90")
    assert sorted({a.of for d in source.kernels for a in d.args if a.kind == "descriptor"}) == wide


@pytest.mark.parametrize("target", EACH_TARGET)
def test_a_wait_in_a_loop_of_products(target: str) -> None:
    """Runs: the poll stands in a loop over flags, and the pipelined loop inside it loads nothing of the next flag."""
    operator = loops.gradient.schedule(
        gather_x=sms(2, M=64), gather_y=sms(2, M=128), outer=sms(M=32, N=64, K=64, num_stages=3)
    )
    plan, source = emitted(operator, [torch.empty(256, 128, dtype=torch.bfloat16)] * 2, target)
    assert_compiles(plan, source, target)
    kernel = next(k for k in source.kernels if "tl.dot" in functions(source, k.name))
    lines, loop = next(hazards.dot_loops(texts(plan, source, kernel, target)["ttgir"]))
    assert len(loop.around) == 2
    words = range(loop.around[1][0], loop.first)
    assert any(hazards.POLL.search(lines[i]) for i in words)


@pytest.mark.parametrize("target", EACH_TARGET)
def test_raw_pointers(target: str) -> None:
    """The token of a wait stands between the poll and what is loaded through it."""
    operator = raw.gather_with(raw.exchange)
    plan, source = emitted(operator, [torch.empty(64, 64, dtype=torch.bfloat16)], target)
    assert_compiles(plan, source, target, pipelined=False)
    text = texts(plan, source, source.kernel("exchange"), target)["ttgir"]
    polls = [k for k, line in enumerate(text.splitlines()) if hazards.POLL.search(line)]
    tokens = [
        k for k, line in enumerate(text.splitlines()) if "elementwise_inline_asm" in line and "%" in line.split("{")[0]
    ]
    loads = [k for k, line in enumerate(text.splitlines()) if "tt.load" in line]
    assert max(polls) < max(tokens) < max(loads)


@pytest.mark.parametrize("target", EACH_TARGET)
def test_what_stays_on_its_rank(target: str) -> None:
    """A copy of plain memory, of a part that is shorter than others."""
    operator = copy_programs.kept_and_doubled.schedule(keep=sms(2))
    plan, source = emitted(operator, [torch.empty(3, 24)], target, M=10)
    assert "shmem.copy_block(" in source.text
    assert_compiles(plan, source, target, pipelined=False)


@pytest.mark.parametrize("target", EACH_TARGET)
def test_tiles_that_the_device_counts(target: str) -> None:
    operator = splits.route.schedule(scaled=sms(P=32, N=32, H=32, order="column"), picked=sms(2, T=32, N=32))
    x, weight = (torch.empty(s, dtype=torch.bfloat16) for s in ((64, 64), (8, 64, 64)))
    start, at = (torch.empty(n, dtype=torch.int32) for n in (9, 64))
    plan, source = emitted(operator, [x, start, weight, at], target)
    assert "shmem.is_last(" in source.text
    assert_compiles(plan, source, target, pipelined=False)
