"""`runtime.world.World` for ranks that are threads of one process, of which one runs at a time."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilelink.errors import TilelinkError, with_article
from tilelink.ir.topology import Topology
from tilelink.runtime.agreeing import one_size
from tilelink.runtime.grid import Grid, context_along, laid_out, suffix
from tilelink.runtime.guard import Guard
from tilelink.runtime.refusals import no_such_group, not_in_group, not_shared
from tilelink.runtime.simulated.agents import Agent, Wait
from tilelink.runtime.simulated.interpreter import Interpreter
from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.memory import Region
from tilelink.runtime.simulated.streams import Multiprocessors, SimulatedStream
from tilelink.runtime.work import Call, Step, Work, plain_step


@dataclass(slots=True, eq=False)
class Meeting:
    """One collective call: what it is, and what each rank that has come brings."""

    what: str
    values: dict[int, Any] = field(default_factory=dict)
    marks: list[object] = field(default_factory=list)
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Some ranks of a simulated world, by their numbers there; each is numbered by its place here."""

    members: tuple[int, ...]


class Meetings:
    """The collective calls of some ranks, in order; shared by them."""

    def __init__(self, machine: Machine, members: tuple[int, ...]) -> None:
        self._machine = machine
        self.members = members
        self._meetings: list[Meeting] = []
        self._seen = dict.fromkeys(members, 0)
        self._within: dict[tuple[int, ...], Meetings] = {}

    def within(self, members: tuple[int, ...]) -> Meetings:
        """Those of a group."""
        if members not in self._within:
            self._within[members] = Meetings(self._machine, members)
        return self._within[members]

    def meet(self, host: Agent, what: str, value: Any) -> list[Any]:
        """Every rank's value, by rank; returns when all have come."""
        number = self._seen[host.rank]
        self._seen[host.rank] += 1
        if number == len(self._meetings):
            self._meetings.append(Meeting(what))
        meeting = self._meetings[number]
        if meeting.what != what:
            other = next(iter(meeting.values))
            raise TilelinkError(
                "TL504",
                f"rank {host.rank} calls {what} where rank {other} calls {meeting.what}",
                why="every rank makes the same collective calls in the same order",
            )
        meeting.marks.append(self._machine.mark(host))
        meeting.values[host.rank] = value
        meeting.clock = max(meeting.clock, host.clock)
        members = self.members
        self._machine.scheduler.wake(meeting)
        self._machine.scheduler.block(
            Wait(meeting, lambda: f"{what}: ranks {sorted(set(members) - set(meeting.values))} have not come"),
            lambda: len(meeting.values) == len(members),
        )
        host.clock = max(host.clock, meeting.clock)
        self._machine.after(host, meeting.marks)
        return [meeting.values[r] for r in members]


class SimulatedArena:
    """Implements `runtime.world.Arena`. Each rank's instance is a torch tensor of its own."""

    def __init__(self, world: SimulatedWorld, instances: list[torch.Tensor], regions: list[Region]) -> None:
        self._world = world
        self._instances = instances
        self.regions = regions
        self.local = instances[world.rank]
        bases = [t.data_ptr() for t in instances]
        self.context = torch.tensor([world.rank, world.ranks, *bases, *world.members], dtype=torch.int64)
        self._lines: dict[tuple[int, ...], torch.Tensor] = {}

    def along(self, line: tuple[int, ...]) -> torch.Tensor:
        if line not in self._lines:
            self._lines[line] = context_along(self.context, self._world.ranks, line, self._world.rank)
        return self._lines[line]

    def peer(self, pe: int) -> torch.Tensor:
        return self._instances[pe]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the first byte of a tensor lies here."""
        return bool(self.regions) and 0 <= tensor.data_ptr() - self.local.data_ptr() < self.local.numel()

    def instance(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        """Rank `pe`'s instance of a contiguous tensor that lies here: flat, in its dtype."""
        start = tensor.data_ptr() - self.local.data_ptr()
        return self._instances[pe][start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)

    def free(self) -> None:
        """Collective; to free again does nothing."""
        if self.regions:
            self._world.release(self)
            self.regions, self._instances = [], []
            self.local = torch.empty(0, dtype=torch.uint8)


