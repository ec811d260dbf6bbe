# pyright: reportArgumentType=false
"""Every operator of `language.py` against torch in fp32, on one to four ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.operators import language as ops
from tests.operators.problems import Problem, assert_as_torch, each, moved_away, perceptron, products, random, split
from tilelink import Operator, copy_engine, fused, sms

M, N, K = 13, 20, 18


def gathered(ranks: int) -> Problem:
    x, w = random(M, K), [random(K, N, seed=r) for r in range(ranks)]
    return Problem(each(split(x, ranks), w), [(x @ one,) for one in w], {"M": M})


def whole_parts(ranks: int) -> Problem:
    """The ring hands on whole tiles of parts of one size."""
    x, w = random(8 * ranks, K), [random(K, N, seed=r) for r in range(ranks)]
    return Problem(each(split(x, ranks), w), [(x @ one,) for one in w])


def sharded_weight(ranks: int) -> Problem:
    x, w = random(ranks, M, K), random(K, N)
    return Problem(each(list(x), split(w, ranks)), [(one @ w,) for one in x], {"K": K})


def gathered_alone(ranks: int) -> Problem:
    x = random(5 * ranks, K)
    return Problem(each(split(x, ranks)), [(x,)] * ranks)


def embedded(ranks: int) -> Problem:
    vocabulary, table = 11, random(11, N)
    ids = torch.randint(vocabulary, (M,), dtype=torch.int32, generator=torch.Generator().manual_seed(ranks))
    wanted = split(table[ids.long()], ranks)
    return Problem([(part, ids) for part in split(table, ranks)], each(wanted), {"V": vocabulary})


def low_rank(ranks: int) -> Problem:
    x, weight, a, b = random(M, K), random(K, N), random(K, 3), random(3, N)
    return Problem([(part, weight, a, b) for part in split(x, ranks)], [(x @ weight + x @ a @ b,)] * ranks, {"M": M})


def zigzag(m: torch.Tensor, ranks: int) -> torch.Tensor:
    """As the owner map that is called so says."""
    turn = m // 2 % (2 * ranks)
    return torch.minimum(turn, 2 * ranks - 1 - turn)


TILE = sms(M=8, N=16, K=16, order=("ring+1",))
READ = sms(M=8, N=16, K=16, order=("ring",))
ADD = sms(M=8, N=16)
MOVE = sms(2, M=8)


def only(op: Operator, **placements: Any) -> Operator:
    return op.schedule(placements)


OPERATORS: dict[str, tuple[Operator, Callable[[int], Problem]]] = {
    "ag_gemm by a ring": (
        only(ops.ag_gemm_ring, ring_gather=sms(2, M=8, K=16, order="ring"), matmul=READ),
        whole_parts,
    ),
    "all_gather by two rings": (
        only(ops.all_gather_both_ways, both_ways=sms(2, M=4, K=8, order="ring", own_kernel=True), keep=sms(M=8)),
        gathered_alone,
    ),
    "a vocabulary that is split, in one kernel": (
        only(ops.embedding, look_up=sms(T=4, H=16, order="ring+1"), reduce=fused("look_up")),
        embedded,
    ),
    "low-rank factors": (
        only(ops.ag_lora, gather=MOVE, down=sms(1, M=8, N=16, K=16), matmul_low_rank=sms(M=8, N=16, K=16, J=16)),
        low_rank,
    ),
    "gemm_rs in one program": (only(ops.gemm_rs_epilogue, matmul_rs=TILE), partial(products, M, K, N)),
    "gemm_rs, pinned to a copy engine": (
        only(ops.gemm_rs_dma, matmul=TILE, reduce=ADD, scatter_dma=copy_engine(M=4)),
        partial(products, M, K, N),
    ),
    "rows held in turn": (
        only(ops.elsewhere("m -> m // 4 % R"), send=sms(1, M=2), work=sms(M=2, K=8), keep=sms(M=8)),
        partial(moved_away, lambda m, ranks: m // 4 % ranks, M + 11, 5),
    ),
    "rows held in turn, pulled": (
        only(ops.elsewhere("m -> m // 4 % R"), send=sms(1, M=2, push=False), work=sms(M=2, K=8), keep=sms(M=8)),
        partial(moved_away, lambda m, ranks: m // 4 % ranks, M + 11, 5),
    ),
    "rows held by the last rank": (
        only(ops.elsewhere("m -> R - 1"), send=copy_engine(M=4), work=sms(M=8, K=8), keep=sms(M=8)),
        partial(moved_away, lambda m, ranks: ranks - 1, M + 11, 5),
    ),
    "zigzag": (
        only(
            ops.elsewhere(
                "m -> m // 2 % (2 * R) * (1 - m // 2 % (2 * R) // R) + (2 * R - 1 - m // 2 % (2 * R)) * (m // 2 % (2 * R) // R)"
            ),
            send=sms(1, M=2),
            work=sms(M=2, K=8),
            keep=sms(M=8),
        ),
        partial(
            moved_away,
            zigzag,
            M + 11,
            5,
        ),
    ),
    "fsdp": (only(ops.fsdp, gather=sms(2, M=4), matmul_as_it_comes=TILE), sharded_weight),
    "mlp": (
        only(ops.mlp, gather=MOVE, glu=sms(M=8, N=16, K=16), matmul=TILE, scatter=MOVE, reduce=ADD),
        partial(perceptron, M, K, 12),
    ),
}


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.each_triton), 4])
@pytest.mark.parametrize("name", OPERATORS)
def test_against_torch(name: str, ranks: int) -> None:
    operator, make = OPERATORS[name]
    assert_as_torch(operator, make(ranks))
