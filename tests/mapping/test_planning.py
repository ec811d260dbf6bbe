# pyright: reportArgumentType=false
"""What the planner derives: flags as long as a copy engine needs them, targets of several notifies, credits, guards."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilelink
import tilelink.language as tl
from benchmarks.mutants.mappings import mappings
from tests.mapping import oracle
from tests.mapping.oracle import assert_right
from tests.mapping.plans import Sizes, emitted, plan_of, with_axis
from tests.operators import language, loops
from tests.operators.test_copy_programs import made_and_gathered
from tests.selection import cases, table
from tilelink import Operator, copy_engine, fused, operator, program, sms
from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.kernel import Checks
from tilelink.ir.plan import CallEntry, Launch, Plan
from tilelink.ir.schedule import WORKERS, Placement
from tilelink.ir.topology import Device, Topology
from tilelink.ops import ag_gemm, ep_combine, ep_dispatch, flash_decode, gemm_rs, ulysses, ulysses_back
from tilelink.ops.all_reduce_two_shot import all_reduce_two_shot
from tilelink.ops.programs import gather, keep, matmul, scatter

TILE = sms(M=16, N=16, K=16, order="ring+1")
SIZES = {"M": 64, "K": 16, "N": 48}


def refused(op: Operator, ranks: int, sizes: Sizes, **more: Any) -> TilelinkError:
    with pytest.raises(TilelinkError) as caught:
        plan_of(op, ranks, sizes, **more)
    return caught.value


# ----------------------------------------------------------------------------------------------------------- copy engines
@cases(40)
@given(
    chunk=st.one_of(st.none(), st.integers(1, 24)),
    tile=st.sampled_from([1, 2, 4, 8, 16]),
    ranks=st.integers(1, 5),
    rows=st.integers(1, 40),
    add=st.sampled_from([fused("matmul"), sms(M=4, N=4)]),
    engine=st.sampled_from(["push", "pull"]),
)
def test_chunks_of_a_copy_engine_and_tiles_of_who_makes_them(
    chunk: int | None, tile: int, ranks: int, rows: int, add: Placement, engine: str
) -> None:
    """A stream waits once for each of its chunks, be they smaller or larger than the tiles, or neither's multiple."""
    tiles = {"M": chunk} if chunk is not None else {}
    moved = copy_engine(order="ring+1", push=engine == "push", **tiles)
    made = sms(M=tile, N=4, K=4, order="ring+1")
    plan = plan_of(gemm_rs, ranks, {"M": rows, "K": 3, "N": 5}, scatter=moved, reduce=add, matmul=made)
    assert_right(plan)


@cases(30)
@given(chunk=st.integers(1, 12), made=st.sampled_from([1, 2, 4, 8]), ranks=st.integers(1, 4), rows=st.integers(1, 20))
def test_chunks_of_what_a_program_makes_of_its_own_part(chunk: int, made: int, ranks: int, rows: int) -> None:
    for push in (True, False):
        moved = copy_engine(M=chunk, push=push)
        plan = plan_of(made_and_gathered, ranks, {"M": rows, "K": 2}, gather=moved, doubled=sms(M=made, K=8))
        assert_right(plan)


def test_flags_where_a_copy_engine_says_how_long_they_are() -> None:
    """Who gives it flags too is told why not."""
    error = refused(gemm_rs, 2, SIZES, channels={"matmul_out": 64}, scatter=copy_engine(M=16), matmul=TILE)
    assert (error.code, error.message) == (
        "TL321",
        "the schedule gives flags to `matmul_out`, whose flags are the tiles of `scatter`",
    )
    assert (
        error.why == "a copy engine waits for one doorbell before each copy, so each of its tiles has a flag of its own"
    )
    error = refused(ag_gemm, 2, SIZES, channels={"rows": 64}, gather=copy_engine(M=16, push=True), matmul=TILE)
    assert error.why == "a copy engine sets one flag behind each copy, so each of its tiles has a flag of its own"
    assert error.hint == "leave `rows` out of `channels`; the tile of `gather` sets how long its flags are"
    assert_right(plan_of(ag_gemm, 2, SIZES, channels={"rows": 64}, gather=sms(2, M=16), matmul=TILE))


