"""The words that say where tiles lie, and walks over them: from which position to which."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilelink.errors import Note
from tilelink.frontend.indices import tile_alias
from tilelink.frontend.values import UNKNOWN, TileIndex, Value, constant_of, root, without_formula
from tilelink.frontend.words import Call, Node, Word
from tilelink.ir.formula import Sym, binary
from tilelink.ir.program import Bounds, Param
from tilelink.ir.shape import RANK_AXIS, Axis


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
    found = _tile_of(call, tile)
    axis = param.shape.axes[_axis_of(call, param, found, tile)]
    if not by_table(axis):
        why = f"`{param.name}` is `{param.shape}`; segments come from a table, as in `P/start`"
        call.fail("TL152", tile, f"axis `{axis}` has no segments", why, "split the axis by a table in the signature")
    return _of_tile(call, "segment", param, tile)


def _of_tile(call: Call, what: str, param: Param, node: ast.expr, rank: int = 0) -> Value:
    found = _tile_of(call, node)
    at = _axis_of(call, param, found, node)
    return _bounds(call, what, param, at, found.var, f"{found.var}_{what}", rank, not by_table(param.shape.axes[at]))


def _tile_mask(call: Call, t: ast.expr, tile: ast.expr, start: Node = None, stop: Node = None) -> Value:
    param = call.param(t)
    found = _tile_of(call, tile)
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
    positional = all(v.positional for v in given) and not by_table(param.shape.axes[at])
    value = named(name, rank=2, positional=positional)
    return replace(value, formula=binary("!=", Sym(name), 0)) if positional else value


def _tile_of(call: Call, node: ast.expr) -> TileIndex:
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
        return named(call.state.bounds[key], rank=rank, positional=positional)
    name = call.result(wish)
    call.state.ops.append(Bounds(name=name, what=what, param=param.name, axis=axis, var=var, loc=call.loc))
    if call.target is None:
        call.state.bounds[key] = name
    return named(name, rank=rank, positional=positional)


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
    return named(name, length=tiled if param.shape.rest is None else UNKNOWN)


def _acc_dtype(call: Call, t: ast.expr) -> Value:
    param = call.param(t)
    return without_formula(_bounds(call, "acc_dtype", param, None, None, f"{param.name}_acc_dtype"))


def _limit(call: Call, param: Param, at: int, axis: Axis, node: Node, what: str) -> Value | None:
    """Where positions begin or stop. `None` in one arm of a choice means the end of the axis, as `None` alone does."""
    if node is None or constant_of(node) is None:
        return None
    if isinstance(node, ast.IfExp) and None in (constant_of(node.body), constant_of(node.orelse)):
        end = ast.Constant(0) if what == "start" else ast.Name(_kept(call, size_of(_unassigned(call), param, at, axis)))
        arms = [end if constant_of(arm) is None else arm for arm in (node.body, node.orelse)]
        node = ast.copy_location(ast.IfExp(node.test, *arms), node)
    value = call.state.lower(node)
    call.state.as_numbers(node, value)
    return value


def _unassigned(call: Call) -> Call:
    return Call(call.state, call.node, call.name, None)


def _kept(call: Call, value: Value) -> str:
    """Binds a generated name, so that an expression may contain it."""
    name = value.names[0]
    call.state.env[name] = root(name, call.loc)
    return name


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
    def limited(self) -> bool:
        """Whether the program says where it begins or ends."""
        return self.start is not None or self.stop is not None or self.part is not None

    @property
    def positional(self) -> bool:
        """The number of iterations does not depend on data."""
        values = [v for v in (self.start, self.stop, *(self.part or ())) if v is not None]
        return all(v.positional for v in values) and not by_table(self.axis)


def _tiles(
    call: Call, t: ast.expr, axis: Node = None, start: Node = None, stop: Node = None, part: Node = None
) -> Walk:
    param = call.param(t)
    at, found = call.axis(param, axis)
    first, last = (_one(call, param, at, found, n, w) for n, w in ((start, "start"), (stop, "stop")))
    return Walk(param, at, found, first, last, None if part is None else _part(call, part))


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


def _part(call: Call, node: ast.expr) -> tuple[Value, Value]:
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == 2:
        which, parts = (call.state.lower(e) for e in node.elts)
        return which, parts
    call.fail(
        "TL130", node, f"`part` is `{ast.unparse(node)}`", "it is which part, of how many", "write `part=(c, parts)`"
    )


def named(name: str, *, rank: int = 0, positional: bool = True, length: int | None = None) -> Value:
    formula = Sym(name) if positional and rank in (0, 1) and length is None else None
    return Value(ast.Name(name, ast.Load()), (name,), rank, positional, formula, length)


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
