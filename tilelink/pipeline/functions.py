"""Which library functions text from outside may name: a tuned schedule on disk, a token. No other is looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilelink.ir.schedule import ByRuns, Library, Placement, Schedule
from tilelink.ir.wiring import Wiring
from tilelink.runtime.functions import function_of
from tilelink.tuning.space import FUNCTIONS


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
