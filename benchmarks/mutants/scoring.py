"""Who catches a mutant: the static checks, a proof that it is equivalent, the simulation, or nobody."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from functools import cached_property

from benchmarks.mutants.edits import Running, Unsayable, mutant, running
from benchmarks.mutants.mappings import Mapping
from benchmarks.mutants.mutations import Mutation, mutations
from benchmarks.mutants.simulating import Adversary, Results, Seen, noticed, results_of
from benchmarks.mutants.table import Row
from tilelink.codegen.syntax import check_text
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping import NotExact, equivalent, implied, reused, verify
from tilelink.mapping.verify import rules_of

REDUNDANT = "equivalent"


class Placed:
    """One placed operator, its mutants by number, and what its plan gives, worked out when it is asked for.

    Args:
        seconds: for how long a mutant is simulated.
    """

    def __init__(self, mapping: Mapping, seconds: float = 600) -> None:
        self.mapping = mapping
        self.seconds = seconds
        self._known: dict[object, Seen | None] = {}
        self._expected: dict[int | None, Results] = {}
        self._refusals: dict[int, str | None] = {}
        self._proofs: dict[int, str | None] = {}

    @cached_property
    def original(self) -> Running:
        return running(self.mapping.plan)

    @cached_property
    def mutations(self) -> tuple[Mutation, ...]:
        return tuple(mutations(self.mapping.plan))

    def expected(self, adversary: Adversary) -> Results:
        """On the data that it has under an adversary."""
        if adversary.idle not in self._expected:
            anyone = Adversary(0, None, adversary.idle)
            self._expected[adversary.idle] = results_of(self.mapping, self.original, anyone)
        return self._expected[adversary.idle]

    def row(self, number: int, *, simulate: bool = True) -> Row:
        """Of one mutant. What runs the same is run once.

        Args:
            simulate: also if the static checks refuse it, or it is proven to do no harm.
        """
        mutation = self.mutations[number]
        if not simulate and not mutation.always and self.refusal(number, None) is not None:
            return self.judged(number, None, None, asked=False)
        try:
            found = mutant(self.original, mutation)
        except Unsayable:
            return self.judged(number, None, None, runs=False, asked=False)
        if not simulate and (self.refusal(number, found) or self.proof(number, found)):
            return self.judged(number, found, None, asked=False)
        if found is not None and found.key not in self._known:
            self._known[found.key] = noticed(
                self.mapping, self.expected, found, self.seconds, lambda: self.proof(number, found) is not None
            )
        return self.judged(number, found, self._known[found.key] if found is not None else None)

    def refusal(self, number: int, found: Running | None) -> str | None:
        """What the static checks say."""
        if number not in self._refusals:
            self._refusals[number] = refused(self.mutations[number], found)
        return self._refusals[number]

    def proof(self, number: int, found: Running | None) -> str | None:
        """Why a mutant does no harm."""
        if number not in self._proofs:
            self._proofs[number] = _proven(self.mapping.plan, self.mutations[number], found)
        return self._proofs[number]

    def judged(
        self, number: int, found: Running | None, seen: Seen | None, *, runs: bool = True, asked: bool = True
    ) -> Row:
        """`found`: what runs, None if that is what the plan runs; `runs`: whether anything could; `asked`: whether it was
        simulated.
        """
        mutation = self.mutations[number]
        refusal = self.refusal(number, found)
        # Where nobody has seen harm, perhaps there is none.
        proof = self.proof(number, found) if runs and seen is None and (asked or refusal is None) else None
        caught = "static" if refusal is not None else "simulation" if seen is not None else "survived"
        if proof is not None:
            caught = REDUNDANT
        return Row(
            operator=self.mapping.operator.name,
            schedule=self.mapping.name,
            number=number,
            mutation=mutation.name,
            signal=mutation.signal,
            caught_by=caught,
            by=proof or refusal or "",
            simulation_too=seen is not None if asked else None,
            seen=seen.how if seen is not None else "",
        )


def rows_of(mapping: Mapping, simulated: Container[int] | None = None) -> Iterator[Row]:
    """Every mutant of one placed operator.

    Args:
        simulated: the numbers of those that are simulated even if the static checks refuse them; None: all.
    """
    placed = Placed(mapping)
    for number, _ in enumerate(placed.mutations):
        yield placed.row(number, simulate=simulated is None or number in simulated)


def refused(mutation: Mutation, found: Running | None) -> str | None:
    """The code of the static checks: the proof of the plan, and the check of the text against the plan."""
    try:
        verify(mutation.plan)
        if found is not None and mutation.always:
            check_text(found.source.text, found.source.name)
    except TilelinkError as error:
        return error.code
    return None


def _proven(plan: Plan, mutation: Mutation, found: Running | None) -> str | None:
    """Why the mutant is as good as the plan, if it is: by the exact graph, which knows what plans say and no more."""
    if found is None:
        return "what runs is the same"
    if found.edited:
        return None if mutation.elsewhere else _implied(plan, mutation)
    return _equivalent(plan, mutation.plan) or _implied(plan, mutation)


def _equivalent(plan: Plan, changed: Plan) -> str | None:
    try:
        proof = equivalent(plan, changed)
    except NotExact:
        return _one_slot(plan, changed)
    return proof.text if proof is not None else None


def _implied(plan: Plan, mutation: Mutation) -> str | None:
    """Of a signal that says less, or something else: without it everything is in order too, and nobody waits in a circle."""
    if mutation.without is None:
        return None
    try:
        proof = implied(plan, mutation.without)
        if proof is not None and mutation.elsewhere:
            dict(rules_of(mutation.plan, []))["deadlock"]()
    except (NotExact, TilelinkError):
        return None
    return proof.text if proof is not None else None


def _one_slot(plan: Plan, changed: Plan) -> str | None:
    """With one slot, a plan that takes all its credits waits until everybody has left the call before: also right. So is one
    whose next call's signals say as much.
    """
    if replace(changed, schedule=plan.schedule, buffers=plan.buffers) != plan:
        return None
    if changed.schedule.slots == 1 and plan.credits and all(c.implied_by is None for c in plan.credits):
        return "all accesses of a call come after those of the call before, by credits that all ranks take"
    proof = reused(plan, changed)
    return proof.text if proof is not None else None
