"""What names mean where paths meet: after an `if`, and at the head of a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilelink.frontend.values import UNKNOWN, Binding, Variable, bounded
from tilelink.ir.formula import Const, Formula, select, symbols

Environment = dict[str, Binding]
Said = Callable[[str], str]
"""What the ops call the variable that lines assign by a name."""


def joined(a: Variable, b: Variable, name: str, *, positional: bool, formula: Formula | None = None) -> Variable:
    """A variable that is one or the other; no index, which keeps its name. `name`, `formula`: if theirs differ."""
    rank = a.rank if a.rank == b.rank else (a.rank or b.rank if 0 in (a.rank, b.rank) else UNKNOWN)
    return Variable(
        a.name if a.name == b.name else name,
        a.loc,
        rank=rank,
        positional=positional and a.positional and b.positional,
        formula=a.formula if a.formula == b.formula else formula,
        length=a.length if a.length == b.length else None,
        coordinate=a.coordinate and b.coordinate,
        wrapped=a.wrapped or b.wrapped,
    )


def after_branches(
    body: Environment,
    orelse: Environment,
    said: Said,
    inner: frozenset[str],
    *,
    positional: bool,
    test: Formula | None,
    static: bool,
) -> tuple[Environment, set[str]]:
    """The environment after an `if`, and the names that one path leaves unbound.

    `inner`: what ops of one path alone bind. `static`: the test is known when a kernel is compiled, so a name of the path
    taken stays.
    """
    merged: Environment = {}
    lost: set[str] = set()
    never = (orelse if test.value else body) if isinstance(test, Const) else {}
    for name in (*body, *(n for n in orelse if n not in body)):
        a, b = body.get(name), orelse.get(name)
        if a is None or b is None:
            one = a or b
            if static and one is not None and name not in never:
                merged[name] = replace(one, formula=None) if isinstance(one, Variable) else one
            else:
                lost.add(name)
        elif a == b:
            merged[name] = a
        elif isinstance(a, Variable) and isinstance(b, Variable):
            merged[name] = joined(a, b, said(name), positional=positional, formula=_selected(test, a, b, inner))
        else:
            lost.add(name)
    return merged, lost


def _selected(test: Formula | None, a: Variable, b: Variable, inner: frozenset[str]) -> Formula | None:
    if test is None or a.formula is None or b.formula is None:
        return None
    found = select(test, a.formula, b.formula)
    return None if symbols(found) & inner else bounded(found)


def at_loop_head(before: Environment, after: Environment, said: Said, *, positional: bool) -> Environment:
    """What names mean at the head of a loop whose body leaves `after`; equal to `before` once nothing changes."""
    merged: Environment = {}
    for name, a in before.items():
        b = after.get(name)
        if b is None or a == b:
            if b is not None:
                merged[name] = a
        elif isinstance(a, Variable) and isinstance(b, Variable):
            merged[name] = joined(a, b, said(name), positional=positional)
    return merged
