"""The interface through which a race detector sees a run: every access, every order.

Nothing here decides anything. A run without an observer builds no `Span`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from tilelink.runtime.simulated.agents import Agent, Target
    from tilelink.runtime.simulated.machine import Machine

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
    """One word, changed or read by a scalar atomic or by a stream.

    `writes`: a poll (`atomic_add` of 0) does not. `exchange`: the write has read the word in the same instant, as
    atomics do and copies do not. `before`, `after`: the word's values around it.
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


class Observer:
    """Override what is of interest.

    Agents with the same rank, stream and worker number are one line of execution, launched again and again. All calls
    come in an order in which the run could have happened; what is ordered for certain is what the calls say.
    """

    def attached(self, machine: Machine) -> None:
        """The run begins. `machine.place(agent)` tells the emitted line, `machine.name_of` what an address is."""

    def mark(self, agent: Agent) -> object:
        """Everything `agent` has done so far, for `after`."""

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        """`agent` goes on (or begins) after everything that is marked: launches, ends, events, collective calls."""

    def opened(self, start: int, end: int, keep: object) -> None:
        """A whole allocation that kernels or copies are about to access. It lives as long as `keep`."""

    def load(self, agent: Agent, span: Span, proxy: Proxy) -> None: ...

    def store(self, agent: Agent, span: Span, proxy: Proxy) -> None: ...

    def atomic(self, agent: Agent, atomic: Atomic) -> None: ...

    def waited(self, agent: Agent, target: Target) -> None:
        """A wait function of the device has ended: what it has read last is what `agent` has seen last."""

    def look(self, agent: Agent, span: Span) -> None:
        """`agent` has loaded words each of which says that it has come."""

    def barrier(self, agent: Agent) -> None:
        """A barrier of all threads of one program."""

    def fence(self, agent: Agent, meaning: str) -> None:
        """`meaning` is a value of `tilelink.device.fences.MEANING`."""

    def freed(self, start: int, end: int) -> None:
        """Memory was given back; its addresses may come again."""
