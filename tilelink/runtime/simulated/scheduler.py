"""Whose turn it is: policies, the scheduler that asks them, the search through schedules, and the report of a standstill."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton.language as tl
from greenlet import GreenletExit, getcurrent, greenlet

from tilelink.errors import Loc, Note, TilelinkError, whole_line
from tilelink.runtime.simulated.agents import Agent, Host, frames

# ---------------------------------------------------------------------------------------------------------------------
# Whose turn it is: by chance, against one rank, by priorities, or with few interruptions at chosen points.
#
# A policy is a text, `random-7`, and decides a whole run: the same policy gives the same schedule.

INTERRUPT_CHANCE = 0.1
DEMOTION_CHANCE = 0.02
_TEXT = re.compile(r"(random|priorities)-(\d+)|straggler-(\d+)-(\d+)|preemptions-(|\d+(?:\.\d+)*)")


def turns_of(policy: str) -> Turns:
    """The turns of a run, from their beginning. Raises TL508."""
    found = _TEXT.fullmatch(policy)
    if found is None:
        raise TilelinkError(
            "TL508",
            f"`{policy}` is no policy of the simulated scheduler",
            why="a policy is random-SEED, straggler-RANK-SEED, priorities-SEED or preemptions-POINT.POINT…",
            hint="write for example priorities-7, or straggler-2-7 for a slow rank 2",
        )
    kind, seed, rank, late, points = found.groups()
    if points is not None:
        return Preemptions(tuple(int(p) for p in points.split(".") if p))
    if kind == "priorities":
        return Priorities(int(seed))
    return Turns(int(seed or late), None if rank is None else int(rank))


class Turns:
    """Those who can run, and who of them does: anybody, by chance, and only while there is nobody else agents of the rank
    `straggler`. As text, the policy."""

    seed = 0
    straggler: int | None = None

    def __init__(self, seed: int, straggler: int | None = None) -> None:
        self.seed = seed
        self.straggler = straggler
        self._random = random.Random(seed)
        self._ready: list[Agent] = []
        self._last: list[Agent] = []

    def __str__(self) -> str:
        return f"random-{self.seed}" if self.straggler is None else f"straggler-{self.straggler}-{self.seed}"

    def __len__(self) -> int:
        return len(self._ready) + len(self._last)

    def add(self, agent: Agent) -> None:
        """It can run: it is new, or what it waited for has come."""
        (self._last if agent.rank == self.straggler else self._ready).append(agent)

    def next(self) -> Agent:
        """Take the one whose turn it is."""
        pool = self._ready or self._last
        at = int(self._random.random() * len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        return pool.pop()

    def yields(self, agent: Agent) -> bool:
        """At a signal, a wait or a copy: whether the running agent goes back to the others; it is added if so."""
        self.add(agent)
        return True

    def interrupts(self) -> bool:
        """At an ordinary access: whether to ask `yields`."""
        return self._random.random() < INTERRUPT_CHANCE


class Priorities(Turns):
    """The highest of random priorities, which now and then becomes the lowest: the one that everybody waits for may come last."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._priority: dict[tuple[int, int, int], float] = {}
        self._lowest = 0.0

    def __str__(self) -> str:
        return f"priorities-{self.seed}"

    def next(self) -> Agent:
        best = max(self._ready, key=lambda agent: self._priority.setdefault(agent.place, self._random.random()))
        self._ready.remove(best)
        return best

    def yields(self, agent: Agent) -> bool:
        if self._random.random() < DEMOTION_CHANCE:
            self._lowest -= 1
            self._priority[agent.place] = self._lowest
        return super().yields(agent)


class Preemptions(Turns):
    """In order of arrival, each until it has to wait; at the points `at` it steps back behind all others.

    `points`: how many there were so far. Ordinary accesses are none: what is not ordered there, the race detector says.
    """

    def __init__(self, at: tuple[int, ...]) -> None:
        super().__init__(seed=0)
        self.points = 0
        self._at = frozenset(at)

    def __str__(self) -> str:
        return f"preemptions-{'.'.join(map(str, sorted(self._at)))}"

    def next(self) -> Agent:
        return (self._ready or self._last).pop(0)

    def yields(self, agent: Agent) -> bool:
        """Where nobody else can run there is no point."""
        self.points += 1
        if self.points - 1 not in self._at:
            return False
        self._last.append(agent)
        return True

    def interrupts(self) -> bool:
        return False


