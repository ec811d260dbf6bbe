"""Interleaved measurements, and failures that all ranks learn of."""

from __future__ import annotations

import tilelink
from tilelink.errors import TilelinkError
from tilelink.runtime.session import require
from tilelink.runtime.world import World
from tilelink.tuning import attempt, interleaved


class Told:
    """A world of one rank whose clock says how often it was asked."""

    rank, ranks = 0, 1

    def __init__(self, real: World) -> None:
        self.topology = real.topology
        self.asked: list[str] = []

    def timed(self, call):
        call()
        return float(len(self.asked))

    def agree(self, value):
        return [value]


def test_every_round_begins_with_another_contender() -> None:
    def body() -> None:
        world = Told(require().world)
        log: list[str] = []
        runs = {name: lambda name=name: log.append(name) for name in "abc"}
        times, missing = interleaved(world, runs, 3, lambda: log.append("fresh"))  # type: ignore[arg-type]
        assert log == [*"abc", "fresh", *"abc", "fresh", *"bca", "fresh", *"cab"]
        assert missing == {}
        assert {name: len(t.ms) for name, t in times.items()} == {"a": 3, "b": 3, "c": 3}

    tilelink.launch(body, ranks=1)


def test_what_fails_on_one_rank_is_left_out_on_all() -> None:
    def body() -> tuple[list[str], dict[str, str]]:
        def picky() -> None:
            if tilelink.rank() == 1:
                raise TilelinkError("TL405", "too many workers")

        runs = {"good": lambda: None, "picky": picky}
        times, missing = interleaved(require().world, runs, 2, lambda: None)
        return list(times), missing

    found = tilelink.launch(body, ranks=3)
    assert found == [(["good"], {"picky": "rank 1: TL405: too many workers"})] * 3


def test_an_attempt_says_nothing_where_nothing_failed() -> None:
    assert tilelink.launch(lambda: attempt(require().world, lambda: None), ranks=2) == ["", ""]


def test_simulated_time_is_of_the_call_alone() -> None:
    def body() -> tuple[float, float]:
        world = require().world
        stream, source = world.main_stream(), world.zeros(1 << 18, tilelink_dtype())
        target = world.zeros(1 << 18, source.dtype)
        both = world.timed(lambda: (stream.copy(target, source), stream.copy(target, source)))
        return world.timed(lambda: stream.copy(target, source)), both

    for one, both in tilelink.launch(body, ranks=2):
        assert one > 0
        assert 1.9 * one < both < 2.1 * one


def tilelink_dtype():
    import torch

    return torch.float32
