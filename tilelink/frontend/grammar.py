"""Signatures such as `M/R K, K N -> M N`, and owner maps such as `m -> m // 2048 % R`."""

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
from tilelink.ir.shape import (
    ITEM_BYTES,
    RANK_AXIS,
    Axis,
    Computed,
    Contract,
    Dim,
    MapTerm,
    Shape,
    Signature,
    Size,
    dims_of,
)

LONGEST = 1000
"""Characters in a signature; a bound, so that what is nested in it stays shallow."""
BLANKS = " \t\n"


@dataclass(frozen=True, slots=True)
class Text:
    """What is read, without the blanks around it (`before`: so many stand there), and where it stands in the user's file."""

    text: str
    whole: str
    before: int
    file: str
    line: int

    def loc(self, start: int, end: int) -> Loc:
        whole, start, end = self.whole, self.before + start, self.before + end
        first = whole.rfind("\n", 0, start) + 1
        last = whole.find("\n", first)
        shown = whole[first:] if last < 0 else whole[first:last]
        return Loc(self.file, self.line, start - first, max(end, start + 1) - first, shown)

    def fail(self, code: str, message: str, place: tuple[int, int], why: str, hint: str) -> NoReturn:
        raise TilelinkError(code, message, loc=self.loc(*place), why=why, hint=hint)

    @property
    def everything(self) -> tuple[int, int]:
        return 0, len(self.text)

    def shown(self, node: Tree[Token] | Token) -> str:
        start, end = span(node)
        return self.text[start:end]


def text_of(text: str, loc: Loc | None) -> Text:
    inner = text.strip(BLANKS)
    before = len(text) - len(text.lstrip(BLANKS)) if inner else 0
    return Text(inner, text, before, loc.file if loc else "<signature>", loc.line if loc else 1)


