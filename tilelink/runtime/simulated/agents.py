"""Who runs: an agent per host program, per stream at work and per worker of a launched kernel; and the memory they access."""

from __future__ import annotations

import ctypes
import math
import random
import sys
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from greenlet import GreenletExit, greenlet

from tilelink.errors import Loc, whole_line
from tilelink.ir.kernel import KernelSource
from tilelink.runtime.kernels import INTERPRETED
from tilelink.runtime.memory import extent

Proxy = Literal["threads", "atomics", "bulk"]
"""How memory is accessed: by all threads (loads and stores), by a block of atomics, or by a bulk copy (descriptor, TMA)."""

AccessKind = Literal["load", "store"]


@dataclass(frozen=True, slots=True)
class Block:
    """A strided rectangle of memory: `address` of its first element, strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def addresses(self) -> np.ndarray:
        """Of every element, in one row."""
        found = np.array(self.address, dtype=np.int64)
        for size, stride in zip(self.shape, self.strides, strict=True):
            found = found[..., None] + np.arange(size, dtype=np.int64) * stride
        return found.reshape(-1)

    @property
    def bounds(self) -> tuple[int, int]:
        """First byte, and the byte after the last."""
        low = high = self.address
        for size, stride in zip(self.shape, self.strides, strict=True):
            if stride > 0:
                high += (size - 1) * stride
            else:
                low += (size - 1) * stride
        return low, high + self.itemsize


@dataclass(frozen=True, slots=True)
class Scatter:
    """Element addresses, those masked out already left out."""

    addresses: np.ndarray
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.addresses.size * self.itemsize

    @property
    def bounds(self) -> tuple[int, int]:
        """First byte, and the byte after the last."""
        return int(self.addresses.min()), int(self.addresses.max()) + self.itemsize


Span = Block | Scatter


@dataclass(frozen=True, slots=True)
class Atomic:
    """One flag, changed or read by a scalar atomic or by a stream.

    `writes`: a poll (`atomic_add` of 0) does not. `exchange`: the write has read the flag in the same instant, as
    atomics do and copies do not. `before`, `after`: the flag's values around it.
    """

    address: int
    size: int
    before: int
    after: int
    acquire: bool
    release: bool
    scope: Literal["system", "device"]
    writes: bool
    exchange: bool = True


def frames(frame: FrameType | None, file: str | None = None) -> Iterator[FrameType]:
    """Those of Triton functions, of one file or of all, innermost first."""
    while frame is not None:
        if (file is None or frame.f_code.co_filename == file) and INTERPRETED in frame.f_globals:
            yield frame
        frame = frame.f_back


# ---------------------------------------------------------------------------------------------------------------------
# A rank's own program: a thread that runs only while the scheduler waits for it.
#
# Workers and streams are greenlets of the scheduler's thread. A rank's program is the user's code, and torch keeps much of
# what that does by thread: whether gradients are wanted, autocast, hooks on saved tensors, what autograd is in the middle of
# (its engine runs the backward pass in the thread that asks for it), what `torch.compile` is about. On GPUs ranks are processes
# and share none of it, so here they are threads.


class Host:
    """Like a greenlet whose parent is the scheduler, in a thread of its own. Never do two threads run at once."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.dead = False
        self._body = body
        self._thread = Thread(target=self._run, daemon=True)
        self._turns = SimpleQueue[bool]()
        """Of the thread: whether it is to end."""
        self._ends = SimpleQueue[BaseException | None]()
        """Of turns, with what has ended the thread, if something did."""
        self._running = False
        # What torch hands on to threads of its own.
        self._modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._thread.start()

    @property
    def gr_frame(self) -> FrameType | None:
        """Where it has given way."""
        return sys._current_frames().get(self._thread.ident or 0)

    def switch(self) -> None:
        """Called by the scheduler: go on until it gives way or ends. An exception that ends it comes out here."""
        self._running = True
        self._turns.put(False)
        self._await()

    def give_way(self) -> None:
        """Called in its own thread. Raises `GreenletExit` if the run is over."""
        self._ends.put(None)
        self._begin_turn()

    def throw(self) -> None:
        """Called by the scheduler: end it where it has given way, or where it is if the scheduler was interrupted."""
        if self._running:
            # The scheduler was interrupted (Ctrl-C, a test's time limit) while this thread had its turn, got it or gave it back.
            thread, kind = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(GreenletExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, kind)
        self._turns.put(True)
        while not self.dead:
            self._await()

    def _begin_turn(self) -> None:
        if self._turns.get():
            raise GreenletExit

    def _await(self) -> None:
        error = self._ends.get()
        self._running = False
        if self.dead:
            self._thread.join()
        if error is not None:
            raise error

    def _run(self) -> None:
        gradients, inference = self._modes
        with self:
            self._begin_turn()
            with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
                self._body()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """What has ended the thread, if anything did, the scheduler raises."""
        self.dead = True
        self._ends.put(None if isinstance(error, GreenletExit) else error)
        return True


