"""Tables that say where a split ends: whoever reads one, at whatever time, comes behind whoever makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilelink
import tilelink.language as tl
from tests.mapping.plans import plan_of
from tilelink import Operator, operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.host import Launch
from tilelink.ir.plan import Plan
from tilelink.mapping import verify

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


def refused(plan: Plan) -> TilelinkError:
    with pytest.raises(TilelinkError) as caught:
        verify(plan)
    return caught.value


@pytest.mark.parametrize("program", [grouped, patient])
def test_a_table_that_an_earlier_kernel_makes(program: Any) -> None:
    assert verify(planned(program))


def test_a_table_that_is_read_without_a_wait() -> None:
    """Also where, as it happens, the table is made in an earlier kernel."""
    error = refused(planned(curious))
    assert (error.code, error.message) == ("TL602", "`start` is read and no wait covers it")


@pytest.mark.parametrize("program", [grouped, patient])
def test_a_table_that_is_made_beside(program: Any) -> None:
    """How many tiles there are is read before the first of them: a wait in a tile, by words, comes too late for that."""
    error = refused(planned(program, summed=sms(1, own_kernel=True)))
    assert (error.code, error.message) == ("TL609", "`by` is split by `start`, which `summed` may still be making")


def test_a_table_that_is_made_in_the_same_kernel() -> None:
    plan = planned(grouped)
    first, then = plan.kernels
    both = replace(then, roles=(*first.roles, *then.roles))
    host = tuple(h for h in plan.host if h != Launch(first.name, first.stream))
    error = refused(replace(plan, kernels=(both,), host=host))
    assert error.message == "`by` is split by `start`, which `summed` may still be making"


def test_a_table_that_is_made_afterwards() -> None:
    plan = planned(grouped)
    launches = [h for h in plan.host if isinstance(h, Launch)]
    swapped = dict(zip(launches, launches[::-1], strict=True))
    error = refused(replace(plan, host=tuple(swapped[h] if isinstance(h, Launch) else h for h in plan.host)))
    assert error.message == "`by` is split by `start`, which `summed` may still be making"
