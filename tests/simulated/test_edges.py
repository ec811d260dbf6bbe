"""What lies past an edge of an axis, or of a rank's part of it, does not come into results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

import tilelink
import tilelink.language as tl
from tests.operators.problems import alone
from tilelink import sms
from tilelink.frontend.program import Program


@tilelink.program("M N -> M N")
def normalized(x: Any, out: Any) -> None:
    """Layer norm in three walks of the columns, under the mask of each tile."""
    m, _ = tl.tile_id(out)
    rows = tl.tile_range(out, m)
    total, squares = tl.zeros(rows.shape, tl.float32), tl.zeros(rows.shape, tl.float32)
    for t in tl.tiles(x, axis=1):
        total += tl.sum(tl.where(tl.tile_mask(x, t), tl.tile_load(x, (m, t)), 0.0), 1)
    mean = total / tl.size(x, 1)
    for t in tl.tiles(x, axis=1):
        off = tl.where(tl.tile_mask(x, t), tl.tile_load(x, (m, t)) - mean[:, None], 0.0)
        squares += tl.sum(off * off, 1)
    scale = 1.0 / tl.sqrt(squares / tl.size(x, 1) + 1e-5)
    tl.tile_store(out, m, (tl.tile_load(x, m) - mean[:, None]) * scale[:, None])


@pytest.mark.parametrize("columns", [1, 7, 8, 33, 100])
@pytest.mark.parametrize("rows", [None, 4])
def test_a_tile_that_is_a_whole_axis_has_lanes_past_its_end(columns: int, rows: int | None) -> None:
    x = torch.randn(9, columns)
    op = alone(normalized) if rows is None else alone(normalized).schedule(normalized=sms(M=rows))
    torch.testing.assert_close(op([x])[0], torch.nn.functional.layer_norm(x, (columns,)), rtol=1e-4, atol=1e-4)


@tilelink.program("V N/R, C i32 -> C N/R, C")
def looked_up(table: Any, ids: Any, rows: Any, sums: Any) -> None:
    c, _ = tl.tile_id(rows)
    found = tl.tile_load(table, (tl.tile_load(ids, c, other=-1),))
    tl.tile_store(rows, c, found)
    tl.tile_store(sums, c, tl.sum(found, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 5, 8, 11])
def test_a_whole_axis_that_is_split_is_this_ranks_part(ranks: int, columns: int) -> None:
    tables = [torch.randn(5, columns) for _ in range(ranks)]
    ids = torch.tensor([4, 0, 2], dtype=torch.int32)
    for (rows, sums), table in zip(alone(looked_up)(tables, [ids] * ranks, N=ranks * columns), tables, strict=True):
        torch.testing.assert_close(rows, table[ids.long()])
        torch.testing.assert_close(sums, table[ids.long()].sum(1))


@tilelink.program("M N/R -> M")
def of_part(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    total = tl.zeros(tl.tile_shape(out), tl.float32)
    for t in tl.tiles(x, axis=1):
        keep = (tl.tile_range(x, t) < tl.tile_end(x, t))[None, :]
        total += tl.sum(tl.where(keep, tl.exp(tl.tile_load(x, (m, t))), 0.0), 1)
    tl.tile_store(out, m, total)


def test_the_end_of_a_tile_says_what_counts_of_a_part() -> None:
    assert [out.tolist() for out in alone(of_part)([torch.zeros(2, 5)] * 3, N=15)] == [[5.0, 5.0]] * 3


@tilelink.program("M N -> M")
def least(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    tl.tile_store(out, m, tl.min(tl.tile_load(x, m, other=float("inf")), 1))


def test_integers_have_no_infinity() -> None:
    x = torch.full((1, 3), 5)
    least_of_rows = alone(least)
    assert least_of_rows([x.float()])[0].tolist() == [5.0]
    for dtype, wanted in ((torch.int8, "other=127"), (torch.int32, "other=2147483647"), (torch.uint8, "other=255")):
        with pytest.raises(tilelink.TilelinkError, match="TL337") as caught:
            least_of_rows([x.to(dtype)])
        assert wanted in str(caught.value)


@tilelink.program("M N -> M")
def filled(x: Any, out: Any, *, filler: int) -> None:
    m = tl.tile_id(out)
    inside = tl.tile_range(x, axis=1) < tl.size(x, 1)
    tl.tile_store(out, m, tl.sum(tl.where(inside[None, :], tl.tile_load(x, m, other=filler), 0), 1))


@tilelink.program("M N -> M")
def between(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    inside = tl.tile_range(x, axis=1) < tl.size(x, 1)
    tl.tile_store(out, m, tl.sum(tl.where(inside[None, :], tl.tile_load(x, m, other=-0.5), 0), 1))


@tilelink.operator("M N -> M")
def sums_of_rows(x: Any, *, filler: int | None = None) -> Any:
    return between(x) if filler is None else filled(x, filler=filler)


@pytest.mark.parametrize(
    ("dtype", "filler", "hint"),
    [
        (torch.int8, -1000, "-128"),
        (torch.uint8, -1, "0"),
        (torch.uint8, 256, "255"),
        (torch.int32, -4294967296, "-2147483648"),
        (torch.int32, None, "0"),
        (torch.int8, -128, ""),
        (torch.uint8, 255, ""),
        (torch.float32, None, ""),
    ],
)
def test_what_a_load_of_integers_gives_past_an_edge_is_one(dtype: torch.dtype, filler: int | None, hint: str) -> None:
    given: dict[str, Any] = {} if filler is None else {"filler": filler}
    x = torch.ones(1, 3).to(dtype)
    if not hint:
        assert sums_of_rows([x], **given)[0].tolist() == [3]
        return
    with pytest.raises(tilelink.TilelinkError, match="TL337") as caught:
        sums_of_rows([x], **given)
    assert f"`other={hint}`" in str(caught.value)


@tilelink.program("P/start N, e+1 i32 offsets -> P/start N")
def below_the_greatest(x: Any, start: Any, out: Any) -> None:
    p, n = tl.tile_id(out)
    v = tl.tile_load(x, (p, n), other=float("-inf"))
    tl.tile_store(out, (p, n), v - tl.max(v, 0)[None, :])


def test_what_is_taken_together_of_segments_hangs_on_the_schedule() -> None:
    start = torch.tensor([0, 5, 40], dtype=torch.int32)
    with pytest.raises(tilelink.TilelinkError, match=r"TL336: .* has as many of them as `start` says"):
        alone(below_the_greatest)([torch.arange(40.0)[:, None]], [start])


@tilelink.program("M N/R -> M")
def by_the_axis(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    total = tl.zeros(tl.tile_shape(out), tl.float32)
    for t in tl.tiles(x, axis=1):
        keep = (tl.tile_range(x, t) < tl.size(x, 1))[None, :]
        total += tl.sum(tl.where(keep, tl.exp(tl.tile_load(x, (m, t))), 0.0), 1)
    tl.tile_store(out, m, total)


@triton.jit
def larger(a, b):  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    return tl.maximum(a, b)


@tilelink.program("M N -> M N")
def from_the_end(x: Any, out: Any) -> None:
    m, _ = tl.tile_id(out)
    tl.tile_store(out, m, tl.associative_scan(tl.tile_load(x, m), 1, larger, reverse=True))


@tilelink.program("M N -> M N")
def decided(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    if tl.sum(tl.sum(value, 1), 0) > 300:
        value = -value
    tl.tile_store(out, (m, n), value)


@tilelink.program("M N -> M N")
def as_often_as_all_need(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    while tl.max(tl.max(tl.abs(value), 1), 0) > 0.5:
        value = value * 0.5
    tl.tile_store(out, (m, n), value)


@tilelink.program("M N -> M N")
def as_often_as_each_needs(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    while tl.max(tl.max(tl.abs(value), 1), 0) > 0.5:
        value = tl.where(tl.abs(value) > 0.5, value * 0.5, value)
    tl.tile_store(out, (m, n), value)


@tilelink.program("M N -> M")
def mean_of_means(x: Any, out: Any) -> None:
    m, means, tiles = tl.tile_id(out), tl.zeros(tl.tile_shape(out), tl.float32), 0
    for n in tl.tiles(x, axis=1):
        means += tl.sum(tl.tile_load(x, (m, n)), 1) / (tl.tile_end(x, n) - tl.tile_begin(x, n))
        tiles += 1
    tl.tile_store(out, m, means / tiles)


@tilelink.program("M N -> M")
def from_a_tile_on(x: Any, out: Any) -> None:
    m, total = tl.tile_id(out), tl.zeros(tl.tile_shape(out), tl.float32)
    for n in tl.tiles(x, axis=1):
        if tl.tile_begin(x, n) >= 128:
            total += tl.sum(tl.tile_load(x, (m, n)), 1)
    tl.tile_store(out, m, total)


@tilelink.program("M N -> M N")
def both(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    v = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), tl.where((v > 0) and (v < 1), v, 9.0))


@tilelink.program("M N -> M N")
def neither(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    v = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), tl.where(not (v > 0), v, 9.0))


@tilelink.program("M N -> M N")
def at_least(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), max(tl.tile_load(x, (m, n)), 0.0))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (by_the_axis, "TL143"),
        (from_the_end, "TL143"),
        (decided, "TL336"),
        (as_often_as_all_need, "TL336"),
        (mean_of_means, "TL336: what is stored hangs on the tiles of `N`, and `mean_of_means` has 3"),
        (from_a_tile_on, "TL336: what is stored hangs on the tiles of `N`"),
        (both, "TL142: `and`"),
        (neither, "TL142: `not`"),
        (at_least, "TL142: `max`"),
    ],
)
def test_what_would_be_another_number_is_refused(program: Program, code: str) -> None:
    op = alone(program).schedule({program.name: sms(M=16, N=16) if "TL336" in code else sms(M=16)})
    given: dict[str, Any] = {"N": 80} if "N/R" in str(program.signature) else {}
    with pytest.raises(tilelink.TilelinkError, match=code):
        op([torch.ones(4, 40)] * 2, **given)


def test_a_walk_of_one_tile_says_nothing_about_others() -> None:
    op = alone(mean_of_means).schedule(mean_of_means=sms(M=4, N=64))
    x = torch.rand(5, 40)
    torch.testing.assert_close(op([x])[0], x.mean(1))


def test_a_loop_that_goes_on_for_all_may_change_each_by_itself() -> None:
    op = alone(as_often_as_each_needs)
    x = 8 * torch.rand(5, 6)
    want = x.clone()
    while (want > 0.5).any():
        want = torch.where(want > 0.5, want / 2, want)
    torch.testing.assert_close(op.schedule(as_often_as_each_needs=sms(M=2, N=4))([x])[0], want)


@tilelink.program("M N -> M i32")
def likeliest(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    weight = tl.exp(tl.tile_load(x, m, other=float("-inf")))
    tl.tile_store(out, m, tl.argmax(weight / tl.sum(weight, 1)[:, None], 1))


def test_rows_past_an_edge_may_be_no_numbers() -> None:
    x = torch.randn(5, 8)
    op = alone(likeliest).schedule(likeliest=sms(M=4))
    assert torch.equal(op([x])[0], x.argmax(1).int())
