"""Judges certificates, the JSON that `tilelink verify OP ... --certificate FILE` writes: whether what they describe is right.

    python tools/check_certificate.py FILE ...

Needs numpy and nothing of tilelink. Each file is written out op by op, rank by rank, tile by tile, in plain integers, and every
claim is looked at by brute force. Of several files it is asked, too, whether calls of them may follow one another in one workspace.

Ends with 0: every claim holds. 1: refused; says what is wrong, where, on which rank, in which tile, at which line of the user.
2: cannot be judged: not readable, of another version, an op or a symbol that is not known here.

What is claimed
    names       A name means one thing; what is named is there; engines can do what they are asked to.
    bounds      Boxes lie within the buffer on the rank that is named, flags among those that there are, checks hold.
    orders      Positions of an order are different tiles; a tile that does anything is one of them.
    coverage    Each element that is read or is a result has one writer in a call, and no element has two.
    arrivals    Each flag gets what it expects; a doorbell is rung by its own rank and awaited once; an epoch is set once.
    progress    Nothing waits in a circle, with one worker for each executor.
    races       What is read was written before: by order within a tile, of a stream, by `after`, by flags of which all arrivals
                were awaited. Turns of workers are no order.
    calls       An argument or a result of another rank is touched while that rank is in the call. Before memory is written that
                another call has used, all who used it are known to have left that call: they have been heard in between, or
                a credit says so. Arrivals at a counter cannot be taken for those of another call.
Assumed
    What data decides (`by_data`, tests that only data knows) is complete, disjoint, and awaited where it is read. Arguments are
    written by the caller. Libraries and lines of Triton touch what the reads and writes around them say.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

VERSION = 1
SHOWN = 10
Env = dict[str, Any]


class NotJudged(Exception):
    """The file says something that is not known here."""


class Wrong(Exception):
    """A formula has no value where it is asked for."""


def value(f: Any, env: Env) -> int:
    """A formula in integers. Quotients round towards zero."""
    if isinstance(f, int):
        return f
    if isinstance(f, str):
        if f not in env:
            raise NotJudged(f"`{f}` has no value")
        return env[f]
    op, left, right = f
    if op == "at":
        row, index = env[left], value(right, env)
        if not 0 <= index < len(row):
            raise Wrong(f"entry {index} of the table `{left}`, which has {len(row)}")
        return row[index]
    a, b = value(left, env), value(right, env)
    if op in ("//", "%", "cdiv"):
        if b == 0:
            raise Wrong("a division by zero")
        a = a + b - 1 if op == "cdiv" else a
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return a - quotient * b if op == "%" else quotient
    if op not in COMPUTE:
        raise NotJudged(f"the operator `{op}`")
    return int(COMPUTE[op](a, b))


COMPUTE: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "min": min, "max": max,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b, "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b), "not": lambda a, _: not a,
}  # fmt: skip


@dataclass(eq=False)
class Position:
    """What one turn of an executor does. `by_data`: data says whether there is such a turn."""

    rank: int
    executor: str
    engine: str
    path: str
    tile: str
    by_data: bool
    events: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.path}" + (f", tile {self.tile}" if self.tile else "")


@dataclass(eq=False)
class Event:
    """`kind`: await | signal | read | write, or begin | end of a rank's call, start | stop of an executor. `ranks`: whose memory
    or flags. `maybe`: data says whether it happens, or which part of the box it touches."""

    number: int
    kind: str
    at: Position
    what: str = ""
    ranks: tuple[int, ...] = ()
    index: int = 0
    box: tuple[slice, ...] = ()
    maybe: bool = False
    amount: int | None = 1
    back: int = 0
    loc: Any = None

    def __str__(self) -> str:
        line = f", at {self.loc[0]}:{self.loc[1]}" if self.loc else ""
        which = f"[{self.index}]" if self.kind in ("await", "signal") else ""
        box = ", ".join(f"{s.start}:{s.stop}" for s in self.box)
        where = f" of rank {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return f"{self.kind} {self.what}{which}{f'[{box}]' if self.box else ''}{where} ({self.at}{line})"


class Plan:
    """A certificate written out: events, what comes before each of them, and what is wrong with it so far."""

    def __init__(self, text: dict[str, Any]) -> None:
        self.text = text
        self.wrong: list[str] = []
        self.events: list[Event] = []
        self.positions: list[Position] = []
        self.edges: dict[int, set[int]] = defaultdict(set)
        self.turns: dict[int, set[int]] = defaultdict(set)
        """Besides `edges`, of one worker for each executor, and of what data decides: for cycles alone."""
        dims = text["ranks"][1:] or text["ranks"]
        self.dims, self.count = dims, prod(n for _, n in dims)
        self.envs = [self._env(r) for r in range(self.count)]
        self.buffers = {b["name"]: b for b in text["buffers"]}
        self.flags = {f["name"]: f for f in text["flags"]}
        self.extents = {(n, r): self._extents(b, r) for n, b in self.buffers.items() for r in range(self.count)}
        self.counts = {
            (n, r): value(f["count"], self.envs[r]) for n, f in self.flags.items() for r in range(self.count)
        }
        self._names()
        self.begin = [self._frame("begin", r) for r in range(self.count)]
        self.stops: dict[tuple[str, int], Event] = {}
        for executor in text["executors"]:
            for rank in range(self.count):
                self._executor(executor, rank)
        self.end = [self._frame("end", r) for r in range(self.count)]
        for rank, end in enumerate(self.end):
            self.edges[end.number] |= {
                self.stops[name, rank].number for name in text["ends"] if (name, rank) in self.stops
            }

    def say(self, what: str) -> None:
        self.wrong.append(what)

    def line(self, rank: int, along: str) -> list[int]:
        """The ranks that differ from this one along a dimension of the mesh alone."""
        names = [n for n, _ in self.dims]
        if along not in names:
            return list(range(self.count)) if along == "R" else []
        k = names.index(along)
        stride, size = prod(n for _, n in self.dims[k + 1 :]), self.dims[k][1]
        return [rank + (at - rank // stride % size) * stride for at in range(size)]

    def _env(self, rank: int) -> Env:
        env: Env = {**dict(self.text["sizes"]), **{n: rows[rank] for n, rows in self.text["tables"]}}
        env |= {"rank": rank, "RANKS": self.count}
        for name, size in self.dims:
            prefix = "" if name == "R" else f"{name}_"
            env |= {f"{prefix}rank": self.line(rank, name).index(rank), f"{prefix}RANKS": size}
        return env

    def _extents(self, buffer: dict[str, Any], rank: int) -> tuple[int, ...]:
        return tuple(max(0, value(e, self.envs[rank])) for e in buffer["extents"])

    def _names(self) -> None:
        for kind in ("buffers", "flags", "executors"):
            names = [one["name"] for one in self.text[kind]]
            for name in {n for n in names if names.count(n) > 1}:
                self.say(f"{kind}: two are called `{name}`")
        for f in self.text["flags"]:
            if f["style"] not in ("count", "epoch", "doorbell", "data") or f["scope"] not in ("gpu", "sys"):
                raise NotJudged(f"flags of style {f['style']}, scope {f['scope']}")
        for b in self.text["buffers"]:
            if b["space"] not in ("argument", "result", "device", "symmetric"):
                raise NotJudged(f"memory called {b['space']}")
            if b["slots"] < 1:
                self.say(f"`{b['name']}` has {b['slots']} slots")

    # ----------------------------------------------------------------------------------------------------- writing out
    def _event(self, kind: str, at: Position, **known: Any) -> Event:
        self.events.append(Event(len(self.events), kind, at, **known))
        return self.events[-1]

    def _frame(self, kind: str, rank: int, executor: str = "") -> Event:
        return self._event(kind, Position(rank, executor, "host", f"{kind} {executor}".strip(), "", False))

    def _executor(self, e: dict[str, Any], rank: int) -> None:
        if e["engine"] not in ("workers", "stream", "host"):
            raise NotJudged(f"the engine {e['engine']}")
        name, start = e["name"], self._frame("start", rank, e["name"])
        self.edges[start.number].add(self.begin[rank].number)
        for other in e["after"]:
            if (other, rank) not in self.stops:
                self.say(f"`{name}` comes after `{other}`, which is not before it")
                continue
            self.edges[start.number].add(self.stops[other, rank].number)
        last: dict[int, int] = {}  # of each worker, or of each stream
        ends = {start.number}
        for loop in e["loops"]:
            for t, at, env in self._tiles(loop, e, rank):
                self._body(loop["body"], env, at, loop["by_data"])
                worker = 0 if e["engine"] == "workers" else t % max(1, e["workers"])
                before, onward = start.number, last.get(worker, start.number)
                if e["engine"] != "workers":
                    before = onward
                for number in at.events:
                    self.edges[number].add(before)
                    self.turns[number].add(onward)
                    # Behind what data says is awaited nothing is certain but what data says is read: see `_before`.
                    if not (self.events[number].kind == "await" and (self.events[number].maybe or at.by_data)):
                        before = number
                    onward = number
                last[worker] = onward if e["engine"] == "workers" else before
                self.turns[onward].add(before) if onward != before and e["engine"] != "workers" else None
                ends |= {before}
                if at.events:
                    self.positions.append(at)
        stop = self.stops[name, rank] = self._frame("stop", rank, name)
        self.edges[stop.number] |= ends
        self.turns[stop.number] |= set(last.values())

    def _tiles(self, loop: dict[str, Any], e: dict[str, Any], rank: int) -> Iterator[tuple[int, Position, Env]]:
        """The positions of a loop, each with what its body may name."""
        outer, seen = self.envs[rank], set[tuple[int, ...]]()
        names = [n for n, _ in loop["axes"]]
        counts = [value(c, outer) for _, c in loop["axes"]]
        alone: list[Any] = [range(n) for n in counts]  # an axis of one index may call it anything
        for t in range(value(loop["total"], outer)):
            env = self._bound({**outer, "t": t}, loop["order"], loop["path"])
            tile = tuple(env[n] for n in names)
            at = Position(rank, e["name"], e["engine"], loop["path"], ", ".join(map(str, tile)), loop["by_data"])
            if tile in seen and names:
                self.say(f"orders: position {t} is a tile that is taken before ({at})")
            if t == 0:
                alone = [[i] if n == 1 else range(n) for i, n in zip(tile, counts, strict=True)]
            if any(i not in there for i, there in zip(tile, alone, strict=True)):
                self.say(f"orders: position {t} is no tile ({at})")
                continue
            seen.add(tile)
            yield t, at, self._bound(env, loop["lets"], loop["path"])
        for tile in product(*alone):
            if names and tile not in seen and self._works(loop, {**outer, **dict(zip(names, tile, strict=True))}, rank):
                self.say(f"orders: tile {tile} of {loop['path']} is never taken (rank {rank})")

    def _works(self, loop: dict[str, Any], env: Env, rank: int) -> bool:
        """Whether a tile that has no position would do anything but wait."""
        known, at = (len(self.events), len(self.wrong)), Position(rank, "", "workers", loop["path"], "", False)
        self._body(loop["body"], self._bound({"t": -1, **env}, loop["lets"], loop["path"]), at, False)
        found = any(e.kind != "await" for e in self.events[known[0] :])
        del self.events[known[0] :], self.wrong[known[1] :]
        return found

    def _bound(self, env: Env, lets: Any, where: str) -> Env:
        env = dict(env)
        for name, formula in lets:
            if name in env:
                self.say(f"names: `{name}` means two things in {where}")
            env[name] = value(formula, env)
        return env

    def _body(self, body: Any, env: Env, at: Position, maybe: bool) -> None:
        for op in body:
            self._op(op, env, at, maybe)

    def _op(self, op: Any, env: Env, at: Position, maybe: bool) -> None:
        kind = op["op"]
        if kind == "for":
            if op["var"] in env:
                self.say(f"names: `{op['var']}` means two things in {at.path}")
            for turn in range(value(op["count"], env)):
                inner = self._bound({**env, op["var"]: turn}, [], at.path)
                self._body(op["body"], self._bound(inner, op["lets"], at.path), at, maybe or op["by_data"])
        elif kind == "if":
            if op["test"] is None or value(op["test"], env):
                self._body(op["body"], env, at, maybe or op["test"] is None)
        elif kind == "check":
            if not value(op["test"], env):
                self.say(f"bounds: {op['what']} is touched ({at}, at {op['loc'] and op['loc'][:2]})")
        elif kind == "copy":
            first = len(self.events)
            self._touch(op["source"], env, at, maybe)
            self._touch(op["target"], env, at, maybe)
            self._same(op, self.events[first:], at)
        elif kind in ("read", "write"):
            self._touch(op, env, at, maybe)
        elif kind in ("await", "signal"):
            self._flag(op, env, at, maybe)
        elif kind != "compute":
            raise NotJudged(f"the op {kind}")

    def _same(self, op: Any, found: list[Event], at: Position) -> None:
        """A copy has as many elements on both sides, in the same shape but for axes of one, and of one dtype."""
        shapes = [[n for n in (s.stop - s.start for s in e.box) if n != 1] for e in found]
        dtypes = {self.buffers.get(op[side]["buffer"], {}).get("dtype") for side in ("source", "target")}
        if len(found) == 1 or (len(found) == 2 and shapes[0] != shapes[1]) or len(dtypes) > 1:
            self.say(f"bounds: a copy of unequal sides ({at}): {', then '.join(map(str, found))}")

    def _touch(self, op: Any, env: Env, at: Position, maybe: bool) -> None:
        rank, name = value(op["rank"], env), op["buffer"]
        box = [(value(lo, env), value(hi, env)) for lo, hi in op["box"]]
        if any(lo >= hi for lo, hi in box):
            return
        there = self.extents.get((name, rank))
        slices = tuple(slice(lo, hi) for lo, hi in box)
        event = self._event(
            op["op"], at, what=name, ranks=(rank,), box=slices, maybe=maybe or op["by_data"], loc=op["loc"]
        )
        if (
            there is None
            or len(there) != len(box)
            or any(lo < 0 or hi > n for (lo, hi), n in zip(box, there, strict=True))
        ):
            self.say(f"bounds: {'no such memory' if there is None else f'it has {there}'}: {event}")
            self.events.pop()
            return
        at.events.append(event.number)

    def _flag(self, op: Any, env: Env, at: Position, maybe: bool) -> None:
        name, index = op["flags"], value(op["index"], env)
        ranks = [at.rank]
        if op["op"] == "signal":
            ranks = self.line(at.rank, op["along"]) if op["rank"] is None else [value(op["rank"], env)]
        amount = 1
        if op["op"] == "signal":
            amount = None if op["amount"] is None else value(op["amount"], env)
        event = self._event(
            op["op"], at, what=name, ranks=tuple(ranks), index=index, maybe=maybe, amount=amount, back=op.get("back", 0),
            loc=op["loc"],
        )  # fmt: skip
        if not ranks or any(not 0 <= index < self.counts.get((name, r), 0) for r in ranks):
            self.say(f"bounds: no such flag: {event}")
            self.events.pop()
            return
        at.events.append(event.number)


class Judge:
    """Asks a plan all questions but those that were answered as it was written out."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.say, self.events = plan, plan.say, plan.events
        self.signals: dict[tuple[str, int, int], list[Event]] = defaultdict(list)
        self.awaits: dict[tuple[str, int, int], list[Event]] = defaultdict(list)
        for e in self.events:
            for rank in e.ranks if e.kind in ("signal", "await") else ():
                (self.signals if e.kind == "signal" else self.awaits)[e.what, rank, e.index].append(e)
        self.heard: dict[int, list[int]] = {}
        """Of each await, the signals that it is sure to have waited for."""
        self._arrivals()
        self._engines()
        self.before: list[int] = []
        self.carried: list[int] = []
        """Events before each, as bits; by flags that carry memory along alone: those of style `data` do not."""
        if self._acyclic():
            self.before = self._closure(carried=False)
            self.carried = (
                self._closure(carried=True) if any(f["style"] == "data" for f in plan.flags.values()) else self.before
            )
            self._memory()
            self._lifetimes()
            self._counters()

    # ------------------------------------------------------------------------------------------------------------ flags
    def _arrivals(self) -> None:
        plan = self.plan
        for name, f in plan.flags.items():
            for rank, index in ((r, i) for r in range(plan.count) for i in range(plan.counts[name, r])):
                signals, awaits = self.signals[name, rank, index], self.awaits[name, rank, index]
                now = [a for a in awaits if a.back == 0]
                sure = [a for a in now if not (a.maybe or a.at.by_data)]
                env = {**plan.envs[rank], "flag": index}
                expected = 1 if f["arrivals"] is None else value(f["arrivals"], env)
                whole = {(s.at.executor, s.at.path) for s in signals if s.amount is None}
                got = sum(s.amount for s in signals if s.amount is not None) + expected * len(whole)
                where = f"flag {name}[{index}] of rank {rank}"
                if f["style"] in ("epoch", "data") and (expected != 1 or any(s.amount != 1 for s in signals)):
                    self.say(f"arrivals: {where} is set, not counted")
                if got != expected and not (f["style"] in ("epoch", "data") and got == 0 and not sure):
                    self.say(f"arrivals: {where} gets {got} and expects {expected}: {self._some(signals or awaits)}")
                for s in signals:
                    if s.maybe and s.amount is not None:
                        self.say(f"arrivals: data decides whether there is a {s}")
                if f["style"] == "doorbell":
                    if len(now) != (1 if expected else 0) or any(a.maybe for a in now):
                        self.say(f"arrivals: {where} is a doorbell that is awaited {len(now)} times: {self._some(now)}")
                    if any(s.at.rank != rank for s in signals):
                        self.say(f"calls: {where} is a doorbell that others ring: {self._some(signals)}")
                if any(a.back for a in awaits) and f["style"] != "epoch":
                    self.say(f"calls: {where} is awaited as of an earlier call, and no epoch")
                for a in now:
                    self.heard[a.number] = [s.number for s in signals] if got == expected else []
        for number, signals in self.heard.items():
            event = self.events[number]
            plan.turns[number] |= set(signals)
            if not (event.maybe or event.at.by_data):
                plan.edges[number] |= set(signals)

    def _some(self, events: list[Event]) -> str:
        return "; ".join(map(str, events[:2])) + (", …" if len(events) > 2 else "")

    def _engines(self) -> None:
        for e in self.events:
            if e.kind not in ("signal", "await"):
                continue
            style, scope = self.plan.flags[e.what]["style"], self.plan.flags[e.what]["scope"]
            if e.kind == "signal" and e.at.engine == "stream" and style != "epoch":
                self.say(f"names: a stream cannot do this to flags of style {style}: {e}")
            if style == "data" and e.at.engine != "workers":
                self.say(f"names: only workers look at data: {e}")
            if e.kind == "signal" and scope == "gpu" and (e.at.engine != "workers" or e.ranks != (e.at.rank,)):
                self.say(f"names: flags of scope gpu are signalled by workers of their own rank: {e}")
        for (name, rank), stop in self.plan.stops.items():
            reached, left = {self.plan.end[rank].number}, [self.plan.end[rank].number]
            while left:
                new = self.plan.edges[left.pop()] - reached
                reached |= new
                left += new
            if stop.number not in reached:
                self.say(f"calls: the call may end on rank {rank} before `{name}` does")

    # ------------------------------------------------------------------------------------------------------------ order
    def _acyclic(self) -> bool:
        left = {e.number: self.plan.edges[e.number] | self.plan.turns[e.number] for e in self.events}
        onward: dict[int, list[int]] = defaultdict(list)
        for number, before in left.items():
            for b in before:
                onward[b].append(number)
        waiting = {n: len(before) for n, before in left.items()}
        ready = [n for n, count in waiting.items() if not count]
        self.order: list[int] = []
        while ready:
            self.order.append(ready.pop())
            for n in onward[self.order[-1]]:
                waiting[n] -= 1
                if not waiting[n]:
                    ready.append(n)
        stuck = set(waiting) - set(self.order)
        if not stuck:
            return True
        found = [min(stuck)]
        while found[-1] not in found[:-1]:
            found.append(min(left[found[-1]] & stuck))
        circle = [self.events[n] for n in reversed(found[found.index(found[-1]) :])]
        self.say("progress: a circle: " + ", then ".join(str(e) for e in circle if e.kind in ("await", "signal")))
        return False

    def _closure(self, *, carried: bool) -> list[int]:
        before = [0] * len(self.events)
        for n in self.order:
            for b in self.plan.edges[n]:
                if carried and n in self.heard and b in self.heard[n] and self._is_data(n):
                    continue
                before[n] |= before[b] | 1 << b
        return before

    def _is_data(self, number: int) -> bool:
        return self.plan.flags[self.events[number].what]["style"] == "data"

    def _ordered(self, write: Event, read: Event) -> bool:
        """Whether what is written is there for the read."""
        if self.carried[read.number] >> write.number & 1:
            return True
        for number in read.at.events:
            a = self.events[number]
            if a.number >= read.number or a.kind != "await" or number not in self.heard:
                continue
            for s in map(self.events.__getitem__, self.heard[number]):
                if self._is_data(number):  # brings what the same tile has written there just before
                    own = s.at is write.at and write.number < s.number
                    if own and write.what == a.what == read.what:
                        return True
                elif (a.maybe and read.maybe) or a.at.by_data:
                    if self.carried[s.number] >> write.number & 1:
                        return True
        return False

    # ----------------------------------------------------------------------------------------------------------- memory
    def _memory(self) -> None:
        touched: dict[tuple[str, int], list[Event]] = defaultdict(list)
        for e in self.events:
            if e.kind in ("read", "write"):
                touched[e.what, e.ranks[0]].append(e)
        for name, b in self.plan.buffers.items():
            there = [e for rank in range(self.plan.count) for e in touched[name, rank]]
            if there and b["space"] != "result" and all(e.kind == "write" for e in there):
                self.say(f"coverage: nobody reads `{name}`: {there[0]}")
            for rank in range(self.plan.count):
                self._buffer(name, b, rank, touched[name, rank])

    def _buffer(self, name: str, b: dict[str, Any], rank: int, touched: list[Event]) -> None:
        shape = self.plan.extents[name, rank]
        writer = np.full(shape, -1, np.int64)
        writes, reads = [e for e in touched if e.kind == "write"], [e for e in touched if e.kind == "read"]
        certain, some = [w for w in writes if not w.maybe], [w for w in writes if w.maybe]
        if b["space"] == "argument":
            for w in writes:
                self.say(f"coverage: an argument is written: {w}")
            return
        for e in touched:
            if b["space"] == "device" and e.at.rank != rank:
                self.say(f"names: memory that no other rank reaches: {e}")
        for w in certain:
            found = writer[w.box]
            if (found >= 0).any():
                self.say(f"coverage: written twice: {w} and {self.events[found.max()]}")
            writer[w.box] = w.number
        byte = np.zeros(shape, bool)
        for w in some:
            for n in np.unique(writer[w.box]):
                if n >= 0 and self.events[n].at is not w.at:
                    self.say(f"coverage: written, and by data, too: {w} and {self.events[n]}")
            others = [o for o in some if o.number < w.number and o.at.path != w.at.path and _meet(o, w)]
            if others:
                self.say(f"coverage: data decides who writes: {w} and {others[0]}")
            byte[w.box] = True
        for r in reads:
            if ((writer[r.box] < 0) & ~byte[r.box]).any():
                self.say(f"coverage: nobody writes what is read: {r}")
            before = [self.events[n] for n in np.unique(writer[r.box]) if n >= 0] + [w for w in some if _meet(w, r)]
            for w in before:
                if not self._ordered(w, r):
                    self.say(f"races: {w} does not come before {r}")
        if b["space"] == "result" and ((writer < 0) & ~byte).any():
            self.say(f"coverage: nobody writes all of `{name}` on rank {rank}")

    # ------------------------------------------------------------------------------------------------------------ calls
    def _lifetimes(self) -> None:
        """Arguments and results are there while their rank is in the call."""
        for e in self.events:
            if e.kind not in ("read", "write") or self.plan.buffers[e.what]["space"] not in ("argument", "result"):
                continue
            owner = e.ranks[0]
            if not self.before[e.number] >> self.plan.begin[owner].number & 1:
                self.say(f"calls: rank {owner} may not have entered the call: {e}")
            if not self.before[self.plan.end[owner].number] >> e.number & 1:
                self.say(f"calls: rank {owner} may have left the call: {e}")

    def _counters(self) -> None:
        """Who adds to a counter for the next call adds behind all others that add to it for this one."""
        for (name, rank, index), signals in self.signals.items():
            if self.plan.flags[name]["style"] in ("epoch", "data"):
                continue
            for w in {s.at.rank for s in signals}:
                for s in signals:
                    known = self.before[self.plan.end[w].number] >> s.number & 1
                    entered = all(
                        self.before[o.number] >> self.plan.begin[s.at.rank].number & 1
                        for o in signals
                        if o.at.rank == w
                    )
                    if s.at.rank != w and not known and not entered:
                        self.say(
                            f"calls: rank {w} may add to {name}[{index}] of rank {rank} for the next call before this: {s}"
                        )

    def told(self) -> set[str]:
        """Epochs by which every rank tells every other of its entry: flag `r` is set by rank `r`, and waits for nobody."""
        waits = sum(1 << a for a in self.heard)
        found = {n for n, f in self.plan.flags.items() if f["style"] == "epoch"}
        for name in set(found):
            for rank, index in product(range(self.plan.count), repeat=2):
                signals = self.signals[name, rank, index]
                if len(signals) != 1 or signals[0].at.rank != index or self.before[signals[0].number] & waits:
                    found.discard(name)
        return found

    def hears(self, x: int, w: int) -> bool:
        """Whether rank `w` knows before it leaves that rank `x` has entered."""
        return bool(self.before[self.plan.end[w].number] >> self.plan.begin[x].number & 1)

    def unguarded(self, x: int, w: int, *, heard: bool) -> Event | None:
        """What rank `w` writes without knowing that `x` has left the call that used the memory last. `heard`: by the end
        of each call `w` has heard that `x` has entered it."""
        told = self.told()
        credits = [a for i in range(self.plan.count) for n in told for a in self.awaits[n, w, x] if i == 0]
        for e in self.events:
            if e.kind != "write" or e.at.rank != w or self.plan.buffers[e.what]["space"] != "symmetric":
                continue
            slots = self.plan.buffers[e.what]["slots"]
            known = self.before[e.number] >> self.plan.begin[x].number & 1 or (heard and slots > 1)
            taken = any(a.back < slots and not a.maybe and self.before[e.number] >> a.number & 1 for a in credits)
            if not known and not taken:
                return e
        return None


