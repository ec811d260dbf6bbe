"""What the streams of a rank do in a call, in numbers: loops of a lowered plan, evaluated for one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir import lowered as L
from tilelink.ir.formula import Formula
from tilelink.ir.lowered import Lowered, Op, Style, walk

Span: TypeAlias = "tuple[int, int]"
"""Begin and end."""
Env: TypeAlias = "dict[str, Any]"
"""What symbols stand for: one integer, or one for each of several positions."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of rank `rank`'s instance of a buffer."""

    buffer: str
    rank: int
    box: tuple[Span, ...]

    @property
    def empty(self) -> bool:
        return any(begin >= end for begin, end in self.box)


@dataclass(frozen=True, slots=True)
class Wait:
    """Until flag `index` of this rank is complete. `style`: of the flag; `doorbell`: until its doorbell has been rung so many
    `times`, which is reset then."""

    flags: str
    index: int
    style: Style
    times: int = 1


@dataclass(frozen=True, slots=True)
class Set:
    """Flag `index` of rank `rank` to the number of the call, behind the copies before it."""

    flags: str
    index: int
    rank: int


@dataclass(frozen=True, slots=True)
class Copy:
    target: Piece
    source: Piece


@dataclass(frozen=True, slots=True)
class Compute:
    """The function of a library, once: it reads `inputs`, and writes all of `output`. None: what it gives is a part of what the
    next one of `tile` with an output makes a whole of. `at`: dimension, begin and end, as the program counts them; `tile`: the
    position of the tile."""

    inputs: tuple[Piece, ...]
    output: Piece | None
    tile: int
    at: tuple[tuple[str, int, int], ...] = ()


Action: TypeAlias = Wait | Set | Copy | Compute
Actions: TypeAlias = "tuple[tuple[Action, ...], ...]"
"""Of each of the streams that share an executor's tiles, in order."""


def actions(lowered: Lowered, name: str, rank: int) -> Actions:
    """What executor `name`, of streams or of the host, does on a rank."""
    executor = lowered.executor(name)
    out: list[list[Action]] = [[] for _ in range(executor.workers)]
    for loop in executor.loops:
        for t, done in enumerate(_Tiles(lowered, rank, loop).done):
            out[t % executor.workers] += done
    return tuple(tuple(found) for found in out)


