"""Kernels of the nvshmem backend: across a network they call NVSHMEM's device library, whose bitcode they link with."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.compiled import hazards
from tests.compiled.checking import RANKS, emitted
from tests.compiled.compiling import CAPABILITIES, compile_kernel, texts
from tests.compiled.test_placements import ALIKE
from tests.operators.placements import Placed, named, placements
from tests.operators.problems import AG
from tilelink.device.nvshmem import CALLS
from tilelink.errors import TilelinkError
from tilelink.ir.kernel import KernelSource
from tilelink.ir.plan import Plan
from tilelink.runtime.nvshmem.library import DEVICE_STATE, EXTERN_LIBRARY, called, device_bitcode

PLACEMENTS = placements(tile=32)


def made(placed: Placed, target: str, reach: str) -> tuple[Plan, KernelSource]:
    shapes = [(64, 64), (64, 64)] if placed.kind is AG else [(RANKS * 64, 64), (64, 64)]
    return emitted(placed.operator, [torch.empty(s, dtype=torch.bfloat16) for s in shapes], target, "nvshmem", reach)


@pytest.mark.usefixtures("_unlinked")
@pytest.mark.parametrize(
    ("placed", "reach"),
    [(p, "peer") for p in PLACEMENTS if not ALIKE.search(p.name)]
    + [
        pytest.param(named(n), "network", marks=pytest.mark.each_triton)
        for n in ("ag_gemm by default", "gemm_rs SMs push")
    ],
    ids=str,
)
def test_kernels(placed: Placed, reach: str) -> None:
    plan, source = made(placed, "sm_90", reach)
    called: set[str] = set()
    for decl in source.kernels:
        asm = texts(plan, source, decl, "sm_90")
        assert hazards.unguarded_releases(asm["ttgir"]) == []
        assert hazards.loads_before_their_acquire(asm["ttgir"]) == []
        assert hazards.unfinished_bulk_stores(asm["ptx"]) == []
        called |= set(re.findall(r"\bnvshmemx?_\w+", asm["ptx"]))
    # Every rank tells the others that it has begun a call.
    assert {"nvshmem_quiet", "nvshmemx_signal_op"} <= called


MOVES, SIGNALS = "nvshmemi_transfer_rma_nbi", "nvshmemi_transfer_amo_nonfetch"
LINKED = [
    ("ag_gemm own kernel pull", "gather", "sm_90", MOVES),
    ("gemm_rs own kernel push", "scatter", "sm_90", MOVES),
    ("ag_gemm own kernel pull", "call_entry", "sm_80", SIGNALS),
    ("ag_gemm own kernel pull", "call_entry", "sm_100", SIGNALS),
]
"""A pull, a push, and a signal for each target."""


@pytest.mark.parametrize(
    ("name", "kernel", "target", "inside"), [pytest.param(*LINKED[0], marks=pytest.mark.each_triton), *LINKED[1:]]
)
def test_kernels_link_with_what_they_call(name: str, kernel: str, target: str, inside: str) -> None:
    plan, source = made(named(name), target, "peer")
    part = called(device_bitcode(CAPABILITIES[target]))
    ptx = compile_kernel(plan, source, source.kernel(kernel), target, extern_libs={EXTERN_LIBRARY: str(part)}).asm[
        "ptx"
    ]
    assert not re.search(r"\.extern \.func", ptx)
    assert inside in ptx
    assert DEVICE_STATE in ptx


def test_the_part_that_kernels_call_is_taken_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))
    part = called(device_bitcode(90))
    text = part.read_text()
    assert set(re.findall(r"^define (?!internal)[^@\n]*@(nvshmemx?_\w+)\(", text, re.MULTILINE)) == set(CALLS)
    assert not re.search(r"^declare [^@\n]*@nvshmem", text, re.MULTILINE)
    written = part.stat()
    assert called(device_bitcode(90)) == part
    assert part.stat() == written
    monkeypatch.setattr("triton.__version__", "another")
    monkeypatch.setattr("tilelink.runtime.nvshmem.library._linked", lambda caller, library: "as another version has it")
    assert called(device_bitcode(90)).read_text() == "as another version has it"
    assert part.read_text() == text


def test_the_bitcode_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later releases of NVSHMEM have a library for each capability."""
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[tmp_path])
    )
    for capability in (75, 80, 90):
        (tmp_path / "lib" / f"libnvshmem_device_sm_{capability}.bc").touch()
    assert [device_bitcode(c).stem[-2:] for c in (80, 89, 90, 100)] == ["80", "80", "90", "90"]
    with pytest.raises(TilelinkError, match=r"TL441: libnvshmem_device.bc is not installed for capability 70"):
        device_bitcode(70)
    (tmp_path / "lib" / "libnvshmem_device.bc").touch()
    assert device_bitcode(70).stem == "libnvshmem_device"
