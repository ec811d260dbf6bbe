"""Form: how often a signal is given is known without data."""

from __future__ import annotations

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Expr, If, Loop, Notify, Op, Site, TileProgram, Tiles, Wait, sites


def check_form(plan: Plan) -> str:
    """Signals stand in `tl.tiles` and under tests of positions; one that data decides must be given on both paths.

    Raises:
        TilelinkError: TL601.
    """
    count = 0
    for step in plan.steps:
        program = step.step.program
        for site in sites(program.body):
            if isinstance(site.op, (Wait, Notify)):
                _check(program, site, site.op)
                count += 1
    return f"{count} signals of {len(plan.steps)} programs, each under tiles and positions only"


def _check(program: TileProgram, site: Site, op: Wait | Notify) -> None:
    for loop in site.loops:
        if isinstance(loop, Loop) and loop.target is None:
            raise _refused(op, f"in the loop `{loop.header}`", Note("the loop", loop.loc))
        if isinstance(op, Notify):
            data = next((e for e in _bounds(loop) if not e.positional), None)
            if data is not None:
                raise _refused(op, f"in a loop whose length is data (`{data}`)", Note("the loop", loop.loc))
    if isinstance(op, Notify):
        for test, _ in site.tests:
            if not test.positional and not _alike(program.body, test):
                raise _refused(op, f"under `{test}`, which depends on data", None)


def _bounds(loop: Tiles | Loop) -> tuple[Expr, ...]:
    if isinstance(loop, Loop):
        return (loop.header,)
    return tuple(e for e in (loop.start, loop.stop, *(loop.part or ())) if e is not None)


def _alike(body: tuple[Op, ...], test: Expr) -> bool:
    """Whether both branches of the `if` give the same notifies."""
    for op in body:
        if isinstance(op, If):
            if op.test == test:
                return _notifies(op.body) == _notifies(op.orelse)
            if _alike(op.body, test) or _alike(op.orelse, test):
                return True
        elif isinstance(op, (Tiles, Loop)) and _alike(op.body, test):
            return True
    return False


def _notifies(body: tuple[Op, ...]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for op in body:
        if isinstance(op, Notify):
            found.append((op.param, op.index, op.peer))
        elif isinstance(op, If):
            found += _notifies(op.body) + _notifies(op.orelse)
        elif isinstance(op, (Tiles, Loop)):
            found += _notifies(op.body)
    return sorted(found, key=repr)


def _refused(op: Wait | Notify, where: str, note: Note | None) -> TilelinkError:
    word = "notify" if isinstance(op, Notify) else "wait"
    return TilelinkError(
        "TL601",
        f"a {word} of `{op.param}` {where}",
        loc=op.loc,
        why="who waits counts the notifies of a tile and cannot see the data of the rank that gives them",
        hint="signal outside, once per tile",
        notes=(note,) if note is not None else (),
    )
