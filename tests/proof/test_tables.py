"""Questions that the tables of a lowered plan answer: what is written, signalled and taken, and that nothing spoilt passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import pytest

import tilelink
import tilelink.language as tl
from benchmarks.mutants.mappings import mappings, operators
from tests.mapping.plans import form, forms, plan_of
from tests.mapping.shelf import double
from tilelink import sms
from tilelink.ir import formula as F
from tilelink.ir.lowered import (
    ENTERED,
    LEFT,
    READY,
    Await,
    Check,
    Copy,
    Executor,
    Flags,
    For,
    If,
    Lowered,
    Op,
    Read,
    Signal,
    Tiles,
    Write,
    walk,
)
from tilelink.mapping.lower import lower
from tilelink.ops.programs import keep
from tilelink.proof.check import QUESTIONS
from tilelink.proof.table import Table

SPOILT = ("ag_gemm", "gemm_rs", "gemm_rs_ring", "all_reduce_one_shot", "all_to_all")


def found(lowered: Lowered) -> list[str]:
    table = Table.of(lowered)
    return [f.what for f in chain.from_iterable(question.ask(table) for question in QUESTIONS)]


def lowered_of(name: str) -> Iterator[Lowered]:
    for mapping in islice(mappings(operators()[name]), 0, None, 5):
        yield lower(mapping.plan)


@pytest.mark.parametrize("name", operators())
def test_operators_of_the_library(name: str) -> None:
    assert [said for lowered in lowered_of(name) for said in found(lowered)] == []


@pytest.mark.parametrize("name", sorted(forms()))
def test_forms_of_many_tiles(name: str) -> None:
    """Where conditions that hold in few places have axes packed, and boxes touch several cells."""
    lowered = lower(form(name, 8, {"M": 8 * 997 - 5, "K": 512, "N": 512}, 128))
    assert found(lowered) == []
    needed = [op for e in lowered.executors for op in _needed(e)]
    for op, spoilt in _spoilt(lowered, _dropped, (Await,)):
        assert found(spoilt) != [] or op not in needed, op


# ------------------------------------------------------------------------------------------------------------ spoilt plans
def _twice(op: Op) -> tuple[Op, ...]:
    return op, op


def _dropped(op: Op) -> tuple[Op, ...]:
    del op
    return ()


def _shifted(op: Op) -> tuple[Op, ...]:
    """One element, or one flag, further on."""
    if isinstance(op, Signal):
        return (replace(op, index=op.index + 1),)
    write = op.target if isinstance(op, Copy) else op
    assert isinstance(write, Write)
    (begin, end), *more = write.box
    moved = replace(write, box=((begin + 1, end + 1), *more))
    return (replace(op, target=moved) if isinstance(op, Copy) else moved,)


def _spoilt(
    lowered: Lowered, change: Callable[[Op], tuple[Op, ...]], kinds: tuple[type, ...]
) -> Iterator[tuple[Op, Lowered]]:
    """With one op of these kinds changed, one after the other."""
    for loop in loops_of(lowered):
        for op in dict.fromkeys(o for o in walk(loop.body) if isinstance(o, kinds) and _matters(lowered, o)):
            body = _rewritten(loop.body, lambda o, op=op: change(o) if o == op else (o,))
            yield op, with_loop(lowered, loop, body=body)


def _rewritten(body: tuple[Op, ...], change: Callable[[Op], tuple[Op, ...]]) -> tuple[Op, ...]:
    """The body with each op replaced by what `change` gives for it, inner ones first."""
    out: list[Op] = []
    for op in body:
        out += change(replace(op, body=_rewritten(op.body, change)) if isinstance(op, (For, If)) else op)
    return tuple(out)


def _matters(lowered: Lowered, op: Op) -> bool:
    """What data decides is taken on trust; and nobody may need what is signalled on entry."""
    if isinstance(op, Await | Signal):
        return op.flags not in (ENTERED, READY, LEFT)
    write = op.target if isinstance(op, Copy) else op
    assert isinstance(write, Write)
    return not write.by_data and bool(write.box)


def loops_of(lowered: Lowered) -> list[Tiles]:
    return [loop for e in lowered.executors for loop in e.loops]


def with_loop(lowered: Lowered, loop: Tiles, **changes: Any) -> Lowered:
    def changed(e: Executor) -> Executor:
        return replace(e, loops=tuple(replace(x, **changes) if x is loop else x for x in e.loops))

    return replace(lowered, executors=tuple(changed(e) for e in lowered.executors))


def _with_flags(lowered: Lowered, flags: Flags, **changes: Any) -> Lowered:
    return replace(lowered, flags=tuple(replace(f, **changes) if f is flags else f for f in lowered.flags))


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.parametrize("change", [_dropped, _twice, _shifted])
def test_a_spoilt_write_or_signal_is_found(name: str, change: Callable[[Op], tuple[Op, ...]]) -> None:
    for lowered in lowered_of(name):
        for op, spoilt in _spoilt(lowered, change, (Write, Copy, Signal)):
            assert found(spoilt) != [], op


@pytest.mark.parametrize("name", SPOILT)
def test_an_await_that_is_left_out_is_found(name: str) -> None:
    for lowered in lowered_of(name):
        needed = [op for e in lowered.executors for op in _needed(e)]
        for op, spoilt in _spoilt(lowered, _dropped, (Await,)):
            assert found(spoilt) != [] or op not in needed, op


def _needed(e: Executor) -> Iterator[Op]:
    """Awaits behind which something is read, unless the executor comes after those that make it."""
    if any(before not in ("call_entry", "stage") for before in e.after):
        return
    for loop in e.loops:
        ops = list(walk(loop.body))
        last = max((k for k, op in enumerate(ops) if isinstance(op, Read | Copy)), default=0)
        yield from (op for op in ops[:last] if isinstance(op, Await))


@pytest.mark.parametrize("name", SPOILT)
def test_a_loop_that_takes_other_tiles_is_found(name: str) -> None:
    for lowered in lowered_of(name):
        for loop in (x for x in loops_of(lowered) if x.axes and not x.by_data):
            fewer = with_loop(lowered, loop, total=loop.total - 1)
            again = with_loop(lowered, loop, order=(("t", F.minimum(F.Sym("t"), loop.total - 2)), *loop.order))
            assert found(fewer) != [] or found(again) != []


def test_arrivals_that_are_not_those_of_the_signals_are_found() -> None:
    for lowered in lowered_of("gemm_rs"):
        for flags in lowered.flags:
            if flags.arrivals is not None:
                assert found(_with_flags(lowered, flags, arrivals=flags.arrivals + 1)) != []


@pytest.mark.parametrize("style", ["count", "doorbell", "data"])
def test_the_begin_of_a_call_is_told_by_its_number(style: Any) -> None:
    for lowered in lowered_of("gemm_rs"):
        spoilt = _with_flags(lowered, lowered.flag(ENTERED), style=style)
        assert f"`{ENTERED}` does not say which call has begun" in found(spoilt)


def test_each_rank_tells_the_begin_of_a_call_by_its_own_flag() -> None:
    def shifted(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Signal) and op.flags == ENTERED:
            return (replace(op, index=(op.index + 1) % F.Sym("RANKS")),)
        return (op,)

    for lowered in lowered_of("gemm_rs"):
        loop = lowered.executors[0].loops[0]
        spoilt = with_loop(lowered, loop, body=_rewritten(loop.body, shifted))
        assert spoilt != lowered
        assert f"`{ENTERED}` is not told to all ranks once" in found(spoilt)


@pytest.mark.parametrize("style", ["epoch", "data"])
def test_what_is_set_cannot_count(style: Any) -> None:
    for lowered in lowered_of("gemm_rs"):
        flags = next(f for f in lowered.flags if f.arrivals is not None)
        spoilt = _with_flags(lowered, flags, style=style)
        assert f"`{flags.name}` is set, and expects to be counted" in found(spoilt)


def test_what_travels_beside_data_is_seen_by_workers_only() -> None:
    for lowered in lowered_of("all_reduce_one_shot"):
        spoilt = _with_flags(lowered, lowered.flag(ENTERED), style="data")
        assert f"`{ENTERED}` travels beside data, which only workers see" in found(spoilt)


def test_doorbells_that_several_loops_wait_for_are_counted() -> None:
    """Those of a stream and of workers have other numbers of tiles."""
    lowered = next(lower(m.plan) for m in mappings(operators()["ring_attention"]) if m.name == "flash: library")
    spoilt = _with_flags(lowered, lowered.flag("hand_on_k_rows"), style="doorbell")
    assert "a copy engine waits 4 times for flag 1 of `hand_on_k_rows`" in found(spoilt)


def test_a_loop_whose_tiles_data_counts_takes_each_that_there_may_be() -> None:
    for lowered in lowered_of("ag_moe"):
        for loop in (x for x in loops_of(lowered) if x.by_data and x.axes):
            assert found(with_loop(lowered, loop, total=loop.total - 1)) != []


def test_what_travels_beside_data_says_nothing_of_other_memory() -> None:
    """Flags of data are of the buffer of their name; by another name they order nothing that is read there."""

    def named(op: Op) -> tuple[Op, ...]:
        return (replace(op, flags="box"),) if isinstance(op, Await | Signal) and op.flags == "inbox" else (op,)

    lowered = next(x for x in lowered_of("all_reduce_one_shot") if any(f.name == "inbox" for f in x.flags))
    beside = _with_flags(lowered, lowered.flag("inbox"), style="data", arrivals=None)
    assert found(beside) == []
    other = _with_flags(beside, beside.flag("inbox"), name="box")
    for loop in loops_of(other):
        other = with_loop(other, loop, body=_rewritten(loop.body, named))
    assert any("before it is known to be written" in text for text in found(other))


def test_the_sides_of_a_copy_have_one_shape() -> None:
    for lowered in lowered_of("ag_gemm"):
        for loop in loops_of(lowered):
            for op in (o for o in walk(loop.body) if isinstance(o, Copy) and o.source.box):
                (begin, end), *more = op.source.box
                shorter = replace(op, source=replace(op.source, box=((begin, end - 1), *more)))
                body = _rewritten(loop.body, lambda o, op=op, new=shorter: (new if o == op else o,))
                assert found(with_loop(lowered, loop, body=body)) != []


# ------------------------------------------------------------------------------------------------------- memory of others
def _elsewhere(lowered: Lowered, space: str, rank: F.Formula) -> Lowered:
    """The first read of memory of that kind is made of another rank's."""
    spaces = {b.name: b.space for b in lowered.buffers}

    def moved(op: Op) -> tuple[Op, ...]:
        read = op.source if isinstance(op, Copy) else op
        if not isinstance(read, Read) or read != first:
            return (op,)
        other = replace(read, rank=rank)
        return (replace(op, source=other) if isinstance(op, Copy) else other,)

    for loop in loops_of(lowered):
        reads = [o.source if isinstance(o, Copy) else o for o in walk(loop.body)]
        first = next((o for o in reads if isinstance(o, Read) and spaces[o.buffer] == space and o.box), None)
        if first is not None:
            return with_loop(lowered, loop, body=_rewritten(loop.body, moved))
    raise AssertionError(f"nobody reads {space} memory")


