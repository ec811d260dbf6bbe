"""Results of contenders against ours: what is wrong is seen, and so is what nobody wrote."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import tilelink
from tests.selection import table
from tilelink.bench.checking import apart, errors_of
from tilelink.bench.contest import OURS, Contest, Place, Turns
from tilelink.errors import TilelinkError
from tilelink.ops import all_gather
from tilelink.runtime.session import require

X = torch.tensor([1.0, 2.0])
TABLE = torch.tensor([0, 1], dtype=torch.int32)


@table(
    "got, error",
    [
        ([X, TABLE], 0.0),
        ([X, TABLE.long()], 0.0),
        ([X + torch.tensor([0.0, 0.1]), TABLE], pytest.approx(0.1 / 5**0.5)),
        ([X, TABLE + 1], math.inf),
        ([torch.tensor([1.0, math.nan]), TABLE], math.inf),
        ([X[:1], TABLE], math.inf),
        ([X], math.inf),
    ],
)
def test_how_far_results_are_apart(got: list[torch.Tensor], error: float) -> None:
    assert apart(got, [X, TABLE]) == error


def checked(
    *contenders: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[dict[str, float], dict[str, str]]:
    """Of contenders against an all-gather, on two ranks; each is given this rank's rows and a buffer."""

    def body() -> tuple[dict[str, float], dict[str, str]]:
        place = Place(require().backend, None)
        x, out = place.random(2, 8), place.empty(4, 8)
        contest = Contest(inputs=[x], outputs=[out])
        contest.enter(OURS, all_gather, Turns([(x,)]))
        for k, contender in enumerate(contenders):
            contest.add(str(k), lambda: None, lambda contender=contender: contender(x, out))
        return errors_of(place, contest)

    first, second = tilelink.launch(body, 2)
    assert first == second
    return first


def gathered(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(require().backend.agree(x))


def refuse(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    raise TilelinkError("TL405", "too many workers")


def test_what_is_right_wrong_unwritten_and_refused() -> None:
    errors, missing = checked(
        lambda x, out: out.copy_(gathered(x)),
        lambda x, out: out.copy_(gathered(x).roll(2, 0)),
        lambda x, out: out,
        refuse,
    )
    assert 0.1 < errors.pop("1") < math.inf  # of other values each time
    assert errors == {OURS: 0.0, "0": 0.0, "2": math.inf}
    assert missing == {"3": "rank 0: TL405: too many workers"}


def test_the_worst_rank_counts() -> None:
    errors, _ = checked(lambda x, out: gathered(x) * (1 + tilelink.rank()))
    assert errors["0"] == pytest.approx(1.0, abs=1e-2)
