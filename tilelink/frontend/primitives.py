"""The words that tilelink adds to Triton's language: a table from name to lowering function.

A new primitive is one entry here, and its declaration in `tilelink.language`, whose parameters those of a lowering function
behind `call` are; they arrive as syntax, but for the tensors `t` and `source`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter
from typing import Any

from tilelink.errors import Note
from tilelink.frontend import raw
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.scope import VOCABULARY
from tilelink.frontend.values import UNKNOWN, TileIndex, Value, constant_of, named, root
from tilelink.frontend.wording import READ_NOT_RUN
from tilelink.frontend.words import WHILE_TEST, Call, Node, Word, tile_alias
from tilelink.ir.formula import Sym, binary
from tilelink.ir.program import (
    At,
    Bounds,
    Expr,
    Gather,
    Holder,
    Load,
    Move,
    Notify,
    OfTile,
    Param,
    Store,
    Tiles,
    Wait,
    Whole,
)


# --------------------------------------------------------------------------------------------------------- the nine primitives
def _wait(call: Call, t: Param, tile: Node = None) -> None:
    index = None if tile is None else call.index(t, tile)
    call.add(Wait(param=t.name, index=index, by=_by(call), loc=call.loc))


def _notify(call: Call, t: Param, tile: Node = None, mode: Node = None) -> None:
    word = None if mode is None else constant_of(mode)
    if mode is not None and word not in ("p2p", "broadcast"):
        why, hint = "a mode asserts who hears the notify: one rank or all", 'write "p2p" or "broadcast"'
        call.fail("TL135", mode, f"the mode `{ast.unparse(mode)}`", why, hint)
    assert word is None or isinstance(word, str)
    index = None if tile is None else call.index(t, tile)
    call.add(Notify(param=t.name, index=index, mode=word, by=_by(call), loc=call.loc))


def _rank_notify(call: Call, t: Param, tile: Node = None) -> None:
    _notify(call, t, tile)


def _peer(call: Call, t: Param, tile: ast.expr, rank: ast.expr) -> None:
    index, peer = call.index(t, tile), call.state.lower(rank)
    if not peer.coordinate or peer.rank != 0:
        why = "a program names a peer by its place on an axis `R`, never by its number"
        hint = "use an index of an axis `R`, `tl.rank_of(...)`, or one of them plus or minus a number"
        call.fail("TL144", rank, f"`{ast.unparse(rank)}` is not an R coordinate", why, hint)
    kind = Wait if call.name == "peer_tile_wait" else Notify
    call.add(kind(param=t.name, index=index, peer=At(peer.expr(), coordinate=True), loc=call.loc))


def _move(call: Call, t: Param, tile: ast.expr, source: Param) -> None:
    index = call.index(t, tile)
    call.index(source, tile)  # the same tile must make sense in both
    call.add(Move(param=t.name, source=source.name, index=index, by=_by(call), loc=call.loc))


def _by(call: Call) -> str:
    return "stream" if call.name.startswith("rank_") else "worker"


def _tile_push_data(call: Call, t: Param, tile: ast.expr, data: ast.expr, mask: Node = None) -> None:
    _store(call, t, tile, data, mask, "holders")


def _tile_store(call: Call, t: Param, tile: ast.expr, value: ast.expr, mask: Node = None) -> None:
    _store(call, t, tile, value, mask, "own")


def _store(call: Call, t: Param, tile: ast.expr, data: ast.expr, mask: Node, to: str) -> None:
    index, value = call.index(t, tile), call.state.lower(data)
    where = None if mask is None else call.state.lower(mask).expr()
    call.add(Store(param=t.name, index=index, value=value.expr(), mask=where, to=to, loc=call.loc))


# --------------------------------------------------------------------------------------------------------- loads and holders
def _tile_load(call: Call, t: Param, tile: Node = None, other: Node = None) -> Value:
    if call.state.conditional is not None:
        why = "loads are taken out of expressions; this one would happen once, in any case"
        once = call.state.conditional == WHILE_TEST
        hint = "assign it before the loop, and again in its body" if once else "write an `if` with the load in it"
        call.fail("TL134", call.node, f"a load in {call.state.conditional}", why, hint)
    index, filler = call.index(t, tile), None if other is None else call.state.lower(other).expr()
    name = call.result(f"{t.name}_tile")
    call.add(Load(name=name, param=t.name, index=index, other=filler, loc=call.loc))
    gathered = sum(isinstance(e, Gather) for e in index)  # all of them go along one axis
    rank = sum(isinstance(e, OfTile | Whole) for e in index) + min(gathered, 1)
    return named(name, rank=UNKNOWN if t.shape.rest is not None else rank, positional=False)


def _rank_of(call: Call, t: Param, tile: ast.expr) -> Value:
    if call.state.conditional == WHILE_TEST:
        why, hint = "it would be computed once, before the loop", "assign it before the loop, and again in its body"
        call.fail("TL134", call.node, f"`tl.rank_of` in {WHILE_TEST}", why, hint)
    index = call.index(t, tile)
    if any(isinstance(e, Gather) for e in index):
        why = "a vector of positions may lie on several ranks"
        call.fail("TL142", tile, "`tl.rank_of` of a vector", why, "ask for one tile or one position")
    name = call.result(f"{t.name}_owner")
    call.add(Holder(name=name, param=t.name, index=index, loc=call.loc))
    by_data = (isinstance(e, At) and not e.expr.positional for e in index)
    tables = (isinstance(e, OfTile) and a.by_table for a, e in zip(t.shape.axes, index, strict=True))
    positional = not any(by_data) and not any(tables)
    return named(name, positional=positional, formula=Sym(name) if positional else None, coordinate=True)


def _tile_id(call: Call, t: Param) -> Param:
    return t


# ---------------------------------------------------------------------------------------------------------- where tiles lie
def _tile_range(call: Call, t: Param, tile: Node = None, axis: Node = None) -> Value:
    return _bounds(call, t, call.axis(t, axis)[0]) if tile is None else _edge(call, t, tile)


def _edge(call: Call, t: Param, tile: ast.expr) -> Value:
    found, at = _tile_of(call, t, tile)
    return _bounds(call, t, at, found.var)


def _segment(call: Call, t: Param, tile: ast.expr) -> Value:
    axis = t.shape.axes[_tile_of(call, t, tile)[1]]
    if not axis.by_table:
        why = f"`{t.name}` is `{t.shape}`; segments come from a table, as in `P/start`"
        call.fail("TL152", tile, f"axis `{axis}` has no segments", why, "split the axis by a table in the signature")
    return _edge(call, t, tile)


def _size(call: Call, t: Param, axis: ast.expr) -> Value:
    return _bounds(call, t, call.axis(t, axis)[0])


def _acc_dtype(call: Call, t: Param) -> Value:
    return replace(_bounds(call, t), formula=None)


def _tile_shape(call: Call, t: Param) -> Value:
    domain = call.state.domain
    if domain is None or domain.param != t.name:
        why = "a block has the shape of the tile that the program runs for"
        hint = f"write `tl.tile_shape({domain.param})`" if domain else "call `tl.tile_id` first"
        (node,) = (*call.node.args, *(k.value for k in call.node.keywords))
        call.fail("TL132", node, f"`tl.tile_shape` of `{t.name}`, whose tiles this program is not for", why, hint)
    tiled = [a for a in t.shape.axes if not a.unit]
    return replace(_bounds(call, t), formula=None, length=UNKNOWN if t.shape.rest is not None else len(tiled))


def _tile_mask(call: Call, t: Param, tile: ast.expr, start: Node = None, stop: Node = None) -> Value:
    found, at = _tile_of(call, t, tile)
    limits = _limits(call, t, at, start, stop)
    name = call.result(f"{found.var}_mask")
    first, last = (v and v.expr() for v in limits)
    call.add(Bounds(name=name, what="mask", param=t.name, axis=at, var=found.var, start=first, stop=last, loc=call.loc))
    positional = all(v.positional for v in limits if v is not None) and not t.shape.axes[at].by_table
    formula = binary("!=", Sym(name), 0) if positional else None
    return named(name, rank=2, positional=positional, formula=formula, bit=True)


def _tiles(call: Call, t: Param, axis: Node = None, start: Node = None, stop: Node = None, part: Node = None) -> Tiles:
    """A walk without its variable and its body, which the loop gives."""
    at, _ = call.axis(t, axis)
    first, last = (v and v.expr() for v in _limits(call, t, at, start, stop))
    which: tuple[Expr, Expr] | None = None
    if part is not None:
        if not (isinstance(part, (ast.Tuple, ast.List)) and len(part.elts) == 2):
            why, hint = "it is which part, of how many", "write `part=(c, parts)`"
            call.fail("TL130", part, f"`part` is `{ast.unparse(part)}`", why, hint)
        which = call.state.lower(part.elts[0]).expr(), call.state.lower(part.elts[1]).expr()
    return Tiles(var="", param=t.name, axis=at, body=(), start=first, stop=last, part=which, loc=call.loc)


def _tile_of(call: Call, param: Param, node: ast.expr) -> tuple[TileIndex, int]:
    """The tile that is named, and the axis of `param` that it lies on: the one it was made from, or the first of that
    dimension."""
    found = tile_alias(call.state, node)
    if not isinstance(found, TileIndex):
        why = f"`tl.{call.name}` says where a tile lies; a position lies where it says"
        tiles = [f"`{n}`" for n, b in call.state.env.items() if isinstance(b, TileIndex)]
        hint = f"name a tile: {', '.join(tiles)}" if tiles else "bind a tile with `tl.tile_id` or `tl.tiles`"
        call.fail("TL142", node, f"`{ast.unparse(node)}` is not a tile", why, hint)
    if param.name == found.param:
        return found, found.axis
    for at, axis in enumerate(param.shape.axes):
        if axis.name == found.dim:
            return found, at
    why, hint = f"`{param.name}` is `{param.shape}`", "name the tensor that the tile lies in"
    note = Note(f"the tile is made from axis `{found.dim}` here", found.loc)
    call.fail("TL141", node, f"`{param.name}` has no axis `{found.dim}`", why, hint, (note,))


def _bounds(call: Call, param: Param, axis: int | None = None, var: str | None = None) -> Value:
    """A bound, which is called after its word. One that is not assigned to a name of the program is asked for once."""
    what, on = call.name.removeprefix("tile_"), None if axis is None else param.shape.axes[axis]
    key = (what, param.name, axis, var)
    name = call.state.bounds.get(key) if call.target is None else None
    if name is None:
        name = call.result(f"{var or (on.name if on is not None and on.name.isidentifier() else param.name)}_{what}")
        call.add(Bounds(name=name, what=what, param=param.name, axis=axis, var=var, loc=call.loc))
        if call.target is None:
            call.state.bounds[key] = name
    positional = var is None or on is None or not on.by_table
    return named(name, rank=int(what == "range"), positional=positional, formula=Sym(name) if positional else None)


def _limits(call: Call, param: Param, at: int, *nodes: Node) -> list[Value | None]:
    limits: list[Value | None] = []
    for node, what in zip(nodes, ("start", "stop"), strict=True):
        limits.append(limit := _limit(call, param, at, node, what))
        if node is None or limit is None or limit.rank == 0:
            continue
        message = f"the {what} of `tl.{call.name}` is a block of "
        if call.name == "tiles":
            call.fail("TL142", node, f"{message}values", "it is one position", "reduce it to one value")
        if limit.rank not in (1, UNKNOWN):
            why = "it is one position, or one for each row"
            call.fail("TL142", node, f"{message}{limit.rank} dimensions", why, "give a vector")
    return limits


def _limit(call: Call, param: Param, at: int, node: Node, what: str) -> Value | None:
    """`None` in one arm of a choice means the end of the axis, as `None` alone does."""
    if node is None or constant_of(node) is None:
        return None
    if isinstance(node, ast.IfExp) and None in (constant_of(node.body), constant_of(node.orelse)):
        end: ast.expr = ast.Constant(0)
        if what == "stop":
            name = _bounds(replace(call, name="size", target=None), param, at).names[0]
            call.state.env[name] = root(name, call.loc)  # so that an expression may contain it
            end = ast.Name(name)
        arms = [end if constant_of(arm) is None else arm for arm in (node.body, node.orelse)]
        node = ast.copy_location(ast.IfExp(node.test, *arms), node)
    value = call.state.lower(node)
    call.state.as_numbers(node, value)
    return value


PRIMITIVES: Mapping[str, Word] = {
    "producer_tile_notify": Word("effect", _notify),
    "consumer_tile_wait": Word("effect", _wait),
    "peer_tile_notify": Word("effect", _peer),
    "peer_tile_wait": Word("effect", _peer),
    "rank_wait": Word("effect", _wait),
    "rank_copy_data": Word("effect", _move),
    "rank_notify": Word("effect", _rank_notify),
    "tile_push_data": Word("effect", _tile_push_data),
    "tile_pull_data": Word("effect", _move),
    "tile_store": Word("effect", _tile_store),
    "tile_load": Word("value", _tile_load),
    "rank_of": Word("value", _rank_of),
    "tile_id": Word("domain", _tile_id),
    "tile_range": Word("value", _tile_range),
    "tile_mask": Word("value", _tile_mask),
    "tile_begin": Word("value", _edge),
    "tile_end": Word("value", _edge),
    "tile_shape": Word("value", _tile_shape),
    "acc_dtype": Word("value", _acc_dtype),
    "segment": Word("value", _segment),
    "size": Word("value", _size),
    "tiles": Word("loop", _tiles),
    **raw.WORDS,
}


# ------------------------------------------------------------------------------------------------------------------- calling
def value_of(state: Lowering, node: ast.Call, name: str, target: str | None) -> Value:
    """The value of a primitive inside an expression, or assigned to `target`."""
    kind = PRIMITIVES[name].kind
    if kind == "value":
        return invoke(state, node, name, target)
    why, hint = {
        "effect": (f"`tl.{name}` has no value", "write it on a line of its own"),
        "domain": ("`tl.tile_id` is assigned to names", "write `m, n = tl.tile_id(...)` on a line of its own"),
        "loop": ("`tl.tiles` belongs in a `for`", "write `for k in tl.tiles(...)`"),
    }[kind]
    state.fail("TL131", node, f"`tl.{name}` inside an expression", why, hint)


def invoke(state: Lowering, node: ast.Call, name: str, target: str | None = None) -> Any:
    """Lowers a call of a primitive, after its arguments were matched with its parameters."""
    starred = (a for a in node.args if isinstance(a, ast.Starred))
    for argument in (*starred, *(k for k in node.keywords if k.arg is None)):
        state.fail("TL111", argument, "a starred argument in a tile program", READ_NOT_RUN, "write the arguments out")
    signature = VOCABULARY[name]
    parameters = signature.parameters
    try:
        bound = signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
    except TypeError as problem:
        told = str(problem).replace("'", "`")
        shown = ", ".join(p.name if p.default is p.empty else f"{p.name}=" for p in parameters.values())
        state.fail("TL130", node, f"`tl.{name}`: {told}", f"it is `tl.{name}({shown})`", "match its parameters")
    call = Call(state, node, name, target)
    # `None` written out is the same as nothing.
    given = {
        k: v
        for k, v in bound.arguments.items()
        if parameters[k].default is Parameter.empty or constant_of(v) is not None
    }
    return PRIMITIVES[name].lower(call, **{k: call.param(v) if k in ("t", "source") else v for k, v in given.items()})
