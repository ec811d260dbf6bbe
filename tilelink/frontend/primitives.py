"""The words that tilelink adds to Triton's language: a table from name to lowering function.

A new primitive is one entry here (and its stub in `tilelink.language`). The parameters of a lowering function behind
`call` are those of the word itself; they arrive as syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilelink.frontend import bounds, raw
from tilelink.frontend.bounds import by_table
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import Value, constant_of, named
from tilelink.frontend.wording import READ_NOT_RUN
from tilelink.frontend.words import WHILE_TEST, Call, Node, Word, rank_of_block
from tilelink.ir.formula import Sym
from tilelink.ir.program import At, Gather, Holder, Load, Move, Notify, OfTile, Param, Store, Wait


# -------------------------------------------------------------------------------------------------------- the nine primitives
def _producer_tile_notify(call: Call, t: ast.expr, tile: Node = None, mode: Node = None) -> None:
    param = call.param(t)
    word = None if mode is None else constant_of(mode)
    if mode is not None and word not in ("p2p", "broadcast"):
        why, hint = "a mode asserts who hears the notify: one rank or all", 'write "p2p" or "broadcast"'
        call.fail("TL135", mode, f"the mode `{ast.unparse(mode)}`", why, hint)
    assert word is None or isinstance(word, str)
    call.add(Notify(param=param.name, index=call.whole_or_index(param, tile), mode=word, loc=call.loc))


def _consumer_tile_wait(call: Call, t: ast.expr, tile: Node = None) -> None:
    param = call.param(t)
    call.add(Wait(param=param.name, index=call.whole_or_index(param, tile), loc=call.loc))


def _peer_tile_notify(call: Call, t: ast.expr, tile: ast.expr, rank: ast.expr) -> None:
    param = call.param(t)
    call.add(Notify(param=param.name, index=call.index(param, tile), peer=_peer(call, rank), loc=call.loc))


def _peer_tile_wait(call: Call, t: ast.expr, tile: ast.expr, rank: ast.expr) -> None:
    param = call.param(t)
    call.add(Wait(param=param.name, index=call.index(param, tile), peer=_peer(call, rank), loc=call.loc))


def _peer(call: Call, node: ast.expr) -> At:
    value = call.state.lower(node)
    if not value.coordinate or value.rank != 0:
        why = "a program names a peer by its place on an axis `R`, never by its number"
        hint = "use an index of an axis `R`, `tl.rank_of(...)`, or one of them plus or minus a number"
        call.fail("TL144", node, f"`{ast.unparse(node)}` is not an R coordinate", why, hint)
    return At(value.expr(), coordinate=True)


def _rank_wait(call: Call, t: ast.expr, tile: Node = None) -> None:
    param = call.param(t)
    call.add(Wait(param=param.name, index=call.whole_or_index(param, tile), by="stream", loc=call.loc))


def _rank_copy_data(call: Call, t: ast.expr, tile: ast.expr, source: ast.expr) -> None:
    _move(call, t, tile, source, "stream")


def _rank_notify(call: Call, t: ast.expr, tile: Node = None) -> None:
    param = call.param(t)
    call.add(Notify(param=param.name, index=call.whole_or_index(param, tile), by="stream", loc=call.loc))


def _tile_push_data(call: Call, t: ast.expr, tile: ast.expr, data: ast.expr, mask: Node = None) -> None:
    _store(call, t, tile, data, mask, "holders")


def _tile_pull_data(call: Call, t: ast.expr, tile: ast.expr, source: ast.expr) -> None:
    _move(call, t, tile, source, "worker")


def _move(call: Call, t: ast.expr, tile: ast.expr, source: ast.expr, by: str) -> None:
    param, origin = call.param(t), call.param(source)
    index = call.index(param, tile)
    call.index(origin, tile)  # the same tile must make sense in both
    call.add(Move(param=param.name, source=origin.name, index=index, by=by, loc=call.loc))


def _store(call: Call, t: ast.expr, tile: ast.expr, data: ast.expr, mask: Node, to: str) -> None:
    param = call.param(t)
    index, value, where = call.index(param, tile), call.state.lower(data).expr(), call.expr(mask)
    call.add(Store(param=param.name, index=index, value=value, mask=where, to=to, loc=call.loc))


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
    index, filler = call.index(param, tile), call.expr(other)
    name = call.result(f"{param.name}_tile")
    call.add(Load(name=name, param=param.name, index=index, other=filler, loc=call.loc))
    return named(name, rank=rank_of_block(param, index), positional=False)


def _rank_of(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    param = call.param(t)
    if call.state.conditional == WHILE_TEST:
        why, hint = "it would be computed once, before the loop", "assign it before the loop, and again in its body"
        call.fail("TL134", call.node, f"`tl.rank_of` in {WHILE_TEST}", why, hint)
    index = call.index(param, tile)
    if any(isinstance(e, Gather) for e in index):
        why = "a vector of positions may lie on several ranks"
        call.fail("TL142", tile, "`tl.rank_of` of a vector", why, "ask for one tile or one position")
    name = call.result(f"{param.name}_owner")
    call.add(Holder(name=name, param=param.name, index=index, loc=call.loc))
    by_data = (isinstance(e, At) and not e.expr.positional for e in index)
    tables = (isinstance(e, OfTile) and by_table(a) for a, e in zip(param.shape.axes, index, strict=True))
    positional = not any(by_data) and not any(tables)
    return named(name, positional=positional, formula=Sym(name) if positional else None, coordinate=True)


def _tile_id(call: Call, t: ast.expr) -> Param:
    return call.param(t)


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
        "rank_of": Word("value", _rank_of),
        "tile_id": Word("domain", _tile_id),
        **bounds.WORDS,
        **raw.WORDS,
    }
)

VOCABULARY = frozenset(PRIMITIVES)


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
    word = PRIMITIVES[name]
    starred = (a for a in node.args if isinstance(a, ast.Starred))
    for argument in (*starred, *(k for k in node.keywords if k.arg is None)):
        state.fail("TL111", argument, "a starred argument in a tile program", READ_NOT_RUN, "write the arguments out")
    parameters = word.signature.parameters
    try:
        bound = word.signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
    except TypeError as problem:
        told = str(problem).replace("'", "`")
        shown = ", ".join(p.name if p.default is p.empty else f"{p.name}=" for p in parameters.values())
        state.fail("TL130", node, f"`tl.{name}`: {told}", f"it is `tl.{name}({shown})`", "match its parameters")
    # `None` written out is the same as nothing.
    left_out = {k for k, v in bound.arguments.items() if parameters[k].default is None and constant_of(v) is None}
    return word.lower(
        Call(state, node, name, target), **{k: v for k, v in bound.arguments.items() if k not in left_out}
    )