def test_two_copy_engines_that_take_one_tensor_in_different_tiles() -> None:
    @operator("M K/R, K/R N -> R M/R N, R M/R N", name="halves")
    def halves(x: Any, weight: Any) -> Any:
        made = matmul(x, weight)
        return (
            language.keep(scatter(made)),
            language.keep(scatter(made, name="again"), name="keep_again"),
        )

    error = refused(halves, 2, SIZES, scatter=copy_engine(M=16), again=copy_engine(M=8), matmul=TILE)
    assert (error.code, error.message) == ("TL321", "copy engines move tiles of `matmul_out` in different sizes")


# ------------------------------------------------------------------------------------------------------- shared kernels
def kernels_of(plan: Plan) -> list[tuple[tuple[str, int | None], ...]]:
    return [k.roles for k in plan.kernels]


def test_a_computing_step_with_a_number_of_sms_leads_a_kernel() -> None:
    """So that a copy program on SMs runs beside it, and not before it."""
    tile = sms(9, M=16, N=16, K=16, order="ring+1")
    plan = plan_of(ag_gemm, 2, SIZES, gather=sms(2, M=16, order="ring"), matmul=tile)
    assert kernels_of(plan) == [(("gather", 2), ("matmul", 9))]
    plan = plan_of(gemm_rs, 2, SIZES, scatter=sms(3, M=16, order="ring+1"), reduce=fused("matmul"), matmul=tile)
    assert kernels_of(plan) == [(("scatter", 3), ("matmul", 9))]
    assert_right(plan)


def chain(steps: int) -> Operator:
    """Steps `first`, `second` and so on, each of what the one before makes."""

    @operator("M K -> M K", name="chain")
    def made(x: Any) -> Any:
        for name in ("first", "second", "third")[:steps]:
            x = of_own_rows(x, name=name)
        return x

    return made


def test_of_two_computing_steps_with_numbers_the_first_leads() -> None:
    """And one without a number leads wherever it stands."""
    sizes: Sizes = {"M": 16, "K": 8}
    tile = {"M": 4, "K": 8}
    plan = plan_of(chain(2), 1, sizes, first=sms(2, **tile), second=sms(3, **tile))
    assert kernels_of(plan) == [(("second", 3), ("first", 2))]
    plan = plan_of(chain(2), 1, sizes, first=sms(2, **tile), second=sms(**tile))
    assert kernels_of(plan) == [(("first", 2), ("second", 62))]


@table("ranks", [1, 2, 3])
def test_steps_without_a_number_of_sms_take_turns(ranks: int) -> None:
    """In the order in which they need one another; the other way round everyone waits for himself."""
    tile = {"M": 2}
    own = {"scatter": sms(**tile, push=True, order="ring+1"), "reduce": sms(**tile, N=8)}
    plan = plan_of(all_reduce_two_shot, ranks, {"M": 7, "N": 12}, **own, gather=sms(**tile, push=False))
    (kernel,) = plan.kernels
    assert kernel.in_turn == ("scatter", "reduce", "gather")
    assert kernel.workers == 64
    assert_right(plan)
    turned = replace(plan, kernels=(replace(kernel, roles=kernel.roles[::-1]),))
    oracle.assert_refused(turned, "TL605")
    beside = plan_of(all_reduce_two_shot, ranks, {"M": 7, "N": 12}, **own, gather=sms(3, **tile, push=False))
    assert [(k.beside, k.in_turn) for k in beside.kernels] == [((("gather", 3),), ("scatter", "reduce"))]
    assert_right(beside)


@table("ranks", [1, 2, 3])
def test_a_computing_step_joins_the_kernel_of_an_earlier_one(ranks: int) -> None:
    """One kernel that begins and ends the call, where two would, with a copy program between the steps; and a third step."""
    sizes, tile = {"M": 32, "K": 8, "N": 16}, {"M": 4, "N": 16}
    apart, joined = (
        plan_of(gemm_rs, ranks, sizes, matmul=TILE, scatter=sms(M=4), reduce=sms(**tile, joins=name))
        for name in (None, "matmul")
    )
    assert len(apart.kernels) == 2
    (kernel,) = joined.kernels
    assert kernel.in_turn == ("matmul", "scatter", "reduce")
    assert joined.host == (CallEntry(), Launch(kernel.name, 0))
    assert_right(joined)
    turned = replace(joined, kernels=(replace(kernel, roles=kernel.roles[::-1]),))
    oracle.assert_refused(turned, "TL605")

    tile = {"M": 4, "K": 8}
    after = sms(joins="first", **tile)
    (kernel,) = plan_of(chain(3), 1, {"M": 16, "K": 8}, first=sms(**tile), second=after, third=after).kernels
    assert kernel.in_turn == ("first", "second", "third")
    error = refused(chain(3), 1, {"M": 16, "K": 8}, first=sms(**tile), second=sms(**tile), third=after)
    assert (error.code, error.why) == ("TL312", "it needs what is made after the kernel of `first` has begun")


