"""The SHMEM vocabulary, compiled for every target without a GPU: order, vectors, and no PTX for AMD."""

import re
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.compiled.compiling import unlinked
from tests.selection import table
from tests.simulated import emitted_device, emitted_nvshmem
from tilelink.device import nvshmem, peer

CUDA = {name: GPUTarget("cuda", int(name[3:]), 32) for name in ("sm_80", "sm_90", "sm_100")}
AMD = GPUTarget("hip", "gfx942", 64)
TYPES = {
    "source": "*bf16",
    "target": "*bf16",
    "flags": "*i64",
    "doorbell": "*i64",
    "context": "*i64",
    "pe": "i32",
    "count": "i32",
}
KERNELS = (
    *("push", "pull", "store_to_peer", "store_and_tell_all", "wait_for_all", "through_descriptors", "everything_else"),
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreted fence must not hide behind a cached kernel. 3.9 warns about a default of its own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def compiled(kernel: Any, target: GPUTarget, *, aligned: bool = True, **options: Any) -> dict[str, str]:
    types = dict(TYPES)
    if kernel.__name__ == "through_descriptors":
        types.update(source="tensordesc<bf16[64, 64]>", target="tensordesc<bf16[64, 64]>")
    signature = {name: types[name] for name in kernel.arg_names}
    hints = {"source", "target", "flags", "doorbell", "context", "count"} if aligned else {"flags", "context"}
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if name in hints and not types[name].startswith("tensordesc")
    }
    return triton.compile(ASTSource(kernel, signature, {}, attributes), target=target, options=options or None).asm


def ptx(name: str, target: str = "sm_90", **options: Any) -> str:
    return compiled(getattr(emitted_device, name), CUDA[target], **options)["ptx"]


def assert_in_order(text: str, *patterns: str) -> None:
    """Each pattern occurs after the one before."""
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        assert found is not None, f"no {pattern} after character {at}"
        at = found.end()


@pytest.mark.parametrize("target", CUDA)
@pytest.mark.parametrize("kernel", KERNELS)
def test_it_compiles_for_nvidia(kernel: str, target: str) -> None:
    assert ".visible .entry" in ptx(kernel, target)


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_compiles_for_amd_without_a_flag_of_ptx(kernel: str) -> None:
    text = compiled(getattr(emitted_device, kernel), AMD)["amdgcn"]
    assert "s_endpgm" in text
    assert not re.search(r"fence\.|cp\.async|mov\.[bu]32", text)


def test_amd_writes_back_before_it_signals() -> None:
    text = compiled(emitted_device.store_to_peer, AMD)["amdgcn"]
    assert_in_order(text, r"buffer_store|global_store", "s_barrier", "buffer_wbl2 sc0 sc1", "global_atomic_swap")


@table("target", CUDA)
def test_all_threads_have_stored_before_one_signals(target: str) -> None:
    assert_in_order(
        ptx("push", target), r"st\.global\.v4", r"bar\.sync", r"atom\.global\.sys\.release\.add|red\.\S*release\S*add"
    )
    assert_in_order(ptx("store_to_peer", target), r"st\.global\.v4", r"bar\.sync", r"atom\.global\.sys\.release\.exch")


@table("target", CUDA)
def test_all_ranks_are_told_at_once(target: str) -> None:
    """One instruction, of which each lane has a rank of its own: round trips do not wait for one another."""
    text = ptx("store_and_tell_all", target)
    assert_in_order(text, r"st\.global\.v4", r"bar\.sync", r"atom\.global\.sys\.release\.exch")
    assert len(re.findall(r"atom\.global\.sys\.release", text)) == 1
    two = ptx("store_and_tell_all_of_two", target)
    assert_in_order(two, r"st\.global\.v4", r"bar\.sync", r"(atom|red)\.global\.sys\.release\.add")
    assert len(re.findall(r"(atom|red)\.global\.sys\.release", two)) == 1


@table("target", CUDA)
def test_a_wait_is_a_loop_of_acquiring_loads_before_the_data(target: str) -> None:
    assert_in_order(
        ptx("pull", target), r"ld\.global\.sys\.acquire\.b64", r"ld\.global\.v4", r"st\.global\.v4", r"bar\.sync"
    )
    assert "atom.global.gpu.acq_rel.add" in ptx("pull", target)


