# pyright: reportArgumentType=false
"""Guards of the proof against plans that no planner makes: of each, the oracle finds what it does wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tilelink
import tilelink.language as tl
from benchmarks.mutants.bodies import with_body
from benchmarks.mutants.mappings import mappings
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import form, plan_of, unguarded, with_axis, with_channel, with_signal, with_step
from tests.mapping.shelf import double, local
from tests.operators.test_fused_tiles import of_two
from tests.selection import table
from tilelink import copy_engine, fused, operator, sms
from tilelink.ir import formula as F
from tilelink.ir.plan import MAIN, Fork, Join, Launch, Plan
from tilelink.ir.program import Store, walk
from tilelink.mapping.orders import decode
from tilelink.ops import ag_moe
from tilelink.ops.programs import gather

PULL, CHUNKS = "gemm_rs pull", "gemm_rs copy engine, reduced in the epilogue"


def small(name: str) -> Plan:
    return form(name, 3, {"M": 12, "K": 4, "N": 6}, 2)


def flags_that_are_too_few() -> Plan:
    return with_axis(small("ag_gemm pull"), "rows", 0, size=F.Sym("M") - 6)


def ready_and_no_argument() -> Plan:
    return with_signal(small("ag_gemm pull"), "matmul", "rows", "await", action="ready", channel=None)


def flags_of_another_tensor() -> Plan:
    return with_signal(small("gemm_rs_ring"), "ring", "partial", "await", channel="inbox")


def only_its_own_rank_is_told() -> Plan:
    """And the target says so, too: the numbers come out even."""
    plan = with_signal(small(PULL), "matmul", "out", "notify", to="self")
    own = F.binary("==", F.Sym("c0"), F.Sym("rank"))
    target = F.select(own, plan.channel("matmul_out").target * F.Sym("RANKS"), 0)
    return with_channel(plan, "matmul_out", target=target)


def announced_here_and_written_there() -> Plan:
    """A push tells its own rank alone, and nothing is due for rows of others."""
    plan = with_signal(small("ag_gemm push"), "gather", "rows", "notify", to="self")
    flags = plan.channel("rows")
    own = F.binary("==", F.Sym("c0") // flags.axes[0].per, F.Sym("rank"))
    return with_channel(plan, "rows", target=F.select(own, flags.target, 0))


def doorbells_that_nobody_rings() -> Plan:
    plan = small(CHUNKS)
    target = unguarded(plan.channel("matmul_out"))
    return with_channel(plan, "matmul_out", rings=F.of(0), target=target, doorbells="beside")


def in_place() -> Plan:
    op = operator("M/R N -> M N", name="in_place")(lambda x: double(gather(x)))
    return plan_of(op, 2, {"M": 8, "N": 4}, gather=copy_engine(M=2), double=sms(M=2, N=2))


def a_tile_of_two_parts_in_place() -> Plan:
    plan = in_place()
    step = plan.step("double")
    assert step.in_place
    grid = (replace(step.grid[0], tile=3), step.grid[1])
    order, total = decode(grid, ("row",))
    return with_step(plan, "double", grid=grid, order=order, total=total)


@tilelink.program("M M -> M M")
def diagonal(x: Any, out: Any) -> None:
    m, _n = tl.tile_id(out)
    tl.tile_store(out, (m, m), tl.tile_load(x, (m, m)))
    tl.producer_tile_notify(out, (m, m))


def one_tile_index_on_two_axes() -> Plan:
    op = operator("M M -> M M", name="square")(lambda x: double(diagonal(x)))
    return plan_of(op, 2, {"M": 4}, diagonal=sms(M=2), double=sms(2, M=2, N=2))


@tilelink.program("M N, M N -> M N")
def early(x: Any, later: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.consumer_tile_wait(later, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + tl.tile_load(later, (m, n)))


@tilelink.program("M N, M N")
def late(x: Any, later: Any) -> None:
    m, n = tl.tile_id(x)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(later, (m, n), tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(later, (m, n))


def fused_behind_its_reader() -> Plan:
    @operator("M N -> M N", name="backwards")
    def op(x: Any) -> Any:
        later, made = tilelink.symmetric("M N", like=x), double(x)
        out = early(made, later)
        late(made, later)
        return out

    return plan_of(op, 2, {"M": 4, "N": 4}, double=sms(M=2, N=2), early=fused("double"), late=fused("double"))


@tilelink.program("M N, M N")
def announce(x: Any, box: Any) -> None:
    m, n = tl.tile_id(x)
    tl.producer_tile_notify(box, (m, n))


def announced_and_never_written() -> Plan:
    @operator("M N -> M N", name="announced")
    def op(x: Any) -> Any:
        box = tilelink.symmetric("M N", like=x)
        announce(x, box)
        return double(box)

    return plan_of(op, 2, {"M": 4, "N": 4}, announce=sms(2, M=2, N=2), double=sms(M=2, N=2))


@tilelink.program("M/R N -> M/R N")
def add_one(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + 1)
    tl.producer_tile_notify(out, (m, n))


def written_while_peers_read_it() -> Plan:
    """All kernels on one stream: this rank's pull is over when its next kernel begins, and that of another rank is not."""

    @operator("M/R N -> M N", name="written_last")
    def op(x: Any) -> Any:
        out = double(gather(x))
        add_one(x, x)
        return out

    tiles, pull = sms(M=2, N=2), sms(2, M=2, push=False, own_kernel=True)
    plan = plan_of(op, 2, {"M": 4, "N": 2}, in_place=True, gather=pull, double=tiles, add_one=tiles)
    launched = (replace(h, stream=MAIN) if isinstance(h, Launch) else h for h in plan.host)
    return replace(plan, host=tuple(h for h in launched if not isinstance(h, (Fork, Join))))


