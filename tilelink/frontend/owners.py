"""Owner maps such as `m -> m // 2048 % R`: which rank holds what, where a shape does not say it."""

from __future__ import annotations

from functools import lru_cache

from lark import Token, Tree

from tilelink.errors import Loc
from tilelink.frontend.reading import Text, parse, span, text_of
from tilelink.ir.formula import Const, Formula, Sym, binary
from tilelink.ir.shape import RANK_AXIS, MapTerm

_OWNER_RULE = "an owner map is `names -> expression`, with names, numbers, `R`, + - * // % and parentheses"


def parse_owner(text: str, loc: Loc | None = None) -> MapTerm:
    """An owner map such as `m -> m // 2048 % R`.

    Raises:
        TilelinkError: TL104.
    """
    return _owner(text_of(text, loc))


@lru_cache(maxsize=256)
def _owner(source: Text) -> MapTerm:
    tree, shift = parse(source, "owner", "TL104", _OWNER_RULE)
    names, expression = tree.children
    assert isinstance(names, Tree)
    variables = tuple(str(n) for n in names.children)
    for index, name in enumerate(variables):
        if not name[0].islower() or name in variables[:index]:
            place = span(names.children[index], shift)
            source.fail(
                "TL104", f"`{name}` is no variable", *place, "each axis has a lower-case name of its own", "rename it"
            )
    formula = _owner_formula(source, expression, variables, shift)
    return MapTerm(variables, formula)


def _owner_formula(source: Text, node: Tree[Token] | Token, variables: tuple[str, ...], shift: int) -> Formula:
    if isinstance(node, Token):
        return _owner_atom(source, node, variables, shift)
    left, operator, right = node.children
    assert isinstance(operator, Token)
    parts = [_owner_formula(source, side, variables, shift) for side in (left, right)]
    op = operator.strip(" \t\n")
    if op in ("//", "%") and parts[1] == Const(0):
        place = span(right, shift)
        source.fail("TL104", "division by zero", *place, "an owner is a rank", "divide by the rows of one owner")
    return binary(op, parts[0], parts[1])


def _owner_atom(source: Text, token: Token, variables: tuple[str, ...], shift: int) -> Formula:
    if token.type == "INTEGER":
        return Const(int(token))
    if token == RANK_AXIS:
        return Sym("RANKS")
    if token[0].islower() and token not in variables:
        why = f"the variables are {', '.join(variables)}"
        hint = "name the axis before `->`"
        source.fail("TL104", f"`{token}` is not defined", *span(token, shift), why, hint)
    return Sym(str(token))
