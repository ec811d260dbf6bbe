# pyright: reportArgumentType=false
"""Prepared calls on a GPU that is not there: what reaches the driver, and what does not happen on the way."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton import knobs
from triton.backends.nvidia import driver as triton_driver

from tests.runtime.fake_gpu import COMPILER, CPU, CURRENT, MAIN, WAITED, FakeBackend, Notes, Stream, entered, fake_gpu
from tests.speed import least_cpu_s
from tilelink import Operator, TilelinkError, by_panels, copy_engine, fused, library, operator, sms
from tilelink.ops import ag_attention, ag_gemm, gemm_rs
from tilelink.ops.programs import gather, matmul
from tilelink.pipeline.prepared import Prepared
from tilelink.runtime import backend as W
from tilelink.runtime.memory import Workspace
from tilelink.runtime.peer import driver, packing
from tilelink.runtime.peer.streams import own_stream
from tilelink.runtime.session import Session

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU"),
    pytest.mark.skipif(COMPILER is None, reason="the driver that takes notes is compiled"),
]
RANKS, RANK = 4, 1
TILES = {"M": 64, "N": 64, "K": 64}
ADD = sms(M=16, N=64)
OPERATORS = {
    "AG+GEMM, copy engine, push": ag_gemm.schedule(gather=copy_engine(push=True), matmul=sms(order="ring", **TILES)),
    "AG+GEMM, copy engine, pull": ag_gemm.schedule(gather=copy_engine(push=False), matmul=sms(**TILES)),
    "AG+GEMM, SMs": ag_gemm.schedule(gather=sms(8, M=64), matmul=sms(**TILES)),
    "AG+GEMM, own kernel": ag_gemm.schedule(gather=sms(8, M=64, push=True, own_kernel=True), matmul=sms(**TILES)),
    "GEMM+RS, copy engine": gemm_rs.schedule(
        scatter=copy_engine(M=64), reduce=fused("matmul"), matmul=sms(order="ring+1", **TILES)
    ),
    "AG+GEMM, library": ag_gemm.schedule(gather=copy_engine(push=True), matmul=library("torch.mm", M="M/R")),
    "GEMM+RS, library": gemm_rs.schedule(
        scatter=copy_engine(M=64), reduce=ADD, matmul=library("torch.mm", M="M/R", streams=2)
    ),
    "attention, heads by TMA": ag_attention.schedule(flash=sms(S=32, T=32, num_stages=2)),
    "GEMM+RS, fused": gemm_rs.schedule(scatter=fused("matmul"), reduce=ADD, matmul=sms(order="ring+1", **TILES)),
}


@pytest.fixture(scope="module")
def notes() -> Iterator[Notes]:
    with fake_gpu() as taken:
        yield taken


@pytest.fixture
def session(notes: Notes) -> Session:
    notes.fail(0)
    return Session(FakeBackend(RANK, RANKS, notes))


@pytest.fixture
def watched(notes: Notes) -> Iterator[Session]:
    """A session whose kernels wait with a time limit, the thread that looks after it included."""
    notes.fail(0)
    session = Session(FakeBackend(RANK, RANKS, notes), watchdog=30.0)
    yield session
    session.vigil.stop()


def tensors(op: Operator, rows: int = 256, turned: bool = False) -> tuple[torch.Tensor, ...]:
    if op.name == "ag_attention":
        return tuple(torch.zeros(rows // RANKS, heads, 32, dtype=torch.bfloat16) for heads in (2, 1, 1))
    m = rows // RANKS if op.name == "ag_gemm" else rows
    weight = torch.zeros(128, 192, dtype=torch.bfloat16)
    return torch.zeros(m, 128, dtype=torch.bfloat16), weight.t().contiguous().t() if turned else weight


def begun(op: Operator, session: Session, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A result of an operator whose calls with such arguments and a result like it are cached now."""
    out = op(*given, session=session)
    return op(*given, out=out, session=session)


