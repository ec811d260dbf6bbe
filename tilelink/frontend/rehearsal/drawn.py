"""Which small calls of a program are rehearsed: its sizes, constants and sides of branches; and what they find out."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilelink.frontend.rehearsal.blocks import number
from tilelink.frontend.scope import Scope
from tilelink.frontend.source import FunctionSource
from tilelink.ir.program import Constant, Param, Together
from tilelink.ir.shape import Signature

TILE = 4
"""Elements of a tile."""
SIZES = ((3, 6, 5, 7), (1, 2, 3, 5), (6, 3, 7, 1), (2, 1, 6, 3), (7, 5, 1, 2), (1, 7, 2, 6), (5, 1, 2, 6))
"""By rehearsal, sizes of dimensions in the order of the signature: of one tile or of two, the last of which is no whole one. Of
any two there is a rehearsal in which the first is below 3 and the other is longer than a tile."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A program. `domain`: what its ops call the indices of its tile; `given`: constants that have one value."""

    source: FunctionSource
    scope: Scope
    locals: frozenset[str]
    params: Mapping[str, Param]
    constants: Sequence[Constant]
    signature: Signature
    domain: Sequence[str | None]
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Findings:
    """What rehearsals find out. `doubtful`: something was taken together of which only some data shows that it changes. `loops`:
    tiles of the domain that are taken together to say how often a loop goes round. `walks`: loops over tiles, and the number of
    the dimension that they go along. `quotients`: there are some of positions or sizes."""

    notes: set[Together] = field(default_factory=set[Together])
    doubtful: bool = False
    loops: set[str] = field(default_factory=set[str])
    walks: dict[str, int] = field(default_factory=dict[str, int])
    quotients: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """Which call it is. `least`: axes have more elements than a program counts by constants; `near`: one has, or all have, about
    as many as a constant that positions are compared with; `axis`: which one, -1: all. `half`: of tiles of the domain along this
    index, 0: the first half, 1: the second; of those of a walk, how long they are. `first`: quotients are judged, in the first
    tile of the domain, or in the last. `tile`: elements of a tile."""

    which: int
    least: int = 0
    near: int = 0
    axis: int = -1
    half: tuple[str, int] | None = None
    first: bool | None = None
    tile: int = TILE

    def size(self, k: int) -> int:
        sizes = SIZES[(self.which + self.which // len(SIZES)) % len(SIZES)]
        return self.near if self.near and self.axis in (-1, k) else self.least + sizes[k % len(sizes)]

    def constant(self, constant: Constant, k: int) -> Any:
        """A value of the `k`-th constant."""
        if constant.kind == "str":
            return Given(constant.default or "")
        if constant.kind == "bool":
            return number(bool(np.random.default_rng((self.which, k)).integers(2)), static=True)
        values = values_of(constant)
        value = values[(self.which + k + self.which // len(SIZES) * k) % len(values)]
        return number(value, static=constant.kind == "int")


@dataclass(slots=True)
class Paths:
    """Which sides of branches rehearsals have taken. `ways`: how the first one came to a branch, and by which sides. `known`:
    what names stand for."""

    seen: dict[ast.AST, set[bool]] = field(default_factory=dict[ast.AST, set[bool]])
    ways: dict[ast.AST, tuple[Drawn, dict[ast.AST, bool]]] = field(default_factory=dict[Any, Any])
    tried: set[ast.AST] = field(default_factory=set[ast.AST])
    known: dict[ast.AST, Any] = field(default_factory=dict[ast.AST, Any])

    def untaken(self) -> tuple[Drawn, dict[ast.AST, bool]] | None:
        """A way to a side that nobody has taken."""
        for node, sides in self.seen.items():
            if len(sides) == 1 and node not in self.tried:
                self.tried.add(node)
                drawn, way = self.ways[node]
                return drawn, {**way, node: not next(iter(sides))}
        return None


class Given(str):
    """A text that is given at each call."""

    __slots__ = ()


def values_of(constant: Constant) -> tuple[float, ...]:
    """What rehearsals give an integer or a float: its default most often; of one above 0 others above it, or 0 of integers."""
    default = constant.default
    if default is None:
        return (0.5, 1.5, -0.5, 0.0) if constant.kind == "float" else (1, 2, 4, 0, 8, 3, -1)
    assert not isinstance(default, str)
    if default <= 0:
        return default, 1, -1, default, 2, 0
    return default, 2 * default, default, default / 2 if constant.kind == "float" else 0


def is_new(constant: Constant, given: bool | int | float | str) -> bool:
    """Whether a call gives a constant what rehearsals do not: an integer, for which a kernel is compiled anyway, or a float below
    all of theirs."""
    if constant.kind == "int":
        return given not in values_of(constant)
    return constant.kind == "float" and isinstance(given, float) and given <= 0 < min(values_of(constant))
