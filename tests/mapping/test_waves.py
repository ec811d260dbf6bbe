"""The model by which a matmul gets its tile: waves of tiles, rows that come, results that go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilelink import Operator, ops
from tilelink.explore.cases import Case
from tilelink.ir.topology import Device, Topology
from tilelink.mapping.waves import LARGE, SHAPES, Moving, Product, Shape

H200 = Topology(4, "peer", device=Device("NVIDIA H200", 132, capability=90))
UNIT = Shape(1, 1, 4, 1, 1.0, 0.0)
"""A tile of an element, which takes a microsecond."""
PLAIN = Moving(link=1.0, start=0.0, given=0.0, made=0.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 8), st.integers(1, 16))
def test_what_waits_for_nobody_takes_as_many_waves_as_it_has(rows: int, columns: int, parts: int, sms: int) -> None:
    product = Product(rows, columns, 1, parts)
    assert product.overlapped(UNIT, sms, PLAIN) == product.waves(UNIT, sms) == product.us(UNIT, sms)
    assert product.part(UNIT) * parts >= rows * columns


def test_tiles_wait_for_their_part_and_only_they() -> None:
    """4 parts of 2 tiles on 2 workers, a part each 3 µs: the last one comes at 9."""
    product = Product(8, 1, 1, 4)
    assert [*product.ends(UNIT, 2, PLAIN.arrivals(3.0, 4))] == [1, 1, 4, 4, 7, 7, 10, 10]
    assert product.overlapped(UNIT, 2, PLAIN, coming=3.0) == 10
    assert product.overlapped(UNIT, 2, PLAIN, coming=0.5) == 4
    # One wave for all: nobody has anything else to do meanwhile.
    assert product.overlapped(UNIT, 8, PLAIN, coming=3.0) == 10


def test_chunks_go_when_they_are_made_one_after_the_other() -> None:
    """4 parts of 2 tiles on 2 workers, made at 1, 2, 3 and 4; the last one stays."""
    product = Product(8, 1, 1, 4)
    assert product.overlapped(UNIT, 2, PLAIN, going=0.5) == 4
    assert product.overlapped(UNIT, 2, PLAIN, going=1.0) == 4
    assert product.overlapped(UNIT, 2, PLAIN, going=2.0) == 1 + 3 * 2
    assert product.overlapped(UNIT, 8, PLAIN, going=2.0) == 1 + 3 * 2
    assert product.overlapped(UNIT, 1, PLAIN, going=1.0, chunks=2) == 8
    assert product.overlapped(UNIT, 1, PLAIN, going=8.0) == 2 + 3 * 8
    assert product.overlapped(UNIT, 1, PLAIN, going=8.0, chunks=2) == 1 + 3 * 8


def test_parts_that_end_within_a_tile_have_tiles_of_their_own_unless_these_are_many_more() -> None:
    shape = replace(UNIT, rows=16)
    assert Product(96, 1, 1, 3).part(shape) == 2
    assert Product(141, 1, 1, 3).part(shape) == 3
    assert Product(51, 1, 1, 3).part(shape) == 2  # 4 tiles rather than 6


@pytest.mark.parametrize(
    ("operator", "m", "ranks", "tile"),
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

    def tiles(world: Topology) -> tuple[int | None, ...]:
        plan = Case(operator, tuple(sizes.items()), ranks).stages(world).plan
        return tuple(g.tile for g in plan.step("matmul").grid)

    world = replace(H200, ranks=ranks)
    assert tiles(world) == tile
    assert tiles(replace(world, device=replace(world.device, capability=80))) == (LARGE.rows, LARGE.columns)


def test_many_waves_take_the_first_shape() -> None:
    assert Product(1 << 20, 1 << 14, 4096, 4).best(SHAPES, 132) is LARGE