ALONE = "only a computing step, without SMs or a kernel of its own, joins another"


@table(
    "first, second, third, why",
    [
        (None, sms(2, joins="first"), None, ALONE),
        (None, sms(joins="first", own_kernel=True), None, ALONE),
        (sms(2), sms(joins="first"), None, "`first` has no kernel that others take turns in"),
        (None, sms(joins="first"), sms(joins="second"), "`second` has no kernel that others take turns in"),
        (sms(joins="second"), None, None, "it needs what is made after the kernel of `second` has begun"),
    ],
)
def test_what_cannot_join(first: Any, second: Any, third: Any, why: str) -> None:
    tile = (("K", 8), ("M", 4))
    placed = {
        path: replace(given if given is not None else sms(), tile=tile)
        for path, given in (("first", first), ("second", second), ("third", third))
    }
    error = refused(chain(3), 1, {"M": 16, "K": 8}, **placed)
    assert (error.code, error.why) == ("TL312", why)


def test_movements_neither_join_nor_are_joined() -> None:
    sizes, tile = {"M": 32, "K": 8, "N": 16}, {"M": 4, "N": 16}
    reduced = sms(**tile)
    error = refused(gemm_rs, 2, sizes, matmul=TILE, scatter=sms(M=4, joins="matmul"), reduce=reduced)
    assert (error.code, error.why) == ("TL312", ALONE)
    error = refused(gemm_rs, 2, sizes, matmul=TILE, scatter=sms(M=4), reduce=sms(joins="scatter", **tile))
    assert (error.code, error.why) == ("TL312", "`scatter` has no kernel that others take turns in")


@program("M/R ... -> M ... f32")
def widened(shard: Any, rows: Any) -> None:
    tile = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, tile)
    tl.tile_pull_data(rows, tile, source=shard)
    tl.producer_tile_notify(rows, tile)


@operator("M/R K -> M K f32")
def of_two_dtypes(x: Any) -> Any:
    return widened(x)


def test_a_copy_engine_moves_bytes_as_they_are() -> None:
    error = refused(of_two_dtypes, 2, {"M": 8, "K": 4}, widened=copy_engine(push=False))
    assert (error.code, error.message) == ("TL312", "`widened` cannot be placed on a copy engine")
    x = torch.randn(4, 8).bfloat16()
    plan = of_two_dtypes.plan(x, topology=Topology(2, device=Device(sms=4), backend="peer"))
    assert plan.step("widened").engine is WORKERS
    for got in of_two_dtypes(list(x.split(2))):
        assert torch.equal(got, x.float())


def test_of_movements_alone_who_takes_what_is_brought_leads() -> None:
    @operator("M/R ... -> M ...", name="pushed")
    def pushed(x: Any) -> Any:
        return keep(gather(x))

    sizes: Sizes = {"M": 8, "K": 4}
    plan = plan_of(pushed, 2, sizes, gather=sms(M=2, push=True), keep=sms(M=2))
    assert [k.in_turn for k in plan.kernels] == [("gather", "keep")]
    assert_right(plan)


# ---------------------------------------------------------------------------------------------------------- fused readers
@table("engine", [sms(2, M=8, push=False), copy_engine(M=8, push=False)], ids=["SMs", "copy engine"])
def test_a_pull_whose_reader_is_fused(engine: Placement) -> None:
    """Everything is pulled, own rows too."""
    plan = plan_of(gemm_rs, 3, {"M": 21, "K": 4, "N": 16}, scatter=engine, reduce=fused("matmul"), matmul=TILE)
    assert not plan.step("scatter").skip_own
    assert_right(plan)


# ----------------------------------------------------------------------------------------------------------------- credits
@table("push", [True, False])
def test_credits_that_only_what_is_waited_for_implies(push: bool) -> None:
    """Every rank raises flags of every rank, but a causal loop waits for those before it only."""
    for ranks in (1, 2, 4):
        moved = sms(2, M=8, push=push)
        plan = plan_of(loops.window, ranks, {"M": 48, "K": 16}, gather=moved, between=sms(S=8, M=8, K=16))
        assert_right(plan)
        if push and ranks > 1:
            assert plan.takes_credits


