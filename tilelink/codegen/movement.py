"""Movements on SMs: contiguous runs of elements, pulled or pushed; one per tile where only the first tiled axis is cut."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.codegen import low_latency, notifying, ordering, waiting, words
from tilelink.codegen.access import elements_of_word, first_of, pairs_of
from tilelink.codegen.ordering import silent
from tilelink.codegen.scope import Scope, TileNames
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import GridAxis, tile_holder
from tilelink.ir.program import Move, Movement, Notify, Store, Wait, walk


@dataclass(frozen=True, slots=True)
class Walk:
    """An axis of a movement's grid along which its runs are walked: the loop's variable, from `first` up to `last`."""

    axis: int
    name: str
    first: Formula
    last: Formula


def walks(scope: Scope) -> tuple[Walk, ...]:
    """The axes outside the innermost one that is cut: a tile is one contiguous run for each position along them."""
    step = scope.step
    cut = cut_axes(scope)
    out: list[Walk] = []
    for k, g in enumerate(step.grid[: cut[-1]] if cut else ()):
        if g.unit:
            continue
        bounds = (F.of(0), g.size) if whole_axis(g) else (Sym(begin(g, step.grid)), Sym(end(g)))
        out.append(Walk(k, scope.names.fresh(f"{g.dim}_at" if named(g) else f"at{g.dim}"), *bounds))
    return tuple(out)


def run_of(scope: Scope, param: str, holder: F.Like, walked: tuple[Walk, ...]) -> tuple[Formula, Formula]:
    """(offset of a run in the instance of rank `holder`, elements of one step along the innermost axis that is cut).

    Of a tensor that comes by the low-latency protocol both count words.
    """
    step = scope.step
    tensor = scope.plan.wiring.tensor(step.step.binding(param).tensor)
    offset: Formula = F.of(0)
    row: Formula | None = None
    extents = list(_seen(scope, param))
    each = elements_of_word(scope, tensor)
    if each > 1:
        extents[-1] = pairs_of(scope, tensor, extents[-1])
    behind: Formula = F.of(1)
    at = {w.axis: w.name for w in walked}
    cut = cut_axes(scope)
    for k, (v, g) in reversed(list(enumerate(zip(step.step.binding(param).view, step.grid, strict=True)))):
        if v.axis is None or tensor.axes[v.axis].own_slice:
            continue
        if k in at or not whole_axis(g):
            position, first = Sym(at.get(k, begin(g, step.grid))), first_of(tensor, v, holder)
            position = position if first is None else position - first
            offset = (position // each if v.axis == len(tensor.axes) - 1 else position) * behind + offset
        if k in at or k in cut or not whole_axis(g):
            row = behind if row is None else row
        behind = behind * extents.pop()
    return offset, behind if row is None else row


def cut_axes(scope: Scope) -> list[int]:
    """The axes of which a tile has a part, or of which memory has room for more than the tile: a run ends there."""
    step, movement = scope.step, scope.step.step.program.movement
    assert movement is not None
    roomy = {k for param in (movement.source, movement.destination) for k in _roomy(scope, param)}
    return [k for k, g in enumerate(step.grid) if g.kind != "own" and (not whole_axis(g) or k in roomy)]


def _roomy(scope: Scope, param: str) -> list[int]:
    """Axes that a tile has whole, and that are longer in memory: parts in symmetric memory all have room for the longest."""
    tensor, step = scope.declared(param), scope.step
    view = step.step.binding(param).view
    stored = [k for k, v in enumerate(view) if v.axis is not None and not tensor.axes[v.axis].own_slice]
    extents = zip(stored, _seen(scope, param), strict=True)
    return [k for k, extent in extents if whole_axis(step.grid[k]) and extent != step.grid[k].size]


def _seen(scope: Scope, param: str) -> tuple[Formula, ...]:
    """The extents of the memory that the movement reads, or writes: what is pulled may come out of a stage."""
    movement = scope.step.step.program.movement
    assert movement is not None
    pulled = param == movement.source and not scope.step.push
    return scope.plan.buffer(scope.declared(param).name).seen(by_peers=pulled)


def whole_axis(g: GridAxis) -> bool:
    return g.tile is None and g.kind == "plain"


def begin(g: GridAxis, grid: tuple[GridAxis, ...]) -> str:
    """The emitted name of where the tile begins on an axis."""
    return str(g.rank) if g.kind == "own" else f"{g.dim}_begin" if named(g) else f"begin_{grid.index(g)}"


def named(g: GridAxis) -> bool:
    """Whether the program has a name for the axis; those of `...` have numbers."""
    return not g.dim.startswith("_")


def holder_of(scope: Scope, param: str) -> Formula | None:
    """The rank that holds the tile in a parameter's tensor; None: every rank has its own whole instance."""
    step = scope.step
    return tile_holder(
        scope.declared(param), step.step.binding(param).view, (Sym(begin(g, step.grid)) for g in step.grid)
    )


