"""Backends, streams and schedules."""

import pytest
import torch

from tests.simulated import emitted_small
from tests.simulated.programs import Problem, pull, push
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.ir.topology import Device
from tilelink.runtime.backend import Backend, Stream
from tilelink.runtime.simulated import Recorder, SimulatedBackend, simulate


def test_it_is_a_backend() -> None:
    def main(backend: Backend) -> tuple[int, int, str, int]:
        stream: Stream = backend.main_stream()
        arena = backend.arena(100)
        assert stream is backend.main_stream()
        assert backend.side_stream(1) is not backend.side_stream(0)
        assert arena.local.shape == (100,)
        assert arena.local.dtype == torch.uint8
        assert not backend.capturing()
        arena.free()
        return backend.rank, backend.ranks, backend.topology.backend, backend.topology.device.sms

    assert simulate(main, 2, device=Device(sms=5)) == [(0, 2, "simulated", 5), (1, 2, "simulated", 5)]


def test_the_context_holds_the_bases() -> None:
    def main(backend: SimulatedBackend) -> list[int]:
        arena = backend.arena(32)
        bases = [arena.peers[pe].data_ptr() for pe in range(backend.ranks)]
        assert arena.context.tolist() == [backend.rank, 3, *bases, 0, 1, 2]
        assert arena.peers[backend.rank].data_ptr() == arena.local.data_ptr()
        return bases

    bases = simulate(main, 3)
    assert bases[0] == bases[1] == bases[2]
    assert len(set(bases[0])) == 3


def test_arenas_are_the_same_on_every_rank() -> None:
    with pytest.raises(TilelinkError, match="TL436: the ranks ask for symmetric memory of 16, 32 bytes"):
        simulate(lambda backend: backend.arena(16 * (backend.rank + 1)), 2)
    with pytest.raises(TilelinkError, match="TL436"):
        simulate(lambda backend: backend.arena(0), 2)


def test_instances_of_a_tensor_in_an_arena() -> None:
    def main(backend: SimulatedBackend) -> float:
        backend.arena(64)
        arena = backend.arena(256)
        own = arena.local[64:128].view(torch.float32).view(4, 4)
        own.fill_(backend.rank)
        backend.barrier()
        assert backend.arenas.holding(own).along(None) is arena.context
        other = backend.arenas.holding(own[1:]).instance(own[1:], (backend.rank + 1) % 3)
        assert other.shape == (12,)
        assert (other.data_ptr() - arena.context[2 + (backend.rank + 1) % 3]) == 64 + 16
        with pytest.raises(TilelinkError, match="TL439"):
            backend.arenas.holding(torch.zeros(4))
        backend.barrier()
        arena.free()
        arena.free()
        with pytest.raises(TilelinkError, match="TL439"):
            backend.arenas.holding(own)
        return float(other.mean())

    assert simulate(main, 3) == [1.0, 2.0, 0.0]


def test_agree_copies() -> None:
    def main(backend: SimulatedBackend) -> list[list[int]]:
        mine = [backend.rank]
        values = backend.agree(mine)
        values[1].append(9 + backend.rank)
        backend.barrier()
        return [mine, *values]

    assert simulate(main, 2) == [[[0], [0], [1, 9]], [[1], [0], [1, 10]]]


def test_empty_memory_is_poisoned() -> None:
    def main(backend: SimulatedBackend) -> None:
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
            assert backend.maker((3, 5), dtype)().float().isnan().all()
            assert backend.maker((), dtype)().float().isnan().all()
        assert backend.maker((4,), torch.int64)().tolist() == [-1] * 4
        assert backend.zeros(4, torch.int64).tolist() == [0] * 4

    simulate(main, 1)


def test_stream_order_and_events() -> None:
    def main(backend: SimulatedBackend) -> list[float]:
        a, b, c = torch.ones(8), torch.zeros(8), torch.zeros(8)
        side = backend.side_stream(0)
        backend.main_stream().copy(b, a)
        copied = backend.main_stream().record()
        backend.main_stream().copy(a, torch.full((8,), 5.0))
        side.wait(copied)
        side.copy(c, b)
        backend.finish()
        return [*a[:1].tolist(), *b[:1].tolist(), *c[:1].tolist()]

    for seed in range(10):
        assert simulate(main, 2, seed=seed) == [[5.0, 1.0, 1.0]] * 2


