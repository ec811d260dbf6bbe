"""How many dimensions the result of a call has: enough to tell one value from a block of values."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from tilelink.frontend.values import UNKNOWN, Value, common_rank, constant_of

REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum", "reduce_or"})
_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "view": 1, "broadcast_to": 1}
"""Callee to the position of its shape."""
_FIXED = {"arange": 1, "ravel": 1, "program_id": 0, "num_programs": 0}
_ADDING = {"expand_dims": 1, "join": 1}


def rank_of_call(name: str, args: Sequence[Value], keywords: Mapping[str, Value]) -> int:
    """The rank of `tl.name(*args)`, or of `args[0].name(*args[1:])`."""
    if name in _FIXED:
        return _FIXED[name]
    if name in _SHAPED:
        return _shape_length(keywords.get("shape") or _at(args, _SHAPED[name]))
    first = args[0].rank if args else 0
    if name in REDUCTIONS:
        return _reduced(first, keywords.get("axis") or _at(args, 1), keywords)
    if name in _ADDING:
        return first + _ADDING[name] if first != UNKNOWN else UNKNOWN
    return common_rank([v.rank for v in (*args, *keywords.values())])


def _at(args: Sequence[Value], index: int) -> Value | None:
    return args[index] if index < len(args) else None


def _shape_length(shape: Value | None) -> int:
    if shape is None or shape.length is None:
        return UNKNOWN
    return shape.length or UNKNOWN


def _reduced(rank: int, axis: Value | None, keywords: Mapping[str, Value]) -> int:
    kept = keywords.get("keep_dims")
    if kept is not None and not (isinstance(kept.node, ast.Constant) and kept.node.value is False):
        return rank
    if axis is None or constant_of(axis.node) is None:
        return 0
    return rank - 1 if rank > 0 else rank
