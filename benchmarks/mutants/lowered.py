"""Every single change of a lowered plan: what a mistake in planning, in lowering or in printing would come to.

One function for each kind of change. It is given a lowered plan and yields (where, changed plan).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import (
    Await,
    Box,
    Buffer,
    Copy,
    Data,
    Executor,
    Flags,
    For,
    If,
    Lowered,
    Op,
    Read,
    Signal,
    Tiles,
    Write,
    walk,
)
from tilelink.ir.schedule import COPY_ENGINE, WORKERS

Found: TypeAlias = Iterator[tuple[str, Lowered]]
Kind: TypeAlias = Callable[[Lowered], Found]
Body: TypeAlias = tuple[Op, ...]
RANK, RANKS = Sym("rank"), Sym("RANKS")


def mutants(lowered: Lowered) -> Iterator[tuple[str, str, Lowered]]:
    """(kind, where, changed plan) for each change of each kind that changes anything."""
    for name, kind in KINDS.items():
        for where, changed in kind(lowered):
            if changed != lowered:
                yield name, where, changed


# -------------------------------------------------------------------------------------------------------------- places
@dataclass(frozen=True, slots=True)
class Site:
    """An op, where it stands among its neighbours, and the plan with other ops in its place. `by_data`: data says whether."""

    op: Op
    where: str
    by_data: bool
    index: int
    among: Body
    put: Callable[[Body], Lowered]
    """The plan with another body instead of `among`."""

    def instead(self, *ops: Op) -> Lowered:
        return self.put((*self.among[: self.index], *ops, *self.among[self.index + 1 :]))


def sites(lowered: Lowered) -> Iterator[Site]:
    for e, k, loop in loops(lowered):

        def put(body: Body, e: Executor = e, k: int = k, loop: Tiles = loop) -> Lowered:
            return with_loop(lowered, e, k, replace(loop, body=body))

        yield from _inside(loop.body, f"{e.name}: {loop.path}", loop.by_data is not None, put)


def _inside(body: Body, where: str, by_data: bool, put: Callable[[Body], Lowered]) -> Iterator[Site]:
    for n, op in enumerate(body):
        yield Site(op, f"{where}, {label(op)}", by_data, n, body, put)
        if isinstance(op, For | If):
            decides = by_data or op.by_data is not None or (isinstance(op, If) and op.test is None)

            def inner(changed: Body, n: int = n, op: For | If = op) -> Lowered:
                return put((*body[:n], replace(op, body=changed), *body[n + 1 :]))

            yield from _inside(op.body, where, decides, inner)


def accesses(lowered: Lowered) -> Iterator[tuple[Read | Write, str, Callable[[Any], Lowered]]]:
    """Reads and writes, those of copies too, each with what makes a plan of another in its place."""
    for site in sites(lowered):
        if isinstance(site.op, Read | Write):
            yield site.op, site.where, site.instead
        elif isinstance(site.op, Copy):
            op = site.op
            yield op.source, site.where, lambda new, s=site, op=op: s.instead(replace(op, source=new))
            yield op.target, site.where, lambda new, s=site, op=op: s.instead(replace(op, target=new))


def loops(lowered: Lowered) -> Iterator[tuple[Executor, int, Tiles]]:
    for e in lowered.executors:
        for k, loop in enumerate(e.loops):
            yield e, k, loop


def with_loop(lowered: Lowered, e: Executor, k: int, loop: Tiles) -> Lowered:
    return with_executor(lowered, e, replace(e, loops=(*e.loops[:k], loop, *e.loops[k + 1 :])))


def with_executor(lowered: Lowered, old: Executor, new: Executor) -> Lowered:
    return replace(lowered, executors=tuple(new if e is old else e for e in lowered.executors))


def with_flags(lowered: Lowered, old: Flags, **changes: Any) -> Lowered:
    return replace(lowered, flags=tuple(replace(f, **changes) if f is old else f for f in lowered.flags))


def with_buffer(lowered: Lowered, old: Buffer, **changes: Any) -> Lowered:
    return replace(lowered, buffers=tuple(replace(b, **changes) if b is old else b for b in lowered.buffers))


def label(op: Op) -> str:
    name = type(op).__name__.lower()
    if isinstance(op, Await | Signal):
        return f"{name} {op.flags}"
    if isinstance(op, Read | Write):
        return f"{name} {op.buffer}"
    return f"copy {op.source.buffer} to {op.target.buffer}" if isinstance(op, Copy) else name


def next_rank(f: Formula) -> Formula:
    return (f + 1) % RANKS


def of_next_rank(f: Formula) -> Formula:
    return F.substitute(f, {"rank": next_rank(RANK)})


# ---------------------------------------------------------------------------------------------------- ops left out, doubled
def _dropped(*kinds: type[Any]) -> Kind:
    return lambda lowered: ((s.where, s.instead()) for s in sites(lowered) if isinstance(s.op, kinds))


def _doubled(*kinds: type[Any]) -> Kind:
    return lambda lowered: ((s.where, s.instead(s.op, s.op)) for s in sites(lowered) if isinstance(s.op, kinds))


def swapped(lowered: Lowered) -> Found:
    """Neighbours of which one is a signal, an await or a write: a signal before its write, a read before its await."""
    for s in sites(lowered):
        after = s.among[s.index + 1 : s.index + 2]
        if after and any(isinstance(op, Await | Signal | Write | Copy) for op in (s.op, *after)):
            yield s.where, s.put((*s.among[: s.index], *after, s.op, *s.among[s.index + 2 :]))


def first(lowered: Lowered) -> Found:
    """A signal before all that the tile does."""
    for s in sites(lowered):
        if isinstance(s.op, Signal) and s.index:
            yield s.where, s.put((s.op, *s.among[: s.index], *s.among[s.index + 1 :]))


def last(lowered: Lowered) -> Found:
    """An await behind all that the tile does, or a loop or test of some."""
    for s in sites(lowered):
        found = [op for op in walk((s.op,)) if not isinstance(op, For | If)]
        if found and all(isinstance(op, Await) for op in found) and s.index < len(s.among) - 1:
            yield s.where, s.put((*s.among[: s.index], *s.among[s.index + 1 :], s.op))


# ------------------------------------------------------------------------------------------------------------------ flags
def _signals(change: Callable[[Any], Op | None], *kinds: type[Any]) -> Kind:
    def found(lowered: Lowered) -> Found:
        for s in sites(lowered):
            changed = change(s.op) if isinstance(s.op, kinds) else None
            if changed is not None:
                yield s.where, s.instead(changed)

    return found


def other_flags(lowered: Lowered) -> Found:
    """The flags of another tensor."""
    names = [f.name for f in lowered.flags]
    for s in sites(lowered):
        if isinstance(s.op, Await | Signal) and len(names) > 1:
            other = names[(names.index(s.op.flags) + 1) % len(names)]
            yield s.where, s.instead(replace(s.op, flags=other))


def other_arrivals(lowered: Lowered) -> Found:
    for f in lowered.flags:
        if f.arrivals is not None:
            yield f"{f.name} + 1", with_flags(lowered, f, arrivals=f.arrivals + 1)
            yield f"{f.name} - 1", with_flags(lowered, f, arrivals=F.maximum(f.arrivals - 1, 0))


def other_style(lowered: Lowered) -> Found:
    for f in lowered.flags:
        for style in ("count", "epoch", "doorbell", "data"):
            yield f"{f.name}: {style}", with_flags(lowered, f, style=style)


def other_scope(lowered: Lowered) -> Found:
    for f in lowered.flags:
        yield f.name, with_flags(lowered, f, scope="gpu" if f.scope == "sys" else "sys")


def fewer_flags(lowered: Lowered) -> Found:
    for f in lowered.flags:
        yield f.name, with_flags(lowered, f, count=F.maximum(f.count - 1, 0))


# ----------------------------------------------------------------------------------------------------------------- memory
def _boxes(change: Callable[[Box, int], Box]) -> Kind:
    def found(lowered: Lowered) -> Found:
        for op, where, put in accesses(lowered):
            for axis in range(len(op.box)):
                yield (
                    f"{where}, {type(op).__name__.lower()} {op.buffer}, axis {axis}",
                    put(replace(op, box=change(op.box, axis))),
                )

    return found


def _edged(box: Box, axis: int, low: int, high: int) -> Box:
    return tuple((lo + low, hi + high) if a == axis else (lo, hi) for a, (lo, hi) in enumerate(box))


def other_rank(lowered: Lowered) -> Found:
    for op, where, put in accesses(lowered):
        yield f"{where}, {type(op).__name__.lower()} {op.buffer}", put(replace(op, rank=next_rank(op.rank)))


def other_buffer(lowered: Lowered) -> Found:
    """Another one of as many axes."""
    for op, where, put in accesses(lowered):
        others = [b.name for b in lowered.buffers if len(b.extents) == len(op.box) and b.name != op.buffer]
        if others:
            yield f"{where}, {others[0]} for {op.buffer}", put(replace(op, buffer=others[0]))


def smaller_buffer(lowered: Lowered) -> Found:
    for b in lowered.buffers:
        for axis in range(len(b.extents)):
            extents = tuple(F.maximum(e - 1, 0) if a == axis else e for a, e in enumerate(b.extents))
            yield f"{b.name}, axis {axis}", with_buffer(lowered, b, extents=extents)


def other_space(lowered: Lowered) -> Found:
    for b in lowered.buffers:
        if b.space in ("symmetric", "device"):
            yield b.name, with_buffer(lowered, b, space="device" if b.space == "symmetric" else "symmetric")


def fewer_slots(lowered: Lowered) -> Found:
    for b in lowered.buffers:
        if b.slots > 1 and b.space == "symmetric":
            yield b.name, with_buffer(lowered, b, slots=b.slots - 1)
    if lowered.slots > 1:
        yield "flags", replace(lowered, slots=lowered.slots - 1)


def said_by_data(lowered: Lowered) -> Found:
    """A write, or a loop of awaits, is left to data."""
    said = Data("a mutant")
    for s in sites(lowered):
        if isinstance(s.op, Write):
            yield s.where, s.instead(replace(s.op, by_data=said))
        if isinstance(s.op, Await):
            yield s.where, s.instead(If(None, (s.op,), said))


# ------------------------------------------------------------------------------------------------------ loops and executors
def no_test(lowered: Lowered) -> Found:
    for s in sites(lowered):
        if isinstance(s.op, If):
            yield s.where, s.instead(*s.op.body)


def other_test(lowered: Lowered) -> Found:
    for s in sites(lowered):
        if isinstance(s.op, If) and s.op.test is not None:
            yield s.where, s.instead(replace(s.op, test=F.negate(s.op.test)))


def skips_own(lowered: Lowered) -> Found:
    """What stays on its rank is left out, or is not."""
    for s in sites(lowered):
        if isinstance(s.op, Copy | Write):
            target = s.op.target if isinstance(s.op, Copy) else s.op
            yield s.where, s.instead(If(F.binary("!=", target.rank, RANK), (s.op,)))


def other_count(lowered: Lowered) -> Found:
    for s in sites(lowered):
        if isinstance(s.op, For):
            yield f"{s.where} + 1", s.instead(replace(s.op, count=s.op.count + 1))
            yield f"{s.where} - 1", s.instead(replace(s.op, count=F.maximum(s.op.count - 1, 0)))


def other_lets(lowered: Lowered) -> Found:
    """Where a tile begins, or ends, by one off."""
    for e, k, loop in loops(lowered):
        for n, (name, value) in enumerate(loop.lets):
            lets = (*loop.lets[:n], (name, value + 1), *loop.lets[n + 1 :])
            yield f"{e.name}: {loop.path}, {name}", with_loop(lowered, e, k, replace(loop, lets=lets))


def reversed_order(lowered: Lowered) -> Found:
    for e, k, loop in loops(lowered):
        order = tuple((n, F.substitute(v, {"t": loop.total - 1 - Sym("t")})) for n, v in loop.order)
        yield f"{e.name}: {loop.path}", with_loop(lowered, e, k, replace(loop, order=order))


def one_tile(lowered: Lowered) -> Found:
    """One index is always the same."""
    names = {n for e, k, loop in loops(lowered) for n, _ in loop.axes}
    for e, k, loop in loops(lowered):
        for name in [n for n, _ in loop.order if n in names]:
            order = tuple((n, F.of(0) if n == name else v) for n, v in loop.order)
            yield f"{e.name}: {loop.path}, {name}", with_loop(lowered, e, k, replace(loop, order=order))


def other_total(lowered: Lowered) -> Found:
    for e, k, loop in loops(lowered):
        for by in (1, -1):
            total = F.maximum(loop.total + by, 0)
            yield f"{e.name}: {loop.path} {by:+}", with_loop(lowered, e, k, replace(loop, total=total))


def no_after(lowered: Lowered) -> Found:
    for e in lowered.executors:
        for other in e.after:
            after = tuple(a for a in e.after if a != other)
            yield f"{e.name} after {other}", with_executor(lowered, e, replace(e, after=after))


def no_end(lowered: Lowered) -> Found:
    for name in dict.fromkeys(lowered.ends):
        yield name, replace(lowered, ends=tuple(e for e in lowered.ends if e != name))


def other_engine(lowered: Lowered) -> Found:
    for e in lowered.executors:
        if e.engine.by != "host":
            yield (
                e.name,
                with_executor(lowered, e, replace(e, engine=COPY_ENGINE if e.engine.by == "kernel" else WORKERS)),
            )


def no_executor(lowered: Lowered) -> Found:
    """What comes after it comes after what it came after."""
    for gone in lowered.executors:
        kept = [
            replace(e, after=tuple(x for a in e.after for x in (gone.after if a == gone.name else (a,))))
            for e in lowered.executors
            if e is not gone
        ]
        ends = tuple(x for a in lowered.ends for x in (gone.after if a == gone.name else (a,)))
        yield gone.name, replace(lowered, executors=tuple(kept), ends=ends)


def later_credit(lowered: Lowered) -> Found:
    for s in sites(lowered):
        if isinstance(s.op, Await) and s.op.back:
            yield s.where, s.instead(replace(s.op, back=s.op.back + 1))


KINDS: dict[str, Kind] = {
    "await dropped": _dropped(Await), "await doubled": _doubled(Await),
    "signal dropped": _dropped(Signal), "signal doubled": _doubled(Signal),
    "write dropped": _dropped(Write), "write doubled": _doubled(Write),
    "read dropped": _dropped(Read), "copy dropped": _dropped(Copy), "copy doubled": _doubled(Copy),
    "neighbours swapped": swapped, "signal first": first, "await last": last,
    "flag + 1": _signals(lambda op: replace(op, index=op.index + 1), Await, Signal),
    "flag of the next rank": _signals(lambda op: replace(op, index=of_next_rank(op.index)), Await, Signal),
    "next rank signalled": _signals(lambda op: op.rank and replace(op, rank=next_rank(op.rank)), Signal),
    "only own rank signalled": _signals(lambda op: replace(op, rank=RANK), Signal),
    "amount + 1": _signals(lambda op: op.amount and replace(op, amount=op.amount + 1), Signal),
    "other flags": other_flags, "arrivals": other_arrivals, "style": other_style, "scope": other_scope,
    "fewer flags": fewer_flags,
    "box shrunk": _boxes(lambda box, axis: _edged(box, axis, 0, -1)),
    "box shifted": _boxes(lambda box, axis: _edged(box, axis, 1, 1)),
    "box grown": _boxes(lambda box, axis: _edged(box, axis, 0, 1)),
    "rank of an access": other_rank, "other buffer": other_buffer, "buffer smaller": smaller_buffer,
    "space": other_space, "slots": fewer_slots, "by data": said_by_data,
    "test dropped": no_test, "test turned": other_test, "own skipped": skips_own, "count of a loop": other_count,
    "tile by one off": other_lets, "order reversed": reversed_order, "index constant": one_tile, "total": other_total,
    "after dropped": no_after, "end dropped": no_end, "engine": other_engine, "executor dropped": no_executor,
    "credit later": later_credit,
}  # fmt: skip

__all__ = ["KINDS", "mutants"]
