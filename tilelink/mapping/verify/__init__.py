"""The structural proof of a plan: rules, each a product of one-axis relations.

Takes: `ir.Plan`. Gives: `ir.Verdict`, or a `TilelinkError` TL6xx on the user's line.
Knows: the plan's formulas, numpy, networkx.
Never knows: source text, pointers, torch, triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Proof, Verdict
from tilelink.mapping.exact import Exact, NotExact, counterexample, examine
from tilelink.mapping.programs.flow import check_flow
from tilelink.mapping.programs.form import check_form
from tilelink.mapping.verify.arguments import check_arguments
from tilelink.mapping.verify.behind import check_behind
from tilelink.mapping.verify.bounds import check_bounds
from tilelink.mapping.verify.brought import check_brought
from tilelink.mapping.verify.contracts import contracts
from tilelink.mapping.verify.counts import check_counts
from tilelink.mapping.verify.coverage import check_coverage
from tilelink.mapping.verify.deadlock import check_deadlock
from tilelink.mapping.verify.elided import check_elided
from tilelink.mapping.verify.epochs import check_epochs
from tilelink.mapping.verify.frame import check_frame
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.meeting import check_meeting
from tilelink.mapping.verify.reach import lay
from tilelink.mapping.verify.room import check_room
from tilelink.mapping.verify.taking import check_taking

UNDECIDED = ("TL606", "TL608", "TL609", "TL610", "TL612", "TL613")
"""What structure cannot show, a small world can."""


def verify(plan: Plan) -> Verdict:
    """Show that a plan computes what its programs say, on every rank and in every order of events.

    A plan with raw pointers is neither proved nor refused: its verdict is not `ok` and has no `error`.

    Raises:
        TilelinkError: TL601 form, TL602 a load without its wait, TL603 a store without its notify, TL604 coverage,
            TL605 deadlock, TL606 not proven, TL607 counts, TL608 a wait that misses its notifies, TL609 a dependence
            that nothing keeps, TL610 a missing credit, TL611 bounds, TL612 a signal that does not reach far enough,
            TL613 no SM for a kernel beside others, or for what a stream does.
    """
    verdict = _judged(plan)
    if verdict.error is not None:
        raise verdict.error
    return verdict


def judge(plan: Plan) -> Verdict:
    """The same as a verdict in any case: with the diagnostic and, where a small world shows what goes wrong, with an
    interleaving that does."""
    verdict = _judged(plan)
    return verdict if verdict.error is None else replace(verdict, counterexample=counterexample(plan))


def _judged(plan: Plan) -> Verdict:
    if plan.unverified:
        # Neither proved nor refused.
        names = ", ".join(f"`{path}`" for path in plan.unverified)
        return Verdict(
            False, (), assumed=(f"nothing is proven: {names} uses raw pointers, which no proof sees through",)
        )
    proofs: list[Proof] = []
    trust: list[str] = []
    error: TilelinkError | None = None
    try:
        _prove(plan, proofs, trust)
    except TilelinkError as found:
        error = found
    return Verdict(error is None, tuple(proofs), error, assumed=tuple(dict.fromkeys(trust)))


def rules_of(plan: Plan, trust: list[str]) -> tuple[tuple[str, Callable[[], str]], ...]:
    """Every rule with its check, which says what it has found or raises; `trust`: takes up what the checks assume."""
    world = World(plan)
    laid = {s.path: lay(world, s) for s in plan.steps}
    trust += contracts(plan, laid)
    return (
        ("form", lambda: check_form(plan)),
        ("order in a tile", lambda: check_flow(plan)),
        ("elided signals", lambda: check_elided(plan) + check_brought(plan) + check_arguments(plan, laid)),
        ("frame of a call", lambda: check_frame(plan)),
        ("bounds", lambda: check_bounds(plan, world, laid)),
        ("coverage", lambda: check_coverage(plan, world, laid, trust)),
        ("orders", lambda: _orders(plan, world)),
        ("counts", lambda: check_counts(plan, world, laid)),
        ("waits", lambda: check_meeting(plan, world, laid)),
        ("deadlock", lambda: check_deadlock(plan, world, laid) + check_room(plan)),
        ("epochs", lambda: check_epochs(plan, world, laid)),
    )


def _orders(plan: Plan, world: World) -> str:
    check_behind(plan, world)
    return check_taking(plan, world)


def _prove(plan: Plan, proofs: list[Proof], trust: list[str]) -> None:
    started = time.perf_counter()
    played = _Played(plan)
    for rule, check in rules_of(plan, trust):
        try:
            text = check()
        except TilelinkError as error:
            if error.code not in UNDECIDED or not played.right():
                raise
            text = f"{error.message}: {played.said()}"
        now = time.perf_counter()
        proofs.append(Proof(rule, text, (now - started) * 1e3))
        started = now


@dataclass(slots=True)
class _Played:
    """The plan played through, once and only when a rule cannot say whether it is right."""

    plan: Plan
    exact: Exact | None = None

    def right(self) -> bool:
        if self.exact is None:
            try:
                self.exact = examine(self.plan)
            except NotExact:
                return False
        return not self.exact.findings

    def said(self) -> str:
        assert self.exact is not None
        return f"and yet all accesses are ordered, by the exact graph of {self.exact.events} events"


__all__ = ["judge", "rules_of", "verify"]
