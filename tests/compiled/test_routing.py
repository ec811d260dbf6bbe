"""Operators with tables compile for every target: index vectors, run-time splits and fp8 need nothing that one lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
from triton.compiler.errors import CompilationError

from tests.compiled import hazards
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import EACH_TARGET, functions, texts
from tilelink import Operator, copy_engine, fused, ops, sms

TABLES = {"place": sms(T=32)}
GATHERS = {"gather": copy_engine(push=True), "gather_choice": sms(1, M=32)}
DOWN = {
    "grouped_down": sms(P=32, H=32, I=32, order="column"),
    "combine": sms(2, T=16, H=32, order=("column", "ring+1")),
    "scatter": fused("combine"),
    "reduce": sms(M=16, N=32),
}


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


B, F, Z = torch.bfloat16, torch.float32, torch.int32


@dataclass(frozen=True)
class One:
    """An operator in tiles that compile quickly, and one rank's arguments."""

    operator: Operator
    tensors: tuple[torch.Tensor, ...]
    constants: tuple[tuple[str, int], ...] = ()


LAYER = {**TABLES, **GATHERS, "gather_score": sms(1, M=32), "grouped_glu": sms(P=32, N=32, H=32)}
LAYER |= {f"moe_rs.{n}": p for n, p in {**DOWN, "scatter": fused("moe_rs.combine")}.items()}
EXPERTS = (("experts", 8), ("capacity", 32))
ONES = {
    "ag_moe": One(
        ops.ag_moe.schedule({**TABLES, **GATHERS, "grouped": sms(P=32, N=32, H=32)}),
        (of(B, 64, 64), of(Z, 64, 2), of(B, 8, 64, 64)),
    ),
    "ag_moe_outer": One(
        ops.ag_moe_outer.schedule({**TABLES, **GATHERS, "grouped_outer": sms(P=32, H=32, N=32)}),
        (of(B, 64, 64), of(Z, 64, 2), of(B, 512, 64)),
        (("experts", 8),),
    ),
    "moe_layer": One(
        ops.moe_layer.schedule(LAYER),
        (of(B, 64, 64), of(Z, 64, 2), of(F, 64, 2), of(B, 8, 64, 64), of(B, 8, 64, 64), of(B, 8, 64, 64)),
    ),
    "moe_rs": One(
        ops.moe_rs.schedule(DOWN),
        (of(B, 512, 64), of(Z, 9), of(Z, 256, 2), of(B, 8, 64, 64), of(F, 256, 2)),
    ),
    "ep_dispatch": One(
        ops.ep_dispatch.schedule({"assign": sms(T=32), "dispatch": sms(C=16, H=64), "arrive": sms(C=16, H=64)}),
        (of(B, 64, 128), of(Z, 64, 2)),
        EXPERTS,
    ),
    "ep_dispatch_fp8": One(
        ops.ep_dispatch_fp8.schedule(
            {"assign": sms(T=32), "dispatch_fp8": sms(C=16, H=64), "arrive_fp8": sms(C=16, H=64)}
        ),
        (of(B, 64, 128), of(Z, 64, 2)),
        EXPERTS,
    ),
    "ep_combine": One(
        ops.ep_combine.schedule(send_back=sms(C=16, H=64), collect=sms(T=16, H=64)),
        (of(B, 2, 4, 32, 128), of(Z, 2, 4), of(Z, 64, 2), of(Z, 64, 2), of(F, 64, 2)),
    ),
}


@pytest.mark.parametrize("target", EACH_TARGET)
@pytest.mark.parametrize("name", ONES)
def test_kernels(name: str, target: str) -> None:
    one = ONES[name]
    plan, source = emitted(one.operator, list(one.tensors), target, **dict(one.constants))  # pyright: ignore[reportArgumentType]
    if (name, target) == ("ep_dispatch_fp8", "sm_80"):
        with pytest.raises(CompilationError, match="fp8e4nv not supported in this architecture"):
            assert_compiles(plan, source, target, pipelined=False)
    else:
        assert_compiles(plan, source, target, pipelined=False)


@pytest.mark.parametrize("name", ["ag_moe", "moe_rs", "moe_layer"])
def test_experts_are_multiplied_from_copies_that_run_ahead(name: str) -> None:
    """Both operands: where a rank's part of an axis ends is a multiple of 16 that the compiler has to be told."""
    one = ONES[name]
    plan, source = emitted(one.operator, list(one.tensors), "sm_90")  # pyright: ignore[reportArgumentType]
    products = [k for k in source.kernels if "tl.dot" in functions(source, k.name)]
    assert products != []
    for kernel in products:
        ttgir = texts(plan, source, kernel, "sm_90")["ttgir"]
        assert hazards.loops_without_copies(ttgir) == []
        assert hazards.operands_loaded_directly(ttgir) == []
        # A flattened loop over tiles would wait for each block of rows right after asking for it.
        assert max(int(n) for n in re.findall(r"ttg\.async_wait [^\n]*\{num = (\d+)", ttgir)) > 0
