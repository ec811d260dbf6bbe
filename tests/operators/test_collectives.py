# pyright: reportArgumentType=false
"""The library's collectives against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import FEW, Problem, assert_as_torch, assert_solves, each, random, split
from tests.selection import table
from tilelink import ops
from tilelink.ir.schedule import COPY_ENGINE, WORKERS

FORMS = {
    "one_shot": ops.all_reduce.schedule({"all_reduce_one_shot.exchange": tilelink.sms(M=4, N=32)}),
    "two_shot": ops.all_reduce,
    "ring": ops.all_reduce,
}


def all_reduced(ranks: int, m: int, dtype: torch.dtype = torch.float32, form: str = "") -> Problem:
    x = random(ranks, m, 20, dtype=dtype)
    return Problem([(one,) for one in x], [(x.float().sum(0),)] * ranks, {"form": form} if form else {})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("ranks", "m"),
    [(1, 5), pytest.param(2, 13, marks=pytest.mark.each_triton), (3, 1), (4, 13), (8, 9)],
)
def test_all_reduce(form: str, ranks: int, m: int) -> None:
    """Also with fewer rows than ranks, and with parts of which the last are shorter or empty."""
    assert_as_torch(FORMS[form], all_reduced(ranks, m, form=form))


@pytest.mark.parametrize("form", FORMS)
def test_all_reduce_in_bf16(form: str) -> None:
    assert_as_torch(ops.all_reduce, all_reduced(2, 5, torch.bfloat16, form))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_sums_that_fp32_cannot_hold(form: str, dtype: torch.dtype) -> None:
    """Integers and doubles, to the last bit."""
    least = 0 if dtype == torch.uint8 else 2**24 + 1 if dtype == torch.int32 else 2**40 + 1
    x = (torch.arange(3 * 5 * 7).view(3, 5, 7) + least).to(dtype)
    wanted = x.sum(0, dtype=dtype)
    assert all(torch.equal(found, wanted) for found in ops.all_reduce(list(x), form=form))
    assert all(
        torch.equal(found, part)
        for found, part in zip(ops.reduce_scatter(list(x)), wanted.split([2, 2, 1]), strict=True)
    )


@table("form", FORMS)
def test_all_ranks_get_the_same_bits(form: str) -> None:
    x = random(3, 7, 40)
    first, *others = ops.all_reduce(list(x), form=form)
    assert all(torch.equal(first, o) for o in others)


@table("ranks, most", [(1, 2048), (2, 2048), (3, 480), (4, 213), (8, 60)])
def test_the_form_follows_from_the_bytes_and_the_ranks(ranks: int, most: int) -> None:
    """Sending everything to everyone pays the longer the fewer there are; two send no byte less with a hop more."""

    def form(rows: int, dtype: torch.dtype) -> set[str]:
        plan = ops.all_reduce.plan(torch.empty(rows, 2048, dtype=dtype, device="meta"), ranks=ranks)
        return {s.path.partition(".")[0] for s in plan.steps}

    for rows, dtype in ((most, torch.bfloat16), (most // 2, torch.float32)):
        assert form(rows, dtype) == {"all_reduce_one_shot"}
        assert form(rows + 1, dtype) == {"all_reduce_pushed"}


@tilelink.operator("M N -> M N", axes="NODE GPU")
def along_gpus(x: torch.Tensor) -> torch.Tensor:
    return ops.all_reduce(x, over="GPU")


def test_along_one_axis_of_several_the_ranks_are_those_of_the_line() -> None:
    """Two of six take as much in one shot as two alone."""

    def main() -> tuple[float, str]:
        plan = along_gpus.plan(torch.empty(2048, 2048, dtype=torch.bfloat16, device="meta"))
        total = along_gpus(torch.full((3, 8), float(tilelink.rank())))
        return total[2, 7].item(), plan.steps[0].path

    path = "all_reduce.all_reduce_one_shot.exchange"
    assert tilelink.launch(main, 6, axes={"NODE": 3, "GPU": 2}) == [(float(r // 2 * 4 + 1), path) for r in range(6)]


def test_a_form_that_is_none() -> None:
    with pytest.raises(tilelink.TilelinkError, match="TL248: `all_reduce` has no form 'tree'"):
        ops.all_reduce.plan(torch.empty(4, 4), ranks=2, form="tree")


def test_an_inlined_operator_brings_its_schedule() -> None:
    """The form's own placements, unless the schedule of the operator around it says otherwise."""
    x, path = torch.empty(512, 2048), "all_reduce_pushed.scatter"
    assert ops.all_reduce.plan(x, ranks=4).step(path).engine is WORKERS
    assert ops.all_reduce.schedule({path: tilelink.copy_engine()}).plan(x, ranks=4).step(path).engine is COPY_ENGINE