def test_ranks_without_rows_imply_nothing() -> None:
    plan = plan_of(ag_gemm, 8, {"M": 5, "K": 8, "N": 16}, gather=sms(2, M=16, push=True), matmul=TILE)
    assert plan.takes_credits
    assert_right(plan)


# ------------------------------------------------------------------------------------------------------- several notifies
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 8, 23, 40])
def test_a_rank_that_stores_its_own_and_hands_on_others(ranks: int, rows: int) -> None:
    plan = plan_of(
        language.ag_gemm_ring,
        ranks,
        {"M": rows, "K": 8, "N": 16},
        ring_gather=sms(2, M=4, K=8, order="ring"),
        matmul=sms(M=8, N=16, K=8, order="ring"),
    )
    assert_right(plan)
    channel = plan.channel("rows")
    flags = int(F.evaluate(channel.flags, plan.env(0)))
    for rank in range(ranks):
        expected = F.evaluate(channel.target, {**plan.env(rank), "c0": np.arange(flags)})
        assert np.broadcast_to(expected, (flags,)).max() == 1


# ------------------------------------------------------------------------------------------------------------ who is told
@table("ranks", [1, 2, 3, 4])
def test_axes_that_only_choose_who_is_told(ranks: int) -> None:
    """`send_back` has a tile per rank, and tells one rank of each."""
    sizes = {"experts": 5, "C": 8, "H": 16, "T": 9, "k": 2}
    plan = plan_of(ep_combine, ranks, sizes, send_back=sms(2, C=4, H=16), collect=sms(T=8, H=16))
    assert_right(plan)


@program("S h D -> S h D")
def head_by_head(x: Any, out: Any) -> None:
    s, h, _ = tl.tile_id(out)
    tl.consumer_tile_wait(x, (s, h))
    tl.tile_store(out, (s, h), tl.tile_load(x, (s, h)))
    tl.producer_tile_notify(out, (s, h))


@operator("S/R H D -> S/R H D")
def around_heads(x: Any) -> Any:
    return ulysses_back(head_by_head(ulysses(x)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_heads_of_this_ranks_part_that_others_pull(ranks: int) -> None:
    """A program that walks its part of an axis counts from the part's begin, and peers wait for positions of the whole."""
    for heads in (ranks, 2 * ranks + 1):
        for rows, there in (({}, {}), ({"S": 4}, {"S": 4}), ({"S": 4}, {"S": 4, "H": 2})):
            steps = {"head_by_head": sms(**rows), "ulysses_back.to_sequence": copy_engine(push=False, **there)}
            plan = plan_of(around_heads, ranks, {"S": 9, "H": heads, "D": 2}, **steps)
            assert_right(plan)


# ---------------------------------------------------------------------------------------------------------- rank_of, names
@program("M K -> M K")
def of_own_rows(x: Any, out: Any) -> None:
    """Positions count from this rank's first row."""
    m, k = tl.tile_id(out)
    owner = tl.rank_of(out, (m, k))
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)) + owner)


@operator("M/R K -> M/R K")
def plus_rank(x: Any) -> Any:
    return of_own_rows(x)


def lines(plan: Plan) -> list[str]:
    return [line.strip() for line in emitted(plan).text.splitlines()]


def test_the_holder_of_what_a_program_sees_only_its_part_of_is_this_rank() -> None:
    assert "owner = rank" in lines(plan_of(plus_rank, 3, {"M": 12, "K": 4}, of_own_rows=sms(M=2, K=4)))


@program("e M -> M")
def added_up(x: Any, out: Any) -> None:
    """The loop's variable is called what the size is called."""
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for e in tl.tiles(x, axis=0):
        acc += tl.tile_load(x, (e, m))
    tl.tile_store(out, m, acc + tl.size(x, 0))


@operator("e M -> M")
def sum_and_size(x: Any) -> Any:
    return added_up(x)


def test_a_walked_variable_with_the_name_of_a_size() -> None:
    x = torch.rand(3, 5)
    (got,) = tilelink.launch(lambda: sum_and_size.schedule(added_up=sms(1, M=4))(x), 1)
    torch.testing.assert_close(got, x.sum(0) + 3)


# ----------------------------------------------------------------------------------------------------------- owner maps
def away(owner: str, *, push: bool = True) -> Operator:
    placements = {"send": sms(1, M=2, push=push), "work": sms(M=2, K=8), "keep": sms(M=8)}
    return language.elsewhere(owner).schedule(placements)


