"""Each flag is signalled as often in a call as whoever awaits it expects, by an engine that can, and where it is heard."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import Await, Flags, Signal
from tilelink.ir.shape import RANK_AXIS
from tilelink.proof.coverage import Found
from tilelink.proof.table import Array, Row, Table


def miscounted(table: Table) -> Iterator[Found]:
    rows: dict[str, list[Row]] = {f.name: [] for f in table.lowered.flags}
    for row in table.rows:
        if isinstance(row.op, Await | Signal):
            rows[row.op.flags].append(row)
    for flags in table.lowered.flags:
        yield from _of(table, flags, rows[flags.name])


def _of(table: Table, flags: Flags, rows: list[Row]) -> Iterator[Found]:
    count = np.broadcast_to(table.each(flags.count), (table.ranks,))
    width = int(count.max(initial=0))
    numbers = np.arange(width, dtype=np.int64)[None, :]
    there = numbers < count[:, None]
    signals = [r for r in rows if isinstance(r.op, Signal)]
    for row in signals:
        yield from _unable(table, flags, row)
    if not width or any(r.by_data or (isinstance(r.op, Signal) and r.op.amount is None) for r in signals):
        return  # data says how often, or the device counts
    made = np.zeros((table.ranks, width), dtype=np.int64)
    for row in signals:
        outside = _add(table, made, row)
        if outside:
            yield Found(f"has no flag {outside[1]}", flags.name, (row,), outside[0])
            return
    awaited = _awaited(table, width, rows)
    if flags.arrivals is None:
        if (made > 1).any():
            yield _at("is signalled twice, and set by each signal", flags, made > 1, rows)
        if ((awaited > 0) & (made == 0)).any():
            yield _at("is awaited, and never signalled", flags, (awaited > 0) & (made == 0), rows)
        return
    wanted = np.broadcast_to(table.each(flags.arrivals, flag=numbers), (table.ranks, width))
    if (there & (made != wanted)).any():
        yield _at(f"is signalled {_times(made, wanted, there)}", flags, there & (made != wanted), rows)
    if flags.style == "doorbell" and (wrong := there & (awaited != (made > 0))).any():
        rank, number = (int(k) for k in np.argwhere(wrong)[0])
        times = int(awaited[rank, number])
        often = "never" if times == 0 else "twice" if times == 2 else f"{times} times"
        yield Found(
            f"a copy engine waits {often} for one flag of `{flags.name}`",
            "",
            tuple(sorted(rows, key=lambda r: isinstance(r.op, Signal))),
            rank,
            code="TL605",
            why="a doorbell is rung once and reset by the first wait: the next one would never end",
            hint="let the tile of who waits be a multiple of the tile that is signalled",
        )


def _unable(table: Table, flags: Flags, row: Row) -> Iterator[Found]:
    """A stream sets a flag to the number of the call, and cannot add; what workers see of their own GPU no peer hears."""
    if row.executor.engine == "stream" and flags.style in ("count", "doorbell"):
        yield Found("is signalled by a stream, which cannot add", flags.name, (row,))
    if flags.scope != "sys":
        away = [executed(row, rank, np.asarray(0)) for rank in ranks_of(table, row)]
        if row.executor.engine == "stream" or any((taken & (on != row.values["rank"])).any() for on, _, taken in away):
            yield Found("is signalled from elsewhere, and heard on its own GPU alone", flags.name, (row,), code="TL612")


def _add(table: Table, made: Array, row: Row) -> tuple[int, int] | None:
    """Add a row's signals; what is signalled, and does not exist."""
    assert isinstance(row.op, Signal)
    index = row(row.op.index)
    for rank in ranks_of(table, row):
        on, flag, taken = executed(row, rank, index)
        on, flag = on[taken], flag[taken]
        wrong = (flag < 0) | (flag >= made.shape[1]) | (on < 0) | (on >= made.shape[0])
        if wrong.any():
            return int(on[wrong][0]), int(flag[wrong][0])
        np.add.at(made, (on, flag), int(F.evaluate(row.op.amount if row.op.amount is not None else 1, {})))
    return None


def _awaited(table: Table, width: int, rows: list[Row]) -> Array:
    """How often each flag is awaited in its own call, as far as no data decides it."""
    out = np.zeros((table.ranks, width), dtype=np.int64)
    for row in rows:
        if isinstance(row.op, Await) and not row.by_data and not row.op.back:
            on, flag, taken = executed(row, row.values["rank"], row(row.op.index))
            np.add.at(out, (on[taken], np.clip(flag[taken], 0, width - 1)), 1)
    return out


def _times(made: Array, wanted: Array, there: Array) -> str:
    """How often the first flag is signalled that is not signalled as often as it should be."""
    rank, number = np.argwhere(there & (made != wanted))[0]
    return f"{int(made[rank, number])} times, and expects {int(wanted[rank, number])}"


def executed(row: Row, rank: Array, index: Array) -> tuple[Array, Array, Array]:
    """Ranks, flags, and where the row is executed, in one shape."""
    on, flag, where, *taken = np.broadcast_arrays(rank, index, row.values["rank"], *row.taken)
    found = reduce(np.logical_and, taken, np.ones(where.shape, dtype=np.bool_))
    return on, flag, found


def ranks_of(table: Table, row: Row) -> list[Array]:
    """The ranks that a signal goes to, one by one: of a signal to all, those of each rank's submesh."""
    assert isinstance(row.op, Signal)
    if row.op.rank is not None:
        return [row(row.op.rank)]
    along = row.op.along
    rank = row.values["rank"]
    if along == RANK_AXIS:
        return [np.full_like(rank, k) for k in range(table.ranks)]
    stride, size = _stride(table, along)
    first = rank - rank // stride % size * stride
    return [first + k * stride for k in range(size)]


def in_line(table: Table, a: Array, b: Array, along: str) -> Array:
    """Whether ranks differ in their coordinate along a mesh dimension at most."""
    if along == RANK_AXIS:
        return np.ones(np.broadcast_shapes(a.shape, b.shape), dtype=np.bool_)
    stride, size = _stride(table, along)
    return a - a // stride % size * stride == b - b // stride % size * stride


def _stride(table: Table, along: str) -> tuple[int, int]:
    """By how much the number of a rank grows from one coordinate to the next, and how many there are."""
    sizes = dict(table.lowered.ranks)
    names = [n for n, _ in table.lowered.ranks if n != RANK_AXIS]
    return int(np.prod([sizes[n] for n in names[names.index(along) + 1 :]], dtype=np.int64)), sizes[along]


def _at(what: str, flags: Flags, where: Array, rows: list[Row], code: str = "") -> Found:
    rank, number = (int(k) for k in np.argwhere(where)[0])
    return Found(f"flag {number} of `{flags.name}` on rank {rank} {what}", "", tuple(rows), rank, code=code)
