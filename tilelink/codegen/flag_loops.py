"""Runs: a loop over tiles that waits for them becomes one over words, and inside it one over the tiles of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.codegen import ops, waits
from tilelink.codegen.scope import Scope, TileNames
from tilelink.ir import formula as F
from tilelink.ir.channel import ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import For, Op, mapped
from tilelink.ir.partition import GridAxis
from tilelink.ir.program import OfTile, Tiles, Wait
from tilelink.ir.wiring import indexed


def follows_loop(scope: Scope, loop: Tiles, op: Wait) -> bool:
    """Whether the wait's word depends on the loop's tile: it goes to an outer loop over words."""
    return ops.printed(scope, op) and _axis_of_loop(scope, loop, op) is not None


def open_flags(scope: Scope, op: Tiles, waiting: list[Wait], grid: GridAxis, low: str, high: str) -> tuple[str, str]:
    """Open an outer loop over the words of the first wait: await one, then walk the tiles that it completes.

    A tile belongs to the run of the last word that it touches. Words are awaited in order, so all of them are complete.
    Gives the positions from which and up to which the run's tiles begin. A worker that has awaited all of the words for
    an earlier tile makes one run of them.
    """
    lines, fresh = scope.lines, scope.names.fresh
    found = _axis_of_loop(scope, op, waiting[0])
    assert found is not None
    axis, local = found
    run, begin, end = fresh("run"), fresh("run_begin"), fresh("run_end")
    shift = axis.rank * axis.part if local else F.of(0)
    lo, hi = (edge - shift for edge in axis.interval(Sym(run)))
    base = axis.first(local=local)
    start = "0" if low == "0" and base == F.of(0) else scope.text(axis.index(base + _symbol(low)))
    stop = scope.text(axis.index(base + _symbol(high) - 1))
    until = scope.text(F.minimum(hi, _symbol(high)))
    known = _awaited_before(scope, op, waiting, start, stop) if _alike(scope, op, waiting) else None
    if known is None:
        lines.add(
            f"for {run} in range({start}, {scope.text(axis.index(base + _symbol(high) - 1) + 1)}):", waiting[0].loc
        )
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
    word = axis.index(base + Sym(f"{op.var}.begin"))
    _await_run(scope, op, waiting, word, TileNames(begin, end, "", "", grid.free, 1), run)
    lines.depth = depth
    first, last = fresh(f"{op.var}_first"), fresh(f"{op.var}_last")
    lines.add(f"{first} = {scope.text(_begin_of(Sym(begin), _symbol(low), grid))}")
    lines.add(f"{last} = tl.where({end} < {high}, {scope.text(_begin_of(Sym(end), _symbol(low), grid))}, {high})")
    return first, last


@dataclass(frozen=True, slots=True)
class Awaited:
    """Names: the first and the last word of a loop, and whether some of them are `new` to the worker."""

    first: str
    last: str
    new: str


def _alike(scope: Scope, op: Tiles, waiting: list[Wait]) -> bool:
    """Whether all waits are for words of the loop's axis alone, cut alike: who has awaited those of one has those of all."""
    if scope.step.engine != "workers":
        return False
    channels = [scope.plan.channel(scope.plan.signal(scope.step.path, w).channel or "") for w in waiting]
    found = [_axis_of_loop(scope, op, w) for w in waiting]
    return all(len(c.axes) == 1 and f == found[0] for c, f in zip(channels, found, strict=True))


def _awaited_before(scope: Scope, op: Tiles, waiting: list[Wait], start: str, stop: str) -> Awaited:
    """Whether this worker's earlier tiles have awaited the loop's words; from here on they count as awaited: the loop that
    follows awaits what is new."""
    first, last = scope.named(f"{op.var}_first_word", start), scope.named(f"{op.var}_last_word", stop)
    low, high = waits.remembered(scope, scope.declared(waiting[0].param).name)
    new = scope.named(f"{op.var}_new", f"({first} < {low}) | ({last} > {high})")
    for line in waits.joined(scope, first, last, low, high):
        scope.lines.add(line)
    return Awaited(first, last, new)


def _await_run(scope: Scope, op: Tiles, waiting: list[Wait], word: Formula, span: TileNames, run: str) -> None:
    """Every wait of the loop, for the positions of one word of the first."""
    # Asked of the loop's own tiles, not of the run that takes their place.
    fenced = [waits.read_by_tma(scope, wait) for wait in waiting]
    kept, scope.tiles[op.var], known = scope.tiles[op.var], span, dict(scope.known)
    first = scope.plan.signal(scope.step.path, waiting[0]).channel
    for wait, fence in zip(waiting, fenced, strict=True):
        body = ops.body_of(scope, wait)
        if scope.plan.signal(scope.step.path, wait).channel == first:
            scope.known[word] = Sym(run)
            body = _one_word(body, f"{op.var}.begin")
        waits.await_all(scope, wait, body)
        scope.known = dict(known)
        if fence:
            scope.lines.add("shmem.async_load_fence()")
    scope.tiles[op.var] = kept


def _one_word(body: tuple[Op, ...], begin: str) -> tuple[Op, ...]:
    """The ops without the loop over the words of a tile: for the first of them."""
    (op,) = body
    if not isinstance(op, For):
        return body
    if begin in F.symbols(op.count):
        var = op.var
        return tuple(mapped(o, lambda f: F.substitute(f, {var: 0})) for o in op.body)
    return (replace(op, body=_one_word(op.body, begin)),)


def _axis_of_loop(scope: Scope, loop: Tiles, op: Wait) -> tuple[ChannelAxis, bool] | None:
    """The channel's axis that the loop walks, and whether the loop counts from the part's own begin."""
    name = scope.plan.signal(scope.step.path, op).channel
    for v, e in indexed(scope.step.step, op.param, op.index):
        if isinstance(e, OfTile) and e.var == loop.var and name is not None:
            return next(((a, v.local) for a in scope.plan.channel(name).axes if a.axis == v.axis), None)
    return None


def _begin_of(position: Formula, low: Formula, grid: GridAxis) -> Formula:
    """Where the tile of a loop from `low` on that holds `position` begins."""
    return low + (position - low) // grid.step * grid.step


def _symbol(text: str) -> Formula:
    return F.of(int(text)) if text.isdigit() else Sym(text)
