"""Tables that say where a split ends: whoever reads one, at whatever time, comes behind whoever makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import launched_backwards, plan_of
from tests.selection import table
from tilelink import Operator, operator, sms
from tilelink.ir.plan import Launch, Plan

SIZES = {"P": 12, "H": 4, "e": 3, "N": 4}
GROUPED = sms(P=2, N=2, H=4)


@tilelink.program("e i32 -> e+1 i32")
def summed(counts: Any, start: Any) -> None:
    """Where each segment begins, one after the other."""
    e = tl.tile_id(counts)
    tl.consumer_tile_wait(counts)
    tl.tile_store(start, e + 1, tl.sum(tl.where(tl.tile_range(counts) <= e, tl.tile_load(counts), 0)))
    if e == 0:
        tl.tile_store(start, 0, 0)
    tl.producer_tile_notify(start)


@tilelink.program("P H, e+1 i32, e H N -> P/start N")
def grouped(x: Any, start: Any, weight: Any, out: Any) -> None:
    """Names the table in its signature only."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(x, axis=1):
        acc = tl.dot(tl.tile_load(x, (p, k)), tl.tile_load(weight, (e, k, n)), acc)
    tl.tile_store(out, (p, n), acc)


@tilelink.program("P H, e+1 i32, e H N -> P/start N")
def curious(x: Any, start: Any, weight: Any, out: Any) -> None:
    """Reads it, too, and does not wait for it."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    first = tl.tile_load(start, e)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(x, axis=1):
        acc = tl.dot(tl.tile_load(x, (p, k)), tl.tile_load(weight, (e, k, n)), acc)
    tl.tile_store(out, (p, n), acc + first)


@tilelink.program("P H, e+1 i32, e H N -> P/start N")
def patient(x: Any, start: Any, weight: Any, out: Any) -> None:
    """Waits for it, and reads it then."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    tl.consumer_tile_wait(start)
    first = tl.tile_load(start, e)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(x, axis=1):
        acc = tl.dot(tl.tile_load(x, (p, k)), tl.tile_load(weight, (e, k, n)), acc)
    tl.tile_store(out, (p, n), acc + first)


def routed(program: Any) -> Operator:
    body = lambda x, counts, weight: program(x, summed(counts), weight, name="by")  # noqa: E731
    return operator("P H, e i32, e H N -> P N", name="routed")(body)


def planned(program: Any, **placements: Any) -> Plan:
    return plan_of(routed(program), 2, SIZES, by=GROUPED, **placements)


def assert_read_too_early(plan: Plan) -> None:
    error = assert_refused(plan, "TL609")
    assert error.message == "`start` is read before it is known to be written"
    assert error.loc is not None


@table("program", [grouped, patient])
def test_a_table_that_an_earlier_kernel_makes(program: Any) -> None:
    assert_right(planned(program))


def test_a_table_that_is_read_without_a_wait() -> None:
    """Also where, as it happens, the table is made in an earlier kernel."""
    assert assert_refused(planned(curious), "TL602").message == "`start` is read and no wait covers it"


@table("program", [grouped, patient])
def test_a_table_that_is_made_beside(program: Any) -> None:
    """How many tiles there are is read before the first of them: a wait in a tile, by flags, comes too late for that."""
    assert_read_too_early(planned(program, summed=sms(1, own_kernel=True)))


def test_a_table_that_is_made_in_the_same_kernel() -> None:
    plan = planned(grouped)
    first, then = plan.kernels
    both = replace(then, roles=(*first.roles, *then.roles))
    host = tuple(h for h in plan.host if h != Launch(first.name, first.stream))
    assert_read_too_early(replace(plan, kernels=(both,), host=host))


def test_a_table_that_is_made_afterwards() -> None:
    plan = planned(grouped)
    assert_read_too_early(launched_backwards(plan))
