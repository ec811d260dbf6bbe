"""Who notices a changed program: the proof, what it assumes in words, or the simulated ranks; or nobody."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch

from benchmarks.mutants.edits import Running, running
from benchmarks.mutants.mappings import Mapping
from benchmarks.mutants.programs.changes import Change, changes
from benchmarks.mutants.programs.sites import Reading
from benchmarks.mutants.programs.source import Source, source_of
from benchmarks.mutants.simulating import Adversary, OutOfTime, Results, differences, results_of
from tests.mapping.plans import verify
from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.trace import with_distances
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Op, TileProgram, rewritten
from tilelink.ir.schedule import CopyEngine, Library, Placement, Sms
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Step
from tilelink.mapping import make_plan

RUNS = (Adversary(0, None), Adversary(1, 0))
OTHERWISE = Adversary(0, None, unwritten=1)
"""The first run, where unwritten memory holds something else."""
VERDICTS = ("refused", "assumed", "equivalent", "other values", "taken", "slow", "survived", "crashed")
"""`taken`: by the proof, and not simulated yet."""
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""Of the compiler itself."""
UNKNOWN_TO_TRITON = ("TL412",)
"""What the interpreter says at the program's line, as the compiler would, before there is a number."""


@dataclass(frozen=True, slots=True)
class Row:
    """`verdict`: one of `VERDICTS`. `by`: the code, the assumption, or what the simulated ranks have seen."""

    operator: str
    schedule: str
    step: str
    number: int
    kind: str
    how: str
    what: str
    verdict: str
    by: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.operator, self.schedule, self.number

    def is_of(self, change: Change) -> bool:
        return (self.kind, self.how, self.what) == (change.kind, change.how, change.what)

    @property
    def change(self) -> tuple[str, ...]:
        """The same in every placement."""
        return self.operator, self.step, self.kind, self.how, self.what


class Placed:
    """One placed operator, the changes of its programs, and what its plan gives, worked out when it is asked for."""

    def __init__(self, mapping: Mapping, seconds: float = 60) -> None:
        self.mapping = mapping
        self.seconds = seconds
        self._expected: dict[Adversary, Results] = {}

    @cached_property
    def found(self) -> tuple[tuple[StepPlan, Source, Change], ...]:
        """A library's function is what it is, whatever the program says."""
        plan = self.mapping.plan
        computed = [s for s in plan.steps if not isinstance(_placement(plan, s), Library)]
        every = ((s, source, one) for s in computed for source, one in _changes(s.step))
        # What nobody makes is there: another place of it is another value, and no matter of the proof.
        made = {t for s in plan.wiring.steps for t in s.makes}
        return tuple(
            (s, source, one)
            for s, source, one in every
            if one.kind != "load" or s.step.binding(one.params[0]).tensor in made
        )

    def expected(self, adversary: Adversary) -> Results:
        if adversary not in self._expected:
            self._expected[adversary] = results_of(self.mapping, running(self.mapping.plan), adversary)
        return self._expected[adversary]

    def row(self, number: int, *, simulate: bool = True) -> Row:
        step, source, change = self.found[number]
        verdict, by = self.judged(step, source, change, simulate=simulate)
        return Row(
            operator=self.mapping.operator.name,
            schedule=self.mapping.name,
            step=step.path,
            number=number,
            kind=change.kind,
            how=change.how,
            what=change.what,
            verdict=verdict,
            by=by,
        )

    def judged(self, step: StepPlan, source: Source, change: Change, *, simulate: bool = True) -> tuple[str, str]:
        """A verdict, and by what."""
        program = _program(source, change)
        if isinstance(program, TilelinkError):
            return "refused", program.code
        try:
            if bare(program.body) == bare(source.program.body):
                return "equivalent", "the program is the same"
            plan = changed(self.mapping.plan, step, program)
            proven = verify(plan)
            made = running(plan)
        except TilelinkError as error:
            return "refused", error.code
        except FAULTS as error:
            return "crashed", f"{type(error).__name__}: {error}"
        said = _assumed(proven, plan, step.step, change)
        if said:
            return "assumed", said
        return self._simulated(made) if simulate else ("taken", "not simulated")

    def _simulated(self, made: Running) -> tuple[str, str]:
        try:
            first = self._run(made, RUNS[0])
            alike = not any(differences(self.expected(RUNS[0]), first))
            for adversary in (OTHERWISE, *RUNS[1:]):
                # What a right plan leaves unwritten may be anything.
                if any(differences(first, self._run(made, adversary), where=self._written)):
                    return "survived", "numbers: what nobody has written, or not yet, is taken"
        except OutOfTime:
            return "slow", f"{self.seconds:g} s were not enough"
        except TilelinkError as error:
            return "refused" if error.code in UNKNOWN_TO_TRITON else "survived", f"{error.code} {error.message}"
        if alike:
            return "equivalent", "the same numbers, whoever is slow"
        return "other values", "all that is taken is written, once, and waited for"

    def _run(self, made: Running, adversary: Adversary) -> Results:
        return results_of(self.mapping, made, adversary, time.monotonic() + self.seconds)

    @cached_property
    def _written(self) -> list[list[torch.Tensor]]:
        """Which elements of the results the plan itself writes."""
        both = zip(self.expected(RUNS[0]), self.expected(OTHERWISE), strict=True)
        return [[(a == b) | (a.isnan() & b.isnan()) for a, b in zip(one, other, strict=True)] for one, other in both]


