"""Whether contenders compute the same: what is fast and wrong is not fast."""

from __future__ import annotations

import torch

from tilelink.bench.contest import OURS, Contest, Place
from tilelink.tuning.comparison import apart, results
from tilelink.tuning.measuring import attempt


def errors_of(place: Place, contest: Contest) -> tuple[dict[str, float], dict[str, str]]:
    """Collective: how far each contender's result is from ours, into poisoned memory; and why the others have none.

    Relative Frobenius norm, on the worst rank; integers are equal, or it is infinite.
    """
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    want: list[torch.Tensor] = []
    contest.fresh()
    for name in sorted((n for n, c in contest.contenders.items() if c.checked is not None), key=lambda n: n != OURS):
        got: list[torch.Tensor] = []
        problem = attempt(place.backend, lambda name=name, got=got: _into(got, place, contest, name))
        if problem:
            missing[name] = problem
        elif not want:
            want = [t.clone() for t in got]
            errors[name] = 0.0 if all(not _poisoned(t) for t in want) else float("inf")
        else:
            errors[name] = max(place.backend.agree(apart(got, want)))
    return errors, missing


def _into(got: list[torch.Tensor], place: Place, contest: Contest, name: str) -> None:
    contest.poison()
    contest.rewind()
    checked = contest.contenders[name].checked
    assert checked is not None
    got += results(checked())
    if not place.simulated:
        torch.cuda.synchronize()


def _poisoned(t: torch.Tensor) -> bool:
    return bool(t.isnan().any()) if t.dtype.is_floating_point else bool((t == -7).any())
