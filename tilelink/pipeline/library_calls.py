"""Library functions in plans: whether those by panels can take the runs that they have, and which functions text may name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilelink.errors import TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.schedule import ByRuns, Library, Placement, Schedule, Shaped
from tilelink.ir.streams import Compute, actions
from tilelink.ir.wiring import Wiring
from tilelink.mapping.lower import lower
from tilelink.runtime.functions import function_of
from tilelink.tuning.space import FUNCTIONS


def by_panels(schedule: Schedule) -> bool:
    """Whether a library function takes some step's tiles run by run."""
    return any(isinstance(p, Library) and p.runs for _, p in schedule.entries)


def refused(plan: Plan) -> TilelinkError | None:
    """TL411, where a function cannot run on GPUs as it is placed; the same on all ranks."""
    for step, library, why in refusals(plan):
        return TilelinkError(
            "TL411",
            f"`{library.name}` cannot compute `{step.path}` on GPUs",
            loc=step.step.loc,
            why=why,
            hint=f"place it on SMs: {step.path}=tilelink.sms(…)",
        )
    return None


def instead(plan: Plan) -> tuple[dict[str, Placement], tuple[str, ...]]:
    """What steps get whose function refuses and whose placement says what to do then; and why, as notes of the plan."""
    found = [(s.path, library, why) for s, library, why in refusals(plan)]
    notes = tuple(
        f"{path}: not by {library.name}, because {why}" for path, library, why in found if library.fallback is not None
    )
    return {path: library.fallback for path, library, _ in found if library.fallback is not None}, notes


def refusals(plan: Plan) -> Iterator[tuple[StepPlan, Library, str]]:
    """Steps whose function cannot take what rank 0 has, and why; simulated ones take anything."""
    lowered: Lowered | None = None
    for step in plan.steps if plan.topology.backend != "simulated" else ():
        function = function_of(step.library.function) if step.library is not None and step.by_panels else None
        if step.library is None or not isinstance(function, ByRuns) or function.refuses is None:
            continue
        lowered = lowered or lower(plan)
        done = (action for stream in actions(lowered, step.path, 0) for action in stream)
        run = next((a for a in done if isinstance(a, Compute) and a.output is None), None)
        if run is None:
            continue
        at = {dim: (begin, end) for dim, begin, end in run.at}
        extents = [(tuple(end - begin for begin, end in p.box), plan.wiring.tensor(p.buffer).dtype) for p in run.inputs]
        inputs = [Shaped(shape, dtype, plan.topology.device) for shape, dtype in extents]
        why = function.refuses(*inputs, at=at, **dict(step.step.constants))
        if why:
            yield step, step.library, why


# ---------------------------------------------------------------------------------------------------------------------
# Which library functions text from outside may name: a tuned schedule on disk, a token. No other is looked up.


def known(schedule: Schedule, wiring: Wiring, further: Iterable[Placement] = ()) -> frozenset[str]:
    """The functions that a search proposes by itself, and those that people have named in Python.

    Args:
        schedule: of the operator, by its author or its user.
        wiring: of the operator; has what operators inside it bring along.
        further: other placements that the caller has written.
    """
    brought = [s.shipped for s in wiring.steps if s.shipped is not None]
    placed = (*(p for _, p in schedule.entries), *brought, *further)
    return FUNCTIONS | {p.function for p in libraries(placed) if isinstance(p.function, str)}


def libraries(placements: Iterable[Placement]) -> Iterator[Library]:
    """Those that are of library functions, and what takes their place."""
    for placement in placements:
        if isinstance(placement, Library):
            yield placement
            yield from libraries(() if placement.fallback is None else (placement.fallback,))


def unknown(schedule: Schedule, functions: frozenset[str]) -> str:
    """Which function of a schedule nobody has named, in words, or is not what the schedule takes it for; empty: none."""
    for placed in libraries(p for _, p in schedule.entries):
        if placed.function not in functions:
            return (
                f"it names the function `{placed.function}`, which neither the library nor the operator's author names"
            )
        if placed.runs != isinstance(function_of(placed.function), ByRuns):
            return f"it takes `{placed.function}` for a function by panels, or for none, and is wrong"
    return ""
