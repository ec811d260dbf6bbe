"""Expressions: text, formula and meaning agree; coordinates of ranks wrap."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.ops import captured, lines, only
from tests.selection import cases, table
from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.values import Variable, joined, named
from tilelink.ir.formula import Sym, evaluate, symbols
from tilelink.ir.formula import text as formula_text
from tilelink.ir.program import At, Expr, Load, Loop, Store

LANGUAGE = SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min, maximum=max)


def expression(text: str, before: str = "") -> Expr:
    """The lowered form of an expression over coordinates `s`, `owner` and positions `e`, `f`."""
    program = captured(
        "e f R/R M, M/R -> e f R/R M",
        "a, rows, out, *, flag: bool = True",
        f"e, f, s, m = tl.tile_id(out)\nowner = tl.rank_of(rows, m)\n{before}\ntl.tile_store(out, (e, f, s, m), {text})",
    )
    store = program.body[-1]
    assert isinstance(store, Store)
    return store.value


@table(
    "written, text, ring",
    [
        ("s", "s", ("s", 0)),
        ("s + 1", "(s + 1) % RANKS", ("s", 1)),
        ("1 + s", "(s + 1) % RANKS", ("s", 1)),
        ("s - 1", "(s + RANKS - 1) % RANKS", ("s", -1)),
        ("s + 3", "(s + 3) % RANKS", ("s", 3)),
        ("s - 3", "(s + RANKS - 3 % RANKS) % RANKS", ("s", -3)),
        ("s + -2", "(s + RANKS - 2 % RANKS) % RANKS", ("s", -2)),
        ("s + 1 + 1", "(s + 2) % RANKS", ("s", 2)),
        ("s + 1 - 1", "s", ("s", 0)),
        ("owner + 1", "(owner + 1) % RANKS", ("owner", 1)),
        ("s + e", "(s + e) % RANKS", ("s", 3)),
        ("s - e", "(s + RANKS - e % RANKS) % RANKS", ("s", -3)),
        ("e - s", "(e + RANKS - s) % RANKS", None),
        ("k - s", "(k % RANKS + RANKS + RANKS - s) % RANKS", None),
        ("-3 - s", "(-3 % RANKS + RANKS + RANKS - s) % RANKS", None),
        ("s - owner", "(s + RANKS - owner) % RANKS", None),
        ("s - owner + 1", "((s + RANKS - owner) % RANKS + 1) % RANKS", None),
        ("s * 2", "s * 2", None),
        ("s * 2 + 1", "s * 2 + 1", None),
        ("s // 2", "s // 2", None),
        ("nxt", "nxt", ("s", 1)),
        ("nxt + 1", "(s + 2) % RANKS", ("s", 2)),
        ("either", "either", None),
        ("either + 1", "(either + 1) % RANKS", None),
        ("s if flag else owner", "s if flag else owner", None),
    ],
)
def test_coordinates_wrap(written: str, text: str, ring: tuple[str, int] | None) -> None:
    program = captured(
        "R/R M, M/R -> R M/R",
        "a, rows, out, *, flag: bool = True, k: int = -4",
        f"""
s, m = tl.tile_id(a)
owner = tl.rank_of(rows, m)
e = 3
nxt = s + 1
either = s
if flag:
    either = owner
tl.tile_push_data(out, ({written}, m), 0)
""",
    )
    push = program.body[-1]
    assert isinstance(push, Store)
    assert isinstance(push.index[0], At)
    assert str(push.index[0].expr) == text
    assert push.index[0].ring == ring


def test_a_coordinate_that_changed_is_known_by_what_it_was_made_of() -> None:
    program = captured(
        "R/R M, M/R -> R M/R",
        "a, rows, out",
        """
