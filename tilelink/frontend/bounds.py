"""The words that say where tiles lie, and walks over them: from which position to which."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tilelink.errors import Note
from tilelink.frontend.values import UNKNOWN, TileIndex, Value, constant_of, named, root
from tilelink.frontend.words import Call, Node, Word, tile_alias
from tilelink.ir.formula import Sym, binary
from tilelink.ir.program import Bounds, Expr, Param, Tiles
from tilelink.ir.shape import RANK_AXIS, Axis


def _tile_range(call: Call, t: ast.expr, tile: Node = None, axis: Node = None) -> Value:
    param = call.param(t)
    if tile is None:
        at, found = call.axis(param, axis)
        return _bounds(call, "range", param, at, None, f"{_axis_word(param, found)}_range", rank=1)
    return _of_tile(call, "range", param, tile, rank=1)


def _tile_begin(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    return _of_tile(call, "begin", call.param(t), tile)


def _tile_end(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    return _of_tile(call, "end", call.param(t), tile)


def _segment(call: Call, t: ast.expr, tile: ast.expr) -> Value:
    param = call.param(t)
    axis = param.shape.axes[_tile_of(call, param, tile)[1]]
    if not by_table(axis):
        why = f"`{param.name}` is `{param.shape}`; segments come from a table, as in `P/start`"
        call.fail("TL152", tile, f"axis `{axis}` has no segments", why, "split the axis by a table in the signature")
    return _of_tile(call, "segment", param, tile)


def _of_tile(call: Call, what: str, param: Param, node: ast.expr, rank: int = 0) -> Value:
    found, at = _tile_of(call, param, node)
    return _bounds(call, what, param, at, found.var, f"{found.var}_{what}", rank, not by_table(param.shape.axes[at]))


def _tile_mask(call: Call, t: ast.expr, tile: ast.expr, start: Node = None, stop: Node = None) -> Value:
    param = call.param(t)
    found, at = _tile_of(call, param, tile)
    limits: list[Value | None] = []
    for node, what in ((start, "start"), (stop, "stop")):
        limits.append(limit := _limit(call, param, at, node, what))
        if node is not None and limit is not None and limit.rank not in (0, 1, UNKNOWN):
            message = f"the {what} of `tl.tile_mask` is a block of {limit.rank} dimensions"
            call.fail("TL142", node, message, "it is one position, or one for each row", "give a vector")
    name = call.result(f"{found.var}_mask")
    first, last = (v.expr() if v is not None else None for v in limits)
    call.add(
        Bounds(name=name, what="mask", param=param.name, axis=at, var=found.var, start=first, stop=last, loc=call.loc)
    )
    positional = all(v.positional for v in limits if v is not None) and not by_table(param.shape.axes[at])
    return named(name, rank=2, positional=positional, formula=binary("!=", Sym(name), 0) if positional else None)


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


def _bounds(
    call: Call, what: str, param: Param, axis: int | None, var: str | None, wish: str, rank: int = 0,
    positional: bool = True,
) -> Value:  # fmt: skip
    """A bound by its name. One that is not assigned to a name of the program is asked for once."""
    key = (what, param.name, axis, var)
    name = call.state.bounds.get(key) if call.target is None else None
    if name is None:
        name = call.result(wish)
        call.add(Bounds(name=name, what=what, param=param.name, axis=axis, var=var, loc=call.loc))
        if call.target is None:
            call.state.bounds[key] = name
    return named(name, rank=rank, positional=positional, formula=Sym(name) if positional else None)


def _axis_word(param: Param, axis: Axis) -> str:
    return axis.name if axis.name.isidentifier() else param.name


def _size(call: Call, t: ast.expr, axis: ast.expr) -> Value:
    param = call.param(t)
    return _size_of(call, param, call.axis(param, axis)[0])


def _size_of(call: Call, param: Param, at: int) -> Value:
    return _bounds(call, "size", param, at, None, f"{_axis_word(param, param.shape.axes[at])}_size")


def _tile_shape(call: Call, t: ast.expr) -> Value:
    param = call.param(t)
    domain = call.state.domain
    if domain is None or domain.param != param.name:
        why = "a block has the shape of the tile that the program runs for"
        hint = f"write `tl.tile_shape({domain.param})`" if domain else "call `tl.tile_id` first"
        call.fail("TL132", t, f"`tl.tile_shape` of `{param.name}`, whose tiles this program is not for", why, hint)
    name = call.result(f"{param.name}_shape")
    call.add(Bounds(name=name, what="shape", param=param.name, loc=call.loc))
    tiled = sum(not a.unit for a in param.shape.axes)
    return named(name, length=tiled if param.shape.rest is None else UNKNOWN)


def _acc_dtype(call: Call, t: ast.expr) -> Value:
    param = call.param(t)
    return replace(_bounds(call, "acc_dtype", param, None, None, f"{param.name}_acc_dtype"), formula=None)


def _limit(call: Call, param: Param, at: int, node: Node, what: str) -> Value | None:
    """Where positions begin or stop. `None` in one arm of a choice means the end of the axis, as `None` alone does."""
    if node is None or constant_of(node) is None:
        return None
    if isinstance(node, ast.IfExp) and None in (constant_of(node.body), constant_of(node.orelse)):
        end: ast.expr = ast.Constant(0)
        if what == "stop":
            name = _size_of(replace(call, target=None), param, at).names[0]
            call.state.env[name] = root(name, call.loc)  # so that an expression may contain it
            end = ast.Name(name)
        arms = [end if constant_of(arm) is None else arm for arm in (node.body, node.orelse)]
        node = ast.copy_location(ast.IfExp(node.test, *arms), node)
    value = call.state.lower(node)
    call.state.as_numbers(node, value)
    return value


def _tiles(
    call: Call, t: ast.expr, axis: Node = None, start: Node = None, stop: Node = None, part: Node = None
) -> Tiles:
    """A walk without its variable and its body, which the loop gives."""
    param = call.param(t)
    at, _ = call.axis(param, axis)
    limits: list[Expr | None] = []
    for node, what in ((start, "start"), (stop, "stop")):
        limit = _limit(call, param, at, node, what)
        if node is not None and limit is not None and limit.rank != 0:
            message = f"the {what} of `tl.tiles` is a block of values"
            call.fail("TL142", node, message, "it is one position", "reduce it to one value")
        limits.append(None if limit is None else limit.expr())
    which = None
    if part is not None:
        if not (isinstance(part, (ast.Tuple, ast.List)) and len(part.elts) == 2):
            why, hint = "it is which part, of how many", "write `part=(c, parts)`"
            call.fail("TL130", part, f"`part` is `{ast.unparse(part)}`", why, hint)
        which = call.state.lower(part.elts[0]).expr(), call.state.lower(part.elts[1]).expr()
    return Tiles(var="", param=param.name, axis=at, body=(), start=limits[0], stop=limits[1], part=which, loc=call.loc)


def by_table(axis: Axis) -> bool:
    """Split at run time: where its tiles lie is data."""
    return axis.split not in (None, RANK_AXIS)


WORDS: Mapping[str, Word] = MappingProxyType(
    {
        "tile_range": Word("value", _tile_range),
        "tile_mask": Word("value", _tile_mask),
        "tile_begin": Word("value", _tile_begin),
        "tile_end": Word("value", _tile_end),
        "tile_shape": Word("value", _tile_shape),
        "acc_dtype": Word("value", _acc_dtype),
        "segment": Word("value", _segment),
        "size": Word("value", _size),
        "tiles": Word("loop", _tiles),
    }
)
