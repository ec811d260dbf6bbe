"""Waits and notifies as calls of the SHMEM vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilelink.codegen.access import expression
from tilelink.codegen.scope import Scope, context_name
from tilelink.codegen.text import Lines
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.plan import RANK, Channel, ChannelAxis, GridAxis, Signal
from tilelink.ir.program import At, Gather, IndexEntry, Notify, OfTile, Wait
from tilelink.ir.wiring import entries


@dataclass(frozen=True, slots=True)
class Span:
    """Words along one channel axis: `[first, last]`, the same formula twice where it is one word."""

    first: Formula | str
    last: Formula | str

    @property
    def single(self) -> bool:
        return self.first == self.last


def words(channel: Channel) -> str:
    return f"{channel.tensor}_words"


def due(channel: Channel) -> str:
    return f"{channel.tensor}_due"


def declare_words(scope: Scope, channel: Channel) -> tuple[str, str]:
    return (
        scope.arg(Arg(words(channel), "words", channel.name)),
        scope.arg(Arg(due(channel), "due", channel.name)),
    )


def await_signal(
    scope: Scope,
    lines: Lines,
    op: Wait,
    signal: Signal,
    source: F.Like | None,
    known: Mapping[int | None, Formula] | None = None,
) -> None:
    """Wait for every word that the index intersects; `known`: the word's index along an axis of the tensor."""
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    given = {axis: Span(index, index) for axis, index in (known or {}).items()}
    spans = [given.get(a.axis) or _span(scope, lines, channel, a, op.param, op.index, source) for a in channel.axes]
    wait = "shmem.signal_wait_until" if channel.scope == "sys" else "shmem.local_wait_until"
    pointer, total = scope.arg(Arg(words(channel), "words", channel.name)), ""
    if channel.writers != "stream":
        total = scope.arg(Arg(due(channel), "due", channel.name))

    def each(flat: str) -> None:
        if channel.writers == "stream":
            lines.add(f"{wait}({pointer} + {flat}, shmem.CMP_GE, tl.load({scope.epoch()}))", op.loc)
        else:
            lines.add(f"{wait}({pointer} + {flat}, shmem.CMP_GE, tl.load({total} + {flat}))", op.loc)

    _each_word(scope, lines, channel, spans, op.loc, each)


def _each_word(
    scope: Scope, lines: Lines, channel: Channel, spans: list[Span], loc: Loc, emit: Callable[[str], None]
) -> None:
    """Loops over the axes that need one; `emit` gets the text of the word's number."""
    depth = lines.depth
    indices: list[Formula] = []
    for k, span in enumerate(spans):
        first = span.first
        if span.single and not isinstance(first, str):
            indices.append(first)
            continue
        name = scope.names.fresh("c" if len(spans) == 1 else f"c{k}")
        low = first if isinstance(first, str) else scope.text(first)
        high = f"{span.last} + 1" if isinstance(span.last, str) else scope.text(span.last + 1)
        lines.add(f"for {name} in range({low}, {high}):", loc)
        lines.depth += 1
        indices.append(Sym(name))
    flat = scope.text(channel.flat(tuple(indices)), 1)
    if any(isinstance(i, F.Binary) for i in indices) and not flat.isidentifier():
        name = scope.names.fresh("c")
        lines.add(f"{name} = {flat}", loc)
        flat = name
    emit(flat)
    lines.depth = depth


def _span(
    scope: Scope,
    lines: Lines,
    channel: Channel,
    axis: ChannelAxis,
    param: str,
    index: tuple[IndexEntry, ...] | None,
    source: F.Like | None,
) -> Span:
    """The words along `axis` that an index of `param` touches."""
    if axis.axis is None:
        rank = F.of(source if source is not None else RANK)
        return Span(rank, rank)
    entry = _entry_on(scope, param, index, axis.axis)
    if isinstance(entry, OfTile):
        tile = scope.tiles[entry.var]
        if axis.kind == "unit":
            return Span(Sym(tile.begin), Sym(tile.begin))
        base: F.Like = RANK * axis.part if axis.kind == "cut" and _is_local(scope, param, axis.axis) else 0
        first = axis.index(base + Sym(tile.begin))
        return Span(first, first) if _inside_one(tile.grid, axis) else Span(first, axis.index(base + Sym(tile.end) - 1))
    if isinstance(entry, At):
        at = position(scope, entry)
        return Span(axis.index(at), axis.index(at))
    if isinstance(entry, Gather):
        vector = expression(scope, entry.expr)
        low, high = scope.names.fresh("low"), scope.names.fresh("high")
        lines.add(f"{high} = tl.max({vector}, 0)", scope.loc)
        lines.add(f"{low} = tl.min(tl.where({vector} >= 0, {vector}, tl.maximum({high}, 0)), 0)", scope.loc)
        return Span(axis.index(Sym(low)), axis.index(F.maximum(Sym(high), 0)))
    return Span(F.of(0), axis.count - 1)