def test_without_an_event_the_order_depends_on_the_schedule() -> None:
    def main(backend: SimulatedBackend) -> float:
        b, c = torch.zeros(64), torch.zeros(64)
        backend.main_stream().copy(b, torch.ones(64))
        backend.side_stream(0).copy(c, b)
        backend.finish()
        return float(c.mean())

    seen = {simulate(main, 1, seed=seed)[0] for seed in range(20)}
    assert len(seen) > 2, "a copy is not atomic, nor always first"


def test_a_copy_of_different_things_is_refused() -> None:
    with pytest.raises(TilelinkError, match=r"TL423: no copy engine copies torch.float32 of shape \(5,\) and"):
        simulate(lambda backend: backend.main_stream().copy(torch.zeros(4), torch.zeros(5)), 1)


def test_a_doorbell_wakes_a_stream_and_is_reset() -> None:
    def main(backend: SimulatedBackend) -> tuple[float, int]:
        arena = backend.arena(64)
        flags, target = arena.local.view(torch.int64), backend.zeros(1, torch.float32)
        doorbell = flags[:1]
        backend.side_stream(0).wait_doorbell(doorbell)
        backend.side_stream(0).copy(target, torch.ones(1))
        if backend.rank == 0:
            args = {"flags": flags, "value": 1, "context": arena.context, "OP": 9}
            backend.main_stream().launch(emitted_small.signal_all, 1, args, KernelOptions(1, 1))
        backend.finish()
        return float(target), int(doorbell)

    assert simulate(main, 3, seed=3) == [(1.0, 0)] * 3


def test_barriers_of_device_functions() -> None:
    def main(backend: SimulatedBackend) -> list[int]:
        arena = backend.arena(8 * backend.ranks)
        flags = arena.local.view(torch.int64)
        for epoch in (1, 2, 3):
            args = {"flags": flags, "epoch": epoch, "context": arena.context}
            backend.main_stream().launch(emitted_small.meet, 1, args, KernelOptions(1, 1))
        backend.finish()
        return flags.tolist()

    results = simulate(main, 4, seed=1, straggler=2)
    assert results[2] == [3, 3, 3, 3]


def test_put_and_signal() -> None:
    def main(backend: SimulatedBackend) -> tuple[int, int]:
        arena = backend.arena(4096 + 16)
        data, flag = arena.local[:4096].view(torch.int32), arena.local[4096:].view(torch.int64)
        source = torch.arange(1024, dtype=torch.int32)
        args = {"target": data, "source": source, "count": 1000, "flag": flag, "pe": (backend.rank + 1) % 2}
        backend.main_stream().launch(
            emitted_small.put_and_signal, 1, {**args, "context": arena.context}, KernelOptions(4, 1)
        )
        backend.barrier()
        return int(data.sum()), int(flag[0])

    assert simulate(main, 2) == [(sum(range(1000)), 1)] * 2


def test_hosts_run_ahead() -> None:
    """Rank 0 starts its second call while rank 1 is still in its first."""

    def main(backend: SimulatedBackend) -> None:
        for _ in range(2):
            target = backend.zeros(4, torch.float32)
            backend.main_stream().copy(target, torch.ones(4))
            backend.finish()
            order.append(backend.rank)

    order: list[int] = []
    simulate(main, 2, straggler=1)
    assert order == [0, 0, 1, 1]


def test_a_seed_is_a_schedule() -> None:
    problem = Problem.random(64, 32, 32, torch.float32)

    def steps(seed: int) -> list[tuple[object, ...]]:
        recorder = Recorder()
        simulate(pull(problem), 3, seed=seed, recorder=recorder)
        return [(r.rank, r.worker, r.what, r.line) for r in recorder.records]

    assert steps(4) == steps(4)
    assert steps(4) != steps(5)


def test_residency_is_per_rank_over_all_kernels() -> None:
    problem = Problem.random(64, 32, 64, torch.float32)
    recorder = Recorder()
    simulate(push(problem, workers=6), 2, device=Device(sms=3), recorder=recorder)
    for rank in (0, 1):
        running = most = 0
        for record in recorder.records:
            if record.rank == rank and record.worker is not None:
                running += {"launch": 1, "end": -1}.get(record.what, 0)
                most = max(most, running)
        assert most == 3


def test_an_error_of_a_host_ends_the_others() -> None:
    ended: list[int] = []

    def main(backend: SimulatedBackend) -> None:
        try:
            if backend.rank == 1:
                raise KeyError("broken")
            backend.barrier()
        finally:
            ended.append(backend.rank)

    with pytest.raises(KeyError, match="broken") as caught:
        simulate(main, 3)
    assert 1 in ended
    assert caught.value.__notes__ == ["in rank 1, host", "under the policy random-0"]
