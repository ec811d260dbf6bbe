# pyright: reportArgumentType=false
"""Fused steps whose tiles are not their host's as they stand: turned, split along columns, of several tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import plan_of
from tests.operators.problems import Problem, assert_as_torch, assert_solves, each, part, random, split
from tests.operators.test_copy_programs import made_and_gathered
from tests.selection import table
from tilelink import Operator, copy_engine, fused, sms
from tilelink.errors import TilelinkError
from tilelink.ops.programs import gather, matmul, move, reduce, scatter


@tilelink.program("s M N -> N M")
def turned(inbox: Any, out: Any) -> None:
    n, m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m, n))
        acc += tl.trans(tl.tile_load(inbox, (s, m, n)))
    tl.tile_store(out, (n, m), acc)


@tilelink.program("M K, K N -> M N, M N")
def twice(rows: Any, weight: Any, first: Any, second: Any) -> None:
    m, n = tl.tile_id(first)
    acc = tl.zeros(tl.tile_shape(first), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(first, (m, n), acc)
    tl.producer_tile_notify(first, (m, n))
    tl.tile_store(second, (m, n), 2 * acc)
    tl.producer_tile_notify(second, (m, n))


@tilelink.program("s M N, s M N -> M N")
def difference(first: Any, second: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(first, axis=0):
        tl.consumer_tile_wait(first, (s, m, n))
        tl.consumer_tile_wait(second, (s, m, n))
        acc += 3 * tl.tile_load(first, (s, m, n)) - tl.tile_load(second, (s, m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.program("s M N -> M N")
def by_slices(inbox: Any, out: Any) -> None:
    """Waits for all that a rank sends."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, s)
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)


columns = tilelink.program("R/R M N -> R M N/R", name="columns")(move)
blocks = tilelink.program("R/R M N -> R M/R N", name="blocks")(move)


@tilelink.operator("M K/R, K/R N -> N M/R")
def to_turned(x: Any, weight: Any) -> Any:
    return turned(scatter(matmul(x, weight)))


@tilelink.operator("M K/R, K/R N -> M N/R")
def to_columns(x: Any, weight: Any) -> Any:
    return reduce(columns(matmul(x, weight)))


@tilelink.operator("M K/R, K/R N -> M/R N")
def in_blocks(x: Any, weight: Any) -> Any:
    return reduce(blocks(matmul(x, weight)))


@tilelink.operator("M K/R, K/R N -> M/R N")
def in_slices(x: Any, weight: Any) -> Any:
    return by_slices(scatter(matmul(x, weight)))


@tilelink.operator("M K/R, K/R N -> M/R N")
def of_two(x: Any, weight: Any) -> Any:
    first, second = twice(x, weight)
    return difference(scatter(first, name="one"), scatter(second, name="two"))


@tilelink.operator("M K/R, K/R N -> M/R N, M/R N")
def summed_twice(x: Any, weight: Any) -> Any:
    sums = scatter(matmul(x, weight))
    return reduce(sums, name="left"), reduce(sums, name="right")


hand_out = tilelink.program("R/R M ..., R M/R ...", name="hand_out")(move)


@tilelink.operator("M K/R, K/R N -> M/R N")
def into_declared(x: Any, weight: Any) -> Any:
    """Its copy program makes nothing, and fills what the operator declares."""
    partial = matmul(x, weight)
    inbox = tilelink.symmetric("R M/R N", like=partial)
    hand_out(partial, inbox)
    return reduce(inbox)


