"""The proof and the checker of certificates, asked about one plan: they share no code, and have to say the same of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.mapping import shelf, shelf_axes, shelf_graphs
from tests.mapping.corrupt import CORRUPTIONS, spoilt
from tilelink.errors import TilelinkError
from tilelink.ir.certificate import certificate
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Verdict
from tilelink.mapping.judge import judge
from tilelink.mapping.lower import lower
from tilelink.proof.check import check
from tools import check_certificate

Made = Callable[[random.Random], "tuple[str, Plan] | None"]
UNCLAIMED = ("TL610", "TL613", "TL614")
"""What the proof refuses and a certificate claims nothing of: a credit that is implied by way of other ranks, where the proof
looks at who is heard directly; workers and streams that find no SM; what data decides although nothing is declared."""


def reasons(lowered: Lowered) -> list[str]:
    """What the checker finds wrong, a kind and a colon before each."""
    return check_certificate.judge(json.loads(certificate(lowered)))


def events_of(plan: Plan) -> list[check_certificate.Event]:
    """What the checker makes of a plan, tile by tile."""
    return check_certificate.Plan(json.loads(certificate(lower(plan)))).events


def asked(plan: Plan) -> Verdict:
    """The verdict on a plan, on which both have to agree."""
    verdict = judge(plan)
    differs = difference(plan, verdict)
    assert differs is None, differs
    return verdict


def difference(plan: Plan, verdict: Verdict) -> str | None:
    """What the proof and the checker do not agree on. Both are asked of the lowered form: a plan that is refused as it stands,
    by its programs or its structure, may be right as it is lowered, or have no lowered form."""
    try:
        lowered = lower(plan)
    except (TilelinkError, LookupError):
        return f"{verdict} is of a plan that has no lowered form" if verdict.ok else None
    proof, wrong = verdict if verdict.ok else check(lowered), reasons(lowered)
    if proof.ok == (not wrong) or (proof.error is not None and proof.error.code in UNCLAIMED):
        return None
    return f"the proof says {proof.error or 'nothing'}, and the checker {wrong[:3]}"


def assert_right(plan: Plan) -> Verdict:
    """The proof accepts the plan, and so does the checker."""
    verdict = asked(plan)
    assert verdict.ok, verdict.error
    return verdict


def assert_refused(plan: Plan, code: str) -> TilelinkError:
    """The diagnostic of a plan that is wrong."""
    error = asked(plan).error
    assert error is not None
    assert error.code == code, error
    return error


# ------------------------------------------------------------------------------------------------------- plans of chance
def off_any_shelf(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    shelves: list[Made] = [shelf.sound_plan, shelf_graphs.sound_plan, shelf_graphs.sound_plan, shelf_axes.sound_plan]
    return rng.choice(shelves)(rng)


def any_plan(rng: random.Random, make: Made = off_any_shelf) -> tuple[str, str, Plan] | None:
    """(what of, what was spoilt, plan); three of four are spoilt in one place, each in a way that it can be."""
    found = make(rng)
    if found is None:
        return None
    name, plan = found
    for what in rng.sample([*CORRUPTIONS], len(CORRUPTIONS)) if rng.random() < 0.75 else ():
        made = spoilt(rng, plan, what)
        if made is not None:
            return name, what, made
    return name, "nothing", plan


@dataclass(frozen=True)
class Agreement:
    """What was asked of one plan. `proof`: proved, or the code of the refusal; `differs`: what the checker says otherwise."""

    of: str
    spoilt: str
    proof: str
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.of}, spoilt: {self.spoilt}: {self.proof}; {self.differs or 'the checker says the same'}"


def agreement(rng: random.Random, make: Made = off_any_shelf) -> Agreement | None:
    """None: no plan."""
    found = any_plan(rng, make)
    if found is None:
        return None
    of, how, plan = found
    verdict = judge(plan)
    proof = "proved" if verdict.error is None else verdict.error.code
    return Agreement(of, how, proof, difference(plan, verdict) or "")
