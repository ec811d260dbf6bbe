"""Copy programs of small tensors by the LL protocol: workers store words to peers, and take their own as they come."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.selection import table
from tests.simulated.programs import called, numbers
from tilelink import Operator, ops
from tilelink.ops.all_reduce import pushed as two_shots
from tilelink.ops.programs import fetch, gather, keep

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
RANKS = 3


def words_of(operator: Operator, *arguments: torch.Tensor, ranks: int = RANKS) -> set[str]:
    plan = operator.plan(*arguments, ranks=ranks)
    assert plan.epoch_signalled
    return {c.tensor for c in plan.channels} if plan.ll else set()


@table(
    "operator, tensors",
    [
        (ops.all_gather, {"all_gather_pushed_gather_rows"}),
        (ops.reduce_scatter, {"dst"}),
        (ops.all_to_all, {"dst"}),
        (two_shots, {"dst", "spread_rows"}),
    ],
)
def test_collectives(operator: Operator, tensors: set[str]) -> None:
    assert words_of(operator, torch.empty(6, 64, dtype=BF16)) == tensors
    assert words_of(operator.schedule(ll=False), torch.empty(6, 64, dtype=BF16)) == set()


@table("columns", [40, 2048, 8192])
def test_two_shots_take_as_many_sums_at_once_as_peers_keep(columns: int) -> None:
    """Whoever keeps a tile waits for one tile of sums: where these were two, flags of their own would have to count them."""
    plan = ops.all_reduce.plan(torch.empty(8, columns, dtype=BF16), ranks=2, form="two_shot")
    assert plan.ll
    assert len(plan.channels) == 2


@table(
    "shape, dtype, words",
    [
        ((5, 63), F32, True),
        ((5, 63), BF16, False),  # a row is half a word too long
        ((5, 64), BF16, True),
        ((6,), BF16, True),
        ((5,), BF16, False),  # the second part begins inside a word
        ((5,), F32, True),
        ((5, 64), torch.int8, False),
        ((2, 3, 64), F16, True),
        ((2, 3, 5), F16, False),
    ],
)
def test_by_whole_flags(shape: tuple[int, ...], dtype: torch.dtype, words: bool) -> None:
    assert bool(words_of(ops.all_gather, torch.empty(shape, dtype=dtype))) == words


@tilelink.operator("M/R ... -> M ...", name="rows_of_all")
def rows_of_all(x: Any) -> Any:
    return keep(gather(x))


@table("tile, words", [(1, False), (2, True), (3, False), (4, True), (None, True)])
def test_by_tiles_of_whole_flags(tile: int | None, words: bool) -> None:
    placed = rows_of_all.schedule(
        gather=tilelink.sms(push=True) if tile is None else tilelink.sms(M=tile, push=True),
        keep=tilelink.sms(M=4),
    )
    assert bool(words_of(placed, torch.empty(8, dtype=F16))) == words


def test_not_what_peers_take() -> None:
    """Of two copy programs the second would look at words of other ranks."""
    x = torch.empty(6, 64, dtype=BF16)
    assert words_of(ops.all_reduce_two_shot, x) == set()


# ---------------------------------------------------------------------------------------------------------------- runs
SHAPES = [((4, 64), BF16), ((7, 96), F16), ((3, 33), F32), ((1, 2), BF16), ((5, 3, 14), F16), ((4, 33), BF16)]
"""Ragged parts, some of them empty; and one that is signalled."""


def right(call: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    ranks, rank = tilelink.ranks(), tilelink.rank()
    all_of_it = [numbers(shape, dtype, call, r) for r in range(ranks)]
    part = -(-shape[0] // ranks)
    mine = slice(part * rank, part * (rank + 1))
    x = all_of_it[rank]
    found = [torch.equal(ops.all_gather(x), torch.cat(all_of_it))]
    sent = ops.all_to_all(x)
    found += [torch.equal(sent[r], t[mine]) for r, t in enumerate(all_of_it)]
    if len(shape) == 2:
        total = sum(t.float() for t in all_of_it)
        assert isinstance(total, torch.Tensor)
        found.append(torch.equal(ops.reduce_scatter(x), total[mine].to(dtype)))
        found.append(torch.equal(two_shots(x), total.to(dtype)))
    return all(found)


@pytest.mark.each_triton
@pytest.mark.parametrize(
    ("ranks", "policy", "delayed"),
    [(1, "random-1", False), (2, "priorities-3", False), (3, "straggler-0-2", True), (3, "random-1", True)],
)
def test_what_arrives(ranks: int, policy: str, delayed: bool) -> None:
    """However late, and in whatever order, words arrive, in call after call; nothing is unordered."""

    def main() -> list[bool]:
        return [right(call, shape, dtype) for call in range(2) for shape, dtype in SHAPES]

    found = tilelink.launch(main, ranks, policy=policy, delayed_stores=delayed)
    assert found == [[True] * 2 * len(SHAPES)] * ranks


gather_columns = tilelink.program("M N/R -> M N", name="gather_columns")(fetch)
keep_columns = tilelink.program("M N -> M N", name="keep_columns")(fetch)


@tilelink.operator("M N/R -> M N", name="columns_of_all")
def columns_of_all(x: Any) -> Any:
    return keep_columns(gather_columns(x))


@pytest.mark.parametrize(("columns", "words"), [(8, True), (7, False)])
def test_runs_inside_rows(columns: int, words: bool) -> None:
    """Tiles that are cut along the last axis move row by row, each from a word on."""
    placed = columns_of_all.schedule(
        gather_columns=tilelink.sms(M=2, N=4, push=True), keep_columns=tilelink.sms(M=2, N=6)
    )
    x = [numbers((5, columns), BF16, 0, r) for r in range(2)]
    assert bool(words_of(placed, x[0], ranks=2)) == words
    for y in placed(x):
        assert torch.equal(y, torch.cat(x, 1))


def test_nothing_is_signalled() -> None:
    x = torch.empty(6, 64, dtype=BF16)
    assert called(ops.all_gather.source(x, ranks=RANKS)) == ["ptr", "ll_store_block", "ll_load_block"]
    assert called(two_shots.source(x, ranks=RANKS)) == [
        "ptr", "ll_store_block", "ll_pack", "ll_load", "ptr", "ll_load_block",
    ]  # fmt: skip
