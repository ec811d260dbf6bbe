"""Debug mode: what plans take for granted is looked at, every rank hears of it, and the next call works."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.plans import emitted
from tests.operators import test_ep
from tests.operators.problems import FEW, alone, split
from tests.operators.routings import Mixture
from tests.operators.test_moe import JOBS, assert_mixtures
from tests.selection import table
from tilelink import TilelinkError, sms
from tilelink.ir.kernel import Checks
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm, ag_moe, ep_dispatch, moe_rs
from tilelink.ops.programs import gather
from tilelink.runtime.session import require

RANKS = 3


@tilelink.program("T H, P i32 -> P H")
def pick(rows: Any, order: Any, out: Any) -> None:
    p, h = tl.tile_id(out)
    who = tl.tile_load(order, p, other=-1)
    tl.device_assert(tl.max(who, 0) < 100, "an order below 100")
    tl.tile_store(out, (p, h), tl.tile_load(rows, (who, h)))
    tl.producer_tile_notify(out, (p, h))


@tilelink.operator("T H, P i32 permutation -> P H")
def picked(rows: Any, order: Any) -> Any:
    return pick(rows, order)


picked_freely = alone(pick)


@tilelink.program("e H, e+1 i32, P H -> P/start H")
def repeat(rows: Any, start: Any, more: Any, out: Any) -> None:
    p, h = tl.tile_id(out)
    row = tl.tile_load(rows, (tl.segment(out, p), h))
    tl.tile_store(out, (p, h), row[None, :] + tl.tile_load(more, (p, h)))
    tl.producer_tile_notify(out, (p, h))


SCHEDULE = {"pick": sms(2, P=4, H=8)}
ROWS = torch.arange(48.0).reshape(6, 8)


def errors(wrong: Any, right: Any, **options: Any) -> list[TilelinkError]:
    """What every rank raises for the wrong call, between right ones."""

    def main() -> TilelinkError:
        right()
        with pytest.raises(TilelinkError) as caught:
            wrong()
        right()
        return caught.value

    return tilelink.launch(main, RANKS, debug=True, **options)


def call(operator: Any, order: list[int]) -> None:
    found = operator.schedule(SCHEDULE)(ROWS, torch.tensor(order, dtype=torch.int32))
    torch.testing.assert_close(found, ROWS[[i for i in order if i >= 0]])


def test_an_index_vector_that_is_out_of_range() -> None:
    """Only rank 1 has it; all learn of it. The report has the value and the user's line."""
    wrong = [[5, 4, 3, 2, 1, 0], [5, 6, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]]
    found = errors(lambda: call(picked_freely, wrong[tilelink.rank()]), lambda: call(picked_freely, wrong[0]))
    assert [e.code for e in found] == ["TL471", "TL473", "TL471"]
    assert found[1].message == (
        "on rank 1, `pick`: worker 0, tile [P 0:4, H 0:8], the index `who` of `rows` has the value 6, and there are 6 positions"
    )
    assert found[1].loc is not None
    assert found[1].loc.source_line().strip() == "tl.tile_store(out, (p, h), tl.tile_load(rows, (who, h)))"
    assert found[0].message == f"rank 1 reports: {found[1].message}"


def test_an_assertion_of_the_users() -> None:
    found = errors(lambda: call(picked_freely, [0, 1, 2, 3, 4, 105]), lambda: call(picked_freely, [0, 1, 2, 3, 4, 5]))
    assert {e.code for e in found} == {"TL473"}
    assert "an order below 100 does not hold" in str(found[0])
    assert "the value 105" in str(found[0])


@table(
    "order, why",
    [([0, 1, 2, 2, 4, 5], "2 is there 2 times"), ([0, 1, 2, 3, 4, 6], "6 is not below 6")],
)
def test_an_argument_that_is_no_permutation(order: list[int], why: str) -> None:
    for error in errors(lambda: call(picked, order), lambda: call(picked, [5, 4, 3, 2, 1, 0])):
        assert error.code == "TL473"
        assert error.message == f"argument `order` of `picked` is no `permutation`: {why}"


@pytest.mark.parametrize("name", JOBS)
def test_right_tables_pass(name: str) -> None:
    """Tables made on the device, index vectors with holes, run-time splits."""
    assert_mixtures(JOBS[name], [Mixture.of(13, "random"), Mixture.of(13, "some choices of nobody")], RANKS, debug=True)


