"""Interleaved measurements: every contender once per round, so that a clock that drops is the same for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.errors import TritonError

from tilelink.errors import TilelinkError
from tilelink.runtime.world import World

Runs = Mapping[str, Callable[[], Any]]
"""What is compared, by name; every rank has the same names in the same order."""


@dataclass(frozen=True, slots=True)
class Times:
    """One contender. `ms`: per round, of the slowest rank. `host_us`: per round, this rank's host in the call."""

    ms: tuple[float, ...]
    host_us: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    @property
    def host(self) -> float:
        return statistics.median(self.host_us)

    def divided(self, calls: int) -> Times:
        """Of one of several calls that were timed together."""
        return Times(tuple(t / calls for t in self.ms), tuple(t / calls for t in self.host_us))


def attempt(world: World, action: Callable[[], Any]) -> str:
    """Collective: run `action`, and say why it failed on the first rank where it did; empty where it did on none.

    What waits for other ranks must not fail on some of them only, or these are waited for: compile in one attempt, run
    in a second one.
    """
    return next((f"rank {r}: {p}" for r, p in enumerate(world.agree(problem_of(action))) if p), "")


def problem_of(action: Callable[[], Any]) -> str:
    """Why `action` fails, in one line; empty where it does not.

    Raises:
        TilelinkError: TL460, a call that does not end; then no rank can do anything any more.
    """
    try:
        action()
    except TilelinkError as error:
        if error.code == "TL460":
            raise
        return _line(error)
    except (TritonError, RuntimeError) as error:
        return _line(error)
    return ""


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def interleaved(
    world: World, runs: Runs, rounds: int, fresh: Callable[[], None], done: Callable[[], None] = lambda: None
) -> tuple[dict[str, Times], dict[str, str]]:
    """Collective: times of the contenders that run on every rank, and why the others do not.

    Args:
        rounds: in each, every contender is timed once; each round begins with another one.
        fresh: called before every round, makes new inputs.
        done: called after every round.
    """
    missing: dict[str, str] = {}
    alive: list[str] = []
    for name, run in runs.items():
        problem = attempt(world, lambda run=run: _warm(world, run))
        if problem:
            missing[name] = problem
        else:
            alive.append(name)
    mine: dict[str, list[float]] = {name: [] for name in alive}
    host: dict[str, list[float]] = {name: [] for name in alive}
    for turn in range(rounds):
        fresh()
        for name in alive[turn % len(alive) :] + alive[: turn % len(alive)] if alive else []:
            mine[name].append(world.timed(_clocked(runs[name], host[name])))
        done()
    everyones = world.agree(mine)
    slowest = {name: tuple(max(each) for each in zip(*(m[name] for m in everyones), strict=True)) for name in alive}
    return {name: Times(slowest[name], tuple(host[name])) for name in alive}, missing


def _warm(world: World, run: Callable[[], Any]) -> None:
    """A few times: each slot of a workspace is prepared when it is first used."""
    for _ in range(1 if world.topology.world == "simulated" else 3):
        run()
    if world.topology.world != "simulated":
        torch.cuda.synchronize()  # brings to light what went wrong in a kernel


def _clocked(run: Callable[[], Any], into: list[float]) -> Callable[[], None]:
    def clocked() -> None:
        begin = time.perf_counter()
        run()
        into.append((time.perf_counter() - begin) * 1e6)

    return clocked