@contextmanager
def undisturbed() -> Iterator[None]:
    """The collector destroys no events of earlier backends meanwhile."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def lines(
    notes: Notes, op: Operator, session: Session, given: tuple[torch.Tensor, ...], out: torch.Tensor
) -> list[str]:
    """What the driver is asked for a call."""
    with undisturbed():
        notes.start()
        assert op(*given, out=out, session=session) is out
        return notes.lines()


@pytest.fixture
def hook() -> Iterator[list[Any]]:
    """Somebody listens to Triton's launches, while he is in `listening`; what he has heard."""
    heard: list[Any] = []
    yield heard
    knobs.runtime.launch_enter_hook.remove(heard.append)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_driver_gets_what_tritons_own_launcher_passes(
    name: str, turned: bool, notes: Notes, session: Session, hook: list[Any]
) -> None:
    """Byte for byte, on both slots, with and without credits, for arguments in other places than the first time."""
    op = OPERATORS[name]
    first = begun(op, session, tensors(op, turned=turned))
    (workspace,) = session.workspaces.values()
    for _ in range(4):
        given, out = tensors(op, turned=turned), torch.empty_like(first)
        calls, heard = workspace.calls, workspace.heard
        for credits in (True, False):
            workspace.calls, workspace.heard = calls, not credits
            mine = lines(notes, op, session, given, out)
            workspace.calls, workspace.heard = calls, not credits
            knobs.runtime.launch_enter_hook.add(hook.append)
            tritons = lines(notes, op, session, given, out)
            knobs.runtime.launch_enter_hook.remove(hook.append)
            assert mine == tritons
            launches = [line for line in mine if line.startswith("launch")]
            assert len(launches) == len(hook) > 0
            assert all("parameters=" in line and not line.endswith("=") for line in launches)
            hook.clear()
        workspace.heard = heard


@pytest.mark.parametrize("name", OPERATORS)
def test_watched_calls_ask_the_driver_for_the_same(name: str, notes: Notes, session: Session, watched: Session) -> None:
    """As many launches, copies, waits and events, in that order, on the same streams: only the kernels differ."""
    op, asked = OPERATORS[name], list[list[list[str]]]()
    for each in (session, watched):
        given = tensors(op)
        found = lines(notes, op, each, given, begun(op, each, given))
        words = [line.split() for line in found]
        asked.append([[w[0], *(p for p in w if p.startswith(("stream=", "bytes=", "value=")))] for w in words])
    assert asked[0] == asked[1]
    assert {"launch"} <= {line[0] for line in asked[1]}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_driver_that_takes_notes_can_be_left_and_entered_again(name: str, notes: Notes, session: Session) -> None:
    """As when a test runner brings a process these tests in two portions."""
    op = OPERATORS[name]
    given = tensors(op)
    out = begun(op, session, given)
    expected = len(lines(notes, op, session, given, out))
    with fake_gpu() as again:
        given = tensors(op)
        other = Session(FakeBackend(RANK, RANKS, again))
        assert len(lines(again, op, other, given, begun(op, other, given))) == expected > 0


def test_what_reaches_the_driver_for_a_pushed_all_gather(notes: Notes, session: Session) -> None:
    op = OPERATORS["AG+GEMM, copy engine, push"]
    given = tensors(op)
    out = begun(op, session, given)
    found = [line.split() for line in lines(notes, op, session, given, out)]
    side = f"stream={101}"
    shard = [f"source={given[0].data_ptr()}", f"bytes={given[0].nbytes}", side]
    words = [line[0] for line in found]
    assert words == ["launch", "record", "wait", *["copy"] * 2 * (RANKS - 1), "launch", "record", "wait"]
    assert [line[2:] for line in found[3:9:2]] == [shard] * (RANKS - 1)
    assert {tuple(line[3:]) for line in found[4:9:2]} == {("bytes=8", side)}
    fork, join = found[1:3], found[-2:]
    assert [line[2] for line in (*fork, *join)] == [f"stream={MAIN}", side, side, f"stream={MAIN}"]
    assert fork[0][1] == fork[1][1] != join[0][1] == join[1][1]
    assert all(f"stream={MAIN}" in line for line in found if line[0] == "launch")


