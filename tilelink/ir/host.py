"""What the host does in a call, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MAIN = 0
"""The caller's stream; side streams count from 1."""


@dataclass(frozen=True, slots=True)
class CallEntry:
    """Begin the call: epoch, credits, targets. By a one-block kernel of its own, or by the call's `kernels`: the first
    begins with it, and the last, when all of its workers are through, raises what the next call counts from."""

    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Copy the arguments that peers read into their slots, then tell every peer that they are ready."""

    tensors: tuple[str, ...]

    @property
    def executor(self) -> str:
        """What a lowered plan calls it."""
        return "stage"


@dataclass(frozen=True, slots=True)
class Fork:
    """Side stream `stream` goes on from here."""

    stream: int


@dataclass(frozen=True, slots=True)
class Join:
    """The main stream waits for side stream `stream`."""

    stream: int


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: str
    stream: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """The steps of a program that streams run, on `streams` side streams from `stream` on."""

    path: str
    stream: int

    @property
    def executor(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Keep:
    """What `Transfer` of the same step would move within the rank, on the main stream, before kernels start that wait for
    it: a copy within one GPU is made by its SMs, and workers that wait may have taken them all."""

    path: str

    @property
    def stream(self) -> int:
        return MAIN

    @property
    def executor(self) -> str:
        return f"{self.path}.keep"


@dataclass(frozen=True, slots=True)
class CallExit:
    """Wait until every peer has come here: arguments that peers read in place may be overwritten afterwards."""


HostStep: TypeAlias = CallEntry | Stage | Fork | Join | Launch | Transfer | Keep | CallExit
