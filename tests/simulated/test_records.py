"""The trace, its clocks, and what an observer sees."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from tests.simulated import emitted_ag_gemm
from tests.simulated.programs import Problem, pull, push
from tilelink import cost
from tilelink.runtime.simulated import Observer, Record, Recorder, simulate
from tilelink.runtime.simulated.agents import AccessKind, Agent, Atomic, Block, Proxy, Span

SLOW_LINKS = replace(cost.H200, push=500.0, pull=500.0, link=500.0)


def traced(problem: Problem, ranks: int = 4, *, costs: cost.Machine = SLOW_LINKS, seed: int = 0) -> Recorder:
    recorder = Recorder()
    problem.assert_right(simulate(pull(problem), ranks, recorder=recorder, costs=costs, seed=seed))
    return recorder


def of_worker(recorder: Recorder, rank: int, worker: int) -> list[Record]:
    return [r for r in recorder.records if (r.rank, r.worker) == (rank, worker)]


def span_of(recorder: Recorder) -> float:
    """Simulated microseconds from the beginning to the end of the run."""
    return max(r.until for r in recorder.records)


def test_every_worker_has_a_beginning_and_an_end() -> None:
    recorder = traced(Problem.random(128, 64, 64, torch.float32))
    for rank in range(4):
        for worker in range(6):
            records = of_worker(recorder, rank, worker)
            assert (records[0].what, records[-1].what) == ("launch", "end")
            assert [r.time for r in records] == sorted(r.time for r in records)
            waits = [r.what for r in records if r.what in ("wait", "resume")]
            assert waits == ["wait", "resume"] * (len(waits) // 2)


def test_records_name_functions_and_lines_of_the_emitted_file() -> None:
    recorder = traced(Problem.random(128, 64, 64, torch.float32))
    lines = Path(emitted_ag_gemm.__file__).read_text().splitlines()
    waits = {(r.function, lines[r.line - 1].strip()) for r in recorder.records if r.what == "wait"}
    assert waits == {
        ("gather", "shmem.signal_wait_until(ready + source, shmem.CMP_GE, epoch)"),
        ("matmul", "shmem.local_wait_until(pulled + m, shmem.CMP_GE, epoch)"),
    }
    signals = {r.detail for r in recorder.records if r.what == "signal" and r.rank == 1}
    assert {"ready[1] = 1", "ready[1] of rank 0 = 1", "pulled[3] = 1"} <= signals


def test_simulated_time_does_not_depend_on_the_schedule() -> None:
    problem = Problem.random(128, 64, 64, torch.float32)
    spans = {round(span_of(traced(problem, seed=seed)), 6) for seed in range(5)}
    assert len(spans) == 1


def test_a_wait_ends_when_the_signal_arrives() -> None:
    recorder = traced(Problem.random(128, 64, 64, torch.float32))
    arrived = {r.detail: r.time for r in of_worker(recorder, 0, 0) + of_worker(recorder, 0, 1) if r.what == "signal"}
    for worker in range(2, 6):
        for record in of_worker(recorder, 0, worker):
            if record.what == "resume":
                flag = record.detail.split(" ")[0]
                assert record.time >= arrived[f"{flag} = 1"]


def test_communication_hides_behind_computation() -> None:
    """The span is far from the sum of both roles, and near the longer."""
    recorder = traced(Problem.random(256, 128, 128, torch.float32))

    def busy(worker: int) -> float:
        records = of_worker(recorder, 0, worker)
        waits = sum(b.time - a.time for a, b in pairwise(records) if a.what == "wait")
        return records[-1].time - records[0].time - waits

    pulling, multiplying = max(busy(0), busy(1)), max(busy(w) for w in range(2, 6))
    assert span_of(recorder) < 0.5 * pulling + 0.5 * (pulling + multiplying) + 20
    assert pulling > multiplying / 10


def test_a_copy_takes_time_on_its_stream() -> None:
    recorder = Recorder()
    problem = Problem.random(64, 64, 64, torch.float32)
    simulate(push(problem), 2, recorder=recorder, costs=SLOW_LINKS)
    copies = [r for r in recorder.records if (r.rank, r.what) == (1, "copy")]
    assert {r.stream for r in copies} == {1}
    assert {r.detail for r in copies} == {"8192 bytes", "8 bytes"}
    assert all(b.time >= a.until > a.time for a, b in pairwise(copies))


class Counting(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Proxy, Span]] = []
        self.atomics: list[tuple[bool, bool, str, bool]] = []
        self.fences: list[str] = []
        self.order: set[tuple[str, str]] = set()
        self.places: set[tuple[str, int]] = set()

    def mark(self, agent: Agent) -> object:
        return agent.name

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        self.order |= {(str(mark), agent.name) for mark in marks}

    def access(self, agent: Agent, span: Span, proxy: Proxy, kind: AccessKind) -> None:
        self.spans.append((kind, proxy, span))
        if kind == "load":
            self.places.add(self.machine.place(agent))

    def atomic(self, agent: Agent, atomic: Atomic) -> None:
        self.atomics.append((atomic.acquire, atomic.release, atomic.scope, atomic.writes))

    def fence(self, agent: Agent, meaning: str) -> None:
        self.fences.append(meaning)


def test_an_observer_sees_accesses_and_orders() -> None:
    observer = Counting()
    problem = Problem.random(64, 32, 32, torch.bfloat16)
    problem.assert_right(simulate(pull(problem), 2, observer=observer))
    bulk = [span for _, proxy, span in observer.spans if proxy == "bulk"]
    assert {(s.shape, s.strides, s.itemsize) for s in bulk if isinstance(s, Block)} == {((32, 32), (64, 2), 2)}
    copied = [s for kind, proxy, s in observer.spans if (kind, proxy) == ("store", "threads")]
    assert sum(s.shape[0] if isinstance(s, Block) else s.addresses.size for s in copied) == 2 * 64 * 32
    assert (False, True, "system", True) in observer.atomics
    assert (True, False, "system", False) in observer.atomics
    assert (True, True, "device", True) in observer.atomics
    assert set(observer.fences) == {"barrier", "proxy_fence"}
    assert observer.fences.count("barrier") == 2 * 2 + 2 * 2
    worker = "worker 5 of ag_gemm"
    assert {("host", "main stream"), ("main stream", worker), (worker, "main stream"), ("main stream", "host")} <= (
        observer.order
    )
    assert {function for function, _ in observer.places} == {"ag_gemm", "gather", "matmul"}


def test_an_observer_takes_a_copied_flag_for_a_signal() -> None:
    observer = Counting()
    simulate(push(Problem.random(64, 32, 32, torch.float32)), 2, observer=observer)
    assert ("side stream 0", "main stream") not in observer.order
    assert ("main stream", "side stream 0") in observer.order
    assert observer.atomics.count((False, True, "system", True)) >= 4
