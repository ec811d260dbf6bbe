"""Where signals may stand: every rank must be able to count the notifies of the others without seeing their data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import cast

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.program import Expr, If, Loop, Notify, Op, Tiles, Wait, walk


def check_signals(body: tuple[Op, ...]) -> None:
    """Refuses signals whose number depends on data.

    Raises:
        TilelinkError: TL160 (branch), TL161 (while), TL162 (loop).
    """
    for op in walk(body):
        if isinstance(op, If):
            _branch(op)
        elif isinstance(op, Loop):
            _loop(op)
        elif isinstance(op, Tiles):
            _tiles(op)


def _branch(op: If) -> None:
    if op.test.positional:
        return
    body, orelse = list(_notifies(op.body)), list(_notifies(op.orelse))
    if sorted(map(_shape_of, body)) == sorted(map(_shape_of, orelse)):
        return
    known = [_shape_of(n) for n in orelse]
    odd = next((n for n in body if _shape_of(n) not in known), None) or (orelse or body)[0]
    raise TilelinkError(
        "TL160",
        f"a notify of `{odd.param}` on one path only, chosen by data",
        loc=odd.loc,
        why="a waiter counts notifies, and it does not see the data that this rank sees",
        hint="notify outside the `if`, or on both paths alike",
        notes=(Note(f"`{op.test}` depends on loaded values", op.loc),),
    )


def _loop(op: Loop) -> None:
    if op.target is None:
        signal = next((o for o in walk(op.body) if isinstance(o, (Notify, Wait))), None)
        if signal is not None:
            word = "notify" if isinstance(signal, Notify) else "wait"
            why = "nobody can tell how often a `while` goes round, so nobody can count its signals"
            hint = "use `for ... in range(...)` or `tl.tiles(...)`, or signal outside the loop"
            raise TilelinkError("TL161", f"a {word} in a `while`", loc=signal.loc, why=why, hint=hint)
    else:
        _length(op.body, [op.header], op.loc)


def _tiles(op: Tiles) -> None:
    _length(op.body, [e for e in (op.start, op.stop, *(op.part or ())) if e is not None], op.loc)


def _length(body: tuple[Op, ...], bounds: list[Expr], loop: Loc) -> None:
    data = next((b for b in bounds if not b.positional), None)
    notify = next(_notifies(body), None)
    if data is None or notify is None:
        return
    raise TilelinkError(
        "TL162",
        f"a notify of `{notify.param}` in a loop whose length is data",
        loc=notify.loc,
        why="a waiter counts notifies, and it does not see the data that this rank sees",
        hint="notify once, after the loop",
        notes=(Note(f"`{data}` depends on loaded values", loop),),
    )


def _notifies(body: tuple[Op, ...]) -> Iterator[Notify]:
    return (op for op in walk(body) if isinstance(op, Notify))


def _shape_of(node: object) -> str:
    """A notify without its place in the file."""
    if isinstance(node, Loc):
        return ""
    if isinstance(node, tuple):
        return f"({', '.join(map(_shape_of, cast('tuple[object, ...]', node)))})"
    if is_dataclass(node) and not isinstance(node, type):
        return f"{type(node).__name__}({', '.join(_shape_of(getattr(node, f.name)) for f in fields(node))})"
    return repr(node)