@table("target", CUDA)
def test_a_wait_for_several_flags_looks_at_all_of_them_at_once(target: str) -> None:
    """One warp's lanes acquire a flag each; what they have seen goes to all threads by a barrier, and then the data is read."""
    text = ptx("wait_for_all", target)
    assert len(re.findall(r"atom\.global\.sys\.acquire\.add", text)) == 1
    assert_in_order(
        text,
        r"atom\.global\.sys\.acquire\.add",
        r"st\.shared",
        r"bar\.sync",
        r"ld\.shared",
        r"ld\.global\.v4",
        r"st\.global",
    )


def test_a_bulk_store_is_in_memory_before_the_signal() -> None:
    assert_in_order(
        ptx("through_descriptors"),
        r"ld\.global\.sys\.acquire",
        r"fence\.proxy\.async;",
        r"cp\.async\.bulk\.tensor\S*\.shared::(cta|cluster)\.global",
        r"cp\.async\.bulk\.tensor\S*\.global\.shared::cta",
        r"cp\.async\.bulk\.wait_group 0;",
        r"fence\.proxy\.async;",
        r"bar\.sync",
        r"atom\.global\.sys\.release",
    )


def test_there_are_no_bulk_copies_before_hopper() -> None:
    assert "bulk" not in ptx("through_descriptors", "sm_80")
    assert "fence.proxy" not in ptx("through_descriptors", "sm_80")


def test_copies_are_vectorised_where_both_sides_are_known_to_be_aligned() -> None:
    for name in ("push", "pull"):
        text = ptx(name)
        assert set(re.findall(r"st\.global(\.\w+)*\.(v4\.b32|b64|b32|b16)", text)) <= {("", "v4.b32"), (".v4", "b32")}
        assert set(re.findall(r"ld\.global\.(?:v4\.)?b(?!64)\d+", text)) == {"ld.global.v4.b32"}
    assert "st.global.v4" in ptx("store_to_peer")


def test_copies_of_unknown_alignment_are_not() -> None:
    assert "st.global.v4" not in ptx("push", aligned=False)


@table("target", CUDA)
def test_fences_are_of_the_system(target: str) -> None:
    assert ptx("everything_else", target).count("fence.acq_rel.sys;") == 2


def test_both_vocabularies_have_the_same_names() -> None:
    """What takes a context is NVSHMEM's own, but for what only reads it, and so is each wait for other ranks."""
    ours, theirs = (
        {name: f for name, f in vars(module).items() if isinstance(f, triton.JITFunction) and name[0] != "_"}
        for module in (peer, nvshmem)
    )
    assert ours.keys() == theirs.keys()
    shared = {name for name, f in theirs.items() if f is ours[name]}
    assert {name for name in shared if "ctx" in ours[name].arg_names} == {"my_pe", "n_pes", "translate"}
    assert shared.isdisjoint({"signal_wait_until", "signal_wait_each", "signal_wait_within", "fence", "quiet"})


SYMBOLS = {
    "nvshmem_fence": "()",
    "nvshmem_ptr": "(i64, i32)",
    "nvshmem_quiet": "()",
    "nvshmem_signal_wait_until": "(i64, i32, i64)",
    "nvshmemx_getmem_nbi_block": "(i64, i64, i64, i32)",
    "nvshmemx_putmem_nbi_block": "(i64, i64, i64, i32)",
    "nvshmemx_putmem_signal_nbi_block": "(i64, i64, i64, i64, i64, i32, i32)",
    "nvshmemx_signal_op": "(i64, i64, i32, i32)",
}
"""NVSHMEM 3.4: pointers, size_t and uint64_t are i64, int is i32."""


def test_numbers_are_nvshmems() -> None:
    """The library compares with them itself (nvshmem_constants.h): a wrong GE, 3 is LE, waits for ever once a flag has
    passed its target."""
    comparisons = ("EQ", "NE", "GT", "LE", "LT", "GE")
    assert comparisons[peer.CMP_EQ.value] == "EQ"
    assert comparisons[peer.CMP_GE.value] == "GE"
    assert (peer.SIGNAL_SET.value, peer.SIGNAL_ADD.value) == (9, 10)


def test_nvshmem_calls_have_the_librarys_types(monkeypatch: pytest.MonkeyPatch) -> None:
    unlinked(monkeypatch)
    made = compiled(emitted_nvshmem.everything, CUDA["sm_90"])
    declared = dict(re.findall(r"^declare .*@(nvshmem\w+)(\([^)]*\))", made["llir"], re.M))
    assert declared == SYMBOLS
    text = made["ptx"]
    assert_in_order(text, "ld.global.sys.acquire", "nvshmem_signal_wait_until", "nvshmemx_getmem_nbi_block")
    assert_in_order(text, "nvshmemx_putmem_nbi_block", "nvshmem_quiet", "bar.sync", "%tid.x", "nvshmemx_signal_op")
