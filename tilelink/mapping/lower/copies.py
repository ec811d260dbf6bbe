"""The ops of a copy program: it waits for a tile, copies it to or from another rank, and notifies."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import ENTERED, Await, Copy, For, If, Op, Read, Tiles, Write
from tilelink.ir.program import Move, Notify, Store, Wait, walk
from tilelink.mapping.lower.frame import Frame, under
from tilelink.mapping.lower.signals import awaits, signals


def copied(frame: Frame, *, own: bool = True, others: bool = True, target: Formula | None = None) -> tuple[Op, ...]:
    """One tile of a copy program.

    Args:
        own: with what stays on its rank. others: with what comes from others, or goes to them; without it nothing is waited for,
            since the host's sequence has put what stays where it is.
        target: the coordinate of the one rank that is meant, of a push to all.
    """
    step, program = frame.step, frame.step.step.program
    assert program.copy_program is not None
    source, destination = program.copy_program.source, program.copy_program.destination
    wait = next((op for op in walk(program.body) if isinstance(op, Wait)), None)
    notify = next((op for op in walk(program.body) if isinstance(op, Notify)), None)
    loc = next(op.loc for op in walk(program.body) if isinstance(op, Move | Store))
    there, here = frame.index(source, None), frame.index(destination, None)
    origin = (None if step.push else frame.owner(there)) or step.rank
    waits = awaits(frame, wait, there, origin) if wait is not None and step.into is None and others else ()
    if step.engine.by == "stream" and any(isinstance(op, Await) and op.flags == ENTERED for op in waits):
        # A stream does not ask whether its own rank has entered the call.
        waits = under([F.binary("!=", origin, step.rank)], waits)
    read = frame.access(Read, source, there, origin, loc, pulled=not step.push) if step.into is None else ()
    if not step.push:
        write = frame.access(Write, destination, here, step.rank, loc)
        told = () if notify is None else signals(frame, notify, here, None)
        return _some((*waits, *_copy(read, write), *told), origin, frame, own, others)
    owner = frame.owner(here) if target is None else target
    pe = Sym(frame.unique("pe")) if owner is None else owner
    saying = None if notify is None else frame.plan.signal(step.path, notify)
    at_once = owner is None and saying is not None and saying.to == "all" and step.engine.by != "stream"
    each = _copy(read, frame.access(Write, destination, here, pe, loc))
    if notify is not None and not at_once:
        alone = target is None and owner is not None
        each = (*each, *signals(frame, notify, here, None if alone else pe))
    each = _some(each, pe, frame, own and not step.skip_own, others)
    if owner is not None:
        skips = step.skip_own and step.engine.by == "stream"
        return _some((*waits, *each), pe, frame, not skips, True)
    turn = frame.unique("turn")
    at = (step.rank + step.ranks - Sym(turn)) % step.ranks
    body = (For(turn, step.ranks, each, lets=((frame.unique("pe"), at),)),) if each else ()
    return (*waits, *body, *(signals(frame, notify, here, None) if at_once and notify is not None else ()))


def _some(ops: tuple[Op, ...], peer: Formula, frame: Frame, own: bool, others: bool) -> tuple[Op, ...]:
    """Of what is for, or of, rank `peer`: what stays on its rank, or the rest, or all."""
    if (own and others) or not ops:
        return ops
    return (If(F.binary("==" if own else "!=", peer, frame.step.rank), ops),)


def _copy(read: tuple[Op, ...], write: tuple[Op, ...]) -> tuple[Op, ...]:
    if len(read) == len(write) == 1 and isinstance(read[0], Read) and isinstance(write[0], Write):
        return (Copy(read[0], write[0]),)
    return (*read, *write)


Tables: TypeAlias = "dict[str, tuple[tuple[int, ...], ...]]"
"""By name, for each rank the positions of its tiles in another order."""


def stream_loop(frame: Frame, tables: Tables, *, own: bool, others: bool) -> Tiles:
    """What the streams of a copy program do in a call, tile by tile; where everything is there on entry, one rank gets all of
    its tiles before the next gets any. `tables`: takes up the order in which it does, where no formula says it."""
    step, copy_program = frame.step, frame.step.step.program.copy_program
    assert copy_program is not None
    at_once = step.push and not any(s.path == step.path and s.action == "await" for s in frame.plan.signals)
    owner = frame.owner(frame.index(copy_program.destination, None))
    to_all = at_once and owner is None
    target = Sym("pe") if to_all else None
    body = under(frame.tests, copied(frame, own=own, others=others, target=target))
    if to_all:
        # This rank's own come first, or are no positions at all.
        per, turns = F.maximum(step.total, 1), step.ranks if own and others else F.of(1) if own else step.ranks - 1
        turn = Sym("t") // per + (0 if own else 1)
        peer = ("pe", (step.rank + step.ranks - turn) % step.ranks)
        order = (peer, *((n, F.substitute(v, {"t": Sym("t") % per})) for n, v in step.order))
        loop = frame.loop(body)
        axes, dims = (("pe", step.ranks), *loop.axes), ("", *loop.dims)
        return replace(loop, total=step.total * turns, order=order, axes=axes, dims=dims)
    if not at_once or owner is None or not others:
        return frame.loop(body)
    name = f"{step.path}:by rank"
    # This rank's own come first, or last if they are not meant.
    turn = step.rank + step.ranks - owner + (0 if own else step.ranks - 1)
    tables[name] = tuple(_sorted(frame, turn % step.ranks, rank) for rank in range(frame.plan.topology.ranks))
    order = tuple((n, F.substitute(v, {"t": F.at(Sym(name), Sym("t"))})) for n, v in step.order)
    return replace(frame.loop(body), order=order)


def _sorted(frame: Frame, key: Formula, rank: int) -> tuple[int, ...]:
    """The positions of a rank's tiles by rising key, else in their own order."""
    found = frame.step.turns(frame.plan.env(rank))
    for name, value in frame.lets:
        found[name] = F.evaluate(value, found)
    keys = np.broadcast_to(F.evaluate(key, found), found["t"].shape)
    return tuple(np.argsort(keys, kind="stable").tolist())
