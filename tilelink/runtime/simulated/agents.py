"""Who runs, and what they access: an agent per rank's host program, per stream at work, and per worker of a launched kernel."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from threading import Lock, Thread
from types import CodeType, FrameType
from typing import Literal

import numpy as np
import torch
from greenlet import GreenletExit, greenlet

from tilelink.errors import Loc, whole_line
from tilelink.ir.kernel import origin

Proxy = Literal["threads", "atomics", "bulk"]
"""How memory is accessed: by all threads (loads and stores), by a block of atomics, or by a bulk copy (descriptor, TMA)."""


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


def frames(frame: FrameType | None, codes: Set[CodeType], file: str | None = None) -> Iterator[FrameType]:
    """Those of Triton functions, of one file or of all, innermost first; `codes` are those of all that ever ran."""
    while frame is not None:
        code = frame.f_code
        if (file is None or code.co_filename == file) and code in codes:  # in this order: hashing a code takes long
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
        self._turn, self._back = Lock(), Lock()
        self._turn.acquire()
        self._back.acquire()
        self._running = self._ending = False
        self._error: BaseException | None = None
        # What torch hands on to threads of its own.
        self._modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @property
    def gr_frame(self) -> FrameType | None:
        """Where it has given way."""
        return None if self.dead or self._thread.ident is None else sys._current_frames().get(self._thread.ident)

    def switch(self) -> None:
        """Called by the scheduler: go on until it gives way or ends. An exception that ends it comes out here."""
        self._running = True
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn.release()
        self._await()

    def give_way(self) -> None:
        """Called in its own thread. Raises `GreenletExit` if the run is over."""
        self._back.release()
        self._turn.acquire()
        if self._ending:
            raise GreenletExit

    def throw(self, kind: type[BaseException]) -> None:
        """Called by the scheduler: end it where it has given way, or where it is if the scheduler was interrupted."""
        assert kind is GreenletExit
        if self._thread.ident is None:
            self.dead = True
        if self.dead:
            return
        self._ending = True
        if self._running:
            # The scheduler was interrupted (Ctrl-C, a test's time limit) while this thread had its turn.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(kind))
            self._await()
        if not self.dead:
            self.switch()

    def _await(self) -> None:
        self._back.acquire()
        self._running = False
        if self.dead:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        gradients, inference = self._modes
        with self, torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            self._body()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """What has ended the thread, if anything did, the scheduler raises."""
        self._error = None if isinstance(error, GreenletExit) else error
        self.dead = True
        self._back.release()
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
    """One launch of a kernel: what its workers have in common."""

    kernel: str
    file: str
    workers: int
    arguments: tuple[Argument, ...]
    lines: tuple[tuple[int, Loc], ...]
    """Emitted line -> the user's line it comes from."""
    running: int = 0

    def location(self, line: int) -> Loc | None:
        """The user's line that emitted line `line` comes from; the emitted one where there is none."""
        return (origin(self.lines, line) or whole_line(self.file, line)) if line else None


@dataclass(frozen=True, slots=True)
class Target:
    """What the wait function that is running waits for: that the flag is `comparison` (`=`, `>=`, `of call`) `number`."""

    address: int
    condition: Callable[[int], bool]
    comparison: str
    number: int

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
    coroutine: greenlet | Host | None = None
    awaits: Callable[[], str] | None = None
    """Says in the report what it waits for."""
    polled: tuple[int | tuple[int, int], object] | None = None
    """Address (of several flags: first byte, and the one after the last) and value of the last poll, if nothing was accessed
    since."""
    target: Target | None = None
    looking: bool = False
    """Whether it looks at the clock between two polls: the accesses that this takes are nothing that happens."""
    peeking: bool = False
    """Whether it loads flags that may not have come yet: who uses them says so (`Observer.look`)."""

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