TILES = sms(3, M=16, N=32, K=16, order="ring+1")
ROWS, COLUMNS = copy_engine(M=16, order="ring+1"), copy_engine(N=32, order="ring+1")
CASES: dict[str, tuple[Operator, dict[str, Any]]] = {
    "turned": (to_turned, {"matmul": TILES, "scatter": ROWS, "turned": fused("matmul", deferred=False)}),
    "turned, deferred": (to_turned, {"matmul": TILES, "scatter": ROWS, "turned": fused("matmul", deferred=True)}),
    "columns, pieces": (to_columns, {"matmul": TILES, "columns": COLUMNS, "reduce": fused("matmul", N=16)}),
    "columns, behind": (
        to_columns,
        {"matmul": TILES, "columns": COLUMNS, "reduce": fused("matmul", N=16, deferred=True)},
    ),
    "two tensors, behind": (
        of_two,
        {"twice": TILES, "one": ROWS, "two": ROWS, "difference": fused("twice", N=16, deferred=True)},
    ),
    "two tensors in chunks of two lengths, behind": (
        of_two,
        {
            "twice": TILES,
            "one": copy_engine(M=32, order="ring+1"),
            "two": ROWS,
            "difference": fused("twice", N=16, deferred=True),
        },
    ),
    "a declared tensor": (
        into_declared,
        {"matmul": TILES, "hand_out": fused("matmul"), "reduce": fused("matmul")},
    ),
    "blocks, behind": (
        in_blocks,
        {
            "matmul": TILES,
            "blocks": copy_engine(M=16, N=32, order="ring+1"),
            "reduce": fused("matmul", N=16, deferred=True),
        },
    ),
    "chunks that end inside a tile, behind": (
        in_blocks,
        {"matmul": TILES, "blocks": copy_engine(M=20, order="ring+1"), "reduce": fused("matmul", N=16, deferred=True)},
    ),
    "slices, behind": (
        in_slices,
        {
            "matmul": TILES,
            "scatter": sms(1, M=16, order="ring+1", own_kernel=True),
            "by_slices": fused("matmul", N=16, deferred=True),
        },
    ),
    "two sums, behind": (
        summed_twice,
        {
            "matmul": TILES,
            "scatter": ROWS,
            "left": fused("matmul", N=16, deferred=True),
            "right": fused("matmul", deferred=True),
        },
    ),
}


def expected(name: str, total: torch.Tensor, rank: int, ranks: int) -> tuple[torch.Tensor, ...]:
    if name.startswith("columns"):
        return (total[:, part(total.shape[1], rank, ranks)],)
    own = total[part(total.shape[0], rank, ranks)]
    return (own.t(),) if name.startswith("turned") else (own, own) if name.startswith("two sums") else (own,)


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    """Three ranks, tiles that end inside a part, twice: what counts the work indices begins anew."""
    operator, placements = CASES[name]
    xs, ws = ([random(*shape, seed=r, dtype=torch.bfloat16) for r in range(3)] for shape in ((70, 16), (16, 100)))
    total = torch.stack([x.float() @ w.float() for x, w in zip(xs, ws, strict=True)]).sum(0)
    problem = Problem(each(xs, ws), [expected(name, total, rank, 3) for rank in range(3)])
    assert_solves(operator.schedule(placements), [problem] * 2, seed=1, straggler=2)


@table("name", CASES)
def test_the_plan_is_right(name: str) -> None:
    operator, placements = CASES[name]
    plan = plan_of(operator, 3, {"M": 70, "K": 48, "N": 100}, **placements)
    assert_right(plan)


def test_pieces_are_of_the_host_s_columns() -> None:
    """A step that turns the tile would be given rows of it."""
    placed = {"matmul": sms(M=64, N=128, K=16, order="ring+1"), "scatter": ROWS}
    sizes = {"M": 256, "K": 32, "N": 256}
    assert plan_of(to_turned, 2, sizes, **placed, turned=fused("matmul")).step("turned").subtiles == 1
    with pytest.raises(TilelinkError, match="TL325"):
        plan_of(to_turned, 2, sizes, **placed, turned=fused("matmul", M=32))


@tilelink.program("M h K, h K N -> M h N")
def by_heads(rows: Any, weight: Any, out: Any) -> None:
    m, h, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=1):
        acc = tl.dot(tl.tile_load(rows, (m, h, k)), tl.tile_load(weight, (h, k, n)), acc)
    tl.tile_store(out, (m, h, n), acc)
    tl.producer_tile_notify(out, (m, h, n))


