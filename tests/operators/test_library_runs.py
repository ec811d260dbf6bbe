# pyright: reportArgumentType=false
"""Library functions that take a tile in runs of an axis that it does not have, and merge what the runs give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import emitted, plan_of, with_step
from tests.mapping.shelf import double
from tests.operators.language import matmul_as_it_comes
from tests.operators.problems import Problem, alone, assert_as_torch, each, random, split
from tests.operators.test_attention import problem
from tests.operators.test_library import done, without_waits
from tests.selection import table
from tilelink import Operator, TilelinkError, by_panels, copy_engine, library, operator, ops, program, sms
from tilelink.ir.plan import Plan
from tilelink.ir.streams import Action, Compute, Wait, actions
from tilelink.libraries import attention
from tilelink.mapping.lower import lower
from tilelink.ops.attention import flash
from tilelink.ops.programs import gather, matmul, reduce, scatter
from tilelink.runtime.functions import function_of

NAME = "tilelink.libraries.attention"
RUNS = library(NAME, T="T/R")
ENGINES = {f"gather_{t}": copy_engine(push=True) for t in "kv"}
AG = ops.ag_attention.schedule(flash=RUNS, **ENGINES)
FORMS: dict[str, Operator] = {
    "part by part": AG,
    "rows in chunks, two streams": AG.schedule(flash=library(NAME, S=8, T="T/R", streams=2)),
    "keys in chunks": AG.schedule(flash=library(NAME, S=8, T=3)),
    "pulled in chunks": AG.schedule({p: copy_engine(M=4, push=False) for p in ENGINES}),
    "by SMs": AG.schedule(gather_k=sms(1, M=8), gather_v=sms(1, M=8, push=True)),
    "all at once": AG.schedule(flash=library(NAME)),
    "round the ring": ops.ring_attention.schedule(flash=RUNS),
}
SIZES = {"S": 64, "h": 4, "g": 2, "D": 16}


@pytest.mark.parametrize("form", FORMS)
def test_against_torch(form: str) -> None:
    """Grouped heads, ragged parts."""
    assert_as_torch(FORMS[form], problem(3, 17, heads=4, groups=2))


@pytest.mark.parametrize(("ranks", "s", "causal"), [(1, 4, True), (2, 7, False), (4, 5, True), (4, 11, False)])
def test_rank_counts(ranks: int, s: int, causal: bool) -> None:
    assert_as_torch(AG, problem(ranks, s, causal=causal, dtype=torch.bfloat16, scale=0.3))


# ------------------------------------------------------------------------------------------------------- a user's function
def added(parts: Sequence[torch.Tensor], *, out: torch.Tensor) -> None:
    out.copy_(torch.stack([*parts, torch.zeros_like(out)]).sum(0))


@by_panels(merge=added)
def product(rows: torch.Tensor, weight: torch.Tensor, *, at: dict[str, tuple[int, int]]) -> torch.Tensor:
    """A share of a product's depth."""
    assert [end - begin for begin, end in at.values()] == [len(rows), weight.shape[1], len(weight)]
    assert list(at) == ["M", "N", "K"]
    return rows @ weight


@operator("M K, K/R N -> M N")
def gathered_depth(x: Any, weight: Any) -> Any:
    return matmul_as_it_comes(x, gather(weight))


@pytest.mark.parametrize("tile", [{"K": "K/R"}, {"K": 3, "M": 8}, {}])
def test_a_product_whose_depth_arrives_part_by_part(tile: dict[str, Any]) -> None:
    x, weight = random(20, 22), random(22, 12, seed=1)
    op = gathered_depth.schedule(gather=copy_engine(push=True), matmul_as_it_comes=library(product, **tile))
    assert_as_torch(op, Problem(each([x] * 3, split(weight, 3)), [[x @ weight]] * 3, {"K": 22}))


@operator("M K, K J, J N -> M N")
def made_depth(x: Any, a: Any, b: Any) -> Any:
    return matmul_as_it_comes(x, matmul(a, b))


