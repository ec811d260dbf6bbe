"""Who catches a mutant: the static checks, a proof that it is equivalent, the simulation, or nobody."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.mutants.edits import Running, Unsayable, mutant, running
from benchmarks.mutants.mappings import Mapping, mappings, operators
from benchmarks.mutants.mutations import Mutation, mutations
from benchmarks.mutants.simulating import ADVERSARIES, Results, Seen, noticed, results_of
from tilelink.codegen.checked import check_text
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping import verify
from tilelink.mapping.exact import NotExact, equivalent

REDUNDANT = "equivalent"


@dataclass(frozen=True, slots=True)
class Row:
    """`caught_by`: static | equivalent | simulation | survived. `by`: the refusal, or the proof that nothing is lost.

    `simulation_too`: whether the simulation notices it, whatever else does, None if it was not asked; `seen`: how.
    """

    operator: str
    schedule: str
    mutation: str
    signal: str
    caught_by: str
    by: str
    simulation_too: bool | None
    seen: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rows_of(mapping: Mapping, simulated: Container[int] | None = None) -> Iterator[Row]:
    """Every mutant of one placed operator. What runs the same is run once.

    Args:
        simulated: the numbers of those that are simulated even if the static checks refuse them; None: all.
    """
    original = running(mapping.plan)
    expected: Results | None = None
    known: dict[object, Seen | None] = {}
    for number, mutation in enumerate(mutations(mapping.plan)):
        try:
            found = mutant(original, mutation)
        except Unsayable:
            yield row_of(mapping, mutation, None, None, runs=False)
            continue
        if simulated is not None and number not in simulated and refused(mutation, found) is not None:
            yield replace(row_of(mapping, mutation, found, None), simulation_too=None)
            continue
        if found is not None and found.key not in known:
            expected = expected or results_of(mapping, original, ADVERSARIES[0])
            known[found.key] = noticed(mapping, expected, found)
        yield row_of(mapping, mutation, found, known[found.key] if found is not None else None)


def rows_of_number(operator: str, number: int, most: int) -> list[Row]:
    """Those of an operator's placement by its number, in a process of its own: plans hold functions and do not travel.

    Args:
        most: mutants of the whole operator that are simulated even if the static checks refuse them.
    """
    torch.set_num_threads(1)
    placed = list(mappings(operators()[operator]))
    every = [(k, n) for k, found in enumerate(placed) for n, _ in enumerate(mutations(found.plan))]
    chosen = every if len(every) <= most else random.Random(0).sample(every, most)
    return list(rows_of(placed[number], {n for k, n in chosen if k == number}))


def row_of(mapping: Mapping, mutation: Mutation, found: Running | None, seen: Seen | None, *, runs: bool = True) -> Row:
    """`found`: what runs, None if that is what the plan runs; `runs`: whether anything could."""
    refusal = refused(mutation, found)
    # Where nobody has seen harm, perhaps there is none.
    proof = _proven(mapping.plan, mutation, found) if runs and seen is None else None
    caught = "static" if refusal is not None else "simulation" if seen is not None else "survived"
    if proof is not None and seen is None:
        caught = REDUNDANT
    by = proof if caught == REDUNDANT else refusal
    return Row(
        operator=mapping.operator.name,
        schedule=mapping.name,
        mutation=mutation.name,
        signal=mutation.signal,
        caught_by=caught,
        by=by or "",
        simulation_too=seen is not None,
        seen=f"{seen.how}: {seen.text}" if seen is not None else "",
    )


def refused(mutation: Mutation, found: Running | None) -> str | None:
    """The diagnostic of the static checks: the proof of the plan, and the check of the text against the plan."""
    try:
        verify(mutation.plan)
        if found is not None and mutation.always:
            check_text(found.source.text, found.source.name)
    except TilelinkError as error:
        return f"{error.code} {error.message}"
    return None


def _proven(plan: Plan, mutation: Mutation, found: Running | None) -> str | None:
    """Why the mutant is as good as the plan, if it is: by the exact graph, which knows what plans say and no more."""
    if found is None:
        return "what runs is the same"
    if found.edited:
        return None
    try:
        proof = equivalent(plan, mutation.plan)
    except NotExact:
        return _one_slot(plan, mutation.plan)
    return proof.text if proof is not None else None


def _one_slot(plan: Plan, changed: Plan) -> str | None:
    """With one slot, a plan that takes all its credits waits until everybody has left the call before: also right."""
    same = replace(changed, schedule=plan.schedule, buffers=plan.buffers) == plan
    if same and changed.schedule.slots == 1 and plan.credits and all(c.implied_by is None for c in plan.credits):
        return "all accesses of a call come after those of the call before, by credits that all ranks take"
    return None
