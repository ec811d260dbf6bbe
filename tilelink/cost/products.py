"""Products in a lowered plan: `Compute`s that multiply, and what they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from tilelink.cost.rows import Array, access, turns, volume, walked
from tilelink.ir.lowered import Compute, Copy, For, If, Op, Read
from tilelink.proof.table import Row

DOT = "tl.dot"


@dataclass(frozen=True, slots=True)
class Product:
    """Products that a turn of a loop makes of what it reads. `operands`: each by its number among all reads of the loop over
    tiles; `names`: of the turn, none outside of all loops; `depth`: how many loops are around; `often`: how many products;
    `function`: the library's that makes them."""

    operands: Mapping[int, Read]
    names: frozenset[str]
    depth: int
    often: int
    function: Compute | None = None

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """Those of its operands."""
        reads = [r for r in rows if isinstance(r.op, Read)]
        return [reads[k] for k in self.operands]

    def deep(self, rows: Sequence[Row], made: float) -> list[tuple[Row, Array]]:
        """How far it sums up in each turn, by the reads of one operand. Where it takes all at once, the sizes of two operands and
        `made`, of what a tile makes, tell."""
        found = self.rows(rows)
        for param in dict.fromkeys(access(r).param for r in found):
            some = [(r, walked(r, self.names)) for r in found if access(r).param == param]
            if some[0][1] is not None:
                return [(r, far / turns(r, self.depth)) for r, far in some if far is not None]
        last = [r for r in found if access(r).param == access(found[-1]).param]
        both = max(map(volume, last)) * max((volume(r) for r in found if r not in last), default=1.0)
        return [(r, np.full((1,) * r.depth, math.sqrt(both / max(made, 1)))) for r in last]


def products(body: tuple[Op, ...]) -> list[Product]:
    """Of a body and all loops in it."""
    return _found(body, frozenset(), 0, count())[0]


def _found(
    body: tuple[Op, ...], names: frozenset[str], depth: int, number: Iterator[int]
) -> tuple[list[Product], dict[int, Read]]:
    """The products of a body, and what it reads, but for loops that make products of what they read themselves."""
    found, computes, reads = list[Product](), list[Compute](), dict[int, Read]()
    for op in _straight(body):
        if isinstance(op, For):
            inner, read = _found(op.body, frozenset((op.var, *(name for name, _ in op.lets))), depth + 1, number)
            found += inner
            reads |= {} if inner else read
        elif isinstance(op, Compute):
            computes.append(op)
        elif isinstance(op, Read):
            reads[next(number)] = op
        elif isinstance(op, Copy):
            next(number)
    dots = sum(DOT in op.what for op in computes)
    if dots and reads:
        found.append(Product(reads, names, depth, dots))
    # A function of n tensors multiplies n - 1 times; what merges the parts of others takes one.
    called = (op for op in computes if len(op.takes) > 1)
    return [*found, *(Product(reads, names, depth, len(op.takes) - 1, op) for op in called)], reads


def _straight(body: tuple[Op, ...]) -> Iterator[Op]:
    """The ops of a body, those under tests included."""
    for op in body:
        if isinstance(op, If):
            yield from _straight(op.body)
        else:
            yield op
