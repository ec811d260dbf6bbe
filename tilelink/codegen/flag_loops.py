"""Runs: a loop over tiles that waits for them becomes one over flags, and inside it one over the tiles of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.codegen import ops, waits
from tilelink.codegen.scope import Scope, TileNames
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import AT, Await, For, Op, Walk, mapped
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.partition import GridAxis
from tilelink.ir.program import Tiles, Wait


def follows_loop(scope: Scope, loop: Tiles, op: Wait) -> bool:
    """Whether the wait's flag depends on the loop's tile: it goes to an outer loop over flags."""
    return ops.printed(scope, op) and scope.part.walk(loop.var, op) is not None


def open_flags(scope: Scope, op: Tiles, waiting: list[Wait], grid: GridAxis, low: str, high: str) -> tuple[str, str]:
    """Open an outer loop over the flags of the first wait: await one, then walk the tiles that it completes.

    A tile belongs to the run of the last flag that it touches. Flags are awaited in order, so all of them are complete.
    Gives the positions from which and up to which the run's tiles begin. A worker that has awaited all of the flags for
    an earlier tile makes one run of them.
    """
    lines, fresh = scope.lines, scope.names.fresh
    walks = [w for w in (scope.part.walk(op.var, wait) for wait in waiting) if w is not None]
    walk = walks[0]
    run, begin, end = fresh("run"), fresh("run_begin"), fresh("run_end")
    lo, hi = (F.substitute(edge, {"flag": Sym(run)}) for edge in (walk.begin, walk.end))
    last_index = _index(walk, _symbol(high) - 1)
    start = scope.text(walk.first if low == "0" else _index(walk, _symbol(low)))
    stop = scope.text(last_index)
    until = scope.text(F.minimum(hi, _symbol(high)))
    alike = scope.step.into is None and all(replace(w, wait=walk.wait) == walk and w.alone for w in walks)
    known = _awaited_before(scope, op, waiting, start, stop) if alike else None
    if known is None:
        lines.add(f"for {run} in range({start}, {scope.text(last_index + 1)}):", waiting[0].loc)
    else:
        lines.add(
            f"for {run} in range({known.first}, tl.where({known.new}, {known.last}, {known.first}) + 1):",
            waiting[0].loc,
        )
        until = f"tl.where({known.new}, {until}, {high})"
    lines.depth += 1
    lines.add(f"{begin} = {scope.text(lo if low == '0' else F.maximum(lo, _symbol(low)))}")
    lines.add(f"{end} = {until}")
    depth = lines.depth
    if known is not None:
        lines.add(f"if {known.new}:")
        lines.depth += 1
    flag = _index(walk, Sym(f"{op.var}.begin"))
    _await_run(scope, op, waiting, flag, TileNames(begin, end, "", "", grid.free, 1), run)
    lines.depth = depth
    first, last = fresh(f"{op.var}_first"), fresh(f"{op.var}_last")
    lines.add(f"{first} = {scope.text(_begin_of(Sym(begin), _symbol(low), grid))}")
    lines.add(f"{last} = tl.where({end} < {high}, {scope.text(_begin_of(Sym(end), _symbol(low), grid))}, {high})")
    return first, last


@dataclass(frozen=True, slots=True)
class Awaited:
    """Names: the first and the last flag of a loop, and whether some of them are `new` to the worker."""

    first: str
    last: str
    new: str


def _awaited_before(scope: Scope, op: Tiles, waiting: list[Wait], start: str, stop: str) -> Awaited:
    """Whether this worker's earlier tiles have awaited the loop's flags; from here on they count as awaited: the loop that
    follows awaits what is new."""
    first, last = scope.named(f"{op.var}_first_flag", start), scope.named(f"{op.var}_last_flag", stop)
    low, high = waits.remembered(scope, scope.declared(waiting[0].param).name)
    new = scope.named(f"{op.var}_new", f"({first} < {low}) | ({last} > {high})")
    for line in waits.joined(scope, first, last, low, high):
        scope.lines.add(line)
    return Awaited(first, last, new)


def _await_run(scope: Scope, op: Tiles, waiting: list[Wait], flag: Formula, span: TileNames, run: str) -> None:
    """Every wait of the loop, for the positions of one flag of the first."""
    # Asked of the loop's own tiles, not of the run that takes their place.
    fenced = [waits.read_by_tma(scope, wait) for wait in waiting]
    kept, scope.tiles[op.var], known = scope.tiles[op.var], span, dict(scope.known)
    first = _flags(scope, waiting[0])
    for wait, fence in zip(waiting, fenced, strict=True):
        body = ops.body_of(scope, wait)
        if _flags(scope, wait) == first:
            scope.known[flag] = Sym(run)
            body = _one_flag(body, f"{op.var}.begin")
        waits.await_all(scope, wait, body)
        scope.known = dict(known)
        if fence:
            scope.lines.add("shmem.async_load_fence()")
    scope.tiles[op.var] = kept


def _flags(scope: Scope, op: Wait) -> str:
    return next(o.flags for o in lowered_ops(scope.part.of(op)) if isinstance(o, Await))


def _one_flag(body: tuple[Op, ...], begin: str) -> tuple[Op, ...]:
    """The ops without the loop over the flags of a tile: for the first of them."""
    (op,) = body
    if not isinstance(op, For):
        return body
    if begin in F.symbols(op.count):
        var = op.var
        return tuple(mapped(o, lambda f: F.substitute(f, {var: 0})) for o in op.body)
    return (replace(op, body=_one_flag(op.body, begin)),)


def _index(walk: Walk, position: F.Like) -> Formula:
    return F.substitute(walk.index, {AT: position})


def _begin_of(position: Formula, low: Formula, grid: GridAxis) -> Formula:
    """Where the tile of a loop from `low` on that holds `position` begins."""
    return low + (position - low) // grid.step * grid.step


def _symbol(text: str) -> Formula:
    return F.of(int(text)) if text.isdigit() else Sym(text)
