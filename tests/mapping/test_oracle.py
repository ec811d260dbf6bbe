"""The proof by structure and the exact graph say the same of every small plan, right or wrong.

A few hundred plans; `python -m benchmarks.verify_oracle` looks at as many as one likes.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mapping.corrupt import CORRUPTIONS
from tests.mapping.oracle import agreement, verdict_on
from tests.mapping.plans import plan_of
from tests.mapping.shelf import PIECES, patient, sound_plan, wired
from tests.mapping.shelf_graphs import awaited
from tests.operators.language import elsewhere
from tilelink import library, operator, sms
from tilelink.mapping.exact import examine
from tilelink.mapping.judge import verify
from tilelink.ops import ag_attention


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(rng=st.randoms(use_true_random=False))
def test_the_same_verdict(rng: random.Random) -> None:
    found = agreement(rng, sound_plan)
    assert found is None or found.agrees, str(found)


def test_the_plans_are_of_both_kinds() -> None:
    """Otherwise the test above would show little."""
    found = [a for k in range(60) if (a := agreement(random.Random(k), sound_plan)) is not None]
    assert len(found) > 30
    assert {piece for a in found for piece in a.of.split()} >= PIECES
    assert sum(a.proof == "proved" for a in found) > len(found) // 4
    assert sum(a.proof != "proved" for a in found) > len(found) // 8
    assert len({a.proof for a in found}) >= 5
    assert len({a.spoilt for a in found}) >= len(CORRUPTIONS) // 3
    assert all(a.agrees for a in found)


def test_who_tells_the_owners_of_nothing_but_its_own_tiles_tells_itself() -> None:
    """The last of a chain notifies under `owner == s`, so that its tile's owner is itself."""
    recipe, tiles = ("gather", "ring", "gather", "double"), sms(4, M=1, N=1, order="ring+1")
    rows = sms(2, M=1, push=True)
    plan = plan_of(wired(recipe), 3, {"M": 9, "N": 5}, gather_0=rows, ring_1=tiles, gather_2=rows, double_3=tiles)
    told = next(s for s in plan.signals if s.path == "ring_1" and s.action == "notify" and s.to == "self")
    owners = replace(plan, signals=tuple(replace(s, to="owner") if s is told else s for s in plan.signals))
    assert examine(owners).findings == ()
    assert verify(owners)


def test_who_takes_none_but_its_own_tiles_may_tell_itself() -> None:
    """The owner map gives every row to the rank that the result is of: to tell the rank is to tell the owner."""
    plan = plan_of(elsewhere("m, k -> m // 4 % R"), 2, {"M": 8, "K": 3})
    told = next(s for s in plan.signals if s.path == "work" and s.action == "notify")
    assert told.to == "owner"
    alone = replace(plan, signals=tuple(replace(s, to="self") if s is told else s for s in plan.signals))
    assert examine(alone).findings == ()
    assert [p.text for p in verify(alone).proofs if "exact graph" in p.text] == []


def test_words_that_nobody_needs_may_be_missed() -> None:
    """The stream's end comes before the kernel, whatever words the kernel looks at."""
    twice = operator("M N -> M N", name="twice")(lambda x: patient(patient(x, name="first"), name="then"))
    step = library("torch.mm", M=2, N=1)
    plan = plan_of(twice, 3, {"M": 2, "N": 3}, first=step, then=sms(2, M=1, N=1))
    channel = plan.channel("first_out")
    axes = (replace(channel.axes[0], kind="part"), *channel.axes[1:])
    channels = tuple(replace(c, axes=axes) if c is channel else c for c in plan.channels)
    missed = replace(plan, channels=channels)
    assert examine(missed).findings == ()
    said = next(p.text for p in verify(missed).proofs if p.rule == "waits")
    assert said.startswith("this wait of `rows` does not wait for `first`: waiting for positions 0 to 2")
    assert "and yet all accesses are ordered, by the exact graph" in said


def test_a_function_that_takes_all_of_an_axis_waits_for_all_words_of_it() -> None:
    """Counted by parts, of which the last two ranks have none: they would wait for nothing."""
    both = operator("M N, N N -> M N", name="both")(lambda x, w: awaited(x, patient(w, name="first"), name="then"))
    plan = plan_of(both, 3, {"M": 4, "N": 1}, first=library("torch.mm", M=4), then=library("torch.mm", M=4))
    channel = plan.channel("first_out")
    axes = (replace(channel.axes[0], kind="part"), *channel.axes[1:])
    parts = replace(plan, channels=tuple(replace(c, axes=axes) if c is channel else c for c in plan.channels))
    assert {f.text for f in examine(parts).findings} == {
        f"`first_out` of rank {r} is read and nothing makes sure that it is there" for r in (1, 2)
    }
    error = verdict_on(parts).error
    assert error is not None
    assert error.message.startswith("this wait of `weight` does not wait for `first`")


def test_who_has_no_tile_reads_nothing() -> None:
    """There is one row, so that only the first rank has queries: nobody misses keys that the others do not take."""
    rows, sizes = sms(2, M=2, push=True), {"S": 1, "h": 2, "g": 1, "D": 2}
    plan = plan_of(ag_attention, 3, sizes, gather_k=rows, gather_v=rows, flash=sms(4, S=4, T=8, D=4))
    steps = tuple(replace(s, push=False) if s.path == "gather_k" else s for s in plan.steps)
    taken = replace(plan, steps=steps)
    assert examine(taken).findings == ()
    assert verify(taken)


def test_there_are_no_false_alarms() -> None:
    """What the planner makes and the oracle finds nothing wrong with is proved."""
    proved = 0
    for k in range(80):
        made = sound_plan(random.Random(1000 + k))
        if made is not None and not examine(made[1]).findings:
            assert verify(made[1]), made[0]
            proved += 1
    assert proved > 30