@cases(30)
@given(
    rows=st.integers(1, 30),
    ranks=st.integers(1, 5),
    block=st.integers(1, 4),
    tile=st.sampled_from([1, 2, 4]),
    engine=st.sampled_from([sms(1, M=1), copy_engine(M=1), sms(2, M=2)]),
)
def test_an_owner_map_is_kept_or_refused(rows: int, ranks: int, block: int, tile: int, engine: Placement) -> None:
    """What is planned is right; what is not has tiles with two ranks."""
    op = language.elsewhere(f"m -> m // {block} % R")
    plan, why = None, ""
    try:
        plan = plan_of(op, ranks, {"M": rows, "K": 3}, send=engine, work=sms(M=tile, K=4), keep=sms(M=4))
    except TilelinkError as error:
        why = f"{error.code}: {error.why}"
    if plan is None:
        assert why.startswith("TL306: the tile of ")
        return
    assert_right(plan)


def test_a_step_runs_where_its_tiles_are_held() -> None:
    plan = plan_of(away("m -> R - 1"), 3, {"M": 12, "K": 4})
    assert [s.own_axis for s in plan.steps] == [None, 0, None]
    assert "if RANKS - 1 == rank:" in lines(plan)


@table(
    "owner, why",
    [
        ("m, k -> (m + k) % R", "it looks at two axes"),
        ("m -> m", "position 3 would lie with rank 3 of 3"),
        ("m -> m // X % R", "`X` is not a size of the operator"),
        ("m -> m // 3 % R", "the tile of `send` from 2 to 4 lies with two ranks"),
    ],
)
def test_owner_maps_that_cannot_be_kept(owner: str, why: str) -> None:
    error = refused(away(owner), 3, {"M": 24, "K": 4})
    assert (error.code, error.message) == ("TL306", f"`dst` cannot be held as its owner map `{owner}` says")
    assert error.why == why


@table(
    "owner, hint",
    [
        ("m -> m", "end it with `% R`"),
        ("m -> (m - 3) % R", "add `R` before `% R`: of what is below 0 that is below 0, too"),
    ],
)
def test_what_to_write_so_that_an_owner_map_names_ranks(owner: str, hint: str) -> None:
    with pytest.raises(TilelinkError) as caught:
        plan_of(away(owner), 3, {"M": 12, "K": 4})
    assert caught.value.hint == hint


def test_a_tensor_with_an_owner_map_is_read_where_it_is_held() -> None:
    plan = plan_of(away("m -> m // 2 % R", push=False), 3, {"M": 24, "K": 4})
    assert plan.step("send").own_axis == 0
    assert_right(plan)

    @operator("M/R K -> M K", name="everywhere")
    def everywhere(x: Any) -> Any:
        there = tilelink.symmetric("M K", owner="m -> m // 2 % R")
        language.send(x, there)
        return language.keep(there)

    error = refused(everywhere, 3, {"M": 24, "K": 4}, send=sms(1, M=2), keep=sms(M=2))
    assert error.why == "`keep` also runs where this tile is not held"


# --------------------------------------------------------------------------------------------- written by all, waited whole
@program("M/R K -> M K")
def spread(x: Any, rows: Any) -> None:
    m, _ = tl.tile_id(x)
    tl.tile_push_data(rows, m, tl.tile_load(x, m))
    tl.producer_tile_notify(rows, m)


@program("M K -> M K")
def after_all(rows: Any, out: Any) -> None:
    m, _ = tl.tile_id(out)
    tl.consumer_tile_wait(rows)
    tl.tile_store(out, m, tl.tile_load(rows, m))


@operator("M/R K -> M K", name="spread_first")
def spread_first(x: Any) -> Any:
    return after_all(spread(x))