NEXT = (F.Sym("rank") + 1) % F.Sym("RANKS")


@pytest.mark.parametrize(
    ("space", "rank", "said"),
    [
        ("argument", F.Sym("rank") + 1, "is not on a rank that there is"),
        ("argument", NEXT, "is touched before that rank has begun the call"),
        ("argument", NEXT, "may still be touched when its call has ended"),
        ("device", NEXT, "is memory that other ranks do not reach"),
    ],
)
def test_what_is_read_on_another_rank(space: str, rank: F.Formula, said: str) -> None:
    name = "gemm_rs" if space == "argument" else "moe_rs"
    spoilt = [_elsewhere(lowered, space, rank) for lowered in islice(lowered_of(name), 1)]
    assert all(any(said in text for text in found(lowered)) for lowered in spoilt)


def test_a_condition_that_has_to_hold() -> None:
    lowered = next(lowered_of("ag_gemm"))
    loop = next(x for x in loops_of(lowered) if x.axes)
    spoilt = with_loop(lowered, loop, body=(Check(F.of(0), "more than there is"), *loop.body))
    assert any("would go past the end: more than there is" in text for text in found(spoilt))


def test_nobody_runs_ahead_of_the_call() -> None:
    for lowered in lowered_of("gemm_rs"):
        late = [e for e in lowered.executors if e.after]
        for e in late:
            free = tuple(replace(x, after=()) if x is e else x for x in lowered.executors)
            assert f"`{e.name}` runs ahead of the call" in found(replace(lowered, executors=free))


