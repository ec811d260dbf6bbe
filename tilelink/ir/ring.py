"""Places on the axis of ranks, which is a ring: after the last rank comes the first."""

from __future__ import annotations

from tilelink.ir.formula import Binary, Const, Formula, Sym, evaluate, symbols
from tilelink.ir.shape import ranks_along

RANKS = ranks_along()


def distance(formula: Formula | None, ranks: int | None = None) -> tuple[str, int] | None:
    """Which variable a place is how far from, as `(s + 1) % RANKS` is one from `s`; None: that is not known. `ranks`: how
    many there are, where half of them may be a distance."""
    terms = None if formula is None else _terms(formula, ranks)
    if terms is None:
        return None
    shift = terms.pop(ONE, 0)
    places = {name: times for name, times in terms.items() if times != 0}
    return (next(iter(places)), shift) if list(places.values()) == [1] else None


def around(at: Formula, shift: int, ranks: Formula = RANKS) -> Formula:
    """The place so far from `at`, in operands that are never negative, of which Triton's `%` is Python's."""
    if shift == 0:
        return at
    if shift > 0:
        return (at + shift) % ranks
    return (at + ranks - (Const(1) if shift == -1 else Const(-shift) % ranks)) % ranks


ONE = ""


def _terms(formula: Formula, ranks: int | None) -> dict[str, int] | None:
    """How often each variable, and one, is added, but for whole rounds. None: it is no such sum."""
    if isinstance(formula, Const):
        return {ONE: formula.value} if isinstance(formula.value, int) else None
    if isinstance(formula, Sym):
        return {} if formula == RANKS else {formula.name: 1}
    if formula.op == "%" and formula.right == RANKS:
        return _terms(formula.left, ranks)
    if formula.op not in ("+", "-"):
        if ranks is None or symbols(formula) != frozenset({RANKS.name}):
            return None
        return {ONE: evaluate(formula, {RANKS.name: ranks})}
    return _added(formula, ranks)


def _added(formula: Binary, ranks: int | None) -> dict[str, int] | None:
    left, right = _terms(formula.left, ranks), _terms(formula.right, ranks)
    if left is None or right is None:
        return None
    sign = 1 if formula.op == "+" else -1
    return {name: left.get(name, 0) + sign * right.get(name, 0) for name in (*left, *right)}
