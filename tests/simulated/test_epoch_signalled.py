"""Calls of one program in one kernel: flags are set to the number of the call, and each worker counts calls for itself."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.selection import table
from tests.simulated.breaking import Break, Edit, breaking, changed
from tests.simulated.programs import HEARD, HEARD_AT, RACE, STANDSTILL, one_slot_again
from tilelink import Operator, TilelinkError
from tilelink.ops import all_reduce, all_reduce_one_shot, gemm_rs
from tilelink.runtime.session import require

__all__ = ["breaking"]

RANKS, CALLS = 3, 9


def slots_used_again(seed: int) -> list[tuple[bool, int]]:
    """Of each call, whether it is a epoch-signalled one, and how many slots are left out behind it: a graph of one call that is
    replayed uses its slot again."""
    rng = random.Random(seed)
    return [(rng.random() < 0.7, rng.choice([0, 0, 1])) for _ in range(CALLS)]


def work(seed: int, captured: bool) -> list[bool]:
    right = list[bool]()
    for call, (epoch_signalled, again) in enumerate(slots_used_again(seed)):
        rows = (3 if call % 3 == 0 else 1 + call % 3) if epoch_signalled else 4
        x = torch.full((rows, 1024), float(2 ** tilelink.rank() * (call + 1)))
        y = all_reduce(x, form="two_shot" if rows > 2 else "one_shot")
        right.append(torch.equal(y, torch.full_like(y, float((2**RANKS - 1) * (call + 1)))))
        for workspace in require().workspaces.values() if captured else ():
            workspace.replayed.add("a graph's call")
            workspace.calls += again
    return right


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_brief_calls_among_others(seed: int, captured: bool) -> None:
    """In any order, of any size, also where a slot is used in two calls running."""
    for right in tilelink.launch(lambda: work(seed, captured), RANKS, seed=seed, straggler=seed % 2, races=True):
        assert right == [True] * CALLS


def loaded_as_it_is(text: str) -> str:
    made = re.sub(
        r"shmem\.ll_load\((.*), epoch, (.*), tl\.float32\)", r"tl.load(\1, mask=\2, other=0).to(tl.float32)", text
    )
    assert made != text
    return made


WITH_WORDS, WITH_FLAGS = all_reduce_one_shot, all_reduce_one_shot.schedule(ll=False)
BROKEN = {
    "flags, no credit": (WITH_FLAGS, changed(HEARD, "if used < 0:"), RACE),
    "flags, a credit too early": (WITH_FLAGS, changed(HEARD, "if used > tl.load(heard_at + worker):"), RACE),
    "flags, heard before it was": (WITH_FLAGS, changed(HEARD_AT, f"{HEARD_AT} + 1"), RACE),
    "flags, a wait for the call before": (
        WITH_FLAGS, changed("shmem.CMP_GE, epoch, q_each", "shmem.CMP_GE, epoch - 1, q_each"), RACE
    ),
    "flags, a call that is not counted": (
        WITH_FLAGS, changed("tl.load(epoch_at + worker) + 1", "tl.load(epoch_at + worker)"), STANDSTILL
    ),
    "words, no credit": (WITH_WORDS, changed(HEARD, "if used < 0:"), STANDSTILL),
    "words, a credit too early": (WITH_WORDS, changed(HEARD, "if used > tl.load(heard_at + worker):"), STANDSTILL),
    "words, heard before it was": (WITH_WORDS, changed(HEARD_AT, f"{HEARD_AT} + 1"), STANDSTILL),
    "words of the call before": (WITH_WORDS, changed(", epoch, tl.float32", ", epoch - 1, tl.float32"), STANDSTILL),
    "words, a wait for the call after": (WITH_WORDS, changed(", epoch, m_in", ", epoch + 1, m_in"), STANDSTILL),
    "words, a wait for the call before": (WITH_WORDS, changed(", epoch, m_in", ", epoch - 1, m_in"), RACE),
    "words, no wait": (WITH_WORDS, Edit(loaded_as_it_is), RACE),
}  # fmt: skip


@pytest.mark.parametrize("operator", [WITH_FLAGS, WITH_WORDS], ids=["flags", "words"])
def test_a_slot_in_calls_that_follow_one_another(operator: Operator) -> None:
    """Without a race, and with the sums of each call."""
    found = tilelink.launch(lambda: one_slot_again(operator), RANKS, straggler=0)
    assert found == [[3.0, 6.0, 9.0, 12.0]] * RANKS


@pytest.mark.parametrize("name", BROKEN)
def test_what_keeps_calls_apart_is_needed(name: str, breaking: Break) -> None:
    operator, edit, code = BROKEN[name]
    breaking(edit)
    unknown = operator.schedule(slots=2)
    with pytest.raises(TilelinkError) as caught:
        tilelink.launch(lambda: one_slot_again(unknown), RANKS, straggler=0)
    assert caught.value.code == code


def test_nobody_ends_a_brief_call() -> None:
    """And nobody keeps what flags come to."""
    functions = [
        f for f in ast.parse(WITH_FLAGS.source(torch.empty(1, 64), ranks=2)).body if isinstance(f, ast.FunctionDef)
    ]
    assert [f.name for f in functions] == ["call_entry", "exchange"]
    assert not {"inbox_expected", "through_at"} & {a.arg for f in functions for a in f.args.args}


@pytest.mark.parametrize("slots", [1, 2])
def test_a_single_slot_is_not_brief(slots: int) -> None:
    plan = all_reduce_one_shot.schedule(slots=slots).plan(torch.empty(1, 64), ranks=2)
    assert plan.epoch_signalled == (slots > 1)


@table("rows, epoch_signalled", [(1, False), (3, True), (4, False), (6, True)])
def test_flags_that_nobody_raises_are_not_brief(rows: int, epoch_signalled: bool) -> None:
    """Those of rows that the last parts do not have."""
    assert all_reduce.plan(torch.empty(rows, 64), ranks=RANKS, form="two_shot").epoch_signalled == epoch_signalled


def test_copy_engines_are_not_brief() -> None:
    assert not gemm_rs.plan(torch.empty(4, 64), torch.empty(64, 32), ranks=2).epoch_signalled


@tilelink.program("R/R M N -> R M N")
def share(x: Any, inbox: Any) -> None:
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)))
    tl.producer_tile_notify(inbox, (s, m, n))


@tilelink.program("R M N -> M")
def first_columns(inbox: Any, out: Any, *, columns: int) -> None:
    """Two loops whose variables have one name: the second one waits for nobody."""
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        for k in tl.tiles(inbox, axis=2, stop=columns):
            tl.consumer_tile_wait(inbox, (q, m, k))
            acc += tl.sum(tl.tile_load(inbox, (q, m, k)), 1)
        for k in tl.tiles(inbox, axis=2):
            at = tl.tile_range(inbox, k)
            acc += tl.sum(tl.where(at < tl.size(inbox, 2), at, 0), 0)
    tl.tile_store(out, m, acc)


def test_who_may_take_no_tile_hears_nobody() -> None:
    """`columns` may be 0."""

    def body(x: Any) -> Any:
        return first_columns(share(x), columns=0)

    placed = {"share": tilelink.sms(M=2, N=64), "first_columns": tilelink.sms(M=2, N=16, joins="share")}
    operator = tilelink.operator("M N -> M", name="columns_of_all", schedule=placed)(body)
    plan = operator.plan(torch.empty(4, 64), ranks=2)
    assert plan.credits_implied_by is None
    assert not plan.epoch_signalled