WRONG: dict[Callable[[], Plan], str] = {
    flags_that_are_too_few: "TL611",
    ready_and_no_argument: "TL609",
    flags_of_another_tensor: "TL605",
    only_its_own_rank_is_told: "TL608",
    announced_here_and_written_there: "TL607",
    doorbells_that_nobody_rings: "TL608",
    a_tile_of_two_parts_in_place: "TL611",
    one_tile_index_on_two_axes: "TL604",
    fused_behind_its_reader: "TL609",
    announced_and_never_written: "TL604",
    written_while_peers_read_it: "TL609",
}


@tilelink.program("M N -> M N")
def under_data(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    if tl.tile_load(x, (0, 0)) > 0:
        value += 2
    tl.tile_store(out, (m, n), value)


@tilelink.program("M N, R/R M N -> M/R N")
def passed_on(x: Any, box: Any, out: Any) -> None:
    s, m, n = tl.tile_id(box)
    owner = tl.rank_of(out, m)
    acc = tl.tile_load(x, (m, n))
    if owner != s + 1:
        tl.consumer_tile_wait(box, (s, m, n))
        acc += tl.tile_load(box, (s, m, n))
    if owner == s:
        tl.tile_store(out, (m, n), acc)
    else:
        tl.tile_push_data(box, (s - 1, m, n), acc)
        tl.producer_tile_notify(box, (s - 1, m, n))


def test_a_condition_on_data_hides_no_circle() -> None:
    """A worker takes its tiles in turn, whatever another program does."""

    def both(x: Any, y: Any) -> Any:
        return under_data(x), passed_on(y, tilelink.symmetric("R/R M N", like=y))

    op = operator("M N, M N -> M N, M/R N")(both)
    alone = sms(M=1, N=4, order="ring")
    plan = plan_of(op, 2, {"M": 4, "N": 5}, under_data=sms(M=2, N=8, own_kernel=True), passed_on=alone)
    assert_refused(plan, "TL605")


@tilelink.program("R/R M, R/R M -> R/R M")
def around(x: Any, box: Any, out: Any) -> None:
    s, m = tl.tile_id(out)
    tl.peer_tile_wait(box, (s, m), s - 1)
    tl.tile_push_data(box, (s + 1, m), tl.tile_load(x, (s, m)))
    tl.peer_tile_notify(box, (s + 1, m), s + 1)
    tl.tile_store(out, (s, m), tl.tile_load(box, (s, m)))


@table("order", ["row", "ring+1"])
def test_no_order_helps_where_each_tile_waits_before_it_notifies(order: str) -> None:
    op = operator("R/R M -> R/R M", name="op")(lambda x: around(x, tilelink.symmetric("R/R M", like=x)))
    error = assert_refused(plan_of(op, 3, {"M": 4}, around=sms(M=4, order=order)), "TL605")
    assert (error.hint or "").startswith("let `around` notify before it waits, or let one rank begin")


@table("made", WRONG, ids=lambda made: made.__name__)
def test_it_is_refused(made: Callable[[], Plan]) -> None:
    assert_refused(made(), WRONG[made])


def test_what_workers_move_may_be_read_in_place_all_the_same() -> None:
    """Workers move the own part as well, and nobody misses it."""
    plan = in_place()
    op = operator("M/R N -> M N", name="in_place")(lambda x: double(gather(x)))
    moved = plan_of(op, 2, {"M": 8, "N": 4}, gather=sms(1, M=2), double=sms(M=2, N=2))
    changed = with_step(moved, "double", in_place=plan.step("double").in_place)
    assert_right(changed)


# --------------------------------------------------------------------------------------------------- what is right, and seldom
@tilelink.program("M/R N -> M/R N")
def of_all_mine(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows)
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) + tl.sum(tl.tile_load(rows)))
    tl.producer_tile_notify(out, (m, n))


def test_all_of_a_split_axis_is_this_ranks_part() -> None:
    op = operator("M/R N -> M/R N", name="mine")(lambda x: of_all_mine(local(x)))
    plan = plan_of(op, 3, {"M": 7, "N": 4}, local=sms(M=2, N=2), of_all_mine=sms(2, M=2, N=2))
    assert next(s.action for s in plan.signals if s.path == "of_all_mine") == "await"
    assert_right(plan)
    fewer = with_channel(plan, "local_out", target=plan.channel("local_out").target - 1)
    assert_refused(fewer, "TL607")


def test_a_flag_that_no_other_rank_can_signal_and_nobody_needs() -> None:
    """Tiles of two tensors are pushed and announced one after the other: who waits for the second has both."""
    tile = sms(M=2, N=4, K=4, order="ring+1")
    pushed: dict[str, Any] = {path: fused("twice") for path in ("one", "two")}
    plan = plan_of(of_two, 2, {"M": 8, "K": 8, "N": 4}, twice=tile, **pushed, difference=sms(M=2, N=4))
    assert_right(plan)
    first = next(c for c in plan.channels if c.scope == "sys")
    assert_refused(with_channel(plan, first.tensor, scope="gpu"), "TL612")


def test_a_table_that_splits_an_axis_is_read() -> None:
    """Kernels read where segments begin before their first tile."""
    plan = next(mappings(ag_moe)).plan
    assert_right(plan)
    body = plan.step("place").step.program.body
    kept = tuple(op for op in body if not any(isinstance(o, Store) and o.param == "start" for o in walk((op,))))
    assert "is never written" in assert_refused(with_body(plan, "place", kept), "TL604").message
