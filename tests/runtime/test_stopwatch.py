"""The stopwatch's head start, and whether it was enough; with made-up events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.runtime.peer.clocks import AHEAD, CYCLES, MOST, Stopwatch


class Event:
    """Reached once the device's sleep is over; the host's work may take longer than that."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.reached = 0.0

    def record(self) -> None:
        self.reached = Device.awake

    def query(self) -> bool:
        return Event.now >= self.reached

    def elapsed_time(self, end: Event) -> float:
        return 1.0


class Device:
    """When it wakes up, in microseconds."""

    awake = 0.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    def sleep(cycles: int) -> None:
        Device.awake = Event.now + cycles / CYCLES

    def wait(seconds: float) -> None:
        Event.now = max(Event.now, Device.awake)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=4))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    monkeypatch.setattr("tilelink.runtime.peer.clocks.time", SimpleNamespace(monotonic=lambda: 0.0, sleep=wait))
    return Stopwatch(torch.device("cpu"))


def takes(us: float) -> None:
    Event.now += us


@pytest.mark.parametrize(
    ("told", "takes_us", "late"),
    [
        (0.0, AHEAD / 2, False),
        (0.0, AHEAD * 1.5, True),
        (AHEAD, AHEAD * 1.5, False),
        (AHEAD, AHEAD * 2.5, True),
        (MOST, MOST * 1.5, True),
    ],
)
def test_the_host_is_twice_as_far_ahead_as_it_is_told(
    watch: Stopwatch, told: float, takes_us: float, late: bool
) -> None:
    alone: Any = SimpleNamespace(size=lambda: 1)
    assert watch.time(lambda: takes(takes_us), told, alone) == (1.0, late)
