"""Judges certificates, the JSON that `tilelink verify OP ... --certificate FILE` writes: whether what they describe is right.

    python tools/check_certificate.py FILE

Needs numpy, and nothing of tilelink. A file is written out op by op, rank by rank and tile by tile, in plain integers, and each
claim is looked at by brute force. Ends with 0: every claim holds; 1: refused, and says what is wrong and where; 2: cannot be
judged: not readable, of another version, with something in it that is not known here, or with raw pointers. What is claimed:

    names       A name means one thing; what is named is there; engines can do what they are asked to.
    bounds      Boxes lie within the buffer on the rank that is named, flags among those that there are; checks hold.
    orders      Positions of an order are different tiles; a tile that does anything is one of them.
    coverage    Each element that is read or is a result has one writer in a call, and no element has two.
    arrivals    Each flag gets what it expects; an epoch is set once; a doorbell is rung by its own rank and awaited once.
    progress    Nothing waits in a circle, with one worker for each executor.
    races       What is read was written before: by order in a tile or a stream, `after`, or flags whose arrivals were awaited.
    calls       Nothing is done outside a call, or to arguments and results of a rank that is not in it. What an earlier call has
                used is written, or signalled, when all ranks have left that: all are heard in each call, or a credit says so.
    residency   Workers that wait find SMs, with all workers that may be there at once.

Assumed: what data decides and a table, `once` or `partial` promises is complete, disjoint, and awaited where it is read.
Arguments are written by the caller. Libraries and lines of Triton touch what the reads and writes around them say. Turns of
workers are no order. A call takes credits behind one that has not heard all ranks, as calls of other sizes may follow.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 2
ENTERED = "@entered"
OWN = (ENTERED, "@ready", "@left")  # flags of the call itself: they tell its number, and are used in every call
Env = dict[str, Any]
KNOWN = {
    "style": ("count", "epoch", "doorbell", "data"), "scope": ("gpu", "sys"), "by": ("kernel", "stream", "host"),
    "space": ("argument", "result", "device", "symmetric"), "sm": ("worker", "always", "within", "never"),
}  # fmt: skip
DOES = {"copy": "_copy", "read": "_touch", "write": "_touch", "await": "_flag", "signal": "_flag"}
COMPUTE: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "min": min, "max": max,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b, "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b), "not": lambda a, _: not a,
}  # fmt: skip


def value(f: Any, env: Env) -> int:
    """A formula in integers. Quotients round towards zero."""
    if not isinstance(f, list):
        return f if isinstance(f, int) else env[f]
    op, left, right = f
    if op == "at":
        return env[left][range(len(env[left])).index(value(right, env))]
    a, b = value(left, env), value(right, env)
    if op in ("//", "%", "cdiv"):
        a = a + b - 1 if op == "cdiv" else a
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return a - quotient * b if op == "%" else quotient
    return int(COMPUTE[op](a, b))


@dataclass(eq=False)
class Position:
    """One turn of an executor: what it does for one tile."""

    rank: int
    engine: Any
    path: str
    tile: str = ""
    events: list[Event] = field(default_factory=list)

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.path}" + (f", tile {self.tile}" if self.tile else "")


@dataclass(eq=False)
class Event:
    """`kind`: await | signal | read | write; or begin | end of a rank's call, start | stop of an executor. `ranks`: whose memory
    or flags. `maybe`: data says whether it happens, or which part of the box it touches: 1: by a table's contract, 2: else."""

    number: int
    kind: str
    at: Position
    what: str = ""
    ranks: tuple[int, ...] = ()
    index: int = 0
    box: tuple[slice, ...] = ()
    maybe: int = 0
    amount: int | None = 1
    op: Any = None

    def __str__(self) -> str:
        which = ", ".join(f"{s.start}:{s.stop}" for s in self.box) if self.box else self.index
        line = ":".join(map(str, self.op["loc"][:2])) if self.op and self.op["loc"] else ""
        return f"{self.kind} {self.what}[{which}] of rank {', '.join(map(str, self.ranks))} ({self.at}{line and f', at {line}'})"


