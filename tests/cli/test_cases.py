"""Cases: every rank's inputs are its part of the global ones, and the expected is the signature's product."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.selection import table
from tilelink import ops
from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case, parse_sizes
from tilelink.ir.topology import Topology
from tilelink.tuning.comparison import relative_error

SIZES = (("M", 10), ("N", 6), ("K", 8))


def test_sizes_read_both_ways() -> None:
    assert parse_sizes("10x6x8") == SIZES
    assert parse_sizes("M=10,N=6,K=8") == SIZES


@table("text", ["", "10x6", "10x6x8x1", "axbxc", "M=10;N=6", "M=", "M=-1", "10 x 6 x 8", "M=1,M=1"])
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(TilelinkError, match=r"^TL702"):
        parse_sizes(text)


def test_shards_are_ceil_parts_and_the_last_ranks_have_what_is_left() -> None:
    case = Case(ops.ag_gemm, SIZES, ranks=4)
    assert [tuple(case.arguments(r)[0].shape) for r in range(4)] == [(3, 8), (3, 8), (3, 8), (1, 8)]
    few = Case(ops.ag_gemm, (("M", 2), ("N", 6), ("K", 8)), ranks=4)
    assert [few.arguments(r)[0].shape[0] for r in range(4)] == [1, 1, 0, 0]
    assert [few.expected(r).shape for r in range(4)] == [(2, 6)] * 4


def test_the_first_input_says_whose_it_is() -> None:
    case = Case(ops.ag_gemm, (("M", 4096), ("N", 4), ("K", 64)), ranks=4, dtype="f32")
    spread = [float(case.arguments(r)[0].std()) for r in range(4)]
    assert spread == pytest.approx([1, 2, 3, 4], rel=0.05)
    assert torch.equal(case.arguments(2)[1], case.arguments(2)[1])
    assert not torch.equal(case.arguments(1)[1], case.arguments(2)[1])


def test_expected_is_the_product_of_the_whole() -> None:
    gathered = Case(ops.ag_gemm, SIZES, ranks=3, dtype="f32")
    rows = torch.cat([gathered.arguments(r)[0] for r in range(3)])
    for r in range(3):
        torch.testing.assert_close(gathered.expected(r), rows @ gathered.arguments(r)[1])
    scattered = Case(ops.gemm_rs, SIZES, ranks=3, dtype="f32")
    parts = [scattered.arguments(r) for r in range(3)]
    total = sum((x @ w for x, w in parts[1:]), start=parts[0][0] @ parts[0][1])
    torch.testing.assert_close(torch.cat([scattered.expected(r) for r in range(3)]), total)


def test_a_plan_needs_no_data() -> None:
    """Which would be half a terabyte of rows."""
    case = Case(ops.ag_gemm, (("M", 2**14), ("N", 2**10), ("K", 2**24)), ranks=8)
    plan = case.compiled(Topology(ranks=8)).plan
    assert dict(plan.sizes) == dict(case.sizes)


def test_what_is_no_product_is_not_compared() -> None:
    @tilelink.operator("M/R K, e+1 i32 -> M K")
    def other(x: object, start: object) -> object:
        return x

    case = Case(other, (*SIZES, ("e", 4)), ranks=2)
    assert case.contraction is None
    assert case.local_shape(other.signature.inputs[1], 0) == (5,)
    with pytest.raises(TilelinkError, match=r"^TL706"):
        case.arguments(0)


def test_tables_keep_their_contracts_and_differ_by_seed() -> None:
    """Whole ones are the same on every rank; what offsets split they split to the end."""
    sizes = (("I", 8), ("T", 40), ("k", 3), ("e", 6), ("H", 8))
    calls = [Case(ops.moe_rs, sizes, ranks=2, dtype="f32", seed=seed) for seed in range(3)]
    for case in calls:
        _, start, slot, *_ = case.arguments(0)
        assert (start.dtype, slot.dtype) == (torch.int32, torch.int32)
        assert torch.equal(start, case.arguments(1)[1])
        assert int(start[0]) == 0
        assert int(start[-1]) == 120
        assert bool((start.diff() >= 0).all())
        assert slot.shape == (40, 3)
        assert torch.equal(slot.flatten().sort().values, torch.arange(120, dtype=torch.int32))
        assert all(torch.equal(a, b) for a, b in zip(case.arguments(1), case.arguments(1), strict=True))
    assert len({tuple(case.arguments(0)[1].tolist()) for case in calls}) == 3


def test_split_tables_are_each_ranks_own_and_constants_are_sizes() -> None:
    sizes = (("T", 100), ("H", 8), ("k", 4), ("experts", 5), ("capacity", 7))
    case = Case(ops.ep_dispatch, sizes, ranks=3)
    assert case.given == {"T": 100, "experts": 5, "capacity": 7}
    tables = [case.arguments(r)[1] for r in range(3)]
    assert [tuple(t.shape) for t in tables] == [(34, 4), (34, 4), (32, 4)]
    assert set(torch.cat(tables).flatten().tolist()) == set(range(5))
    assert not torch.equal(tables[0], tables[1])
    with pytest.raises(TilelinkError, match=r"^TL704: the size of `capacity` is missing"):
        Case(ops.ep_dispatch, sizes[:-1], ranks=3)
    combine = Case(ops.ep_combine, (("experts", 5), ("C", 7), ("H", 8), ("T", 100), ("k", 4)), ranks=3)
    counts = torch.cat([combine.arguments(r)[1] for r in range(3)])
    assert int(counts.min()) >= 0
    assert int(counts.max()) <= 7


def test_errors_are_relative_and_safe() -> None:
    one = torch.ones(4)
    assert relative_error(one, one) == 0
    assert relative_error(2 * one, one) == 1
    assert relative_error(torch.empty(0), torch.empty(0)) == 0
    assert relative_error(one, 0 * one) == float("inf")
    assert not relative_error(one / 0 - one / 0, one) <= 1


def test_what_is_true_or_false_may_stand_among_the_sizes() -> None:
    sizes = (("S", 8), ("h", 1), ("g", 1), ("D", 4))
    assert Case(ops.ag_attention, (*sizes, ("causal", 0)), ranks=2).given == {"S": 8, "causal": False}
    assert Case(ops.ag_attention, sizes, ranks=2).given == {"S": 8}
