"""Captured contenders: what is captured, of which inputs, and what a wrong replay comes to. Graphs are made up here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import tilelink
from tilelink.bench.contest import NO_GPU, OURS, Contest, Place, Turns
from tilelink.bench.graphs import GRAPHS, in_graphs
from tilelink.errors import TilelinkError
from tilelink.runtime.session import require

CALLS = 3


class MadeUp:
    """A graph that does again what was noted while it was captured."""

    noting: MadeUp | None = None

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def replay(self) -> None:
        for each in self.work:
            each()

    @staticmethod
    def does(work: Callable[[], Any]) -> None:
        work()
        if MadeUp.noting is not None:
            MadeUp.noting.work.append(work)


@contextmanager
def capturing(graph: MadeUp, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    MadeUp.noting = graph
    try:
        yield
    finally:
        MadeUp.noting = None


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MadeUp)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def contest(stale: bool = False) -> tuple[Contest, list[int]]:
    """Ours doubles one of three inputs; `stale`: a replay does not. Also which of them ours took, in order."""
    xs = [torch.randn(4) for _ in range(CALLS)]
    turns, took = Turns([(x,) for x in xs]), list[int]()

    def run() -> torch.Tensor:
        (x,) = turns()
        took.append(next(k for k, each in enumerate(xs) if each is x))
        out = torch.empty(4)
        if stale and MadeUp.noting is not None:
            return out.fill_(0)
        MadeUp.does(lambda: out.copy_(2 * x))
        return out

    def refused() -> None:
        raise TilelinkError("TL437", "not while capturing")

    made = Contest(inputs=xs, turns=[turns], graphed=CALLS)
    made.add(OURS, run, lambda: 2 * turns()[0])
    made.add("asks", lambda: None, ungraphed="it asks the device")
    made.add("refused", refused)
    return made, took


def held(made: Contest, group: str | None = "a group") -> Any:
    found: list[Any] = []
    tilelink.launch(
        lambda: found.append(in_graphs(Place(require().backend, group), made, list(made.contenders), 2)), ranks=1
    )
    return found[0]


def test_a_graph_has_several_calls_on_inputs_that_take_turns() -> None:
    made, took = contest()
    times, missing, error = held(made)
    assert took == [0, 1, 2]
    assert error == 0.0
    assert {name: len(t.ms) for name, t in times.items()} == {OURS: 2}
    assert missing == {
        "asks, in a graph": "it asks the device",
        "refused, in a graph": "rank 0: TL437: not while capturing",
    }


def test_a_graph_that_does_nothing_is_seen() -> None:
    assert held(contest(stale=True)[0])[2] in (1.0, math.inf)


def test_without_a_gpu_or_for_long_calls_there_are_none() -> None:
    assert held(contest()[0], group=None) == ({}, {GRAPHS: NO_GPU}, None)
    made, _ = contest()
    made.graphed = 0
    assert held(made) == ({}, {}, None)