class SimulatedWorld:
    """One rank. Implements `runtime.world.World`."""

    late = False
    only_references = False

    def __init__(self, machine: Machine, interpreter: Interpreter, meetings: Meetings, host: Agent) -> None:
        self.group: Any = None
        self.members = meetings.members
        self.rank = self.members.index(host.rank)
        self.ranks = len(self.members)
        reach = machine.between(self.members)
        self.topology: Topology = dataclasses.replace(machine.topology, ranks=self.ranks, reach=reach)
        self._machine = machine
        self._interpreter = interpreter
        self._meetings = meetings
        self._host = host
        self._processors = Multiprocessors(machine.topology.device.sms)
        self._streams: dict[int, SimulatedStream] = {}
        self._arenas: list[SimulatedArena] = []
        self._allocated = 0

    @property
    def name(self) -> str:
        """This rank's own: torch compiles once for the process, and what holds for one rank may not for another."""
        return _name(self._host.rank, self.members) + suffix(self.topology)

    @property
    def alive(self) -> bool:
        return True

    def named(self, name: str) -> Group:
        found = tuple(int(m) for m in name.rpartition(" ")[2].split(",") if m.isdecimal())
        if not {self._host.rank} <= set(found) <= set(self.members) or name != _name(self._host.rank, found):
            raise no_such_group(name)
        return Group(tuple(self.members.index(m) for m in found))

    def among(self, ranks: Sequence[int]) -> Group:
        if self.rank not in ranks:
            raise not_in_group(self.rank, ranks)
        return Group(tuple(ranks))

    def within(self, group: Any) -> SimulatedWorld:
        if not isinstance(group, Group):
            raise TilelinkError(
                "TL454",
                f"{with_article(type(group).__name__)} is no group of simulated ranks",
                why="ranks of this process are not those of torch.distributed",
                hint="name them: tilelink.group([0, 1])",
            )
        if self.rank not in group.members:
            raise not_in_group(self.rank, group.members)
        if group.members == tuple(range(self.ranks)):
            return self
        members = tuple(self.members[r] for r in group.members)
        made = SimulatedWorld(self._machine, self._interpreter, self._meetings.within(members), self._host)
        made._processors, made._streams = self._processors, self._streams
        return made

    def grid(self, group: Any) -> Grid | None:
        del group
        return None

    def laid_out(self, grid: Grid) -> SimulatedWorld:
        members, between = self.members, self._machine.between
        return laid_out(self, self.topology, grid, lambda line: between(tuple(members[r] for r in line)))

    # ------------------------------------------------------------------------------------------------------------- memory
    def arena(self, nbytes: int) -> SimulatedArena:
        asked = self._meetings.meet(self._host, "arena", nbytes)
        one_size(nbytes, asked)
        own = torch.zeros(nbytes, dtype=torch.uint8)
        region = self._machine.memory.add(own, self._host.rank, f"arena {self._allocated}", symmetric=True)
        assert region is not None
        self._machine.opened(own)
        self._allocated += 1
        made = self._meetings.meet(self._host, "arena", (own, region))
        regions = [r for _, r in made]
        for each in regions:
            each.peers = tuple(regions)
        self._arenas.append(SimulatedArena(self, [t for t, _ in made], regions))
        return self._arenas[-1]

    def release(self, arena: SimulatedArena) -> None:
        """Forget this rank's instance of an arena, once no rank uses it any more."""
        self.barrier()
        region = arena.regions[self.rank]
        self._machine.words.forget(region.start, region.end)
        self._machine.arrivals.forget(region.start, region.end)
        if self._machine.observer is not None:
            self._machine.observer.freed(region.start, region.end)
        self._machine.memory.drop(region, self._host.rank)
        self._arenas.remove(arena)

    def context_of(self, tensor: torch.Tensor, line: tuple[int, ...] | None = None) -> torch.Tensor:
        arena = self._holding(tensor)
        return arena.context if line is None else arena.along(line)

    def symmetric_arena(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        return self._holding(tensor).instance(tensor, pe)

    def _holding(self, tensor: torch.Tensor) -> SimulatedArena:
        for arena in self._arenas:
            if arena.holds(tensor):
                return arena
        raise not_shared(tensor)

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype)

    def maker(self, shape: Sequence[int], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Poisoned: NaN, or -1 for integers. Nobody may read what nobody has written."""
        nbytes, dims = math.prod(shape) * dtype.itemsize, tuple(shape)
        return lambda: torch.full((nbytes,), 0xFF, dtype=torch.uint8).view(dtype).view(dims)

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        """Kernels find them by their address."""
        del on_host
        words = torch.zeros(count, dtype=torch.int64)
        self._machine.memory.add(words, self._host.rank, "watch")
        return words

    def limit_waits(self, seconds: float | None) -> None:
        self._machine.limit = None if seconds is None else max(1, int(seconds * 1e9))
        self._machine.gave_up = False

    # ------------------------------------------------------------------------------------------------------------ streams
    def main_stream(self) -> SimulatedStream:
        return self._stream(0)

    def side_stream(self, index: int) -> SimulatedStream:
        return self._stream(index + 1)

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """Nothing is settled: time on the host is free here."""
        del first
        return plain_step(work, stream, self)

    def capturing(self) -> bool:
        return False

    def _stream(self, index: int) -> SimulatedStream:
        if index not in self._streams:
            made = SimulatedStream(self._machine, self._interpreter, self._host, index, self._processors)
            self._streams[index] = made
        return self._streams[index]

    # ---------------------------------------------------------------------------------------------------- the ranks' host
    def finish(self) -> None:
        for stream in list(self._streams.values()):
            self._machine.scheduler.block(
                Wait(stream, lambda s=stream: f"waits for its {s.agent.name}"), lambda s=stream: s.idle
            )
            self._host.clock = max(self._host.clock, stream.agent.clock)
        self._machine.after(self._host, [self._machine.mark(s.agent) for s in self._streams.values()])

    def watch_over(self, guard: Guard, bells: Callable[[], list[torch.Tensor]]) -> None:
        """Nobody: the scheduler knows when all wait."""

    def drain(self) -> None:
        self.finish()

    def timed(self, call: Callable[[], Any], host_us: float = 0.0) -> float:
        """In simulated time."""
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
        """There is one clock."""
        return 0

    def agree(self, value: Any) -> list[Any]:
        # What crosses between ranks on GPUs is pickled: nobody shares an object.
        return copy.deepcopy(self._meetings.meet(self._host, "agree", copy.deepcopy(value)))

    def barrier(self) -> None:
        self.finish()
        self._meetings.meet(self._host, "barrier", None)


def _name(rank: int, members: tuple[int, ...]) -> str:
    return f"rank {rank} of {','.join(map(str, members))}"