@dataclass(frozen=True, slots=True)
class Argument:
    """Where a tensor argument of a kernel lies, so that an address can be named."""

    name: str
    start: int
    end: int
    itemsize: int

    def indices(self, block: Block) -> str:
        """`64:128, 0:64`, as the strides of the block have it."""
        low, high = block.bounds
        axes = sorted(((step, n) for n, step in zip(block.shape, block.strides, strict=True) if n > 1), reverse=True)
        at, found = (low - self.start) // self.itemsize, list[str]()
        if not all(stride > 0 and stride % self.itemsize == 0 for stride, _ in axes):
            return f"{at}:{-(-(high - self.start) // self.itemsize)}"
        if not axes:
            return str(at)
        if axes[-1][0] != self.itemsize:
            axes.append((self.itemsize, 1))
        for stride, size in axes:
            first, at = divmod(at, stride // self.itemsize)
            found.append(f"{first}:{first + size}")
        return ", ".join(found)


def named(arguments: Iterable[Argument], block: Block) -> str | None:
    """`flags[3]` or `rows[64:128, 0:64]` for what lies inside an argument; the smallest one that holds it names it."""
    low, high = block.bounds
    holding = [a for a in arguments if a.start <= low and high <= a.end]
    if not holding:
        return None
    best = min(holding, key=lambda a: a.end - a.start)
    return f"{best.name}[{best.indices(block)}]"


@dataclass(slots=True, eq=False)
class Launch:
    """One launch of a kernel: what its workers have in common. `source`: what its file was emitted as, if it was."""

    kernel: str
    file: str
    workers: int
    arguments: tuple[Argument, ...]
    source: KernelSource | None
    running: int = 0

    def location(self, line: int) -> Loc | None:
        """The user's line that emitted line `line` comes from; the emitted one where there is none."""
        found = None if self.source is None else self.source.location(line)
        return (found or whole_line(self.file, line)) if line else None


NUMBER = (1 << 32) - 1
"""The bits of an LL flag's upper half, where the number of the call is, and of its lower half, where the data is."""
OF_CALL = "of call"
"""How LL flags compare: their number is that of a call."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the wait function that is running waits for: that each flag of `span` is `comparison` to `number`."""

    span: Span
    comparison: str
    number: int

    def condition(self, word: int) -> bool:
        """Whether a flag that holds this is what is waited for."""
        if self.comparison == OF_CALL:
            return (word >> 32) & NUMBER == self.number
        return word == self.number if self.comparison == "=" else word >= self.number

    @property
    def address(self) -> int:
        """Of the first flag."""
        return self.span.bounds[0]

    @property
    def text(self) -> str:
        return f"{self.comparison} {self.number}"


@dataclass(slots=True, eq=False)
class Agent:
    """A coroutine. `stream`: None for a host, which is a thread. `worker`, `launch`: of a kernel's worker only."""

    rank: int
    stream: int | None = None
    worker: int | None = None
    launch: Launch | None = None
    clock: float = 0.0
    coroutine: greenlet | Host = field(init=False)
    awaits: Callable[[], str] | None = None
    """Says in the report what it waits for."""
    polled: tuple[tuple[int, int], bytes] | None = None
    """Where it has polled last, and what was there, if nothing was accessed since."""
    target: Target | None = None
    aside: bool = False
    """Whether it looks at the clock between two polls: its accesses are nothing that happens."""

    @property
    def name(self) -> str:
        if self.launch is not None:
            return f"worker {self.worker} of {self.launch.kernel}"
        if self.stream is None:
            return "host"
        return "main stream" if self.stream == 0 else f"side stream {self.stream - 1}"

    @property
    def place(self) -> tuple[int, int, int]:
        """Alike for workers of the same number on one stream, whose launches are in order; a stream comes before its workers."""
        return (self.rank, -1 if self.stream is None else self.stream, -1 if self.worker is None else self.worker)

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.name}"


