"""Indices: one entry per axis, a tile, a position or a vector of positions."""

from __future__ import annotations

import ast

from tilelink.errors import Loc, Note
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import UNKNOWN, Tensor, TileIndex, TileTuple, Value, Variable, constant_of
from tilelink.frontend.wording import count
from tilelink.ir.program import At, Gather, Index, IndexEntry, OfTile, Param, Whole
from tilelink.ir.shape import RANK_AXIS, Axis, Dim


def build_index(state: Lowering, param: Param, node: ast.expr | None) -> Index:
    """The index that `node` writes into `param`; axes that it does not mention are whole.

    Raises:
        TilelinkError: TL140 (too many entries), TL141 (another dimension), TL142 (not an index).
    """
    axes = param.shape.axes
    parts = [] if node is None else _parts(state, node)
    if node is not None and len(parts) > len(axes):
        why = f"`{param.name}` is `{param.shape}`" + (
            "; axes behind `...` are not indexed" if param.shape.rest is not None else ""
        )
        hint = f"write at most {count(len(axes), 'entry', 'entries')}"
        state.fail(
            "TL140",
            node,
            f"{count(len(parts), 'index entry', 'index entries')} for {count(len(axes), 'axis', 'axes')}",
            why,
            hint,
        )
    entries = [_entry(state, param, axis, part, node) for axis, part in zip(axes, parts, strict=False)]
    return (*entries, *(Whole() for _ in axes[len(entries) :]))


def _parts(state: Lowering, node: ast.expr) -> list[ast.expr | TileIndex | Variable]:
    """What is written for each axis."""
    found = tile_alias(state, node)
    if isinstance(found, TileTuple):
        return [_index_binding(state, v) for v in found.vars]
    if isinstance(node, (ast.Tuple, ast.List)):
        return list(node.elts)
    return [node]


def _index_binding(state: Lowering, var: str) -> TileIndex | Variable:
    binding = state.env[var]
    assert isinstance(binding, (TileIndex, Variable))
    return binding


def tile_alias(state: Lowering, node: ast.expr) -> TileIndex | TileTuple | Variable | None:
    """What an expression stands for if it only says which tile: `m`, `tile`, `tile[0]`, `tile[:2]`."""
    if isinstance(node, ast.Name):
        binding = state.env.get(node.id)
        return binding if isinstance(binding, (TileIndex, TileTuple)) else None
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
        return None
    tile = state.env.get(node.value.id)
    if not isinstance(tile, TileTuple):
        return None
    if isinstance(node.slice, ast.Slice):
        bounds = [_literal(state, b) for b in (node.slice.lower, node.slice.upper, node.slice.step)]
        return TileTuple(tile.vars[slice(*bounds)], tile.loc)
    index = _literal(state, node.slice)
    if index is None or not -len(tile.vars) <= index < len(tile.vars):
        why = f"`{node.value.id}` stands for {count(len(tile.vars), 'index', 'indices')}"
        state.fail("TL142", node, f"`{ast.unparse(node)}` is none of its indices", why, "count from 0")
    return _index_binding(state, tile.vars[index])


def _literal(state: Lowering, node: ast.expr | None) -> int | None:
    if node is None:
        return None
    value = constant_of(node)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    state.fail(
        "TL135",
        node,
        f"`{ast.unparse(node)}` chooses an index",
        "indices are told apart when compiling",
        "write a number",
    )


def _entry(
    state: Lowering, param: Param, axis: Axis, part: ast.expr | TileIndex | Variable, index: ast.expr | None
) -> IndexEntry:
    if isinstance(part, (TileIndex, Variable)):
        return _of_binding(state, param, axis, part, part.loc if index is None else state.loc(index))
    found = tile_alias(state, part) or (state.env.get(part.id) if isinstance(part, ast.Name) else None)
    if isinstance(found, TileTuple):
        why = f"`{ast.unparse(part)}` stands for {count(len(found.vars), 'index', 'indices')}; here one is written"
        state.fail("TL142", part, "all indices of a tile in the place of one", why, "write one of them")
    if isinstance(found, Tensor):
        hint = f"load the positions first: `tl.tile_load({found.param}, ...)`"
        why = "an index is a tile, a position or a vector of positions"
        state.fail("TL142", part, f"the tensor `{found.param}` is used as an index", why, hint)
    if isinstance(found, (TileIndex, Variable)) and (isinstance(found, TileIndex) or found.dim is not None):
        return _of_binding(state, param, axis, found, state.loc(part))
    return _of_value(state, param, axis, part, state.lower(part))


def _of_binding(state: Lowering, param: Param, axis: Axis, found: TileIndex | Variable, at: Loc) -> IndexEntry:
    """A tile, or a position that was made from an axis: the axes must be the same dimension."""
    dim = found.dim
    fits = dim == axis.name or (isinstance(found, Variable) and not isinstance(axis.size, Dim) and dim != RANK_AXIS)
    if not fits and dim is not None:
        _other_dimension(state, param, axis, dim, at, found.loc)
    if isinstance(found, TileIndex):
        return OfTile(found.var)
    return _at(found.value())


def _other_dimension(state: Lowering, param: Param, axis: Axis, dim: str, at: Loc, bound: Loc) -> None:
    why = f"an index made from axis `{dim}` means nothing on axis `{axis}` of `{param.name}`"
    hint = f"use an index of `{axis.name}`, or give the axes one name in the signature"
    note = Note(f"the index is made from axis `{dim}` here", bound)
    state.fail("TL141", at, f"an index of `{dim}` on axis `{axis}`", why, hint, (note,))


def _of_value(state: Lowering, param: Param, axis: Axis, node: ast.expr, value: Value) -> IndexEntry:
    if value.length is not None or constant_of(value.node) is None or isinstance(constant_of(value.node), (str, float)):
        why = "an index is a tile, a position or a vector of positions, one for each axis"
        whole = f"`tl.tile_range({param.name}, axis={param.shape.axes.index(axis)})`"
        hint = f"for a whole axis write {whole}, or leave the last entries out"
        state.fail("TL142", node, f"`{ast.unparse(node)}` is not an index", why, hint)
    if value.coordinate and axis.name != RANK_AXIS:
        why = f"an R coordinate means nothing on axis `{axis}` of `{param.name}`"
        state.fail("TL141", node, f"an R coordinate on axis `{axis}`", why, "name the axis R in the signature")
    return _at(value) if value.rank == 0 else Gather(value.expr())


def _at(value: Value) -> At:
    return At(value.expr(), value.coordinate)


def rank_of_block(param: Param, index: Index) -> int:
    """The dimensions of the block that an index cuts out; vectors of one index go together as one."""
    if param.shape.rest is not None:
        return UNKNOWN
    gathered = any(isinstance(e, Gather) for e in index)
    return sum(isinstance(e, (OfTile, Whole)) for e in index) + gathered
