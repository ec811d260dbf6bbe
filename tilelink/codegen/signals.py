"""Notifies as calls of the SHMEM vocabulary."""

from __future__ import annotations

from tilelink.codegen import ops, waits
from tilelink.codegen.scope import Scope
from tilelink.codegen.text import Lines
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import Flags, For, Op, Signal, walk
from tilelink.ir.program import Notify


def notify(scope: Scope, op: Notify) -> None:
    """Signal the flag of a completed tile at everyone who waits for it."""
    if not ops.printed(scope, op):
        return
    with scope.keeping_names():
        _signal_all(scope, op, ops.body_of(scope, op))


def _signal_all(scope: Scope, op: Notify, body: tuple[Op, ...]) -> None:
    first = next(o for o in walk(body) if isinstance(o, Signal))
    if first.rank is not None:
        ops.name(scope, "owner", first.rank, op.loc)
    # What is stored for one flag may still be on its way while the flag's total is fetched.
    if scope.stored_async and not _late(scope, first) and scope.lowered.flag(first.flags).style != "doorbell":
        scope.lines.add("shmem.async_store_quiet()")
    if not any(isinstance(o, For) for o in walk(body)):
        ops.name(scope, "c", first.index, op.loc)
    ops.each(scope, body, lambda o: signal(scope, o))


def _late(scope: Scope, op: Signal) -> bool:
    """Whether descriptor stores are waited for between the fetch of a flag's total and its raise."""
    flags = scope.lowered.flag(op.flags)
    return scope.stored_async and flags.rings is not None and op.rank == scope.step.rank


def signal(scope: Scope, op: Op) -> None:
    """Raise one flag."""
    if not isinstance(op, Signal) or scope.lowered.flag(op.flags).style == "data":
        return
    flags, lines = scope.lowered.flag(op.flags), scope.lines
    flat = ops.name(scope, "c", op.index, op.loc)
    if flags.style == "doorbell":
        if scope.stored_async:
            lines.add("shmem.async_store_quiet()")
        lines.add(f"shmem.count({_doorbells(scope, flags)} + {flat})", op.loc)
        return
    flag = f"{waits.pointer(scope, flags)} + {flat}"
    if flags.scope == "gpu" and op.rank == scope.step.rank:
        if op.amount is None:
            _count_tiles(scope, op, flags, flat, flag)
        elif flags.rings is not None:
            _add_and_ring(scope, op, flags, flat, flag)
        else:
            lines.add(f"shmem.local_add({flag}, 1)", op.loc)
        return
    how = "1, shmem.SIGNAL_ADD" if flags.style == "count" else "epoch, shmem.SIGNAL_SET"
    context = scope.context(flags.name)
    if op.rank is None:
        _tell_all(lines, flag, f"{how}, {scope.ranks}, {context}", op.loc, flat)
    else:
        lines.add(f"shmem.signal_op({flag}, {how}, {scope.text(op.rank)}, {context})", op.loc)


def _count_tiles(scope: Scope, op: Signal, flags: Flags, flat: str, flag: str) -> None:
    """The last tile of a run-time split adds for all of them."""
    counts = scope.arg(Arg(f"{flags.name}_counts", "counts", flags.name))
    often = _arrivals(flags, Sym(flat))
    tiles = scope.text(Sym(f"{flags.table}_tiles") * often)
    with scope.lines.block(f"if shmem.is_last({counts} + {flat}, {tiles}):", op.loc):
        scope.lines.add(f"shmem.local_add({flag}, {scope.text(often)})")


def _arrivals(flags: Flags, flag: Formula) -> Formula:
    return F.substitute(flags.arrivals or 1, {"flag": flag})


def _doorbells(scope: Scope, flags: Flags) -> str:
    return scope.arg(Arg(f"{flags.name}_doorbells", "doorbells", flags.name))


def _add_and_ring(scope: Scope, op: Signal, flags: Flags, flat: str, flag: str) -> None:
    """Whoever completes a flag rings its doorbell, once."""
    lines, total = scope.lines, waits.expected_at(scope, flags)
    expected = scope.names.fresh(f"{flags.name}_expected")
    lines.add(f"{expected} = tl.load({total} + {flat})", op.loc)
    if _late(scope, op):
        lines.add("shmem.async_store_quiet()")
    last = f"shmem.local_add({flag}, 1) + 1 == {expected}"
    rings = F.substitute(flags.rings or 1, {"flag": Sym(flat)})
    if rings != F.of(1):
        last = f"({last}) & ({scope.text(rings)})"
    with lines.block(f"if {last}:", op.loc):
        lines.add(f"shmem.ring_doorbell({_doorbells(scope, flags)} + {flat})")


def _tell_all(lines: Lines, flag: str, how: str, loc: Loc | None, flat: str) -> None:
    """Signal a flag at everyone; with the line before, where that raises another one so: a release takes a round trip. The line
    that names the flag's number `flat` may stand between."""
    named = lines.rows[-1:] if lines.rows and lines.rows[-1][1].startswith(f"{flat} = ") else []
    at = len(lines.rows) - len(named) - 1
    depth, before, line = lines.rows[at] if at >= 0 else (-1, "", None)
    if depth == lines.depth and before.startswith("shmem.signal_all(") and before.endswith(f", {how})"):
        lines.rows[at:] = [*named, (depth, f"{before[:-1]}, {flag})", line)]
        return
    lines.add(f"shmem.signal_all({flag}, {how})", loc)


def notify_for_none(scope: Scope) -> None:
    """A run-time split that makes no tile at all has no last one: the first worker notifies."""
    signals = (o for _, body in scope.part.said for o in walk(body) if isinstance(o, Signal) and o.amount is None)
    for op in signals:
        flags, flag = scope.lowered.flag(op.flags), scope.names.fresh("c")
        with (
            scope.lines.block(f"if (worker == 0) & ({scope.text(Sym(f'{flags.table}_tiles'))} == 0):", op.loc),
            scope.lines.block(f"for {flag} in range({scope.text(flags.count)}):"),
        ):
            often = scope.text(_arrivals(flags, Sym(flag)))
            scope.lines.add(f"shmem.local_add({waits.pointer(scope, flags)} + {flag}, {often})")
