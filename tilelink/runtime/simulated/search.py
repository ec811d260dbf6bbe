"""Systematic search for a schedule that goes wrong: all with no preemption, then all with one, then all with two."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tilelink.runtime.simulated.policy import Preemptions, Turns


@dataclass(frozen=True, slots=True)
class Searched:
    """`runs` were made; `complete`: there are no more of at most so many preemptions."""

    runs: int
    complete: bool


def search(run: Callable[[Turns], object], *, preemptions: int, limit: int) -> Searched:
    """Call `run` under every schedule of at most `preemptions` preemptions, `limit` of them at most, fewest first.

    Args:
        run: simulates with `policy=` what it is given, and raises when something is wrong.

    What `run` raises comes out, with the policy that `simulate` has noted on it.
    """
    todo: deque[tuple[int, ...]] = deque([()])
    runs = 0
    while todo:
        if runs == limit:
            return Searched(runs, complete=False)
        at = todo.popleft()
        turns = Preemptions(at)
        run(turns)
        runs += 1
        if len(at) < preemptions:
            first = at[-1] + 1 if at else 0
            todo.extend((*at, point) for point in range(first, turns.points))
    return Searched(runs, complete=True)
