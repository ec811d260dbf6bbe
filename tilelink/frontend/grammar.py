"""Signatures such as `M/R K, K N -> M N` and owner maps such as `m -> m // 2048 % R`, read by one lark grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.formula import Const, Formula, Sym, binary
from tilelink.ir.formula import text as formula_text
from tilelink.ir.shape import (
    DTYPES,
    RANK_AXIS,
    Axis,
    Contract,
    Dim,
    MapTerm,
    Product,
    Shape,
    Signature,
    Size,
    Sum,
)

CONTRACTS = ("offsets", "permutation")
LONGEST = 1000
"""Characters in a signature; a bound, so that what is nested in it stays shallow."""

_AXIS_RULE = (
    "blanks separate axes; an axis is a name (`M`, `e`), a number, `e+1`, `T*K`, `R` or `...`; `/R` behind it splits it"
)
_FOREIGN_DTYPES = {
    "float16": "f16", "half": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "fp32": "f32",
    "float64": "f64", "fp64": "f64", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float8e4m3": "f8e4m3", "float8e5m2": "f8e5m2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Text:
    """What is read, and where it stands in the user's file."""

    text: str
    file: str
    line: int

    def loc(self, start: int, end: int) -> Loc:
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", first)
        shown = self.text[first:] if last < 0 else self.text[first:last]
        return Loc(self.file, self.line, start - first, max(end, start + 1) - first, shown)

    def fail(self, code: str, message: str, start: int, end: int, why: str, hint: str) -> NoReturn:
        raise TilelinkError(code, message, loc=self.loc(start, end), why=why, hint=hint)


def parse_signature(text: str, loc: Loc | None = None) -> Signature:
    """The signature of a tile program or an operator.

    Args:
        text: such as `M/R K, K N -> M N`.
        loc: where it stands, for diagnostics; the caret is put under the text itself.

    Raises:
        TilelinkError: TL101 (does not read), TL102 (words of one tensor), TL103 (a split).
    """
    return replace(_signature(_source(text, loc)), loc=loc)


def parse_shape(text: str, loc: Loc | None = None) -> Shape:
    """The shape of one tensor, as `tilelink.symmetric` takes it.

    Raises:
        TilelinkError: TL101, TL102 or TL103.
    """
    source = _source(text, loc)
    signature = _signature(source)
    if len(signature.shapes) != 1:
        source.fail(
            "TL101",
            "this is more than one tensor",
            0,
            len(text),
            "one tensor is declared at a time",
            "declare each by itself",
        )
    return signature.inputs[0]


def parse_owner(text: str, loc: Loc | None = None) -> MapTerm:
    """An owner map such as `m -> m // 2048 % R`.

    Raises:
        TilelinkError: TL104.
    """
    return _owner(_source(text, loc))


def _source(text: str, loc: Loc | None) -> _Text:
    return _Text(text, loc.file if loc else "<signature>", loc.line if loc else 1)