def _meet(a: Event, b: Event) -> bool:
    return all(p.start < q.stop and q.start < p.stop for p, q in zip(a.box, b.box, strict=True))


def between(judges: list[Judge]) -> list[str]:
    """What is wrong with calls of these plans one after the other, in any turn, in the same memory."""
    wrong: list[str] = []
    shared = any(b["space"] == "symmetric" for j in judges for b in j.plan.buffers.values())
    count = min(j.plan.count for j in judges)
    for x, w in product(range(count), repeat=2):
        if x == w or not shared:
            continue
        heard = all(j.hears(x, w) for j in judges)
        for e in (j.unguarded(x, w, heard=heard) for j in judges):
            if e is not None:
                wrong.append(f"calls: rank {x} may still be in the call that used this memory last: {e}")
    if shared and count > 1 and not set.intersection(*(j.told() for j in judges)):
        wrong.append("calls: nobody says that it has entered")
    return wrong


def judge(texts: list[dict[str, Any]]) -> list[str]:
    """What is wrong with certificates, one by one and together."""
    judges: list[Judge] = []
    wrong: list[str] = []
    for text in texts:
        if text.get("tilelink certificate") != VERSION:
            raise NotJudged(f"a certificate of version {text.get('tilelink certificate')}, not {VERSION}")
        try:
            judges.append(Judge(Plan(text)))
        except Wrong as error:
            return [*wrong, f"bounds: {error}"]
        wrong += dict.fromkeys(judges[-1].plan.wrong)
    return wrong if wrong or not all(j.before for j in judges) else between(judges)


def main(paths: list[str]) -> int:
    try:
        texts = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                texts.append(json.load(file))
        wrong = judge(texts)
    except (NotJudged, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"cannot be judged: {error if isinstance(error, NotJudged) else repr(error)}")
        return 2
    for line in wrong[:SHOWN]:
        print(line)
    print(f"refused, for {len(wrong)} reasons" if wrong else "every claim holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if len(sys.argv) > 1 else 2)