BESIDE = {
    "all_reduce": {"scatter": 4, "spread": 8, "keep": 4},
    "all_gather": {"gather": 6, "keep": 10},
    "reduce_scatter": {"scatter": 8, "reduce": 8},
    "all_to_all": {"scatter": 8, "keep_parts": 8},
}
"""Of 16 SMs."""


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", BESIDE)
def test_large_collectives_have_links_and_memory_busy_at_once(name: str, ranks: int) -> None:
    """In one kernel either way; and nobody's last part waits for all of another's."""
    x = torch.empty(4096, 2048, dtype=torch.bfloat16, device="meta")
    operator, rows = getattr(ops, name), 4096 // (ranks if name == "all_gather" else 1)
    for more, workers in ((0, dict.fromkeys(BESIDE[name], 16)), (ranks, BESIDE[name])):
        plan = operator.plan(torch.cat([x[:rows], x[:more]]), ranks=ranks)
        (kernel,) = plan.kernels
        assert {path.rpartition(".")[2]: n for path, n in kernel.roles} == workers


@table("rank", [0, 2])
@table("name", ["all_reduce", "reduce_scatter", "all_to_all"])
def test_large_collectives_go_through_all_parts_side_by_side(name: str, rank: int) -> None:
    """Nobody gets all of his part before another gets anything; the last part is shorter."""
    plan = getattr(ops, name).plan(torch.empty(5000, 2048, dtype=torch.bfloat16, device="meta"), ranks=3)
    begins = [tile[1][0] for tile in next(s for s in plan.steps if s.push).spans(plan.env(rank))]
    assert begins[:4] == [1667 * ((rank + 1 + k) % 3) for k in range(3)] + [1667 * ((rank + 1) % 3) + 8]
    assert [b % 1667 for b in begins] == sorted(b % 1667 for b in begins)


@table("shape", [(1, 1), (3, 5), (16, 2048), (4096, 2048), (1 << 20, 2), (2, 1 << 20)])
def test_tiles_have_bytes_enough_to_be_worth_a_signal(shape: tuple[int, int]) -> None:
    """And are no larger than four times what makes 128 of them; those of sums are as large as registers hold."""
    x = torch.empty(*shape, dtype=torch.bfloat16, device="meta")
    plan = ops.all_reduce.plan(x, ranks=4, form="two_shot")
    step = plan.step("all_reduce_pushed.scatter")
    rows = step.grid[1].tile or 0
    moved = rows * shape[1] * 2
    assert rows == 1 or 2048 <= moved <= 256 * 1024
    m, _ = (g.tile or 0 for g in plan.step("all_reduce_pushed.spread").grid)
    assert m <= rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("form", ["one_shot", "two_shot"])
def test_sums_have_room_in_registers_and_work_for_all_sms(form: str, ranks: int, dtype: torch.dtype) -> None:
    """What all ranks have sent of a tile is under way at once; a rank's part is 128 tiles or more, unless these are tiny, or
    a row, where those of few bytes go on to peers as they came."""
    for rows in (8, 512, 4096, 16384):
        x = torch.empty(rows, 2048, dtype=dtype, device="meta")
        plan = ops.all_reduce.plan(x, ranks=ranks, form=form)
        path = "all_reduce_one_shot.exchange" if form == "one_shot" else "all_reduce_pushed.spread"
        each = math.prod(g.tile or 1 for g in plan.step(path).grid)
        assert each * dtype.itemsize * ranks <= 128 * 1024
        assert each <= 32768
        part = rows * 2048 // (1 if form == "one_shot" else ranks)
        assert part // each >= 128 or each * dtype.itemsize <= 4096 or (plan.ll and each == 2048)


# ------------------------------------------------------------------------------------------------------------- resharding
RANK_COUNTS = [(1, 5), (2, 13), pytest.param(3, 10, marks=pytest.mark.each_triton), (4, 2), (8, 9)]


def test_what_was_pushed_is_kept_by_a_copy_engine() -> None:
    """Every rank has an instance of its own of what it takes: it is taken from there."""
    x = random(13, 3, 4)
    engine = {f"all_gather_pushed.{step}": tilelink.copy_engine(M=2) for step in ("gather", "keep")}
    assert_as_torch(ops.all_gather.schedule(engine), Problem(each(split(x, 3)), [(x,)] * 3, {"M": 13}))


@pytest.mark.parametrize(("ranks", "m"), RANK_COUNTS)
def test_all_gather(ranks: int, m: int) -> None:
    x = random(m, 3, 4)
    assert_as_torch(ops.all_gather, Problem(each(split(x, ranks)), [(x,)] * ranks, {"M": m}))


