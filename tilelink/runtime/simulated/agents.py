"""Who runs, and what they access: an agent per rank's host program, per stream at work, and per worker of a launched kernel."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass
from threading import Lock, Thread
from types import CodeType, FrameType
from typing import Literal

import numpy as np
import torch
from greenlet import GreenletExit, greenlet

from tilelink.errors import Loc, whole_line
from tilelink.ir.kernel import origin

# ---------------------------------------------------------------------------------------------------------------------
# What is accessed: rectangles of memory, scattered elements, single flags.

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


# ---------------------------------------------------------------------------------------------------------------------
# Where a coroutine is: the Triton functions among its Python frames, and their lines.


@dataclass(frozen=True, slots=True)
class Step:
    """One frame of an agent: a function of an emitted file, or of a module that it calls."""

    function: str
    file: str
    line: int
    frame: FrameType


def chain(frame: FrameType | None, codes: Set[CodeType]) -> list[Step]:
    """The Triton functions that are running, innermost first; `codes` are those of all that ever ran."""
    steps = []
    while frame is not None:
        code = frame.f_code
        if code in codes:
            steps.append(Step(code.co_name, code.co_filename, frame.f_lineno, frame))
        frame = frame.f_back
    return steps


def innermost(frame: FrameType | None, codes: Set[CodeType], file: str) -> tuple[str, int] | None:
    """Function and line of the innermost Triton function of `file` that is running."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == file and code in codes:
            return code.co_name, frame.f_lineno
        frame = frame.f_back
    return None


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
        self._running = False
        self._ending = False
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
        """Called in its own thread.

        Raises:
            GreenletExit: the run is over.
        """
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
        with _HandedOver(self._end), torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            self._body()

    def _end(self, error: BaseException | None) -> None:
        self._error = None if isinstance(error, GreenletExit) else error
        self.dead = True
        self._back.release()


class _HandedOver:
    """Gives what ends a block, if anything does, to somebody else who raises it."""

    def __init__(self, to: Callable[[BaseException | None], None]) -> None:
        self._to = to

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._to(error)
        return True


# ---------------------------------------------------------------------------------------------------------------------
# Who runs: one agent per rank's host program, per stream at work, and per worker of a launched kernel.


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
        axes = sorted(
            ((stride, size) for size, stride in zip(block.shape, block.strides, strict=True) if size > 1), reverse=True
        )
        if not all(stride > 0 and stride % self.itemsize == 0 for stride, _ in axes):
            return f"{(low - self.start) // self.itemsize}:{-(-(high - self.start) // self.itemsize)}"
        if not axes:
            return str((low - self.start) // self.itemsize)
        at, found = (low - self.start) // self.itemsize, []
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
    stream: int
    workers: int
    arguments: tuple[Argument, ...]
    running: int = 0

    lines: tuple[tuple[int, Loc], ...] = ()
    """Emitted line -> the user's line it comes from."""

    def name_of(self, block: Block) -> str | None:
        return named(self.arguments, block)

    def location(self, line: int) -> Loc | None:
        """The user's line that emitted line `line` comes from; the emitted one where there is none."""
        if not line:
            return None
        return origin(self.lines, line) or whole_line(self.file, line)


@dataclass(slots=True, eq=False)
class Wait:
    """What an agent waits for. `key` wakes it; `text` says it in the report, when it is needed."""

    key: Hashable
    text: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Target:
    """What the wait function that is running waits for: that the flag is `comparison` (`=`, `>=`, `of call`) `number`."""

    address: int
    condition: Callable[[int], bool]
    comparison: str
    number: int

    @property
    def text(self) -> str:
        """The condition in words."""
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
    wait: Wait | None = None
    polled: tuple[int, int | bytes] | None = None
    """Address and value of the last poll, if nothing was accessed since."""
    target: Target | None = None
    looking: bool = False
    """Whether it looks at the clock between two polls: the accesses that this takes are nothing that happens."""
    peeking: bool = False
    """Whether it loads flags that may not have come yet: who uses them says so (`Machine.looked`)."""

    @property
    def name(self) -> str:
        if self.launch is not None:
            return f"worker {self.worker} of {self.launch.kernel}"
        if self.stream is None:
            return "host"
        return "main stream" if self.stream == 0 else f"side stream {self.stream - 1}"

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.name}"