def emit_tile(scope: Scope) -> None:
    """Wait, move, notify: for the tile whose bounds the loop has just set."""
    movement = scope.step.step.program.movement
    assert movement is not None
    wait = next(op for op in walk(scope.step.step.program.body) if isinstance(op, Wait))
    notify = next(op for op in walk(scope.step.step.program.body) if isinstance(op, Notify))
    cut = next((scope.step.grid[k] for k in reversed(cut_axes(scope))), None)
    length = F.of(1)
    if cut is not None and cut.kind != "unit":
        length = cut.size if whole_axis(cut) else Sym(end(cut)) - Sym(begin(cut, scope.step.grid))
    for k, g in enumerate(scope.step.grid):
        tile_alias(scope, k, g)
    source = movement.source
    where = holder_of(scope, source) if not scope.step.push else None
    named = scope.rank
    if where is not None:
        named = words.named(scope, "source", where, None)
    signal = scope.plan.signal(scope.step.path, wait)
    if signal.action == "ready":
        waiting.ready(scope, wait, scope.step.step.binding(source).tensor, named)
    elif not silent(scope, wait):
        waiting.await_signal(scope, wait, signal, Sym(named))
    if scope.step.push:
        _push(scope, movement.source, movement.destination, length, notify)
    else:
        _pull(scope, movement, length, named)
        if not silent(scope, notify):
            told = scope.plan.signal(scope.step.path, notify)
            waiter = ordering.waiter(scope, notify) if told.to == "owner" else None
            owner = None if waiter is None else words.named(scope, "waiter", waiter, notify.loc)
            notifying.notify(scope, notify, told, owner)


def end(g: GridAxis) -> str:
    return f"{g.dim}_end" if named(g) else f"end{g.dim}"


def tile_alias(scope: Scope, k: int, g: GridAxis) -> None:
    """Tiles of a movement are known by their position, so that signals can be worked out as for any program."""
    first = begin(g, scope.step.grid)
    last = end(g) if not g.unit else f"{first} + 1"
    if whole_axis(g):  # no loop names its bounds
        first, last = "0", scope.text(g.size)
    scope.tiles[str(k)] = TileNames(first, last, "", "", g, g.tile or 1)


def _offset(scope: Scope, pointer: str, offset: Formula) -> str:
    """Products are 64 bits wide: offsets may pass 2**31."""
    terms: list[str] = []
    while isinstance(offset, F.Binary) and offset.op == "+":
        terms.insert(0, _wide(scope, offset.right))
        offset = offset.left
    if offset != F.of(0):
        terms.insert(0, _wide(scope, offset))
    return " + ".join([pointer, *terms])


def _wide(scope: Scope, term: Formula) -> str:
    if isinstance(term, F.Binary) and term.op == "*":
        return f"tl.cast({scope.text(term.left)}, tl.int64) * {scope.text(term.right, F.DIVISOR)}"
    return f"tl.cast({scope.text(term)}, tl.int64)"


