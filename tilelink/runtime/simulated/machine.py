"""One simulated machine: what all its agents share, and the bookkeeping of everything they do to one another."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from tilelink import cost
from tilelink.errors import TilelinkError
from tilelink.ir.topology import Topology
from tilelink.runtime.memory import WORD
from tilelink.runtime.simulated.agents import (
    NUMBER,
    OF_CALL,
    AccessKind,
    Agent,
    Argument,
    Atomic,
    Block,
    Histories,
    MemoryMap,
    Proxy,
    Region,
    Span,
    StoreBuffer,
    Target,
    block_of,
    frames,
    named,
)
from tilelink.runtime.simulated.scheduler import Scheduler, StandstillError, waiting

# ---------------------------------------------------------------------------------------------------------------------
# The interface through which a race detector sees a run: every access, every order. Nothing here decides anything.


class Observer:
    """Override what is of interest; as it is, it sees nothing. `machine`: of the run.

    Agents with the same rank, stream and worker number are one line of execution, launched again and again. All calls
    come in an order in which the run could have happened; what is ordered for certain is what the calls say.
    """

    machine: Machine
    """From the beginning of the run: `machine.place(agent)` tells the emitted line, `machine.name_of` what an address is."""

    def mark(self, agent: Agent) -> object:
        """Everything `agent` has done so far, for `after`."""

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        """`agent` goes on (or begins) after everything that is marked: launches, ends, events, collective calls."""

    def opened(self, start: int, end: int, keep: object) -> None:
        """A whole allocation that kernels or copies are about to access. It lives as long as `keep`."""

    def access(self, agent: Agent, span: Span, proxy: Proxy, kind: AccessKind) -> None: ...

    def atomic(self, agent: Agent, atomic: Atomic) -> None: ...

    def waited(self, agent: Agent, target: Target) -> None:
        """A wait function of the device has ended: what it has read last is what `agent` has seen last. Loads of flags each of
        which says that it has come (`OF_CALL`) are told by this alone."""

    def fence(self, agent: Agent, meaning: str) -> None:
        """`meaning` is a value of `tilelink.device.fences.MEANING`, or "barrier": of all threads of one program."""

    def freed(self, start: int, end: int) -> None:
        """Memory was given back; its addresses may come again."""


# ---------------------------------------------------------------------------------------------------------------------
# The trace of a run: what a timeline draws and what tests look at.

What = Literal["launch", "wait", "resume", "signal", "copy", "compute", "end"]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened. Records are kept in the order in which it did.

    `time`, `until`: simulated microseconds; they differ for a copy and for a library function. `stream`: 0 is the main stream,
    side stream i is i + 1. `worker`: None for what a stream itself does. `kernel`: the launched function; `function`: the
    innermost function of the emitted file, `line` its line (0: not in an emitted file). `detail`: the flag or buffer and values.
    """

    time: float
    until: float
    rank: int
    stream: int
    worker: int | None
    kernel: str
    function: str
    what: What
    line: int
    detail: str


@dataclass(slots=True)
class Recorder:
    """Pass one to `simulate` to keep the trace of the run."""

    records: list[Record] = field(default_factory=list)


SMALL_COPY = 64 * WORD


@dataclass(slots=True, eq=False)
class Meeting:
    """One collective call: what it is, and of each rank that has come its value, what it has done before, and when it came."""

    what: str
    come: dict[int, tuple[Any, object, float]] = field(default_factory=dict[int, tuple[Any, object, float]])