@pytest.mark.parametrize(("ranks", "m"), RANK_COUNTS)
def test_reduce_scatter(ranks: int, m: int) -> None:
    x = random(ranks, m, 20)
    assert_as_torch(ops.reduce_scatter, Problem([(one,) for one in x], each(split(x.sum(0), ranks))))


@pytest.mark.parametrize(("ranks", "m"), RANK_COUNTS)
def test_all_to_all(ranks: int, m: int) -> None:
    """What ranks have for one another differs in length where the rows do not divide."""
    x = random(ranks, m, 3)
    assert_as_torch(ops.all_to_all, Problem([(one,) for one in x], each(split(x, ranks, 1))))


OF_WHAT_RANKS_HAVE: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_gather": lambda x: [x.flatten(0, 1)] * len(x),
    "all_to_all": lambda x: x.unflatten(1, (len(x), -1)).transpose(0, 1),
    "reduce_scatter": lambda x: x.sum(0).unflatten(0, (len(x), -1)),
    "all_reduce_two_shot": lambda x: [x.sum(0)] * len(x),
}
"""Of inputs `[rank, rows, …]`, what each rank gets."""


@pytest.mark.parametrize("name", OF_WHAT_RANKS_HAVE)
def test_calls_of_other_sizes_between(name: str) -> None:
    """Flags of one call are others in the next; their totals go on. The first is the largest: memory is not made anew."""
    sizes = [random(2, m, 1024) for m in (20, 12, 6, 6)]
    problems = [Problem(each(list(x)), each(list(OF_WHAT_RANKS_HAVE[name](x)))) for x in sizes]
    assert_solves(getattr(ops, name), problems, device=FEW)


@pytest.mark.parametrize(
    ("ranks", "s", "heads"),
    [(1, 5, 3), (2, 8, 4), pytest.param(3, 10, 4, marks=pytest.mark.each_triton), (4, 3, 8), (8, 16, 8)],
)
def test_positions_for_heads_and_back(ranks: int, s: int, heads: int) -> None:
    x = random(s, heads, 3)
    assert_as_torch(ops.ulysses, Problem(each(split(x, ranks)), each(split(x, ranks, 1)), {"S": s}))
    assert_as_torch(ops.ulysses_back, Problem(each(split(x, ranks, 1)), each(split(x, ranks)), {"H": heads}))


# ------------------------------------------------------------------------------------------------------- behind a product
def summed(ranks: int, m: int, dtype: torch.dtype = torch.float32, n: int = 20, k: int = 18) -> Problem:
    x, w = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    return Problem(each(split(x, ranks, 1), split(w, ranks)), [(x.float() @ w.float(),)] * ranks, {"K": k})


TILE = tilelink.sms(M=16, N=16, K=16)
NEXT = tilelink.sms(M=16, N=16, K=16, order="ring+1")
PRODUCTS = {
    "one shot": ops.gemm_ar_one_shot.schedule(matmul=TILE),
    "one shot, exchanged behind": ops.gemm_ar_one_shot.schedule(matmul=TILE, exchange=tilelink.sms(M=8, N=16)),
    "two shots": ops.gemm_ar_two_shot.schedule({"gemm_rs.matmul": NEXT}),
    "two shots, pushed from the epilogue": ops.gemm_ar_two_shot.schedule(
        {"gemm_rs.matmul": NEXT, "gemm_rs.scatter": tilelink.fused("gemm_rs.matmul")}
    ),
}


@pytest.mark.parametrize(
    ("name", "ranks", "m"),
    [
        *((n, ranks, m) for n in PRODUCTS for ranks, m in ((1, 5), (4, 1))),
        *(pytest.param(n, 3, 13, marks=pytest.mark.each_triton) for n in PRODUCTS),
        ("one shot, exchanged behind", 8, 17),
        ("two shots, pushed from the epilogue", 8, 17),
    ],
)
def test_gemm_ar(name: str, ranks: int, m: int) -> None:
    assert_as_torch(PRODUCTS[name], summed(ranks, m))


@pytest.mark.each_triton
def test_gemm_ar_as_it_comes() -> None:
    assert_as_torch(ops.gemm_ar, summed(2, 13, torch.bfloat16))
    plan = ops.gemm_ar.plan(torch.empty(32768, 8), torch.empty(8, 128), ranks=2)
    assert {s.path.partition(".")[0] for s in plan.steps} == {"gemm_ar_two_shot"}
    with pytest.raises(tilelink.TilelinkError, match="TL248: `gemm_ar` has no form 'ring'"):
        ops.gemm_ar.plan(torch.empty(4, 4), torch.empty(4, 4), ranks=2, form="ring")
