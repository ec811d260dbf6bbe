"""A lowered plan written out op by op, in plain integers: what each tile of a rank does, slowly and by no other code than the
formulas' own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.lowered import (
    Await,
    Copy,
    Data,
    For,
    If,
    Lowered,
    Op,
    Opaque,
    Read,
    Signal,
    Tiles,
    Write,
    walk,
)
from tilelink.validation.events import Kind, Said

Env: TypeAlias = "dict[str, Any]"


@dataclass(slots=True)
class Expansion:
    """Of one rank. What has been asked for is kept: tiles by the id of their loop."""

    lowered: Lowered
    rank: int
    _tile: list[Said] = field(default_factory=list[Said])
    _tiles: dict[int, list[list[Said]]] = field(default_factory=dict[int, "list[list[Said]]"])
    _arrivals: dict[tuple[str, int], int] = field(default_factory=dict["tuple[str, int]", int])

    def tiles(self, loop: Tiles) -> list[list[Said]]:
        """By position, what the plan says that is done. Of a split that data decides each stands for any tile."""
        if id(loop) in self._tiles:
            return self._tiles[id(loop)]
        out = self._tiles[id(loop)] = list[list[Said]]()
        env: Env = dict(self.lowered.env(self.rank))
        for t in range(number(loop.total, env)):
            inner = {**env, "t": t}
            for name, value in (*loop.order, *loop.lets):
                inner[name] = number(value, inner)
            self._tile = []
            self._body(loop.body, inner, () if loop.by_data is None else (loop.by_data,))
            out.append(self._tile)
        return out

    def arrivals(self, flags: str, index: int) -> int:
        """How many signals complete a flag of this rank's in a call."""
        if (flags, index) not in self._arrivals:
            found, env = self.lowered.flag(flags).arrivals, {**self.lowered.env(self.rank), "flag": index}
            self._arrivals[flags, index] = 1 if found is None else number(found, env)
        return self._arrivals[flags, index]

    def _body(self, body: tuple[Op, ...], env: Env, data: tuple[Data, ...]) -> None:
        for op in body:
            self._op(op, env, data)

    def _op(self, op: Op, env: Env, data: tuple[Data, ...]) -> None:
        if isinstance(op, For):
            for turn in range(number(op.count, env)):
                inner = {**env, op.var: turn}
                for name, value in op.lets:
                    inner[name] = number(value, inner)
                self._body(op.body, inner, _more(data, op.by_data))
        elif isinstance(op, If):
            if op.test is None or number(op.test, env):
                undecided = Data(op.said) if op.test is None and op.by_data is None else op.by_data
                self._body(op.body, env, _more(data, undecided))
        elif isinstance(op, Await):
            self._say(
                "await", op.flags, self.rank, number(op.index, env), op.loc, data, back=op.back, doorbell=op.doorbell
            )
        elif isinstance(op, Signal):
            amount = None if op.amount is None else number(op.amount, env)
            ranks = self.lowered.topology.line(self.rank, op.along) if op.rank is None else (number(op.rank, env),)
            for rank in ranks:
                self._say("signal", op.flags, rank, number(op.index, env), op.loc, data, amount=amount)
        elif isinstance(op, Copy):
            self._op(op.source, env, data)
            self._op(op.target, env, data)
        elif isinstance(op, Read | Write):
            self._touch(op, env, _more(data, op.by_data))

    def _touch(self, op: Read | Write, env: Env, data: tuple[Data, ...]) -> None:
        rank = number(op.rank, env)
        sizes = tuple(number(e, self.lowered.env(rank)) for e in self.lowered.buffer(op.buffer).extents)
        edges = tuple((number(lo, env), number(hi, env)) for lo, hi in op.box)
        if all(lo < hi for lo, hi in edges):
            kind: Kind = "read" if isinstance(op, Read) else "write"
            extents = sizes if len(edges) == len(sizes) else (int(np.prod(sizes)),)
            index = elements(edges, extents)
            self._say(kind, op.buffer, rank, index, op.loc, data, edges=edges, extents=extents)

    def _say(self, kind: Kind, name: str, rank: int, index: Any, loc: Loc | None, data: Any, **more: Any) -> None:
        self._tile.append(Said(len(self._tile), kind, name, rank, index, loc, data, **more))


def opaque(lowered: Lowered) -> Loc | None:
    """The line of the first program that takes raw pointers, if one does."""
    ops = (op for e in lowered.executors for loop in e.loops for op in walk(loop.body))
    return next((op.loc for op in ops if isinstance(op, Opaque)), None)


def number(formula: Formula, env: Env) -> int:
    return int(np.asarray(F.evaluate(formula, env)).reshape(-1)[0])


def elements(edges: tuple[tuple[int, int], ...], extents: tuple[int, ...]) -> Any:
    """The numbers of a box's elements in memory without gaps."""
    found = np.zeros(1, dtype=np.int64)
    for (lo, hi), size in zip(edges, extents, strict=True):
        found = (found.reshape(-1, 1) * size + np.arange(lo, hi)).reshape(-1)
    return found


def _more(data: tuple[Data, ...], found: Data | None) -> tuple[Data, ...]:
    return data if found is None else (*data, found)