def test_right_tables_of_expert_parallelism_pass() -> None:
    test_ep.assert_mixtures(
        [Mixture.of(13, "random"), Mixture.of(13, "some choices of nobody")], RANKS, capacity=3, debug=True
    )


@table("start", [[0, 3, 2, 6], [1, 2, 3, 4], [0, 2, 4, 99]])
def test_offsets_that_are_none(start: list[int]) -> None:
    """Nothing is written where there is no room for it."""

    def given(start: list[int]) -> None:
        operator = alone(repeat).schedule(repeat=sms(P=4, H=8))
        found = operator(ROWS[:3], torch.tensor(start, dtype=torch.int32), torch.zeros(8, 8))
        many = torch.tensor(start).diff()
        torch.testing.assert_close(found[: start[-1]], ROWS[:3].repeat_interleave(many, 0))

    for error in errors(lambda: given(start), lambda: given([0, 2, 2, 6])):
        assert error.code == "TL473"
        assert "in `repeat`" not in error.message
        assert "offsets `start`, from 0, sorted, up to P does not hold" in error.message


def test_offsets_are_looked_at_where_a_split_begins() -> None:
    tensors = torch.empty(13, 24), torch.empty(13, 3, dtype=torch.int32), torch.empty(5, 24, 20)
    plan = ag_moe.plan(*tensors, topology=Topology(1, device=FEW))
    on, off = emitted(plan, Checks(debug=True)).text, emitted(plan).text
    assert "watch_at" not in off
    assert re.search(r"shmem\.check\(start_fine, watch_at, \d+, -1\)", on)
    assert "offsets `start`, from 0, sorted, up to T * k" in on


def choice_of(*values: int) -> torch.Tensor:
    return torch.tensor([[values[tilelink.rank()], 0, 1]], dtype=torch.int32)


def test_a_choice_of_an_expert_that_is_not_there() -> None:
    """A size of the inputs bounds it, or a constant. Only rank 1 has it; all learn of it."""
    weight, x = torch.ones(4, 8, 6), torch.ones(1, 8)
    first = errors(lambda: ag_moe(x, choice_of(0, 4, 3), weight), lambda: ag_moe(x, choice_of(0, 3, -1), weight))

    def dispatched(*values: int) -> None:
        ep_dispatch(x, choice_of(*values), experts=4, capacity=2)

    second = errors(lambda: dispatched(0, 4, 3), lambda: dispatched(1, 3, 2))
    for name, size, found in (("ag_moe", "e", first), ("ep_dispatch", "experts", second)):
        assert [e.code for e in found] == ["TL471", "TL473", "TL471"]
        assert found[1].message == f"argument `choice` of `{name}` is no `<{size}`: 4 is not below 4"


@table(
    "start, slot, why",
    [
        ([0, 4, 3, 6], [0, 1, 2, 3, 4, 5], "argument `start` of `moe_rs` is no `offsets`: entry 2 is 3, after 4"),
        (
            [0, 2, 3, 7],
            [0, 1, 2, 3, 4, 5],
            "argument `start` of `moe_rs` is no `offsets`: it ends with 7, and there is room for 6",
        ),
        ([0, 2, 3, 6], [0, 1, 2, 2, 4, 5], "argument `slot` of `moe_rs` is no `permutation`: 2 is there 2 times"),
    ],
)
def test_tables_of_rows_that_are_none(start: list[int], slot: list[int], why: str) -> None:
    def given(start: list[int], slot: list[int]) -> None:
        tables = torch.tensor(start, dtype=torch.int32), torch.tensor(slot, dtype=torch.int32).view(3, 2)
        moe_rs(torch.ones(6, 8), *tables, torch.ones(3, 8, 16), torch.ones(3, 2))

    for error in errors(lambda: given(start, slot), lambda: given([0, 2, 3, 6], [5, 4, 3, 2, 1, -1])):
        assert (error.code, error.message) == ("TL473", why)


