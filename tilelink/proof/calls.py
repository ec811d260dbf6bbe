"""What holds between calls: nobody writes memory that another call still uses, or touches a peer's arguments outside its call.

Calls may follow one another with other sizes, so each has to promise on its own: all ranks are told of its begin before
anything else, and it ends when all that it has begun has ended. Who has been heard in a call has left the one before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import Note
from tilelink.ir.lowered import ENTERED, STATES, Await, Buffer, Read, Signal, Write
from tilelink.ir.shape import RANK_AXIS
from tilelink.proof.cells import within
from tilelink.proof.counts import Sent
from tilelink.proof.findings import Found, Moment
from tilelink.proof.order import Order
from tilelink.proof.runs import Beside, Runs, depends, possible, projected, together, unsettled
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
    if len(told) != 1 or not _to_all(table, told[0]):
        yield Found("is not told to all ranks once", ENTERED, tuple(told))
        return
    first = told[0].executor.name
    for e in table.lowered.executors:
        if e.name != first and first not in table.ended[e.name]:
            yield Found("runs ahead of the call", e.name)


def _to_all(table: Table, row: Row) -> bool:
    """Whether each rank tells all others, by the flag of its own number."""
    assert isinstance(row.op, Signal)
    sent = Sent.of(table, row)
    return row.op.rank is None and row.op.along == RANK_AXIS and not possible([*sent.taken, sent.flag != sent.rank])


def unfree(table: Table) -> Iterator[Found]:
    """Memory that is written again while a call that has used it before may not be over; arguments of peers that are touched
    before their call has begun, or after it has ended."""
    order = Order(table)
    shared: list[tuple[int, str]] = []
    for buffer in table.lowered.buffers:
        rows = [r for r in table.rows if isinstance(r.op, Read | Write) and r.op.buffer == buffer.name]
        every = [Runs.of(table, r) for r in rows]
        away = [r for r in every if possible([*r.taken, _away(r)])]
        if buffer.space in ("argument", "result"):
            for runs in away:
                yield from _in_the_call(table, order, buffer, runs)
        elif away or buffer.space == "symmetric":  # in a call of other sizes a peer may have touched it
            shared.append((turn(table, buffer), buffer.name))
    shared += [(table.lowered.slots, name) for name in _signalled_away(table)]
    if not shared:
        return
    calls, first = min(shared, key=lambda found: found[0])
    if _credited(table, calls):
        return
    known = heard(table) if calls > 1 else np.eye(table.ranks, dtype=np.bool_)
    if not known.all():
        rank, source = (int(k) for k in np.argwhere(~known)[0])
        what = f"rank {rank} may write `{first}` again while rank {source} still uses it from {calls} calls ago"
        rows, moments = _again(table, first, rank, source, calls)
        why = (
            f"a rank has to hear from all others in each call, and nothing that rank {source} does reaches rank {rank}"
        )
        if calls == 1:
            why = "with one slot nothing that is heard in the call before says that its user has left it"
        loc = next((b.loc for b in table.lowered.buffers if b.name == first), None)
        notes = (Note("a rank without rows signals nothing", None),)
        yield Found(what, "", rows, moments, why=why, loc=loc, notes=notes)


def _again(
    table: Table, name: str, rank: int, source: int, calls: int
) -> tuple[tuple[Row, ...], tuple[Moment | None, ...]]:
    """A write of one rank in a later call, and what another still does with that memory."""
    uses = [r for r in table.rows if isinstance(r.op, Read | Write) and r.op.buffer == name]
    for w in (r for r in uses if isinstance(r.op, Write)):
        first = Moment.first(table, w, [w.values["rank"] == rank], call=calls)
        for r in uses if first is not None else ():
            assert first is not None and isinstance(w.op, Write) and isinstance(r.op, Read | Write)
            there = Runs.of(table, r)(r.op.rank) == first.value(w.op.rank)
            late = Moment.first(table, r, [Runs.of(table, r).values["rank"] == source, there], late=True)
            if late is not None:
                return (w, r), (first, late)
    told = next(r for r in table.rows if isinstance(r.op, Signal) and r.op.flags == ENTERED)
    here, late = (told.values["rank"] == r for r in (rank, source))
    return (), (Moment.first(table, told, [here], call=calls), Moment.first(table, told, [late], late=True))


def _signalled_away(table: Table) -> Iterator[str]:
    """Flags of other ranks that are signalled, but for those of the call itself, which no two calls share."""
    for row in table.rows:
        if isinstance(row.op, Signal) and row.op.flags not in STATES:
            sent = Sent.of(table, row)
            if possible([*sent.taken, sent.on != sent.rank]):
                yield row.op.flags


def turn(table: Table, buffer: Buffer) -> int:
    """After so many calls a buffer's memory is used again, where the slots of a call are counted up to its own number."""
    slots = table.lowered.slots
    return min(slots, buffer.slots) if buffer.slots >= slots or slots % buffer.slots == 0 else 1


def heard(table: Table) -> Array:
    """(rank, source): whether in each call the rank waits for something that the source does in it."""
    signals = [r for r in table.rows if isinstance(r.op, Signal)]
    found = np.eye(table.ranks, dtype=np.bool_)
    for flags in sorted((f.name for f in table.lowered.flags), key=table.width):
        if not found.all():
            found |= _hearing(table, flags, signals)
    return found


def hearing(table: Table, flags: str) -> Array:
    """The same by one kind of flags. What data decides may not happen."""
    direct = _hearing(table, flags, [r for r in table.rows if isinstance(r.op, Signal)])
    return direct | np.eye(table.ranks, dtype=np.bool_)


