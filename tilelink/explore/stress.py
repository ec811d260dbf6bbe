"""A case under many schedules of the simulated backend: seeds, stragglers, priorities, or all with few preemptions."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case
from tilelink.explore.comparison import hint_of
from tilelink.explore.running import run_case
from tilelink.runtime.simulated.scheduler import Searched, Turns, search
from tilelink.tuning.progress import bar


def policies(ranks: int, runs: int, first: int = 0) -> Iterator[str]:
    """By chance, against each rank in turn, and by priorities, each `runs` / 3 times."""
    for k in range(runs):
        seed, kind = first + k // 3, k % 3
        yield (f"random-{seed}", f"straggler-{seed % ranks}-{seed}", f"priorities-{seed}")[kind]


def stress(
    case: Case,
    *,
    runs: int,
    calls: int = 2,
    first: int = 0,
    preemptions: int | None = None,
    delayed_stores: bool = False,
    check: bool = True,
) -> Searched:
    """Run the case up to `runs` times, each time under another schedule.

    Args:
        first: the seed to begin with.
        check: whether results are compared, too.
        preemptions: search all schedules of so many preemptions instead, fewest first.

    Raises:
        TilelinkError: what went wrong, with the token of the run as a note; TL710 for wrong numbers.
    """

    tried = 0

    def run(policy: str | Turns) -> None:
        nonlocal tried
        outcome = run_case(case, calls=calls, policy=policy, delayed_stores=delayed_stores, check=check)
        if check and not outcome.within(case.tolerance):
            error = TilelinkError(
                "TL710",
                f"wrong numbers: a relative error of {outcome.worst:.2e}, at most {case.tolerance:.0e} is right",
                loc=case.operator.loc,
                why=f"the run under the policy {policy} differs from {outcome.against}",
                hint=hint_of(case),
            )
            for line in outcome.again:
                error.add_note(line)
            raise error
        tried += 1
        advance(tried, f"{tried} of {runs} schedules")

    with bar(f"{case.operator.name} under stress", runs) as advance:
        if preemptions is not None:
            return search(run, preemptions=preemptions, limit=runs)
        for policy in policies(case.topology.ranks, runs, first):
            run(policy)
    return Searched(runs, complete=False)
