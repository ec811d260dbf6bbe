"""Changes of a signal that lie in the step's program: its index, and its place among loads and stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilelink.frontend.values import shifted
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, Signal, StepPlan
from tilelink.ir.program import At, Expr, IndexEntry, Load, Move, Notify, OfTile, Op, Store, Wait, rewritten, walk
from tilelink.ir.wiring import Step, entries


def with_body(plan: Plan, path: str, body: tuple[Any, ...]) -> Plan:
    """The plan with another body of a step's program."""

    def changed(s: StepPlan) -> StepPlan:
        return replace(s, step=replace(s.step, program=replace(s.step.program, body=body))) if s.path == path else s

    return replace(plan, steps=tuple(changed(s) for s in plan.steps))


def with_op(plan: Plan, s: Signal, op: Wait | Notify) -> Plan:
    """The plan with another op in a signal's place, in the step's program too."""
    body = rewritten(plan.step(s.path).step.program.body, lambda o: op if o == s.op else o)
    signals = tuple(replace(t, op=op) if t is s else t for t in plan.signals)
    return replace(with_body(plan, s.path, body), signals=signals)


def elsewhere(plan: Plan, path: str, op: Wait | Notify) -> Wait | Notify | None:
    """The signal at another tile, along the first axis that its words tell apart; None: it names no tile."""
    step = plan.step(path).step
    view = step.binding(op.param).view
    index = list(entries(step, op.param, op.index))
    tensor = step.binding(op.param).tensor
    known = [a.axis for c in plan.channels if c.tensor == tensor for a in c.axes]
    order = sorted(range(len(index)), key=lambda k: view[k].axis not in known)
    for k in order:
        moved = _moved(index[k], view[k].unit)
        if moved is not None:
            index[k] = moved
            return replace(op, index=_listed(step, op.param, index))
    return None


def _moved(entry: IndexEntry, unit: bool) -> IndexEntry | None:
    if isinstance(entry, OfTile):
        if unit:
            return At(Expr(f"{entry.var} + 1", (entry.var,), formula=F.Sym(entry.var) + 1))
        return At(Expr("0", formula=F.of(0)))
    if isinstance(entry, At):
        if entry.ring is not None:
            var, shift = entry.ring
            return replace(entry, expr=shifted(var, shift + 1).expr())
        if entry.expr.formula is not None:
            formula = (entry.expr.formula + 1) % F.Sym("RANKS") if unit else entry.expr.formula + 1
            return At(Expr(f"({entry.expr.text} + 1)", entry.expr.names, formula=formula))
    return None


def _listed(step: Step, param: str, index: list[IndexEntry]) -> tuple[IndexEntry, ...]:
    """Without the entries that stand for `...`, which an index does not list."""
    shape = step.program.param(param).shape
    if shape.rest is None:
        return tuple(index)
    wholes = len(index) - len(shape.axes)
    return tuple(index[: shape.rest] + index[shape.rest + wholes :])


def turned_around(plan: Plan, path: str, op: Wait | Notify) -> tuple[Op, ...] | None:
    """The program's body with the notify before the store that it is for, or the wait behind the load; None: no such."""
    return _turned(plan.step(path).step.program.body, op)


def _turned(body: tuple[Any, ...], op: Wait | Notify) -> tuple[Any, ...] | None:
    if op in body:
        at = body.index(op)
        if isinstance(op, Notify):
            found = [k for k in range(at) if _touches(body[k], op.param, (Store, Move), "param")]
            return (*body[: found[-1]], op, *body[found[-1] : at], *body[at + 1 :]) if found else None
        loads = [k for k in range(at + 1, len(body)) if _reads(body[k], op.param)]
        return (*body[:at], *body[at + 1 : loads[0] + 1], op, *body[loads[0] + 1 :]) if loads else None
    for k, outer in enumerate(body):
        for field in ("body", "orelse"):
            inner = _turned(getattr(outer, field, ()), op)
            if inner is not None:
                return (*body[:k], replace(outer, **{field: inner}), *body[k + 1 :])
    return None


def _reads(op: Op, param: str) -> bool:
    return _touches(op, param, (Load,), "param") or _touches(op, param, (Move,), "source")


def _touches(op: Op, param: str, kinds: tuple[type, ...], field: str) -> bool:
    return any(isinstance(o, kinds) and getattr(o, field) == param for o in walk((op,)))