class Plan:
    """A certificate written out: its events, what comes before each, and what is wrong with it so far."""

    def __init__(self, text: Any) -> None:
        self.text, self.wrong, self.events = text, dict[str, None](), list[Event]()
        self.say = self.wrong.setdefault
        self.before: dict[int, set[int]] = defaultdict(set)
        # For cycles, besides: one worker each, and what data decides.
        self.turns: dict[int, set[int]] = defaultdict(set)
        self.mesh = text["ranks"][1:] or text["ranks"]
        self.ranks = range(prod(n for _, n in self.mesh))
        self.envs = [self._env(r) for r in self.ranks]
        self.buffers, self.flags = ({one["name"]: one for one in text[k]} for k in ("buffers", "flags"))
        shapes, counts = product(text["buffers"], self.ranks), product(text["flags"], self.ranks)
        self.extents = {(b["name"], r): [max(0, value(e, self.envs[r])) for e in b["extents"]] for b, r in shapes}
        self.counts = {(f["name"], r): value(f["count"], self.envs[r]) for f, r in counts}
        for b in (b for b in text["buffers"] if b["space"] == "symmetric"):
            if len({tuple(self.extents[b["name"], r]) for r in self.ranks}) > 1:
                self.say(f"bounds: symmetric memory `{b['name']}` has another size on each rank")
        for kind in ("buffers", "flags", "executors"):
            names = [one["name"] for one in text[kind]]
            if len(names) > len(set(names)):
                self.say(f"names: two {kind} have one name, of {names}")
            for fields in ({**one, **one.get("engine", {})} for one in text[kind]):
                for key in KNOWN.keys() & fields.keys():
                    if fields[key] not in KNOWN[key]:
                        raise ValueError(f"{key}: {fields[key]}")
        self.begin = [self._event("begin", Position(r, "", "")) for r in self.ranks]
        self.spans: dict[tuple[str, int], tuple[Event, Event]] = {}
        for executor, rank in product(text["executors"], self.ranks):
            self._executor(executor, rank)
        self.end = [self._event("end", Position(r, "", "")) for r in self.ranks]
        for name, rank in product(text["ends"], self.ranks):
            self._behind(self.end[rank], name)

    def line(self, rank: int, along: str) -> list[int]:
        """The ranks that differ from this one along a dimension of the mesh alone; `R` is all ranks, unless it is one."""
        numbers = np.arange(len(self.ranks)).reshape([n for _, n in self.mesh])
        at = np.argwhere(numbers == rank)[0]
        axis = next((k for k, (n, _) in enumerate(self.mesh) if n == along), None)
        return numbers[tuple(slice(None) if axis in (k, None) else c for k, c in enumerate(at))].ravel().tolist()

    def _env(self, rank: int) -> Env:
        env: Env = {**dict(self.text["sizes"]), **{n: rows[rank] for n, rows in self.text["tables"]}}
        env |= {"rank": rank, "RANKS": len(self.ranks)}
        for name, size in self.mesh:
            prefix = "" if name == "R" else f"{name}_"
            env |= {f"{prefix}rank": self.line(rank, name).index(rank), f"{prefix}RANKS": size}
        return env

    def _event(self, kind: str, at: Position, **known: Any) -> Event:
        self.events.append(Event(len(self.events), kind, at, **known))
        return self.events[-1]

    def _behind(self, event: Event, executor: str) -> None:
        if (executor, event.at.rank) in self.spans:
            self.before[event.number].add(self.spans[executor, event.at.rank][1].number)
        else:
            self.say(f"names: something comes after `{executor}`, which is not before it")

    def _executor(self, e: Any, rank: int) -> None:
        start = self._event("start", Position(rank, e["engine"], e["name"]))
        self.before[start.number].add(self.begin[rank].number)
        for other in e["after"]:
            self._behind(start, other)
        # Of each stream, or of one worker: what is sure to come before, and what does.
        last: dict[int, tuple[int, int]] = {}
        ends = {start.number}
        for loop in e["loops"]:
            for t, at, env in self._tiles(loop, e["engine"], rank):
                self._body(loop["body"], env, at, _decides(loop))
                worker = t % max(1, e["workers"]) if e["engine"]["in_turn"] else 0
                sure, turn = last.get(worker, (start.number, start.number))
                sure = sure if e["engine"]["in_turn"] else start.number
                for event in at.events:
                    self.before[event.number].add(sure)
                    self.turns[event.number].add(turn)
                    turn = event.number
                    if not (event.maybe and event.kind == "await"):  # these are for `Judge.ordered`
                        sure = event.number
                last[worker] = sure, turn
                ends.add(sure)
        self.spans[e["name"], rank] = start, (stop := self._event("stop", start.at))
        self.before[stop.number] |= ends
        self.turns[stop.number] |= {turn for _, turn in last.values()}

    def _tiles(self, loop: Any, engine: Any, rank: int) -> Iterator[tuple[int, Position, Env]]:
        """The positions of a loop, each with what its body may name."""
        outer, seen, path = self.envs[rank], set[tuple[int, ...]](), loop["path"]
        names = [n for n, _ in loop["axes"]]
        tiles = [range(value(count, outer)) for _, count in loop["axes"]]
        for t in range(value(loop["total"], outer)):
            env = self._bound({**outer, "t": t}, loop["order"], path)
            tile = tuple(env[n] for n in names)
            at = Position(rank, engine, path, ", ".join(map(str, tile)))
            if t == 0:  # an axis of one index may call it anything
                tiles = [range(i, i + 1) if len(n) == 1 else n for i, n in zip(tile, tiles, strict=True)]
            if (tile in seen and names) or any(i not in n for i, n in zip(tile, tiles, strict=True)):
                self.say(f"orders: position {t} is {'taken before' if tile in seen else 'no tile'} ({at})")
                continue
            seen.add(tile)
            yield t, at, self._bound(env, loop["lets"], path)
        for tile in product(*tiles):
            left_out = Position(rank, engine, path, ", ".join(map(str, tile)))
            if tile not in seen and names:
                first, wrong = len(self.events), dict(self.wrong)
                env = {"t": -1, **outer, **dict(zip(names, tile, strict=True))}
                self._body(loop["body"], self._bound(env, loop["lets"], path), left_out, 0)
                del self.events[first:]
                self.wrong.clear()
                self.wrong |= wrong
            if any(e.kind != "await" for e in left_out.events):
                self.say(f"orders: nobody takes this tile ({left_out})")

    def _bound(self, env: Env, lets: Any, path: str) -> Env:
        for name, formula in lets:
            if name in env:
                self.say(f"names: `{name}` means two things in {path}")
            env = {**env, name: value(formula, env)}
        return env

    def _body(self, body: Any, env: Env, at: Position, maybe: int) -> None:
        for op in body:
            kind = op["op"]
            if kind == "for":
                for turn in range(value(op["count"], env)):
                    inner = self._bound(env, [[op["var"], turn], *op["lets"]], at.path)
                    self._body(op["body"], inner, at, max(maybe, _decides(op)))
            elif kind == "if":
                if op["test"] is None or value(op["test"], env):
                    self._body(op["body"], env, at, max(maybe, _decides(op)))
            elif kind == "check":
                if not value(op["test"], env):
                    self.say(f"bounds: {op['what']} is touched ({at}, at {(op['loc'] or [''])[:2]})")
            elif kind in DOES:
                getattr(self, DOES[kind])(op, env, at, maybe)
            elif kind != "compute":
                raise ValueError(f"the op `{kind}`")

    def _copy(self, op: Any, env: Env, at: Position, maybe: int) -> None:
        """Both sides have the same shape, but for axes of one, and, but by workers, the same dtype."""
        found = [self._touch(op[side], env, at, maybe) for side in ("source", "target")]
        shapes = [[s.stop - s.start for s in e.box if s.stop - s.start != 1] if e else None for e in found]
        dtypes = {self.buffers.get(op[side]["buffer"], {}).get("dtype") for side in ("source", "target")}
        if shapes[0] != shapes[1] or (len(dtypes) > 1 and not at.engine["computes"]):
            self.say(f"bounds: the sides of a copy are not alike: {', '.join(map(str, found))} ({at})")

    def _touch(self, op: Any, env: Env, at: Position, maybe: int) -> Event | None:
        rank, name = value(op["rank"], env), op["buffer"]
        box = tuple(slice(value(lo, env), value(hi, env)) for lo, hi in op["box"])
        if any(s.start >= s.stop for s in box):
            return None
        maybe, there = max(maybe, _decides(op)), self.extents.get((name, rank), [])
        inside = len(there) == len(box) and all(s.start >= 0 and s.stop <= n for s, n in zip(box, there, strict=True))
        return self._taken(op, at, inside, name, (rank,), box=box, maybe=maybe)

    def _flag(self, op: Any, env: Env, at: Position, maybe: int) -> None:
        name, index, ranks, amount = op["flags"], value(op["index"], env), [at.rank], 1
        if op["op"] == "signal":
            ranks = self.line(at.rank, op["along"]) if op["rank"] is None else [value(op["rank"], env)]
            amount = None if op["amount"] is None else value(op["amount"], env)
        inside = bool(ranks) and all(0 <= index < self.counts.get((name, r), 0) for r in ranks)
        self._taken(op, at, inside, name, tuple(ranks), index=index, amount=amount, maybe=maybe)

    def _taken(self, op: Any, at: Position, inside: bool, what: str, ranks: tuple[int, ...], **known: Any) -> Any:
        event = self._event(op["op"], at, what=what, ranks=ranks, op=op, **known)
        if inside:
            at.events.append(event)
            return event
        self.say(f"bounds: there is no such memory, or flag: {self.events.pop()}")
        return None


