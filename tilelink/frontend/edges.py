"""What lies past an edge in a block of values: 0, as loads fill it, or what has been made of that.

A block has as many lanes as its tile. A reduction that what lies past an edge would change, such as the maximum of a row of
negative values, is refused; a program says what counts for nothing there by `other=`, or chooses with `tl.where`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import Value, constant_of, integer_of
from tilelink.ir.program import Gather, Index, OfTile, Param, Whole


@dataclass(frozen=True, slots=True)
class Edge:
    """Lanes past the end of an axis of a parameter. `zero`: they hold 0; else what was made of it. `loaded`: nothing has been
    made of what the load filled in."""

    param: str
    dim: str
    zero: bool = True
    loaded: bool = True


FLAT = "flat"
"""Of an axis along which a block holds one value."""
Lanes: TypeAlias = "tuple[Edge | Literal['flat'] | None, ...]"
"""By axis of a block; None, or no axis at all: nothing is known. (How many axes a block has is not always known either.)"""
KEEP_ZERO = frozenset({"abs", "sqrt", "sqrt_rn", "sin", "erf", "floor", "ceil", "to"})
OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.BitOr: "+", ast.BitXor: "+", ast.Mult: "*", ast.BitAnd: "*",
    ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "/", ast.LShift: "/", ast.RShift: "/",
}  # fmt: skip
"""An operator that does to 0 what this one does."""
_COMPUTE: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "max": max, "min": min,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
OF_ZERO = frozenset({"exp", "exp2", "log", "log2", "cos", "rsqrt", "sigmoid"})
"""Functions of each value, which make 0 of 0, and which make something else of it."""
ALONG: Mapping[str, tuple[str, int | None]] = {
    **dict.fromkeys(("sum", "max", "min", "argmax", "argmin"), ("axis", None)),
    "softmax": ("dim", 0),
    "sort": ("dim", -1),
}
"""Reductions, and what else takes the values of an axis together: the parameter that names the axis, and its default."""


def of_load(param: Param, index: Index) -> Lanes:
    """Of a load without `other`. Vectors of positions say themselves what is no element."""
    if param.shape.rest is not None or any(isinstance(e, Gather) for e in index):
        return ()
    kept = [a for a, e in zip(param.shape.axes, index, strict=True) if isinstance(e, OfTile | Whole)]
    full = [isinstance(a.size, int) and a.size.bit_count() == 1 for a in kept]
    return tuple(None if known else Edge(param.name, a.name) for a, known in zip(kept, full, strict=True))


def elementwise(op: str, a: Value, b: Value) -> Lanes:
    """Of `a op b`, broadcast together."""
    axes = max(len(a.lanes), len(b.lanes))
    x, y = _along(a, axes), _along(b, axes)
    if not len(x) == len(y) == axes:
        return ()
    kept = _keeps_zero(op, a, b)
    return tuple(_pair(op, e, f, kept) for e, f in zip(x, y, strict=True))


def _along(value: Value, axes: int) -> Lanes:
    return (FLAT,) * axes if value.rank == 0 else value.lanes or (None,) * axes


def _keeps_zero(op: str, a: Value, b: Value) -> bool:
    """Whether one value makes 0 of 0: that is so of what is divided, and a literal says it."""
    number = next((n for n in map(constant_of, (a.node, b.node)) if isinstance(n, int | float)), None)
    if op == "/" or number is None or op not in _COMPUTE:
        return op == "/" and a.rank > 0
    return not (_COMPUTE[op](0, number) if a.rank > 0 else _COMPUTE[op](number, 0))


def _pair(op: str, x: Edge | str | None, y: Edge | str | None, kept: bool) -> Edge | Literal["flat"] | None:
    if x == y == FLAT:
        return FLAT
    edges = [e for e in (x, y) if isinstance(e, Edge)]
    zeros = [e for e in edges if e.zero]
    if op == "*" and zeros:
        return replace(zeros[0], loaded=False)
    if not edges or None in (x, y):
        return None
    both = op in ("+", "-", "max", "min") if len(edges) == 2 else kept
    return replace(edges[0], zero=both and zeros == edges, loaded=False)


def of_subscript(value: Value, entries: Sequence[str]) -> Lanes:
    """Of `value[:, None]` and the like."""
    rest = list(value.lanes or (None,) * entries.count(":"))
    if not {*entries} <= {":", "None"} or entries.count(":") > len(rest):
        return ()
    return (*(rest.pop(0) if e == ":" else FLAT for e in entries), *rest)


def of_call(
    state: Lowering, node: ast.Call, name: str | None, args: Sequence[Value], keywords: Mapping[str, Value]
) -> Lanes:
    """Of `tl.name(*args)`, or of `args[0].name(*args[1:])`.

    Raises:
        TilelinkError: TL143, a reduction of what lies past an edge.
    """
    if name is None or not args:
        return ()
    first = args[0]
    if name in ALONG:
        return _reduced(state, node, name, args, keywords)
    if name in KEEP_ZERO:
        return first.lanes
    if name in OF_ZERO:
        return tuple(replace(e, zero=False, loaded=False) if isinstance(e, Edge) else e for e in first.lanes)
    if name in ("maximum", "minimum") and len(args) == 2:
        return elementwise(name[:3], *args)
    if name == "trans" and len(args) == 1 and len(first.lanes) == 2:
        return first.lanes[::-1]
    if name == "dot" and len(args) == 2 and "acc" not in keywords:
        # A row of zeros, or a column of them, gives zeros.
        sides = (v.lanes[k] if len(v.lanes) == 2 else None for k, v in enumerate(args))
        return tuple(replace(e, loaded=False) if isinstance(e, Edge) and e.zero else None for e in sides)
    return ()


def _reduced(state: Lowering, node: ast.Call, name: str, args: Sequence[Value], keywords: Mapping[str, Value]) -> Lanes:
    word, default = ALONG[name]
    lanes, given = args[0].lanes, keywords.get(word) or (args[1] if len(args) > 1 else None)
    said = None if given is None else integer_of(given.node)
    axis = default if given is None or constant_of(given.node) is None else said
    if not lanes or (axis is None and given is not None and constant_of(given.node) is not None):
        return ()
    axis = axis if axis is None or axis >= 0 else axis + len(lanes)
    for k, edge in enumerate(lanes):
        if axis in (None, k) and isinstance(edge, Edge) and not (name == "sum" and edge.zero):
            _refuse(state, node, name, edge)
    if name in ("softmax", "sort") or axis is None:
        return ()
    kept = keywords.get("keep_dims")
    if kept is not None and constant_of(kept.node) is not False:
        return tuple(FLAT if k == axis else e for k, e in enumerate(lanes))
    return tuple(e for k, e in enumerate(lanes) if k != axis)


def check_positions(state: Lowering, node: ast.expr, value: Value) -> None:
    """Of a vector of positions at which something is stored: what lies past an edge is none.

    Raises:
        TilelinkError: TL143.
    """
    edge = next((e for e in value.lanes if isinstance(e, Edge)), None)
    if edge is not None:
        message = f"`{ast.unparse(node)}` has positions past the end of axis `{edge.dim}` of `{edge.param}`"
        why = f"{_FILLED}, which is a position like any other, and something would be stored there"
        hint = f"say that they are no elements: `tl.tile_load({edge.param}, …, other=-1)`"
        if not edge.loaded:
            hint = "choose the others, `tl.where(…, …, -1)`, or store under a mask"
        state.fail("TL143", node, message, why, hint)


def check_divisor(state: Lowering, node: ast.BinOp) -> None:
    """The length of a block is no number of elements.

    Raises:
        TilelinkError: TL143.
    """
    by = node.right
    length = isinstance(by, ast.Subscript) and isinstance(by.value, ast.Attribute) and by.value.attr == "shape"
    if length and isinstance(node.op, ast.Div):
        message = f"a division by `{ast.unparse(by)}`, which counts what lies past an edge"
        why = "a block has as many lanes as the tile, whatever there is of the tensor"
        state.fail("TL143", node, message, why, "divide by the length of the axis, `tl.size(…)`")


_FILLED = "a block has as many lanes as the tile, and `tl.tile_load` fills those past an edge with 0"


def _refuse(state: Lowering, node: ast.Call, name: str, edge: Edge) -> None:
    why = _FILLED
    nothing = "0" if name == "sum" else 'float("inf")' if name in ("min", "argmin", "sort") else 'float("-inf")'
    hint = f"say what counts for nothing there: `tl.tile_load({edge.param}, …, other={nothing})`"
    if not edge.zero:
        why += ", of which something else has been made"
    if not edge.loaded:
        by = "by `tl.tile_mask`, or by `tl.tile_range(…) < tl.size(…)`"
        hint = f"choose what counts: `tl.where(…, …, {nothing})`, {by}"
    message = f"`{name}` takes what lies past the end of axis `{edge.dim}` of `{edge.param}`"
    state.fail("TL143", node, message, why, hint)