def _hearing(table: Table, flags: str, signals: list[Row]) -> Array:
    """(rank, source): whether in each call the rank waits for a flag that the source signals by one of these."""
    width, found = table.width(flags), np.zeros((table.ranks, table.ranks), dtype=np.bool_)
    awaited = np.zeros((table.ranks, width), dtype=np.bool_)
    for row in table.rows:
        if isinstance(row.op, Await) and row.op.flags == flags and not row.op.back and not row.by_data:
            wait = Sent.of(table, row)
            _mark(awaited, wait.on, wait.flag, [*wait.taken, *wait.inside(table, width)])
    for row in signals if awaited.any() else ():
        if isinstance(row.op, Signal) and row.op.flags == flags and not row.by_data:
            sent = Sent.of(table, row)
            met = awaited[within(sent.on, table.ranks - 1), within(sent.flag, width - 1)]
            _mark(found, sent.on, sent.rank, [*sent.taken, *sent.inside(table, width), met])
    return found


def _mark(table: Array, row: Array, column: Array, conditions: list[Array]) -> None:
    """Say True of rows and columns for which the conditions hold together anywhere."""
    where = projected(conditions, depends(row, column))
    row, column, found = np.broadcast_arrays(row, column, together(np.logical_and, where))
    table[row[found], column[found]] = True


def _credited(table: Table, calls: int) -> bool:
    """Whether before all else every rank waits until all have begun the call behind the one that used its memory."""
    for row in table.rows:
        if not isinstance(row.op, Await) or row.op.flags != ENTERED or row.op.back >= calls:
            continue
        others = {e.name for e in table.lowered.executors} - {row.executor.name}
        if row.by_data or any(row.executor.name not in table.ended[e] for e in others):
            continue
        asked, wait = np.zeros((table.ranks, table.ranks), dtype=np.bool_), Sent.of(table, row)
        _mark(asked, wait.on, wait.flag, [*wait.taken, *wait.inside(table, table.ranks)])
        if asked.all():
            return True
    return False


# ------------------------------------------------------------------------------------------------ what belongs to callers
def _away(runs: Runs) -> Array:
    """Where an access would be one of another rank's memory."""
    assert isinstance(runs.row.op, Read | Write)
    return runs(runs.row.op.rank) != runs.values["rank"]


def _in_the_call(table: Table, order: Order, buffer: Buffer, runs: Runs) -> Iterator[Found]:
    """The one whose memory it is has begun its call, and ends it behind the access."""
    row, rank = runs.row, runs.values["rank"]
    assert isinstance(row.op, Read | Write)
    whose = runs(row.op.rank)
    away = [*runs.taken, rank != whose]
    if left := unsettled(away, _begun(table, order, runs, whose)):
        at, other = _first(rank, whose, left)
        moment = Moment.first(table, row, [rank == at, whose == other])
        yield Found(f"of rank {other} is touched before that rank has begun the call", buffer.name, (row,), (moment,))
    if left := unsettled(away, ([c[rank, within(whose, table.ranks - 1)]] for c in _left(table, row))):
        at, other = _first(rank, whose, left)
        moment = Moment.first(table, row, [rank == at, whose == other], late=True)
        yield Found(f"of rank {other} may still be touched when its call has ended", buffer.name, (row,), (moment,))


def _begun(table: Table, order: Order, runs: Runs, whose: Array) -> Iterator[list[Array]]:
    """Where the access comes behind a signal of the one whose memory it is."""
    for h in order.signals(runs.row, Await):
        assert isinstance(h.op, Await)
        if not h.by_data or runs.row.by_data:
            beside, width = Beside.of(runs, h), table.width(h.op.flags)
            mine, other = (x.reshape(x.shape + (1,) * (beside.depth - x.ndim)) for x in (runs.values["rank"], whose))
            index = beside(h.op.index)
            known = [(index >= 0) & (index < width), *beside.conditions]
            known.append(contains(_sources(table, h.op.flags), (mine * width + index) * table.ranks + other))
            known = projected(known, {*range(len(runs.shape))})
            yield [c.reshape(c.shape[: len(runs.shape)]) for c in known]


def _first(rank: Array, whose: Array, left: list[Array]) -> tuple[int, int]:
    """The first ranks of which all conditions hold."""
    rank, whose, found = np.broadcast_arrays(
        rank, whose, together(np.logical_and, projected(left, depends(rank, whose)))
    )
    return int(rank[found][0]), int(whose[found][0])


def _sources(table: Table, flags: str) -> Array:
    """Sorted keys (rank, flag, who signals it)."""
    width, keys = table.width(flags), [np.zeros(0, dtype=np.int64)]
    for row in table.rows:
        if isinstance(row.op, Signal) and row.op.flags == flags and not row.by_data:
            sent = Sent.of(table, row)
            key = (sent.on * width + sent.flag) * table.ranks + sent.rank
            where = projected([*sent.taken, *sent.inside(table, width)], depends(key))
            key, found = np.broadcast_arrays(key, together(np.logical_and, where))
            keys.append(key[found])
    return np.unique(np.concatenate(keys))


def contains(sorted_keys: Array, keys: Array) -> Array:
    if not len(sorted_keys):
        return np.zeros(keys.shape, dtype=np.bool_)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[at] == keys


def _left(table: Table, row: Row) -> Iterator[Array]:
    """(rank, other): whether the other hears, before its call ends, that the executor of an access has ended on the rank."""
    behind = {e for e, ended in table.ended.items() if row.executor.name in ended}
    told = [r for r in table.rows if isinstance(r.op, Signal) and r.executor.name in behind]
    for flags in sorted((f.name for f in table.lowered.flags), key=table.width):
        yield _hearing(table, flags, told).T
