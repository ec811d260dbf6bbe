"""The host's sequence of a call: what it starts, on which stream, and what begins behind what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import (
    MAIN,
    Buffer,
    CallEntry,
    CallExit,
    Fork,
    HostStep,
    Join,
    Keep,
    KernelPlan,
    Launch,
    Stage,
    StepPlan,
    Transfer,
)
from tilelink.ir.program import is_raw
from tilelink.ir.wiring import Wiring
from tilelink.mapping.kernels import Assignment
from tilelink.mapping.signals import Signals


def host_steps(
    wiring: Wiring, where: Assignment, steps: tuple[StepPlan, ...], found: Signals, buffers: tuple[Buffer, ...]
) -> tuple[HostStep, ...]:
    """The sequence of one call. It ends with leaving where peers read an argument in place.

    A stream that waits for a doorbell can hold up others that share its queue: whoever rings it goes first. A kernel that
    waits for what a library function makes starts behind it: its workers stay until they have it, and could take all
    the room that the function needs.

    Raises:
        TilelinkError: TL312, a library function between two steps of one kernel.
    """
    by_path = {s.path: s.step for s in steps}
    awaited = {by_path[s.path].binding(s.op.param).tensor for s in found.signals if s.action == "ready"}
    staged = tuple(b.tensor for b in buffers if b.staged)
    call = _Call(wiring, where, steps, pending=dict(where.streams))
    call.out += [CallEntry()] if found.channels or awaited or any(is_raw(s.program) for s in wiring.steps) else []
    call.out += [Stage(staged)] if staged else []
    call.fork(n for s in steps if s.path in where.streams for n in call.streams(s))
    call.transfer()
    call.out += [Keep(path) for path in _kept_first(steps, found)]
    for k in where.kernels:
        call.launch(k)
    call.out += [Transfer(path, first) for path, first in call.pending.items()]
    call.join(list(call.open_streams))
    call.out += [CallExit()] if not awaited <= {*staged} else []
    return _entered(tuple(call.out))


def _kept_first(steps: tuple[StepPlan, ...], found: Signals) -> tuple[str, ...]:
    """The copy-engine steps that move what stays on a rank before kernels start.

    Somebody waits for it, and it is there from the beginning. A GPU copies within itself by its SMs: beside kernels whose
    workers have taken them all, and wait, it would never begin.
    """
    read_in_place = {i.tensor for s in steps for i in s.in_place}
    awaited = {s.channel for s in found.signals if s.action == "await"}
    tensors = {c.tensor for c in found.channels if c.name in awaited} - read_in_place
    waiting = {s.path for s in found.signals if s.action == "await"}
    moved = {s.path: s.step.moved_to for s in steps if s.engine.sm == "within"}
    return tuple(path for path, to in moved.items() if path not in waiting and to in tensors)


@dataclass(slots=True)
class _Call:
    """`pending`: the streams of steps that have not been started, by path; `done`: the steps that have."""

    wiring: Wiring
    where: Assignment
    steps: tuple[StepPlan, ...]
    pending: dict[str, int]
    out: list[HostStep] = field(default_factory=list[HostStep])
    open_streams: list[int] = field(default_factory=list[int])
    done: set[str] = field(default_factory=set[str])

    def streams(self, s: StepPlan) -> range:
        first = self.where.streams[s.path]
        return range(first, first + s.streams)

    def fork(self, streams: Iterable[int]) -> None:
        for stream in streams:
            self.open_streams.append(stream)
            self.out.append(Fork(stream))

    def join(self, streams: Iterable[int]) -> None:
        for stream in streams:
            self.open_streams.remove(stream)
            self.out.append(Join(stream))

    def transfer(self) -> None:
        """All transfers whose input somebody makes who has been started."""
        while ready := [s.path for s in self.steps if s.path in self.pending and self._needs(s) <= self.done]:
            for path in ready:
                self.out.append(Transfer(path, self.pending.pop(path)))
                self.done.add(path)

    def launch(self, k: KernelPlan) -> None:
        """A kernel, behind the library functions whose results it waits for, and the transfers that it makes ready."""
        if k.stream != MAIN:
            self.fork([k.stream])
        members = {path for path, name in self.where.kernel_of.items() if name == k.name}
        functions = [s for s in self.steps if s.library is not None]
        read = {t for s in self.steps if functions and s.path in members for t in self.wiring.read_from(s.step)}
        before = [s for s in functions if not read.isdisjoint(s.step.makes)]
        for s in before:
            if s.path in self.pending:
                raise _circular(s, k)
        self.join([n for s in before for n in self.streams(s) if n in self.open_streams])
        self.out.append(Launch(k.name, k.stream))
        self.done |= members
        self.transfer()

    def _needs(self, s: StepPlan) -> set[str]:
        """The steps that make what a stream moves, or computes with."""
        read = s.step.takes if s.step.moved_from is None else (s.step.moved_from,)
        return {p.path for tensor in read for p in self.wiring.producers(tensor)} - {s.path}


def _entered(host: tuple[HostStep, ...]) -> tuple[HostStep, ...]:
    """Where a call is nothing but kernels one after the other, they begin it themselves: a launch less."""
    kernels = tuple(h.kernel for h in host if isinstance(h, Launch) and h.stream == MAIN)
    if not kernels or host[:1] != (CallEntry(),) or len(host) != 1 + len(kernels):
        return host
    return (CallEntry(kernels), *host[1:])


def _circular(s: StepPlan, k: KernelPlan) -> TilelinkError:
    return TilelinkError(
        "TL312",
        f"`{s.path}` cannot be placed in a library function",
        loc=s.step.program.loc,
        why=f"kernel `{k.name}` makes what it needs and takes what it makes: neither can be over before the other begins",
        hint="give the steps of that kernel kernels of their own (own_kernel=True), or place it on SMs",
        notes=(Note("the step", s.step.loc),),
    )