@cache
def _parser(start: str) -> Lark:
    grammar = resources.files("tilelink.frontend").joinpath("signatures.lark").read_text(encoding="utf-8")
    return Lark(grammar, start=start, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def parse(source: Text, start: str, code: str, rule: str) -> Tree[Token]:
    """The tree of a text; `code` and `rule` are for what does not read."""
    body = source.text
    if len(body) > LONGEST:
        source.fail(code, f"longer than {LONGEST} characters", (0, 1), "no signature needs that", "name fewer tensors")
    if not body:
        hint = "write the shapes of the tensors, such as `M K, K N -> M N`"
        source.fail(code, "nothing is written here", (0, 1), rule, hint)
    try:
        return _parser(start).parse(body)  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as problem:
        token, at = getattr(problem, "token", None), problem.pos_in_stream
        at_end = isinstance(token, Token) and token.type == "$END"
        _explain(source, code, rule, len(body) if at is None or at < 0 or at_end else at)


def _explain(source: Text, code: str, rule: str, at: int) -> NoReturn:
    text, end = source.text, len(source.text)
    before = text[:at].rstrip(BLANKS)
    if before.endswith("/") and code == "TL101":
        slash, why = len(before) - 1, "what splits an axis follows the `/` without a blank"
        hint = f"write `{_word_before(text, slash)}/R`, or the name of the table after the slash"
        source.fail(code, "nothing splits this axis", (slash, slash + 1), why, hint)
    if at >= end:
        hint = f"go on after `{text.split()[-1]}`"
        source.fail(code, "it ends too early", (max(end - 1, 0), end), rule, hint)
    if text[at:].lstrip(BLANKS).startswith("/") and code == "TL101":
        slash = text.index("/", at)
        hint = f"write `{_word_before(text, slash)}{_word_from(text, slash)}` without the blank"
        source.fail(code, "a blank before `/`", (slash, slash + 1), "blanks separate axes", hint)
    at += len(text[at:]) - len(text[at:].lstrip(BLANKS))
    word = _word_from(text, at) or text[at]
    hint = "take it out, or write an axis in its place" if code == "TL101" else "take it out"
    if word.startswith("->"):
        hint = "write one `->`, with tensors on both sides"
    elif word.startswith(","):
        hint = "write one tensor between commas"
    source.fail(code, f"`{word}` does not belong here", (at, at + len(word)), rule, hint)


def _word_from(text: str, at: int) -> str:
    found = re.match(r"->|,|[^\s,]+", text[at:].lstrip(BLANKS))
    return found.group() if found else ""


def _word_before(text: str, at: int) -> str:
    found = re.search(r"[A-Za-z0-9_+*]*$", text[:at].rstrip(BLANKS))
    return found.group() if found and found.group() else "M"


def span(node: Tree[Token] | Token) -> tuple[int, int]:
    if isinstance(node, Token):
        return node.start_pos or 0, node.end_pos or 0
    return node.meta.start_pos or 0, node.meta.end_pos or 0


# ---------------------------------------------------------------------------------------------------------- signatures
CONTRACTS = ("offsets", "permutation")
WRITTEN = ("once", "partial")
"""What an output says of stores that data decides about."""
_AXIS_RULE = (
    "blanks separate axes; an axis is a name (`M`, `e`), a number, `e+1`, `T*K`, `R` or `...`; `/R` behind it splits it"
)
_WORD_ORDER = "axes come first, then the dtype, then the contract"
_FOREIGN_DTYPES = {
    "float16": "f16", "half": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "fp32": "f32",
    "float64": "f64", "fp64": "f64", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float8e4m3": "f8e4m3", "float8e5m2": "f8e5m2",
}  # fmt: skip


def parse_signature(text: str, loc: Loc | None = None, axes: str | None = None) -> Signature:
    """The signature of a tile program or an operator.

    Args:
        text: such as `M/R K, K N -> M N`.
        loc: where it stands, for diagnostics; the caret is put under the text itself.
        axes: the axes of ranks that it may name, the outermost first, such as `NODE GPU`; `R` by default. One axis alone is
            `R` in what comes back, whatever it is called here.

    Raises:
        TilelinkError: TL101 (does not read), TL102 (words of one tensor), TL103 (a split), TL105 (axes of ranks).
    """
    named = (RANK_AXIS,) if axes is None else parse_axes(axes, loc)
    read = _signature(text_of(text, loc), named)
    if len(named) != 1 or named == (RANK_AXIS,):
        return replace(read, loc=loc)
    inputs, outputs = (tuple(_as_r(s, named[0]) for s in shapes) for shapes in (read.inputs, read.outputs))
    return replace(read, inputs=inputs, outputs=outputs, loc=loc, axes=(RANK_AXIS,), along=named[0])


def parse_axes(text: str, loc: Loc | None = None) -> tuple[str, ...]:
    """The axes of ranks of `NODE GPU`, the outermost first.

    Raises:
        TilelinkError: TL105.
    """
    source, names = text_of(text, loc), tuple(text.split())
    why = "axes of ranks are upper-case names with blanks between them, the outermost first"
    if not names:
        hint = 'write `axes="NODE GPU"`, or leave it out'
        source.fail("TL105", "no axis of ranks is named", source.everything, why, hint)
    for k, name in enumerate(names):
        at = source.text.index(name)
        place = at, at + len(name)
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or name == "RANKS":
            source.fail("TL105", f"`{name}` is no axis of ranks", place, why, "rename it")
        if name in names[:k]:
            source.fail("TL105", f"`{name}` twice", place, why, "name every axis once")
    if RANK_AXIS in names and len(names) > 1:
        why, hint = "R is the axis of all ranks, where there is one", "give it a name of its own"
        source.fail("TL105", "`R` beside other axes", source.everything, why, hint)
    return names


def _as_r(shape: Shape, name: str) -> Shape:
    ranks = Dim(name, ranks=True)
    axes = (
        Axis(Dim(RANK_AXIS) if a.size == ranks else a.size, RANK_AXIS if a.split == name else a.split)
        for a in shape.axes
    )
    return replace(shape, axes=tuple(axes))


def parse_shape(text: str, loc: Loc | None = None, axes: tuple[str, ...] = (RANK_AXIS,)) -> Shape:
    """The shape of one tensor, as `tilelink.symmetric` takes it; `axes`: the axes of ranks that it may name.

    Raises:
        TilelinkError: TL101, TL102 or TL103.
    """
    source = text_of(text, loc)
    signature = _signature(source, axes)
    if len(signature.shapes) != 1:
        why, hint = "one tensor is declared at a time", "declare each by itself"
        source.fail("TL101", "this is more than one tensor", source.everything, why, hint)
    return signature.inputs[0]


@lru_cache(maxsize=1024)
def _signature(source: Text, named: tuple[str, ...]) -> Signature:
    inputs: list[Shape] = []
    outputs: list[Shape] = []
    for child in parse(source, "signature", "TL101", _AXIS_RULE).children:
        assert isinstance(child, Tree)
        if child.data == "outputs":
            outputs = [_shape(source, t, named) for t in child.children if isinstance(t, Tree)]
        else:
            inputs.append(_shape(source, child, named))
    return Signature(tuple(inputs), tuple(outputs), axes=named)


def _shape(source: Text, tree: Tree[Token], named: tuple[str, ...]) -> Shape:
    axes: list[Axis] = []
    rest: int | None = None
    dtype: str | None = None
    contract: Contract | None = None
    written: str | None = None
    for word in tree.children:
        shown = source.shown(word)
        if written is not None:
            why, hint = f"{_WORD_ORDER}, then how it is written", f"move `{written}` to the end of the tensor"
            _after(source, word, written, why, hint)
        if isinstance(word, Tree) and (word.data == "below" or shown in CONTRACTS):
            _after(source, word, contract, "a tensor makes one promise about its values", "keep one of them")
            below = _size(source, word.children[0], named) if word.data == "below" else None
            contract = Contract(shown if below is None else "below", below)
        elif shown in WRITTEN:
            written = shown
        elif shown in ITEM_BYTES:
            _after(source, word, dtype, "a tensor has one dtype", "keep one of them")
            _after(source, word, contract, _WORD_ORDER, f"write `{shown} {contract}`")
            dtype = shown
        else:
            if isinstance(word, Token) and rest is not None:
                why = "`...` stands for all axes that are not named"
                source.fail("TL102", "`...` twice in one tensor", span(word), why, "keep one of them")
            late = dtype or contract
            _after(source, word, late, _WORD_ORDER, f"move `{late}` to the end of the tensor")
            if isinstance(word, Token):
                rest = len(axes)
            else:
                axes.append(_axis(source, word, named))
    if not axes and rest is None:
        why = "a tensor has at least one axis"
        source.fail("TL102", "a tensor without axes", span(tree), why, "write its axes first")
    for name in named:
        split = [a for a in axes if a.split == name]
        if len(split) > 1:
            message = f"`{split[0]}` and `{split[1]}` are both split"
            why = "every element of a tensor has one owner, found from one axis"
            source.fail("TL103", message, span(tree), why, "split one axis of a tensor")
    return Shape(tuple(axes), rest, dtype, contract, written)


def _after(source: Text, word: Tree[Token] | Token, old: object, why: str, hint: str) -> None:
    """Refuses a word of a tensor behind another one, if there is one."""
    if old is not None:
        source.fail("TL102", f"`{source.shown(word)}` after `{old}`", span(word), why, hint)


def _axis(source: Text, tree: Tree[Token], named: tuple[str, ...]) -> Axis:
    size, place = _size(source, tree.children[0], named), span(tree)
    dims = dims_of(size)
    if isinstance(size, Dim) and size.name in _FOREIGN_DTYPES:
        why, hint = f"dtypes are {', '.join(ITEM_BYTES)}", f"write `{_FOREIGN_DTYPES[size.name]}`"
        source.fail("TL102", f"`{size}` is no dtype here", place, why, hint)
    for ranks in named if not isinstance(size, Dim) else ():
        if ranks in dims:
            why = f"{ranks} is the axis of ranks; its size is their number"
            source.fail("TL102", f"`{size}` computes with {ranks}", place, why, "name a size of its own")
    if RANK_AXIS in dims and RANK_AXIS not in named:
        why = f"the ranks have the axes {', '.join(named)} here, and R is the name of an axis of ranks"
        source.fail("TL102", "`R` where the axes of ranks have names", place, why, "write one of them")
    if reserved := {*dims} & {*ITEM_BYTES, *CONTRACTS, *WRITTEN}:
        word = sorted(reserved)[0]
        why = f"`{word}` is the name of a dtype or a contract"
        source.fail("TL102", f"`{word}` is not a size", place, why, "give the axis another name")
    if len(tree.children) == 1:
        return Axis(size)
    split = str(tree.children[1])
    if len(tree.children) > 2:
        why = "an axis has one split: what lies in two levels has an axis for each"
        hint = f"write `n/{split} g/{tree.children[2]} {size}`: blocks by the one, in each blocks by the other"
        source.fail("TL103", f"`{size}` is split twice", span(tree.children[2]), why, hint)
    place = span(tree.children[1])
    if isinstance(size, Dim) and size.name in named and split != size.name:
        name = size.name
        why = f"a rank holds whole slices of {name}"
        source.fail("TL103", f"{name} is split by `{split}`", place, why, f"write `{name}/{name}` or `{name}`")
    if split not in named and not split[0].islower():
        over = " or ".join(f"`/{name}`" for name in named)
        why = f"an axis is split over the ranks, {over}, or by an offsets table, a parameter of the program"
        hint = f"write `{size}/{named[0]}`, or two axes: `{size} {split}`"
        source.fail("TL103", f"`{size}` is split over `{split}`", place, why, hint)
    return Axis(size, split)


def _size(source: Text, node: Tree[Token] | Token, named: tuple[str, ...]) -> Size:
    if isinstance(node, Tree):
        left, right = (_size(source, c, named) for c in node.children)
        return Computed("+" if node.data == "sum" else "*", left, right)
    if node.type == "NAME":
        return Dim(str(node), ranks=str(node) in named and str(node) != RANK_AXIS)
    if int(node) == 0:
        source.fail("TL102", "an axis of size 0", span(node), "an axis has at least one element", "leave it out")
    return int(node)


# ---------------------------------------------------------------------------------------------------------------- owner maps
_OWNER_RULE = "an owner map is `names -> expression`, with names, numbers, `R`, + - * // % and parentheses"


@lru_cache(maxsize=256)
def parse_owner(text: str, loc: Loc | None = None) -> MapTerm:
    """An owner map such as `m -> m // 2048 % R`: which rank holds what, where a shape does not say it.

    Raises:
        TilelinkError: TL104.
    """
    source = text_of(text, loc)
    names, expression = parse(source, "owner", "TL104", _OWNER_RULE).children
    assert isinstance(names, Tree)
    variables = tuple(str(n) for n in names.children)
    for index, name in enumerate(variables):
        if not name[0].islower() or name in variables[:index]:
            why = "each axis has a lower-case name of its own"
            source.fail("TL104", f"`{name}` is no variable", span(names.children[index]), why, "rename it")
    return MapTerm(variables, _owner_formula(source, expression, variables))


def _owner_formula(source: Text, node: Tree[Token] | Token, variables: tuple[str, ...]) -> Formula:
    if isinstance(node, Tree):
        left, operator, right = node.children
        assert isinstance(operator, Token)
        a, b = (_owner_formula(source, side, variables) for side in (left, right))
        op = operator.strip(" \t\n")
        if op in ("//", "%") and b == Const(0):
            why, hint = "an owner is a rank", "divide by the rows of one owner"
            source.fail("TL104", "division by zero", span(right), why, hint)
        return binary(op, a, b)
    if node.type == "INTEGER":
        return Const(int(node))
    if node == RANK_AXIS:
        return Sym("RANKS")
    if node[0].islower() and node not in variables:
        why = f"the variables are {', '.join(variables)}"
        source.fail("TL104", f"`{node}` is not defined", span(node), why, "name the axis before `->`")
    return Sym(str(node))
