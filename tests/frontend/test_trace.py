"""Operators: which tensors there are, how steps see them, what they are called."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.frontend import operators as o
from tests.frontend.harness import message
from tests.frontend.operators import Operator
from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.frontend import (
    Extent,
    SymbolicTensor,
    bind_sizes,
    inline,
    parse_signature,
    program,
    symmetric,
    trace,
)
from tilelink.ir.formula import Const, Sym, evaluate
from tilelink.ir.formula import text as formula_text
from tilelink.ir.shape import RANK_AXIS, Contract
from tilelink.ir.wiring import TensorDecl, ViewAxis, Wiring

RANKS = 4
LOCAL: dict[str, list[tuple[int, ...]]] = {
    "ag_gemm": [(4, 8), (8, 6)],
    "ag_gemm_ring": [(4, 8), (8, 6)],
    "gemm_rs": [(16, 4), (4, 6)],
    "gemm_rs_epilogue": [(16, 4), (4, 6)],
    "gemm_rs_ring": [(16, 4), (4, 6)],
    "all_reduce": [(16, 6)],
    "mlp": [(4, 8), (8, 5), (8, 5), (5, 8)],
    "mlp_composed": [(4, 8), (8, 5), (5, 8)],
    "ag_moe": [(4, 8), (4, 2), (3, 8, 5)],
    "moe_layer": [(4, 8), (4, 2), (4, 2), (3, 8, 5), (3, 5, 8)],
    "ag_attention": [(4, 8, 16), (4, 2, 16), (4, 2, 16)],
    "flash_decode": [(2, 2, 4, 16), (2, 8, 2, 16), (2, 8, 2, 16)],
    "ep_dispatch": [(4, 8), (4, 2)],
    "ep_combine": [(2, 4, 16, 8), (2, 4), (4, 2), (4, 2), (9,), (4, 2)],
    "ep_layer": [(4, 8), (4, 2), (4, 2), (2, 8, 8)],
}
CONSTANTS: dict[str, dict[str, int]] = {
    "ep_dispatch": {"experts": 8, "capacity": 16},
    "ep_layer": {"capacity": 16},
}


def wired(name: str, **constants: Any) -> Wiring:
    op = getattr(o, name)
    assert isinstance(op, Operator)
    sizes = bind_sizes(op.signature, LOCAL[name], {"R": RANKS})
    dtypes = [s.dtype or "bf16" for s in op.signature.inputs]
    return trace(name, op.fn, op.signature, sizes, dtypes, {**CONSTANTS.get(name, {}), **constants}, axes={"R": RANKS})


def run(signature: str, body: Callable[..., Any], sizes: dict[str, int] | None = None, **constants: Any) -> Wiring:
    parsed = parse_signature(signature)
    dtypes = [s.dtype or "bf16" for s in parsed.inputs]
    default = {"M": 16, "K": 8, "N": 6, "e": 4, "T": 12}
    return trace("op", body, parsed, sizes or default, dtypes, constants, axes={"R": RANKS})


def shape(tensor: TensorDecl) -> str:
    """`M=M/R K=K`: name, size and split of every axis."""
    return " ".join(f"{a.name}={formula_text(a.size)}" + (f"/{a.split}" if a.split else "") for a in tensor.axes)


def tensors(wiring: Wiring) -> dict[str, str]:
    return {t.name: shape(t) for t in wiring.tensors}


def steps(wiring: Wiring) -> dict[str, dict[str, str]]:
    return {s.path: {b.param: b.tensor for b in s.bindings} for s in wiring.steps}


def view(wiring: Wiring, path: str, param: str) -> str:
    """`M@0/R K@1 local`: the axes of a parameter over those of its tensor."""
    step = next(s for s in wiring.steps if s.path == path)

    def one(v: ViewAxis) -> str:
        split = RANK_AXIS if v.axis is None or v.by_parts else v.of.split if v.of is not None and not v.local else None
        return f"{v.dim}@{'own' if v.axis is None else v.axis}" + (f"/{split}" if split else "") + " local" * v.local

    return " ".join(map(one, step.binding(param).view))


# --------------------------------------------------------------------------------------------- operators of the project
def test_ag_gemm() -> None:
    wiring = wired("ag_gemm")
    assert tensors(wiring) == {"x": "M=M/R K=K", "weight": "K=K N=N", "rows": "M=M K=K", "out": "M=M N=N"}
    assert steps(wiring) == {
        "gather": {"shard": "x", "rows": "rows"},
        "matmul": {"rows": "rows", "weight": "weight", "out": "out"},
    }
    assert (wiring.arguments, wiring.results) == (("x", "weight"), ("out",))
    assert wiring.sizes == ("M", "K", "N")
    assert view(wiring, "gather", "shard") == "M@0/R _0@1"
    assert [t.origin for t in wiring.tensors] == ["argument", "argument", "program", "program"]
    assert [t.dtype for t in wiring.tensors] == ["bf16"] * 4


def test_gemm_rs_sees_its_part_of_k_and_its_own_slice() -> None:
    wiring = wired("gemm_rs")
    assert tensors(wiring) == {
        "x": "M=M K=K/R",
        "weight": "K=K/R N=N",
        "matmul_out": "M=M N=N",
        "dst": "R=RANKS M=M/R N=N",
        "reduce_out": "M=M/R N=N",
    }
    assert view(wiring, "matmul", "rows") == "M@0 K@1 local"
    assert view(wiring, "scatter", "src") == "R@own/R M@0 _0@1"
    assert view(wiring, "scatter", "dst") == "R@0 M@1/R _0@2"
    assert view(wiring, "reduce", "inbox") == "s@0 M@1 local N@2"
    assert view(wiring, "reduce", "out") == "M@0 local N@1"


@program("M ... R/R -> M ...")
def inner(a: Any, out: Any) -> None:
    m = tl.tile_id(out)
    tl.tile_store(out, m, tl.tile_load(a, m))


def test_an_own_slice_behind_the_rest() -> None:
    wiring = run("M K N", lambda x: inner(x))
    assert view(wiring, "inner", "a") == "M@0 _0@1 _1@2 R@own/R"


def test_a_declared_tensor_is_called_as_its_user_calls_it() -> None:
    wiring = wired("gemm_rs_epilogue")
    inbox = wiring.tensor("inbox")
    assert (inbox.origin, shape(inbox), inbox.dtype) == ("declared", "R=RANKS M=M/R N=N", "bf16")
    assert wiring.results == ("out",)
    assert [s.path for s in wiring.producers("out")] == ["matmul_rs"]


def test_a_declared_tensor_like_another() -> None:
    wiring = wired("gemm_rs_ring")
    assert shape(wiring.tensor("inbox")) == "R=RANKS/R M=M N=N"
    assert wiring.tensor("inbox").axes[0].own_slice
    assert view(wiring, "ring", "partial") == "R@own/R M@0 N@1"
    assert view(wiring, "ring", "inbox") == "R@0/R M@1 N@2"


def test_an_own_slice_is_squeezed() -> None:
    wiring = wired("ag_gemm_ring")
    assert shape(wiring.tensor("rows")) == "R=RANKS/R M=M K=K"
    assert view(wiring, "matmul", "rows") == "M@1 K@2"


@table("shots, paths", [(1, ["share", "reduce"]), (2, ["scatter", "reduce", "gather"])])
def test_the_body_is_python(shots: int, paths: list[str]) -> None:
    assert [s.path for s in wired("all_reduce", shots=shots).steps] == paths


def test_moe_splits_by_a_table() -> None:
    wiring = wired("ag_moe")
    assert shape(wiring.tensor("out")) == "P=T * K/start N=I/R"
    assert shape(wiring.tensor("start")) == "e+1=e + 1"
    assert shape(wiring.tensor("order")) == "T*k=T * K"
    assert [wiring.tensor(t).dtype for t in ("counts", "order", "out")] == ["i32", "i32", "bf16"]
    assert view(wiring, "grouped", "out") == "P@0/start N@1 local"
    assert view(wiring, "grouped", "rows") == "T@0 H@1"
    assert wiring.results == ("out", "start", "slot")


def test_names_are_unique_and_readable() -> None:
    names = list(tensors(wired("moe_layer")))
    assert names[:5] == ["tokens", "choice", "gate", "up", "down"]
    assert "ag_moe_gather_rows" in names
    assert "ag_moe_gather_choice_rows" in names
    assert "gather_gate_rows" in names
    assert len(set(names)) == len(names)
    assert all(n.isidentifier() for n in names)


def test_local_sizes_are_the_most_a_rank_can_have() -> None:
    wiring = wired("ep_dispatch")
    (axis,) = wiring.tensor("order").axes
    assert formula_text(axis.size) == "tl.cdiv(T, RANKS) * K"
    assert evaluate(axis.size, {"T": 13, "K": 2, "RANKS": 4}) == 8
    assert view(wiring, "dispatch", "mine") == "e@0 R@own/R"
    assert shape(wiring.tensor("slot")) == "T=T/R k=K"
    assert shape(wiring.tensor("inbox")) == "e=8/R R=RANKS C=16 H=H"


def test_an_inlined_operator_sees_sizes_by_its_own_names() -> None:
    wiring = wired("ep_layer")
    assert shape(wiring.tensor("ep_dispatch_count_counts")) == "e=e"
    assert [s.path for s in wiring.steps][:3] == ["ep_dispatch.count", "ep_dispatch.place", "ep_dispatch.dispatch"]
    assert view(wiring, "expert_matmul", "inbox") == "e@0 local r@1 C@2 H@3"


def test_an_inlined_operator_takes_its_part_of_a_split_tensor() -> None:
    wiring = wired("mlp_composed")
    assert shape(wiring.tensor("ag_gemm_matmul_out")) == "M=M N=I/R"
    assert view(wiring, "ag_gemm.matmul", "weight") == "K@0 N@1 local"


def test_constants_of_steps() -> None:
    assert wired("ag_attention", causal=False).steps[-1].constants == (("causal", False),)
    assert wired("ag_attention").steps[-1].constants == (("causal", True),)
    assert formula_text(wired("flash_decode", splits=3).tensor("accs").axes[0].size) == "3"


@table("name", sorted(LOCAL))
def test_every_operator_is_wired(name: str) -> None:
    wiring = wired(name)
    names = {t.name for t in wiring.tensors}
    assert names >= {*wiring.arguments, *wiring.results}
    assert len({s.path for s in wiring.steps}) == len(wiring.steps)
    symbols = {*wiring.sizes, "RANKS"}
    for tensor in wiring.tensors:
        for axis in tensor.axes:
            assert {n.id for n in ast.walk(ast.parse(formula_text(axis.size))) if isinstance(n, ast.Name)} - {
                "tl"
            } <= symbols
            assert axis.split in (None, "R", *names)
        assert sum(a.split == "R" for a in tensor.axes) <= 1
    for step in wiring.steps:
        assert [b.param for b in step.bindings] == [p.name for p in step.program.params]
        inside, dot, _ = step.path.partition(".")
        assert step.loc.file == getattr(o, inside if dot else name).fn.__code__.co_filename
        for binding in step.bindings:
            axes = wiring.tensor(binding.tensor).axes
            seen = [v.axis for v in binding.view if v.axis is not None]
            assert [i for i, a in enumerate(axes) if i in seen or a.own_slice] == list(range(len(axes)))


def test_the_same_trace_twice() -> None:
    assert wired("moe_layer") == wired("moe_layer")


# --------------------------------------------------------------------------------------------------- bodies of operators
def test_sizes_carry_their_formula() -> None:
    seen: list[Any] = []

    def body(x: SymbolicTensor, weight: SymbolicTensor) -> Any:
        m, n = x.size("M"), weight.shape[1]
        seen.extend([m, n, m * 2, 2 * m, m + n, 1 + m, m - 1, 20 - m, m // 4, m % 5])
        return o.matmul(o.gather(x), weight)

    run("M/R K, K N -> M N", body)
    assert [(int(e), formula_text(e.formula)) for e in seen] == [
        (16, "M"),
        (6, "N"),
        (32, "M * 2"),
        (32, "2 * M"),
        (22, "M + N"),
        (17, "1 + M"),
        (15, "M - 1"),
        (4, "20 - M"),
        (4, "M // 4"),
        (1, "M % 5"),
    ]
    assert seen[0] == 16
    assert seen[0] / 2 == 8.0
    with pytest.raises(TypeError):
        _ = seen[0] + "x"  # type: ignore[operator]


def test_what_a_body_sees_of_a_tensor() -> None:
    def body(x: SymbolicTensor, table: SymbolicTensor) -> Any:
        assert [(a.name, int(a.size), a.split) for a in x.axes] == [("M", 16, "R"), ("e+1", 5, None)]
        assert (x.dtype, table.dtype) == ("bf16", "i32")
        assert (x.itemsize, table.itemsize) == (2, 4)
        assert repr(x) == "<x: M/R e+1 bf16, M=16, e+1=5>"
        return x

    wiring = run("M/R e+1, e+1 i32 offsets", body)
    assert wiring.tensor("table").contract == Contract("offsets")
    assert wiring.steps == ()
    assert wiring.results == ("x",)


def test_a_failed_trace_leaves_nothing_behind() -> None:
    def body(x: SymbolicTensor) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run("M", body)
    with pytest.raises(TilelinkError, match="TL211"):
        symmetric("M")


def test_dots_in_an_operator() -> None:
    wiring = run("M/R ... -> M ...", lambda x: o.gather(x), {"M": 16, "_0": 3, "_1": 5})
    assert tensors(wiring) == {"x": "M=M/R _0=_0 _1=_1", "rows": "M=M _0=_0 _1=_1"}
    assert wiring.sizes == ("M", "_0", "_1")


def test_a_table_of_an_operator() -> None:
    wiring = run("P/start K, e+1 i32", lambda rows, start: rows, {"P": 9, "K": 2, "e": 3})
    assert shape(wiring.tensor("rows")) == "P=P/start K=K"


def test_literal_sizes_and_ranks() -> None:
    wiring = run("R M/R 2*N 3", lambda x: x)
    assert shape(wiring.tensor("x")) == "R=RANKS M=M/R 2*N=2 * N 3=3"
    assert wiring.sizes == ("M", "N")


def test_results_that_are_given() -> None:
    def body(x: SymbolicTensor, weight: SymbolicTensor) -> Any:
        rows = o.gather(x)
        out = symmetric("M N", dtype="f32")
        by_name = o.matmul(rows, weight, out=out)
        by_position = o.matmul(rows, weight, symmetric("M N"), name="again")
        return by_name, by_position

    wiring = run("M/R K, K N", body)
    assert tensors(wiring)["matmul_out"] == "M=M N=N"
    assert wiring.tensor("matmul_out").dtype == "f32"
    assert wiring.results == ("matmul_out", "again_out")


def test_what_is_declared() -> None:
    def body(x: SymbolicTensor, weight: SymbolicTensor) -> Any:
        symmetric("M K")  # nobody uses it
        box = symmetric("R C N f32", C=x.size("K") + 1)
        return box, symmetric("M/R K", owner="m -> m // 4 % R"), symmetric("M N", like=weight)

    def used(x: SymbolicTensor, weight: SymbolicTensor) -> Any:
        return tuple(o.share(t, name=f"share_{i}") for i, t in enumerate(body(x, weight)))

    wiring = run("M/R K, K N f16", used)
    declared = [t for t in wiring.tensors if t.origin == "declared"]
    assert [shape(t) for t in declared] == ["R=RANKS C=K + 1 N=N", "M=M/R K=K", "M=M N=N"]
    assert [t.dtype for t in declared] == ["f32", "bf16", "f16"]
    assert str(declared[1].axes[0].owner) == "m -> m // 4 % R"


def test_what_is_declared_has_the_dtype_of_inputs_that_name_none() -> None:
    """In an operator inside another as well."""

    def body(_: SymbolicTensor, x: SymbolicTensor) -> Any:
        return o.share(symmetric("M K", M=x.size("M"), K=x.size("K")))

    def around(at: SymbolicTensor, x: SymbolicTensor) -> Any:
        return inline("inner", body, parse_signature("T i32, M/R K -> R M K"), (at, x), {})

    for fn in (body, around):
        wiring = run("T i32, M/R K", fn)
        assert [t.dtype for t in wiring.tensors if t.origin == "declared"] == ["bf16"]


def test_names_do_not_meet_sizes_or_arguments() -> None:
    def body(rows: SymbolicTensor) -> Any:
        return o.gather(rows)

    wiring = run("M/R rows_2", body, {"M": 16, "rows_2": 3})
    assert list(tensors(wiring)) == ["rows", "gather_rows"]

    def sized(x: SymbolicTensor) -> Any:
        return o.gather(x)

    assert list(tensors(run("M/R rows", sized, {"M": 16, "rows": 3}))) == ["x", "gather_rows"]


def test_names_are_numbered_where_nothing_else_helps() -> None:
    def body(rows: SymbolicTensor, gather_rows: SymbolicTensor) -> Any:
        return o.gather(rows)

    assert list(tensors(run("M/R K, M", body))) == ["rows", "gather_rows", "gather_rows_2"]


def test_dots_before_and_between() -> None:
    def turn(src, dst):
        n, m = tl.tile_id(dst)
        tl.tile_store(dst, (n, m), 0)

    def body(x: SymbolicTensor) -> Any:
        return program("M ... N -> ... N M")(turn)(x)

    wiring = run("M K T N", body)
    assert tensors(wiring)["dst"] == "K=K T=T N=N M=M"
    assert view(wiring, "turn", "src") == "M@0 _0@1 _1@2 N@3"
    assert view(wiring, "turn", "dst") == "_0@0 _1@1 N@2 M@3"


def test_kinds_of_constants() -> None:
    def fn(a, out, *, flag: bool, times: int, rate: float, mode: str):
        m = tl.tile_id(out)
        tl.tile_store(out, m, rate * times)

    def body(x: SymbolicTensor) -> Any:
        return program("M -> M")(fn)(x, flag=True, times=x.size("M"), rate=3, mode="fast")

    (step,) = run("M", body).steps
    assert step.constants == (("flag", True), ("times", 16), ("rate", 3.0), ("mode", "fast"))
    assert [type(v) for _, v in step.constants] == [bool, int, float, str]


def test_a_second_use_by_another_name() -> None:
    def body(x: SymbolicTensor, weight: SymbolicTensor) -> Any:
        return o.matmul(o.gather(x), weight), o.matmul(o.gather(x, name="again"), weight, name="matmul_2")

    assert list(steps(run("M/R K, K N", body))) == ["gather", "matmul", "again", "matmul_2"]


def test_an_operator_used_twice() -> None:
    def body(x: SymbolicTensor, weight: SymbolicTensor) -> Any:
        return o.ag_gemm(x, weight), o.ag_gemm(x, weight, name="second")

    wiring = run("M/R K, K N", body)
    assert list(steps(wiring)) == ["ag_gemm.gather", "ag_gemm.matmul", "second.gather", "second.matmul"]
    assert wiring.results == ("ag_gemm_matmul_out", "second_matmul_out")


def test_sizes_of_a_part() -> None:
    seen: list[Extent] = []

    def inner(weight: SymbolicTensor) -> Any:
        seen.append(weight.size("L"))
        return weight

    def body(weight: SymbolicTensor) -> Any:
        back = Operator("K L", inner)(weight)
        assert isinstance(back, SymbolicTensor)
        seen.append(back.size("N"))
        return back

    run("K N/R", body, {"K": 3, "N": 10})
    assert [(int(e), formula_text(e.formula)) for e in seen] == [(3, "tl.cdiv(N, RANKS)"), (10, "N")]


def test_an_extent_of_a_plain_number() -> None:
    assert Extent(3).formula == Const(3)
    assert Extent(3, Sym("M")).formula == Sym("M")


# --------------------------------------------------------------------------------------------------------- diagnostics
def test_a_program_outside_an_operator() -> None:
    text = message(lambda: o.matmul(1, 2)).splitlines()
    line = text[1].rpartition(":")[2]
    assert text[0] == "TL201: `matmul` was called outside an operator"
    assert text[1].startswith(f"  --> {__file__}:")
    assert text[2:] == [
        "      |",
        f"  {line} |     text = message(lambda: o.matmul(1, 2)).splitlines()",
        "      |                            ^^^^^^^^^^^^^^",
        "  why: a tile program is one part of an operator: it runs when the operator does",
        "  do:  call it in a function decorated with `@tilelink.operator(...)`, and call that",
    ]


def test_an_operator_inlined_outside_one() -> None:
    assert message(lambda: o.ag_gemm(1, 2)).startswith("TL201: `ag_gemm` was called outside an operator")


def test_symmetric_outside_an_operator() -> None:
    text = message(lambda: symmetric("M N")).splitlines()
    assert text[0] == "TL211: `tilelink.symmetric` outside an operator"
    assert text[-2:] == [
        "  why: it declares a tensor of the operator that is being traced",
        "  do:  call it in a function decorated with `@tilelink.operator(...)`",
    ]


def test_an_operator_that_calls_itself() -> None:
    @tilelink.operator("M/R K, K N -> M N")
    def endless(x: Any, w: Any) -> Any:
        return endless(x, w)

    with pytest.raises(TilelinkError, match="TL215: `endless` is called 32 operators deep"):
        endless.plan([torch.zeros(8, 16)] * 2, [torch.zeros(16, 8)] * 2)
