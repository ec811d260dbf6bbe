"""What a run says that cannot go on."""

import re

import pytest
import torch

from tests.simulated import emitted_ag_gemm, emitted_small
from tests.simulated.breaking import Break, breaking, dropped
from tests.simulated.programs import Problem, pull
from tilelink import sms
from tilelink.device import peer
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.ir.topology import Device
from tilelink.ops import ag_gemm
from tilelink.runtime.simulated import SimulatedBackend, StandstillError, simulate

__all__ = ["breaking"]


class WithoutLocalAdd:
    """The vocabulary with one signal missing."""

    def __getattr__(self, name: str) -> object:
        return (lambda *args: None) if name == "local_add" else getattr(peer, name)


def waits_alone(backend: SimulatedBackend) -> None:
    arena = backend.arena(64)
    flags = arena.local.view(torch.int64)
    if backend.rank == 0:
        args = {"flags": flags, "value": 3, "context": arena.context}
        backend.main_stream().launch(emitted_small.wait_for, 2, args, KernelOptions(1, 1))
    backend.barrier()


def test_the_report_is_pinned() -> None:
    with pytest.raises(StandstillError) as caught:
        simulate(waits_alone, 2)
    text = re.sub(r"/\S*/tests/", "tests/", str(caught.value))
    line = waits_alone.__code__.co_firstlineno + 6
    assert (
        text
        == f"""\
TL501: the simulation stands still: 5 agents of ranks [0, 1] wait, and nobody can go on
  why: every one of them waits for a signal, a copy or an SM that only another waiting one could give
  do:  look for the wait whose signal is never sent; `verify` proves this before a launch
  note: rank 0, worker 0 of wait_for in signal_wait_until: flags[0] is 0, waits until it is >= 3 (value=3, worker=0, expected=3)
  --> tests/simulated/emitted_small.py:14
     |
  14 |     shmem.signal_wait_until(flags + worker, shmem.CMP_GE, expected)
     |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  note: rank 0, worker 1 of wait_for in signal_wait_until: flags[1] is 0, waits until it is >= 4 (value=3, worker=1, expected=4)
  note: rank 0, main stream: 2 of 2 workers of wait_for have not ended
  note: rank 0, host: waits for its main stream
  --> tests/simulated/test_standstill.py:{line}
     |
  {line} |     backend.barrier()
     |     ^^^^^^^^^^^^^^^^^
  note: rank 1, host: barrier: ranks [0] have not come"""
    )


def test_the_report_is_data_too() -> None:
    with pytest.raises(StandstillError) as caught:
        simulate(waits_alone, 2)
    worker = next(w for w in caught.value.waiting if w.agent.worker == 1)
    assert worker.loc is not None
    assert (worker.agent.rank, worker.agent.name, worker.loc.line) == (0, "worker 1 of wait_for", 14)
    assert worker.helpers == ("signal_wait_until",)
    assert worker.values == (("value", 3), ("worker", 1), ("expected", 4))


def test_a_missing_signal_names_every_role_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.random(128, 32, 32, torch.float32)
    monkeypatch.setattr(emitted_ag_gemm, "shmem", WithoutLocalAdd())
    with pytest.raises(StandstillError) as caught:
        simulate(pull(problem), 4, seed=2)
    chains = {w.helpers for w in caught.value.waiting if w.agent.worker is not None}
    assert chains == {("matmul", "local_wait_until")}
    assert {w.agent.rank for w in caught.value.waiting} == {0, 1, 2, 3}


def test_workers_that_do_not_fit_are_said_to_have_no_sm() -> None:
    def main(backend: SimulatedBackend) -> None:
        flags = backend.zeros(4, torch.int64)
        backend.main_stream().launch(emitted_small.chain, 3, {"flags": flags}, KernelOptions(1, 1))

    simulate(main, 1, device=Device(sms=3))
    with pytest.raises(StandstillError, match="launch of chain: worker 2 has no SM, all 2 are taken"):
        simulate(main, 1, device=Device(sms=2))


def test_a_doorbell_that_nobody_rings() -> None:
    def main(backend: SimulatedBackend) -> None:
        backend.side_stream(1).wait_doorbell(backend.zeros(1, torch.int64))

    with pytest.raises(StandstillError, match="rank 0, side stream 1: doorbell is 0, waits until it is 1"):
        simulate(main, 1)


def test_a_collective_that_one_rank_leaves_out() -> None:
    def main(backend: SimulatedBackend) -> None:
        if backend.rank != 1:
            backend.agree(backend.rank)

    with pytest.raises(StandstillError, match=r"agree: ranks \[1\] have not come"):
        simulate(main, 3)


def test_collectives_that_differ() -> None:
    def main(backend: SimulatedBackend) -> None:
        _ = backend.agree(1) if backend.rank else backend.barrier()

    with pytest.raises(TilelinkError, match=r"TL504.*where rank"):
        simulate(main, 2)


def test_two_satisfied_spins_on_one_flag_are_no_standstill() -> None:
    def main(backend: SimulatedBackend) -> int:
        flags, other = torch.ones(1, dtype=torch.int64), backend.zeros(1, torch.int64)
        backend.main_stream().launch(emitted_small.spin, 1, {"flags": flags, "other": other}, KernelOptions(1, 1))
        backend.finish()
        return int(other)

    assert simulate(main, 1) == [7]


def test_an_operator_that_stands_still_names_rank_worker_tile_line_flag_and_counts(breaking: Break) -> None:
    """Of the tile program, not of the emitted file."""
    breaking(dropped("shmem.local_add(rows_flags"))
    operator = ag_gemm.schedule(gather=sms(2, M=16), matmul=sms(M=16, N=16, K=16))
    x, w = [torch.ones(16, 32)] * 2, [torch.ones(32, 32)] * 2
    with pytest.raises(StandstillError) as caught:
        operator(x, w)
    waiting = next(w for w in caught.value.waiting if w.helpers[-1:] == ("local_wait_until",))
    assert waiting.agent.rank in (0, 1)
    assert waiting.agent.worker is not None
    assert waiting.awaits == "rows_flags[0] is 0, waits until it is >= 1"
    assert {"m_begin", "n_begin"} <= {name for name, _ in waiting.values}
    assert waiting.loc is not None
    assert waiting.loc.source_line().strip() == "tl.consumer_tile_wait(rows, m)"
    assert "tl.consumer_tile_wait(rows, m)" in str(caught.value)