s, m = tl.tile_id(a)
at = tl.rank_of(rows, m)
nxt = at + 1
at = at + 1
tl.tile_push_data(out, (at, m), 0)
tl.tile_push_data(out, (nxt, m), 0)
""",
    )
    for push in program.body[-2:]:
        assert isinstance(push, Store)
        assert isinstance(push.index[0], At)
        assert push.index[0].ring == ("rows_owner", 1)


@table(
    "before, name, known",
    [
        ("at = tl.rank_of(rows, m)\nat = tl.rank_of(rows, 0)", "at", "rows_owner_2"),
        ("if flag:\n    at = tl.rank_of(rows, m)\nelse:\n    at = tl.rank_of(rows, 0)", "at", None),
        ("end = tl.size(a, 0)\nend = tl.size(a, 1)", "end", "f_size"),
        ("flag = flag + 1", "flag", "flag + 1"),
        ("if e > 2:\n    flag = 3", "flag", "(e > 2) * 3 + (e <= 2) * flag"),
        ("if flag > 2:\n    flag = 3", "flag", "(flag > 2) * 3 + (flag <= 2) * flag"),
        ("for i in range(2):\n    flag = flag + i", "flag", None),
    ],
)
def test_a_name_that_is_bound_again_is_known_by_names_that_are_not(before: str, name: str, known: str | None) -> None:
    found = expression(name, before).formula
    assert (None if found is None else formula_text(found)) == known


@table("one, other, either", [(0, 2, 2), (2, 0, 2), (1, 1, 1), (1, 2, -1), (0, -1, -1)])
def test_what_a_name_is_on_two_paths(one: int, other: int, either: int) -> None:
    """Dimensions of a block: a number may become one, and of two that differ nothing is known."""
    loc = Loc("user.py", 1)
    a, b = (Variable(named("x", rank=rank), loc) for rank in (one, other))
    assert joined(a, b, "x", positional=True).value.rank == either


def test_a_walked_axis_of_ranks_is_a_coordinate() -> None:
    program = captured(
        "R/R M -> R M/R", "a, out", "s, m = tl.tile_id(a)\nfor q in tl.tiles(out, axis=0):\n    x = q + 1"
    )
    assert lines(program.body)[-1] == "  x = (q + 1) % RANKS"


@table(
    "written",
    [
        "(s + 1) * e",
        "e * 4 + s - owner // (s + 1)",
        "tl.tile_range(out, m) * (s - 1)",
        "s + 1 < tl.num_ranks()",
        "s + 1 == tl.num_ranks()",
        "-(s + 1)",
        "tl.minimum(s + 1, e)",
        "(s + e) % 2",
        "nxt * 2",
        "either * 2",
        "(s + 1 if flag else s) * 2",
        "int(s + 1) * 2",
        "swapped * 2",
    ],
)
def test_a_sum_with_a_coordinate_is_no_number(written: str) -> None:
    """After the last rank comes the first: `(s + 1) * part` would be 0 there, and `s + 1 == tl.num_ranks()` nowhere."""
    before = (
        "nxt = s + 1\neither = s\nif flag:\n    either = s + 1\nswapped, one = 1, s + 1\nswapped, one = one, swapped"
    )
    with pytest.raises(TilelinkError) as caught:
        expression(written, before)
    assert caught.value.code == "TL145"


@table("written", ["s + 1", "s * e + e", "owner == s + 1", "(s + e) % tl.num_ranks() * 2", "(s + 1 - 1) * 2"])
def test_a_sum_with_a_coordinate_may_stay_one(written: str) -> None:
    assert expression(written).formula is not None


def test_what_may_be_a_number_is_taken_round() -> None:
    """A coordinate lies on the ring as it is; what one branch says outright need not."""
    assert str(expression("(s + 1) % tl.num_ranks() * 2")) == "(s + 1) % RANKS * 2"
    assert str(expression("(s + 1 if flag else 9) % tl.num_ranks()")) == "((s + 1) % RANKS if flag else 9) % RANKS"


# ------------------------------------------------------------------------------------------- text, formula, meaning
class Rank(int):
    """What a coordinate means: an integer modulo the number of ranks."""

    size = 1

    def __new__(cls, value: int) -> Rank:
        return super().__new__(cls, value % cls.size)

    def __add__(self, other: int) -> Rank:
        return Rank(int(self) + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> Rank:
        return Rank(int(self) - int(other))

    def __rsub__(self, other: int) -> Rank:
        return Rank(int(other) - int(self))


def lowest(a: int, b: int) -> int:
    return min(int(a), int(b))


def highest(a: int, b: int) -> int:
    return max(int(a), int(b))


def choose(test: object, a: int, b: int) -> int:
    same = isinstance(a, Rank) and isinstance(b, Rank)
    picked = a if test else b
    return picked if same else int(picked)


class Choice(ast.NodeTransformer):
    """`a if t else b` with the meaning of `choose`: its type does not depend on the test."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(ast.Name("choose", ast.Load()), [node.test, node.body, node.orelse], [])


def unless_refused(written: str) -> Expr | None:
    """None: a sum with a coordinate is taken for a number."""
    try:
        return expression(written)
    except TilelinkError as error:
        if error.code != "TL145":
            raise
        return None


leaves = st.sampled_from(["s", "owner", "e", "f", "0", "1", "2", "5"])


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    test = st.builds("({} {} {})".format, inner, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner)
    both = st.builds("({} {} {})".format, test, st.sampled_from(["and", "or"]), test)
    tests = st.one_of(test, test.map("(not {})".format), both)
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.integers(1, 5)),
        st.builds("min({}, {})".format, inner, inner),
        st.builds("max({}, {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, tests, inner),
    )


