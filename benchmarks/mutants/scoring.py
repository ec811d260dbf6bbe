"""What becomes of a mutant: the static checks refuse it, or accept it, and the simulation sees nothing, or what goes wrong."""

from __future__ import annotations

from functools import cached_property

from benchmarks.mutants.edits import Running, Unsayable, mutant, running
from benchmarks.mutants.mappings import Mapping
from benchmarks.mutants.mutations import Mutation, mutations
from benchmarks.mutants.simulating import Adversary, Results, Seen, noticed, results_of
from benchmarks.mutants.table import Row
from tests.mapping.plans import verify
from tilelink.codegen.syntax import check_text
from tilelink.errors import TilelinkError

UNRUNNABLE = (AssertionError, LookupError, ValueError)
"""What the runtime says of a refused plan that means nothing to it."""
SAME, RIGHT = "what runs is the same", "it is right, by the proof"


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
        """Of one mutant. One that is accepted is always simulated; what runs the same is run once.

        Args:
            simulate: also if the static checks refuse it.
        """
        mutation = self.mutations[number]
        refusal = None if mutation.weakened is not None else refused(mutation)
        if refusal is not None and not simulate:
            return self._row(number, refusal, None, asked=False)
        try:
            found = mutant(self.original, mutation)
        except Unsayable:
            return self._row(number, refusal, None, asked=False)
        if mutation.weakened is not None and found is not None:
            refusal = unsound(found)
            if refusal is not None and not simulate:
                return self._row(number, refusal, None, asked=False)
        if found is None:
            return self._row(number, refusal, None, asked=False, said=SAME)
        if found.key not in self._known:
            accepted = refusal is None
            try:
                self._known[found.key] = noticed(self.mapping, self.expected, found, self.seconds, lambda: accepted)
            except UNRUNNABLE:
                if accepted:
                    raise
                return self._row(number, refusal, None, asked=False)
        return self._row(number, refusal, self._known[found.key])

    def _row(
        self, number: int, refusal: str | None, seen: Seen | None, *, asked: bool = True, said: str = RIGHT
    ) -> Row:
        """`asked`: whether it was simulated."""
        mutation = self.mutations[number]
        caught = "refused" if refusal is not None else "survived" if seen is not None else "accepted"
        return Row(
            operator=self.mapping.operator.name,
            schedule=self.mapping.name,
            number=number,
            mutation=mutation.name,
            signal=mutation.signal,
            caught_by=caught,
            by=refusal or said,
            simulation_too=seen is not None if asked else None,
            seen=seen.how if seen is not None else "",
        )


def refused(mutation: Mutation) -> str | None:
    """The code with which the proof refuses the plan."""
    try:
        verify(mutation.plan)
    except TilelinkError as error:
        return error.code
    return None


def unsound(found: Running) -> str | None:
    """The code with which a text is refused that is not what codegen prints for its plan."""
    try:
        check_text(found.source.text, found.source.name)
    except TilelinkError as error:
        return error.code
    return None
