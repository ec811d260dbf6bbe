"""Signatures and owner maps: what they mean, that they print as they read, and what is said where they do not read."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import example, given
from hypothesis import strategies as st

from tests.frontend.harness import message
from tests.selection import table
from tests.speed import least_cpu_s
from tilelink.errors import Loc, TilelinkError
from tilelink.frontend import parse_owner, parse_shape, parse_signature
from tilelink.ir.formula import evaluate
from tilelink.ir.shape import ITEM_BYTES, Axis, Computed, Contract, Dim, Shape, Signature


def test_tensors_on_both_sides() -> None:
    read = parse_signature("M/R K, K N -> M N")
    assert read.inputs == (
        Shape((Axis(Dim("M"), "R"), Axis(Dim("K")))),
        Shape((Axis(Dim("K")), Axis(Dim("N")))),
    )
    assert read.outputs == (Shape((Axis(Dim("M")), Axis(Dim("N")))),)
    assert read.global_dims() == {"M"}


def test_no_outputs() -> None:
    assert parse_signature("M, N").outputs == ()


@table("text, position", [("... M", 0), ("M ... N", 1), ("R M/R ...", 2), ("...", 0)])
def test_rest(text: str, position: int) -> None:
    assert parse_signature(text).inputs[0].rest == position


def test_computed_sizes() -> None:
    shape = parse_shape("e+1 T*K 2*e+3*f 4")
    assert [a.size for a in shape.axes] == [
        Computed("+", Dim("e"), 1),
        Computed("*", Dim("T"), Dim("K")),
        Computed("+", Computed("*", 2, Dim("e")), Computed("*", 3, Dim("f"))),
        4,
    ]
    assert [a.unit for a in shape.axes] == [True, False, False, False]


def test_splits() -> None:
    assert [a.split for a in parse_shape("P/start e/R M").axes] == ["start", "R", None]


@table(
    "text, dtype, contract",
    [
        ("P i32", "i32", None),
        ("P permutation", None, Contract("permutation")),
        ("e+1 i32 offsets", "i32", Contract("offsets")),
        ("T K i32 <e", "i32", Contract("below", Dim("e"))),
        ("T K <e*K+1", None, Contract("below", Computed("+", Computed("*", Dim("e"), Dim("K")), 1))),
    ],
)
def test_dtype_and_contract(text: str, dtype: str | None, contract: Contract | None) -> None:
    shape = parse_shape(text)
    assert (shape.dtype, shape.contract) == (dtype, contract)


def test_blanks_around_commas_and_arrows_do_not_matter() -> None:
    wide = parse_signature("  M/R   K ,K N->M\n N ")
    assert (wide.inputs, wide.outputs) == (lambda s: (s.inputs, s.outputs))(parse_signature("M/R K, K N -> M N"))


def test_the_signature_remembers_where_it_stands() -> None:
    loc = Loc("program.py", 12)
    assert parse_signature("M -> M", loc).loc == loc


def test_a_signature_takes_less_than_a_millisecond() -> None:
    """Each is parsed for the first time."""
    parse_signature("M")
    texts = (f"M/R K{i}, K{i} N -> M N" for i in count())
    assert least_cpu_s(lambda: [parse_signature(next(texts)) for _ in range(40)], 0.04) < 0.04


# ---------------------------------------------------------------------------------------------------------- round trip
names = st.sampled_from(["M", "N", "K", "T", "e", "g", "head", "Rows", "s1"])
atoms = st.one_of(names.map(Dim), st.integers(1, 99))
products = st.recursive(atoms, lambda inner: st.builds(Computed, st.just("*"), inner, atoms), max_leaves=3)
sizes = st.recursive(products, lambda inner: st.builds(Computed, st.just("+"), inner, products), max_leaves=3)
plain = st.builds(Axis, sizes)
ranks = st.just(Axis(Dim("R")))
tables = st.builds(Axis, names.map(Dim), st.sampled_from(["start", "offs_2"]))
split = st.builds(Axis, st.one_of(sizes, st.just(Dim("R"))), st.just("R"))
contracts = st.one_of(
    st.none(),
    st.sampled_from([Contract("offsets"), Contract("permutation")]),
    sizes.map(lambda s: Contract("below", s)),
)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    axes = draw(st.lists(st.one_of(plain, ranks, tables), max_size=4))
    if draw(st.booleans()):
        axes.insert(draw(st.integers(0, len(axes))), draw(split))
    rest = draw(st.one_of(st.none(), st.integers(0, len(axes)))) if axes else 0
    return Shape(tuple(axes), rest, draw(st.one_of(st.none(), st.sampled_from([*ITEM_BYTES]))), draw(contracts))


@given(st.lists(shapes(), min_size=1, max_size=4), st.lists(shapes(), max_size=3))
def test_what_is_printed_reads_the_same(inputs: list[Shape], outputs: list[Shape]) -> None:
    text = str(Signature(tuple(inputs), tuple(outputs)))
    read = parse_signature(text)
    assert (list(read.inputs), list(read.outputs)) == (inputs, outputs)
    assert str(read) == text


words = st.sampled_from([*"MNKRe+*/,<.12()%-> \n\t", "->", "...", "/R", " ", "i32", "offsets", "M", "//", "é", "\x00"])


@given(st.one_of(st.text(max_size=40), st.lists(words, max_size=20).map("".join)))
@example("M" + "+1" * 499)
@example("9" * 5000)
@example("M N\x0c")
@example("²")
@example("M ²")
def test_any_text_reads_or_is_diagnosed(text: str) -> None:
    for read in (parse_signature, parse_shape, parse_owner):
        error = outcome(read, text)
        if error is not None:
            assert error.code in ("TL101", "TL102", "TL103", "TL104")
            assert error.loc is not None


def outcome(read: Callable[[str], object], text: str) -> TilelinkError | None:
    try:
        read(text)
    except TilelinkError as error:
        return error
    return None


# --------------------------------------------------------------------------------------------------------- owner maps
@table(
    "text, env, owner",
    [
        ("m -> m // 2048 % R", {"m": 10000, "RANKS": 4}, 0),
        ("m, n -> (m // 128 + n) % R", {"m": 300, "n": 5, "RANKS": 4}, 3),
        ("m -> m * R // M", {"m": 7, "M": 8, "RANKS": 4}, 3),
        ("m -> R - 1 - m // 4", {"m": 9, "RANKS": 4}, 1),
        ("m->m-1-1", {"m": 9, "RANKS": 4}, 7),
        ("m -> (1 - 1) * m", {"m": 9, "RANKS": 4}, 0),
    ],
)
def test_owner_maps_compute(text: str, env: dict[str, int], owner: int) -> None:
    term = parse_owner(text)
    assert evaluate(term.formula, env) == owner
    assert eval(str(term.formula), dict(env)) == owner


def test_an_owner_map_prints_as_one_writes_it() -> None:
    assert str(parse_owner("m,n->(m//128+n)%R")) == "m, n -> (m // 128 + n) % R"


# --------------------------------------------------------------------------------------------------------- diagnostics
RULE = (
    "blanks separate axes; an axis is a name (`M`, `e`), a number, `e+1`, `T*K`, `R` or `...`; `/R` behind it splits it"
)
OWNER = "an owner map is `names -> expression`, with names, numbers, `R`, + - * // % and parentheses"
FIRST = "axes come first, then the dtype, then the contract"
SLASH = "what splits an axis follows the `/` without a blank"
BY = "an axis is split over the ranks, `/R`, or by an offsets table, a parameter of the program"


def rendered(code: str, what: str, text: str, carets: str, why: str, hint: str) -> str:
    lines = [f"{code}: {what}", "  --> a.py:7"]
    if text.strip():
        lines += ["    |", f"  7 | {text}", f"    | {carets}"]
    return "\n".join([*lines, f"  why: {why}", f"  do:  {hint}"])


@table(
    "text, code, what, carets, why, hint",
    [
        ("", "TL101", "nothing is written here", "", RULE, "write the shapes of the tensors, such as `M K, K N -> M N`"),
        ("M/ K", "TL101", "nothing splits this axis", " ^", SLASH, "write `M/R`, or the name of the table after the slash"),
        ("K, M/", "TL101", "nothing splits this axis", "    ^", SLASH, "write `M/R`, or the name of the table after the slash"),
        ("M /R K", "TL101", "a blank before `/`", "  ^", "blanks separate axes", "write `M/R` without the blank"),
        ("M K,", "TL101", "it ends too early", "   ^", RULE, "go on after `K,`"),
        ("M ->", "TL101", "it ends too early", "   ^", RULE, "go on after `->`"),
        ("e+", "TL101", "it ends too early", " ^", RULE, "go on after `e+`"),
        ("M,,K", "TL101", "`,` does not belong here", "  ^", RULE, "write one tensor between commas"),
        ("M -> -> K", "TL101", "`->` does not belong here", "     ^^", RULE, "write one `->`, with tensors on both sides"),
        ("-> N", "TL101", "`->` does not belong here", "^^", RULE, "write one `->`, with tensors on both sides"),
        ("M K # x", "TL101", "`#` does not belong here", "    ^", RULE, "take it out, or write an axis in its place"),
        ("M (K)", "TL101", "`(K)` does not belong here", "  ^^^", RULE, "take it out, or write an axis in its place"),
        ("f32", "TL102", "a tensor without axes", "^^^", "a tensor has at least one axis", "write its axes first"),
        ("... M ...", "TL102", "`...` twice in one tensor", "      ^^^", "`...` stands for all axes that are not named", "keep one of them"),
        ("i32 M", "TL102", "`M` after `i32`", "    ^", FIRST, "move `i32` to the end of the tensor"),
        ("M i32 ...", "TL102", "`...` after `i32`", "      ^^^", FIRST, "move `i32` to the end of the tensor"),
        ("M <e M", "TL102", "`M` after `<e`", "     ^", FIRST, "move `<e` to the end of the tensor"),
        ("M offsets permutation", "TL102", "`permutation` after `offsets`", "          ^^^^^^^^^^^", "a tensor makes one promise about its values", "keep one of them"),
        ("M i32 f32", "TL102", "`f32` after `i32`", "      ^^^", "a tensor has one dtype", "keep one of them"),
        ("M offsets i32", "TL102", "`i32` after `offsets`", "          ^^^", FIRST, "write `i32 offsets`"),
        ("M int32", "TL102", "`int32` is no dtype here", "  ^^^^^", f"dtypes are {', '.join(ITEM_BYTES)}", "write `i32`"),
        ("R+1", "TL102", "`R+1` computes with R", "^^^", "R is the axis of ranks; its size "
                                                         "is their number", "name a size of its own"),
        ("M i32/R", "TL102", "`i32` is not a size", "  ^^^^^", "`i32` is the name of a dtype or a contract", "give the axis another name"),
        ("M 0", "TL102", "an axis of size 0", "  ^", "an axis has at least one element", "leave it out"),
        ("R/start", "TL103", "R is split by `start`", "  ^^^^^", "a rank holds whole slices of R", "write `R/R` or `R`"),
        ("M/K N", "TL103", "`M` is split over `K`", "  ^", BY, "write `M/R`, or two axes: `M K`"),
        ("K, M/R N/R", "TL103", "`M/R` and `N/R` are both split", "   ^^^^^^^", "every element of a tensor has "
                                                                                "one owner, found from one axis", "split one axis of a tensor"),
    ],
)  # fmt: skip
def test_diagnosed_signatures(text: str, code: str, what: str, carets: str, why: str, hint: str) -> None:
    assert message(lambda: parse_signature(text, Loc("a.py", 7))) == rendered(code, what, text, carets, why, hint)


@table(
    "text, what, carets, why, hint",
    [
        ("m", "it ends too early", "^", OWNER, "go on after `m`"),
        ("m -> m /", "`/` does not belong here", "       ^", OWNER, "take it out"),
        ("m -> k", "`k` is not defined", "     ^", "the variables are m", "name the axis before `->`"),
        ("m -> m // 0", "division by zero", "          ^", "an owner is a rank", "divide by the rows of one owner"),
        ("M -> M", "`M` is no variable", "^", "each axis has a lower-case name of its own", "rename it"),
        ("m, m -> m", "`m` is no variable", "   ^", "each axis has a lower-case name of its own", "rename it"),
    ],
)
def test_diagnosed_owner_maps(text: str, what: str, carets: str, why: str, hint: str) -> None:
    assert message(lambda: parse_owner(text, Loc("a.py", 7))) == rendered("TL104", what, text, carets, why, hint)


def test_too_long() -> None:
    assert message(lambda: parse_signature("M " * 600, Loc("a.py", 7))).splitlines()[0] == (
        "TL101: longer than 1000 characters"
    )


def test_more_than_one_shape() -> None:
    text = rendered("TL101", "this is more than one tensor", "M, N", "^^^^", "one tensor is declared at a time", "declare each by itself")  # fmt: skip
    assert message(lambda: parse_shape("M, N", Loc("a.py", 7))) == text


def test_the_caret_is_in_its_line_of_a_longer_text() -> None:
    text = rendered("TL101", "nothing splits this axis", "  K/ N", "   ^", SLASH, "write `K/R`, or the name of "
                                                                                  "the table after the slash")  # fmt: skip
    assert message(lambda: parse_signature("M K,\n  K/ N\n -> M", Loc("a.py", 7))) == text
