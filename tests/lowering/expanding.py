"""A lowered plan written out op by op, in plain integers: the slow reading that tables are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import (
    ENTERED,
    LEFT,
    READY,
    Await,
    Box,
    Check,
    Copy,
    For,
    If,
    Lowered,
    Op,
    Read,
    Signal,
    Tiles,
    Write,
)
from tilelink.ir.plan import Plan
from tilelink.mapping.exact.calls import Call
from tilelink.mapping.exact.tiles import Sizes

Env: TypeAlias = "dict[str, Any]"
Place: TypeAlias = "tuple[int, str]"
"""(rank, path of the step)."""


class DataDecides(Exception):
    """What happens is for data to say."""


@dataclass
class Tally:
    """How often each flag is awaited and signalled, and each element read and written, by whom."""

    flags: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """(place, await | signal, flags, rank, number)."""
    elements: dict[tuple[Any, ...], Any] = field(default_factory=dict[tuple[Any, ...], Any])
    """(place, read | write, buffer, rank) -> how often each element, in the shape of the buffer."""

    def touch(self, place: Place, kind: str, buffer: str, rank: int, extents: tuple[int, ...], box: Any) -> None:
        if any(lo >= hi for lo, hi in box):
            return
        found = self.elements.setdefault((place, kind, buffer, rank), np.zeros(extents, np.int64))
        if len(box) != len(extents):
            found = found.reshape(-1)
        assert all(lo >= 0 and hi <= n for (lo, hi), n in zip(box, found.shape, strict=True)), (
            place,
            kind,
            buffer,
            box,
            extents,
        )
        there = tuple(slice(lo, hi) for lo, hi in box)
        # What is pushed to several ranks is read once, or once for each.
        found[there] = found[there] + 1 if kind == "write" else 1


@dataclass
class Expansion:
    lowered: Lowered
    plan: Plan
    tally: Tally = field(default_factory=Tally)

    def run(self) -> Tally:
        for executor in self.lowered.executors:
            for loop in executor.loops:
                for rank in range(self.plan.topology.ranks):
                    self._loop(loop, rank)
        return self.tally

    def _loop(self, loop: Tiles, rank: int) -> None:
        env: Env = dict(self.lowered.env(rank))
        if loop.by_data:
            raise DataDecides
        seen: set[tuple[int, ...]] = set()
        for t in range(self._number(loop.total, env)):
            inner = {**env, "t": t}
            for name, value in (*loop.order, *loop.lets):
                inner[name] = self._number(value, inner)
            seen.add(tuple(inner.get(name, 0) for name, _ in loop.axes))
            self._body(loop.body, inner, (rank, loop.path))
        assert not loop.axes or len(seen) == self._number(loop.total, env), f"{loop.path} takes a tile twice"

    def _number(self, formula: F.Formula, env: Env) -> int:
        return int(np.asarray(F.evaluate(formula, env)).reshape(-1)[0])

    def _body(self, body: tuple[Op, ...], env: Env, place: Place) -> None:
        for op in body:
            self._op(op, env, place)

    def _op(self, op: Op, env: Env, place: Place) -> None:
        if isinstance(op, For):
            if op.by_data:
                raise DataDecides
            for turn in range(self._number(op.count, env)):
                inner = {**env, op.var: turn}
                for name, value in op.lets:
                    inner[name] = self._number(value, inner)
                self._body(op.body, inner, place)
        elif isinstance(op, If):
            if op.test is None:
                raise DataDecides
            if self._number(op.test, env):
                self._body(op.body, env, place)
        elif isinstance(op, Check):
            assert self._number(op.test, env), op
        elif isinstance(op, Await):
            self.tally.flags[place, "await", op.flags, place[0], self._number(op.index, env)] += 0 if op.back else 1
        elif isinstance(op, Signal):
            for rank in self._ranks(op, env, place[0]):
                self.tally.flags[place, "signal", op.flags, rank, self._number(op.index, env)] += 1
        elif isinstance(op, Copy):
            self._op(op.source, env, place)
            self._op(op.target, env, place)
        elif isinstance(op, Read | Write):
            self._touch(op, env, place)

    def _ranks(self, op: Signal, env: Env, rank: int) -> Iterator[int]:
        if op.rank is None:
            yield from self.plan.topology.line(rank, op.along)
        else:
            yield self._number(op.rank, env)

    def _touch(self, op: Read | Write, env: Env, place: Place) -> None:
        if op.by_data:
            raise DataDecides
        kind, rank = "read" if isinstance(op, Read) else "write", self._number(op.rank, env)
        self.tally.touch(place, kind, op.buffer, rank, self._extents(op.buffer, rank), self._box(op.box, env))

    def _box(self, box: Box, env: Env) -> tuple[tuple[int, int], ...]:
        return tuple((self._number(lo, env), self._number(hi, env)) for lo, hi in box)

    def _extents(self, buffer: str, rank: int) -> tuple[int, ...]:
        found = next(b for b in self.lowered.buffers if b.name == buffer)
        return tuple(self._number(e, self.lowered.env(rank)) for e in found.extents)


def tally_of(plan: Plan, call: Call) -> Tally:
    """The same of the exact graph."""
    sizes, out = Sizes(plan), Tally()
    # Epilogues stand in the loop of their mainloop step, but for those that are deferred.
    loops = {s.path: s.path if s.behind else s.executor for s in plan.steps}
    own = {name.removeprefix("@"): name for name in (ENTERED, READY, LEFT)}
    for e in call.events:
        place = e.rank, loops.get(e.path, e.path)
        for flags, rank, number in e.waits:
            out.flags[place, "await", own.get(flags, flags), rank, number] += 1
        for flags, rank, number in e.raises:
            out.flags[place, "signal", own.get(flags, flags), rank, number] += 1
        for kind, accesses in (("read", e.reads), ("write", e.writes)):
            for a in accesses:
                out.touch(place, kind, *a.instance, sizes.extents(a.instance), a.box)
    return out


HOST = {"host", "enter", "stage", "leave"}


def differences(plan: Plan, lowered: Tally, exact: Tally) -> list[str]:
    """What one says happens and the other does not. Credits and the entry are the host's; that a tile of the mainloop is made is
    a flag of the lowered plan alone; the exact graph does not see that a deferred epilogue reads memory, and sees a copy that
    leaves out what stays on its rank read it."""
    out: list[str] = []
    mine, theirs = _steps(lowered.flags.items()), _steps(exact.flags.items())
    mine = {k: n for k, n in mine.items() if n and not k[2].startswith("made.")}
    once = {s.path for s in plan.steps if s.library is not None}
    mine, theirs = _awaited(mine, once), _awaited(theirs, once)
    out += [
        f"{k}: {mine.get(k, 0)} times, {theirs.get(k, 0)} by the graph"
        for k in {*mine, *theirs}
        if mine.get(k) != theirs.get(k)
    ]
    reads = {s.path for s in plan.steps if s.behind or s.skip_own}
    mine, theirs = _steps(lowered.elements.items()), _steps(exact.elements.items())
    for key in {*mine, *theirs}:
        a, b = mine.get(key), theirs.get(key)
        if key[1] == "read" and key[0][1] in reads:
            continue
        if a is None or b is None or not np.array_equal(a.reshape(-1), b.reshape(-1)):
            out.append(
                f"{key}: {'nothing' if a is None else a.tolist()}, by the graph {'nothing' if b is None else b.tolist()}"
            )
    return sorted(out)


def _steps(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {k: v for k, v in items if k[0][1] not in HOST}


def _awaited(found: dict[Any, Any], once: set[str]) -> dict[Any, Any]:
    """Of what a function of a library waits for, whether: two waits with flags in common are written out in two ways."""
    return {k: min(n, 1) if k[1] == "await" and k[0][1] in once else n for k, n in found.items()}