@cases(150)
@given(
    st.recursive(leaves, compound, max_leaves=6),
    st.integers(1, 5).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, r - 1), st.integers(0, r - 1))),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_text_and_formula_mean_what_is_written(written: str, ranks: tuple[int, int, int], e: int, f: int) -> None:
    count, s, owner = ranks
    Rank.size = count
    meaning = ast.fix_missing_locations(Choice().visit(ast.parse(written, mode="eval")))
    own = {"s": Rank(s), "owner": Rank(owner), "e": e, "f": f, "min": lowest, "max": highest, "choose": choose}
    wanted = int(eval(compile(meaning, "written", "eval"), own))
    found = unless_refused(written)
    if found is None:
        assert {"+", "-"} & {*written}
        return
    env = {"s": s, "owner": owner, "e": e, "f": f, "RANKS": count}
    assert eval(found.text, {"min": min, "max": max}, env) == wanted
    assert found.formula is not None
    assert evaluate(found.formula, env) == wanted
    assert symbols(found.formula) <= env.keys()
    assert eval(formula_text(found.formula), {"tl": LANGUAGE}, env) == wanted
    names = {n.id for n in ast.walk(ast.parse(found.text)) if isinstance(n, ast.Name)} - {"min", "max"}
    assert set(found.names) == names


@table(
    "text, before, formula",
    [
        ("x", "x = e + 1", "e + 1"),
        ("x + y", "x = e + 1\ny = x * 2", "e + 1 + (e + 1) * 2"),
        ("x", "x = e\nx = x + 1", "e + 1"),
        ("tl.cdiv(e, 2)", "", "tl.cdiv(e, 2)"),
        ("tl.minimum(e, f)", "", "tl.minimum(e, f)"),
        ("int(e == f)", "", "e == f"),
        ("+e", "", "e"),
        ("-e", "", "0 - e"),
        ("flag", "", "flag"),
        ("tl.size(a, 3)", "", "M_size"),
        ("x", "if flag:\n    x = 1\nelse:\n    x = e", "(flag != 0) + (flag == 0) * e"),
        ("x", "x = 1\nif e == 0:\n    x = 1", "1"),
        ("e == 1 and f == 2 or flag", "", "(e == 1) & (f == 2) | (flag != 0)"),
        ("(e == 1) & (f == 2) | (e < f)", "", "(e == 1) & (f == 2) | (e < f)"),
        ("(e == 1) & flag", "", None),
        ("y", "y = 0\nfor i in range(3):\n    x = i + 1\n    y = x", None),
        ("e // 0", "", None),
        ("e / 2", "", None),
        ("e & 1", "", None),
        ("tl.abs(e)", "", None),
        ("1.5", "", None),
        ("x", "x = 0\nfor i in range(3):\n    x += 1", None),
        ("x", "if e == 0:\n    x = tl.size(a, 0)\nelse:\n    x = tl.size(a, 1)", None),
        ("x", "x = e\n" + "x = x + x\n" * 12, None),
    ],
)
def test_formulas_follow_assignments(text: str, before: str, formula: str | None) -> None:
    found = expression(text, before).formula
    assert (None if found is None else formula_text(found)) == formula


@table(
    "text, written, formula",
    [
        ("(e > 1) + (f > 1)", None, "(e > 1) != (f > 1)"),
        ("(e > 1) - flag", None, "(e > 1) != flag"),
        ("True + (e > 1)", None, "1 != (e > 1)"),
        ("-(e > 1)", None, "e > 1"),
        ("(e > 1) // (f > 1)", None, None),
        ("(e > 1) + 1", None, "(e > 1) + 1"),
        ("((e > 1) if flag else (e > 2)) + (f > 1)", None, "(flag != 0) & (e > 1) | (flag == 0) & (e > 2) != (f > 1)"),
        ("~(e > 1)", None, "e <= 1"),
        ("(e > 1) * (f > 1) + (e > 2)", None, "(e > 1) & (f > 1) != (e > 2)"),
        ("tl.minimum(e > 1, f > 1) - (e > 2)", None, "(e > 1) & (f > 1) != (e > 2)"),
        ("-tl.maximum(e > 1, f > 1)", None, "(e > 1) | (f > 1)"),
        ("tl.where(e > 1, f > 1, True) + (e > 2)", None, "tl.where(e > 1, 1, 0) * (f > 1) + (e <= 1) != (e > 2)"),
        ("tl.where(e > 1, 1, 0) + tl.where(f > 1, 1, 0)", None, "tl.where(e > 1, 1, 0) + (f > 1)"),
        ("(e > 1) * 1 - (f > 1)", None, "tl.where(e > 1, 1, 0) - (f > 1)"),
        ("~tl.where(e > 1, 1, 0)", None, "-1 - (e > 1)"),
        ("tl.where(e > 1, 1, 0) + flag", None, "tl.where(e > 1, 1, 0) + (flag != 0)"),
        ("((e > 1) if flag else 0) + (f > 1)", None, None),
        ("(not e > 1) + (f > 1)", "((e > 1) == 0) + (f > 1)", "(e <= 1) != (f > 1)"),
        ("~flag", None, "-1 - flag"),
        ("flag + flag", None, "flag + flag"),
        ("-flag", None, "0 - flag"),
        ("3 or 5", None, "3"),
        ("3 and 5", None, "5"),
        ("0 or 5", None, "5"),
        ("e or 5", "e != 0 or 5 != 0", "(e != 0) | 1"),
        ("e and f + 1 and flag", "e != 0 and f + 1 != 0 and flag", "(e != 0) & (f + 1 != 0) & (flag != 0)"),
        ("flag and e > 1", None, "(flag != 0) & (e > 1)"),
    ],
)
def test_truths_of_a_kernel_are_bits_and_those_of_the_compiler_numbers(
    text: str, written: str | None, formula: str | None
) -> None:
    found = expression(text)
    assert found.text == (written or ast.unparse(ast.parse(text)))
    assert (None if found.formula is None else formula_text(found.formula)) == formula


