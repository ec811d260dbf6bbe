"""What orders two accesses, and what does not: the race detector on kernels and streams of a few lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.simulated import emitted_races as kernels
from tests.simulated.programs import Problem, pull, push
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.backend import Descriptor
from tilelink.runtime.simulated import Race, RaceDetector, RaceError, SimulatedBackend, races, shadow, simulate

Main = Callable[[SimulatedBackend], object]


def found(main: Main, ranks: int = 2, *, seed: int = 0) -> list[Race]:
    detector = RaceDetector(collect=True)
    simulate(main, ranks, seed=seed, observer=detector)
    return detector.races


def missing(main: Main, ranks: int = 2) -> set[str]:
    """Under several schedules."""
    return {race.missing for seed in range(4) for race in found(main, ranks, seed=seed)}


# ---------------------------------------------------------------------------------------------------------------- streams
def over_streams(backend: SimulatedBackend, *, event: bool) -> None:
    """Two streams of one rank: a copy, and a copy of what it brings."""
    a, b, c = backend.zeros(64, torch.float32), backend.zeros(64, torch.float32), backend.zeros(64, torch.float32)
    main, side = backend.main_stream(), backend.side_stream(0)
    main.copy(b, a)
    if event:
        side.wait(main.record())
    side.copy(c, b)


def test_streams_are_ordered_by_events_alone() -> None:
    assert missing(lambda backend: over_streams(backend, event=False), 1) == {"signal"}
    assert missing(lambda backend: over_streams(backend, event=True), 1) == set()


def to_a_peer(backend: SimulatedBackend, *, meet: bool) -> None:
    """Every rank copies into its neighbour's memory, which the neighbour copies on."""
    arena = backend.arena(256)
    own = backend.zeros(256, torch.uint8)
    backend.main_stream().copy(arena.peers[(backend.rank + 1) % backend.ranks], own)
    if meet:
        backend.barrier()
    backend.main_stream().copy(own, arena.local)
    backend.barrier()


def test_ranks_are_ordered_by_meeting() -> None:
    assert missing(lambda backend: to_a_peer(backend, meet=False)) == {"signal"}
    assert missing(lambda backend: to_a_peer(backend, meet=True)) == set()


def test_slots_without_credits_are_a_race() -> None:
    """The copy engine of a rank that is ahead writes into a slot that a peer still reads."""
    problem = Problem.random(96, 32, 32, torch.float32, calls=4)
    assert found(push(problem, slots=1), 3) == []
    late = [race for seed in range(4) for race in found(push(problem, slots=1, credits=False), 3, seed=seed)]
    assert {race.missing for race in late} == {"signal"}
    assert {race.earlier.kind for race in late} | {race.later.kind for race in late} == {"load", "store"}
    copies = [a for race in late for a in (race.earlier, race.later) if a.agent.name == "side stream 0"]
    assert copies
    assert all(a.what.startswith("rows[") for a in copies), "streams' memory goes by the names that kernels give it"


# ---------------------------------------------------------------------------------------------------------------- programs
def launched(kernel: object, workers: int, size: int = 64) -> Main:
    def main(backend: SimulatedBackend) -> None:
        data, flags = backend.zeros(size, torch.int32), backend.zeros(8, torch.int64)
        backend.main_stream().launch(kernel, workers, {"data": data, "flags": flags}, KernelOptions(1, 1))

    return main


def test_neighbours_share_nothing() -> None:
    assert missing(launched(kernels.neighbours, 3, 63), 1) == set()


def test_programs_that_overlap_by_one_element() -> None:
    assert missing(launched(kernels.overlapping, 3), 1) == {"signal"}


def test_masked_elements_are_not_touched() -> None:
    assert missing(launched(kernels.odd_and_even, 2), 1) == set()


def test_a_block_of_atomics_is_no_race_with_another() -> None:
    assert missing(launched(kernels.histogram, 4), 1) == set()


def test_an_atomic_and_an_ordinary_store_are() -> None:
    assert missing(launched(kernels.add_and_store, 2), 1) == {"signal"}


def test_launches_on_one_stream_are_in_order() -> None:
    def main(backend: SimulatedBackend) -> None:
        data, flags = backend.zeros(64, torch.int32), backend.zeros(8, torch.int64)
        for workers in (1, 3, 2):
            args = {"data": data, "flags": flags}
            kernel = kernels.whole if workers == 1 else kernels.neighbours
            backend.main_stream().launch(kernel, workers, args, KernelOptions(1, 1))

    assert missing(main, 1) == set()


def test_a_tile_in_place_needs_no_fence() -> None:
    """A bulk load has ended when its tile is used; a bulk store goes on until it is waited for."""

    def main(kernel: object) -> Main:
        def run(backend: SimulatedBackend) -> None:
            data = backend.zeros(16 * 16, torch.float32)
            args = {"tile": Descriptor(data.view(16, 16), (16, 16)), "data": data}
            backend.main_stream().launch(kernel, 1, args, KernelOptions(1, 1))

        return run

    assert missing(main(kernels.in_place), 1) == set()
    assert missing(main(kernels.store_then_load), 1) == set()
    assert missing(main(kernels.through_both), 1) == {"bulk store wait"}


# ------------------------------------------------------------------------------------------------------------ the detector
def test_it_raises_where_it_does_not_collect() -> None:
    with pytest.raises(RaceError) as caught:
        simulate(launched(kernels.overlapping, 3), 1, observer=RaceDetector())
    assert caught.value.race.later.what.startswith("data[")
    assert {caught.value.race.earlier.agent.name, caught.value.race.later.agent.name} < {
        f"worker {n} of overlapping" for n in range(3)
    }


def test_memory_that_comes_again_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of different ranks that lie at one address, one after the other."""
    monkeypatch.setattr(shadow, "BUDGET", 1 << 12)

    def main(backend: SimulatedBackend) -> None:
        for _ in range(20):
            a = torch.ones(512)
            backend.main_stream().copy(torch.zeros(512), a)
            backend.finish()
            del a

    assert missing(main, 3) == set()


def test_what_is_forgotten_is_no_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "LIMIT", 50)
    monkeypatch.setattr(races, "SIGNALS", 2)
    problem = Problem.random(64, 32, 32, torch.bfloat16, calls=3)
    assert found(pull(problem), 3) == []


def test_grains_become_as_small_as_they_must() -> None:
    made = shadow.Shadow(0, 64, None)
    tile = made.cells(shadow.Block(0, (4, 4), (16, 4), 4))
    assert made.grain == 64
    tile.fill(7)
    made.cells(shadow.Block(6, (1,), (0,), 2)).fill(9)
    assert made.grain == 2
    assert made.numbers.tolist() == [7, 7, 7, 9, *[7] * 28]
    column = made.cells(shadow.Block(4, (4, 1), (16, 4), 4))
    assert column.states() == [7, 9]
    column.fill(3, old=7)
    assert made.numbers.tolist()[:12] == [7, 7, 3, 9, 7, 7, 7, 7, 7, 7, 3, 3]