@tilelink.program("M/R N -> R/R M N")
def around(x: Any, box: Any) -> None:
    s, m, n = tl.tile_id(box)
    owner = tl.rank_of(x, (m, n))
    if owner == s:
        for _ in tl.static_range(0):
            tl.consumer_tile_wait(x, (m, n))
        tl.tile_store(box, (s, m, n), tl.tile_load(x, (m, n)))
        tl.producer_tile_notify(box, (s, m, n))
    else:
        tl.peer_tile_wait(box, (s, m, n), s + 1)
    if owner != s - 1:
        tl.tile_push_data(box, (s - 1, m, n), tl.tile_load(box, (s, m, n)))
        tl.peer_tile_notify(box, (s - 1, m, n), s - 1)


def test_a_loop_without_turns_beside_others() -> None:
    """Its ops have an axis that is empty, and whoever looks for circles takes them together with those of other loops."""
    goes = tilelink.operator("M/R N -> M N", name="goes")(lambda x: keep(around(double(x))))
    placed = goes.schedule(around=sms(M=1, N=1, joins="double"), double=sms(M=2, N=2), keep=sms(1, M=8, push=False))
    table = Table.of(lower(plan_of(placed, 4, {"M": 8, "N": 2})))
    found = {question.rule: next(question.ask(table), None) for question in QUESTIONS}
    assert found["waits"] is not None
    assert found["bounds"] is found["orders"] is None
