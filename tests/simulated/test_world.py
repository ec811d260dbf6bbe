"""Worlds, streams and schedules."""

import pytest
import torch

from tests.simulated import emitted_small
from tests.simulated.programs import Problem, pull, push
from tilelink.errors import TilelinkError
from tilelink.ir.options import KernelOptions
from tilelink.ir.topology import Device
from tilelink.runtime.simulated import Recorder, SimulatedWorld, simulate
from tilelink.runtime.world import Arena, Stream, World


def test_it_is_a_world() -> None:
    def main(world: World) -> tuple[int, int, str, int]:
        stream: Stream = world.main_stream()
        arena: Arena = world.arena(100)
        assert stream is world.main_stream()
        assert world.side_stream(1) is not world.side_stream(0)
        assert arena.local.shape == (100,)
        assert arena.local.dtype == torch.uint8
        assert not world.capturing()
        arena.free()
        return world.rank, world.ranks, world.topology.world, world.topology.device.sms

    assert simulate(main, 2, device=Device(sms=5)) == [(0, 2, "simulated", 5), (1, 2, "simulated", 5)]


def test_the_context_holds_the_bases() -> None:
    def main(world: SimulatedWorld) -> list[int]:
        arena = world.arena(32)
        bases = [arena.peer(pe).data_ptr() for pe in range(world.ranks)]
        assert arena.context.tolist() == [world.rank, 3, *bases, 0, 1, 2]
        assert arena.peer(world.rank).data_ptr() == arena.local.data_ptr()
        return bases

    bases = simulate(main, 3)
    assert bases[0] == bases[1] == bases[2]
    assert len(set(bases[0])) == 3


def test_arenas_are_the_same_on_every_rank() -> None:
    with pytest.raises(TilelinkError, match="TL436: the ranks ask for symmetric memory of 16, 32 bytes"):
        simulate(lambda world: world.arena(16 * (world.rank + 1)), 2)
    with pytest.raises(TilelinkError, match="TL436"):
        simulate(lambda world: world.arena(0), 2)


def test_instances_of_a_tensor_in_an_arena() -> None:
    def main(world: SimulatedWorld) -> float:
        world.arena(64)
        arena = world.arena(256)
        own = arena.local[64:128].view(torch.float32).view(4, 4)
        own.fill_(world.rank)
        world.barrier()
        assert world.context_of(own) is arena.context
        other = world.symmetric_arena(own[1:], (world.rank + 1) % 3)
        assert other.shape == (12,)
        assert (other.data_ptr() - arena.context[2 + (world.rank + 1) % 3]) == 64 + 16
        with pytest.raises(TilelinkError, match="TL439"):
            world.context_of(torch.zeros(4))
        world.barrier()
        arena.free()
        arena.free()
        with pytest.raises(TilelinkError, match="TL439"):
            world.context_of(own)
        return float(other.mean())

    assert simulate(main, 3) == [1.0, 2.0, 0.0]


def test_agree_copies() -> None:
    def main(world: SimulatedWorld) -> list[list[int]]:
        mine = [world.rank]
        values = world.agree(mine)
        values[1].append(9 + world.rank)
        world.barrier()
        return [mine, *values]

    assert simulate(main, 2) == [[[0], [0], [1, 9]], [[1], [0], [1, 10]]]


def test_empty_memory_is_poisoned() -> None:
    def main(world: SimulatedWorld) -> None:
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
            assert world.maker((3, 5), dtype)().float().isnan().all()
            assert world.maker((), dtype)().float().isnan().all()
        assert world.maker((4,), torch.int64)().tolist() == [-1] * 4
        assert world.zeros(4, torch.int64).tolist() == [0] * 4

    simulate(main, 1)


def test_stream_order_and_events() -> None:
    def main(world: SimulatedWorld) -> list[float]:
        a, b, c = torch.ones(8), torch.zeros(8), torch.zeros(8)
        side = world.side_stream(0)
        world.main_stream().copy(b, a)
        copied = world.main_stream().record()
        world.main_stream().copy(a, torch.full((8,), 5.0))
        side.wait(copied)
        side.copy(c, b)
        world.finish()
        return [*a[:1].tolist(), *b[:1].tolist(), *c[:1].tolist()]

    for seed in range(10):
        assert simulate(main, 2, seed=seed) == [[5.0, 1.0, 1.0]] * 2


