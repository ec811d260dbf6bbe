"""Lines that Triton does not accept: the same words at the same line of the user's, interpreted or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton

import tilelink
import tilelink.language as tl
from tests.compiled.compiling import compile_kernel, kernel_of
from tilelink import Operator
from tilelink.errors import Loc, TilelinkError
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm
from tilelink.pipeline.arguments import bind
from tilelink.runtime.simulated import arithmetic
from tilelink.runtime.unaccepted import compiling

X = torch.ones(4, 4)


@triton.jit
def beside(x):
    return x + tl.arange(0, 64)  # of no length that goes with a tile


@tilelink.program("M K -> M K")
def ragged(rows: Any, out: Any) -> None:
    tile = tl.tile_id(out)
    wide = tl.tile_load(rows, tile) + tl.arange(0, 64)
    tl.tile_store(out, tile, wide)


@tilelink.program("M K -> M K")
def helped(rows: Any, out: Any) -> None:
    tile = tl.tile_id(out)
    tl.tile_store(out, tile, beside(tl.tile_load(rows, tile)))


@tilelink.program("M K -> M K")
def shifted(rows: Any, out: Any) -> None:
    tile = tl.tile_id(out)
    tl.tile_store(out, tile, tl.tile_load(rows, tile) << 2)


@tilelink.program("M K -> M K")
def sized(rows: Any, out: Any) -> None:
    tile = tl.tile_id(out)
    tl.tile_store(out, tile, tl.zeros([16, tl.size(rows, 1)], tl.float32))


def operator(program: Any) -> Operator:
    return tilelink.operator("M K -> M K", name="made")(lambda x: program(x))


SHAPES = "ValueError('Cannot make_shape_compatible: incompatible dimensions at index 1: 512 and 64')"
TYPES = "IncompatibleTypeErrorImpl('invalid operands of type triton.language.float32 and triton.language.float32')"
CASES: list[Any] = [
    pytest.param(ag_gemm, (X.to(torch.int32),) * 2, "AssertionError('Unsupported lhs dtype int32')", "tl.dot(", id="dtype"),
    pytest.param(operator(ragged), (X,), SHAPES, "wide = tl.tile_load(rows, tile) + tl.arange(0, 64)", id="shape"),
    pytest.param(operator(helped), (X,), SHAPES, "return x + tl.arange(0, 64)", id="helper"),
    pytest.param(operator(shifted), (X,), TYPES, "tl.tile_load(rows, tile) << 2", id="type"),
]  # fmt: skip


def found(call: Callable[[], object]) -> tuple[str, Loc]:
    with pytest.raises(TilelinkError) as caught:
        call()
    assert caught.value.code == "TL412"
    assert caught.value.loc is not None
    return caught.value.message, caught.value.loc


@pytest.mark.each_triton
@pytest.mark.parametrize(("made", "tensors", "said", "line"), CASES)
def test_triton_is_quoted_at_the_users_line(made: Operator, tensors: Any, said: str, line: str) -> None:
    topology = Topology(1)
    stages = made.stages(bind(made.name, made.signature, tensors, {}, topology, made.loc), topology)
    decl = stages.source.kernels[-1]
    message, loc = found(lambda: tilelink.launch(lambda: made(*tensors), 1))
    assert message == f"Triton does not accept a line of kernel {decl.name}: {said}"
    assert line in loc.source_line()

    def compiled() -> None:
        with compiling(kernel_of(stages.source, decl)):
            compile_kernel(stages.plan, stages.source, decl, "sm_90")

    assert found(compiled) == (message, loc)


def test_a_shape_that_is_no_constant() -> None:
    with pytest.raises(TilelinkError, match=r"TL412.*constexpr") as caught:
        tilelink.launch(lambda: operator(sized)(X), 1)
    assert caught.value.hint == (
        "make shapes of `tl.tile_shape(out)`, of a block's own `.shape`, or of `tl.tile_range(t, axis=0).shape` for a whole "
        "axis: they are constants, which `tl.size` is not"
    )


def test_an_error_of_the_simulation_is_nobodys_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("of the interpreter")

    monkeypatch.setattr(arithmetic, "dot", broken)
    with pytest.raises(ValueError, match="of the interpreter"):
        tilelink.launch(lambda: ag_gemm(X, X), 1)