def test_what_workers_of_the_rank_make_is_waited_for_by_flags_and_not_by_doorbells() -> None:
    """Two tiles wait for the same runs, and a doorbell is heard once."""
    sizes = {"M": 8, "K": 8, "J": 4, "N": 4}
    placed: dict[str, Any] = {"matmul": sms(M=4, N=4, K=4), "matmul_as_it_comes": library(product, M=4, K=4)}
    plan = plan_of(made_depth, 2, sizes, **placed)
    assert [(c.scope, c.doorbells) for c in plan.channels] == [("gpu", "")]
    found = done(plan, "matmul_as_it_comes", 0)
    assert [(a.style, a.index) for a in found if isinstance(a, Wait)] == [("count", 0), ("count", 1)] * 2
    assert_right(plan)
    x, a, b = random(8, 8), random(8, 4, seed=1), random(4, 4, seed=2)
    assert_as_torch(made_depth.schedule(placed), Problem(each([x] * 2, [a] * 2, [b] * 2), [(x @ a @ b,)] * 2))


@operator("M K, K J, J N -> M N, K/R N")
def made_and_moved(x: Any, a: Any, b: Any) -> Any:
    made = matmul(a, b)
    return matmul_as_it_comes(x, made), reduce(scatter(made))


def test_a_doorbell_that_a_copy_engine_hears_is_left_to_it() -> None:
    """The function looks at flags, twice here: its two tiles want the same runs."""
    sizes = {"M": 8, "K": 8, "J": 4, "N": 4}
    placed: dict[str, Any] = {
        "matmul": sms(M=4, N=4, K=4),
        "matmul_as_it_comes": library(product, M=4, K=4),
        "scatter": copy_engine(M=4),
    }
    plan = plan_of(made_and_moved, 2, sizes, **placed)
    assert [c.doorbells for c in plan.channels if c.tensor == "matmul_out"] == ["beside"]
    assert_right(plan)
    x, a = random(8, 8), random(8, 4, seed=1)
    bs = [random(4, 4, seed=2 + rank) for rank in range(2)]
    total = sum(a @ b for b in bs)
    wanted = [(x @ (a @ b), mine) for b, mine in zip(bs, split(total, 2), strict=True)]
    assert_as_torch(made_and_moved.schedule(placed), Problem([(x, a, b) for b in bs], wanted))


def test_a_program_may_call_a_position_what_the_operator_calls_a_size() -> None:
    @program("M K, K N -> M N")
    def from_the_first_on(rows: Any, weight: Any, out: Any) -> None:
        m, n = tl.tile_id(out)
        K = tl.tile_begin(out, m)
        acc = tl.zeros(tl.tile_shape(out), tl.float32)
        for k in tl.tiles(weight, axis=0, start=0 * K):
            tl.consumer_tile_wait(weight, (k, n))
            acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
        tl.tile_store(out, (m, n), acc)

    @operator("M K, K/R N -> M N")
    def op(x: Any, weight: Any) -> Any:
        return from_the_first_on(x, gather(weight))

    x, weight = random(4, 8), random(8, 4, seed=1)
    placed = op.schedule(gather=copy_engine(push=True), from_the_first_on=library(product, K="K/R"))
    assert_as_torch(placed, Problem(each([x] * 2, split(weight, 2)), [(x @ weight,)] * 2, {"K": 8}))


def test_one_tensor_for_queries_keys_and_values() -> None:
    """Keys and values are one gathered tensor, and queries the argument in which a rank's own part of it lies."""

    @operator("S/R h D -> S/R h D")
    def to_itself(x: Any) -> Any:
        rows = gather(x)
        return flash(x, rows, rows, causal=False, scale=1.0)

    placed: dict[str, Any] = {"flash": RUNS, "gather": copy_engine(push=True)}
    plan = plan_of(to_itself, 3, {"S": 12, "h": 2, "D": 16}, **placed)
    assert [(i.tensor, i.source) for i in plan.step("flash").in_place] == [("rows", "x")]
    assert_right(plan)
    x = random(12, 2, 16)
    heads = x.transpose(0, 1)
    wanted = torch.softmax(heads @ heads.transpose(1, 2) * math.log(2), -1) @ heads
    assert_as_torch(to_itself.schedule(placed), Problem(each(split(x, 3)), each(split(wanted.transpose(0, 1), 3))))


