"""The closed form by which a matmul gets its tile: waves of tiles, rows that come, results that go."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.selection import cases, table
from tilelink import Operator, ops
from tilelink.cost import machine
from tilelink.cost.machine import LARGE, Tile
from tilelink.cost.tiles import Matmul
from tilelink.explore.cases import Case
from tilelink.ir.topology import Device, Topology

H200 = Topology(4, "peer", device=Device("NVIDIA H200", 132, capability=90))
UNIT = Tile(1, 1, 4, 1)
PLAIN = replace(machine.H200, tile_small=1.0, tile_depth=0.0, link=1.0, peer_link=1.0, copy=0.0, doorbell=0.0)
"""A tile of an element takes a microsecond, and so does a byte."""


@cases(60)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 8), st.integers(1, 16))
def test_what_waits_for_nobody_takes_as_many_waves_as_it_has(rows: int, columns: int, parts: int, sms: int) -> None:
    matmul = Matmul(rows, columns, 1, parts)
    assert matmul.us(UNIT, sms, PLAIN) == matmul.waves(UNIT, sms)
    assert matmul.part(UNIT) * parts >= rows * columns


def test_tiles_wait_for_their_part_and_only_they() -> None:
    """4 parts of 2 tiles on 2 workers, a part each 3 µs: the last one comes at 9."""
    matmul = Matmul(8, 1, 1, 4, coming=3.0)
    assert [*matmul.ends(UNIT, 2, PLAIN)] == [1, 1, 4, 4, 7, 7, 10, 10]
    assert matmul.us(UNIT, 2, PLAIN) == 10
    assert replace(matmul, coming=0.5).us(UNIT, 2, PLAIN) == 4
    # One wave for all: nobody has anything else to do meanwhile.
    assert matmul.us(UNIT, 8, PLAIN) == 10


def test_parts_go_when_they_are_made_one_after_the_other() -> None:
    """4 parts of 2 tiles on 2 workers, made at 1, 2, 3 and 4; the last one stays."""

    def us(going: float, sms: int) -> float:
        return Matmul(8, 1, 1, 4, going=going).us(UNIT, sms, PLAIN)

    assert us(0.5, 2) == us(1.0, 2) == 4
    assert us(2.0, 2) == us(2.0, 8) == 1 + 3 * 2
    assert us(8.0, 1) == 2 + 3 * 8


def test_parts_that_end_within_a_tile_have_tiles_of_their_own_unless_these_are_many_more() -> None:
    tile = replace(UNIT, rows=16)
    assert Matmul(96, 1, 1, 3).part(tile) == 2
    assert Matmul(141, 1, 1, 3).part(tile) == 3
    assert Matmul(51, 1, 1, 3).part(tile) == 2  # 4 tiles rather than 6


@table(
    "operator, m, ranks, tile",
    [
        (ops.ag_gemm, 1024, 4, (64, 256)),
        (ops.ag_gemm, 2048, 4, (128, 256)),
        (ops.ag_gemm, 512, 2, (64, 256)),
        (ops.ag_gemm, 1024, 2, (128, 256)),
        (ops.gemm_rs, 1024, 2, (64, 256)),
        (ops.gemm_rs, 2048, 2, (128, 256)),
        (ops.gemm_rs, 8192, 4, (128, 256)),
    ],
    ids=str,
)
def test_tiles_follow_the_sizes(operator: Operator, m: int, ranks: int, tile: tuple[int, int]) -> None:
    """Of an MLP, whose tiles of 128 x 256 would leave most of a last wave empty: the smaller ones were measured faster there."""
    sizes = {"M": m, "N": 22016 // ranks, "K": 4096} if operator is ops.ag_gemm else {"M": m, "N": 4096, "K": 11008}

    def tiles(topology: Topology) -> tuple[int | None, ...]:
        plan = Case(operator, tuple(sizes.items()), ranks).compiled(topology).plan
        return tuple(g.tile for g in plan.step("matmul").grid)

    topology = replace(H200, ranks=ranks)
    assert tiles(topology) == tile
    assert tiles(replace(topology, device=replace(topology.device, capability=80))) == (LARGE.rows, LARGE.columns)


def test_many_waves_take_the_first_tile() -> None:
    assert Matmul(1 << 20, 1 << 14, 4096, 4).best(132) is LARGE