# ---------------------------------------------------------------------------------------------------------------------
# Which addresses a program may touch: the arenas, and the tensors passed to a running kernel, to the element.
#
# A wild address would end the process, and an access to a peer's private memory would end a GPU's: both are refused,
# address by address, before anything is read or written. So is a neighbour in the same storage, which on GPUs may be
# another rank's.


def block_of(tensor: torch.Tensor) -> Block:
    size = tensor.element_size()
    return Block(tensor.data_ptr(), tuple(tensor.shape), tuple(s * size for s in tensor.stride()), size)


@dataclass(slots=True, eq=False)
class Region:
    """One tensor's memory. `home`: the rank that holds it (None: no rank in particular); `users`: uses by rank; `peers`: the
    instances of all ranks, where it is symmetric."""

    start: int
    end: int
    name: str
    home: int | None
    data: np.ndarray
    users: Counter[int] = field(default_factory=Counter)
    peers: tuple[Region, ...] = ()
    times: np.ndarray | None = None
    """When each flag of 64 bits that says itself that it has come could be seen; None: there was none so far."""

    def open_to(self, rank: int) -> bool:
        return bool(self.peers) or rank in self.users

    def word(self, address: int, itemsize: int = 8) -> int:
        """The integer at `address`."""
        offset = address - self.start
        return int(self.data[offset : offset + itemsize].view(f"i{itemsize}")[0])

    def words(self, span: Span) -> np.ndarray:
        """The integers of a span that lies in this region, in one row."""
        low, high = span.bounds
        inside = self.data[low - self.start : high - self.start].view(f"i{span.itemsize}")
        return inside if len(inside) == 1 else inside[(span.addresses - low) // span.itemsize]


class MemoryMap:
    """All regions, sorted by start and end. They may overlap: views of one tensor."""

    def __init__(self) -> None:
        self._regions: list[Region] = []

    def add(self, tensor: torch.Tensor, rank: int, name: str) -> Region | None:
        """Open a tensor to `rank`; one `drop` each. None if it has no bytes, or lies in an arena, which is open."""
        start, end = extent(tensor)
        if start == end:
            return None
        around = self._around(start, end)
        region = next((r for r in around if (r.start, r.end) == (start, end)), None)
        if region is None:
            if any(r.peers for r in around):
                return None
            storage = tensor.untyped_storage()
            whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
            data = whole[start - storage.data_ptr() : end - storage.data_ptr()]
            region = Region(start, end, name, rank, data)
            insort(self._regions, region, key=lambda r: (r.start, r.end))
        if not region.peers and region.home != rank:
            region.home = None
        region.users[rank] += 1
        return region

    def drop(self, region: Region, rank: int) -> None:
        region.users[rank] -= 1
        region.users += Counter()  # only those are left that use it
        if not region.users:
            self._regions.remove(region)

    def find(self, low: int, high: int, rank: int | None = None) -> Region | None:
        """A region that holds [low, high), and is open to `rank` if one is named."""
        at = bisect_right(self._regions, low, key=attrgetter("start")) - 1
        if at >= 0:
            region = self._regions[at]
            if high <= region.end and (rank is None or region.open_to(rank)):
                return region
        return next((r for r in self._around(low, high) if rank is None or r.open_to(rank)), None)

    def local(self, rank: int, *tensors: torch.Tensor) -> bool:
        """Whether all of these lie on the GPU of the rank."""
        found = [self.find(*extent(t)) for t in tensors if t.numel()]
        return all(r is None or not r.peers or r.home == rank for r in found)

    def nearest(self, address: int) -> Region | None:
        """The region that ends or begins closest to `address`."""
        return min(self._regions, key=lambda r: max(r.start - address, address - r.end), default=None)

    def check(self, span: Span, rank: int) -> Region | int:
        """The region of a rectangle, or of the lowest address of a scatter, every single one of which is checked; else the first
        address that the rank may not touch."""
        low, high = span.bounds
        region = self.find(low, high, rank)
        if region is not None:
            return region
        first = self.find(low, low + span.itemsize, rank)
        if first is None:
            return low
        if isinstance(span, Block):
            return first.end
        ends = ((at, self.find(at, at + span.itemsize, rank)) for at in np.unique(span.addresses).tolist())
        return next((at for at, region in ends if region is None), first)

    def _around(self, low: int, high: int) -> list[Region]:
        return [r for r in self._regions if r.start <= low and high <= r.end]


# ---------------------------------------------------------------------------------------------------------------------
# Stores that arrive late: what a program has stored may be seen by others in any order, until something orders it.
#
# A store becomes visible when its program releases it, ends, stores to or loads from the same bytes, or by chance. A
# release covers what a race detector would say it covers: not what other threads store without a barrier before it, nor
# bulk stores that nobody has waited for. So a missing release, barrier or fence gives wrong numbers as well as a race.

PENDING = 16
"""Stores of one program that may be under way."""
CHANCE = 0.05
"""Of each store: that another one arrives now."""

Stage = Literal["bulk", "threads", "covered"]


@dataclass(slots=True, eq=False)
class Pending:
    """`stage`: what knows of the store: only its proxy, its threads, or the thread that signals."""

    low: int
    high: int
    stage: Stage
    write: Callable[[], None]


class StoreBuffer:
    """Of all programs of a run. `delays`: whether stores are late at all."""

    def __init__(self, seed: int, *, delays: bool) -> None:
        self._delays = delays
        self._random = random.Random(seed)
        self._pending: dict[Agent, list[Pending]] = {}

    def put(self, agent: Agent, span: Span, stage: Stage, write: Callable[[], None]) -> None:
        if agent.launch is None or not self._delays:
            write()
            return
        low, high = span.bounds
        self.settle(agent, low, high)
        mine = self._pending.setdefault(agent, [])
        mine.append(Pending(low, high, stage, write))
        if len(mine) > PENDING or self._random.random() < CHANCE:
            mine.pop(int(self._random.random() * len(mine))).write()

    def settle(self, agent: Agent, low: int, high: int) -> None:
        """A program sees its own stores, and stores to the same bytes stay in order."""
        self._apply(agent, lambda p: p.low < high and low < p.high)

    def fence(self, agent: Agent, meaning: str) -> None:
        if meaning == "barrier":
            self._advance(agent, "threads", "covered")
        elif meaning == "bulk_store_wait":
            self._advance(agent, "bulk", "threads")
        elif meaning == "system_fence":
            self._apply(agent, lambda p: p.stage != "bulk")

    def release(self, agent: Agent) -> None:
        self._apply(agent, lambda p: p.stage == "covered")

    def arrive(self, agent: Agent) -> None:
        """The program ends: all that it has stored is seen in the end."""
        self._apply(agent, lambda p: True)
        self._pending.pop(agent, None)

    def time_passes(self) -> bool:
        """All that was stored is seen; whether something was not."""
        late = [agent for agent, pending in self._pending.items() if pending]
        for agent in late:
            self.arrive(agent)
        return bool(late)

    def _advance(self, agent: Agent, old: Stage, new: Stage) -> None:
        for pending in self._pending.get(agent, ()):
            if pending.stage == old:
                pending.stage = new

    def _apply(self, agent: Agent, which: Callable[[Pending], bool]) -> None:
        mine = self._pending.get(agent, [])
        now = [p for p in mine if which(p)]
        if now:
            mine[:] = [p for p in mine if not which(p)]
            self._random.shuffle(now)
            for pending in now:
                pending.write()


# ---------------------------------------------------------------------------------------------------------------------
# What flags have held, and what came with each value: when it could be seen, or what was released with it.
#
# Coroutines do not run in the order of their clocks, so a waiter may find a flag far beyond what it waits for. What it
# has to wait for is the write that first satisfied it: another schedule would have shown it no more.

T = TypeVar("T")


class Histories(Generic[T]):
    """Of every flag that was written. `first`: what a flag comes with that nobody has written. `most`: writes remembered per
    flag; None: all. An older wait is credited with more than it needed."""

    def __init__(self, first: T, most: int | None = None) -> None:
        self._first = first
        self._most = most
        self._words: dict[int, deque[tuple[int, T]]] = {}

    def write(self, address: int, before: int, after: int, following: Callable[[T], T]) -> None:
        """`following`: what comes with the value `after`, by what came with the one before it."""
        history = self._words.setdefault(address, deque([(before, self._first)], self._most))
        history.append((after, following(history[-1][1])))

    def satisfied(self, address: int, condition: Callable[[int], bool]) -> T:
        """Of the write that first satisfied `condition`, as all later ones do."""
        found = self._first
        for value, came in reversed(self._words.get(address, ())):
            if not condition(value):
                break
            found = came
        return found

    def latest(self, address: int) -> T:
        history = self._words.get(address)
        return history[-1][1] if history else self._first

    def forget(self, start: int, end: int) -> None:
        for address in [a for a in self._words if start <= a < end]:
            del self._words[address]
