"""The simulated backend: ranks that are threads of one process, of which one runs at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tilelink import cost
from tilelink.errors import TilelinkError, is_whole, with_article
from tilelink.ir.topology import Device, Topology
from tilelink.runtime import backend as W
from tilelink.runtime.backend import Backend
from tilelink.runtime.grid import suffix
from tilelink.runtime.memory import Arena, Arenas
from tilelink.runtime.refusals import check_option, no_such_group
from tilelink.runtime.simulated.agents import Agent, Region, StoreBuffer
from tilelink.runtime.simulated.interpreter import Interpreter
from tilelink.runtime.simulated.machine import Machine, Meeting, Observer, Recorder
from tilelink.runtime.simulated.scheduler import Blame, Scheduler, Turns, turns_of
from tilelink.runtime.simulated.streams import Multiprocessors, SimulatedStream, poison


@dataclass(frozen=True, slots=True)
class Group:
    """Some ranks of a simulated run, by their numbers there."""

    members: tuple[int, ...]


class SimulatedBackend(Backend):
    """One rank, whose program `host` runs."""

    device = torch.device("cpu")

    def __init__(self, interpreter: Interpreter, host: Agent) -> None:
        machine = interpreter.machine
        self.group = None
        self.rank, self.ranks = host.rank, machine.topology.ranks
        self.members = self.numbers = tuple(range(self.ranks))
        self.topology: Topology = replace(machine.topology, reach=machine.between(self.members))
        self._machine = machine
        self._interpreter = interpreter
        self._host = host
        self._processors = Multiprocessors(machine.topology.device.sms)
        self._streams: dict[int, SimulatedStream] = {}
        self.arenas = Arenas()
        self._allocated = 0

    @property
    def name(self) -> str:
        """This rank's own: torch compiles once for the process, and what holds for one rank may not for another."""
        return _name(self._host.rank, self.members) + suffix(self.topology)

    def named(self, name: str) -> Group:
        found = tuple(int(m) for m in name.rpartition(" ")[2].split(",") if m.isdecimal())
        if not {self._host.rank} <= set(found) <= set(self.members) or name != _name(self._host.rank, found):
            raise no_such_group(name)
        return Group(found)

    def _group_of(self, members: tuple[int, ...]) -> Group:
        return Group(members)

    def _members_of(self, group: Any) -> tuple[tuple[int, ...], None]:
        if not isinstance(group, Group):
            raise TilelinkError(
                "TL454",
                f"{with_article(type(group).__name__)} is no group of simulated ranks",
                why="ranks of this process are not those of torch.distributed",
                hint="name them: tilelink.group([0, 1])",
            )
        return group.members, None

    def _reach_among(self, ranks: Sequence[int]) -> str:
        return self._machine.between(tuple(self.members[r] for r in ranks))

    def _meet(self, what: str, value: Any) -> list[Any]:
        """Every rank's value, by rank; returns when all have come."""
        host, observer, scheduler = self._host, self._machine.observer, self._machine.scheduler
        meeting = self._machine.meetings.setdefault(self.members, Meeting(what))
        if meeting.what != what:
            other = next(iter(meeting.come))
            raise TilelinkError(
                "TL504",
                f"rank {host.rank} calls {what} where rank {other} calls {meeting.what}",
                why="every rank makes the same collective calls in the same order",
            )
        meeting.come[host.rank] = value, observer.mark(host), host.clock
        if len(meeting.come) == self.ranks:
            del self._machine.meetings[self.members]  # nobody goes on to the next one before all have come
        scheduler.wake(meeting)
        scheduler.block(
            meeting,
            lambda: f"{what}: ranks {sorted(set(self.members) - set(meeting.come))} have not come",
            lambda: len(meeting.come) == self.ranks,
        )
        values, marks, clocks = zip(*(meeting.come[r] for r in self.members), strict=True)
        host.clock = max(clocks)
        observer.after(host, marks)
        return list(values)

    # ------------------------------------------------------------------------------------------------------------- memory
    def _allocate(self, nbytes: int) -> Arena:
        own = self.zeros(nbytes, torch.uint8)
        region = self._machine.memory.add(own, self._host.rank, f"arena {self._allocated}")
        assert region is not None
        self._machine.opened(own)
        self._allocated += 1
        made = self._meet("arena", (own, region))
        # Of all instances at once: another rank may signal here before its host goes on.
        for _, instance in made:
            instance.peers = tuple(r for _, r in made)
        peers = tuple(t for t, _ in made)
        return Arena(self, own, peers, tuple(t.data_ptr() for t in peers), partial(self._forget, region))

    def _forget(self, region: Region) -> None:
        """This rank's instance of an arena that no rank uses any more."""
        self._machine.flags.forget(region.start, region.end)
        self._machine.observer.freed(region.start, region.end)
        self._machine.memory.drop(region, self._host.rank)

    def maker(self, shape: Sequence[int], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Poisoned: nobody may read what nobody has written."""
        return partial(poison, tuple(shape), dtype)

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        words = super().shared_words(count, on_host=on_host)
        self._machine.memory.add(words, self._host.rank, "watch")
        return words

    def limit_waits(self, seconds: float | None) -> None:
        self._machine.limit = None if seconds is None else max(1, int(seconds * 1e9))
        self._machine.gave_up = False

    # ------------------------------------------------------------------------------------------------------------ streams
    def main_stream(self, capturing: bool | None = None) -> SimulatedStream:
        del capturing
        return self.side_stream(-1)

    def side_stream(self, index: int) -> SimulatedStream:
        if index not in self._streams:
            agent = Agent(self._host.rank, index + 1)
            made = SimulatedStream(self._machine, self._interpreter, self._host, agent, self._processors)
            self._streams[index] = made
        return self._streams[index]

    def step(self, work: W.Work, stream: int, first: W.Call) -> W.Step:
        if isinstance(work, W.Apply):
            return W.apply_step(work, stream, first)
        on = self.main_stream() if stream == W.MAIN else self.side_stream(stream)
        if isinstance(work, W.Copy):
            return lambda call: on.copy(*W.ends_of(work, call))
        if isinstance(work, W.WaitDoorbell):
            return lambda call: on.wait_doorbell(work.doorbell, work.times)
        return W.plain_step(work, stream)

    # ---------------------------------------------------------------------------------------------------- the ranks' host
    def finish(self) -> None:
        for stream in list(self._streams.values()):
            self._machine.scheduler.block(
                stream, lambda s=stream: f"waits for its {s.agent.name}", lambda s=stream: s.idle
            )
            self._host.clock = max(self._host.clock, stream.agent.clock)
        self._machine.observer.after(self._host, [self._machine.observer.mark(s.agent) for s in self._streams.values()])

    drain = finish

    def timed(self, call: Callable[[], Any], host_us: float = 0.0) -> float:
        del host_us  # the host is a part of it
        self.barrier()
        begin = self._host.clock
        call()
        self.finish()
        return (self._host.clock - begin) / 1000

    def read(self, stamps: Sequence[Any]) -> list[int]:
        self.finish()
        return [round(stamp.clock * 1000) for stamp in stamps]

    def skew(self) -> int:
        return 0  # there is one clock

    def agree(self, value: Any) -> list[Any]:
        # What crosses between ranks on GPUs is pickled: nobody shares an object.
        return copy.deepcopy(self._meet("agree", copy.deepcopy(value)))

    def barrier(self) -> None:
        self.finish()
        self._meet("barrier", None)


def _name(rank: int, members: tuple[int, ...]) -> str:
    return f"rank {rank} of {','.join(map(str, members))}"


def simulate(
    main: Callable[[SimulatedBackend], Any],
    ranks: int,
    *,
    seed: int = 0,
    straggler: int | None = None,
    policy: str | Turns | None = None,
    device: Device | None = None,
    costs: cost.Machine = cost.H200,
    recorder: Recorder | None = None,
    observer: Observer | None = None,
    delayed_stores: bool = False,
    nodes: int = 1,
) -> list[Any]:
    """Run `main(backend)` as every rank, and return the results by rank. An exception of one rank ends the run and says which
    rank it was, and under which policy. Triton kernels are interpreted while this lasts: compile nothing inside.

    Args:
        seed: of the order in which streams and workers go on: the same one gives the same schedule.
        straggler: a rank that goes on only while no other can.
        policy: whose turn it is, instead of both: `"priorities-7"`, see `scheduler`.
        device: of every rank; its speed is that of `costs`' multiprocessors.
        recorder: keeps what ran when, for timelines.
        observer: sees every access.
        delayed_stores: what a program stores arrives late, in any order that its barriers, fences and releases allow, by `seed`.
        nodes: that the ranks lie on, as many on each; ranks of different nodes reach one another by puts only.

    Raises:
        TilelinkError: TL464 a value that an option cannot have; TL501 a deadlock, with every waiting line; TL507 a race, where
            the observer looks for them; TL508 no policy; TL450 another simulation is running.
    """
    check_option("seed", seed, is_whole(seed), "a whole number")
    turns = Turns(seed, straggler) if policy is None else turns_of(policy) if isinstance(policy, str) else policy
    slow = straggler if turns.straggler is None else turns.straggler
    here = slow is None or (is_whole(slow) and slow in range(ranks))
    check_option("straggler", slow, here, f"one of ranks 0 to {ranks - 1}")
    divides = is_whole(nodes) and nodes > 0 and ranks % nodes == 0
    check_option("nodes", nodes, divides, f"a number that divides {ranks} ranks")
    check_option("device", device, device is None or isinstance(device, Device), "an `ir.topology.Device`")
    stores = StoreBuffer(turns.seed, delays=delayed_stores)
    topology = Topology(ranks=ranks, backend="simulated", device=device or Device())
    machine = Machine(topology, ranks // nodes, Scheduler(turns), costs, recorder, observer or Observer(), stores)
    machine.observer.machine = machine
    interpreter = Interpreter(machine)
    results: list[Any] = [None] * ranks

    def run(backend: SimulatedBackend) -> None:
        results[backend.rank] = main(backend)
        backend.finish()

    with Blame(f"under the policy {turns}"), interpreter.patched():
        for rank in range(ranks):
            host = Agent(rank)
            backend = SimulatedBackend(interpreter, host)
            machine.scheduler.spawn(host, partial(run, backend))
        try:
            # Streams and workers write to what programs gave them, in whatever mode those were.
            with torch.inference_mode():
                machine.scheduler.run(machine.stuck)
        finally:
            machine.scheduler.close()
    return results
