"""Whatever is done to a program, capture gives a program or a diagnostic, never a failure of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.frontend import operators as o
from tests.frontend.harness import HEADER, run_cell
from tests.selection import cases, table
from tilelink.errors import TilelinkError
from tilelink.frontend import Program, SymbolicTensor, parse_signature, trace
from tilelink.frontend.source import plain_function, read_source
from tilelink.ir.shape import Signature
from tilelink.ir.wiring import Wiring

PROGRAMS = [p for p in vars(o).values() if isinstance(p, Program)]
EXPRESSIONS = [
    "m", "s", "tile", "out", "a", "3", "-1", "None", "'x'", "1.5", "tl", "tl.size(out, 0)", "tl.tile_load(out)", "(m, n)", "()",
    "tl.tile_range(out)", "tl.rank_of(out, m)", "x[0]", "tile[0]", "tile[:1]", "tl.zeros((2,))", "x.shape", "s + 1", "s - owner",
    "m if x else n", "x and y", "not x", "[m for m in n]", "lambda: 0", "tl.tiles(out)", "range(3)", "NEG", "len(x)", "min(1, 2)",
]  # fmt: skip


@dataclass
class Changed(ast.NodeTransformer):
    """Puts an expression in the place of the `at`-th one."""

    at: int
    new: ast.expr
    seen: int = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            self.seen += 1
            if self.seen == self.at:
                return self.new
        return super().generic_visit(node)


def mutated(program: Program, at: int, new: str, dropped: int, moved: int) -> str:
    """The program's source with one expression replaced, one line left out, one line moved to the front."""
    source = read_source(plain_function(program.function))
    tree = ast.parse(ast.unparse(source.node)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    change = Changed(at, ast.parse(new, mode="eval").body)
    tree.body = [change.visit(statement) for statement in tree.body] if at else tree.body
    if dropped < len(tree.body) and len(tree.body) > 1:
        del tree.body[dropped]
    if moved < len(tree.body):
        tree.body.insert(0, tree.body.pop(moved))
    text = ast.unparse(ast.fix_missing_locations(tree))
    return f'{HEADER}NEG = -1e30\n@program("{program.signature}")\n{text}\n'


def outcome(source: str) -> TilelinkError | None:
    found = next(v for v in run_cell(source).values() if isinstance(v, Program))
    try:
        _ = found.captured
    except TilelinkError as error:
        return error
    return None


@table("program", PROGRAMS, ids=lambda p: p.name)
def test_unchanged_programs_are_captured(program: Program) -> None:
    assert outcome(mutated(program, 0, "0", 99, 99)) is None


# Python itself remarks on what is put in, such as `3(x)`.
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@cases(300)
@given(
    st.sampled_from(PROGRAMS),
    st.integers(0, 60),
    st.sampled_from(EXPRESSIONS),
    st.integers(0, 30),
    st.integers(0, 30),
)
@example(o.ring, 3, "s - owner", 99, 99)
def test_changed_programs(program: Program, at: int, new: str, dropped: int, moved: int) -> None:
    error = outcome(mutated(program, at, new, dropped, moved))
    if error is not None:
        assert error.code.startswith(("TL1", "TL2"))
        assert error.loc is not None
        assert error.why
        assert error.hint


SIGNATURES = [
    "M/R K, K N", "M K/R, K/R N", "M N", "T/R H, T/R K i32, e H I/R", "e/R R C H, e/R R i32, T/R K", "R/R M N, M/R N",
    "P/start K, e+1 i32, T*K i32", "M ..., R/R ...", "R M/R N", "b S/R g D, b g Q D",
]  # fmt: skip


@cases(200)
@given(
    st.sampled_from(SIGNATURES),
    st.lists(st.tuples(st.sampled_from(PROGRAMS), st.lists(st.integers(0, 9), min_size=1, max_size=5)), max_size=4),
    st.dictionaries(st.sampled_from("MNKTCPe"), st.integers(1, 9), max_size=2),
    st.integers(1, 4),
)
def test_programs_connected_at_random(
    text: str, calls: list[tuple[Program, list[int]]], named: dict[str, int], ranks: int
) -> None:
    signature = parse_signature(text)
    sizes = dict.fromkeys((*signature.dims, "_0"), 8)

    def body(*arguments: SymbolicTensor) -> list[SymbolicTensor]:
        known = list(arguments)
        for number, (program, chosen) in enumerate(calls):
            tensors = [known[i % len(known)] for i in chosen]
            made = program(*tensors, name=f"step_{number}", **named)
            known += made if isinstance(made, tuple) else [made]
        return known

    error, wiring = traced(body, signature, sizes, ranks)
    if error is not None:
        assert error.code.startswith(("TL1", "TL2"))
        assert error.why
        assert error.hint
    else:
        assert wiring is not None
        assert len(wiring.steps) == len(calls)
        assert len({t.name for t in wiring.tensors}) == len(wiring.tensors)


def traced(
    body: Callable[..., object], signature: Signature, sizes: dict[str, int], ranks: int
) -> tuple[TilelinkError | None, Wiring | None]:
    parameters = ", ".join(f"a{i}" for i in range(len(signature.inputs)))
    fn = eval(f"lambda {parameters}: body({parameters})", {"body": body})
    dtypes = [s.dtype or "bf16" for s in signature.inputs]
    try:
        return None, trace("op", fn, signature, sizes, dtypes, {}, axes={"R": ranks})
    except TilelinkError as error:
        return error, None
