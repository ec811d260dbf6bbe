"""Runs cooperative coroutines one at a time; a policy says whose turn it is at every switch.

A rank's program is a thread (see `hosts`), workers and streams are greenlets; here both are coroutines.

An agent gives way by `switch` (it could go on), or by `block` and `park` (it waits for a key to be woken). Parking is a
hint only: when nobody can run, everybody is woken for another look, and only when that changes nothing three times in
a row do the ranks stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack

from greenlet import GreenletExit, getcurrent, greenlet

from tilelink.runtime.simulated.agents import Agent, Wait
from tilelink.runtime.simulated.hosts import Host
from tilelink.runtime.simulated.policy import Turns

ROUNDS = 3


class Standstill(Exception):
    """Nobody can go on; the waiting agents, for the report."""

    def __init__(self, waiting: list[Agent]) -> None:
        self.waiting = waiting
        super().__init__(f"{len(waiting)} agents wait")


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
    """Runs agents until all have ended. The hub is the coroutine that calls `run`."""

    def __init__(self, turns: Turns) -> None:
        self.current: Agent | None = None
        self.moves = 0
        """Counts whatever is no repeated poll; a standstill is when it stands still."""
        self.let_time_pass: Callable[[list[Agent]], bool] = _no_limits
        """Asked when nobody can go on: whether somebody can, later."""
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

    def run(self) -> None:
        """Until no agent is left. An exception of an agent comes out here."""
        rounds, seen = 0, -1
        while self._agents:
            if not self._turns:
                rounds = rounds + 1 if self.moves == seen else 0
                seen = self.moves
                if rounds == ROUNDS:
                    waiting = sorted(self._agents, key=_order)
                    if not self.let_time_pass(waiting):
                        raise Standstill(waiting)
                    rounds = 0
                self._wake_all()
            agent = self._turns.next()
            self.current = agent
            assert agent.coroutine is not None
            agent.coroutine.switch()
            if agent.coroutine.dead:
                self.moves += 1
                self._agents.remove(agent)

    def close(self) -> None:
        """End every coroutine that is left."""
        self._closing = True
        with ExitStack() as stack:
            for agent in sorted(self._agents, key=_order, reverse=True):
                stack.callback(self._end, agent)
        self._agents.clear()
        self.current = None

    def _end(self, agent: Agent) -> None:
        if agent.coroutine is not None:
            self.current = agent
            agent.coroutine.throw(GreenletExit)

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

    def park(self, wait: Wait) -> None:
        """Sleep until `wait.key` is woken, or until nobody else can run."""
        agent = self.running()
        agent.wait = wait
        self._parked.setdefault(wait.key, []).append(agent)
        self._give_way(agent)

    def block(self, wait: Wait, ready: Callable[[], bool]) -> None:
        """Sleep until `ready`."""
        while not ready():
            self.park(wait)
        self.moves += 1

    def wake(self, key: Hashable) -> None:
        for agent in self._parked.pop(key, ()):
            agent.wait = None
            self._turns.add(agent)

    def wake_range(self, start: int, end: int) -> None:
        """Wake who waits for a word in [start, end)."""
        for key in [k for k in self._parked if isinstance(k, int) and start <= k < end]:
            self.wake(key)

    def running(self) -> Agent:
        assert self.current is not None, "no coroutine of a simulation is running"
        return self.current

    # ------------------------------------------------------------------------------------------------------- the choice
    def _wake_all(self) -> None:
        for key in list(self._parked):
            self.wake(key)

    def _give_way(self, agent: Agent) -> None:
        if self._closing:
            raise GreenletExit
        if isinstance(agent.coroutine, Host):
            agent.coroutine.give_way()
        else:
            self._hub.switch()
        self.current = agent


def _no_limits(waiting: list[Agent]) -> bool:
    del waiting
    return False


def _order(agent: Agent) -> tuple[int, int, int]:
    return (agent.rank, -1 if agent.stream is None else agent.stream, -1 if agent.worker is None else agent.worker)