# ---------------------------------------------------------------------------------------------------------------------
# Runs cooperative coroutines one at a time; a policy says whose turn it is at every switch.
#
# A rank's program is a thread (`Host`), workers and streams are greenlets; here both are coroutines.
#
# An agent gives way by `switch` (it could go on), or by `block` and `park` (it waits for a key to be woken). Parking is a
# hint only: when nobody can run, everybody is woken for another look, and only when that changes nothing three times in
# a row do the ranks stand still.

ROUNDS = 3


class Blame:
    """Adds to an exception that passes where it comes from."""

    def __init__(self, *where: str) -> None:
        self.where = where

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, GreenletExit):
            for text in self.where:
                error.add_note(text)


class Scheduler:
    """Runs agents until all have ended. The hub is the coroutine that makes it, and calls `run`."""

    def __init__(self, turns: Turns) -> None:
        self.current: Agent | None = None
        self.moves = 0
        """Counts whatever is no repeated poll; a standstill is when it stands still."""
        self._turns = turns
        self._parked: dict[Hashable, list[Agent]] = {}
        self._agents: set[Agent] = set()
        self._hub: greenlet = getcurrent()
        self._closing = False

    def spawn(self, agent: Agent, body: Callable[[], None]) -> None:
        def run() -> None:
            with Blame(f"in {agent}"):
                body()

        # The parent is the hub, not the agent that happens to spawn: an ended coroutine returns into its parent.
        agent.coroutine = Host(run) if agent.stream is None else greenlet(run, parent=self._hub)
        self._agents.add(agent)
        self._turns.add(agent)

    def run(self, stuck: Callable[[list[Agent]], None]) -> None:
        """Until no agent is left. An exception of an agent comes out here. `stuck` is called when nobody can go on: it raises, or
        lets time pass until somebody can."""
        rounds, seen = 0, -1
        while self._agents:
            if not self._turns:
                rounds = rounds + 1 if self.moves == seen else 0
                seen = self.moves
                if rounds == ROUNDS:
                    stuck(sorted(self._agents, key=lambda agent: agent.place))
                    rounds = 0
                for key in list(self._parked):
                    self.wake(key)
            agent = self._turns.next()
            self.current = agent
            agent.coroutine.switch()
            if agent.coroutine.dead:
                self.moves += 1
                self._agents.remove(agent)

    def close(self) -> None:
        """End every coroutine that is left."""
        self._closing = True
        with ExitStack() as stack:
            for agent in sorted(self._agents, key=lambda agent: agent.place, reverse=True):
                stack.callback(self._end, agent)
        self._agents.clear()
        self.current = None

    def _end(self, agent: Agent) -> None:
        self.current = agent
        agent.coroutine.throw()

    # ------------------------------------------------------------------------------------------- called by the agents
    def switch(self) -> None:
        """Let others go first, or not."""
        agent = self.running()
        if self._turns and self._turns.yields(agent):
            self._give_way(agent)

    def maybe_switch(self) -> None:
        """Rarely, let others go first: what is not ordered may happen in between."""
        if self._turns.interrupts():
            self.switch()

    def park(self, key: Hashable, text: Callable[[], str]) -> None:
        """Sleep until `key` is woken, or until nobody else can run. `text` says in the report what for, when it is needed."""
        agent = self.running()
        agent.awaits = text
        self._parked.setdefault(key, []).append(agent)
        self._give_way(agent)

    def block(self, key: Hashable, text: Callable[[], str], ready: Callable[[], bool]) -> None:
        """Sleep until `ready`."""
        while not ready():
            self.park(key, text)
        self.moves += 1

    def wake(self, key: Hashable) -> None:
        for agent in self._parked.pop(key, ()):
            agent.awaits = None
            self._turns.add(agent)

    def wake_range(self, start: int, end: int) -> None:
        """Wake who waits for flags in [start, end): where these lie is the key."""
        for key in list(self._parked):
            if isinstance(key, tuple) and key[0] < end and start < key[1]:
                self.wake(key)

    def running(self) -> Agent:
        assert self.current is not None, "no coroutine of a simulation is running"
        return self.current

    def _give_way(self, agent: Agent) -> None:
        if self._closing:
            raise GreenletExit
        if isinstance(agent.coroutine, Host):
            agent.coroutine.give_way()
        else:
            self._hub.switch()


@dataclass(frozen=True, slots=True)
class Searched:
    """`runs` were made; `complete`: there are no more of at most so many preemptions."""

    runs: int
    complete: bool