@cache
def _parser(start: str) -> Lark:
    grammar = resources.files("tilelink.frontend").joinpath("signatures.lark").read_text(encoding="utf-8")
    return Lark(grammar, start=start, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def _parse(source: _Text, start: str, code: str, rule: str) -> tuple[Tree[Token], int]:
    """The tree, and by how many characters its positions are shifted."""
    body = source.text.strip(" \t\n")
    shift = len(source.text) - len(source.text.lstrip(" \t\n"))
    if len(body) > LONGEST:
        source.fail(code, f"longer than {LONGEST} characters", 0, 1, "no signature needs that", "name fewer tensors")
    if not body:
        source.fail(
            code, "nothing is written here", 0, 1, rule, "write the shapes of the tensors, such as `M K, K N -> M N`"
        )
    try:
        return _parser(start).parse(body), shift  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as problem:
        at = problem.pos_in_stream
        position = len(body) if at is None or at < 0 or _at_end(problem) else at
        _explain(source, code, rule, position + shift, body)


def _at_end(problem: UnexpectedInput) -> bool:
    token = getattr(problem, "token", None)
    return isinstance(token, Token) and token.type == "$END"


def _explain(source: _Text, code: str, rule: str, at: int, body: str) -> NoReturn:
    """Says what stands at `at`, and what belongs there."""
    text, end = source.text, len(source.text.rstrip(" \t\n"))
    before = text[:at].rstrip(" \t\n")
    if before.endswith("/") and code == "TL101":
        slash = len(before) - 1
        hint = f"write `{_word_before(text, slash)}/R`, or the name of the table after the slash"
        source.fail(
            code,
            "nothing splits this axis",
            slash,
            slash + 1,
            "what splits an axis follows the `/` without a blank",
            hint,
        )
    if at >= end:
        source.fail(code, "it ends too early", max(end - 1, 0), end, rule, f"go on after `{_last_word(body)}`")
    if text[at:].lstrip(" \t\n").startswith("/") and code == "TL101":
        slash = text.index("/", at)
        hint = f"write `{_word_before(text, slash)}{_word_from(text, slash)}` without the blank"
        source.fail(code, "a blank before `/`", slash, slash + 1, "blanks separate axes", hint)
    word = _word_from(text, at) or text[at]
    source.fail(code, f"`{word}` does not belong here", at, at + len(word), rule, _hint_for(word))


def _hint_for(word: str) -> str:
    if word.startswith("->"):
        return "write one `->`, with tensors on both sides"
    if word.startswith(","):
        return "write one tensor between commas"
    return "take it out, or write an axis in its place"


def _word_from(text: str, at: int) -> str:
    found = re.match(r"->|,|[^\s,]+", text[at:].lstrip(" \t\n"))
    return found.group() if found else ""


def _word_before(text: str, at: int) -> str:
    found = re.search(r"[A-Za-z0-9_+*]*$", text[:at].rstrip(" \t\n"))
    return found.group() if found and found.group() else "M"


def _last_word(body: str) -> str:
    return re.split(r"\s+", body)[-1]


# --------------------------------------------------------------------------------------------------------- signatures
@lru_cache(maxsize=1024)
def _signature(source: _Text) -> Signature:
    tree, shift = _parse(source, "signature", "TL101", _AXIS_RULE)
    inputs: list[Shape] = []
    outputs: list[Shape] = []
    for child in _trees(tree):
        if child.data == "outputs":
            outputs = [_shape(source, t, shift) for t in _trees(child)]
        else:
            inputs.append(_shape(source, child, shift))
    return Signature(tuple(inputs), tuple(outputs), source.text)


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [c for c in tree.children if isinstance(c, Tree)]


def _span(node: Tree[Token] | Token, shift: int) -> tuple[int, int]:
    if isinstance(node, Token):
        start, end = node.start_pos, node.end_pos
    else:
        start, end = node.meta.start_pos, node.meta.end_pos
    return (start or 0) + shift, (end or 0) + shift


def _shape(source: _Text, tree: Tree[Token], shift: int) -> Shape:
    axes: list[Axis] = []
    rest: int | None = None
    dtype: str | None = None
    contract: Contract | None = None
    for word in tree.children:
        start, end = _span(word, shift)
        shown = source.text[start:end]
        if isinstance(word, Token):
            rest = _rest(source, rest, dtype or contract, len(axes), start, end)
        elif word.data == "below":
            contract = _contract(
                source, contract, Contract("below", _size(source, word.children[0], shift)), start, end
            )
        elif shown in CONTRACTS:
            contract = _contract(source, contract, Contract(shown), start, end)
        elif shown in DTYPES:
            dtype = _dtype(source, dtype, contract, shown, start, end)
        else:
            _axis_comes_first(source, shown, dtype or contract, start, end)
            axes.append(_axis(source, word, shift))
    if not axes and rest is None:
        start, end = _span(tree, shift)
        source.fail(
            "TL102", "a tensor without axes", start, end, "a tensor has at least one axis", "write its axes first"
        )
    _one_split(source, tree, axes, shift)
    return Shape(tuple(axes), rest, dtype, contract)


def _rest(source: _Text, rest: int | None, late: object, at: int, start: int, end: int) -> int:
    if rest is not None:
        why = "`...` stands for all axes that are not named"
        source.fail("TL102", "`...` twice in one tensor", start, end, why, "keep one of them")
    _axis_comes_first(source, "...", late, start, end)
    return at


def _axis_comes_first(source: _Text, shown: str, late: object, start: int, end: int) -> None:
    if late is not None:
        why = "axes come first, then the dtype, then the contract"
        source.fail("TL102", f"`{shown}` after `{late}`", start, end, why, f"move `{late}` to the end of the tensor")


def _contract(source: _Text, old: Contract | None, new: Contract, start: int, end: int) -> Contract:
    if old is not None:
        why = "a tensor makes one promise about its values"
        source.fail("TL102", f"`{new}` after `{old}`", start, end, why, "keep one of them")
    return new


def _dtype(source: _Text, old: str | None, contract: Contract | None, new: str, start: int, end: int) -> str:
    if old is not None:
        source.fail("TL102", f"`{new}` after `{old}`", start, end, "a tensor has one dtype", "keep one of them")
    if contract is not None:
        why = "axes come first, then the dtype, then the contract"
        source.fail("TL102", f"`{new}` after `{contract}`", start, end, why, f"write `{new} {contract}`")
    return new


def _axis(source: _Text, tree: Tree[Token], shift: int) -> Axis:
    size = _size(source, tree.children[0], shift)
    start, end = _span(tree, shift)
    if isinstance(size, Dim) and size.name in _FOREIGN_DTYPES:
        word = _FOREIGN_DTYPES[size.name]
        source.fail(
            "TL102", f"`{size}` is no dtype here", start, end, f"dtypes are {', '.join(DTYPES)}", f"write `{word}`"
        )
    if not isinstance(size, Dim) and RANK_AXIS in _dims(size):
        why = "R is the axis of ranks; its size is their number"
        source.fail("TL102", f"`{size}` computes with R", start, end, why, "name a size of its own")
    if reserved := _dims(size) & {*DTYPES, *CONTRACTS}:
        word = sorted(reserved)[0]
        why = f"`{word}` is the name of a dtype or a contract"
        source.fail("TL102", f"`{word}` is not a size", start, end, why, "give the axis another name")
    if len(tree.children) == 1:
        return Axis(size)
    return Axis(size, _split(source, size, str(tree.children[1]), _span(tree.children[1], shift)))


def _split(source: _Text, size: Size, split: str, span: tuple[int, int]) -> str:
    if split == RANK_AXIS:
        return split
    if size == Dim(RANK_AXIS):
        source.fail("TL103", f"R is split by `{split}`", *span, "a rank holds whole slices of R", "write `R/R` or `R`")
    if not split[0].islower():
        why = "an axis is split over the ranks, `/R`, or by an offsets table, a parameter of the program"
        source.fail(
            "TL103", f"`{size}` is split over `{split}`", *span, why, f"write `{size}/R`, or two axes: `{size} {split}`"
        )
    return split


def _one_split(source: _Text, tree: Tree[Token], axes: list[Axis], shift: int) -> None:
    split = [a for a in axes if a.split == RANK_AXIS]
    if len(split) > 1:
        start, end = _span(tree, shift)
        why = "every element of a tensor has one owner, found from one axis"
        source.fail(
            "TL103", f"`{split[0]}` and `{split[1]}` are both split", start, end, why, "split one axis of a tensor"
        )


def _size(source: _Text, node: Tree[Token] | Token, shift: int) -> Size:
    if isinstance(node, Tree):
        left, right = (_size(source, c, shift) for c in node.children)
        return Sum(left, right) if node.data == "sum" else Product(left, right)
    if node.type == "NAME":
        return Dim(str(node))
    if int(node) == 0:
        source.fail(
            "TL102", "an axis of size 0", *_span(node, shift), "an axis has at least one element", "leave it out"
        )
    return int(node)


def _dims(size: Size) -> set[str]:
    if isinstance(size, (Sum, Product)):
        return _dims(size.left) | _dims(size.right)
    return {size.name} if isinstance(size, Dim) else set()


# --------------------------------------------------------------------------------------------------------- owner maps
_OWNER_RULE = "an owner map is `names -> expression`, with names, numbers, `R`, + - * // % and parentheses"


@lru_cache(maxsize=256)
def _owner(source: _Text) -> MapTerm:
    tree, shift = _parse(source, "owner", "TL104", _OWNER_RULE)
    names, expression = tree.children
    assert isinstance(names, Tree)
    variables = tuple(str(n) for n in names.children)
    for index, name in enumerate(variables):
        if not name[0].islower() or name in variables[:index]:
            span = _span(names.children[index], shift)
            source.fail(
                "TL104", f"`{name}` is no variable", *span, "each axis has a lower-case name of its own", "rename it"
            )
    formula = _owner_formula(source, expression, variables, shift)
    return MapTerm(variables, formula_text(formula), formula)


def _owner_formula(source: _Text, node: Tree[Token] | Token, variables: tuple[str, ...], shift: int) -> Formula:
    if isinstance(node, Token):
        return _owner_atom(source, node, variables, shift)
    left, operator, right = node.children
    assert isinstance(operator, Token)
    parts = [_owner_formula(source, side, variables, shift) for side in (left, right)]
    op = operator.strip(" \t\n")
    if op in ("//", "%") and parts[1] == Const(0):
        span = _span(right, shift)
        source.fail("TL104", "division by zero", *span, "an owner is a rank", "divide by the rows of one owner")
    return binary(op, parts[0], parts[1])


def _owner_atom(source: _Text, token: Token, variables: tuple[str, ...], shift: int) -> Formula:
    if token.type == "INTEGER":
        return Const(int(token))
    if token == RANK_AXIS:
        return Sym("RANKS")
    if token[0].islower() and token not in variables:
        why = f"the variables are {', '.join(variables)}"
        hint = "name the axis before `->`"
        source.fail("TL104", f"`{token}` is not defined", *_span(token, shift), why, hint)
    return Sym(str(token))