def test_sizes_that_differ_within_what_is_allocated() -> None:
    """Without debug mode nobody would notice before the ranks wait for one another."""
    w = torch.ones(8, 16)

    def rows(count: int) -> None:
        assert ag_gemm(torch.ones(count, 8), w).shape == (RANKS * count, 16)

    found = errors(lambda: rows(2 if tilelink.rank() == 2 else 4), lambda: rows(8))
    assert {str(e) for e in found} == {str(found[0])}
    assert found[0].message == (
        "ranks 0 and 2 disagree on a call: rank 0 calls ag_gemm(M=12, K=8, N=16, f32, f32), "
        "and rank 2 calls ag_gemm(M=6, K=8, N=16, f32, f32)"
    )


def test_a_rank_that_cannot_plan_its_call() -> None:
    w = torch.ones(8, 16)

    def wrong() -> None:
        ag_gemm(torch.ones(4, 7 if tilelink.rank() == 1 else 8), w)

    found = errors(wrong, lambda: ag_gemm(torch.ones(4, 8), w))
    assert [e.code for e in found] == ["TL471", "TL204", "TL471"]
    assert found[0].message == f"rank 1 reports: {found[1].message}"


def unfused(columns: int, shared: bool = False) -> None:
    """A call of the unfused form; `shared`: into memory of its own argument."""

    def plain(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None) -> torch.Tensor:
        return torch.cat(group.agree(x)) @ weight

    here: Any = require()
    here.backend.group = here.backend
    weight = torch.ones(columns, 16)
    out = weight.flatten()[: 12 * 8].view(12, 8) if shared else torch.empty(12, 16)
    replace(ag_gemm, reference_fn=plain).schedule(unfused=True)(torch.ones(4, columns), weight, out=out)


@pytest.mark.parametrize("code", ["TL203", "TL244"])
def test_a_rank_that_cannot_make_its_call_of_the_unfused_form(code: str) -> None:
    """Its library would wait for that rank."""

    def wrong() -> None:
        here = tilelink.rank() == 1
        if code == "TL244":
            unfused(8, shared=here)
        elif here:
            replace(ag_gemm, reference_fn=torch.mm).schedule(unfused=True)(torch.ones(4, 8), torch.ones(8))
        else:
            unfused(8)

    found = errors(wrong, lambda: unfused(8))
    assert found[0].message == f"rank 1 reports: {found[1].message}"
    assert [e.code for e in found] == ["TL471", code, "TL471"]


def test_the_environment_turns_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_DEBUG", "1")
    assert tilelink.launch(lambda: require().vigil.checks, 2) == [Checks(debug=True)] * 2


# ------------------------------------------------------------------------------------------------- single positions from data
@tilelink.program("T H, p i64 -> p H")
def pick_awaited(rows: Any, order: Any, out: Any) -> None:
    """One row at a time, awaited at a position that a table gives."""
    p, h = tl.tile_id(out)
    at = tl.tile_load(order, p)
    tl.consumer_tile_wait(rows, (at, h))
    tl.tile_store(out, (p, h), tl.tile_load(rows, (at, h)))


@tilelink.operator("T/R H, p i64 -> p H")
def picked_from_all(rows: Any, order: Any) -> Any:
    return pick_awaited(gather(rows), order)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("bad", [-1, -5, 7, 100, 2**40, -(2**40)])
def test_a_position_of_a_table_that_is_awaited(bad: int, ranks: int) -> None:
    """A bad one reads nothing, awaits a flag that there is, and is found in debug mode; -1 is no row."""
    rows, order = torch.rand(7, 8), torch.tensor([0, bad, 6, 3])
    wanted = rows[[0, 0, 6, 3]]
    wanted[1] = 0
    parts = split(rows, ranks)
    operator = picked_from_all.schedule(gather=sms(1, M=2), pick_awaited=sms(2, H=8))

    def main() -> torch.Tensor:
        return operator(parts[tilelink.rank()], order, T=7)

    for found in tilelink.launch(main, ranks):
        assert torch.equal(found, wanted)
    if bad == -1:
        assert torch.equal(tilelink.launch(main, ranks, debug=True)[-1], wanted)
        return
    with pytest.raises(TilelinkError) as caught:
        tilelink.launch(main, ranks, debug=True)
    assert caught.value.code == "TL473"
    assert f"the index `at` of `gather_rows` has the value {bad}," in caught.value.message