def test_without_an_event_the_order_depends_on_the_schedule() -> None:
    def main(world: SimulatedWorld) -> float:
        b, c = torch.zeros(64), torch.zeros(64)
        world.main_stream().copy(b, torch.ones(64))
        world.side_stream(0).copy(c, b)
        world.finish()
        return float(c.mean())

    seen = {simulate(main, 1, seed=seed)[0] for seed in range(20)}
    assert len(seen) > 2, "a copy is not atomic, nor always first"


def test_a_copy_of_different_things_is_refused() -> None:
    with pytest.raises(TilelinkError, match=r"TL423: a copy from torch.float32 of shape \(5,\) to"):
        simulate(lambda world: world.main_stream().copy(torch.zeros(4), torch.zeros(5)), 1)


def test_a_bell_wakes_a_stream_and_is_reset() -> None:
    def main(world: SimulatedWorld) -> tuple[float, int]:
        arena = world.arena(64)
        words, target = arena.local.view(torch.int64), world.zeros(1, torch.float32)
        bell = words[:1]
        world.side_stream(0).wait_bell(bell)
        world.side_stream(0).copy(target, torch.ones(1))
        if world.rank == 0:
            args = {"words": words, "value": 1, "context": arena.context, "OP": 9}
            world.main_stream().launch(emitted_small.signal_all, 1, args, KernelOptions(1, 1))
        world.finish()
        return float(target), int(bell)

    assert simulate(main, 3, seed=3) == [(1.0, 0)] * 3


def test_barriers_of_device_functions() -> None:
    def main(world: SimulatedWorld) -> list[int]:
        arena = world.arena(8 * world.ranks)
        words = arena.local.view(torch.int64)
        for epoch in (1, 2, 3):
            args = {"words": words, "epoch": epoch, "context": arena.context}
            world.main_stream().launch(emitted_small.meet, 1, args, KernelOptions(1, 1))
        world.finish()
        return words.tolist()

    results = simulate(main, 4, seed=1, straggler=2)
    assert results[2] == [3, 3, 3, 3]


def test_put_and_signal() -> None:
    def main(world: SimulatedWorld) -> tuple[int, int]:
        arena = world.arena(4096 + 16)
        data, word = arena.local[:4096].view(torch.int32), arena.local[4096:].view(torch.int64)
        source = torch.arange(1024, dtype=torch.int32)
        args = {"target": data, "source": source, "count": 1000, "word": word, "pe": (world.rank + 1) % 2}
        world.main_stream().launch(
            emitted_small.put_and_signal, 1, {**args, "context": arena.context}, KernelOptions(4, 1)
        )
        world.barrier()
        return int(data.sum()), int(word[0])

    assert simulate(main, 2) == [(sum(range(1000)), 1)] * 2


def test_hosts_run_ahead() -> None:
    """Rank 0 starts its second call while rank 1 is still in its first."""

    def main(world: SimulatedWorld) -> None:
        for _ in range(2):
            target = world.zeros(4, torch.float32)
            world.main_stream().copy(target, torch.ones(4))
            world.finish()
            order.append(world.rank)

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
        for record in recorder.of_rank(rank):
            if record.worker is not None:
                running += {"launch": 1, "end": -1}.get(record.what, 0)
                most = max(most, running)
        assert most == 3


def test_an_error_of_a_host_ends_the_others() -> None:
    ended: list[int] = []

    def main(world: SimulatedWorld) -> None:
        try:
            if world.rank == 1:
                raise KeyError("broken")
            world.barrier()
        finally:
            ended.append(world.rank)

    with pytest.raises(KeyError, match="broken") as caught:
        simulate(main, 3)
    assert 1 in ended
    assert caught.value.__notes__ == ["in rank 1, host", "under the policy random-0"]
