"""Operators drawn as text, a third of them spoilt: what is proved is right, and what is right and refused has a reason."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.programs.drawing import drawn
from tests.fuzz.programs.judging import judge
from tests.fuzz.programs.meaning import Meaning
from tests.fuzz.programs.memory import Ranks
from tests.fuzz.programs.reasons import reason_of
from tests.selection import table

EACH = 20


@pytest.mark.parametrize("block", range(12))
def test_what_is_proved_is_right(block: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(block * EACH, block * EACH + EACH):
        case = drawn(seed)
        found = judge(case)
        kinds[found.kind] += 1
        said = f"{case}\n{found.kind}: {found.outcome} {found.code} {found.text} {found.meaningless or found.faults}"
        assert found.kind in ("right", "assumed", "refused", "right and refused", "unjudged"), said
        assert found.kind != "right and refused" or reason_of(found), said
    # Or else nothing would have been run.
    assert kinds["right"] >= EACH // 5, kinds


BODY = """
@tilelink.program("M/R N -> M/R N")
def f(x, y):
    m, n = tl.tile_id(y)
    {body}

@tilelink.operator("M/R N -> M/R N")
def made(x):
    return f(x)

op = made.schedule(f=tilelink.sms(M=2, N=2))
"""
STORE = "tl.tile_store(y, (m, n), tl.tile_load(x, (m, n)))"


@table(
    "body, faults",
    [
        (STORE, {}),
        ("pass", {"unwritten": False}),
        (f"for _ in range(0): {STORE}", {"unwritten": False}),
        (f"for _ in range(2): {STORE}", {"twice": False}),
        (f"if tl.rank() == 0: {STORE}", {"unwritten": False}),
        (f"if tl.sum(tl.sum(tl.tile_load(x, (m, n)), 1), 0) > 0: {STORE}", {"unwritten": True}),
        (STORE[:-1] + ", mask=tl.tile_range(y, m)[:, None] < 2)", {"unwritten": False}),
        (STORE[:-1] + ", mask=tl.tile_load(x, (m, n)) > 0)", {"unwritten": True}),
        ("tl.tile_store(y, (m, 0), tl.tile_load(x, (m, n))[:, 0] * n.begin)", {"unwritten": False, "conflict": False}),
        (f"v = tl.tile_load(y, (m, n)); {STORE}", {"unread": False}),
    ],
)
def test_the_meaning_of_a_program_sees_what_is_never_written(body: str, faults: dict[str, bool]) -> None:
    """`faults`: kinds, and whether data decides."""
    meaning = Meaning(BODY.format(body=body), Ranks({"R": 2}), {"M": 6, "N": 4})
    rows = [[[2.0, -1.0, -1.0, -1.0]] * 3, [[-2.0, 1.0, 1.0, -1.0]] * 3]
    results = meaning.results([[rows[0]], [rows[1]]], {})
    assert {f.kind: f.by_data for f in meaning.faults} == faults
    if not faults:
        assert [r[0].tolist() for r in results] == rows


EXCHANGED = """
@tilelink.program("R/R M N, R M N -> M N")
def f(x, box, y):
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(box, (s, m, n), tl.tile_load(x, (s, m, n)))
    {notify}
    {wait}
    tl.tile_store(y, (m, n), tl.tile_load(box, (s + 1, m, n)))

@tilelink.operator("M N -> M N")
def op(x):
    return f(x, tilelink.symmetric("R M N", like=x))
"""
NOTIFY, WAIT = "tl.producer_tile_notify(box, (s, m, n))", "tl.consumer_tile_wait(box, (s + 1, m, n))"


@table(
    "notify, wait, faults",
    [
        (NOTIFY, WAIT, set()),
        ("pass", WAIT, {"untold"}),
        (NOTIFY, "pass", {"unwaited"}),
        (WAIT, NOTIFY, {"circle"}),
    ],
)
def test_the_meaning_of_a_program_sees_signals_that_miss(notify: str, wait: str, faults: set[str]) -> None:
    meaning = Meaning(EXCHANGED.format(notify=notify, wait=wait), Ranks({"R": 3}), {"M": 1, "N": 2})
    results = meaning.results([[[[r, r]]] for r in range(3)], {})
    assert {f.kind for f in meaning.faults} >= faults
    assert bool(meaning.faults) == bool(faults)
    assert [r[0].tolist() for r in results] == [[[1, 1]], [[2, 2]], [[0, 0]]]
