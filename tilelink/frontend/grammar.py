"""Signatures such as `M/R K, K N -> M N`."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from lark import Token, Tree

from tilelink.errors import Loc
from tilelink.frontend.reading import Text, parse, span, text_of, trees
from tilelink.ir.shape import ITEM_BYTES, RANK_AXIS, Axis, Contract, Dim, Product, Shape, Signature, Size, Sum, dims_of

CONTRACTS = ("offsets", "permutation")
WRITTEN = ("once", "partial")
"""What an output says of stores that data decides about."""
_AXIS_RULE = (
    "blanks separate axes; an axis is a name (`M`, `e`), a number, `e+1`, `T*K`, `R` or `...`; `/R` behind it splits it"
)
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
        source.fail("TL105", "no axis of ranks is named", 0, len(text), why, 'write `axes="NODE GPU"`, or leave it out')
    for k, name in enumerate(names):
        at = text.index(name)
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or name == "RANKS":
            source.fail("TL105", f"`{name}` is no axis of ranks", at, at + len(name), why, "rename it")
        if name in names[:k]:
            source.fail("TL105", f"`{name}` twice", at, at + len(name), why, "name every axis once")
    if RANK_AXIS in names and len(names) > 1:
        hint = "give it a name of its own"
        source.fail(
            "TL105", "`R` beside other axes", 0, len(text), "R is the axis of all ranks, where there is one", hint
        )
    return names


def _as_r(shape: Shape, name: str) -> Shape:
    """The shape with its one axis of ranks called `R`."""

    def renamed(axis: Axis) -> Axis:
        size = Dim(RANK_AXIS) if axis.size == Dim(name, ranks=True) else axis.size
        return Axis(size, RANK_AXIS if axis.split == name else axis.split)

    return replace(shape, axes=tuple(renamed(a) for a in shape.axes))


def parse_shape(text: str, loc: Loc | None = None, axes: tuple[str, ...] = (RANK_AXIS,)) -> Shape:
    """The shape of one tensor, as `tilelink.symmetric` takes it; `axes`: the axes of ranks that it may name.

    Raises:
        TilelinkError: TL101, TL102 or TL103.
    """
    source = text_of(text, loc)
    signature = _signature(source, axes)
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


@lru_cache(maxsize=1024)
def _signature(source: Text, named: tuple[str, ...]) -> Signature:
    tree, shift = parse(source, "signature", "TL101", _AXIS_RULE)
    inputs: list[Shape] = []
    outputs: list[Shape] = []
    for child in trees(tree):
        if child.data == "outputs":
            outputs = [_shape(source, t, shift, named) for t in trees(child)]
        else:
            inputs.append(_shape(source, child, shift, named))
    return Signature(tuple(inputs), tuple(outputs), axes=named)


def _shape(source: Text, tree: Tree[Token], shift: int, named: tuple[str, ...]) -> Shape:
    axes: list[Axis] = []
    rest: int | None = None
    dtype: str | None = None
    contract: Contract | None = None
    written: str | None = None
    for word in tree.children:
        start, end = span(word, shift)
        shown = source.text[start:end]
        if written is not None:
            why = "axes come first, then the dtype, then the contract, then how it is written"
            source.fail(
                "TL102", f"`{shown}` after `{written}`", start, end, why, f"move `{written}` to the end of the tensor"
            )
        if isinstance(word, Token):
            rest = _rest(source, rest, dtype or contract, len(axes), start, end)
        elif word.data == "below":
            contract = _contract(
                source, contract, Contract("below", _size(source, word.children[0], shift, named)), start, end
            )
        elif shown in CONTRACTS:
            contract = _contract(source, contract, Contract(shown), start, end)
        elif shown in WRITTEN:
            written = shown
        elif shown in ITEM_BYTES:
            dtype = _dtype(source, dtype, contract, shown, start, end)
        else:
            _axis_comes_first(source, shown, dtype or contract, start, end)
            axes.append(_axis(source, word, shift, named))
    if not axes and rest is None:
        start, end = span(tree, shift)
        source.fail(
            "TL102", "a tensor without axes", start, end, "a tensor has at least one axis", "write its axes first"
        )
    _one_split(source, tree, axes, shift, named)
    return Shape(tuple(axes), rest, dtype, contract, written)


def _rest(source: Text, rest: int | None, late: object, at: int, start: int, end: int) -> int:
    if rest is not None:
        why = "`...` stands for all axes that are not named"
        source.fail("TL102", "`...` twice in one tensor", start, end, why, "keep one of them")
    _axis_comes_first(source, "...", late, start, end)
    return at


def _axis_comes_first(source: Text, shown: str, late: object, start: int, end: int) -> None:
    if late is not None:
        why = "axes come first, then the dtype, then the contract"
        source.fail("TL102", f"`{shown}` after `{late}`", start, end, why, f"move `{late}` to the end of the tensor")


def _contract(source: Text, old: Contract | None, new: Contract, start: int, end: int) -> Contract:
    if old is not None:
        why = "a tensor makes one promise about its values"
        source.fail("TL102", f"`{new}` after `{old}`", start, end, why, "keep one of them")
    return new


def _dtype(source: Text, old: str | None, contract: Contract | None, new: str, start: int, end: int) -> str:
    if old is not None:
        source.fail("TL102", f"`{new}` after `{old}`", start, end, "a tensor has one dtype", "keep one of them")
    if contract is not None:
        why = "axes come first, then the dtype, then the contract"
        source.fail("TL102", f"`{new}` after `{contract}`", start, end, why, f"write `{new} {contract}`")
    return new


def _axis(source: Text, tree: Tree[Token], shift: int, named: tuple[str, ...]) -> Axis:
    size = _size(source, tree.children[0], shift, named)
    start, end = span(tree, shift)
    if isinstance(size, Dim) and size.name in _FOREIGN_DTYPES:
        word = _FOREIGN_DTYPES[size.name]
        source.fail(
            "TL102", f"`{size}` is no dtype here", start, end, f"dtypes are {', '.join(ITEM_BYTES)}", f"write `{word}`"
        )
    for ranks in named if not isinstance(size, Dim) else ():
        if ranks in dims_of(size):
            why = f"{ranks} is the axis of ranks; its size is their number"
            source.fail("TL102", f"`{size}` computes with {ranks}", start, end, why, "name a size of its own")
    if RANK_AXIS in dims_of(size) and RANK_AXIS not in named:
        why = f"the ranks have the axes {', '.join(named)} here, and R is the name of an axis of ranks"
        source.fail("TL102", "`R` where the axes of ranks have names", start, end, why, "write one of them")
    if reserved := {*dims_of(size)} & {*ITEM_BYTES, *CONTRACTS, *WRITTEN}:
        word = sorted(reserved)[0]
        why = f"`{word}` is the name of a dtype or a contract"
        source.fail("TL102", f"`{word}` is not a size", start, end, why, "give the axis another name")
    if len(tree.children) == 1:
        return Axis(size)
    if len(tree.children) > 2:
        place = span(tree.children[2], shift)
        why = "an axis has one split: what lies in two levels has an axis for each"
        hint = (
            f"write `n/{tree.children[1]} g/{tree.children[2]} {size}`: blocks by the one, in each blocks by the other"
        )
        source.fail("TL103", f"`{size}` is split twice", *place, why, hint)
    return Axis(size, _split(source, size, str(tree.children[1]), span(tree.children[1], shift), named))


def _split(source: Text, size: Size, split: str, place: tuple[int, int], named: tuple[str, ...]) -> str:
    if isinstance(size, Dim) and size.name in named and split != size.name:
        name = size.name
        why = f"a rank holds whole slices of {name}"
        source.fail("TL103", f"{name} is split by `{split}`", *place, why, f"write `{name}/{name}` or `{name}`")
    if split in named:
        return split
    if not split[0].islower():
        over = " or ".join(f"`/{name}`" for name in named)
        why = f"an axis is split over the ranks, {over}, or by an offsets table, a parameter of the program"
        source.fail(
            "TL103",
            f"`{size}` is split over `{split}`",
            *place,
            why,
            f"write `{size}/{named[0]}`, or two axes: `{size} {split}`",
        )
    return split


def _one_split(source: Text, tree: Tree[Token], axes: list[Axis], shift: int, named: tuple[str, ...]) -> None:
    for name in named:
        split = [a for a in axes if a.split == name]
        if len(split) < 2:
            continue
        start, end = span(tree, shift)
        why = "every element of a tensor has one owner, found from one axis"
        source.fail(
            "TL103", f"`{split[0]}` and `{split[1]}` are both split", start, end, why, "split one axis of a tensor"
        )


def _size(source: Text, node: Tree[Token] | Token, shift: int, named: tuple[str, ...]) -> Size:
    if isinstance(node, Tree):
        left, right = (_size(source, c, shift, named) for c in node.children)
        return Sum(left, right) if node.data == "sum" else Product(left, right)
    if node.type == "NAME":
        return Dim(str(node), ranks=str(node) in named and str(node) != RANK_AXIS)
    if int(node) == 0:
        source.fail(
            "TL102", "an axis of size 0", *span(node, shift), "an axis has at least one element", "leave it out"
        )
    return int(node)
