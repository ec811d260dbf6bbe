"""Where in a program each op stands: the tests above it and the loops around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilelink.ir.program import Expr, If, Loop, Op, TileProgram, Tiles

Test = tuple[Expr, bool]
"""A condition on the way to an op, and the branch taken."""


@dataclass(frozen=True, slots=True)
class Site:
    op: Op
    tests: tuple[Test, ...]
    loops: tuple[Tiles | Loop, ...]


def sites(program: TileProgram) -> tuple[Site, ...]:
    """Every op in program order."""
    return tuple(_walk(program.body, (), ()))


def site_of(program: TileProgram, op: Op) -> Site:
    return next(s for s in sites(program) if s.op == op)


def _walk(body: tuple[Op, ...], tests: tuple[Test, ...], loops: tuple[Tiles | Loop, ...]) -> Iterator[Site]:
    for op in body:
        yield Site(op, tests, loops)
        if isinstance(op, (Tiles, Loop)):
            yield from _walk(op.body, tests, (*loops, op))
        elif isinstance(op, If):
            yield from _walk(op.body, (*tests, (op.test, True)), loops)
            yield from _walk(op.orelse, (*tests, (op.test, False)), loops)
