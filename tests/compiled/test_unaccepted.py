"""Lines that Triton does not accept: the same words at the same line of the user's, interpreted or compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tilelink
import tilelink.language as tl
from tests.compiled.compiling import compile_kernel, kernel_of
from tests.operators.problems import alone
from tilelink import Operator
from tilelink.errors import Loc, TilelinkError
from tilelink.ir.kernel import KernelSource
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm
from tilelink.pipeline.arguments import bind
from tilelink.runtime.kernels import compiling
from tilelink.runtime.simulated import builder

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


@tilelink.program("M K, K N -> M N")
def counted(x: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for _ in range(2):
        for k in range(0, tl.size(weight, 0), 16):
            rows = tl.tile_load(x, (m, k))
            acc = tl.dot(rows, tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@tilelink.program("M k -> M")
def singly(rows: Any, out: Any) -> None:
    m = tl.tile_id(out)
    total = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in range(tl.size(rows, 1)):
        total += tl.tile_load(rows, (m, k))
    tl.tile_store(out, m, total)


SHAPES = "ValueError('Cannot make_shape_compatible: incompatible dimensions at index 1: 512 and 64')"
TYPES = "IncompatibleTypeErrorImpl('invalid operands of type triton.language.float32 and triton.language.float32')"
CASES: list[Any] = [
    pytest.param(ag_gemm, (X.to(torch.int32),) * 2, "AssertionError('Unsupported lhs dtype int32')", "tl.dot(", id="dtype"),
    pytest.param(alone(ragged), (X,), SHAPES, "wide = tl.tile_load(rows, tile) + tl.arange(0, 64)", id="shape"),
    pytest.param(alone(helped), (X,), SHAPES, "return x + tl.arange(0, 64)", id="helper"),
    pytest.param(alone(shifted), (X,), TYPES, "tl.tile_load(rows, tile) << 2", id="type"),
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
    stages = made.compiled(bind(made, tensors, {}, Topology(1)))
    decl = stages.source.kernels[-1]
    message, loc = found(lambda: tilelink.launch(lambda: made(*tensors), 1))
    assert message == f"Triton does not accept a line of kernel {decl.name}: {said}"
    assert line in loc.source_line()

    def compiled() -> None:
        with compiling(kernel_of(stages.source, decl)):
            compile_kernel(stages.plan, stages.source, decl, "sm_90")

    assert found(compiled) == (message, loc)


def source_of(made: Operator, *tensors: Any) -> KernelSource:
    return made.compiled(bind(made, tensors, {}, Topology(1))).source


@pytest.mark.each_triton
def test_an_axis_that_is_counted_is_to_be_walked_by_tiles() -> None:
    """As one writes such a loop in plain Triton; Triton speaks of ranks only, on the line where two blocks meet."""
    made = alone(counted)
    with pytest.raises(TilelinkError, match=r"TL412.*equal ranks >= 2") as caught:
        tilelink.launch(lambda: made(X, X), 1)
    assert "tl.dot(rows," in str(caught.value)
    assert caught.value.hint == (
        "for tiles of `K` write `for k in tl.tiles(weight, axis=0)`: what `range` counts are single positions, along which a "
        "block has no axis"
    )
    (advice,) = source_of(made, X, X).advice
    lines = Path(__file__).read_text().splitlines()[advice.first - 1 : advice.last]
    assert (lines[0].strip(), len(lines)) == ("for k in range(0, tl.size(weight, 0), 16):", 3)


def test_an_axis_that_has_no_tiles_is_rightly_counted() -> None:
    made = alone(singly)
    assert source_of(made, X).advice == ()
    assert [y.tolist() for y in tilelink.launch(lambda: made(X), 1)] == [[4.0] * 4]


def test_a_shape_that_is_no_constant() -> None:
    with pytest.raises(TilelinkError, match=r"TL412.*constexpr") as caught:
        tilelink.launch(lambda: alone(sized)(X), 1)
    assert caught.value.hint == (
        "make shapes of `tl.tile_shape(out)`, of a block's own `.shape`, or of `tl.tile_range(t, axis=0).shape` for a whole "
        "axis: they are constants, which `tl.size` is not"
    )


def test_an_error_of_the_simulation_is_nobodys_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("of the interpreter")

    monkeypatch.setattr(builder, "_wide", broken)
    with pytest.raises(ValueError, match="of the interpreter"):
        tilelink.launch(lambda: ag_gemm(X, X), 1)