def _open(scope: Scope, walked: tuple[Walk, ...]) -> None:
    """A loop for each axis along which the runs of a tile do not follow one another."""
    for w in walked:
        scope.lines.add(f"for {w.name} in range({scope.text(w.first)}, {scope.text(w.last)}):")
        scope.lines.depth += 1


def _count(scope: Scope, length: Formula, row: Formula) -> str:
    return scope.text(length * row)


def _pull(scope: Scope, movement: Movement, length: Formula, named: str) -> None:
    lines = scope.lines
    source, target = scope.declared(movement.source), scope.declared(movement.destination)
    walked = walks(scope)
    there, _ = run_of(scope, movement.source, Sym(named), walked)
    here, row = run_of(scope, movement.destination, scope.step.rank, walked)
    staged = scope.plan.buffer(source.name).staged
    pointer = scope.arg(Arg(f"{source.name}_stage", "stage", source.name)) if staged else scope.tensor(source.name)
    ends = f"{_offset(scope, scope.tensor(target.name), here)}, {_offset(scope, pointer, there)}, {_count(scope, length, row)}"
    if source.name in scope.plan.low_latency:
        copy = low_latency.load_block(scope, source, ends, _moving(scope))
    elif holder_of(scope, movement.source) is None:  # what stays on its rank may lie in memory that no peer reaches
        copy = f"copy_block({ends})"
    else:
        copy = f"getmem_nbi_block({ends}, {named}, {scope.context(source.name)})"
    _open(scope, walked)
    lines.add(f"shmem.{copy}", _moving(scope))
    lines.depth -= len(walked)


def _push(scope: Scope, source: str, target: str, length: Formula, notify: Notify) -> None:
    lines = scope.lines
    src, dst = (scope.step.step.binding(p).tensor for p in (source, target))
    owner = holder_of(scope, target)
    walked = walks(scope)
    here, row = run_of(scope, source, scope.step.rank, walked)
    signal = scope.plan.signal(scope.step.path, notify)
    if owner is None:
        turn, pe = scope.names.fresh("turn"), scope.names.fresh("pe")
        rank, ranks = scope.rank, scope.ranks
        lines.add(f"for {turn} in range({ranks}):")
        lines.depth += 1
        lines.add(f"{pe} = ({rank} + {ranks} - {turn}) % {ranks}")
    else:
        pe = words.named(scope, "owner", owner, None)
        if scope.step.skip_own:
            lines.add(f"if {pe} != {scope.rank}:")
            lines.depth += 1
    there, _ = run_of(scope, target, Sym(pe), walked)
    start, ctx = scope.tensor(dst), scope.context(dst)
    by_words = dst in scope.plan.low_latency
    if by_words:
        start = scope.named(f"{dst}_there", f"shmem.ptr({start}, {pe}, {ctx})")
    ends = f"{_offset(scope, start, there)}, {_offset(scope, scope.tensor(src), here)}, {_count(scope, length, row)}"
    put = f"putmem_nbi_block({ends}, {pe}, {ctx})"
    if by_words:
        put = low_latency.store_block(scope, scope.declared(target), ends)
    _open(scope, walked)
    lines.add(f"shmem.{put}", _moving(scope))
    lines.depth -= len(walked)
    if owner is None and signal.to == "all":
        # One release for all of them: each waits until what was written before it has arrived.
        lines.depth -= 1
        if not silent(scope, notify):
            notifying.notify(scope, notify, signal, None)
        return
    if not silent(scope, notify):
        notifying.notify(scope, notify, signal, pe)
    lines.depth -= 1 if owner is None or scope.step.skip_own else 0


def _moving(scope: Scope) -> Loc:
    """The line that moves."""
    body = scope.step.step.program.body
    return next(op.loc for op in walk(body) if isinstance(op, (Move, Store)))