def waits_of(text: str) -> list[str]:
    """The waits that `after_all` calls."""
    [function] = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "after_all"]
    called = [n.func.attr for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return [name for name in called if "_wait_" in name]


@table("ranks", [1, 3])
def test_a_wait_for_all_that_all_ranks_write_looks_at_the_flags_of_each(ranks: int) -> None:
    """A tensor that is waited for as a whole has a flag for each rank that writes it: its own alone would not do."""
    plan = plan_of(spread_first, ranks, {"M": 7, "K": 2}, spread=sms(M=2), after_all=sms(M=4))
    assert [(a.axis, a.every) for a in plan.channel("rows").axes] == [(None, True)]
    assert_right(plan)
    # With a time limit each flag is waited for by itself: a report names it.
    assert [waits_of(emitted(plan, Checks(watchdog=w)).text) for w in (False, True)] == [
        ["signal_wait_each"],
        ["signal_wait_within"],
    ]
    own = with_axis(plan, "rows", None, every=False)
    if ranks == 1:
        assert_right(own)
        return
    oracle.assert_refused(own, "TL608")


@program("M K -> R/R M K")
def after_the_next(rows: Any, out: Any) -> None:
    s, m, k = tl.tile_id(out)
    tl.peer_tile_wait(rows, (), s + 1)
    tl.tile_store(out, (s, m, k), tl.tile_load(rows, (m, k)))


@operator("M/R K -> M K", name="next_first")
def next_first(x: Any) -> Any:
    return after_the_next(spread(x))


def test_a_wait_for_one_peer_is_no_wait_for_all_that_write() -> None:
    plan = plan_of(next_first, 3, {"M": 7, "K": 2}, spread=sms(M=2), after_the_next=sms(M=4))
    assert [(a.axis, a.every) for a in plan.channel("rows").axes] == [(None, True)]
    oracle.assert_refused(plan, "TL608")


def test_two_flags_raised_for_everyone_side_by_side_take_one_release() -> None:
    """Behind the last of what is stored for either; each of the two is awaited by itself."""
    plan = plan_of(flash_decode, 2, {"b": 1, "g": 2, "Q": 1, "D": 16, "S": 9}, partial_decode=sms(S=16))
    (function,) = [n for n in ast.parse(emitted(plan).text).body if getattr(n, "name", "") == "partial_decode"]
    called = [n for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func) == "shmem.signal_all"]
    told = [ast.unparse(a).split(" + ")[0] for call in called for a in call.args if "flags" in ast.unparse(a)]
    assert (len(called), told) == (1, ["means_flags", "logs_flags"])
    stores = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func) == "tl.store"]
    assert len(stores) == 2
    assert max(stores) < called[0].lineno


def test_experts_are_taken_along_the_ring() -> None:
    """What is pushed to whoever holds an expert begins with a rank's own ones, so that not all ranks send to one at once."""
    plan = next(mappings(ep_dispatch)).plan
    step, taken = plan.step("dispatch"), list[list[int]]()
    for rank in range(3):
        taken.append(step.turns(plan.env(rank))["i0"].tolist())
    assert "ring" in step.order_said
    assert taken == [[0, 1, 2, 3, 4], [2, 3, 4, 0, 1], [4, 0, 1, 2, 3]]


# ----------------------------------------------------------------------------------------------------------- parts of SMs
@table("part, count", [(0.25, 16), (0.5, 32), (0.001, 1)])
def test_a_part_of_the_sms_is_a_number_on_each_device(part: float, count: int) -> None:
    """Whoever has none gets what is left of the 64."""
    plan = plan_of(ag_gemm, 2, SIZES, gather=sms(part, M=16, push=True), matmul=TILE)
    assert {s.path: s.workers for s in plan.steps} == {"gather": count, "matmul": 64 - count}


@table("part", [0.0, 1.0, 1.5, -0.5])
def test_a_part_lies_between_nothing_and_all(part: float) -> None:
    with pytest.raises(TilelinkError, match=r"(?s)TL329.*between 0 and 1"):
        sms(part)


@table("capability, stages", [(90, 5), (80, 5), (94, 2)])
def test_amd_gets_two_stages_at_most(capability: int, stages: int) -> None:
    """A GPU of NVIDIA's takes as many as its shared memory holds, when it compiles."""
    placed = ag_gemm.schedule(matmul=sms(M=16, N=32, K=64, num_stages=5))
    topology = Topology(2, "peer", device=Device(sms=132, capability=capability))
    plan = placed.plan(torch.empty(64, 64), torch.empty(64, 64), topology=topology)
    assert [k.options.num_stages for k in plan.kernels] == [stages]


def test_a_flag_beyond_the_last_row_counts_no_tile() -> None:
    """There are as many flags of each part as of the first, and the last part is shorter than tiles are."""
    tile = sms(M=4, N=2, K=4)
    plan = plan_of(gemm_rs, 3, {"M": 7, "K": 4, "N": 4}, scatter=copy_engine(M=1), reduce=sms(M=1, N=2), matmul=tile)
    assert_right(plan)
    channel = plan.channel("matmul_out")
    assert F.evaluate(channel.flags, plan.env(0)) > 7
    assert_right(plan)
