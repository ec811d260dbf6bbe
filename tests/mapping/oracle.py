"""The proof and the oracle, asked about one plan of chance: of an operator off one of the shelves, in most cases spoilt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.mapping import shelf, shelf_axes, shelf_graphs
from tests.mapping.corrupt import CORRUPTIONS
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Verdict
from tilelink.mapping import verify
from tilelink.mapping.exact import NotExact, examine

Made = Callable[[random.Random], "tuple[str, Plan] | None"]


def off_any_shelf(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    shelves: list[Made] = [shelf.sound_plan, shelf_graphs.sound_plan, shelf_graphs.sound_plan, shelf_axes.sound_plan]
    return rng.choice(shelves)(rng)


def any_plan(rng: random.Random, make: Made = off_any_shelf) -> tuple[str, str, Plan] | None:
    """(what of, what was spoilt, plan); three of four are spoilt in one place."""
    found = make(rng)
    if found is None:
        return None
    name, plan = found
    what = rng.choice(["", *CORRUPTIONS, *CORRUPTIONS, *CORRUPTIONS]) if rng.random() < 0.8 else ""
    spoilt = CORRUPTIONS[what](rng, plan) if what else plan
    return None if spoilt is None else (name, what or "nothing", spoilt)


@dataclass(frozen=True)
class Agreement:
    """What the proof and the oracle say of one plan. `proof`: proved, or the code of the refusal; `by_graph`: a rule could
    not decide, and asked the exact graph of the plan."""

    of: str
    spoilt: str
    proof: str
    oracle: str
    by_graph: bool

    @property
    def agrees(self) -> bool:
        return (self.proof == "proved") == (self.oracle == "right") or self.by_language

    @property
    def by_language(self) -> bool:
        """A program must say what it depends on, also where, as it happens to be scheduled, nothing goes wrong without."""
        return self.proof in ("TL602", "TL603") and self.oracle == "right"

    def __str__(self) -> str:
        return f"{self.of}, spoilt: {self.spoilt}: {self.proof}, and the oracle says {self.oracle}"


def agreement(rng: random.Random, make: Made = off_any_shelf) -> Agreement | None:
    """None: no plan, or one that cannot be played through."""
    found = any_plan(rng, make)
    if found is None:
        return None
    of, spoilt, plan = found
    verdict = verdict_on(plan)
    try:
        findings = examine(plan).findings
    except NotExact:
        return None
    proof = "proved" if verdict.error is None else verdict.error.code
    by_graph = any("by the exact graph" in p.text for p in verdict.proofs)
    return Agreement(of, spoilt, proof, findings[0].text if findings else "right", by_graph)


def verdict_on(plan: Plan) -> Verdict:
    """Without a counterexample, which takes longer than all the rest."""
    try:
        return verify(plan)
    except TilelinkError as error:
        return Verdict(False, (), error)
