"""What holds between calls: nobody writes memory that another call still uses, or touches a peer's arguments outside its call.

Calls may follow one another with other sizes, so each has to promise on its own: all ranks are told of its begin before
anything else, and it ends when all that it has begun has ended. Who has been heard in a call has left the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilelink.errors import Note
from tilelink.ir.lowered import ENTERED, STATES, Await, Buffer, Read, Signal, Write
from tilelink.ir.shape import RANK_AXIS
from tilelink.proof.cells import within
from tilelink.proof.counts import Sent, surely
from tilelink.proof.coverage import accesses
from tilelink.proof.order import awaits_before
from tilelink.proof.runs import Found, Moment, Runs, own_axes, picked, possible, projected, unsettled
from tilelink.proof.table import Array, Row, Table


def unfinished(table: Table) -> Iterator[Found]:
    """Executors that run ahead of the call, or behind its end."""
    over = set(table.lowered.ends).union(*(table.ended[e] for e in table.lowered.ends))
    names = [e.name for e in table.lowered.executors]
    for e in table.lowered.executors:
        if names.count(e.name) > 1:
            yield Found(f"`{e.name}` is started twice in a call")
        if e.name not in over:
            yield Found(f"`{e.name}` may still run when the call has ended")
    if not table.lowered.flags:
        return
    told = [r for r in table.rows if isinstance(r.op, Signal) and r.op.flags == ENTERED]
    sent = [
        Sent.of(table, r) for r in told if isinstance(r.op, Signal) and r.op.rank is None and r.op.along == RANK_AXIS
    ]
    # Each rank tells all others, by the flag of its own number.
    if len(told) != 1 or not sent or possible([*sent[0].taken, sent[0].flag != sent[0].rank]):
        yield Found(f"`{ENTERED}` is not told to all ranks once", tuple(told))
        return
    first = told[0].executor.name
    for e in table.lowered.executors:
        if e.name != first and first not in table.ended[e.name]:
            yield Found(f"`{e.name}` runs ahead of the call")


def unfree(table: Table) -> Iterator[Found]:
    """Memory that is written again while a call that has used it before may not be over; arguments of peers that are touched
    before their call has begun, or after it has ended."""
    shared: list[tuple[int, str]] = []
    for buffer, rows in accesses(table):
        away = [runs for runs in (Runs.of(table, r) for r in rows) if _away(runs)]
        if buffer.space in ("argument", "result"):
            for runs in away:
                yield from _in_the_call(table, buffer, runs)
        elif away or buffer.space == "symmetric":  # in a call of other sizes a peer may have touched it
            shared.append((turn(table, buffer), buffer.name))
    for row in table.rows:
        if isinstance(row.op, Signal) and row.op.flags not in STATES:  # no two calls share those of the call itself
            sent = Sent.of(table, row)
            if possible([*sent.taken, sent.on != sent.rank]):
                shared.append((table.lowered.slots, row.op.flags))
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
        yield Found(what, rows, moments, why=why, loc=loc, notes=(Note("a rank without rows signals nothing", None),))


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


def turn(table: Table, buffer: Buffer) -> int:
    """After so many calls a buffer's memory is used again, where the slots of a call are counted up to its own number."""
    slots = table.lowered.slots
    return min(slots, buffer.slots) if buffer.slots >= slots or slots % buffer.slots == 0 else 1


def heard(table: Table) -> Array:
    """(rank, source): whether in each call the rank waits for something that the source does in it."""
    found = np.eye(table.ranks, dtype=np.bool_)
    for flags in sorted((f.name for f in table.lowered.flags), key=table.width):
        if not found.all():
            found |= hearing(table, flags)
    return found


def hearing(table: Table, flags: str, by: Sequence[Row] | None = None) -> Array:
    """The same by one kind of flags, if they are named by these signals. What data decides may not happen."""
    found = np.eye(table.ranks, dtype=np.bool_)
    awaited = np.zeros((table.ranks, table.width(flags)), dtype=np.bool_)
    for wait in surely(table, Await, flags):
        awaited[tuple(picked(wait.there, wait.on, wait.flag))] = True
    for sent in surely(table, Signal, flags, by) if awaited.any() else ():
        met = awaited.take(sent.key, mode="clip")
        found[tuple(picked([*sent.there, met], sent.on, sent.rank))] = True
    return found


def _credited(table: Table, calls: int) -> bool:
    """Whether before all else every rank waits until all have begun the call behind the one that used its memory."""
    for row in table.rows:
        if not isinstance(row.op, Await) or row.op.flags != ENTERED or row.op.back >= calls:
            continue
        others = {e.name for e in table.lowered.executors} - {row.executor.name}
        if row.by_data or any(row.executor.name not in table.ended[e] for e in others):
            continue
        if Sent.of(table, row).often().all():
            return True
    return False


# ------------------------------------------------------------------------------------------------ what belongs to callers
def _away(runs: Runs) -> bool:
    """Whether any access is one of another rank's memory."""
    assert isinstance(runs.row.op, Read | Write)
    return possible([*runs.taken, runs(runs.row.op.rank) != runs.values["rank"]])


def _in_the_call(table: Table, buffer: Buffer, runs: Runs) -> Iterator[Found]:
    """The one whose memory it is has begun its call, and ends it behind the access."""
    row, rank = runs.row, runs.values["rank"]
    assert isinstance(row.op, Read | Write)
    whose = runs(row.op.rank)
    away = [*runs.taken, rank != whose]
    behind = ([c[rank, within(whose, table.ranks - 1)]] for c in _left(table, row))
    for reasons, what, late in (
        (_begun(table, runs, whose), "is touched before that rank has begun the call", False),
        (behind, "may still be touched when its call has ended", True),
    ):
        if left := unsettled(away, reasons):
            at, other = (int(x[0]) for x in picked(left, rank, whose))
            moment = Moment.first(table, row, [rank == at, whose == other], late=late)
            yield Found(f"`{buffer.name}` of rank {other} {what}", (row,), (moment,))


def _begun(table: Table, runs: Runs, whose: Array) -> Iterator[list[Array]]:
    """Where the access comes behind a signal of the one whose memory it is."""
    for h in awaits_before(table, runs.row):
        assert isinstance(h.op, Await)
        if not h.by_data or runs.row.by_data:
            beside, width = runs.beside(h), table.width(h.op.flags)
            index = beside(h.op.index)
            sources, keys = _sources(table, h.op.flags), (runs.values["rank"] * width + index) * table.ranks + whose
            found = sources.take(np.searchsorted(sources, keys), mode="clip") == keys
            known = [(index >= 0) & (index < width), *beside.taken, found]
            yield projected(known, {*range(len(runs.shape))} - {*own_axes(runs.row, h)})


def _sources(table: Table, flags: str) -> Array:
    """Sorted keys (rank, flag, who signals it), behind a first that is none."""
    keys = [np.full(1, -1, dtype=np.int64)]
    for sent in surely(table, Signal, flags):
        keys += picked(sent.there, sent.key * table.ranks + sent.rank)
    return np.unique(np.concatenate(keys))


def _left(table: Table, row: Row) -> Iterator[Array]:
    """(rank, other): whether the other hears, before its call ends, that the executor of an access has ended on the rank."""
    behind = {e for e, ended in table.ended.items() if row.executor.name in ended}
    told = [r for r in table.rows if isinstance(r.op, Signal) and r.executor.name in behind]
    for flags in sorted((f.name for f in table.lowered.flags), key=table.width):
        yield hearing(table, flags, told).T
