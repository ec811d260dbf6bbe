"""One name for several things, one after the other: each keeps its own tiles, positions and signals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import Problem, alone, assert_as_torch, random
from tests.selection import table
from tilelink import sms
from tilelink.frontend.program import Program
from tilelink.ir.program import Bounds, Loop, Tiles, walk

RANKS = 2


@tilelink.program("R/R M N -> R M N")
def share(x: Any, inbox: Any) -> None:
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)))
    tl.producer_tile_notify(inbox, (s, m, n))


@tilelink.program("R M N -> M")
def over_another_axis(inbox: Any, out: Any) -> None:
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(inbox, axis=0):
        for n in tl.tiles(inbox, axis=2):
            tl.consumer_tile_wait(inbox, (k, m, n))
            acc += tl.sum(tl.tile_load(inbox, (k, m, n)), 1)
    for k in tl.tiles(inbox, axis=2):
        at = tl.tile_range(inbox, k)
        acc += tl.sum(tl.where(at < tl.size(inbox, 2), at, 0), 0)
    tl.tile_store(out, m, acc)


@tilelink.program("R M N -> M")
def then_a_number(inbox: Any, out: Any) -> None:
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(inbox, axis=0):
        for n in tl.tiles(inbox, axis=2):
            tl.consumer_tile_wait(inbox, (k, m, n))
            acc += tl.sum(tl.tile_load(inbox, (k, m, n)), 1)
    k = tl.size(inbox, 2)
    tl.tile_store(out, m, acc + k * (k - 1) // 2)


@tilelink.program("R M N -> M")
def counted_first(inbox: Any, out: Any) -> None:
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in range(2):
        at = tl.tile_range(inbox, axis=2)
        acc += k * tl.sum(tl.where(at < tl.size(inbox, 2), at, 0), 0)
    for k in tl.tiles(inbox, axis=0):
        for n in tl.tiles(inbox, axis=2):
            tl.consumer_tile_wait(inbox, (k, m, n))
            acc += tl.sum(tl.tile_load(inbox, (k, m, n)), 1)
    tl.tile_store(out, m, acc)


@tilelink.program("R M N -> M")
def limited_first(inbox: Any, out: Any) -> None:
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(inbox, axis=2, stop=tl.size(inbox, 2)):
        at = tl.tile_range(inbox, k)
        acc += tl.sum(tl.where(at < tl.tile_end(inbox, k), at, 0), 0)
    for s in tl.tiles(inbox, axis=0):
        for k in tl.tiles(inbox, axis=2):
            tl.consumer_tile_wait(inbox, (s, m, k))
            acc += tl.sum(tl.tile_load(inbox, (s, m, k)), 1)
    tl.tile_store(out, m, acc)


PROGRAMS = [over_another_axis, then_a_number, counted_first, limited_first]


def reduced(program: Program) -> tilelink.Operator:
    def body(x: Any) -> Any:
        return program(share(x))

    placed = {"share": sms(M=2, N=16), program.name: sms(M=2, N=16)}
    return tilelink.operator("M N -> M", name="reduced", schedule=placed)(body)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_sums(program: Program) -> None:
    x = random(4, 64)
    operator = reduced(program)
    verdict = operator.verify(x, ranks=RANKS)
    assert verdict.ok
    assert "nobody writes what a call before may still use" in next(p.text for p in verdict.proofs if p.rule == "calls")
    assert_as_torch(operator, Problem([(x,)] * RANKS, [(RANKS * x.sum(1) + 63 * 64 // 2,)] * RANKS))


@table("program", PROGRAMS, ids=lambda p: p.name)
def test_each_loop_has_a_variable_of_its_own(program: Program) -> None:
    step = next(s for s in reduced(program).plan(torch.empty(4, 64), ranks=RANKS).steps if s.path == program.name)
    body = step.step.program.body
    bound = [op.var if isinstance(op, Tiles) else op.target for op in walk(body) if isinstance(op, (Tiles, Loop))]
    assert len(bound) == len(set(bound))
    assigned = {op.name for op in walk(body) if isinstance(op, Bounds)}
    assert not assigned & set(bound)


@tilelink.program("R M N -> M")
def alike(inbox: Any, out: Any) -> None:
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m))
    for s in tl.tiles(inbox, axis=0):
        for n in tl.tiles(inbox, axis=2):
            acc += tl.sum(tl.tile_load(inbox, (s, m, n)), 1)
    tl.tile_store(out, m, acc)


def test_loops_over_the_same_keep_their_name() -> None:
    step = reduced(alike).plan(torch.empty(4, 64), ranks=RANKS).step("alike")
    assert [op.var for op in walk(step.step.program.body) if isinstance(op, Tiles)] == ["s", "s", "n"]


# ------------------------------------------------------------------------------------------------ steps of similar names
@tilelink.program("M N -> M N")
def added(x: Any, out: Any, *, b_c: float = 0.0) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + b_c)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def scaled(x: Any, out: Any, *, c: float = 1.0) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    a_b_c = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), a_b_c * c)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator("M N -> M N", name="p")
def inner(x: Any) -> Any:
    return added(x, b_c=5.0, name="q")


@tilelink.operator("M N -> M N")
def similar(x: Any) -> Any:
    return added(scaled(scaled(inner(x), c=2.0, name="p_q"), c=3.0, name="a_b"), b_c=7.0, name="a")


def forwards(tile: tuple[int, ...], rank: int, ranks: int) -> tuple[int, ...]:
    return tile


def backwards(tile: tuple[int, ...], rank: int, ranks: int) -> tuple[int, ...]:
    return tuple(-i for i in tile)


ORDERED = {"p.q": sms(M=2, N=16, order=forwards), "p_q": sms(M=4, N=16, order=backwards, joins="p.q")}
PLACED = {
    "fused": {**ORDERED, "a_b": sms(M=2, N=16), "a": tilelink.fused("a_b")},
    "joined": {**ORDERED, "a_b": sms(M=2, N=16), "a": sms(M=2, N=16, joins="a_b")},
}


@pytest.mark.parametrize("placed", PLACED)
def test_scalars_and_orders_belong_to_their_step(placed: str) -> None:
    x = random(7, 30)
    assert_as_torch(similar.schedule(PLACED[placed]), Problem([(x,)] * RANKS, [(6 * (x + 5) + 7,)] * RANKS))


@tilelink.program("M N -> M N")
def quoted(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    rtne = tl.tile_begin(out, n)
    half = (tl.tile_load(x, (m, n)) + rtne).to(tl.float16, fp_downcast_rounding="rtne")
    tl.tile_store(out, (m, n), half)


def test_strings_are_no_names() -> None:
    (got,) = alone(quoted).schedule(quoted=sms(M=4, N=4))([torch.zeros(4, 8)])
    torch.testing.assert_close(got, (torch.arange(8) // 4 * 4).float().expand(4, 8))
