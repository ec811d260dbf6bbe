"""Interleaved measurements, and failures that all ranks learn of."""

from __future__ import annotations

import torch

import tilelink
from tilelink.errors import TilelinkError
from tilelink.runtime.backend import Backend
from tilelink.runtime.session import require
from tilelink.runtime.simulated.backend import SimulatedBackend
from tilelink.tuning.measuring import Times, attempt, interleaved, slowest


class Told:
    """A backend of one rank whose clock says how often it was asked."""

    rank, ranks, late = 0, 1, False

    def __init__(self, real: Backend) -> None:
        self.topology = real.topology
        self.asked: list[float] = []

    def timed(self, call, host_us):
        self.late = not self.late
        self.asked.append(host_us)
        call()
        return float(len(self.asked))

    def drain(self):
        pass

    def agree(self, value):
        return [value]


def test_every_round_begins_with_another_contender() -> None:
    def body() -> None:
        backend = Told(require().backend)
        log: list[str] = []
        runs = {name: lambda name=name: log.append(name) for name in "abc"}
        times, missing = interleaved(backend, runs, 3, lambda: log.append("fresh"))  # type: ignore[arg-type]
        assert log == [*"abc", "fresh", *"abc", "fresh", *"bca", "fresh", *"cab"]
        assert missing == {}
        assert {name: t.ms for name, t in times.items()} == {"a": (1, 6, 8), "b": (2, 4, 9), "c": (3, 5, 7)}
        assert [t.late for t in times.values()] == [1, 1, 3]
        assert all(0 < host_us < 1e6 for host_us in backend.asked)

    tilelink.launch(body, ranks=1)


class Slow(Told):
    """Another rank says that its rounds have taken so long, whenever both are asked."""

    def __init__(self, real: Backend, *said: float) -> None:
        super().__init__(real)
        self.said = list(said)

    def agree(self, value):
        return [value, self.said.pop(0)] if isinstance(value, float) else [value]


def test_rounds_end_with_their_time_but_for_three() -> None:
    """By the slowest rank's clock."""

    def rounds_of(*said: float, seconds: float) -> int:
        runs = {name: lambda: None for name in "ab"}
        backend = Slow(require().backend, *said)
        times, _ = interleaved(backend, runs, 6, lambda: None, seconds=seconds)  # type: ignore[arg-type]
        assert len({len(t.ms) for t in times.values()}) == 1
        return len(times["a"].ms)

    def body() -> list[int]:
        return [
            rounds_of(20.0, seconds=15.0),
            rounds_of(1.0, 14.0, 15.5, seconds=15.0),
            rounds_of(1.0, 2.0, 3.0, seconds=15.0),
            rounds_of(seconds=float("inf")),
        ]

    assert tilelink.launch(body, ranks=1) == [[3, 5, 6, 6]]


def test_theslowest_rank_counts_and_a_late_one_too() -> None:
    fast, slow = [(1.0, 10.0, False), (2.0, 30.0, False)], [(3.0, 20.0, True), (1.0, 20.0, False)]
    assert slowest([fast, slow]) == Times((3.0, 2.0), (20.0, 30.0), late=1)


def test_what_fails_on_one_rank_is_left_out_on_all() -> None:
    def body() -> tuple[list[str], dict[str, str]]:
        def picky() -> None:
            if tilelink.rank() == 1:
                raise TilelinkError("TL405", "too many workers")

        runs = {"good": lambda: None, "picky": picky}
        times, missing = interleaved(require().backend, runs, 2, lambda: None)
        return list(times), missing

    found = tilelink.launch(body, ranks=3)
    assert found == [(["good"], {"picky": "rank 1: TL405: too many workers"})] * 3


def test_an_attempt_says_nothing_where_nothing_failed() -> None:
    assert tilelink.launch(lambda: attempt(require().backend, lambda: None), ranks=2) == ["", ""]


def test_simulated_time_is_of_the_call_alone() -> None:
    def body() -> tuple[float, float]:
        backend = require().backend
        assert isinstance(backend, SimulatedBackend)
        stream, source = backend.main_stream(), backend.zeros(1 << 18, torch.float32)
        target = backend.zeros(1 << 18, source.dtype)
        both = backend.timed(lambda: (stream.copy(target, source), stream.copy(target, source)))
        return backend.timed(lambda: stream.copy(target, source)), both

    for one, both in tilelink.launch(body, ranks=2):
        assert one > 0
        assert 1.9 * one < both < 2.1 * one
