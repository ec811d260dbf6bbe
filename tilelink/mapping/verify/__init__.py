"""The structural proof of a plan: seven rules, each a product of one-axis relations.

Takes: `ir.Plan`. Gives: `ir.Verdict`, or a `TilelinkError` TL6xx on the user's line.
Knows: the plan's formulas, numpy, networkx.
Never knows: source text, pointers, torch, triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tilelink.ir.plan import Plan, Proof, Verdict
from tilelink.mapping.verify.bounds import check_bounds
from tilelink.mapping.verify.counts import check_counts
from tilelink.mapping.verify.coverage import check_coverage
from tilelink.mapping.verify.deadlock import check_deadlock
from tilelink.mapping.verify.elided import check_elided
from tilelink.mapping.verify.epochs import check_epochs
from tilelink.mapping.verify.flow import check_flow
from tilelink.mapping.verify.form import check_form
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.meeting import check_meeting
from tilelink.mapping.verify.reach import lay
from tilelink.mapping.verify.taking import check_taking


def verify(plan: Plan) -> Verdict:
    """Show that a plan computes what its programs say, on every rank and in every order of events.

    Raises:
        TilelinkError: TL601 form, TL602 a load without its wait, TL603 a store without its notify, TL604 coverage,
            TL605 deadlock, TL606 not proven, TL607 counts, TL608 a wait that misses its notifies, TL609 a dependence
            that nothing keeps, TL610 a missing credit, TL611 bounds.
    """
    world = World(plan)
    started = time.perf_counter()
    laid = {s.path: lay(plan, world, s) for s in plan.steps}
    rules: tuple[tuple[str, Callable[[], str]], ...] = (
        ("form", lambda: check_form(plan)),
        ("order in a tile", lambda: check_flow(plan)),
        ("elided signals", lambda: check_elided(plan)),
        ("bounds", lambda: check_bounds(plan, world, laid)),
        ("coverage", lambda: check_coverage(plan, world, laid)),
        ("orders", lambda: check_taking(plan, world)),
        ("counts", lambda: check_counts(plan, world, laid)),
        ("waits", lambda: check_meeting(plan, world, laid)),
        ("deadlock", lambda: check_deadlock(plan, world, laid)),
        ("epochs", lambda: check_epochs(plan, world, laid)),
    )
    proofs: list[Proof] = []
    for rule, check in rules:
        text = check()
        now = time.perf_counter()
        proofs.append(Proof(rule, text, (now - started) * 1e3))
        started = now
    return Verdict(True, tuple(proofs))


__all__ = ["verify"]