def _is_local(scope: Scope, param: str, axis: int) -> bool:
    """Whether the program counts positions on this axis from its rank's part."""
    return any(v.axis == axis and v.local for v in scope.step.step.binding(param).view)


def position(scope: Scope, entry: At) -> Formula:
    """A scalar index as a formula: of the program's names, which are the emitted ones."""
    if entry.expr.formula is not None:
        known = {**scope.renamed, **scope.replaced}
        return F.substitute(entry.expr.formula, {n: Sym(known[n]) for n in F.symbols(entry.expr.formula) if n in known})
    return Sym(expression(scope, entry.expr))


def _entry_on(scope: Scope, param: str, index: tuple[IndexEntry, ...] | None, axis: int) -> IndexEntry | None:
    step = scope.step.step
    if step.program.movement is not None:
        # The tiles of a movement are known by their position.
        return next((OfTile(str(k)) for k, v in enumerate(step.binding(param).view) if v.axis == axis), None)
    for v, e in zip(step.binding(param).view, entries(step, param, index), strict=True):
        if v.axis == axis:
            return e
    return None


def _inside_one(grid: GridAxis, axis: ChannelAxis) -> bool:
    """Whether a tile of `grid` can only lie in one word of `axis` (`free`: it may begin anywhere)."""
    if grid.kind in ("unit", "own"):
        return True
    if grid.kind == "free":
        return False
    if grid.kind in ("cut", "mine"):
        return axis.kind in ("cut", "part") and _aligned(grid, axis)
    return grid.tile is not None and _aligned(grid, axis) and (axis.kind == "plain" or _local(grid, axis))


def _aligned(grid: GridAxis, axis: ChannelAxis) -> bool:
    """Whether words end only where tiles do, counted from the same begin."""
    return axis.span is None or (grid.tile is not None and axis.span % grid.tile == 0)


def _local(grid: GridAxis, axis: ChannelAxis) -> bool:
    """Positions counted from the part's own begin: the words of that part are aligned to them."""
    return axis.kind == "part" and grid.kind == "plain" and grid.size != axis.size


def notify(scope: Scope, lines: Lines, op: Notify, signal: Signal, owner: str | None) -> None:
    """Raise the word of a completed tile at everyone who waits for it."""
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    if scope.stored_async:
        lines.add("shmem.async_store_quiet()")
    spans = [_span(scope, lines, channel, a, op.param, op.index, RANK) for a in channel.axes]
    pointer = scope.arg(Arg(words(channel), "words", channel.name))
    raise_ = _raiser(scope, lines, channel, pointer, op, signal, owner)
    _each_word(scope, lines, channel, spans, op.loc, raise_)


def _raiser(
    scope: Scope, lines: Lines, channel: Channel, pointer: str, op: Notify, signal: Signal, owner: str | None
) -> Callable[[str], None]:
    loc: Loc = op.loc

    def local(flat: str) -> None:
        if not channel.bells:
            lines.add(f"shmem.local_add({pointer} + {flat}, 1)", loc)
            return
        total = scope.arg(Arg(due(channel), "due", channel.name))
        bells = scope.arg(Arg(f"{channel.tensor}_bells", "bells", channel.name))
        lines.add(f"if shmem.local_add({pointer} + {flat}, 1) + 1 == tl.load({total} + {flat}):", loc)
        lines.add(f"    shmem.ring_bell({bells} + {flat})")

    def remote(flat: str) -> None:
        ctx = scope.context(channel.tensor)
        if signal.to == "all":
            pe = scope.names.fresh("pe")
            lines.add(f"for {pe} in range(RANKS):", loc)
            lines.add(f"    shmem.signal_op({pointer} + {flat}, 1, shmem.SIGNAL_ADD, (rank + {pe}) % RANKS, {ctx})")
            return
        lines.add(f"shmem.signal_op({pointer} + {flat}, 1, shmem.SIGNAL_ADD, {target}, {ctx})", loc)

    if signal.to == "self" and channel.scope == "gpu":
        return local
    target = owner if owner is not None else "rank"
    if signal.to == "peer":
        assert op.peer is not None
        target = expression(scope, op.peer.expr)
    elif signal.to == "self":
        target = "rank"
    return remote


def ready(scope: Scope, lines: Lines, op: Wait, tensor: str, source: str) -> None:
    """Wait until the rank that holds an argument has it ready for this call."""
    staged = scope.plan.buffer(tensor).staged
    kind = "ready" if staged else "entered"
    flags = scope.arg(Arg(f"{kind}_at", "state", kind))
    lines.add(f"shmem.signal_wait_until({flags} + {source}, shmem.CMP_GE, tl.load({scope.epoch()}))", op.loc)


__all__ = ["await_signal", "context_name", "declare_words", "notify", "position", "ready"]