def test_doorbells_are_waited_for_and_reset_before_the_copy(notes: Notes, session: Session) -> None:
    op = OPERATORS["GEMM+RS, copy engine"]
    given = tensors(op)
    out = begun(op, session, given)
    found = [line.split() for line in lines(notes, op, session, given, out)]
    at = [k for k, line in enumerate(found) if line[0] == "await"]
    assert len(at) == RANKS - 1  # own rows stay, and nobody rings for them
    assert len({found[k][1] for k in at}) == len(at)
    for k in at:
        wait, write, then = found[k : k + 3]
        assert (write[0], then[0]) == ("write", "copy")
        assert wait[1] == write[1]
        assert (wait[2], write[2]) == ("value=3", "value=0")  # the tiles of a chunk
        assert wait[3] == write[3] == then[-1]


@pytest.mark.parametrize("kind", ["session", "watched"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_cached_call_asks_neither_triton_nor_for_memory(
    name: str, kind: str, notes: Notes, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second call on: no binding of arguments, no tensor map, no memory but the result's, no meeting, no
    waiting for the GPU, whether or not somebody watches."""
    op, session = OPERATORS[name], request.getfixturevalue(kind)
    given = tensors(op)
    out = op(*given, session=session)
    op(*given, out=out, session=session)
    op(*given, out=out, session=session)

    def refuse(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("a cached call came here")

    monkeypatch.setattr(triton.JITFunction, "run", refuse)
    monkeypatch.setattr(triton_driver, "make_tensordesc_arg", refuse)
    for method in ("agree", "barrier", "zeros", "arena", "maker", "shared_words", "drain"):
        monkeypatch.setattr(FakeBackend, method, refuse)
    monkeypatch.setattr(Workspace, "view", refuse)
    counts = [notes.count()]
    for _ in range(4):
        op(*given, out=out, session=session)
        counts.append(notes.count())
    began = [after - before for before, after in pairwise(counts)]
    assert min(began) > 0


def test_a_library_function_is_called_on_its_stream_between_wait_and_wait(notes: Notes, session: Session) -> None:
    """On views of the call's own tensors and of the slot's, after as much of the driver's work as there is before."""
    heard: list[tuple[int, int, list[tuple[int, int]]]] = []

    def mm(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
        assert not torch.is_grad_enabled()
        heard.append((CURRENT[-1], notes.count(), [(t.data_ptr(), t.nbytes) for t in (x, weight, out)]))
        torch.mm(x, weight, out=out)

    op = ag_gemm.schedule(gather=copy_engine(push=True), matmul=library(mm, M="M/R"))
    x, weight = torch.randn(64, 128).bfloat16(), torch.randn(128, 192).bfloat16()
    out = begun(op, session, (x, weight))
    (workspace,) = session.workspaces.values()
    for _ in range(2):
        rows = workspace.view(f"rows/{workspace.calls % 2}", torch.bfloat16, 256 * 128).view(256, 128)
        rows.copy_(torch.randn(256, 128))
        heard.clear()
        found = [line.split() for line in lines(notes, op, session, (x, weight), out)]
        # call_entry; fork twice; the pushes with their flags; the function, and await_flag before all but the first; joins.
        begin = 1 + 2 * 2 + 2 * (RANKS - 1)
        assert [line[0] for line in found] == (
            ["launch", *["record", "wait"] * 2, *["copy"] * 2 * (RANKS - 1), *["launch"] * (RANKS - 1)]
            + ["record", "wait"] * 2
        )
        assert [(stream, count) for stream, count, _ in heard] == [(102, begin + k) for k in range(RANKS)]
        for k, (_, _, views) in enumerate(heard):
            part = (RANK + k) % RANKS
            source = x if k == 0 else rows[64 * part :]
            there = [(source.data_ptr(), x.nbytes), (weight.data_ptr(), weight.nbytes)]
            assert views == [*there, (out[64 * part :].data_ptr(), out.nbytes // RANKS)]
            torch.testing.assert_close(out[64 * part :][:64], torch.mm(source[:64], weight))


def test_runs_are_kept_for_the_merge_of_their_own_call(notes: Notes, session: Session) -> None:
    """Behind the waits for keys and for values, on the function's stream; the merge gets what this call's runs gave."""
    heard: list[tuple[str, int, int]] = []
    merged: list[list[int]] = []

    def join(parts: list[torch.Tensor], *, out: torch.Tensor) -> None:
        heard.append(("merge", CURRENT[-1], notes.count()))
        merged.append([p.data_ptr() for p in parts])
        out.copy_(torch.stack(parts).sum(0))

    def total(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, at: Any, **_: Any) -> torch.Tensor:
        heard.append((f"keys {at['T'][0]}", CURRENT[-1], notes.count()))
        made.append((q + keys.sum(0) + values.sum(0)).clone())
        return made[-1]

    made: list[torch.Tensor] = []
    op = ag_attention.schedule(flash=library(by_panels(merge=join)(total), T="T/R"))
    given = tuple(torch.randn(16, 2, 8).bfloat16() for _ in range(3))
    out = begun(op, session, given)
    (workspace,) = session.workspaces.values()
    for _ in range(2):
        for name in ("gather_k_rows", "gather_v_rows"):
            workspace.view(f"{name}/{workspace.calls % 2}", torch.bfloat16, 64 * 16).copy_(torch.randn(64 * 16))
        for told in (heard, made, merged):
            told.clear()
        found = [line.split()[0] for line in lines(notes, op, session, given, out)]
        # call_entry; three streams forked; two pushes with their flags to each peer; two flags before the second run; joins.
        begin = 1 + 2 * 3 + 2 * 2 * (RANKS - 1)
        assert len(found) == begin + 2 + 2 * 3
        assert heard == [("keys 16", 103, begin), ("keys 0", 103, begin + 2), ("merge", 103, begin + 2)]
        assert merged == [[t.data_ptr() for t in made]]
        torch.testing.assert_close(out, made[0] + made[1])


def test_a_library_function_sees_no_autocast(session: Session) -> None:
    seen: list[torch.Tensor] = []

    def product(a: torch.Tensor, b: torch.Tensor) -> None:
        seen.append(a @ b)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        session.backend.side_stream(1).apply(product, [torch.ones(2, 2), torch.ones(2, 2)], None)
    assert seen[0].dtype == torch.float32


@pytest.mark.parametrize("kind", ["session", "watched"])
def test_how_long_the_host_takes(kind: str, notes: Notes, request: pytest.FixtureRequest) -> None:
    """All of AG+GEMM by copy engine but the driver: 17 to 31 µs, as the machine is, where a launch by Triton
    takes 20; more under pytest."""
    op, session = OPERATORS["AG+GEMM, copy engine, push"], request.getfixturevalue(kind)
    given = tensors(op)
    out = begun(op, session, given)
    with undisturbed():
        notes.start(write=False)
        op(*given, out=out, session=session)
        asked = notes.count()
    assert asked == 2 + 2 * (RANKS - 1) + 2 * 2  # launches, copies with their flags, and fork and join
    limit = 200 * 90e-6
    assert least_cpu_s(lambda: [op(*given, session=session) for _ in range(200)], limit, tries=15) < limit


def test_after_a_capture_every_call_takes_its_credits(notes: Notes, session: Session) -> None:
    op = OPERATORS["AG+GEMM, copy engine, push"]
    given = tensors(op)
    out = begun(op, session, given)

    prepared = Prepared(op, session, given, (), {})
    kinds = [a.kind for a in prepared.loaded.source.kernel("call_entry").args if a.kind != "constant"]

    def credits() -> int:
        parameters = lines(notes, op, session, given, out)[0].rpartition("parameters=")[2].split(",")
        return int.from_bytes(bytes.fromhex(parameters[kinds.index("credits")]), "little")

    assert [credits(), credits()] == [0, 0]
    (workspace,) = session.workspaces.values()
    workspace.heard = False
    assert credits() == 1
    assert isinstance(session.backend, FakeBackend)
    session.backend.is_capturing = True
    assert credits() == 1
    session.backend.is_capturing = False
    assert [credits() for _ in range(3)] == [1, 1, 1]


def test_calls_on_several_streams_take_turns(notes: Notes, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """They use the same slots and flags. Those of graphs are in order among themselves: a graph can wait for nothing else."""
    op = OPERATORS["AG+GEMM, copy engine, push"]
    given = tensors(op)
    begun(op, session, given)

    def waits(*streams: int) -> list[tuple[int, int]]:
        WAITED.clear()
        for handle in streams:
            with entered(Stream(handle)):
                op(*given, session=session)
        return WAITED.copy()

    assert isinstance(session.backend, FakeBackend)
    assert waits(MAIN, 8, 8, 9, MAIN, MAIN) == [(8, MAIN), (9, 8), (MAIN, 9)]
    session.backend.is_capturing = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: CURRENT[-1] in (8, 9))
    assert waits(8, 9, 9, 8) == [(9, 8), (8, 9)]
    session.backend.is_capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert waits(MAIN, 9) == [(9, MAIN)]
    session.backend.is_capturing = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: CURRENT[-1] == 9)
    assert waits(9) == []


def test_unfused_calls_take_turns_too(notes: Notes, session: Session) -> None:
    """Their collectives wait for peers as kernels do. They multiply what they get, whatever autocast would rather have."""

    @operator("M/R K, K N -> M N")
    def product(x: Any, weight: Any) -> Any:
        return matmul(gather(x), weight)

    @product.reference
    def _(x: Any, weight: Any, *, group: Any = None) -> Any:
        return x @ weight

    session.backend.group = object()
    op, given = OPERATORS["AG+GEMM, copy engine, push"], tensors(OPERATORS["AG+GEMM, copy engine, push"])
    unfused = product.schedule(unfused=True)
    begun(op, session, given)
    unfused(*given, session=session)
    WAITED.clear()
    for stream, call in ((8, unfused), (8, unfused), (MAIN, op), (9, unfused)):
        with entered(Stream(stream)):
            call(*given, session=session)
    assert WAITED == [(8, MAIN), (MAIN, 8), (9, MAIN)]
    x, weight = (t.float() for t in given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert unfused(x, weight, session=session).dtype == torch.float32


@pytest.mark.parametrize("name", OPERATORS)
def test_calls_after_a_first_one_in_inference_mode(name: str, notes: Notes) -> None:
    """What outlives a call can be written to in any mode: by library functions, by the watchdog that rings doorbells."""
    op = OPERATORS[name]
    with torch.inference_mode():
        session = Session(FakeBackend(RANK, RANKS, notes), watchdog=30.0)
        op(*tensors(op), session=session)
    op(*tensors(op), session=session)
    session.vigil.stop()
    guard = session.vigil.guard
    assert guard is not None
    guard.reset()
    for words in session.doorbells():
        words.zero_()


def test_what_lasts_is_made_in_a_thread_of_its_own_on_the_callers_stream(notes: Notes) -> None:
    """`torch.compile(mode="reduce-overhead")` sends what its thread allocates to the pool of a CUDA graph."""
    seen: list[tuple[int, int]] = []

    def made() -> torch.Tensor:
        seen.append((threading.get_ident(), CURRENT[-1]))
        return torch.empty(1)

    with entered(Stream(8)):
        FakeBackend(RANK, RANKS, notes).lasting(made)
    ((thread, stream),) = seen
    assert thread != threading.get_ident()
    assert stream == 8


@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_of_a_call_is_kept(name: str, notes: Notes, session: Session) -> None:
    """Neither arguments nor results, which may lie in the pool of a CUDA graph."""
    op = OPERATORS[name]
    given = tensors(op)
    made = [*given, op(*given, session=session)]
    seen = [weakref.ref(t) for t in made]
    del given, made
    assert [s() for s in seen] == [None] * len(seen)


def test_streams_of_a_backend_are_nobody_elses(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch hands out its 32 streams of a priority again and again."""
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: Stream(handle))
    notes.start()
    first, second = (own_stream(CPU).cuda_stream for _ in range(2))
    assert first != second
    assert notes.lines() == [f"stream {handle} flags=1 priority=-1" for handle in (first, second)]


def test_a_kernel_that_is_not_as_expected_is_launched_by_triton(
    notes: Notes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an unknown version of Triton, whose kernels take other parameters."""
    op = OPERATORS["AG+GEMM, copy engine, push"]
    given = tensors(op)
    out = begun(op, session, given)
    expected = lines(notes, op, session, given, out)
    (workspace,) = session.workspaces.values()
    sizes = packing.declared_sizes
    monkeypatch.setattr(packing, "declared_sizes", lambda ptx, name: [*sizes(ptx, name), 8])
    session.prepared.clear()
    op(*given, out=out, session=session)
    runs = []
    run = triton.JITFunction.run
    monkeypatch.setattr(triton.JITFunction, "run", lambda self, *a, **k: (runs.append(self), run(self, *a, **k))[1])
    workspace.calls, workspace.heard = 2, True
    events = [line for line in lines(notes, op, session, given, out) if "event" not in line]
    assert events == [line for line in expected if "event" not in line]
    assert len(runs) == 2


PLAIN = {
    "num_ctas": 1,
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}


def test_which_kernels_are_plain() -> None:
    assert packing.by_grid_alone(SimpleNamespace(**PLAIN))
    for name in PLAIN:
        assert not packing.by_grid_alone(SimpleNamespace(**{**PLAIN, name: 2}))
        assert not packing.by_grid_alone(SimpleNamespace(**{k: v for k, v in PLAIN.items() if k != name}))


def test_sizes_of_parameters() -> None:
    ptx = """
    .extern .func helper ( .param .b64 helper_param_0 )
    .visible .entry other( .param .u32 other_param_0 )
    .visible .entry kernel(
        .param .align 64 .b8 kernel_param_0[128],
        .param .u64 .ptr .global .align 1 kernel_param_1,
        .param .b16 kernel_param_2,
        .param .f32 kernel_param_3,
        .param .u8 kernel_param_4
    )
    .reqntid 128
    {"""
    assert packing.declared_sizes(ptx, "kernel") == [128, 8, 2, 4, 1]
    assert packing.declared_sizes(ptx, "kernels") == []


@pytest.mark.each_triton
def test_a_tensor_map_is_the_last_member_of_tritons_object() -> None:
    """`packing._inside` counts on it: nothing behind the map, and nothing before it but what every object begins with."""
    source = (Path(triton_driver.__file__).parent / "driver.c").read_text()
    declared = re.search(r"typedef struct \{([^}]*)\} PyCUtensorMapObject;", source)
    assert declared is not None
    members = re.sub(r"_Alignas\((?:128|alignof\(CUtensorMap\))\)", "", declared[1]).split()
    assert members == ["PyObject_HEAD;", "CUtensorMap", "tensorMap;"]


@pytest.mark.each_triton
def test_tensor_maps_are_kept_by_address(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [64, 64], "fp4_padded": False}
    maps = packing.TensorMaps(metadata, W.Descriptor(W.Given("x"), (64, 64), (1, 0)))
    whole = torch.zeros(200, 64, 64, dtype=torch.bfloat16)
    stored = whole.transpose(1, 2)

    def content(tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple((ctypes.c_uint64 * 16).from_address(maps.address(tensor)))

    for tensor in (stored[0], stored[7]):
        assert content(tensor)[0] == tensor.data_ptr()
        assert content(tensor)[7:9] == (64, 64)
        assert maps.address(tensor) % 64 == 0
    monkeypatch.setattr(triton_driver, "make_tensordesc_arg", None)
    before = maps.address(stored[0])
    packing._encoder.cache_clear()
    assert maps.address(stored[0]) == before
    monkeypatch.undo()
    for tensor in stored:
        assert content(tensor)[0] == tensor.data_ptr()
    assert len(maps._known) == 64


def step(session: Session, work: W.Work, number: int, **given: torch.Tensor) -> tuple[W.Step, W.Call]:
    call = W.Call(given, 0, session.backend, session.backend.main_stream())
    return session.backend.step(work, number, call), call


def test_rows_that_lie_apart_are_copied_row_by_row(notes: Notes, session: Session) -> None:
    buffer, x, y = torch.zeros(8, 16), torch.zeros(4, 6), torch.zeros(4, 6)
    own = (0, 4), (0, 6)
    run, call = step(session, W.Copy(W.View(buffer, own), W.View(W.Given("x"), own)), W.MAIN, x=x)
    call.tensors = {"x": y}
    notes.start()
    run(call)
    assert notes.lines() == [
        f"rows target={buffer.data_ptr()},64 source={y.data_ptr()},24 width=24 rows=4 kinds=2,2 stream={MAIN}"
    ]


def test_nothing_is_copied_of_an_empty_argument(notes: Notes, session: Session) -> None:
    own = (0, 0), (0, 16)
    work = W.Copy(W.View(torch.zeros(8, 16), own), W.View(W.Given("x"), own))
    run, call = step(session, work, W.MAIN, x=torch.zeros(0, 16))
    notes.start()
    run(call)
    assert notes.lines() == []


def test_a_peers_argument_is_found_anew_in_each_call(notes: Notes, session: Session) -> None:
    x, y = (session.empty((4, 8), torch.float32) for _ in range(2))
    target = torch.zeros(16)
    run, call = step(session, W.Copy(W.View(target, ((2, 8),)), W.View(W.Given("x"), ((10, 16),), 3, (32,))), 2, x=x)
    for given in (x, y):
        call.tensors = {"x": given}
        notes.start()
        run(call)
        source = session.backend.arenas.holding(given).instance(given, 3).data_ptr() + 40
        assert notes.lines() == [f"copy target={target.data_ptr() + 8} source={source} bytes=24 stream=102"]


def test_ranks_agree_once_on_where_a_peers_argument_lies(
    notes: Notes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a graph holds the call; then nothing more is asked."""
    op = OPERATORS["AG+GEMM, SMs"]
    x, weight = tensors(op)
    whole = session.empty((3, *x.shape), x.dtype)
    agree, told = FakeBackend.agree, list[Any]()
    monkeypatch.setattr(FakeBackend, "agree", lambda self, value: (told.append(value), agree(self, value))[1])
    for part in (0, 1):
        op(whole[part], weight, session=session)
    stated = [value[1] for value in told if isinstance(value, tuple) and value[0] == "calls an operator"]
    assert [each.places for each in stated] == [(("x", (1, part * x.nbytes)),) for part in (0, 1)]
    told.clear()
    assert isinstance(session.backend, FakeBackend)
    session.backend.is_capturing = True
    for part in (1, 0):
        op(whole[part], weight, session=session)
    assert told == []
    with pytest.raises(TilelinkError) as refused:
        op(whole[2], weight, session=session)
    assert (refused.value.code, refused.value.hint) == ("TL437", "make the same call once before capturing it")
    session.backend.is_capturing = False
    monkeypatch.setattr(
        FakeBackend, "agree", lambda self, value: [("calls an operator", stated[0]), value, value, value]
    )
    with pytest.raises(TilelinkError) as refused:
        op(whole[2], weight, session=session)
    assert (refused.value.code, refused.value.message) == (
        "TL459",
        f"argument `x` of `ag_gemm` lies at byte 0 of allocation 1 of `empty` on rank 0 and at byte {2 * x.nbytes} of "
        "allocation 1 of `empty` on rank 1",
    )


def test_results_go_to_memory_of_their_own(notes: Notes, session: Session) -> None:
    """Nothing reaches the driver."""
    op = OPERATORS["AG+GEMM, SMs"]
    x, weight = tensors(op)
    out = begun(op, session, (x, weight))
    pool = torch.zeros(weight.numel() + out.numel(), dtype=out.dtype)
    for begin in (0, weight.numel() - 1, weight.numel()):
        given = x, pool[: weight.numel()].view_as(weight)
        there = pool[begin:][: out.numel()].view_as(out)
        notes.start()
        if begin == weight.numel():
            assert op(*given, out=there, session=session) is there
            continue
        with pytest.raises(TilelinkError, match="TL244: `out` 1 of `ag_gemm` shares memory with argument 2"):
            op(*given, out=there, session=session)
        assert notes.lines() == []


@pytest.mark.parametrize("name", ["AG+GEMM, copy engine, push", "GEMM+RS, copy engine"])
def test_the_drivers_refusal_is_told(name: str, notes: Notes, session: Session) -> None:
    op = OPERATORS[name]
    given = tensors(op)
    out = op(*given, session=session)
    notes.fail(700)
    with pytest.raises(TilelinkError, match=r"TL422: cuLaunchKernelEx failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        op(*given, out=out, session=session)
    for work, call in (
        (W.WaitDoorbell(out), "cuStreamBatchMemOp"),
        (W.Follow(1), "cuEventRecord or cuStreamWaitEvent"),
    ):
        run, first = step(session, work, 2)
        with pytest.raises(TilelinkError, match=f"TL422: {call} failed"):
            run(first)
    run, first = step(session, W.Copy(W.View(out.view(-1), ((0, 1),)), W.View(out.view(-1), ((1, 2),))), 2)
    with pytest.raises(TilelinkError, match="TL422: cuMemcpyDtoDAsync failed"):
        run(first)


def test_nobody_calls_on_in_what_half_a_call_has_left(notes: Notes, session: Session) -> None:
    """Flags would be paired with those of another call: wrong numbers."""
    op = OPERATORS["AG+GEMM, copy engine, push"]
    given = tensors(op)
    out = op(*given, session=session)
    notes.fail(700)
    with pytest.raises(TilelinkError, match="TL422"):
        op(*given, session=session)
    notes.fail(0)
    for again in (given, tensors(op, rows=512)):
        with pytest.raises(TilelinkError, match=r"TL478: .* on rank 1: TilelinkError: TL422: cuLaunchKernelEx failed"):
            op(*again, session=session)
    session.close(op.identity)
    assert op(*given, session=session).shape == out.shape


def test_handles_of_all_64_bits_reach_the_driver(notes: Notes) -> None:
    """Those of kernels that a thread besides the main one has loaded lie high in memory."""
    notes.start()
    assert driver.blocks_per_multiprocessor(0x7FD8_A5FF_F6C0, 256, 1 << 17) == 3
    assert notes.lines() == [f"room function={0x7FD8_A5FF_F6C0} threads=256 shared={1 << 17}"]


def test_a_tensor_on_another_gpu_is_another_kind_of_call(notes: Notes, session: Session) -> None:
    op = OPERATORS["AG+GEMM, SMs"]
    x, weight = tensors(op)
    op(x, weight, session=session)
    with pytest.raises(TilelinkError, match="TL225: argument 2 of `ag_gemm` is on meta"):
        op(x, weight.to("meta"), session=session)


def test_driver_structures_have_the_drivers_sizes() -> None:
    """cuda.h: CUlaunchConfig, CUstreamBatchMemOpParams, CUDA_MEMCPY2D."""
    sizes = [ctypes.sizeof(s) for s in (driver.LaunchConfig, driver.MemoryOperation, driver._Rows)]
    assert sizes == [56, 48, 128]
