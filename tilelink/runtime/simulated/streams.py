"""Streams of a simulated device: queues of work in order, each a coroutine while it has work.

A kernel's workers are coroutines too. At most `device.sms` of them are resident per rank, over all kernels: a program
that waits for one that is not resident waits for ever, as on a GPU.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from tilelink.ir.kernel import AWAIT_FLAG
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.backend import Descriptor, Library
from tilelink.runtime.kernels import SOURCE, interpreting
from tilelink.runtime.memory import WORD, extent
from tilelink.runtime.refusals import check_arguments, check_copy
from tilelink.runtime.simulated.agents import Agent, Argument, Launch
from tilelink.runtime.simulated.interpreter import Interpreter
from tilelink.runtime.simulated.machine import Machine

PIECES = 4
"""A copy is made in so many pieces, others run in between: copies are not atomic."""
BLOCKS = 32
"""Blocks that an SM of an NVIDIA GPU holds, of kernels that need little else of it."""


@dataclass(slots=True, eq=False)
class SimulatedEvent:
    """`mark`: what the stream had done at that point, once it has come there."""

    done: bool = False
    clock: float = 0.0
    mark: object = None


class Multiprocessors:
    """The SMs of one rank; `free` holds the simulated times at which they became free.

    A worker, or a library's function, may need all that an SM has. `small`: copies within the GPU, and streams that wait for
    another rank, share one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = [0.0] * count
        self._small = 0
        self._opened = 0.0

    def has_room(self, small: bool) -> bool:
        return bool(self.free) or (small and self._small % BLOCKS != 0)

    def take(self, small: bool) -> float:
        """When the SM became free; there is room."""
        if not small:
            return heapq.heappop(self.free)
        if self._small % BLOCKS == 0:
            self._opened = heapq.heappop(self.free)
        self._small += 1
        return self._opened

    def give_back(self, clock: float, small: bool) -> None:
        self._small -= small
        if not small or self._small % BLOCKS == 0:
            heapq.heappush(self.free, clock)


def _queued(work: Callable[..., None]) -> Callable[..., None]:
    """A method that a stream comes to in its turn, after all that it was given before."""

    @wraps(work)
    def push(stream: SimulatedStream, *args: Any) -> None:
        machine, host = stream._machine, stream._host
        stream._queue.append((host.clock, machine.observer.mark(host), partial(work, stream, *args)))
        if stream.idle:
            stream.idle = False
            machine.scheduler.spawn(stream.agent, stream._work_off)

    return push