@program("M K, K N -> M N")
def when_all_is_there(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(weight)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@operator("M K, K/R N -> M N")
def gathered_first(x: Any, weight: Any) -> Any:
    return when_all_is_there(x, gather(weight))


def test_what_is_waited_for_as_a_whole_is_not_read_in_place() -> None:
    """Its own part has to be moved, too: the wait is for all flags."""
    placed: dict[str, Any] = {"gather": copy_engine(push=True), "when_all_is_there": library(product, K="K/R")}
    plan = plan_of(gathered_first, 2, {"M": 4, "K": 8, "N": 4}, **placed)
    assert not plan.step("when_all_is_there").in_place


@pytest.mark.parametrize("chunks", [{}, {"M": 2}], ids=["whole parts", "chunks"])
@pytest.mark.parametrize(
    "taken", [sms(M=4, N=4, K=4), library("torch.mm"), library(product, K="K/R")], ids=["SMs", "function", "by panels"]
)
def test_all_that_copy_engines_bring(taken: Any, chunks: dict[str, int]) -> None:
    """A flag for each of their tiles; parts that end early, or are empty, lack some."""
    for ranks, depth in ((3, 2), (4, 9)):
        x, weight = random(4, depth), random(depth, 4, seed=1)
        placed: dict[str, Any] = {"gather": copy_engine(push=True, **chunks), "when_all_is_there": taken}
        plan = plan_of(gathered_first, ranks, {"M": 4, "K": depth, "N": 4}, **placed)
        assert_right(plan)
        problem = Problem(each([x] * ranks, split(weight, ranks)), [(x @ weight,)] * ranks, {"K": depth})
        assert_as_torch(gathered_first.schedule(placed), problem)


def test_runs_are_parts_along_the_axis_of_ranks_that_a_step_speaks_of() -> None:
    """Two lines of three ranks: rows are split over the lines, the depth along each."""

    @operator("M/DP K, K/TP N -> M/DP N", axes="DP TP")
    def both(x: Any, weight: Any) -> Any:
        return matmul_as_it_comes(x, gather(weight), over="TP")

    op = both.schedule(gather=copy_engine(push=True), matmul_as_it_comes=library(product, K="K/R"))
    x, weight = random(9, 7), random(7, 5, seed=1)
    inputs = [(split(x, 2)[r // 3], split(weight, 3)[r % 3]) for r in range(6)]

    wanted = [split(x @ weight, 2)[r // 3] for r in range(6)]
    assert_as_torch(op, Problem(inputs, each(wanted), {"M": 9, "K": 7}), axes={"DP": 2, "TP": 3})


# ------------------------------------------------------------------------------------------------------ what streams do
def runs_in(stream: Iterable[Action]) -> list[Compute]:
    return [a for a in stream if isinstance(a, Compute) and a.output is None]


def planned(op: Operator = AG, ranks: int = 4, **more: Any) -> Plan:
    return plan_of(op, ranks, SIZES, **dict(op.schedules.entries) | more)


def test_own_keys_first_read_where_they_lie_then_each_run_behind_its_flags() -> None:
    first, *rest, last = done(planned(), "flash", 2)
    assert isinstance(first, Compute)
    assert [(p.buffer, p.box[0]) for p in first.inputs] == [("q", (0, 16)), ("k", (0, 16)), ("v", (0, 16))]
    assert first.at == (("S", 32, 48), ("h", 0, 4), ("D", 0, 16), ("T", 32, 48))
    for *waits, run, part in zip(rest[::3], rest[1::3], rest[2::3], (0, 1), strict=True):
        assert waits == [Wait(f"gather_{t}_rows", part, "epoch") for t in "kv"]
        assert isinstance(run, Compute)
        assert [p.buffer for p in run.inputs] == ["q", "gather_k_rows", "gather_v_rows"]
        assert run.inputs[1].box == ((16 * part, 16 * part + 16), (0, 2), (0, 16))
        assert run.at[-1] == ("T", 16 * part, 16 * part + 16)
    assert isinstance(last, Compute)
    assert last.output is not None
    assert last.output.box == ((0, 16), (0, 4), (0, 16))


@operator("S/R h D, S/R g D, S/R g D -> S/R h D")
def everyone(q: Any, k: Any, v: Any) -> Any:
    """`ag_attention` without a diagonal."""
    keys, values = gather(k, name="gather_k"), gather(v, name="gather_v")
    return flash(q, keys, values, causal=False, scale=1.0)


def test_without_a_diagonal_all_runs_are_taken_as_they_arrive_in_the_ring() -> None:
    found = done(planned(everyone, flash=RUNS, **ENGINES), "flash", 2)
    assert [run.at[-1][1] // 16 for run in runs_in(found)] == [2, 3, 0, 1]


@table("form", FORMS)
def test_runs_are_what_the_program_walks(form: str) -> None:
    """Each position that a row of the tile sees is in one run; none that no row sees is in any."""
    plan = planned(FORMS[form], 3)
    for rank in range(3):
        for stream in actions(lower(plan), "flash", rank):
            runs = runs_in(stream)
            for tile in {op.tile for op in runs}:
                of_tile = [{d: (b, e) for d, b, e in op.at} for op in runs if op.tile == tile]
                seen = sorted(t for at in of_tile for t in range(*at["T"]))
                assert seen == list(range(of_tile[0]["S"][1]))


@table("form", FORMS)
def test_the_plan_is_right(form: str) -> None:
    plan = planned(FORMS[form], 3)
    assert_right(plan)


def test_what_is_not_waited_for_by_all_leaves_its_slots_to_credits() -> None:
    """The first rank hears from nobody, so nobody knows that it has left the call before."""
    assert planned().takes_credits


def test_a_missing_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilelink.pipeline.compiled.actions", without_waits("flash"))
    with pytest.raises(TilelinkError, match="TL507"):
        assert_as_torch(AG.with_schedule(AG.schedules), problem(2, 16))


def test_own_parts_that_no_run_ends_with_are_refused() -> None:
    """A run that reaches from a rank's own part into the next one cannot be read where that part lies."""
    plan = planned(everyone, flash=RUNS, **ENGINES)
    assert_right(plan)
    loops = tuple(replace(g, kind="plain") for g in plan.step("flash").loops)
    assert_refused(with_step(plan, "flash", loops=loops), "TL611")


def test_the_emitted_file_says_what_is_called() -> None:
    text = emitted(planned()).text
    line = next(line for line in text.splitlines() if " flash " in line)
    assert line.split("library ")[1] == (
        f"{NAME}(q[S, h, D], keys[T by T/R, g, D], values[T by T/R, g, D], out=out[S, h, D]), order 'ring'"
    )


def test_a_trace_shows_the_runs() -> None:
    call = problem(2, 8)
    trace = AG.trace(*[list(t) for t in zip(*call.inputs, strict=True)])
    lanes = [lane for lane in trace.lanes if lane.label == "library"]
    said = [[s.detail for s in lane.spans if s.kind == "compute"] for lane in lanes]
    assert said == [[f"{NAME}, a run"] * (rank + 1) + [f"{NAME}, merging"] for rank in range(2)]


# ---------------------------------------------------------------------------------------------------------- refusals
NO_RUNS = "runs are of one axis that the program walks and its tiles do not have, and it walks no such axis or more"


@program("M K, K N -> M N")
def branching(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        if tl.tile_begin(weight, k) > 4:
            acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@program("M K, K N -> M N")
def going_round(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    times = tl.sum(tl.tile_load(rows, m)).to(tl.int32)
    for _ in range(times):
        for k in tl.tiles(weight, axis=0):
            acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@program("M K, K N -> M N")
def shared_out(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0, part=(0, 2)):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@program("M K, K N -> M N")
def nested(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        for _ in tl.tiles(weight, axis=0):
            acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


def by_product(body: Any, split: str = "") -> tuple[Operator, dict[str, Any]]:
    @operator(f"M K{split}, K{split} N -> M N")
    def of_one(x: Any, weight: Any) -> Any:
        return body(x, weight, name="only")

    return of_one, {"only": library(product, K=4)}


@table(
    "op, placed, why",
    [
        (ops.ag_attention, {"flash": library("torch.mm", T="T/R")}, "it walks `h` one at a time"),
        (ops.ag_attention, {"flash": library(NAME, D=8)}, "the program stores all of `D` with each tile"),
        (
            gathered_depth,
            {"matmul_as_it_comes": library("torch.mm", K="K/R")},
            "the function gets all of `K`, which is no axis of what it makes, unless it says how to merge what parts give "
            "(tilelink.by_panels)",
        ),
        (
            ops.ag_attention_varlen,
            {"flash_varlen": RUNS},
            "`tl.min(begin, 0)` is known to the device only, and so which runs there are",
        ),
        (
            ops.ag_attention_zigzag,
            {"flash_there": RUNS},
            "a library function makes one tensor, tile by tile, and this program is not made so",
        ),
        (*by_product(branching), "it branches, and a function takes each run whole"),
        (
            *by_product(going_round),
            "nobody knows how often it loops (`for _ in range(times)`), and so which runs there are",
        ),
        (*by_product(shared_out), "it walks a share of the axis, and so which runs there are"),
        (*by_product(nested), NO_RUNS),
        (*by_product(matmul_as_it_comes, "/R"), "this rank has a part of `weight` only"),
    ],
    ids=["no merge", "whole axis", "depth", "data", "pushes", "branch", "loop", "share", "nested", "local"],
)
def test_what_cannot_be_placed_so_says_why(op: Operator, placed: dict[str, Any], why: str) -> None:
    with pytest.raises(TilelinkError, match="TL312") as caught:
        plan_of(op, 2, {**SIZES, "M": 16, "K": 16, "N": 16, "e": 2}, **placed)
    assert caught.value.why == why


def test_programs_without_runs_have_none() -> None:
    with pytest.raises(TilelinkError, match="TL312") as caught:
        plan_of(alone(double), 2, {"M": 16, "N": 16}, double=library(product))
    assert caught.value.why == NO_RUNS


def test_a_merge_that_leaves_something_out_is_found_out() -> None:
    lazy = by_panels(merge=lambda parts, *, out: added([p[1:] for p in parts], out=out[1:]))(product.function)
    x, weight = random(4, 6), random(6, 3, seed=1)
    op = gathered_depth.schedule(gather=copy_engine(push=True), matmul_as_it_comes=library(lazy, K="K/R"))
    with pytest.raises(AssertionError, match="nan"):
        assert_as_torch(op, Problem(each([x] * 2, split(weight, 2)), [[x @ weight]] * 2, {"K": 6}))


def test_functions_that_refuse_are_named_with_their_run() -> None:
    def touchy(rows: torch.Tensor, weight: torch.Tensor, *, at: Any) -> Any:
        raise ValueError("not so\nand more")

    x, weight = random(4, 6), random(6, 3, seed=1)
    op = gathered_depth.schedule(
        gather=copy_engine(push=True), matmul_as_it_comes=library(by_panels(merge=added)(touchy), K="K/R")
    )
    with pytest.raises(TilelinkError) as caught:
        assert_as_torch(op, Problem(each([x], [weight]), [[x @ weight]], {"K": 6}))
    assert caught.value.code == "TL409"
    assert caught.value.message.endswith("touchy` does not compute a tile of `matmul_as_it_comes`: not so")
    at = "at={'M': (0, 4), 'N': (0, 3), 'K': (0, 6)}"
    assert caught.value.why is not None
    assert caught.value.why.endswith(f"touchy(float32[4, 6], float32[6, 3], {at})")


def test_a_function_by_runs_is_found_by_its_name() -> None:
    assert RUNS.runs
    assert not library("torch.mm").runs
    assert function_of(NAME) is attention
