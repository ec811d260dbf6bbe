"""The checks on machine code see what they are for: each is tried on a kernel that is wrong, and on its cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import triton
from triton.compiler import ASTSource

from tests.compiled import hazards, wrong_forms
from tests.compiled.compiling import TARGETS

pytestmark = pytest.mark.each_triton

TYPES = {
    "distances": "*i64",
    "out": "*fp32",
    "rows": "*fp16",
    "source": "tensordesc<fp16[64, 64]>",
    "target": "tensordesc<fp16[64, 64]>",
    "tiles": "i32",
    "weight": "*fp16",
    "flags": "*i64",
}


def compiled(kernel: Any, target: str) -> dict[str, str]:
    signature = {name: "constexpr" if name == "K" else TYPES[name] for name in kernel.arg_names}
    constants = {(i,): 1024 for i, name in enumerate(kernel.arg_names) if name == "K"}
    pointers = [i for i, name in enumerate(kernel.arg_names) if TYPES.get(name, "").startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": 4, "num_stages": 3}).asm


Check = Callable[[str], list[str]]
PAIRS: dict[str, tuple[Any, Any, Check, str]] = {
    "no barrier before a release": (
        wrong_forms.release_without_a_barrier,
        wrong_forms.release_after_a_barrier,
        hazards.unguarded_releases,
        "ttgir",
    ),
    "a bulk store that is not in memory": (
        wrong_forms.bulk_store_and_release,
        wrong_forms.bulk_store_quiet_and_release,
        hazards.unfinished_bulk_stores,
        "ptx",
    ),
    "a bulk load of what is not fenced": (
        wrong_forms.bulk_load_after_a_wait,
        wrong_forms.bulk_load_after_a_wait_and_a_fence,
        hazards.unfenced_bulk_loads,
        "ptx",
    ),
    "narrow stores to a peer": (
        wrong_forms.store_to_a_peer_by_address,
        wrong_forms.store_to_a_peer,
        hazards.narrow_stores,
        "ptx",
    ),
    "loads above their wait": (
        wrong_forms.wait_under_a_condition,
        wrong_forms.wait_in_runs,
        hazards.loads_before_their_acquire,
        "ttgir",
    ),
    "a loop that waits and is not pipelined": (
        wrong_forms.wait_in_the_loop,
        wrong_forms.wait_in_runs,
        hazards.loops_without_copies,
        "ttgir",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_wrong_is_seen_and_right_is_not(name: str) -> None:
    wrong, right, check, text = PAIRS[name]
    assert check(compiled(wrong, "sm_90")[text])
    assert check(compiled(right, "sm_90")[text]) == []


@pytest.mark.parametrize(
    ("target", "text", "barrier", "check"),
    [
        ("sm_90", "ptx", "bar.sync", hazards.unguarded_releases),
        ("gfx942", "amdgcn", "s_barrier", hazards.unguarded_amd_releases),
    ],
)
def test_a_barrier_lost_on_the_way_to_machine_code(target: str, text: str, barrier: str, check: Check) -> None:
    right = compiled(wrong_forms.release_after_a_barrier, target)[text]
    assert check(right) == []
    assert check("\n".join(line for line in right.splitlines() if barrier not in line))


@pytest.mark.parametrize("target", ["sm_80", "sm_100"])
def test_loads_above_their_wait_on_other_targets(target: str) -> None:
    assert hazards.loads_before_their_acquire(compiled(wrong_forms.wait_under_a_condition, target)["ttgir"])
    assert hazards.loads_before_their_acquire(compiled(wrong_forms.wait_in_runs, target)["ttgir"]) == []