@tilelink.program("s M h N -> M N")
def over_heads(inbox: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for h in tl.tiles(inbox, axis=2):
        for s in tl.tiles(inbox, axis=0):
            tl.consumer_tile_wait(inbox, (s, m, h, n))
            acc += tl.tile_load(inbox, (s, m, h, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.operator("M h K/R, h K/R N -> M/R N")
def heads_summed(x: Any, weight: Any) -> Any:
    return over_heads(scatter(by_heads(x, weight)))


@table("deferred", [False, True])
def test_a_tile_for_several_of_the_host_s(deferred: bool) -> None:
    """It would be made once for each of them."""
    placed = {"by_heads": TILES, "scatter": ROWS, "over_heads": fused("by_heads", deferred=deferred)}
    with pytest.raises(TilelinkError, match="TL316") as caught:
        plan_of(heads_summed, 2, {"M": 64, "h": 3, "K": 32, "N": 32}, **placed)
    assert caught.value.message == (
        "`over_heads` cannot be fused into `by_heads`: it has no axis `h`, along which there are several tiles"
    )


def test_a_movement_over_all_ranks_behind_a_program_of_one_part() -> None:
    """It would send each tile to where the first rank's lies."""
    with pytest.raises(TilelinkError, match="TL316") as caught:
        plan_of(made_and_gathered, 2, {"M": 64, "K": 32}, doubled=sms(M=8, K=32), gather=fused("doubled"))
    assert caught.value.message == (
        "`gather` cannot be fused into `doubled`: `doubled` counts `M` from the begin of its rank's part,"
        " and `gather` over all ranks"
    )


@table("axes", [(0, 0), (1, 0)])
def test_the_proof_sees_both(axes: tuple[int, int]) -> None:
    """The same tile once for each tile of its host, and pieces that are not columns of the host's tile."""
    operator, placements = CASES["columns, pieces"]
    plan = plan_of(operator, 2, {"M": 64, "K": 32, "N": 64}, **placements)
    assert_right(plan)
    steps = tuple(replace(s, host_axes=axes, own_axis=axes[1]) if s.path == "reduce" else s for s in plan.steps)
    assert_refused(replace(plan, steps=steps), "TL604")


@tilelink.program("M N -> M N")
def softened(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    rows = tl.tile_load(x, (m, n), other=float("-inf"))
    weight = tl.exp(rows - tl.max(rows, 1)[:, None])
    tl.tile_store(out, (m, n), weight / tl.sum(weight, 1)[:, None])


@tilelink.operator("M/R K, K N -> M N")
def ag_softmax(x: Any, weight: Any) -> Any:
    return softened(matmul(gather(x), weight))


@pytest.mark.parametrize(
    "placed", [tilelink.sms(M=16, N=128), tilelink.fused("matmul"), tilelink.fused("matmul", N=128)], ids=str
)
def test_what_takes_a_row_together_gets_all_of_it(placed: Any) -> None:
    """100 columns in one tile of 128, of which a fused program that takes each element by itself would get 64 at a time."""
    x, weight = torch.randn(14, 20), torch.randn(20, 100)
    operator = ag_softmax.schedule(matmul=tilelink.sms(M=16, N=128, K=32), softened=placed)
    assert_as_torch(operator, Problem(each(split(x, 2), [weight] * 2), [((x @ weight).softmax(1),)] * 2))


@pytest.mark.parametrize(
    ("matmul_tile", "placed", "code"),
    [
        (128, tilelink.fused("matmul", N=64), "TL325"),
        (64, tilelink.fused("matmul"), "TL336"),
        (128, tilelink.sms(M=16, N=64), "TL336"),
    ],
    ids=str,
)
def test_what_takes_a_row_together_gets_no_part_of_it(matmul_tile: int, placed: Any, code: str) -> None:
    operator = ag_softmax.schedule(matmul=tilelink.sms(M=16, N=matmul_tile, K=32), softened=placed)
    with pytest.raises(TilelinkError, match=code):
        operator.plan([torch.randn(7, 20)] * 2, [torch.randn(20, 100)] * 2)


def test_why_a_whole_tile_is_in_no_subtiles() -> None:
    tensors = [torch.randn(7, 20)] * 2, [torch.randn(20, 100)] * 2
    operator = ag_softmax.schedule(matmul=tilelink.sms(M=16, K=32), softened=tilelink.fused("matmul", N=64))
    with pytest.raises(TilelinkError, match="TL325") as refused:
        operator.plan(*tensors)
    assert refused.value.why == "`max` takes the columns of a tile together, and a subtile has some of them"
    placed = {"matmul": sms(N=64, K=16), "scatter": ROWS, "turned": fused("matmul", M=32)}
    with pytest.raises(TilelinkError, match="TL325") as refused:
        plan_of(to_turned, 2, {"M": 256, "K": 32, "N": 256}, **placed)
    assert refused.value.hint == "give `matmul` a tile along `M`, or leave the tile size out"


def test_nothing_is_fused_into_what_only_moves() -> None:
    operator = tilelink.operator("M/R N -> M N", name="moved")(lambda x: softened(gather(x)))
    placed = operator.schedule(gather=tilelink.sms(2, M=4, push=False), softened=tilelink.fused("gather"))
    with pytest.raises(TilelinkError, match="TL312") as refused:
        placed.plan([torch.randn(4, 16)] * 2)
    assert refused.value.why == "`gather` only moves its tiles, and nothing runs behind one"
