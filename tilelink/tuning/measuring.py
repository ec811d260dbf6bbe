"""Interleaved measurements: every contender once per round, so that a clock that drops is the same for all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from triton.errors import TritonError  # pyright: ignore[reportMissingTypeStubs]

from tilelink.errors import TilelinkError
from tilelink.runtime.backend import Backend

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Times:
    """One contender. `ms`: per round, of the slowest rank. `host_us`: per round, the slowest rank's host in the call. `late`:
    rounds in which some rank's device began before its host had started everything, so that its time counts too."""

    ms: tuple[float, ...]
    host_us: tuple[float, ...]
    late: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    @property
    def host(self) -> float:
        return statistics.median(self.host_us)

    def divided(self, calls: int) -> Times:
        """Of one of several calls that were timed together."""
        return replace(self, ms=tuple(t / calls for t in self.ms), host_us=tuple(t / calls for t in self.host_us))


def attempt(backend: Backend, action: Callable[[], Any]) -> str:
    """Collective: run `action`, and say why it failed on the first rank where it did; empty where it did on none.

    What waits for other ranks must not fail on some of them only, or these are waited for: compile in one attempt, run
    in a second one.
    """
    return next((f"rank {r}: {p}" for r, p in enumerate(backend.agree(failure(action))) if p), "")


def failure(action: Callable[[], Any]) -> str:
    """Why `action` fails, in one line; empty where it does not.

    Raises:
        TilelinkError: TL460, a call that does not end; then no rank can do anything any more.
    """
    try:
        action()
    except (TilelinkError, TritonError, RuntimeError) as error:
        if isinstance(error, TilelinkError) and error.code == "TL460":
            raise
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ""


LEAST = 3
"""Rounds that are run however long they take."""


def interleaved(
    backend: Backend,
    runs: Mapping[Name, Callable[[], Any]],
    rounds: int,
    fresh: Callable[[], object] = lambda: None,
    *,
    seconds: float = math.inf,
) -> tuple[dict[Name, Times], dict[Name, str]]:
    """Collective: times of the contenders that run on every rank, and why the others do not.

    Args:
        runs: what is compared, by name; every rank has the same names in the same order.
        rounds: in each, every contender is timed once; each round begins with another one.
        fresh: called before every round, makes new inputs.
        seconds: after which no further round begins, if `LEAST` have been run.
    """
    missing: dict[Name, str] = {}
    alive: dict[Name, float] = {}
    for name, run in runs.items():
        problem = attempt(backend, lambda name=name, run=run: alive.update({name: _warm(backend, run)}))
        if problem:
            missing[name] = problem
    names = [name for name in runs if name not in missing]
    mine: dict[Name, list[Timed]] = {name: [] for name in names}
    begun = time.monotonic()
    for turn in range(rounds):
        if turn >= LEAST and seconds < math.inf and max(backend.agree(time.monotonic() - begun)) > seconds:
            break
        fresh()
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else []:
            host: list[float] = []
            ms = backend.timed(lambda name=name, host=host: host.append(_clocked(runs[name])), alive[name])
            mine[name].append((ms, host[-1], backend.late))
    everyones = zip(*backend.agree([*mine.values()]), strict=True)
    return {name: slowest(ranks) for name, ranks in zip(names, everyones, strict=True)}, missing


Timed = tuple[float, float, bool]
"""Milliseconds of the device, microseconds of the host, and whether the host was late."""


def slowest(ranks: Sequence[Sequence[Timed]]) -> Times:
    """Of every round the slowest rank's."""
    rounds = list(zip(*ranks, strict=True))
    ms, host = (tuple(max(t[k] for t in each) for each in rounds) for k in range(2))
    return Times(ms, host, sum(any(t[2] for t in each) for each in rounds))


def _warm(backend: Backend, run: Callable[[], Any]) -> float:
    """A few times: each slot of a workspace is prepared when it is first used. Microseconds of the host in the last one."""
    simulated, us = backend.topology.backend == "simulated", 0.0
    for _ in range(1 if simulated else 3):
        backend.drain()
        us = _clocked(run)
    if not simulated:
        torch.cuda.synchronize()  # brings to light what went wrong in a kernel
    return us


def _clocked(run: Callable[[], Any]) -> float:
    """Microseconds that the host takes to start it."""
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e6