@dataclass(slots=True, eq=False)
class SimulatedStream:
    """Implements `runtime.backend.Stream`. `agent`: who runs it."""

    _machine: Machine
    _interpreter: Interpreter
    _host: Agent
    agent: Agent
    _processors: Multiprocessors
    _queue: deque[tuple[float, object, Callable[[], None]]] = field(default_factory=deque)
    idle: bool = True

    def _work_off(self) -> None:
        while self._queue:
            issued, mark, work = self._queue.popleft()
            self.agent.clock = max(self.agent.clock, issued)
            self._machine.observer.after(self.agent, [mark])
            work()
            self._machine.scheduler.moves += 1
        self.idle = True
        self._machine.scheduler.wake(self)

    # ------------------------------------------------------------------------------------------------------------ kernels
    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> None:
        """Options of a compiler are nothing that an interpreter could tell apart. Raises TL424 arguments and parameters
        differ, TL426 a tensor has no TMA descriptor."""
        del options
        check_arguments(kernel.__name__, kernel.arg_names, args)
        given = self._interpreter.arguments(kernel, args)
        file, source = inspect.getsourcefile(kernel.fn) or "", kernel.fn.__globals__.get(SOURCE)
        plain = {name: value.tensor if isinstance(value, Descriptor) else value for name, value in args.items()}
        tensors = [(name, value) for name, value in plain.items() if isinstance(value, torch.Tensor)]
        named = tuple(Argument(name, *extent(t), t.element_size()) for name, t in tensors if t.numel())
        launch = Launch(kernel.fn.__name__, file, workers, named, source)
        self._run_kernel(kernel, launch, tensors, given)

    @_queued
    def _run_kernel(
        self, kernel: Any, launch: Launch, tensors: list[tuple[str, torch.Tensor]], given: dict[str, Any]
    ) -> None:
        machine, agent = self._machine, self.agent
        agent.clock += machine.costs.launch
        machine.record("launch", kernel=launch.kernel)
        regions = [machine.memory.add(t, agent.rank, name) for name, t in tensors]
        machine.names.setdefault(agent.rank, {}).update({(a.start, a.end): a for a in launch.arguments})
        machine.opened(*(t for _, t in tensors))
        workers = [self._start(kernel, launch, given, number) for number in range(launch.workers)]
        machine.scheduler.block(
            launch,
            lambda: f"{launch.running} of {launch.workers} workers of {launch.kernel} have not ended",
            lambda: launch.running == 0,
        )
        agent.clock = max([agent.clock, *(w.clock for w in workers)])
        machine.observer.after(agent, [machine.observer.mark(w) for w in workers])
        for region in regions:
            if region is not None:
                machine.memory.drop(region, agent.rank)
        machine.record("end", kernel=launch.kernel)

    def _start(self, kernel: Any, launch: Launch, given: dict[str, Any], number: int) -> Agent:
        machine, small = self._machine, launch.kernel == AWAIT_FLAG
        clock = self._sm(f"launch of {launch.kernel}: worker {number}", small=small)
        worker = Agent(self.agent.rank, self.agent.stream, number, launch, clock)

        def work() -> None:
            machine.record("launch")
            # A GPU computes nan and inf without a word.
            with np.errstate(all="ignore"), interpreting(kernel):
                self._interpreter.function(kernel)(**given)
            machine.stores.arrive(worker)
            machine.record("end")
            launch.running -= 1
            self._give_back_sm(worker, small=small)
            machine.scheduler.wake(launch)

        launch.running += 1
        machine.observer.after(worker, [machine.observer.mark(self.agent)])
        machine.scheduler.spawn(worker, work)
        return worker

    def _sm(self, who: str, *, small: bool) -> float:
        """Wait for an SM; when it is there."""
        text = f"{who} has no SM, all {self._processors.count} are taken"
        self._machine.scheduler.block(self._processors, lambda: text, lambda: self._processors.has_room(small))
        return max(self.agent.clock, self._processors.take(small))

    def _give_back_sm(self, agent: Agent, *, small: bool) -> None:
        self._processors.give_back(agent.clock, small)
        self._machine.scheduler.wake(self._processors)

    # ----------------------------------------------------------------------------------------- copy engines and libraries
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy(target, source)
        self._run_copy(target, source)

    @_queued
    def _run_copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Between GPUs by a copy engine; within one by its SMs, as a GPU does it, of which one has to be free."""
        machine, agent = self._machine, self.agent
        local = machine.memory.local(agent.rank, target, source)
        if local:
            agent.clock = self._sm("copy within the GPU: it", small=True)
        begin, nbytes = agent.clock, target.numel() * target.element_size()
        with machine.writing(agent, *(extent(target) if nbytes else (0, 0))):
            for to, start in zip(_pieces(target), _pieces(source), strict=True):
                machine.scheduler.switch()
                machine.observe(agent, start, "load")
                if to.numel() == 1 and to.dtype == torch.int64:
                    machine.observe_flag(agent, to, int(to), int(start), acquire=False)
                else:
                    machine.observe(agent, to, "store")
                to.copy_(start)
            agent.clock += machine.costs.copied(nbytes, remote=not local)
        machine.record("copy", f"{nbytes} bytes", since=begin)
        if local:
            self._give_back_sm(agent, small=True)

    @_queued
    def apply(self, function: Library, inputs: Sequence[torch.Tensor], output: torch.Tensor | None) -> None:
        """What a library reads it reads at once, and it needs one SM at least; what it writes comes in pieces."""
        machine, agent = self._machine, self.agent
        name = getattr(function, "__name__", type(function).__name__)
        begin = agent.clock = self._sm(f"call of {name}: it", small=False)
        machine.scheduler.switch()
        for tensor in inputs:
            machine.observe(agent, tensor, "load")
        made = poison(output.shape, output.dtype) if output is not None else None
        with torch.no_grad(), FlopCounterMode(display=False) as counted:
            function(*inputs, **({} if made is None else {"out": made}))
        if output is not None and made is not None:
            for to, start in zip(_pieces(output), _pieces(made), strict=True):
                machine.scheduler.switch()
                machine.observe(agent, to, "store")
                to.copy_(start)
        nbytes = sum(t.numel() * t.element_size() for t in (*inputs, output) if t is not None)
        agent.clock += machine.costs.function(counted.get_total_flops(), nbytes, self._processors.count)
        self._give_back_sm(agent, small=False)
        machine.record("compute", name, since=begin)

    # ----------------------------------------------------------------------------------------------- doorbells and events
    @_queued
    def wait_doorbell(self, doorbell: torch.Tensor, times: int = 1) -> None:
        machine, agent = self._machine, self.agent
        address = doorbell.data_ptr()
        name = f"doorbell at {address:#x}"
        machine.record("wait", name)
        machine.scheduler.block(
            (address, address + WORD),
            lambda: f"doorbell is {int(doorbell)}, waits until it is {times}",
            # On GPUs the host releases streams once some wait has ended by its limit.
            lambda: int(doorbell) == times or machine.gave_up,
        )
        doorbell.zero_()
        agent.clock = max(agent.clock, machine.flags.latest(address))
        machine.observe_flag(agent, doorbell, 1, 0, acquire=True)
        machine.record("resume", name)

    def record(self) -> SimulatedEvent:
        event = SimulatedEvent()
        self._come_to(event)
        return event

    stamp = record

    @_queued
    def _come_to(self, event: SimulatedEvent) -> None:
        event.done, event.clock, event.mark = True, self.agent.clock, self._machine.observer.mark(self.agent)
        self._machine.scheduler.wake(event)

    @_queued
    def wait(self, event: SimulatedEvent) -> None:
        self._machine.scheduler.block(event, lambda: "waits for an event of another stream", lambda: event.done)
        self.agent.clock = max(self.agent.clock, event.clock)
        self._machine.observer.after(self.agent, [event.mark])


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What others may find written while the rest is not."""
    return tensor.split(max(1, -(-tensor.shape[0] // PIECES))) if tensor.dim() else (tensor,)


def poison(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """NaN, or -1 for integers, by which whoever reads what nobody has written, or leaves some of it out, is found out."""
    nbytes = math.prod(shape) * dtype.itemsize
    return torch.full((nbytes,), 0xFF, dtype=torch.uint8, device="cpu").view(dtype).view(tuple(shape))