class _Tiles:
    """All positions of a loop at once: each formula is evaluated for all of them. By position: what is `done`, `values` that
    have been read, by their names, and what has been `computed` and is yet to be written."""

    def __init__(self, lowered: Lowered, rank: int, loop: L.Tiles) -> None:
        self.lowered, self.rank, self.loop = lowered, rank, loop
        env: Env = {**lowered.env(rank)}
        count = max(int(F.evaluate(loop.total, env)), 0)
        self.done: list[list[Action]] = [[] for _ in range(count)]
        self.values: list[dict[str, Piece]] = [{} for _ in range(count)]
        self.computed: list[Compute | None] = [None] * count
        if count:
            env["t"] = np.arange(count)
            env = self._let(loop.order, env)
            for table, _ in lowered.tables:
                del env[table]  # of positions in another order
            self._body(loop.body, self._let(loop.lets, env), range(count))

    def _let(self, lets: L.Lets, env: Env) -> Env:
        for symbol, value in lets:
            env[symbol] = F.evaluate(value, env)
        return env

    def _body(self, body: tuple[Op, ...], env: Env, tiles: range | list[int]) -> None:
        for op in body:
            if isinstance(op, L.If):
                assert op.test is not None
                self._where(F.evaluate(op.test, env), op.body, env, tiles)
            elif isinstance(op, L.For):
                often = F.evaluate(op.count, env)
                for turn in range(int(np.max(often))):
                    inner = self._let(op.lets, {**env, op.var: turn})
                    self._where(often > turn, op.body, inner, tiles)
            else:
                self._op(op, env, tiles)

    def _where(self, test: Any, body: tuple[Op, ...], env: Env, tiles: range | list[int]) -> None:
        """The body for those tiles for which a test holds."""
        holds = np.broadcast_to(np.asarray(test, dtype=np.bool_), (len(tiles),))
        if holds.all():
            self._body(body, env, tiles)
        elif holds.any():
            some: Env = {k: v[holds] if isinstance(v, np.ndarray) else v for k, v in env.items()}
            self._body(body, some, [t for t, held in zip(tiles, holds.tolist(), strict=True) if held])

    # ---------------------------------------------------------------------------------------------------------------- ops
    def _op(self, op: Op, env: Env, tiles: range | list[int]) -> None:
        if isinstance(op, L.Await):
            for t, found in zip(tiles, self._waits(op, env, len(tiles)), strict=True):
                # What the tile has heard of it has heard of; a doorbell is not rung twice.
                if found not in self.done[t]:
                    self.done[t].append(found)
        elif isinstance(op, L.Signal):
            index = _numbers(op.index, env, len(tiles))
            ranks = [self.lowered.topology.line(self.rank, op.along)] * len(tiles)
            if op.rank is not None:
                ranks = [(rank,) for rank in _numbers(op.rank, env, len(tiles))]
            for t, at, told in zip(tiles, index, ranks, strict=True):
                self.done[t] += [Set(op.flags, at, rank) for rank in told]
        elif isinstance(op, L.Copy):
            target, source = _pieces(op.target, env, len(tiles)), _pieces(op.source, env, len(tiles))
            for t, to, start in zip(tiles, target, source, strict=True):
                self.done[t].append(Copy(to, start))
        elif isinstance(op, L.Read):
            for t, piece in zip(tiles, _pieces(op, env, len(tiles)), strict=True):
                self.values[t][op.param] = piece
        elif isinstance(op, L.Write):
            for t, piece in zip(tiles, _pieces(op, env, len(tiles)), strict=True):
                found = self.computed[t]
                assert found is not None
                if not piece.empty:
                    self.done[t].append(replace(found, output=piece))
        elif isinstance(op, L.Compute):
            self._compute(op, env, tiles)

    def _waits(self, op: L.Await, env: Env, count: int) -> Iterator[Wait]:
        flags = self.lowered.flag(op.flags)
        style: Style = "doorbell" if op.doorbell else flags.style
        index, times = _numbers(op.index, env, count), [1] * count
        if flags.style == "doorbell" and flags.arrivals is not None:
            times = _numbers(flags.arrivals, {**env, "flag": np.asarray(index)}, count)
        return (Wait(op.flags, at, style, often) for at, often in zip(index, times, strict=True))

    def _compute(self, op: L.Compute, env: Env, tiles: range | list[int]) -> None:
        written = {inner.param for inner in walk(self.loop.body) if isinstance(inner, L.Write)}
        edges = [(dim, *(_numbers(edge, env, len(tiles)) for edge in edges)) for dim, *edges in op.at]
        for k, t in enumerate(tiles):
            inputs = tuple(self.values[t][value] for value in op.takes if value in self.values[t])
            at = tuple((dim, begins[k], ends[k]) for dim, begins, ends in edges)
            found = Compute(inputs, None, t, at)
            if op.gives in written:
                self.computed[t] = found
            else:
                self.done[t].append(found)


def _numbers(formula: Formula, env: Mapping[str, Any], count: int) -> list[int]:
    return np.broadcast_to(np.asarray(F.evaluate(formula, env), dtype=np.int64), (count,)).tolist()


def _pieces(op: L.Read | L.Write, env: Env, count: int) -> Iterator[Piece]:
    ranks = _numbers(op.rank, env, count)
    edges = [(_numbers(begin, env, count), _numbers(end, env, count)) for begin, end in op.box]
    for t, rank in enumerate(ranks):
        yield Piece(op.buffer, rank, tuple((begins[t], ends[t]) for begins, ends in edges))
