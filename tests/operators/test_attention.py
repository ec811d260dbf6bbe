# pyright: reportArgumentType=false
"""The library's attention against torch: one to eight ranks, ragged parts, head sizes, groups, packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import Problem, assert_as_torch, each, random, split
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, ops, sms
from tilelink.ir.topology import Device
from tilelink.ops.flash_decode import parts_of, putting_together

T = torch.Tensor
FLASH = sms(S=16, T=16)
GATHERS = {"gather_k": sms(1, M=8), "gather_v": sms(1, M=8)}
AG = ops.ag_attention.schedule({**GATHERS, "flash": FLASH})
VARLEN = ops.ag_attention_varlen.schedule({**GATHERS, "flash_varlen": FLASH})
PASS = sms(1, T=8, order="ring")
RING = ops.ring_attention.schedule({"hand_on_k": PASS, "hand_on_v": PASS, "flash": FLASH})
ZIGZAG = ops.ag_attention_zigzag.schedule(
    {**GATHERS, "deal": copy_engine(S=4), "flash_there": sms(S=4, T=16), "settle": sms(S=8)}
)
KINDS: dict[str, Operator] = {"gathered": AG, "ring": RING}


def expected(q: T, k: T, v: T, *, causal: bool, starts: T | None = None, scale: float | None = None) -> T:
    """By scores written out, in fp32."""
    many = [t.float().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(0, 1) for t in (k, v)]
    score = q.float().transpose(0, 1) @ many[0].transpose(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    at = torch.arange(len(q))
    keep = (at[None, :] <= at[:, None]) | (not causal)
    if starts is not None:
        sequence = torch.searchsorted(starts[1:].contiguous(), at, right=True)
        keep = keep & (sequence[None, :] == sequence[:, None])
    return (score.masked_fill(~keep, float("-inf")).softmax(-1) @ many[1]).transpose(0, 1)


def problem(
    ranks: int, s: int, *, heads: int = 2, groups: int = 1, d: int = 16, dtype: torch.dtype = torch.float32,
    causal: bool = True, starts: list[int] | None = None, **given: Any,
) -> Problem:  # fmt: skip
    q, k, v = (
        random(s, heads, d, dtype=dtype),
        random(s, groups, d, dtype=dtype),
        random(s, groups, d, seed=1, dtype=dtype),
    )
    table = None if starts is None else torch.tensor(starts, dtype=torch.int32)
    wanted = expected(q, k, v, causal=causal, starts=table, scale=given.get("scale"))
    more = [] if table is None else [[table] * ranks]
    inputs = each(split(q, ranks), split(k, ranks), split(v, ranks), *more)
    return Problem(inputs, each(split(wanted, ranks)), {"S": s, **({} if causal else {"causal": False}), **given})


@pytest.mark.parametrize(
    ("ranks", "s", "causal"),
    [
        (1, 20, True),
        (2, 40, False),
        pytest.param(3, 29, True, marks=pytest.mark.each_triton),
        (3, 29, False),
        (4, 5, True),
        (8, 24, True),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_rank_counts(kind: str, ranks: int, s: int, causal: bool) -> None:
    """Parts that tiles cross, a last rank with fewer rows, with one row, and with none."""
    assert_as_torch(KINDS[kind], problem(ranks, s, causal=causal))


@pytest.mark.parametrize("d", [64, pytest.param(96, marks=pytest.mark.each_triton), 128, 192, 256])
def test_head_sizes(d: int) -> None:
    """Also those that are no power of two, in bf16."""
    assert_as_torch(AG, problem(2, 20, heads=1, d=d, dtype=torch.bfloat16))


@pytest.mark.parametrize(("heads", "groups"), [(3, 3), (4, 2), (6, 1)])
def test_groups_of_heads_share_keys(heads: int, groups: int) -> None:
    assert_as_torch(AG, problem(2, 18, heads=heads, groups=groups))


@table("scale", [0.3, 1e-30])
def test_a_scale_of_ones_own(scale: float) -> None:
    assert_as_torch(AG, problem(2, 18, scale=scale))


@table("operator", [AG, ops.ring_attention, ops.ag_attention_zigzag, ops.ag_attention_varlen])
def test_heads_that_cannot_share_keys_evenly(operator: tilelink.Operator) -> None:
    """Some heads would share a head of keys with more others than the rest do, without a word."""
    q, k, v = torch.zeros(8, 4, 16), *torch.zeros(2, 8, 3, 16)
    given = [torch.tensor([0, 8], dtype=torch.int32)] if operator is ops.ag_attention_varlen else []
    with pytest.raises(ValueError, match="attention of 4 heads over 3"):
        operator.plan(q, k, v, *given)


@table("scale", [0.0, -0.3])
def test_a_scale_that_is_not_positive(scale: float) -> None:
    """The greatest score would be another one once it is scaled."""
    with pytest.raises(ValueError, match="it is a positive number"):
        assert_as_torch(AG, problem(1, 4, scale=scale))


@pytest.mark.each_triton
def test_as_they_come() -> None:
    """The schedules that the operators ship, with tiles larger than what is there."""
    assert_as_torch(ops.ag_attention, problem(2, 21))
    assert_as_torch(ops.ring_attention, problem(2, 21), device=Device(sms=10))


@pytest.mark.parametrize(
    ("ranks", "starts", "causal"),
    [
        (1, [0, 7, 20], False),
        pytest.param(3, [0, 3, 3, 17, 29], True, marks=pytest.mark.each_triton),
        (3, [0, 3, 3, 17, 29], False),
        (3, [0, 29], True),
        (4, [0, 1, 2, 5], False),
        (8, [0, 11, 24], True),
    ],
)
def test_packed_sequences(ranks: int, starts: list[int], causal: bool) -> None:
    """Sequences that ranks share, an empty one, one of one position; and ranks without any."""
    assert_as_torch(VARLEN, problem(ranks, starts[-1], causal=causal, starts=starts))


@pytest.mark.parametrize(
    ("ranks", "s"),
    [
        (1, 16),
        (2, 32),
        pytest.param(3, 36, marks=pytest.mark.each_triton),
        (4, 16),
        (8, 32),
    ],
)
def test_rows_dealt_out_to_and_fro(ranks: int, s: int) -> None:
    assert_as_torch(ZIGZAG, problem(ranks, s, heads=2 if ranks < 4 else 1, chunk=4))


def test_rows_that_cannot_be_dealt_out() -> None:
    """The owner map has to change where parts end."""
    with pytest.raises(TilelinkError, match=r"^TL306"):
        assert_as_torch(ZIGZAG, problem(3, 29, chunk=4))


# ----------------------------------------------------------------------------------------------------------------- decoding
def decoded(
    ranks: int, s: int, lengths: list[int], *, d: int = 16, splits: int = 2, dtype: Any = torch.float32
) -> Problem:
    batch, groups, queries = len(lengths), 2 if ranks < 4 else 1, 4
    q, k = random(batch, groups, queries, d, dtype=dtype), random(batch, s, groups, d, dtype=dtype)
    v, table = random(batch, s, groups, d, seed=1, dtype=dtype), torch.tensor(lengths, dtype=torch.int32)
    score = torch.einsum("bgqd,bsgd->bgqs", q.float(), k.float()) * d**-0.5
    score = score.masked_fill(torch.arange(s) >= table[:, None, None, None], float("-inf")).softmax(-1)
    wanted = torch.einsum("bgqs,bsgd->bgqd", score, v.float())
    inputs = each([q] * ranks, split(k, ranks, 1), split(v, ranks, 1), [table] * ranks)
    return Problem(inputs, [(wanted,)] * ranks, {"S": s, "splits": splits})


DECODE = ops.flash_decode.schedule(partial_decode=sms(S=16))


@pytest.mark.parametrize(
    ("ranks", "s", "lengths", "splits"),
    [
        (1, 29, [29, 1], 1),
        (2, 40, [40, 21], 2),
        pytest.param(3, 29, [29, 3], 2, marks=pytest.mark.each_triton),
        (4, 5, [2], 2),
        (8, 17, [17], 1),
    ],
)
def test_decoding(ranks: int, s: int, lengths: list[int], splits: int) -> None:
    """Caches that are filled in part, ranks without a position of them or with one, parts of a rank without any."""
    assert_as_torch(DECODE, decoded(ranks, s, lengths, splits=splits))


@pytest.mark.parametrize("d", [64, pytest.param(192, marks=pytest.mark.each_triton)])
def test_decoding_in_bf16(d: int) -> None:
    assert_as_torch(ops.flash_decode, decoded(2, 70, [70, 33], d=d, splits=0, dtype=torch.bfloat16))


def test_as_many_parts_as_keep_all_sms_busy() -> None:
    """One round of 128 SMs where that can be, else rounds that are nearly full; few where there are few positions."""
    found = {tiles: parts_of(tiles, 131072) for tiles in (1, 8, 24, 64, 100, 128, 256)}
    assert found == {1: 32, 8: 16, 24: 5, 64: 2, 100: 5, 128: 1, 256: 1}
    assert [parts_of(8, positions) for positions in (70, 2048, 4096)] == [1, 2, 4]
    together = [dict(putting_together(groups, 4).tile) for groups in (1, 8, 32, 33, 64, 96, 512)]
    assert [tile["Q"] for tile in together] == [1, 1, 1, 1, 2, 4, 4]


def test_decoding_as_one_rank_does() -> None:
    """However many ranks the cache lies on."""
    one, three = (DECODE(*p.listed, **p.given)[0] for p in (decoded(1, 30, [30, 8]), decoded(3, 30, [30, 8])))
    torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-5)
