"""Signatures such as `M/R K, K N -> M N`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from lark import Token, Tree

from tilelink.errors import Loc
from tilelink.frontend.reading import Text, parse, span, text_of, trees
from tilelink.ir.shape import DTYPES, RANK_AXIS, Axis, Contract, Dim, Product, Shape, Signature, Size, Sum

CONTRACTS = ("offsets", "permutation")
_AXIS_RULE = (
    "blanks separate axes; an axis is a name (`M`, `e`), a number, `e+1`, `T*K`, `R` or `...`; `/R` behind it splits it"
)
_FOREIGN_DTYPES = {
    "float16": "f16", "half": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "fp32": "f32",
    "float64": "f64", "fp64": "f64", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float8e4m3": "f8e4m3", "float8e5m2": "f8e5m2",
}  # fmt: skip


def parse_signature(text: str, loc: Loc | None = None) -> Signature:
    """The signature of a tile program or an operator.

    Args:
        text: such as `M/R K, K N -> M N`.
        loc: where it stands, for diagnostics; the caret is put under the text itself.

    Raises:
        TilelinkError: TL101 (does not read), TL102 (words of one tensor), TL103 (a split).
    """
    return replace(_signature(text_of(text, loc)), loc=loc)


def parse_shape(text: str, loc: Loc | None = None) -> Shape:
    """The shape of one tensor, as `tilelink.symmetric` takes it.

    Raises:
        TilelinkError: TL101, TL102 or TL103.
    """
    source = text_of(text, loc)
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


@lru_cache(maxsize=1024)
def _signature(source: Text) -> Signature:
    tree, shift = parse(source, "signature", "TL101", _AXIS_RULE)
    inputs: list[Shape] = []
    outputs: list[Shape] = []
    for child in trees(tree):
        if child.data == "outputs":
            outputs = [_shape(source, t, shift) for t in trees(child)]
        else:
            inputs.append(_shape(source, child, shift))
    return Signature(tuple(inputs), tuple(outputs), source.text)


def _shape(source: Text, tree: Tree[Token], shift: int) -> Shape:
    axes: list[Axis] = []
    rest: int | None = None
    dtype: str | None = None
    contract: Contract | None = None
    for word in tree.children:
        start, end = span(word, shift)
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
        start, end = span(tree, shift)
        source.fail(
            "TL102", "a tensor without axes", start, end, "a tensor has at least one axis", "write its axes first"
        )
    _one_split(source, tree, axes, shift)
    return Shape(tuple(axes), rest, dtype, contract)


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


def _axis(source: Text, tree: Tree[Token], shift: int) -> Axis:
    size = _size(source, tree.children[0], shift)
    start, end = span(tree, shift)
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
    return Axis(size, _split(source, size, str(tree.children[1]), span(tree.children[1], shift)))


def _split(source: Text, size: Size, split: str, place: tuple[int, int]) -> str:
    if split == RANK_AXIS:
        return split
    if size == Dim(RANK_AXIS):
        source.fail("TL103", f"R is split by `{split}`", *place, "a rank holds whole slices of R", "write `R/R` or `R`")
    if not split[0].islower():
        why = "an axis is split over the ranks, `/R`, or by an offsets table, a parameter of the program"
        source.fail(
            "TL103",
            f"`{size}` is split over `{split}`",
            *place,
            why,
            f"write `{size}/R`, or two axes: `{size} {split}`",
        )
    return split


def _one_split(source: Text, tree: Tree[Token], axes: list[Axis], shift: int) -> None:
    split = [a for a in axes if a.split == RANK_AXIS]
    if len(split) > 1:
        start, end = span(tree, shift)
        why = "every element of a tensor has one owner, found from one axis"
        source.fail(
            "TL103", f"`{split[0]}` and `{split[1]}` are both split", start, end, why, "split one axis of a tensor"
        )


def _size(source: Text, node: Tree[Token] | Token, shift: int) -> Size:
    if isinstance(node, Tree):
        left, right = (_size(source, c, shift) for c in node.children)
        return Sum(left, right) if node.data == "sum" else Product(left, right)
    if node.type == "NAME":
        return Dim(str(node))
    if int(node) == 0:
        source.fail(
            "TL102", "an axis of size 0", *span(node, shift), "an axis has at least one element", "leave it out"
        )
    return int(node)


def _dims(size: Size) -> set[str]:
    if isinstance(size, (Sum, Product)):
        return _dims(size.left) | _dims(size.right)
    return {size.name} if isinstance(size, Dim) else set()
