"""Stores that arrive late: right programs stay right, and a missing release, barrier or fence gives wrong numbers."""

from __future__ import annotations

import pytest

from tests.operators.problems import AG, RS, Kind
from tests.simulated import test_races
from tests.simulated.breaking import Break, breaking
from tests.simulated.test_races import MISTAKES, copied, pulled, pushed
from tilelink import Operator

__all__ = ["breaking"]


def assert_right(operator: Operator, kind: Kind, seed: int) -> None:
    test_races.assert_right(operator, kind, seed, races=False, delayed_stores=True)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_ordered_stays_right(seed: int) -> None:
    assert_right(pulled(), AG, seed)
    assert_right(copied(), AG, seed)
    assert_right(pushed(), RS, seed)


@pytest.mark.parametrize(
    "name",
    [
        "relaxed release",
        "no barrier before a signal",
        "no barrier before a counter",
        "bulk stores not waited for",
        "store after its notify",
    ],
)
def test_a_broken_order_gives_wrong_numbers(name: str, breaking: Break) -> None:
    """Without the race detector, and not under every schedule: this is why there is one."""
    mistake = MISTAKES[name]
    breaking(mistake.edit)

    def under_some() -> None:
        for seed in range(8):
            assert_right(mistake.operator(), mistake.kind, seed)

    with pytest.raises(AssertionError, match="relative error"):
        under_some()
