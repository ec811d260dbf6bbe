"""Placements from text: `gather=copy_engine(M=128, push=True)`, read as Python literals and never evaluated."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.schedule import FIELDS, Fused, Library, Placement
from tilelink.pipeline.schedules import TILE, copy_engine, fused, library, sms

PLACEMENTS: dict[str, Callable[..., Placement]] = {
    "sms": sms,
    "copy_engine": copy_engine,
    "fused": fused,
    "library": library,
}
_FORMS = 'write for example gather=copy_engine(M=128, push=True) or matmul=sms(M=64, N=64, order=("ring", "group 4"))'


def parse_placement(
    text: str, option: str = "--schedule", functions: Collection[str] | None = None
) -> tuple[str, Placement]:
    """The step and its placement.

    Args:
        text: `STEP=PLACEMENT(…)`.
        option: where the text stands, for diagnostics.
        functions: that it may name; None: any. Others are not looked up.

    Raises:
        TilelinkError: TL703; those of the placement itself.
    """
    path, equals, call = text.partition("=")
    if not equals or not all(word.isidentifier() for word in path.strip().split(".")):
        raise _refused(text, option, 0, len(path) or len(text), "no step is named", "write STEP=PLACEMENT(…)")
    begin = len(path) + 1 + len(call) - len(call.lstrip())
    try:
        node = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = begin + max(0, (getattr(error, "offset", 1) or 1) - 1)
        raise _refused(text, option, at, at + 1, "this is no Python", _FORMS) from error

    def wrong(node: ast.expr, why: str, hint: str = _FORMS) -> TilelinkError:
        end = node.end_col_offset or node.col_offset + 1
        return _refused(text, option, begin + node.col_offset, begin + end, why, hint)

    if not isinstance(node, ast.Call) or _name(node.func) not in PLACEMENTS:
        what = node.func if isinstance(node, ast.Call) else node
        raise wrong(what, f"a placement is one of {', '.join(PLACEMENTS)}")
    return path.strip(), _call(node, functions, wrong)


def parse_placements(
    texts: Iterable[str], option: str = "--schedule", functions: Collection[str] | None = None
) -> dict[str, Placement]:
    """Every step and its placement.

    Raises:
        TilelinkError: TL703, also where a step is placed twice; those of the placements themselves.
    """
    found: dict[str, Placement] = {}
    for text in texts:
        path, placement = parse_placement(text, option, functions)
        if path in found:
            raise _refused(text, option, 0, len(path), f"`{path}` is placed twice", "place each step once")
        found[path] = placement
    return found


def placement_text(path: str, placement: Placement) -> str | None:
    """What `parse_placement` reads back; None where an order, or what computes, is a function of the user's, or where another
    placement stands for it elsewhere."""
    orders = () if isinstance(placement, Fused) else placement.order
    if not all(isinstance(word, str) for word in orders):
        return None
    if isinstance(placement, Library) and (not isinstance(placement.function, str) or placement.fallback is not None):
        return None
    return f"{path}={placement!r}"


def _call(node: ast.Call, functions: Collection[str] | None, wrong: Callable[..., TilelinkError]) -> Placement:
    make = PLACEMENTS[_name(node.func)]
    positional = [_literal(a, wrong) for a in node.args]
    keywords: dict[str, Any] = {}
    for k in node.keywords:
        if k.arg is None:
            raise wrong(k.value, "`**` has no meaning here")
        keywords[k.arg] = _literal(k.value, wrong)
    try:
        bound = inspect.signature(make).bind(*positional, **keywords)
    except TypeError as error:
        wanted = [p.name for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_KEYWORD]
        hint = f"its parameters are {', '.join(wanted)}, and tile sizes such as M=128"
        raise wrong(node, f"{_name(node.func)}: {error}", hint) from error
    tiles = bound.arguments.get("tile", {})
    places = dict(zip(bound.arguments, node.args, strict=False)) | {k.arg: k.value for k in node.keywords}
    for name, value in {**{n: v for n, v in bound.arguments.items() if n != "tile"}, **tiles}.items():
        if make is library and name in tiles and value == f"{name}/R":
            continue
        meaning, good = FIELDS.get(name, TILE) if name not in tiles else TILE
        if not good(value):
            raise wrong(places[name], f"`{name}` is {meaning}, and this is {value!r}")
    if make is library and functions is not None and bound.arguments["function"] not in functions:
        why = f"it names the function `{bound.arguments['function']}`, which no text from outside may name here"
        raise wrong(node, why, f"it may name {', '.join(sorted(functions))}")
    return make(*positional, **keywords)


def _literal(node: ast.expr, wrong: Callable[..., TilelinkError]) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise wrong(node, "arguments are literals: numbers, strings, True, False, None and tuples") from error


def _name(node: ast.expr) -> str:
    """`sms` for `sms` and `tilelink.sms`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tilelink":
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _refused(text: str, option: str, begin: int, end: int, why: str, hint: str) -> TilelinkError:
    loc = Loc(option, 1, begin, end, text=text)
    return TilelinkError("TL703", "a schedule that does not read", loc=loc, why=why, hint=hint)