def search(run: Callable[[Turns], object], *, preemptions: int, limit: int) -> Searched:
    """Call `run` under every schedule of at most `preemptions` preemptions, `limit` of them at most: all with none, then all with
    one, and so on.

    Args:
        run: simulates with `policy=` what it is given, and raises when something is wrong.

    What `run` raises comes out, with the policy that `simulate` has noted on it.
    """
    todo: deque[tuple[int, ...]] = deque([()])
    for runs in range(limit):
        if not todo:
            return Searched(runs, complete=True)
        at = todo.popleft()
        turns = Preemptions(at)
        run(turns)
        if len(at) < preemptions:
            first = at[-1] + 1 if at else 0
            todo.extend((*at, point) for point in range(first, turns.points))
    return Searched(limit, complete=not todo)


_PACKAGE = str(Path(__file__).parents[2]) + "/"
_HOST_FRAMES = (_PACKAGE, "/greenlet/", "/contextlib.py", "/functools.py")
"""Files whose lines are not the user's."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One agent of a standstill. `loc`: the user's line that the innermost one of the emitted file comes from, or that one.
    `helpers`: the functions that the kernel is in, outermost first."""

    agent: Agent
    helpers: tuple[str, ...]
    awaits: str
    values: tuple[tuple[str, int], ...]
    """Scalars of the emitted function at that line."""
    loc: Loc | None = None

    def __str__(self) -> str:
        through = f" in {' > '.join(self.helpers)}" if self.helpers else ""
        values = ", ".join(f"{name}={value}" for name, value in self.values)
        return f"{self.agent}{through}: {self.awaits}" + (f" ({values})" if values else "")


class StandstillError(TilelinkError):
    """TL501. `waiting`: every agent, for tools and tests."""

    def __init__(self, waiting: tuple[Waiting, ...], total: int) -> None:
        self.waiting = waiting
        ranks = sorted({w.agent.rank for w in waiting})
        notes, seen = [], None
        # Programs first: streams and hosts wait for them. A line that many wait at is shown once.
        for place in sorted(
            waiting, key=lambda w: (w.agent.worker is None, (w.loc.file, w.loc.line) if w.loc else ("", 0))
        ):
            notes.append(Note(str(place), place.loc if place.loc != seen else None))
            seen = place.loc
        why = "every one of them waits for a signal, a copy or an SM that only another waiting one could give"
        hint = "look for the wait whose signal is never sent; `verify` proves this before a launch"
        gone = [str(rank) for rank in range(total) if rank not in ranks]
        if gone and all(w.agent.stream is None for w in waiting):
            why = f"they wait in a call that all ranks make, and rank {', rank '.join(gone)} has returned"
            hint = "make the same calls on every rank, or pass operators the group of those that make them"
        super().__init__(
            "TL501",
            f"the simulation stands still: {len(waiting)} agents of ranks {ranks} wait, and nobody can go on",
            why=why,
            hint=hint,
            notes=tuple(notes),
        )


def waiting(agent: Agent) -> Waiting:
    """Where an agent waits."""
    launch, frame = agent.launch, agent.coroutine.gr_frame
    inside, scalars, loc = list(frames(frame)), dict[str, int | None](), None
    if launch is not None:
        here = next((f for f in inside if f.f_code.co_filename == launch.file), None)
        if here is not None:
            scalars, loc = {n: _integer(v) for n, v in here.f_locals.items()}, launch.location(here.f_lineno)
    elif agent.stream is None:
        # The line of the user's program that called into the backend.
        while frame is not None and any(part in frame.f_code.co_filename for part in _HOST_FRAMES):
            frame = frame.f_back
        loc = whole_line(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
    return Waiting(
        agent=agent,
        helpers=tuple(f.f_code.co_name for f in reversed(inside[:-1])),
        awaits=agent.awaits() if agent.awaits is not None else "could run",
        values=tuple((name, value) for name, value in scalars.items() if value is not None),
        loc=loc,
    )


def _integer(value: Any) -> int | None:
    """Whole numbers only: pointers and blocks say nothing to a reader."""
    if isinstance(value, tl.tensor):
        ty: Any = value.type
        scalar = not ty.is_block() and not value.dtype.is_ptr() and value.dtype.is_int()
        return int(value.handle.data.item()) if scalar else None
    if isinstance(value, tl.constexpr):
        value = value.value
    return int(value) if isinstance(value, int) else None
