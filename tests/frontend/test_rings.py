"""Places on the axis of ranks: how far from a variable a formula says, and the formula of a distance."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.selection import table
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.shape import RANKS, around, distance

S, Q = Sym("s"), Sym("q")


@given(st.integers(-9, 9), st.integers(1, 8))
def test_a_place_at_a_distance_goes_round_and_is_known_again(shift: int, ranks: int) -> None:
    """In operands that are never negative, of which Triton's rest is Python's."""
    formula = around(S, shift)
    assert distance(formula) == ("s", shift)
    at = np.arange(ranks)
    assert np.array_equal(F.evaluate(formula, {"s": at, "RANKS": ranks}), (at + shift) % ranks)
    assert np.min(F.evaluate(_inside(formula), {"s": at, "RANKS": ranks})) >= 0


def _inside(formula: Formula) -> Formula:
    return formula.left if isinstance(formula, F.Binary) and formula.op == "%" else formula


@table(
    "formula, found",
    [
        (None, None),
        (S, ("s", 0)),
        (F.of(3), None),
        ((S + 1 + 2) % RANKS, ("s", 3)),
        (((S + 1) % RANKS + RANKS - 3) % RANKS, ("s", -2)),
        ((S - Q + Q) % RANKS, ("s", 0)),
        ((S + Q) % RANKS, None),
        ((Q - S) % RANKS, None),
        ((F.of(2) - S) % RANKS, None),
        ((S + S) % RANKS, None),
        (S * 2, None),
        (S % 2, None),
        ((S // 2 + 1) % RANKS, None),
        (RANKS, None),
    ],
)
def test_what_is_known_of_a_place(formula: Formula | None, found: tuple[str, int] | None) -> None:
    assert distance(formula) == found
