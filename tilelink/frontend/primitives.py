"""The words that tilelink adds to Triton's language: a table from name to lowering function.

A new primitive is one entry here (and its stub in `tilelink.language`). The parameters of a lowering function behind
`call` are those of the word itself; they arrive as syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tilelink.errors import Note
from tilelink.frontend import raw
from tilelink.frontend.indices import rank_of_block, tile_alias
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import UNKNOWN, TileIndex, Value, constant_of, root, without_formula
from tilelink.frontend.words import WHILE_TEST, Call, Node, Word
from tilelink.ir.formula import Sym
from tilelink.ir.program import (
    At,
    Bounds,
    Gather,
    Holder,
    Load,
    Move,
    Notify,
    OfTile,
    Param,
    Store,
    Wait,
)
from tilelink.ir.shape import RANK_AXIS, Axis


# -------------------------------------------------------------------------------------------------------- the nine primitives
def _producer_tile_notify(call: Call, t: ast.expr, tile: Node = None, mode: Node = None) -> None:
    param = call.param(t)
    word = None if mode is None else constant_of(mode)
    if word not in (None, "p2p", "broadcast"):
        why = "a mode asserts who hears the notify: one rank or all"
        call.fail(
            "TL135",
            mode or call.node,
            f"the mode `{ast.unparse(mode or call.node)}`",
            why,
            'write "p2p" or "broadcast"',
        )
    assert word is None or isinstance(word, str)
    call.state.ops.append(Notify(param=param.name, index=call.whole_or_index(param, tile), mode=word, loc=call.loc))


def _consumer_tile_wait(call: Call, t: ast.expr, tile: Node = None) -> None:
    param = call.param(t)
    call.state.ops.append(Wait(param=param.name, index=call.whole_or_index(param, tile), loc=call.loc))


def _peer_tile_notify(call: Call, t: ast.expr, tile: ast.expr, rank: ast.expr) -> None:
    param = call.param(t)
    index = call.index(param, tile)
    call.state.ops.append(Notify(param=param.name, index=index, peer=_peer(call, rank), loc=call.loc))


def _peer_tile_wait(call: Call, t: ast.expr, tile: ast.expr, rank: ast.expr) -> None:
    param = call.param(t)
    index = call.index(param, tile)
    call.state.ops.append(Wait(param=param.name, index=index, peer=_peer(call, rank), loc=call.loc))


def _peer(call: Call, node: ast.expr) -> At:
    value = call.state.lower(node)
    if not value.coordinate or value.rank != 0:
        why = "a program names a peer by its place on an axis `R`, never by its number"
        hint = "use an index of an axis `R`, `tl.rank_of(...)`, or one of them plus or minus a number"
        call.fail("TL144", node, f"`{ast.unparse(node)}` is not an R coordinate", why, hint)
    return At(value.expr(), value.ring)


def _rank_wait(call: Call, t: ast.expr, tile: Node = None) -> None:
    param = call.param(t)
    index = call.whole_or_index(param, tile)
    call.state.ops.append(Wait(param=param.name, index=index, by="stream", loc=call.loc))


def _rank_copy_data(call: Call, t: ast.expr, tile: ast.expr, source: ast.expr) -> None:
    _move(call, t, tile, source, "stream")


def _rank_notify(call: Call, t: ast.expr, tile: Node = None) -> None:
    param = call.param(t)
    index = call.whole_or_index(param, tile)
    call.state.ops.append(Notify(param=param.name, index=index, by="stream", loc=call.loc))


def _tile_push_data(call: Call, t: ast.expr, tile: ast.expr, data: ast.expr, mask: Node = None) -> None:
    _store(call, t, tile, data, mask, "holders")


def _tile_pull_data(call: Call, t: ast.expr, tile: ast.expr, source: ast.expr) -> None:
    _move(call, t, tile, source, "worker")


def _move(call: Call, t: ast.expr, tile: ast.expr, source: ast.expr, by: str) -> None:
    param, origin = call.param(t), call.param(source)
    index = call.index(param, tile)
    call.index(origin, tile)  # the same tile must make sense in both
    call.state.ops.append(Move(param=param.name, source=origin.name, index=index, by=by, loc=call.loc))


def _store(call: Call, t: ast.expr, tile: ast.expr, data: ast.expr, mask: Node, to: str) -> None:
    param = call.param(t)
    index = call.index(param, tile)
    value, where = call.value(data), call.expr(mask)
    call.state.ops.append(Store(param=param.name, index=index, value=value, mask=where, to=to, loc=call.loc))


# ----------------------------------------------------------------------------------------------------------------- vocabulary
def _tile_store(call: Call, t: ast.expr, tile: ast.expr, value: ast.expr, mask: Node = None) -> None:
    _store(call, t, tile, value, mask, "own")


def _tile_load(call: Call, t: ast.expr, tile: Node = None, other: Node = None) -> Value:
    param = call.param(t)
    if call.state.conditional is not None:
        why = "loads are taken out of expressions; this one would happen once, in any case"
        once = call.state.conditional == WHILE_TEST
        hint = "assign it before the loop, and again in its body" if once else "write an `if` with the load in it"
        call.fail("TL134", call.node, f"a load in {call.state.conditional}", why, hint)
    index = call.index(param, tile)
    filler = call.expr(other)
    name = call.result(f"{param.name}_tile")
    call.state.ops.append(Load(name=name, param=param.name, index=index, other=filler, loc=call.loc))
    return _named(name, rank=rank_of_block(param, index), positional=False)


def _rank_of(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    param = call.param(t)
    if call.state.conditional == WHILE_TEST:
        why = "it would be computed once, before the loop"
        call.fail(
            "TL134", call.node, f"`tl.rank_of` in {WHILE_TEST}", why, "assign it before the loop, and again in its body"
        )
    index = call.index(param, tile)
    if any(isinstance(e, Gather) for e in index):
        why = "a vector of positions may lie on several ranks"
        call.fail("TL142", tile, "`tl.rank_of` of a vector", why, "ask for one tile or one position")
    name = call.result(f"{param.name}_owner")
    call.state.ops.append(Holder(name=name, param=param.name, index=index, loc=call.loc))
    positional = all(e.expr.positional for e in index if isinstance(e, At))
    positional = positional and not any(
        _by_table(a) for a, e in zip(param.shape.axes, index, strict=True) if isinstance(e, OfTile)
    )
    value = _named(name, positional=positional)
    if not call.state.bound_once(name):
        return replace(value, formula=None, coordinate=True)
    return replace(value, coordinate=True, ring=(name, 0))


def _named(name: str, *, rank: int = 0, positional: bool = True, length: int | None = None) -> Value:
    formula = Sym(name) if positional and rank == 0 and length is None else None
    return Value(ast.Name(name, ast.Load()), (name,), rank, positional, formula, length)


def _by_table(axis: Axis) -> bool:
    """Split at run time: where its tiles lie is data."""
    return axis.split not in (None, RANK_AXIS)


def _tile_range(call: Call, t: ast.expr, tile: Node = None, axis: Node = None) -> Value:
    param = call.param(t)
    if tile is None:
        at, found = call.axis(param, axis)
        return _bounds(call, "range", param, at, None, _axis_word(param, found) + "_range", rank=1)
    return _of_tile(call, "range", param, tile, rank=1)


def _tile_begin(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    return _of_tile(call, "begin", call.param(t), tile)


def _tile_end(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    return _of_tile(call, "end", call.param(t), tile)


def _segment(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    param = call.param(t)
    found = _tile_of(call, param, tile)
    axis = param.shape.axes[_axis_of(call, param, found, tile)]
    if not _by_table(axis):
        why = f"`{param.name}` is `{param.shape}`; segments come from a table, as in `P/start`"
        call.fail("TL152", tile, f"axis `{axis}` has no segments", why, "split the axis by a table in the signature")
    return _of_tile(call, "segment", param, tile)


def _of_tile(call: Call, what: str, param: Param, node: ast.expr, rank: int = 0) -> Value:
    found = _tile_of(call, param, node)
    at = _axis_of(call, param, found, node)
    return _bounds(call, what, param, at, found.var, f"{found.var}_{what}", rank, not _by_table(param.shape.axes[at]))


def _tile_mask(call: Call, t: ast.expr, tile: ast.expr, start: Node = None, stop: Node = None) -> Value:
    param = call.param(t)
    found = _tile_of(call, param, tile)
    at = _axis_of(call, param, found, tile)
    limits: list[Value | None] = []
    for node, what in ((start, "start"), (stop, "stop")):
        limits.append(limit := _limit(call, param, at, param.shape.axes[at], node, what))
        if node is not None and limit is not None and limit.rank not in (0, 1, UNKNOWN):
            message = f"the {what} of `tl.tile_mask` is a block of {limit.rank} dimensions"
            call.fail("TL142", node, message, "it is one position, or one for each row", "give a vector")
    name, given = call.result(f"{found.var}_mask"), [v for v in limits if v is not None]
    first, last = (v.expr() if v is not None else None for v in limits)
    call.state.ops.append(
        Bounds(name=name, what="mask", param=param.name, axis=at, var=found.var, start=first, stop=last, loc=call.loc)
    )
    positional = all(v.positional for v in given) and not _by_table(param.shape.axes[at])
    return _named(name, rank=2, positional=positional)


def _tile_of(call: Call, param: Param, node: ast.expr) -> TileIndex:
    found = tile_alias(call.state, node)
    if isinstance(found, TileIndex):
        return found
    why = f"`tl.{call.name}` says where a tile lies; a position lies where it says"
    tiles = [f"`{n}`" for n, b in call.state.env.items() if isinstance(b, TileIndex)]
    hint = f"name a tile: {', '.join(tiles)}" if tiles else "bind a tile with `tl.tile_id` or `tl.tiles`"
    call.fail("TL142", node, f"`{ast.unparse(node)}` is not a tile", why, hint)


def _axis_of(call: Call, param: Param, tile: TileIndex, node: ast.expr) -> int:
    """The axis of `param` that a tile lies on: the one it was made from, or the first of that dimension."""
    axes = param.shape.axes
    if param.name == tile.param:
        return tile.axis
    for at, axis in enumerate(axes):
        if axis.name == tile.dim:
            return at
    why = f"`{param.name}` is `{param.shape}`"
    note = Note(f"the tile is made from axis `{tile.dim}` here", tile.loc)
    call.fail(
        "TL141", node, f"`{param.name}` has no axis `{tile.dim}`", why, "name the tensor that the tile lies in", (note,)
    )


def _bounds(
    call: Call,
    what: str,
    param: Param,
    axis: int | None,
    var: str | None,
    wish: str,
    rank: int = 0,
    positional: bool = True,
) -> Value:
    key = (what, param.name, axis, var)
    if call.target is None and key in call.state.bounds:
        return _named(call.state.bounds[key], rank=rank, positional=positional)
    name = call.result(wish)
    call.state.ops.append(Bounds(name=name, what=what, param=param.name, axis=axis, var=var, loc=call.loc))
    if call.target is None:
        call.state.bounds[key] = name
    value = _named(name, rank=rank, positional=positional)
    return value if call.state.bound_once(name) else without_formula(value)


def _axis_word(param: Param, axis: Axis) -> str:
    return axis.name if axis.name.isidentifier() else param.name


def _size(call: Call, t: ast.expr, axis: ast.expr) -> Value:
    param = call.param(t)
    at, found = call.axis(param, axis)
    return size_of(call, param, at, found)


def size_of(call: Call, param: Param, at: int, axis: Axis) -> Value:
    """The size of an axis, as a value."""
    return _bounds(call, "size", param, at, None, f"{_axis_word(param, axis)}_size")


def _tile_shape(call: Call, t: ast.expr) -> Value:
    param = call.param(t)
    domain = call.state.domain
    if domain is None or domain.param != param.name:
        why = "a block has the shape of the tile that the program runs for"
        hint = f"write `tl.tile_shape({domain.param})`" if domain else "call `tl.tile_id` first"
        call.fail("TL132", t, f"`tl.tile_shape` of `{param.name}`, whose tiles this program is not for", why, hint)
    name = call.result(f"{param.name}_shape")
    call.state.ops.append(Bounds(name=name, what="shape", param=param.name, loc=call.loc))
    tiled = sum(not a.unit for a in param.shape.axes)
    return _named(name, length=tiled if param.shape.rest is None else UNKNOWN)


# --------------------------------------------------------------------------------------------------------- tile_id and tiles
def _tile_id(call: Call, t: ast.expr) -> Param:
    return call.param(t)


@dataclass(frozen=True, slots=True)
class Walk:
    """`tl.tiles(param, axis, ...)`, evaluated before the loop."""

    param: Param
    at: int
    axis: Axis
    start: Value | None
    stop: Value | None
    part: tuple[Value, Value] | None

    @property
    def positional(self) -> bool:
        """The number of iterations does not depend on data."""
        values = [v for v in (self.start, self.stop, *(self.part or ())) if v is not None]
        return all(v.positional for v in values) and not _by_table(self.axis)


def _tiles(
    call: Call, t: ast.expr, axis: Node = None, start: Node = None, stop: Node = None, part: Node = None
) -> Walk:
    param = call.param(t)
    at, found = call.axis(param, axis)
    first, last = (_one(call, param, at, found, n, w) for n, w in ((start, "start"), (stop, "stop")))
    return Walk(param, at, found, first, last, None if part is None else _part(call, part))


def _limit(call: Call, param: Param, at: int, axis: Axis, node: Node, what: str) -> Value | None:
    """Where positions begin or stop. `None` in one arm of a choice means the end of the axis, as `None` alone does."""
    if node is None or constant_of(node) is None:
        return None
    if isinstance(node, ast.IfExp) and None in (constant_of(node.body), constant_of(node.orelse)):
        end = ast.Constant(0) if what == "start" else ast.Name(_kept(call, size_of(_unassigned(call), param, at, axis)))
        arms = [end if constant_of(arm) is None else arm for arm in (node.body, node.orelse)]
        node = ast.copy_location(ast.IfExp(node.test, *arms), node)
    return call.state.lower(node)


def _one(call: Call, param: Param, at: int, axis: Axis, node: Node, what: str) -> Value | None:
    """A limit of a walk."""
    value = _limit(call, param, at, axis, node, what)
    if node is not None and value is not None and value.rank != 0:
        call.fail(
            "TL142",
            node,
            f"the {what} of `tl.tiles` is a block of values",
            "it is one position",
            "reduce it to one value",
        )
    return value


def _unassigned(call: Call) -> Call:
    return Call(call.state, call.node, call.name, None)


def _kept(call: Call, value: Value) -> str:
    """Binds a generated name, so that an expression may contain it."""
    name = value.names[0]
    call.state.env[name] = root(name, call.loc)
    return name


def _part(call: Call, node: ast.expr) -> tuple[Value, Value]:
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == 2:
        which, parts = (call.state.lower(e) for e in node.elts)
        return which, parts
    call.fail(
        "TL130", node, f"`part` is `{ast.unparse(node)}`", "it is which part, of how many", "write `part=(c, parts)`"
    )


PRIMITIVES: Mapping[str, Word] = MappingProxyType(
    {
        "producer_tile_notify": Word("effect", _producer_tile_notify),
        "consumer_tile_wait": Word("effect", _consumer_tile_wait),
        "peer_tile_notify": Word("effect", _peer_tile_notify),
        "peer_tile_wait": Word("effect", _peer_tile_wait),
        "rank_wait": Word("effect", _rank_wait),
        "rank_copy_data": Word("effect", _rank_copy_data),
        "rank_notify": Word("effect", _rank_notify),
        "tile_push_data": Word("effect", _tile_push_data),
        "tile_pull_data": Word("effect", _tile_pull_data),
        "tile_store": Word("effect", _tile_store),
        "tile_load": Word("value", _tile_load),
        "tile_range": Word("value", _tile_range),
        "tile_mask": Word("value", _tile_mask),
        "tile_begin": Word("value", _tile_begin),
        "tile_end": Word("value", _tile_end),
        "tile_shape": Word("value", _tile_shape),
        "segment": Word("value", _segment),
        "size": Word("value", _size),
        "rank_of": Word("value", _rank_of),
        "tile_id": Word("domain", _tile_id),
        "tiles": Word("loop", _tiles),
        **raw.WORDS,
    }
)

VOCABULARY = frozenset(PRIMITIVES)


# ------------------------------------------------------------------------------------------------------------------- calling
def value_of(state: Lowering, node: ast.Call, name: str, target: str | None) -> Value:
    """The value of a primitive inside an expression, or assigned to `target`."""
    word = PRIMITIVES[name]
    if word.kind == "value":
        return invoke(state, node, name, target)
    places = {
        "effect": (f"`tl.{name}` has no value", "write it on a line of its own"),
        "domain": ("`tl.tile_id` is assigned to names", "write `m, n = tl.tile_id(...)` on a line of its own"),
        "loop": ("`tl.tiles` belongs in a `for`", "write `for k in tl.tiles(...)`"),
    }
    why, hint = places[word.kind]
    state.fail("TL131", node, f"`tl.{name}` inside an expression", why, hint)


def invoke(state: Lowering, node: ast.Call, name: str, target: str | None = None) -> Any:
    """Lowers a call of a primitive, after its arguments were matched with its parameters."""
    word = PRIMITIVES[name]
    for argument in (
        *(a for a in node.args if isinstance(a, ast.Starred)),
        *(k for k in node.keywords if k.arg is None),
    ):
        why = "a tile program becomes a GPU kernel; it is read, not run"
        state.fail("TL111", argument, "a starred argument in a tile program", why, "write the arguments out")
    try:
        bound = word.signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
    except TypeError as problem:
        told = str(problem).replace("'", "`")
        state.fail("TL130", node, f"`tl.{name}`: {told}", f"it is `tl.{name}{usage(word)}`", "match its parameters")
    # `None` written out is the same as nothing.
    given = {k: v for k, v in bound.arguments.items() if not _left_out(word.signature.parameters[k].default, v)}
    return word.lower(Call(state, node, name, target), **given)


def _left_out(default: object, value: ast.expr) -> bool:
    return default is None and constant_of(value) is None


def usage(word: Word) -> str:
    """The parameters as users write them."""
    shown = [p.name if p.default is p.empty else f"{p.name}=" for p in word.signature.parameters.values()]
    return f"({', '.join(shown)})"
