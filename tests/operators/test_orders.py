"""Orders by a user's sort key: they compose with the others, run right, and are proven like any."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import AG, assert_solves
from tests.selection import table
from tilelink import copy_engine, fused, sms
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm, gemm_rs

RANKS = 3
M, K, N = 100, 72, 96


def zigzag(tile: tuple[int, ...], rank: int, ranks: int) -> tuple[int, int]:
    """Rows backwards, columns to and fro."""
    return -tile[0], tile[1] if tile[0] % 2 else -tile[1]


def last_rows_first(tile: tuple[int, ...], rank: int, ranks: int) -> int:
    return -tile[0]


@pytest.mark.parametrize("gather", [sms(2, M=16, order=("ring", last_rows_first)), copy_engine(M=16, order=zigzag)])
def test_sorted_tiles_are_computed_right(gather: Any) -> None:
    op = ag_gemm.schedule(gather=gather, matmul=sms(M=32, N=32, K=32, order=("ring", "group 2", zigzag)))
    assert_solves(op, [AG.call(M, N, K, RANKS, torch.bfloat16)] * 3, seed=1, straggler=1)


def test_tiles_are_taken_by_rising_key() -> None:
    op = ag_gemm.schedule(matmul=sms(M=32, N=32, K=32, order=zigzag))
    plan = op.plan(torch.empty(34, K), torch.empty(K, N), M=M, topology=Topology(RANKS))
    tiles = plan.step("matmul").spans(plan.env(1))
    keys = [zigzag((m // 32, n // 32), 1, RANKS) for (m, _), (n, _) in tiles]
    assert keys == sorted(keys)
    assert len(set(tiles)) == len(tiles) == 4 * 3


def rows_of(m: int, tile: int, order: Any, rank: int, ranks: int = RANKS) -> list[tuple[int, int]]:
    """The rows of one rank's tiles of AG+GEMM in the order in which they are taken, each once."""
    op = ag_gemm.schedule(matmul=sms(M=tile, N=32, K=32, order=order))
    part = -(-m // ranks)
    plan = op.plan(torch.empty(part, K), torch.empty(K, N), M=m, topology=Topology(ranks))
    return list(dict.fromkeys(rows for rows, _ in plan.step("matmul").spans(plan.env(rank))))


@table("m, group", [(140, 1), (140, 2), (140, 16), (96, 16)])
def test_tiles_along_the_ring_end_where_parts_do_and_parts_come_one_after_the_other(m: int, group: int) -> None:
    """What is taken first is here already: no group reaches into the next part, and no tile."""
    part = -(-m // RANKS)
    for rank in range(RANKS):
        taken = rows_of(m, 16, ("ring", f"group {group}"), rank)
        assert all(a // part == (b - 1) // part for a, b in taken)
        holders = list(dict.fromkeys(a // part for a, _ in taken))
        assert [h for h, _ in zip(holders, range(RANKS), strict=True)] == [(rank + s) % RANKS for s in range(RANKS)]
        assert [a // part for a, _ in taken] == sorted((a // part for a, _ in taken), key=holders.index)
        assert sum(b - a for a, b in taken) == m


def test_tiles_reach_into_two_parts_where_others_would_be_many_more() -> None:
    """3 parts of 17 rows: 6 tiles, or 4; of 128: 24 in either case; and who asks for rows in order gets whole tiles."""
    assert len(rows_of(51, 16, "ring", 0)) == 4
    assert len(rows_of(384, 16, "ring", 0)) == 24
    assert len(rows_of(383, 16, "ring", 0)) == 24
    assert {a % 16 for a, _ in rows_of(100, 16, "row", 0)} == {0}


def test_a_key_that_deadlocks_is_refused() -> None:
    """Own rows first: their sum waits for ranks that wait for theirs."""

    def own_first(tile: tuple[int, ...], rank: int, ranks: int) -> int:
        return (tile[0] - rank) % ranks

    matmul = sms(M=32, N=32, K=32, order=own_first)
    op = gemm_rs.schedule(scatter=copy_engine(M=32), reduce=fused("matmul"), matmul=matmul)
    given, topology = (torch.empty(32 * RANKS, K), torch.empty(K, N)), Topology(RANKS)
    verdict = op.verify(*given, topology=topology)
    assert (verdict.ok, verdict.counterexample is not None) == (False, True)
    with pytest.raises(tilelink.TilelinkError, match=r"TL605: .* waits in a circle for itself"):
        op.source(*given, topology=topology)
    with pytest.raises(tilelink.TilelinkError, match="TL605"):
        op.plan(*given, topology=topology)
    seen = op.plan(*given, topology=topology, verify=False)
    assert [s.path for s in seen.steps] == ["matmul", "scatter", "reduce"]
    assert str(seen).splitlines()[-1] == "    note: its proof was left out: a call may be refused"