@lru_cache(maxsize=256)
def _changes(step: Step) -> tuple[tuple[Source, Change], ...]:
    source = source_of(step.program)
    return tuple((source, one) for one in changes(Reading(step, source.node)))


@lru_cache(maxsize=4096)
def _program(source: Source, change: Change) -> TileProgram | TilelinkError:
    """The same in every placement."""
    try:
        return source.captured(change.node)
    except TilelinkError as error:
        return error


def changed(plan: Plan, step: StepPlan, program: TileProgram) -> Plan:
    """The plan that the operator has if one of its steps runs another program.

    Raises:
        TilelinkError: TL301 to TL333.
    """
    numbers = {name: value for name, value in step.step.constants if isinstance(value, int)}
    program = with_distances(program, numbers, plan.topology.ranks)
    steps = tuple(replace(s, program=program) if s.path == step.path else s for s in plan.wiring.steps)
    wiring = replace(plan.wiring, steps=steps)
    schedule = plan.schedule
    if step.step.program.copy_program is not None and program.copy_program is None:
        schedule = schedule.merged({step.path: _computing(_placement(plan, step))})
    return make_plan(wiring, plan.topology, schedule, dict(plan.sizes), dict(plan.layouts))


def _placement(plan: Plan, step: StepPlan) -> Placement | None:
    return plan.schedule.get(step.path) or step.step.shipped


def _computing(placement: Placement | None) -> Placement:
    """What is no copy program any more runs on SMs, and in no direction."""
    if isinstance(placement, CopyEngine):
        return Sms(count=2, tile=placement.tile)
    return replace(placement, push=None) if isinstance(placement, Sms) else placement or Sms(count=2)


def _assumed(verdict: Verdict, plan: Plan, step: Step, change: Change) -> str:
    """What is taken on trust of who writes the tensors that a change is about; of a load where data says, that it is of what
    was written; of a load of a table, whose values may say where others write and read, whatever is."""
    tensors = [step.binding(param).tensor for param in change.params]
    about = [said for said in verdict.assumed if "disjoint" in said]
    if change.kind == "load" and plan.wiring.tensor(tensors[0]).dtype.startswith("i"):
        return next(iter(about), "")
    if change.kind == "load":
        about = [said for said in about if "reads only what was written" in said]
    return next((said for said in about if change.data and any(f"`{t}`" in said for t in tensors)), "")


def bare(body: tuple[Op, ...]) -> tuple[Op, ...]:
    nowhere = Loc("", 0, 0, None, "")
    return rewritten(body, lambda op: replace(op, loc=nowhere))
