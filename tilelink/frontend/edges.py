"""What is known of the lanes of a block of values, and which calls that forbids.

A block has as many lanes as its tile: past the edge of a tensor they hold 0, as loads fill them, or what has been made of that.
A reduction that this would change, such as the maximum of a row of negative values, is refused; a program says what counts
for nothing there by `other=`, or chooses with `tl.where`. How long tiles are is the schedule's matter, so a program also says
where it takes all of one together (`ir.program.Together`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import FLAT, Lane, Lanes, Value, constant_of, integer_of
from tilelink.ir.formula import COMPUTE
from tilelink.ir.program import Gather, Index, OfTile, Param, Together, Whole

OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.BitOr: "+", ast.BitXor: "+", ast.Mult: "*", ast.BitAnd: "*",
    ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "/", ast.LShift: "/", ast.RShift: "/",
}  # fmt: skip
"""An operator that does to 0 what this one does."""
KEEP_ZERO = frozenset({"sqrt", "sqrt_rn", "sin", "erf", "floor", "ceil", "to", "cast"})
OF_ZERO = frozenset({"exp", "exp2", "log", "log2", "cos", "rsqrt", "sigmoid"})
"""Functions of each value, which make 0 of 0, and which make something else of it."""
ALONG: Mapping[str, tuple[str, int | None]] = {
    **dict.fromkeys(("sum", "max", "min", "argmax", "argmin"), ("axis", None)),
    "softmax": ("dim", 0),
    "sort": ("dim", -1),
}
"""Reductions, and what else takes the values of an axis together: the parameter that names the axis, and its default."""
SCANS = frozenset({"cumsum", "cumprod"})
TOGETHER = frozenset({*ALONG, *SCANS, "dot"})
"""Of which it is known that they take values together, and along which axis."""
SHAPED = frozenset({"zeros", "full"})
OTHERS = frozenset({"arange", "expand_dims", "broadcast_to", "cdiv", "fma", "clamp", "device_print", "zeros_like"})
"""Other functions that take no values together."""


def of_axes(param: Param, index: Index, *, said: bool) -> Lanes:
    """Of a load. `said`: the program says what lies past an edge. One axis of the block is that of all vectors of positions."""
    if param.shape.rest is not None:
        return ()
    found: list[Lane | None] = []
    gathered = False
    for axis, e in zip(param.shape.axes, index, strict=True):
        if isinstance(e, OfTile | Whole):
            full = isinstance(axis.size, int) and axis.size.bit_count() == 1 and isinstance(e, Whole)
            var = e.var if isinstance(e, OfTile) else ""
            found.append(Lane(param.name, axis.name, var, "said" if said or full else "zero"))
        elif isinstance(e, Gather) and not gathered:
            gathered = True
            found.append(None)
    return tuple(found)


def elementwise(op: str, *values: Value) -> Lanes:
    """Of values that are broadcast together, by an operator or another function of each element."""
    axes = max(len(v.lanes) for v in values)
    along = [(FLAT,) * axes if v.rank == 0 else v.lanes or (None,) * axes for v in values]
    if any(len(lanes) != axes for lanes in along):
        return ()
    kept = len(values) == 2 and _keeps_zero(op, *values)
    return tuple(_pair(op, each, kept) for each in zip(*along, strict=True))


def _keeps_zero(op: str, a: Value, b: Value) -> bool:
    """Whether one value makes 0 of 0: that is so of what is divided, and a literal says it."""
    number = next((n for n in map(constant_of, (a.node, b.node)) if isinstance(n, int | float)), None)
    if op == "/":
        return a.rank > 0
    if number is None or op not in COMPUTE:
        return False
    return not (COMPUTE[op](0, number) if a.rank > 0 else COMPUTE[op](number, 0))


def _pair(op: str, each: Iterable[Any], kept: bool) -> Any:
    each = list(each)
    lanes: list[Lane] = [e for e in each if isinstance(e, Lane)]
    if not lanes or len({e.var for e in lanes}) > 1:
        return FLAT if all(e == FLAT for e in each) else None
    zeros = [e.holds == "zero" for e in lanes]
    if op == "*" and any(zeros):
        return replace(lanes[zeros.index(True)], loaded=False)
    known = op != "where" and None not in each and all(e.holds != "said" for e in lanes)
    both = kept if len(each) > len(lanes) else op in ("+", "-", "max", "min")
    return replace(lanes[0], holds=("zero" if both and all(zeros) else "made") if known else "said", loaded=False)


def of_subscript(value: Value, entries: Sequence[str]) -> Lanes:
    """Of `value[:, None]` and the like."""
    rest = list(value.lanes or (None,) * entries.count(":"))
    if not {*entries} <= {":", "None"} or entries.count(":") > len(rest):
        return ()
    return (*(rest.pop(0) if e == ":" else FLAT for e in entries), *rest)


def of_call(
    state: Lowering, node: ast.Call, name: str | None, args: Sequence[Value], keywords: Mapping[str, Value]
) -> Lanes:
    """Of `tl.name(*args)`, or of `args[0].name(*args[1:])`; None: of a function of the user's.

    Raises:
        TilelinkError: TL143, a reduction of what lies past an edge.
    """
    if name is not None and name in ALONG and args:
        return _reduced(state, node, name, args, keywords)
    if name in KEEP_ZERO and args:
        return args[0].lanes
    if name == "abs" and args:  # 0 is the least of what there is, so that it counts for nothing in a maximum, too
        return tuple(
            replace(e, holds="said") if isinstance(e, Lane) and e.holds == "zero" else e for e in args[0].lanes
        )
    if name in OF_ZERO and args:
        kept = {"zero": "made"}
        return tuple(
            replace(e, holds=kept.get(e.holds, e.holds), loaded=False) if isinstance(e, Lane) else e
            for e in args[0].lanes
        )
    if name in ("maximum", "minimum", "where") and args:
        return elementwise("where" if name == "where" else name[:3], *args)
    if name in SHAPED and args:
        holds: Any = "zero" if name == "zeros" else "said"
        return tuple(replace(e, holds=holds, loaded=False) if isinstance(e, Lane) else e for e in args[0].lanes)
    if name == "trans" and len(args) == 1 and len(args[0].lanes) == 2:
        return args[0].lanes[::-1]
    if name in SCANS and args and args[0].lanes:
        axis = keywords.get("axis") or (args[1] if len(args) > 1 else None)
        at = 0 if axis is None else integer_of(axis.node) or 0
        for lane in args[0].lanes[at:][:1]:  # none of an axis that the block does not have, which Triton refuses
            _note(state, node, name or "", lane)
        return tuple(replace(e, holds="said", loaded=False) if isinstance(e, Lane) else e for e in args[0].lanes)
    if name == "dot" and len(args) >= 2:
        return _product(state, node, args, keywords)
    if name not in OTHERS:
        for lane in (e for v in (*args, *keywords.values()) for e in v.lanes if v.length is None):
            _note(state, node, name or ast.unparse(node.func), lane)
    return ()


def _note(state: Lowering, node: ast.Call, what: str, lane: object) -> None:
    """That a call takes a tile of the domain together, or may."""
    if isinstance(lane, Lane) and state.domain is not None and lane.var and lane.var in state.domain.names:
        state.together.append(Together(lane.var, what, state.loc(node)))


def _product(state: Lowering, node: ast.Call, args: Sequence[Value], keywords: Mapping[str, Value]) -> Lanes:
    """A row of zeros, or a column of them, gives zeros."""
    (rows, left), (right, columns) = (v.lanes if len(v.lanes) == 2 else (None, None) for v in args[:2])
    for lane in (left, right):
        _note(state, node, "dot", lane)
    sides = (e if isinstance(e, Lane) else None for e in (rows, columns))
    found = tuple(e and replace(e, holds="zero" if e.holds == "zero" else "said", loaded=False) for e in sides)
    acc = keywords.get("acc") or (args[2] if len(args) > 2 else None)
    return found if acc is None else elementwise("+", acc, replace(args[0], rank=2, lanes=found))


def _reduced(state: Lowering, node: ast.Call, name: str, args: Sequence[Value], keywords: Mapping[str, Value]) -> Lanes:
    word, default = ALONG[name]
    lanes, given = args[0].lanes, keywords.get(word) or (args[1] if len(args) > 1 else None)
    said = None if given is None else integer_of(given.node)
    axis = default if given is None or constant_of(given.node) is None else said
    if not lanes or (axis is None and given is not None and constant_of(given.node) is not None):
        return ()
    axis = axis if axis is None or axis >= 0 else axis + len(lanes)
    for k, lane in enumerate(lanes):
        if axis in (None, k) and isinstance(lane, Lane):
            if lane.holds == "made" or (lane.holds == "zero" and name != "sum"):
                _refuse(state, node, name, lane)
            _note(state, node, name, lane)
    if name in ("softmax", "sort") or axis is None:
        return ()
    kept = keywords.get("keep_dims")
    if kept is not None and constant_of(kept.node) is not False:
        return tuple(FLAT if k == axis else e for k, e in enumerate(lanes))
    return tuple(e for k, e in enumerate(lanes) if k != axis)


# ------------------------------------------------------------------------------------------------------- what is refused
_FILLED = "a block has as many lanes as the tile, and `tl.tile_load` fills those past an edge with 0"


def _refuse(state: Lowering, node: ast.Call, name: str, lane: Lane) -> None:
    why = _FILLED
    nothing = "0" if name == "sum" else 'float("inf")' if name in ("min", "argmin", "sort") else 'float("-inf")'
    hint = f"say what counts for nothing there: `tl.tile_load({lane.param}, …, other={nothing})`"
    if lane.holds == "made":
        why += ", of which something else has been made"
    if not lane.loaded:
        by = "by `tl.tile_mask`, or by `tl.tile_range(…) < tl.size(…)`"
        hint = f"choose what counts: `tl.where(…, …, {nothing})`, {by}"
    message = f"`{name}` takes what lies past the end of axis `{lane.dim}` of `{lane.param}`"
    state.fail("TL143", node, message, why, hint)


def check_positions(state: Lowering, node: ast.expr, value: Value) -> None:
    """Of a vector of positions at which something is stored: what lies past an edge is none.

    Raises:
        TilelinkError: TL143.
    """
    lane = next((e for e in value.lanes if isinstance(e, Lane) and e.holds != "said"), None)
    if lane is not None:
        message = f"`{ast.unparse(node)}` has positions past the end of axis `{lane.dim}` of `{lane.param}`"
        why = f"{_FILLED}, which is a position like any other, and something would be stored there"
        hint = f"say that they are no elements: `tl.tile_load({lane.param}, …, other=-1)`"
        if not lane.loaded:
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
