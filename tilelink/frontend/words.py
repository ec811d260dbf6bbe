"""What every primitive's lowering is given: its call, with checked access to parameters, axes and indices.

An index has one entry per axis: a tile, a position or a vector of positions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tilelink.errors import Loc, Note
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import TileIndex, TileTuple, Variable, constant_of, integer_of
from tilelink.frontend.wording import count, meant
from tilelink.ir.formula import Const
from tilelink.ir.program import At, Gather, Index, IndexEntry, OfTile, Op, Param, Whole
from tilelink.ir.shape import RANK_AXIS, Axis, Dim

WHILE_TEST = "the test of a `while`"
Node = ast.expr | None


@dataclass(frozen=True, slots=True)
class Word:
    """`kind`: `value` (an expression), `effect` (a line of its own), `domain` (tile_id), `loop` (tiles)."""

    kind: str
    lower: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a primitive. `target`: the name that its op may have: its value is assigned to that, and nothing else is."""

    state: Lowering
    node: ast.Call
    name: str
    target: str | None

    @property
    def loc(self) -> Loc:
        return self.state.loc(self.node)

    def result(self, wish: str) -> str:
        return self.target or self.state.fresh(wish)

    def add(self, op: Op) -> None:
        self.state.ops.append(op)

    def param(self, node: ast.expr) -> Param:
        if tensor := self.state.tensor(node):
            return tensor
        known = ", ".join(f"`{p}`" for p in self.state.params)
        hint = meant(ast.unparse(node), self.state.params, "name a parameter")
        why = f"the tensors of this program are {known}"
        self.fail("TL132", node, f"`tl.{self.name}` of `{ast.unparse(node)}`, which is no tensor", why, hint)

    def axis(self, param: Param, node: Node) -> tuple[int, Axis]:
        """An axis by its number, 0 by default."""
        axes, number = param.shape.axes, 0 if node is None else integer_of(node)
        if number is None:
            message = f"the axis of `tl.{self.name}` is `{ast.unparse(node or self.node)}`"
            self.fail("TL135", node or self.node, message, "it decides which code is written", "write a number")
        at = number + len(axes) if number < 0 and param.shape.rest is None else number
        if 0 <= at < len(axes):
            return at, axes[at]
        why = f"it is `{param.shape}`" + ("; axes behind `...` have no number" if param.shape.rest is not None else "")
        hint = f"write a number below {len(axes)}" if axes else "name an axis in the signature"
        self.fail("TL133", node or self.node, f"`{param.name}` has no axis {number}", why, hint)

    def fail(
        self, code: str, node: ast.AST | Loc, message: str, why: str, hint: str, notes: tuple[Note, ...] = ()
    ) -> NoReturn:
        self.state.fail(code, node, message, why, hint, notes)

    # ---------------------------------------------------------------------------------------------------------- indices
    def index(self, param: Param, node: Node) -> Index:
        """The index that `node` writes into `param`; axes that it does not mention are whole.

        Raises:
            TilelinkError: TL140 (too many entries), TL141 (another dimension), TL142 (not an index).
        """
        axes = param.shape.axes
        if node is None:
            return tuple(Whole() for _ in axes)
        found = tile_alias(self.state, node)
        if isinstance(found, TileTuple):
            parts = [self.state.env[var] for var in found.vars]
        else:
            parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        if len(parts) > len(axes):
            message = f"{count(len(parts), 'index entry', 'index entries')} for {count(len(axes), 'axis', 'axes')}"
            rest = "; axes behind `...` are not indexed" if param.shape.rest is not None else ""
            hint = f"write at most {count(len(axes), 'entry', 'entries')}"
            self.fail("TL140", node, message, f"`{param.name}` is `{param.shape}`{rest}", hint)
        entries = [self._entry(param, axis, part, node) for axis, part in zip(axes, parts, strict=False)]
        return (*entries, *(Whole() for _ in axes[len(entries) :]))

    def _entry(self, param: Param, axis: Axis, part: object, index: ast.expr) -> IndexEntry:
        """One entry: what is written there, or one of the indices of a tile that is written as one."""
        found: object = part
        if isinstance(part, ast.expr):
            index = part
            found = tile_alias(self.state, part) or (
                self.state.env.get(part.id) if isinstance(part, ast.Name) else None
            )
        if isinstance(found, TileTuple):
            why = f"`{ast.unparse(index)}` stands for {count(len(found.vars), 'index', 'indices')}; here one is written"
            self.fail("TL142", index, "all indices of a tile in the place of one", why, "write one of them")
        if isinstance(found, Param):
            hint = f"load the positions first: `tl.tile_load({found.name}, ...)`"
            why = "an index is a tile, a position or a vector of positions"
            self.fail("TL142", index, f"the tensor `{found.name}` is used as an index", why, hint)
        if isinstance(found, (TileIndex, Variable)) and found.dim is not None:
            # A tile, or a position that was made from an axis: the axes must be the same dimension.
            computed = isinstance(found, Variable) and not isinstance(axis.size, Dim) and found.dim != RANK_AXIS
            if found.dim != axis.name and not computed:
                why = f"an index made from axis `{found.dim}` means nothing on axis `{axis}` of `{param.name}`"
                hint = f"use an index of `{axis.name}`, or give the axes one name in the signature"
                note = Note(f"the index is made from axis `{found.dim}` here", found.loc)
                self.fail("TL141", index, f"an index of `{found.dim}` on axis `{axis}`", why, hint, (note,))
            if isinstance(found, TileIndex):
                return OfTile(found.var)
            return At(found.value.expr(), found.value.coordinate)
        return self._position(param, axis, index)

    def _position(self, param: Param, axis: Axis, node: ast.expr) -> IndexEntry:
        """A position that is computed, or a vector of them."""
        value = self.state.lower(node)
        literal = constant_of(value.node)
        if value.length is not None or literal is None or isinstance(literal, (str, float)):
            why = "an index is a tile, a position or a vector of positions, one for each axis"
            whole = f"`tl.tile_range({param.name}, axis={param.shape.axes.index(axis)})`"
            hint = f"for a whole axis write {whole}, or leave the last entries out"
            self.fail("TL142", node, f"`{ast.unparse(node)}` is not an index", why, hint)
        if value.coordinate and axis.name != RANK_AXIS:
            why = f"an R coordinate means nothing on axis `{axis}` of `{param.name}`"
            self.fail("TL141", node, f"an R coordinate on axis `{axis}`", why, "name the axis R in the signature")
        if isinstance(value.formula, Const) and isinstance(value.formula.value, int) and value.formula.value < 0:
            last = f"tl.size({param.name}, {param.shape.axes.index(axis)}) - {-value.formula.value}"
            why, hint = "positions count from the first, 0; nothing lies before it", f"from the end, write `{last}`"
            self.fail("TL142", node, f"`{ast.unparse(node)}` is no position of axis `{axis}`", why, hint)
        if value.rank == 0:
            return At(value.expr(), value.coordinate)
        return Gather(value.expr())


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

    def literal(written: ast.expr) -> int:
        if (value := integer_of(written)) is None:
            why = "indices are told apart when compiling"
            state.fail("TL135", written, f"`{ast.unparse(written)}` chooses an index", why, "write a number")
        return value

    if isinstance(node.slice, ast.Slice):
        bounds = (node.slice.lower, node.slice.upper, node.slice.step)
        return TileTuple(tile.vars[slice(*(None if b is None else literal(b) for b in bounds))], tile.loc)
    index = literal(node.slice)
    if not -len(tile.vars) <= index < len(tile.vars):
        why = f"`{node.value.id}` stands for {count(len(tile.vars), 'index', 'indices')}"
        state.fail("TL142", node, f"`{ast.unparse(node)}` is none of its indices", why, "count from 0")
    found = state.env[tile.vars[index]]
    assert isinstance(found, (TileIndex, Variable))
    return found