@table("text", ["tl.where(e > 1, 1, 0) {} tl.where(f > 1, 1, 0)", "2 {} ((e > 1) * 1 {} (f > 1))"])
@table("op", ["+", "-"])
def test_truths_taken_for_numbers_are_numbers_of_arrays(text: str, op: str) -> None:
    text = text.replace("{}", op)
    found = expression(text).formula
    assert found is not None
    blocks = {"e": np.arange(4)[:, None], "f": np.arange(4)[None, :]}
    wanted = eval(text, {"tl": SimpleNamespace(where=np.where), **{n: v.astype(object) for n, v in blocks.items()}})
    assert evaluate(found, blocks).tolist() == wanted.tolist()


def test_texts_of_formulas_take_blocks() -> None:
    """An emitted file counts the words of a tensor in blocks, of which `and`, `or` and `not` would ask for one truth."""
    found = expression("not (e == 1 and f != 2 or e > 2)").formula
    assert found is not None
    blocks = {"e": np.arange(4)[:, None], "f": np.arange(4)[None, :]}
    assert (eval(formula_text(found), blocks) == evaluate(found, blocks)).all()


def test_formulas_take_arrays() -> None:
    found = expression("owner != s + 1").formula
    assert found is not None
    got = evaluate(found, {"owner": np.arange(4), "s": 3, "RANKS": 4})
    assert got.tolist() == [False, True, True, True]


def test_loops_count_in_formulas() -> None:
    program = captured(
        "K M -> K M", "a, out", "k, m = tl.tile_id(out)\nfor i in range(3):\n    x = tl.tile_load(a, (i + 1, m))"
    )
    (load,) = only(Load, program)
    assert isinstance(load.index[0], At)
    assert load.index[0].expr.formula == Sym("i") + 1


def test_an_inner_loop_that_counts_by_the_same_name() -> None:
    program = captured(
        "K M -> K M",
        "a, out",
        """
k, m = tl.tile_id(out)
for i in range(3):
    x = i + 1
    one = tl.tile_load(a, (x, m))
    for i in range(2):
        two = tl.tile_load(a, (x, m))
""",
    )
    one, two = only(Load, program)
    assert isinstance(one.index[0], At)
    assert isinstance(two.index[0], At)
    assert one.index[0].expr.formula == two.index[0].expr.formula == Sym("i") + 1
    (outer,) = only(Loop, program)[:1]
    (inner,) = (op for op in outer.body if isinstance(op, Loop))
    assert (outer.target, inner.target) == ("i", "i_2")


@table(
    "written, text",
    [
        ("tl.float32", "tl.float32"),
        ("tl.math.exp(1.0)", "tl.math.exp(1.0)"),
        ("-1e30", "-1e+30"),
        ("float('inf')", "float('inf')"),
        ("[1, 2]", "(1, 2)"),
        ("(1,)", "(1,)"),
        ("x is None", "x is None"),
        ("x is not None", "x is not None"),
        ("~x & 3 | 4 ^ 5", "~x & 3 | 4 ^ 5"),
        ("x << 2 >> 1", "x << 2 >> 1"),
        ("x[:, None]", "x[:, None]"),
        ("x[None, :]", "x[None, :]"),
        ("1 if x.shape[0] > 1 else 0", "1 if x.shape[0] > 1 else 0"),
        ("tl.sum(x, axis=1, keep_dims=True)", "tl.sum(x, axis=1, keep_dims=True)"),
        ("x.to(tl.float32, bitcast=True)", "x.to(tl.float32, bitcast=True)"),
        ("(x + 1) * 2", "(x + 1) * 2"),
    ],
)
def test_other_expressions_stay_as_they_are(written: str, text: str) -> None:
    assert expression(written, "x = tl.tile_load(a, (e, f, s, m))").text == text
