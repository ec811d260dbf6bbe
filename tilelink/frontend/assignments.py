"""Assignments: a name is bound to a value, to the result of a primitive, or to the tile that the program is for."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import NoReturn

from tilelink.errors import Note
from tilelink.frontend import primitives
from tilelink.frontend.expressions import unsupported
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import TileIndex, TileTuple, Value, Variable, joined_names, root
from tilelink.frontend.wording import count
from tilelink.frontend.words import tile_alias
from tilelink.ir.program import Expr, Let, Param, Tile
from tilelink.ir.shape import RANK_AXIS


def assign(state: Lowering, node: ast.Assign) -> None:
    """`a = value`, `a, b = value`, `a = b = value`."""
    if len(node.targets) == 1:
        _to_target(state, node.targets[0], node.value, node)
        return
    first = next((t for t in node.targets if isinstance(t, ast.Name)), None)
    if first is None:
        state.fail("TL111", node, "several targets in a tile program", "none of them is a name", "assign line by line")
    _to_target(state, first, node.value, node)
    for other in (t for t in node.targets if t is not first):
        _to_target(state, other, ast.copy_location(ast.Name(first.id, ast.Load()), first), node)


def annotated(state: Lowering, node: ast.AnnAssign) -> None:
    """`a: int = value`."""
    if node.value is None:
        why = "a name is bound by what is assigned to it"
        state.fail("TL111", node, "an annotation without a value", why, "assign a value")
    _to_target(state, node.target, node.value, node)


def augmented(state: Lowering, node: ast.AugAssign) -> None:
    """`a += value`, written out."""
    target = node.target
    if not isinstance(target, ast.Name):
        _bad_target(state, target)
    read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
    _to_target(state, target, ast.copy_location(ast.BinOp(read, node.op, node.value), node), node)


def _to_target(state: Lowering, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
    if isinstance(target, ast.Name):
        _to_name(state, target, value, node)
    elif isinstance(target, (ast.Tuple, ast.List)):
        names = [e if isinstance(e, ast.Name) else _bad_target(state, e) for e in target.elts]
        _to_names(state, names, value, node)
    else:
        _bad_target(state, target)


def _bad_target(state: Lowering, target: ast.expr) -> NoReturn:
    if isinstance(target, ast.Starred):
        unsupported(state, target)
    hint = "write `tl.tile_store(...)` to change a tensor; assign blocks to plain names"
    state.fail("TL111", target, f"assignment to `{ast.unparse(target)}` in a tile program", "blocks are values", hint)


def _to_name(state: Lowering, target: ast.Name, value: ast.expr, node: ast.stmt) -> None:
    state.check_target(target)
    if isinstance(value, ast.Call) and (name := state.primitive(value)) is not None:
        if primitives.PRIMITIVES[name].kind == "domain":
            _domain_to_name(state, target, primitives.invoke(state, value, name), value)
            return
        # The op has the name itself, unless other lines bind that too.
        once = state.bound_once(target.id)
        lowered = primitives.value_of(state, value, name, target.id if once else None)
        _bind_value(state, target, lowered, name=lowered.text)
        if not once:
            state.keep(target.id, state.loc(value))
    elif (alias := tile_alias(state, value)) is not None:
        state.bind(target.id, alias, target)
    else:
        lowered = state.lower(value)
        state.ops.append(Let(target=(state.said(target.id),), value=lowered.expr(), loc=state.loc(node)))
        _bind_value(state, target, lowered)


def _to_names(state: Lowering, names: list[ast.Name], value: ast.expr, node: ast.stmt) -> None:
    for name in names:
        state.check_target(name)
    called = state.primitive(value)
    if isinstance(value, ast.Call) and called is not None and primitives.PRIMITIVES[called].kind == "domain":
        _domain_to_names(state, names, primitives.invoke(state, value, called), value)
        return
    alias = tile_alias(state, value)
    if isinstance(alias, TileTuple):
        _fits(state, node, len(names), len(alias.vars), f"`{ast.unparse(value)}`")
        for name, var in zip(names, alias.vars, strict=True):
            state.bind(name.id, state.env[var], name)
        return
    if isinstance(value, (ast.Tuple, ast.List)):
        _fits(state, node, len(names), len(value.elts), "the right side")
        if _independent(names, value.elts):
            for name, element in zip(names, value.elts, strict=True):
                _to_name(state, name, element, node)
            return
        values = [state.lower(e) for e in value.elts]
        vector, positional = any(v.rank != 0 for v in values), all(v.positional for v in values)
        # Without the parentheses: `a, b = b, a` is how a person writes it.
        expr = Expr(", ".join(v.text for v in values), joined_names(v.names for v in values), vector, positional)
    else:
        made = state.lower(value)
        if made.length is not None and made.length >= 0:
            _fits(state, node, len(names), made.length, f"`{ast.unparse(value)}`")
        values, expr = [replace(made, length=None)] * len(names), made.expr()
    state.ops.append(Let(target=tuple(state.said(n.id) for n in names), value=expr, loc=state.loc(node)))
    static = [v.rank == 0 and state.static(v) for v in values]  # before the names are bound: they may be among theirs
    for name, one, known in zip(names, values, static, strict=True):
        _bind_value(state, name, one, static=known)


def _fits(state: Lowering, node: ast.stmt, names: int, values: int, what: str) -> None:
    if names != values:
        message = f"{names} names for {values} values"
        state.fail("TL151", node, message, f"{what} has {values}", "write one name for each")


def _independent(names: list[ast.Name], values: list[ast.expr]) -> bool:
    """No value needs a name that is assigned before it: the assignments may follow one another."""
    earlier: set[str] = set()
    for name, value in zip(names, values, strict=True):
        if earlier & {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}:
            return False
        earlier.add(name.id)
    return len(earlier) == len(names)


def _bind_value(
    state: Lowering, target: ast.Name, value: Value, *, static: bool | None = None, name: str | None = None
) -> None:
    """Gives a name the value that an op has just assigned to it. `static`: see `Variable`; None: by what names are now.
    `name`: what the ops call it, if they do not call it as lines that assign it do."""
    known = value.rank == 0 and state.static(value) if static is None else static
    called = value.called(state.said(target.id) if name is None else name)
    state.bind(target.id, Variable(called, state.loc(target), static=known), target)


# ----------------------------------------------------------------------------------------------------------- the domain
def _domain_to_name(state: Lowering, target: ast.Name, param: Param, node: ast.Call) -> None:
    axes = param.shape.axes
    if len(axes) == 1:
        _bind_domain(state, param, [None if target.id == "_" else target.id], node, target)
        return
    names = [state.fresh(f"{target.id}_{a.name.lower()}") for a in axes]
    _bind_domain(state, param, list(names), node, target)
    state.bind(target.id, TileTuple(tuple(names), state.loc(node)), target)


def _domain_to_names(state: Lowering, names: list[ast.Name], param: Param, node: ast.Call) -> None:
    axes = param.shape.axes
    if len(names) != len(axes):
        why = f"`{param.name}` is `{param.shape}`"
        why += "; axes behind `...` have no index" if param.shape.rest is not None else ""
        hint = f"write {len(axes)}; `_` for one that you do not need"
        state.fail("TL151", node, f"{len(names)} names for {count(len(axes), 'axis', 'axes')}", why, hint)
    written = [None if n.id == "_" else n.id for n in names]
    kept = [n for n in written if n]
    if len(set(kept)) < len(kept):
        why = "every axis has an index of its own"
        state.fail("TL151", node, "one name for two axes", why, "use different names")
    _bind_domain(state, param, written, node, names[0])


def _bind_domain(state: Lowering, param: Param, names: list[str | None], node: ast.Call, target: ast.Name) -> None:
    if state.domain is not None:
        why, note = "a program runs for the tiles of one tensor", Note("the first is here", state.domain.loc)
        state.fail("TL150", node, "a second `tl.tile_id`", why, "walk other tensors with `tl.tiles`", (note,))
    if state.nested:
        why = "every run of the program is for one tile"
        state.fail("TL150", node, "`tl.tile_id` in a branch or a loop", why, "write it at the top of the program")
    if not param.shape.axes:
        why = f"`{param.name}` is `{param.shape}`; axes behind `...` have no index"
        state.fail("TL151", node, "no axis to take a tile of", why, "name an axis in the signature")
    state.domain = Tile(names=tuple(names), param=param.name, loc=state.loc(node))
    state.ops.append(state.domain)
    for number, name in enumerate(names):
        if name is not None:
            bind_index(state, name, param, number, target, name)


def bind_index(state: Lowering, name: str, param: Param, number: int, target: ast.Name, var: str) -> None:
    """A name for an index of an axis: a tile, or a position if the axis is walked singly. `var`: what the ops call it."""
    axis, loc = param.shape.axes[number], state.loc(target)
    if axis.unit:
        found = root(var, loc, dim=axis.name, coordinate=axis.name == RANK_AXIS)
    else:
        found = TileIndex(var, axis.name, param.name, number, loc)
    state.bind(name, found, target)
