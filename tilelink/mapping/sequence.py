"""The host's sequence of a call: what it starts, on which stream, and what begins behind what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilelink.errors import Note, TilelinkError
from tilelink.ir.host import MAIN, Enter, Fork, HostStep, Join, Keep, Launch, Leave, Stage, Transfer
from tilelink.ir.plan import KernelPlan, StepPlan
from tilelink.ir.wiring import Wiring
from tilelink.mapping.kernels import Assignment


def host_steps(
    wiring: Wiring,
    where: Assignment,
    steps: tuple[StepPlan, ...],
    staged: tuple[str, ...],
    enters: bool,
    leaves: bool,
    keeps: tuple[str, ...],
) -> tuple[HostStep, ...]:
    """The sequence of one call. `leaves`: peers read an argument in place. `keeps`: whose own parts come before kernels.

    A stream that waits for a bell can hold up others that share its queue: whoever rings it goes first. A kernel that
    waits for what a library function makes starts behind it: its workers stay until they have it, and could take all
    the room that the function needs.

    Raises:
        TilelinkError: TL312, a library function between two steps of one kernel.
    """
    call = _Call(wiring, where, steps, pending=dict(where.streams))
    call.out += [Enter()] if enters else []
    call.out += [Stage(staged)] if staged else []
    call.fork(n for s in steps if s.path in where.streams for n in call.streams(s))
    call.transfer()
    call.out += [Keep(path) for path in keeps]
    for k in where.kernels:
        call.launch(k)
    call.out += [Transfer(path, first) for path, first in call.pending.items()]
    call.join(list(call.open_streams))
    call.out += [Leave()] if leaves else []
    return _entered(tuple(call.out))


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
        read = {t for s in self.steps if s.path in members for t in self.wiring.read_from(s.step)}
        before = [s for s in self.steps if s.library is not None and not read.isdisjoint(s.step.makes)]
        for s in before:
            if s.path in self.pending:
                raise _circular(s, k)
        self.join([n for s in before for n in self.streams(s) if n in self.open_streams])
        self.out.append(Launch(k.name, k.stream))
        self.done |= members
        self.transfer()

    def _needs(self, s: StepPlan) -> set[str]:
        """The steps that make what a stream moves, or computes with."""
        movement = s.step.program.movement
        read = s.step.takes if movement is None else (s.step.binding(movement.source).tensor,)
        return {p.path for tensor in read for p in self.wiring.producers(tensor)} - {s.path}


def _entered(host: tuple[HostStep, ...]) -> tuple[HostStep, ...]:
    """Where a call is nothing but kernels one after the other, they begin it themselves: a launch less."""
    kernels = tuple(h.kernel for h in host if isinstance(h, Launch) and h.stream == MAIN)
    if not kernels or host[:1] != (Enter(),) or len(host) != 1 + len(kernels):
        return host
    return (Enter(kernels), *host[1:])


def _circular(s: StepPlan, k: KernelPlan) -> TilelinkError:
    return TilelinkError(
        "TL312",
        f"`{s.path}` cannot be placed in a library function",
        loc=s.step.program.loc,
        why=f"kernel `{k.name}` makes what it needs and takes what it makes: neither can be over before the other begins",
        hint="give the steps of that kernel kernels of their own (own_kernel=True), or place it on SMs",
        notes=(Note("the step", s.step.loc),),
    )
