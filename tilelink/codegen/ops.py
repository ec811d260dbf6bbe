"""Ops of a lowered plan as text: the loops and tests around them, and names for what they name."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from tilelink.codegen.scope import Scope
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import Await, Copy, For, If, Op, Signal, formulas, walk
from tilelink.ir.program import At, Gather, Notify, Wait


def each(scope: Scope, body: tuple[Op, ...], leaf: Callable[[Op], None]) -> None:
    """The loops and tests of ops, as far as there is something in them; `leaf` prints what it is."""
    for op in body:
        lines, first_row = scope.lines, len(scope.lines.rows)
        with scope.keeping_names():
            if isinstance(op, For):
                with turns(scope, op, _loc(op.body)):
                    each(scope, op.body, leaf)
            elif isinstance(op, If):
                assert op.test is not None
                with scope.under((op.test,), _loc(op.body)):
                    each(scope, op.body, leaf)
            else:
                leaf(op)
        if all(row == lines.depth for row, _, _ in lines.rows[first_row:]) and isinstance(op, For | If):
            del lines.rows[first_row:]


@contextmanager
def turns(scope: Scope, op: Op, loc: Loc | None) -> Generator[None]:
    """Lines in the loop that an op is, if it is one."""
    lines, depth = scope.lines, scope.lines.depth
    if isinstance(op, For):
        ends = run_of(op)
        if ends is None:
            head = f"for {named(scope, op.var)} in range({scope.text(op.count)}):"
        else:
            at, (first, last) = scope.names.fresh("c"), ends
            head = f"for {at} in range({scope.text(first)}, {scope.text(last + 1)}):"
            scope.known |= {_index(op.body): Sym(at), Sym(op.var): Sym(at) - scope.here(first)}
        lines.add(head, loc)
        lines.depth += 1
        for wish, value in op.lets:
            text = scope.text(value)
            lines.add(f"{named(scope, wish)} = {text}")
    yield
    lines.depth = depth


def run_of(op: Op) -> tuple[Formula, Formula] | None:
    """The first and the last flag of one, or of a loop over flags that follow one another."""
    if isinstance(op, Await | Signal):
        return op.index, op.index
    if not isinstance(op, For) or any(isinstance(o, For) for o in walk(op.body)):
        return None
    if not any(isinstance(o, Await | Signal) for o in walk(op.body)) or not _by_one(_index(op.body), Sym(op.var)):
        return None
    first, last = (F.substitute(_index(op.body), {op.var: at}) for at in (F.of(0), op.count - 1))
    return first, last


def _index(body: tuple[Op, ...]) -> Formula:
    return next(o.index for o in walk(body) if isinstance(o, Await | Signal))


def _by_one(index: Formula, var: Sym) -> bool:
    if isinstance(index, F.Binary) and index.op == "+":
        return _by_one(index.left if var.name in F.symbols(index.left) else index.right, var)
    return index == var


def _loc(body: tuple[Op, ...]) -> Loc | None:
    """The line of the first of them."""
    found = (op.source if isinstance(op, Copy) else op for op in walk(body))
    return next((op.loc for op in found if not isinstance(op, For | If)), None)


def named(scope: Scope, variable: str) -> str:
    """A name for a variable of the lowered plan, from here on."""
    name = scope.names.fresh(variable)
    scope.known[Sym(variable)] = Sym(name)
    return name


def name(scope: Scope, wish: str, value: Formula, loc: Loc | None) -> str:
    """A name for what a formula comes to, from here on: its own, if it is a name or a number already."""
    text = scope.text(value)
    if text.isidentifier() or text.isdigit():
        return text
    found = scope.names.fresh(wish)
    scope.lines.add(f"{found} = {text}", loc)
    scope.known[value] = Sym(found)
    return found


def body_of(scope: Scope, op: Wait | Notify) -> tuple[Op, ...]:
    """What a statement becomes, where what data says of its index has names."""
    inside, body = elements(scope, op)
    used = {n for o in walk(body) for f in formulas(o) for n in F.symbols(f)}
    for entry in op.index or ():
        if isinstance(entry, Gather) and f".{entry.expr.text}.low" in used:
            # The least and the greatest of a vector's elements, as 32 bits: tables may have 64.
            assert inside is not None
            meant, at = scope.text(inside), name(scope, "index", entry.expr.named, scope.loc)
            low, high = scope.names.fresh("low"), scope.names.fresh("high")
            scope.lines.add(f"{high} = tl.cast(tl.max(tl.where({meant}, {at}, -1), 0), tl.int32)", scope.loc)
            least = f"tl.min(tl.where({meant}, {at}, tl.maximum({high}, 0)), 0)"
            scope.lines.add(f"{low} = tl.cast({least}, tl.int32)", scope.loc)
            for side, found in (("low", low), ("high", high)):
                scope.known[Sym(f".{entry.expr.text}.{side}")] = Sym(found)
        elif isinstance(entry, At) and not entry.expr.positional:
            _name_inside(scope, entry, body)
    return body


def elements(scope: Scope, op: Wait | Notify) -> tuple[Formula | None, tuple[Op, ...]]:
    """Which elements of a vector of positions are meant (None: no vector says which flags), and the ops for them."""
    body = scope.part.of(op)
    vectors = {e.expr.named for e in op.index or () if isinstance(e, Gather)}
    if isinstance(body[0], If) and body[0].test is not None and vectors & {*F.parts(body[0].test)}:
        return body[0].test, body[0].body
    return None, body


def _name_inside(scope: Scope, entry: At, body: tuple[Op, ...]) -> None:
    """A position that data names, or the nearest in the axis."""
    for f in (f for op in walk(body) if isinstance(op, Await | Signal) for f in F.parts(op.index)):
        inside = isinstance(f, F.Binary) and f.op == "max" and isinstance(f.left, F.Binary) and f.left.op == "min"
        names = {f".{n}" for n in (entry.expr.text, *entry.expr.names)}
        if inside and f not in scope.known and F.symbols(f) & names:
            scope.known[f] = Sym(scope.named("at", f"tl.cast({scope.text(f)}, tl.int32)"))
            return