@dataclass(slots=True, eq=False)
class Machine:
    """The devices of `topology`, `per_node` of them on each node, their memory, and the schedule of this run."""

    topology: Topology
    per_node: int
    scheduler: Scheduler
    costs: cost.Machine
    recorder: Recorder | None
    observer: Observer
    stores: StoreBuffer
    memory: MemoryMap = field(default_factory=MemoryMap)
    flags: Histories[float] = field(default_factory=lambda: Histories(0.0))
    """When, in simulated time, a flag came to hold a value: a counter, when the last of its writers had come."""
    names: dict[int, dict[tuple[int, int], Argument]] = field(
        default_factory=dict[int, dict[tuple[int, int], Argument]]
    )
    """By rank: every argument that a kernel has had, as names for what streams access."""
    meetings: dict[tuple[int, ...], Meeting] = field(default_factory=dict[tuple[int, ...], Meeting])
    """Of each group of ranks that are at one, the collective call to which some have come."""
    limit: int | None = None
    """Nanoseconds that a wait with a time limit may take."""
    passed: int = 0
    """Nanoseconds that have passed while everybody waited. Clocks show them; nothing else knows."""
    gave_up: bool = False
    """Whether a wait has ended by its limit."""

    # --------------------------------------------------------------------------------------------------------- accesses
    def between(self, members: tuple[int, ...]) -> str:
        """How these ranks reach one another: by loads and stores inside a node, else by puts over a network."""
        return "peer" if len({m // self.per_node for m in members}) == 1 else "network"

    def reach(self, agent: Agent, span: Span, what: str) -> Region:
        """The memory of a rectangle that lies in one piece of it, such as a descriptor's tile; of a scatter that of the lowest
        address, all of them checked."""
        found = self.memory.check(span, agent.rank)
        if isinstance(found, Region):
            return found
        region = self.memory.find(found, found + (1 if isinstance(span, Block) else span.itemsize))
        near = self.memory.nearest(found)
        where = "which is no memory at all"
        if region is not None:
            where = f"in {region.name} of ranks {sorted(region.users)}"
        elif near is not None:
            away, after = near.start - found, found - near.end
            where = f"{away} bytes before {near.name}" if away > 0 else f"{after} bytes after the end of {near.name}"
            where += "" if near.home is None else f" of rank {near.home}"
        raise self.diagnostic(
            "TL502",
            f"{what} {span.itemsize} bytes at {found:#x}, {where}",
            why="a kernel may touch the arenas, and the tensors passed to it",
            hint="look at the offsets and masks of the access, and at the arguments of the launch",
        )

    # ------------------------------------------------------------------------------------------------------------ flags
    def poll(self, agent: Agent, span: Span, region: Region) -> None:
        """The agent is about to read flags that others write: let others run, or sleep until somebody writes there if the agent
        would see the same again."""
        if agent.aside:
            return
        if agent.polled == (span.bounds, region.words(span).tobytes()):
            self.scheduler.park(span.bounds, partial(self._awaited, agent, span, region))
        else:
            self.scheduler.moves += 1
            self.scheduler.switch()
        agent.polled = (span.bounds, region.words(span).tobytes())
        if region.times is not None and span.itemsize == WORD:
            agent.clock = max(agent.clock, float(region.times[(span.addresses - region.start) // WORD].max()))

    def _awaited(self, agent: Agent, span: Span, region: Region) -> str:
        """What an agent polls in vain: of several flags the first that is not what it waits for."""
        target, words = agent.target, region.words(span).tolist()
        at = 0 if target is None else next((k for k, word in enumerate(words) if not target.condition(word)), 0)
        name, word = self.name_of(agent, int(span.addresses[at])), words[at]
        if target is None:
            return f"{name} is {word}"
        held = f"of call {(word >> 32) & NUMBER}" if target.comparison == OF_CALL else word
        return f"{name} is {held}, waits until it is {target.text}"

    def stored(self, agent: Agent, span: Span, region: Region) -> None:
        """The agent has stored a block of flags: whoever polls some of them may go on."""
        if region.times is None:
            region.times = np.zeros(len(region.data) // WORD)
        seen = agent.clock + self.costs.flight(region.home != agent.rank)
        region.times[(span.addresses - region.start) // WORD] = seen
        self.scheduler.wake_range(*span.bounds)

    @contextmanager
    def waiting(self, target: Target) -> Iterator[None]:
        """A wait function runs: the condition of `target` is polled on its flag."""
        agent = self.scheduler.running()
        text = f"{self.name_of(agent, target.address)} {target.text}" if self.recorder is not None else ""
        agent.polled = None
        agent.target = target
        self.record("wait", text)
        yield
        if self.limit is not None:
            region = self.memory.find(*target.span.bounds)
            self.gave_up |= region is not None and not all(map(target.condition, region.words(target.span).tolist()))
        self.moved(agent)
        agent.clock = max(agent.clock, self.flags.satisfied(target.address, target.condition))
        agent.target = None
        self.observer.waited(agent, target)
        self.record("resume", text)

    def signalled(self, agent: Agent, region: Region, atomic: Atomic) -> None:
        """The running agent has changed a flag."""
        self.moved(agent)
        if atomic.acquire:
            agent.clock = max(agent.clock, self.flags.latest(atomic.address))
        seen = agent.clock + self.costs.flight(region.home != agent.rank)
        self.flags.write(atomic.address, atomic.before, atomic.after, partial(max, seen))
        if self.recorder is not None:
            self.record("signal", f"{self.name_of(agent, atomic.address)} = {atomic.after}")
        self.scheduler.wake_range(atomic.address, atomic.address + atomic.size)

    def moved(self, agent: Agent) -> None:
        """The agent has done something that is not a repeated poll."""
        if agent.aside:
            return
        if agent.polled is not None:
            if agent.target is None:
                # The end of a spin loop outside the wait functions: which value ended it is not known.
                agent.clock = max(agent.clock, self.flags.latest(agent.polled[0][0]))
            agent.polled = None
        self.scheduler.moves += 1

    def stuck(self, agents: list[Agent]) -> None:
        """Everybody waits: let time pass. What was stored arrives, or clocks go beyond every limit, if some wait has one. Raises
        TL501, none has."""
        if self.stores.time_passes():
            return
        if self.limit is None or not any(agent.target is not None for agent in agents):
            raise StandstillError(tuple(waiting(agent) for agent in agents), self.topology.ranks)
        self.passed += self.limit + 1

    def name_of(self, agent: Agent, address: int) -> str:
        """`flags[3]`, or `flags[3] of rank 2`, or what else the address can be called."""
        return self.span_name(agent, Block(address, (), (), 1))

    def span_name(self, agent: Agent, span: Block) -> str:
        """`rows[64:128, 0:64] of rank 2`."""
        region, home, own = self.memory.find(*span.bounds), agent.rank, span
        if region is not None:
            # A peer's memory goes by the name of one's own at the same place.
            mine = next((p for p in region.peers if p.home == agent.rank), region)
            home, own = region.home, replace(span, address=span.address + mine.start - region.start)
        there = self.names.get(agent.rank if home is None else home, {})
        name = named(agent.launch.arguments, own) if agent.launch is not None else None
        name = name or named(there.values(), span)
        if name is None:
            name = hex(span.address) if region is None else f"{region.name}+{span.address - region.start}"
        return name if home in (None, agent.rank) else f"{name} of rank {home}"

    @contextmanager
    def writing(self, agent: Agent, start: int, end: int, size: int = WORD) -> Iterator[None]:
        """These bytes are stored or copied inside. Few of them may be flags, of `size` bytes: totals that somebody waits for."""
        region = self.memory.find(start, end) if end - start <= SMALL_COPY else None
        before = {} if region is None else {at: region.word(at, size) for at in range(start, end - size + 1, size)}
        yield
        if region is not None:
            seen = agent.clock + self.costs.flight(region.home != agent.rank)
            for address, value in before.items():
                self.flags.write(address, value, region.word(address, size), partial(max, seen))
        self.scheduler.wake_range(start, end)

    # ------------------------------------------------------------------------------------------------------- observation
    def opened(self, *tensors: torch.Tensor) -> None:
        """Kernels or copies are about to access these tensors."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                self.observer.opened(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), storage)

    def observe(self, agent: Agent, tensor: torch.Tensor, kind: AccessKind) -> None:
        """A stream is about to read this, or to write it."""
        if tensor.numel():
            self.opened(tensor)
            self.observer.access(agent, block_of(tensor), "threads", kind)

    def observe_flag(self, agent: Agent, flag: torch.Tensor, before: int, after: int, *, acquire: bool) -> None:
        """A stream changes a flag, which is a signal: who acquires it sees what the stream did before. The stream has seen it in
        the same instant if it acquires what came with it."""
        self.opened(flag)
        made = Atomic(flag.data_ptr(), WORD, before, after, acquire, True, "system", writes=True, exchange=acquire)
        self.observer.atomic(agent, made)

    def place(self, agent: Agent) -> tuple[str, int]:
        """The innermost function of the kernel's own file that the running agent is in, and its line."""
        if agent.launch is None:
            return "", 0
        frame = next(frames(sys._getframe(1), agent.launch.file), None)
        return (frame.f_code.co_name, frame.f_lineno) if frame is not None else (agent.launch.kernel, 0)

    # ------------------------------------------------------------------------------------------------------ diagnostics
    def diagnostic(self, code: str, message: str, *, why: str | None = None, hint: str | None = None) -> TilelinkError:
        """An error at the user's line that the running one comes from, or at the emitted one."""
        agent = self.scheduler.running()
        loc = None if agent.launch is None else agent.launch.location(self.place(agent)[1])
        return TilelinkError(code, f"{agent}: {message}", loc=loc, why=why, hint=hint)

    def refusal(self, what: str, hint: str) -> TilelinkError:
        return self.diagnostic("TL503", f"{what} cannot be simulated", hint=hint)

    # ---------------------------------------------------------------------------------------------------------- records
    def record(self, what: What, detail: str = "", *, since: float | None = None, kernel: str = "") -> None:
        """What the running agent does now, or has done `since` then."""
        if self.recorder is None:
            return
        agent = self.scheduler.running()
        function, line = self.place(agent)
        self.recorder.records.append(
            Record(
                time=agent.clock if since is None else since,
                until=agent.clock,
                rank=agent.rank,
                stream=-1 if agent.stream is None else agent.stream,
                worker=agent.worker,
                kernel=agent.launch.kernel if agent.launch is not None else kernel,
                function=function,
                what=what,
                line=line,
                detail=detail,
            )
        )
