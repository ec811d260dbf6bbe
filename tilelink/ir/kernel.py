"""Emitted source and how to start it: codegen gives, runtime takes."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.errors import Loc
from tilelink.ir.formula import Formula


@dataclass(frozen=True, slots=True)
class Arg:
    """A kernel parameter and what to pass for it.

    `kind`: `word` (one word, given by a transfer), `tensor` (this call's slot of buffer `of`), `descriptor` (the same as
    a TMA descriptor with `block`; `axes` gives the order of its axes), `words` | `due` | `bells` (of channel `of`),
    `stage` (symmetric slot of a staged argument), `order` (int32 table of step `of`),
    `state` (`of`: epoch | last | entered | ready | left), `context` (of
    the arena that holds `of`), `size` (`formula`), `stride` (axis `axis` of tensor `of`), `scalar` (run-time constant
    `of`: step path and name joined by a dot), `credits` (1: wait for them), `constant` (`value`).
    """

    name: str
    kind: str
    of: str = ""
    formula: Formula | None = None
    axis: int | None = None
    block: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    value: int | None = None


@dataclass(frozen=True, slots=True)
class KernelDecl:
    """`workers`: instances to start (None: one per SM); `resident`: at least so many must run at once."""

    name: str
    args: tuple[Arg, ...]
    workers: int | None
    tiles: Formula | None
    """Never more workers than this many tiles, plus `extra` (those of other roles)."""
    extra: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class KernelSource:
    """`lines`: emitted line -> the user's line it comes from."""

    name: str
    text: str
    digest: str
    kernels: tuple[KernelDecl, ...]
    lines: tuple[tuple[int, Loc], ...]

    def kernel(self, name: str) -> KernelDecl:
        return next(k for k in self.kernels if k.name == name)

    def location(self, line: int) -> Loc | None:
        """The user's line of emitted line `line`."""
        best = [loc for at, loc in self.lines if at <= line]
        return best[-1] if best else None
