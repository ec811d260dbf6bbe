"""Which flags a wait looks at, where tiles and flags are cut in different ways: against torch, and on meshes of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink.language as tl
from tests.operators.problems import Problem, assert_as_torch, each, random, split
from tests.selection import table
from tilelink import copy_engine, library, operator, program, sms
from tilelink.ir.topology import RankAxis, Topology
from tilelink.ops.programs import gather, reduce, scatter


@program("M N -> M N")
def tripled(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), 3 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(out, (m, n))


@program("M N, M N -> M N")
def plus_column_sums(a: Any, b: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(a))
    for k in tl.tiles(a):
        tl.consumer_tile_wait(a, (k, n))
        acc += tl.sum(tl.tile_load(a, (k, n)).to(acc.dtype), 0)[None, :]
    tl.tile_store(out, (m, n), acc + tl.tile_load(b, (m, n)))


@program("M N, e+1 i32 offsets -> M/start N")
def plus_segment(x: Any, start: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + tl.segment(out, m))


@program("M K, K N -> M N")
def product(x: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(x))
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(x, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@operator("M/R N -> M N, M/R N")
def gathered_and_summed(x: Any) -> Any:
    tripled_x = tripled(x)
    return gather(tripled_x), plus_column_sums(tripled_x, x)


@operator("M N, e+1 i32 offsets -> M N")
def by_segment(x: Any, start: Any) -> Any:
    return plus_segment(tripled(x), start)


@operator("M N, N N -> M N")
def beside_a_product(x: Any, weight: Any) -> Any:
    product(x, weight)
    return tripled(x)


@operator("M/A N -> M/B N", axes="A B")
def along_both(x: Any) -> Any:
    return reduce(scatter(gather(x), over="B"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_walk_by_flags_counts_from_its_ranks_part(ranks: int) -> None:
    x = split(random(5, 2), ranks)
    wanted = each([3 * torch.cat(x)] * ranks, [3 * part.sum(0) + part for part in x])
    walked = gathered_and_summed.schedule(tripled=sms(M=1, N=2), plus_column_sums=sms(M=2, N=2, joins="tripled"))
    assert_as_torch(walked, Problem(each(x), wanted, {"M": 5}))


def test_a_tile_that_a_table_places_lies_in_several_flags() -> None:
    x, start = random(7, 2), torch.tensor([0, 1, 4, 7], dtype=torch.int32)
    segment = torch.tensor([0, 1, 1, 1, 2, 2, 2])[:, None]
    shifted = by_segment.schedule(tripled=sms(M=2, own_kernel=True), plus_segment=sms(M=2))
    assert_as_torch(shifted, Problem([(x, start)] * 2, [(3 * x + segment,)] * 2))


def test_a_function_fills_what_nobody_takes() -> None:
    x, weight = random(3, 2), random(2, 2)
    beside = beside_a_product.schedule(product=library("torch.mm"))
    assert_as_torch(beside, Problem([(x, weight)] * 2, [(3 * x,)] * 2))


@table("sizes", [(2, 1), (1, 2), (2, 2), (3, 2)])
def test_parts_along_one_axis_of_ranks_are_not_those_along_another(sizes: tuple[int, int]) -> None:
    a, b = sizes
    mesh = Topology(a * b, axes=(RankAxis("A", a), RankAxis("B", b)))
    pushed = along_both.schedule(gather=copy_engine(push=True))
    assert pushed.verify(torch.empty(-(-8 // a), 2), topology=mesh, M=8).ok
