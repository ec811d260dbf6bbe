"""What holds between calls: nobody writes memory that another call still uses, or touches a peer's arguments outside its call.

Calls may follow one another with other sizes, so each has to promise on its own: all ranks are told of its begin before
anything else, and it ends when all that it has begun has ended. Who has been heard in a call has left the one before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.ir.lowered import ENTERED, Await, Buffer, Read, Signal, Write
from tilelink.proof.counts import executed, ranks_of
from tilelink.proof.coverage import Found, boxes_of
from tilelink.proof.order import Order, contains
from tilelink.proof.runs import Beside
from tilelink.proof.table import Array, Row, Table


def unfinished(table: Table) -> Iterator[Found]:
    """Executors that run ahead of the call, or behind its end."""
    over = set(table.lowered.ends).union(*(table.ended[e] for e in table.lowered.ends))
    for e in table.lowered.executors:
        if e.name not in over:
            yield Found("may still run when the call has ended", e.name)
    if not table.lowered.flags:
        return
    told = [r for r in table.rows if isinstance(r.op, Signal) and r.op.flags == ENTERED]
    if len(told) != 1 or getattr(told[0].op, "rank", 0) is not None:
        yield Found("is not told to all ranks once", ENTERED, tuple(told))
        return
    first = told[0].executor.name
    for e in table.lowered.executors:
        if e.name != first and first not in table.ended[e.name]:
            yield Found("runs ahead of the call", e.name)


def unfree(table: Table) -> Iterator[Found]:
    """Memory that is written again while a call that has used it before may not be over; arguments of peers that are touched
    before their call has begun, or after it has ended."""
    order = Order(table)
    shared: list[Buffer] = []
    for buffer in table.lowered.buffers:
        rows = [r for r in table.rows if isinstance(r.op, Read | Write) and r.op.buffer == buffer.name]
        away = [r for r in rows if _away(r)]
        if away and buffer.space in ("argument", "result"):
            for row in away:
                yield from _in_the_call(table, order, buffer, row)
        elif away:
            shared.append(buffer)
    if not shared:
        return
    first = min(shared, key=lambda b: turn(table, b))
    calls = turn(table, first)
    if _credited(table, calls):
        return
    known = heard(table) if calls > 1 else np.eye(table.ranks, dtype=np.bool_)
    if not known.all():
        rank, source = (int(k) for k in np.argwhere(~known)[0])
        yield Found(
            f"may be written again while rank {source} still uses it from {calls} calls ago", first.name, (), rank
        )


def turn(table: Table, buffer: Buffer) -> int:
    """After so many calls a buffer's memory is used again, where the slots of a call are counted up to its own number."""
    slots = table.lowered.slots
    return min(slots, buffer.slots) if buffer.slots >= slots or slots % buffer.slots == 0 else 1


def heard(table: Table) -> Array:
    """(rank, source): whether in each call the rank waits for something that the source does in it."""
    return np.logical_or.reduce([np.eye(table.ranks, dtype=np.bool_), *(found for _, found in heard_by(table))])


def heard_by(table: Table) -> Iterator[tuple[str, Array]]:
    """The same by kind of flags. What data decides may not happen."""
    for flags in table.lowered.flags:
        yield flags.name, _hearing(table, flags.name, [r for r in table.rows if isinstance(r.op, Signal)])


def _hearing(table: Table, flags: str, signals: list[Row]) -> Array:
    """(rank, source): whether in each call the rank waits for a flag that the source signals by one of these."""
    width, found = table.width(flags), np.zeros((table.ranks, table.ranks), dtype=np.bool_)
    awaited = np.zeros((table.ranks, width), dtype=np.bool_)
    for row in table.rows:
        if isinstance(row.op, Await) and row.op.flags == flags and not row.op.back and not row.by_data:
            on, flag, taken = executed(row, row.values["rank"], row(row.op.index))
            inside = taken & (flag >= 0) & (flag < width)
            awaited[on[inside], flag[inside]] = True
    for row in signals if awaited.any() else ():
        assert isinstance(row.op, Signal)
        if row.op.flags == flags and not row.by_data:
            for rank in ranks_of(table, row):
                on, flag, taken = executed(row, rank, row(row.op.index))
                source = np.broadcast_to(row.values["rank"], taken.shape)
                inside = taken & (on >= 0) & (on < table.ranks) & (flag >= 0) & (flag < width)
                met = awaited[on[inside], flag[inside]]
                found[on[inside][met], source[inside][met]] = True
    return found


