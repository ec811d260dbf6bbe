"""The words of a channel that a wait or a notify touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilelink.codegen.access import expression, from_data, nearest, position, stays_inside, there
from tilelink.codegen.scope import Scope
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir import wiring
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.program import At, Gather, IndexEntry, Notify, OfTile, Wait


@dataclass(frozen=True, slots=True)
class Span:
    """Words along one channel axis: `[first, last]`, the same formula twice where it is one word."""

    first: Formula
    last: Formula

    @property
    def single(self) -> bool:
        return self.first == self.last


def pointer(scope: Scope, channel: Channel) -> str:
    """The parameter that points to the words: counts of notifies, or in a brief call numbers of calls."""
    return scope.arg(Arg(f"{channel.tensor}_words", "flags" if scope.plan.brief else "words", channel.name))


def due(channel: Channel) -> str:
    """The parameter that points to what they come to."""
    return f"{channel.tensor}_due"


def span(
    scope: Scope,
    axis: ChannelAxis,
    op: Wait | Notify,
    source: F.Like | None,
) -> Span:
    """The words along `axis` that a wait or a notify touches."""
    if axis.axis is None:
        if axis.every and isinstance(op, Wait) and op.peer is None:
            return Span(F.of(0), axis.count - 1)
        rank = F.of(source if source is not None else axis.rank)
        return Span(rank, rank)
    entry = entry_on(scope, op.param, op.index, axis.axis)
    base = base_of(scope, axis, op.param)
    if isinstance(entry, OfTile):
        tile = scope.tiles[entry.var]
        if axis.kind == "unit":
            return Span(Sym(tile.begin), Sym(tile.begin))
        first = axis.index(base + (F.of(0) if tile.begin == "0" else Sym(tile.begin)))
        if axis.holds(tile.grid):
            return Span(first, first)
        tile.used.add("end")
        return Span(first, axis.index(base + Sym(tile.end) - 1))
    if isinstance(entry, At):
        at: Formula = position(scope, entry)
        view = next(v for v in scope.step.step.binding(op.param).view if v.axis == axis.axis)
        told = entry.expr.positional and isinstance(op, Notify)  # the counts are of the words that it names
        if not told and not stays_inside(scope, scope.declared(op.param), view, entry):
            # Wherever it leads, the words that are looked at are those of the tensor.
            inside = nearest(scope, scope.text(at), scope.declared(op.param), view, _whose(axis))
            at = Sym(named(scope, "at", Sym(from_data(entry.expr, inside)), scope.loc))
        return Span(axis.index(base + at), axis.index(base + at))
    if isinstance(entry, Gather):
        vector, inside = elements(scope, axis, op, entry)
        low, high = scope.names.fresh("low"), scope.names.fresh("high")
        scope.lines.add(f"{high} = {from_data(entry.expr, f'tl.max(tl.where({inside}, {vector}, -1), 0)')}", scope.loc)
        least = f"tl.min(tl.where({inside}, {vector}, tl.maximum({high}, 0)), 0)"
        scope.lines.add(f"{low} = {from_data(entry.expr, least)}", scope.loc)
        return Span(axis.index(base + Sym(low)), axis.index(base + F.maximum(Sym(high), 0)))
    return Span(F.of(0), axis.filled - 1)


def elements(scope: Scope, axis: ChannelAxis, op: Wait | Notify, entry: Gather) -> tuple[str, str]:
    """A vector of positions by name, and which of them are elements: past an edge there are no words to wait for."""
    view = next(v for v in scope.step.step.binding(op.param).view if v.axis == axis.axis)
    vector = expression(scope, entry.expr)
    if not vector.isidentifier():
        vector = named(scope, f"{op.param}_index", Sym(vector), scope.loc)
    return vector, there(scope, vector, scope.declared(op.param), view, _whose(axis))


def _whose(axis: ChannelAxis) -> Formula | None:
    """The rank whose part the words of an axis are of; those of a `cut` axis are of all parts."""
    return axis.rank if axis.kind == "part" else None


def base_of(scope: Scope, axis: ChannelAxis, param: str) -> Formula:
    """From where the program counts positions on this axis: its rank's part, or the first."""
    local = any(v.axis == axis.axis and v.local for v in scope.step.step.binding(param).view)
    return axis.rank * axis.part if axis.kind == "cut" and local else F.of(0)


def entry_on(scope: Scope, param: str, index: tuple[IndexEntry, ...] | None, axis: int) -> IndexEntry | None:
    """What an index of `param` says along an axis of the tensor."""
    step = scope.step.step
    if step.program.movement is not None:
        # The tiles of a movement are known by their position.
        return next((OfTile(str(k)) for k, v in enumerate(step.binding(param).view) if v.axis == axis), None)
    return wiring.entry_on(step, param, index, axis)


def flat_of(channel: Channel, spans: list[Span], first: bool) -> Formula:
    """The number of the first or the last of the words."""
    return channel.flat(tuple(s.first if first else s.last for s in spans))


def named(scope: Scope, name: str, value: Formula, loc: Loc | None) -> str:
    """A value by name: its own, if it is a name already."""
    text = scope.text(value)
    if text.isidentifier():
        return text
    name = scope.names.fresh(name)
    scope.lines.add(f"{name} = {text}", loc)
    return name


def each_word(scope: Scope, channel: Channel, spans: list[Span], loc: Loc, emit: Callable[[str], None]) -> None:
    """Loops over the axes that need one; `emit` gets the text of the word's number."""
    lines = scope.lines
    depth = lines.depth
    indices: list[Formula] = []
    for k, span in enumerate(spans):
        if span.single:
            indices.append(span.first)
            continue
        name = scope.names.fresh("c" if len(spans) == 1 else f"c{k}")
        lines.add(f"for {name} in range({scope.text(span.first)}, {scope.text(span.last + 1)}):", loc)
        lines.depth += 1
        indices.append(Sym(name))
    flat = scope.text(channel.flat(tuple(indices)), F.SUMMAND)
    if any(isinstance(i, F.Binary) for i in indices) and not flat.isidentifier():
        name = scope.names.fresh("c")
        lines.add(f"{name} = {flat}", loc)
        flat = name
    emit(flat)
    lines.depth = depth


def raised(scope: Scope, channel: Channel, word: Formula) -> str:
    """How often a word is raised in a call: an operand of a sum."""
    target = scope.text(of_word(channel, channel.target, word), F.SUMMAND)
    if channel.guard is None:
        return target
    return f"tl.where({scope.text(of_word(channel, channel.guard, word))}, {target}, 0)"


def of_word(channel: Channel, formula: Formula, word: Formula) -> Formula:
    """What a formula of the channel's (its target, its guard) comes to for one word."""
    return F.substitute(formula, {f"c{k}": index for k, index in enumerate(channel.indices(word))})
