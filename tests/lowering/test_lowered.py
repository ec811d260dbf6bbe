"""What a lowered plan says where nothing else would notice that it is missing."""

from __future__ import annotations

from typing import Any

import torch

import tilelink.language as tl
from tests.operators.raw import exchange, gather_with
from tests.selection import table
from tilelink import operator, program
from tilelink.ir.lowered import READY, Await, Opaque, Signal, walk
from tilelink.ir.topology import RankAxis, Topology
from tilelink.mapping.lower import lower
from tilelink.ops.programs import gather, matmul


def test_raw_pointers_are_opaque() -> None:
    plan = gather_with(exchange).plan(torch.empty(5, 7), topology=Topology(3))
    (loop,) = lower(plan).executor("exchange").loops
    assert [type(op) for op in loop.body] == [Opaque]


@program("M/R K -> M K")
def pull(shard: Any, ready: Any) -> None:
    tile = tl.tile_id(ready)
    tl.consumer_tile_wait(shard, tile)
    tl.tile_pull_data(ready, tile, source=shard)
    tl.producer_tile_notify(ready, tile)


@operator("M/R K, K N -> M N")
def gathers_ready(x: Any, weight: Any) -> Any:
    return matmul(pull(x), weight)


def test_a_tensor_may_be_called_as_the_calls_own_flags_are() -> None:
    lowered = lower(gathers_ready.plan(torch.empty(16, 16), torch.empty(16, 16), topology=Topology(3)))
    assert len({f.name for f in lowered.flags}) == len(lowered.flags)
    ops = [op for e in lowered.executors for loop in e.loops for op in walk(loop.body)]
    for name in ("ready", READY):
        assert {type(op) for op in ops if isinstance(op, Await | Signal) and op.flags == name} == {Await, Signal}


@table("mesh", [{"R": 6}, {"DP": 2, "TP": 3}], ids=["one dimension", "two"])
def test_ranks_are_those_of_the_plan(mesh: dict[str, int]) -> None:
    over = list(mesh)[-1]

    @operator(f"M/{over} K, K N -> M N", axes=" ".join(mesh))
    def gathers(x: Any, weight: Any) -> Any:
        return matmul(gather(x, over=over), weight)

    topology = Topology(6, axes=tuple(RankAxis(*dimension) for dimension in mesh.items()))
    plan = gathers.plan(torch.empty(16, 16), torch.empty(16, 16), topology=topology)
    assert [lower(plan).env(rank) for rank in range(6)] == [plan.env(rank) for rank in range(6)]