def _credited(table: Table, calls: int) -> bool:
    """Whether before all else every rank waits until all have begun the call behind the one that used its memory."""
    for row in table.rows:
        if not isinstance(row.op, Await) or row.op.flags != ENTERED or row.op.back >= calls:
            continue
        others = {e.name for e in table.lowered.executors} - {row.executor.name}
        if row.by_data or any(row.executor.name not in table.ended[e] for e in others):
            continue
        on, flag, taken = executed(row, row.values["rank"], row(row.op.index))
        asked = np.zeros((table.ranks, table.ranks), dtype=np.bool_)
        asked[on[taken], flag[taken]] = True
        if asked.all():
            return True
    return False


# ------------------------------------------------------------------------------------------------ what belongs to callers
def _away(row: Row) -> bool:
    """Whether an access is one of another rank's memory, anywhere."""
    assert isinstance(row.op, Read | Write)
    on, here, taken = executed(row, row(row.op.rank), row.values["rank"])
    return bool((taken & (on != here)).any())


def _in_the_call(table: Table, order: Order, buffer: Buffer, row: Row) -> Iterator[Found]:
    """The one whose memory it is has begun its call, and ends it behind the access."""
    assert isinstance(row.op, Read | Write)
    runs = order.runs(row, boxes_of(row), Await)
    rank, whose = runs.at[0], runs(row(row.op.rank))
    known = rank == whose
    for h in order.signals(row, Await):
        assert isinstance(h.op, Await)
        if not h.by_data or row.by_data:
            beside, index, from_whom = Beside.of(row, h), h(h.op.index), _sources(table, h.op.flags)
            width = table.width(h.op.flags)
            for own in beside.turns():
                key = (rank * width + runs(index, own)) * table.ranks + whose
                known = known | (beside.taken(runs, own) & contains(from_whom, key))
    if not known.all():
        k = int(np.argmin(known))
        yield Found(
            f"of rank {whose[k]} is touched before that rank has begun the call", buffer.name, (row,), int(rank[k])
        )
    left = _left(table, row)
    if (missing := ~left[rank, whose]).any():
        k = int(np.argmax(missing))
        yield Found(
            f"of rank {whose[k]} may still be touched when its call has ended", buffer.name, (row,), int(rank[k])
        )


def _sources(table: Table, flags: str) -> Array:
    """Sorted keys (rank, flag, who signals it)."""
    width, keys = table.width(flags), [np.zeros(0, dtype=np.int64)]
    for row in table.rows:
        if isinstance(row.op, Signal) and row.op.flags == flags and not row.by_data:
            for rank in ranks_of(table, row):
                on, flag, taken = executed(row, rank, row(row.op.index))
                source = np.broadcast_to(row.values["rank"], taken.shape)
                keys.append(((on * width + flag) * table.ranks + source)[taken])
    return np.unique(np.concatenate(keys))


def _left(table: Table, row: Row) -> Array:
    """(rank, other): whether the other hears, before its call ends, that the executor of an access has ended on the rank."""
    behind = {e for e, ended in table.ended.items() if row.executor.name in ended}
    told = [r for r in table.rows if isinstance(r.op, Signal) and r.executor.name in behind]
    found = [_hearing(table, flags.name, told).T for flags in table.lowered.flags]
    return np.logical_or.reduce([np.eye(table.ranks, dtype=np.bool_), *found])
