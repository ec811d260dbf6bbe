"""Words of the LL protocol go whole, and nothing is released or acquired for them."""

from __future__ import annotations

import re

import pytest
import torch

import tilelink
from tests.compiled import hazards
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import EACH_TARGET, texts
from tests.mapping.plans import emitted as source_of
from tilelink import Operator, ops
from tilelink.ir.kernel import Checks

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES: dict[str, tuple[Operator, list[torch.Tensor]]] = {
    "bf16": (ops.all_reduce_one_shot, [torch.empty(8, 2048, dtype=BF16)]),
    "f32": (ops.all_reduce_one_shot, [torch.empty(8, 2048, dtype=F32)]),
    "ragged f16": (ops.all_reduce_one_shot, [torch.empty(3, 98, dtype=F16)]),
    "a few elements": (
        ops.all_reduce_one_shot.schedule(exchange=tilelink.sms(M=1, N=2, num_warps=1)),
        [torch.empty(3, 98, dtype=F16)],
    ),
    "moved": (ops.all_gather, [torch.empty(8, 2048, dtype=BF16)]),
    "moved, ragged": (ops.all_gather, [torch.empty(3, 98, dtype=F16)]),
    "moved, f32": (ops.all_to_all, [torch.empty(8, 33, dtype=F32)]),
    "fused": (ops.gemm_ar_one_shot, [torch.empty(16, 256, dtype=BF16), torch.empty(256, 512, dtype=BF16)]),
}
PUSHED = re.compile(r"\btt\.store .*: tensor<\d+x\d+x!tt\.ptr<i64>")
LOADED = re.compile(r"\bld\.volatile\.global\.(?:v(\d)\.)?b(\d+)")
WIDE = re.compile(r"\b(?:ld|st)\.global\.v(?:4\.b32|2\.b64)")


@pytest.mark.parametrize("target", EACH_TARGET)
def test_not_on_amd(target: str) -> None:
    plan, source = emitted(*CASES["bf16"], target)
    assert plan.ll == (target != "gfx942")
    assert_compiles(plan, source, target)


@pytest.mark.parametrize("name", ["bf16", "moved", "fused"])
def test_with_a_limit_and_traced(name: str) -> None:
    plan, _ = emitted(*CASES[name], "sm_90")
    for made in (source_of(plan, Checks(watchdog=True)), source_of(plan, traced=True)):
        assert_compiles(plan, made, "sm_90", pipelined=name != "moved")


@pytest.mark.each_triton
@pytest.mark.parametrize("name", CASES)
def test_a_word_is_loaded_and_stored_at_once(name: str) -> None:
    plan, source = emitted(*CASES[name], "sm_90")
    assert_compiles(plan, source, "sm_90", pipelined=name in ("bf16", "f32", "fused"))
    (decl,) = source.kernels
    ptx = texts(plan, source, decl, "sm_90")["ptx"]
    assert {int(bits) for _, bits in LOADED.findall(ptx)} == {64}
    # Those of the begin are vectors; of the results none has 64 bits.
    assert len(PUSHED.findall(texts(plan, source, decl, "sm_90")["ttgir"])) == ("moved" not in name)


def test_blocks_move_16_bytes_at_a_time() -> None:
    """All but what is less: the elements and the words that are sent, and the elements that are kept."""
    plan, source = emitted(*CASES["moved"], "sm_90")
    lines = hazards.code(texts(plan, source, source.kernels[0], "sm_90")["ptx"])
    wide = [found[0] for line in lines if (found := WIDE.search(line))]
    kinds = [kind for kind, before in zip(wide, ["", *wide], strict=False) if kind != before]
    assert kinds == ["ld.global.v4.b32", "st.global.v2.b64", "st.global.v4.b32"]


def test_signals_are_those_of_the_credits_alone() -> None:
    """Rank 0's worker says that a call begins, if a slot is used twice running; nothing is released but for that."""
    found = dict[bool, int]()
    for words in (True, False):
        operator = ops.all_reduce_one_shot.schedule(ll=not words)
        plan, source = emitted(operator, [torch.empty(8, 2048, dtype=BF16)], "sm_90")
        ptx = texts(plan, source, source.kernels[0], "sm_90")["ptx"]
        found[words] = sum(bool(hazards.RELEASE.search(line)) for line in hazards.code(ptx))
    assert found == {True: 2, False: 1}