class Judge:
    """Asks of a plan what was not answered as it was written out."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.say, self.events = plan, plan.say, plan.events
        self.all: dict[tuple[Any, ...], list[Event]] = defaultdict(list)  # by kind, name, rank and, of flags, number
        for e in self.events:
            flag = (e.index,) if e.kind in ("signal", "await") else ()
            for rank in e.ranks:
                self.all[(e.kind, e.what, rank, *flag)].append(e)
            if flag:
                self._engine(e, plan.flags[e.what])
        self.data = {n for n, f in plan.flags.items() if f["style"] == "data"}
        self.heard: dict[int, list[Event]] = {}  # of each await, the signals that it is sure to have waited for
        for name, rank in plan.counts:
            for index in range(plan.counts[name, rank]):
                self._arrivals((name, rank, index), plan.flags[name])
        self.is_past: Callable[[Event, Event], int] = lambda first, then: self.past[then.number] >> first.number & 1
        if order := self._order():
            self.past = self._closure(order, carried=False)
            self.brought = self._closure(order, carried=True) if self.data else self.past
            self.told = self._told()
            for name, rank in (key for key in plan.extents if plan.buffers[key[0]]["space"] != "argument"):
                self._covered(name, rank)
            self._calls()
            self._resident()

    def _engine(self, e: Event, f: Any) -> None:
        signals, workers, back = e.kind == "signal", e.at.engine["by"] == "kernel", e.op.get("back", 0)
        for wrong, why in (
            (signals and not e.at.engine["adds"] and f["style"] != "epoch", "a stream cannot add"),
            (signals and f["scope"] == "gpu" and (not workers or e.ranks != (e.at.rank,)), "scope gpu, from elsewhere"),
            (f["style"] == "data" and not workers, "only workers see what comes beside data"),
            (e.op.get("doorbell") and e.at.engine["compares"], "only streams wait for doorbells"),
            (back < 0 or (back and f["style"] != "epoch"), "only epochs say which call they are of"),
        ):
            if wrong:
                self.say(f"names: {why}: {e}")

    def _arrivals(self, flag: tuple[str, int, int], f: Any) -> None:
        (name, rank, index), once, doorbell = flag, f["style"] in ("epoch", "data"), f["style"] == "doorbell"
        signals, awaits = self.all["signal", *flag], [a for a in self.all["await", *flag] if a.op["back"] == 0]
        expected = 1 if f["arrivals"] is None else value(f["arrivals"], {**self.plan.envs[rank], "flag": index})
        whole = {s.at.path for s in signals if s.amount is None}  # by the last of several tiles
        got = sum(s.amount for s in signals if s.amount is not None) + expected * len(whole)
        doorbells = [a for a in awaits if doorbell or a.op.get("doorbell")]
        heard = {id(a.at) for a in doorbells}  # a tile of a stream has heard of a doorbell once for all
        misheard = len(heard) != min(expected, 1) or any(a.maybe for a in doorbells)
        for wrong, why in (
            (got != expected and (signals or awaits or not once), f"gets {got} and expects {expected}"),
            (once and (expected != 1 or any(s.amount != 1 for s in signals)), "is set, not counted"),
            (any(s.maybe and s.amount is not None for s in signals), "is signalled or not as data decides"),
            ((doorbells or doorbell) and misheard, f"has a doorbell that is awaited by {len(heard)} tiles"),
            (doorbells and any(s.at.rank != rank for s in signals), "has a doorbell that other ranks ring"),
        ):
            if wrong:
                about = "; ".join(map(str, [*signals[:2], *awaits[:1]]))
                self.say(f"arrivals: flag {name}[{index}] of rank {rank} {why}: {about}")
        for a in awaits:
            self.heard[a.number] = signals if got == expected else []
            (self.plan.turns if a.maybe else self.plan.before)[a.number] |= {s.number for s in self.heard[a.number]}

    def _order(self) -> list[int]:
        """All events, each behind those that it waits for; none if some wait in a circle."""
        try:
            before = {e.number: self.plan.before[e.number] | self.plan.turns[e.number] for e in self.events}
            return [*TopologicalSorter(before).static_order()]
        except CycleError as error:
            circle = [self.events[n] for n in error.args[1][1:]]
            self.say(f"progress: a circle: {'; '.join(str(e) for e in circle if e.kind in ('await', 'signal'))}")
            return []

    def _closure(self, order: list[int], *, carried: bool) -> list[int]:
        """Events before each, as bits. `carried`: whose memory is there, too; what comes beside data brings only that data."""
        past = [0] * len(self.events)
        for n in order:
            data = carried and n in self.heard and self.events[n].what in self.data
            for b in self.plan.before[n] - ({s.number for s in self.heard[n]} if data else set()):
                past[n] |= past[b] | 1 << b
        return past

    def ordered(self, write: Event, read: Event) -> bool:
        """Whether what is written is there for the read."""
        if self.brought[read.number] >> write.number & 1:
            return True
        for a in read.at.events[: read.at.events.index(read)]:
            for s in self.heard.get(a.number, []) if a.kind == "await" else []:
                if a.what in self.data:  # brings what the same tile has written there just before
                    if s.at is write.at and write.number < s.number and write.what == a.what == read.what:
                        return True
                elif a.maybe and read.maybe and self.brought[s.number] >> write.number & 1:
                    return True
        return False

    def _covered(self, name: str, rank: int) -> None:
        b = self.plan.buffers[name]
        writer = np.full(self.plan.extents[name, rank], -1, np.int64)
        by_data = np.zeros(writer.shape, bool)
        writes, reads = self.all["write", name, rank], self.all["read", name, rank]
        some = [w for w in writes if w.maybe]
        for w in (w for w in writes if not w.maybe):
            for n in np.unique(writer[w.box][writer[w.box] >= 0]):
                self.say(f"coverage: written twice: {w} and {self.events[n]}")
            writer[w.box] = w.number
        for w in some:
            by_data[w.box] = True
            others = [self.events[n] for n in np.unique(writer[w.box]) if n >= 0 and self.events[n].at is not w.at]
            others += [o for o in some if o.at.path != w.at.path and _meet(o, w)]
            if others:
                self.say(f"coverage: written, and as data says, too: {w} and {others[0]}")
        nobody, result = (writer < 0) & ~by_data, b["space"] == "result"
        for w in (w for w in some if w.maybe > 1 and not b["written"] and (result or any(_meet(w, r) for r in reads))):
            self.say(f"coverage: data says whether it is written, and nothing is declared: {w}")
        # What is never written whatever data says is left out by data only where a rank has no tile of who writes it.
        by = {(w.at.path, w.at.rank) for r in self.plan.ranks for w in self.all["write", name, r]}
        partial = b["written"] == "partial" and len(by) < len({path for path, _ in by}) * len(self.plan.ranks)
        for r in reads:
            if nobody[r.box].any() and not (r.maybe and partial):
                self.say(f"coverage: nobody writes what is read: {r}")
            for w in [*(self.events[n] for n in np.unique(writer[r.box]) if n >= 0), *(w for w in some if _meet(w, r))]:
                if not self.ordered(w, r):
                    self.say(f"races: {w} does not come before {r}")
        if result and nobody.any() and not partial:
            self.say(f"coverage: nobody writes all of the result `{name}` on rank {rank}")

    def _told(self) -> bool:
        """Whether every rank tells every other that it has entered, before it waits: flag `r` is of rank `r`."""
        waits = sum(1 << a for a in self.heard)
        said = [(r, self.all["signal", ENTERED, rank, r]) for rank, r in product(self.plan.ranks, repeat=2)]
        once = all(len(s) == 1 and s[0].at.rank == r and not self.past[s[0].number] & waits for r, s in said)
        return once and self.plan.flags.get(ENTERED, {}).get("style") == "epoch"

    def _calls(self) -> None:
        if not self.told and self.plan.flags:
            self.say("calls: nobody says that it has entered the call")
        entries = [self.all["signal", ENTERED, r, r] if self.told else [] for r in self.plan.ranks]
        for e in (e for e in self.events if e.kind in ("await", "signal", "read", "write", "stop")):
            rank, owner, entered = e.at.rank, e.ranks[0] if e.ranks else 0, entries[e.at.rank]
            space = self.plan.buffers[e.what]["space"] if e.kind in ("read", "write") else ""
            inside = self.is_past(self.plan.begin[owner], e) and self.is_past(e, self.plan.end[owner])
            late = entered and not any(s.at is e.at or self.is_past(s, e) for s in entered)
            for wrong, why in (
                (late, "this may be done before the call is entered"),
                (e.kind == "stop" and not self.is_past(e, self.plan.end[rank]), "the call may end before this"),
                (space in ("argument", "result") and not inside, f"rank {owner} may not be in the call"),
                (space == "argument" and e.kind == "write", "an argument is written"),
                (space == "device" and owner != rank, "other ranks do not reach this memory"),
            ):
                if wrong:
                    self.say(f"calls: {why}: {e}")
        for x, w in product(self.plan.ranks, repeat=2):
            found = self._unguarded(x, w) if x != w else None
            if found is not None:
                self.say(f"calls: rank {x} may be in the call that used this memory, or flag, last: {found}")

    def _unguarded(self, x: int, w: int) -> Event | None:
        """What rank `w` writes or signals while `x` may be in the call that used the memory, or the flag, last."""
        heard = self.is_past(self.plan.begin[x], self.plan.end[w])  # in each call: then in the one before, too
        credits = [a for a in self.all["await", ENTERED, w, x] if self.told and not a.maybe]
        for e in (e for e in self.events if e.at.rank == w and e.kind in ("write", "signal")):
            turns, copies = self.plan.text["slots"], self.plan.buffers[e.what]["slots"] if e.kind == "write" else 0
            # A buffer of fewer copies than calls take turns by is used in two calls running, where turns end.
            slots = turns if not copies else min(turns, copies) if copies >= turns or turns % copies == 0 else 1
            local = e.ranks == (w,) if e.kind == "signal" else self.plan.buffers[e.what]["space"] != "symmetric"
            known = self.is_past(self.plan.begin[x], e) or (heard and slots > 1) or local or e.what in OWN
            if not known and not any(a.op["back"] < slots and self.is_past(a, e) for a in credits):
                return e
        return None

    def _resident(self) -> None:
        """Kernels of which none comes before another are there at once."""
        kernels: dict[str, list[tuple[Event, Event, int]]] = defaultdict(list)
        for e in (e for e in self.plan.text["executors"] if e["engine"]["sm"] == "worker"):
            kernels[e["kernel"]].append((*self.plan.spans[e["name"], 0], e["workers"]))
        beside = set[tuple[str, str]]()
        for a, b in combinations(kernels, 2):
            pairs = product(kernels[a], kernels[b])
            if not all(self.is_past(x[1], y[0]) or self.is_past(y[1], x[0]) for x, y in pairs):
                beside.add((a, b))
        groups = (g for n in range(len(kernels)) for g in combinations(kernels, n + 1))
        most = max(
            (sum(e[2] for k in g for e in kernels[k]) for g in groups if beside >= {*combinations(g, 2)}), default=0
        )
        waits = next((e for e in self.events if e.kind == "await" and e.at.engine["sm"] == "worker"), None)
        if waits and most > self.plan.text["sms"]:
            self.say(f"residency: {most} workers are there at once, on {self.plan.text['sms']} SMs, and wait: {waits}")


def _decides(op: Any) -> int:
    if not op["by_data"]:
        return 2 if op.get("op") == "if" and op["test"] is None else 0
    return 1 if op["by_data"]["table"] else 2


def _meet(a: Event, b: Event) -> bool:
    return all(p.start < q.stop and q.start < p.stop for p, q in zip(a.box, b.box, strict=True))


def judge(text: Any) -> list[str]:
    """What is wrong with a certificate."""
    if text.get("tilelink certificate") != VERSION:
        raise ValueError(f"this is no certificate of version {VERSION}")
    try:
        return [*Judge(Plan(text)).plan.wrong]
    except (ZeroDivisionError, IndexError) as error:
        return [f"bounds: a formula has no value: {error!r}"]


def main(path: str) -> int:
    try:
        wrong = judge(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"cannot be judged: {error!r}")
        return 2
    print(*wrong[:10], f"refused: {len(wrong)} reasons" if wrong else "every claim holds", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else 2)
