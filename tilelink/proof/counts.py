"""Each flag is signalled as often in a call as whoever awaits it expects, by an engine that can, and where it is heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import ENTERED, Await, Flags, Signal
from tilelink.ir.shape import RANK_AXIS
from tilelink.ir.verdict import REPORT
from tilelink.proof.cells import depends, within
from tilelink.proof.runs import Found, Moment, Runs, picked, possible, projected, together
from tilelink.proof.table import Array, Row, Table, along, once


def miscounted(table: Table) -> Iterator[Found]:
    for flags in table.lowered.flags:
        rows = [r for r in table.rows if isinstance(r.op, Await | Signal) and r.op.flags == flags.name]
        yield from _of(table, flags, rows)


def _of(table: Table, flags: Flags, rows: list[Row]) -> Iterator[Found]:
    count = table.each(flags.count)
    width = int(count.max(initial=0))
    numbers = np.arange(width, dtype=np.int64)[None, :]
    there = numbers < count[:, None]
    signals = [r for r in rows if isinstance(r.op, Signal)]
    yield from _unfit(table, flags, there, rows)
    for row in signals:
        yield from _unable(table, flags, row)
        if row.by_data and isinstance(row.op, Signal) and row.op.amount is not None:
            yield Found(f"`{flags.name}` is signalled or not as data decides", (row,))
        if len(signals) > 1 and isinstance(row.op, Signal) and row.op.amount is None:
            yield Found(f"`{flags.name}` is signalled by the last of some tiles, and by others", (row, *signals))
    if not width or any(r.by_data or (isinstance(r.op, Signal) and r.op.amount is None) for r in signals):
        return  # data says how often, or the device counts
    made = np.zeros((table.ranks, width), dtype=np.int64)
    for row in signals:
        assert isinstance(row.op, Signal)
        sent = Sent.of(table, row)
        for known in sent.inside:
            if possible([*sent.taken, ~known]):
                where = together(np.logical_and, [*sent.taken, ~known])
                *meant, where = np.broadcast_arrays(sent.on, sent.flag, where)
                rank, number = (int(x[where][0]) for x in meant)
                moment = _touching(table, row, rank, number)
                yield Found(f"`{flags.name}` has no flag {number} on rank {rank}", (row,), (moment,))
                return
        made += sent.often() * int(F.evaluate(row.op.amount if row.op.amount is not None else 1, {}))
    if flags.style == "doorbell" or flags.rings is not None:
        yield from _rung(table, flags, made, rows)
    if flags.arrivals is None:
        awaited = _awaited(table, flags, rows)
        if (made > 1).any():
            yield _at(table, "is signalled twice, and set by each signal", flags, made > 1, rows)
        if ((awaited > 0) & (made == 0)).any():
            yield _at(table, "is awaited, and never signalled", flags, (awaited > 0) & (made == 0), rows)
        return
    wanted = np.broadcast_to(table.by_flag(flags, flags.arrivals), made.shape)
    if (wrong := there & (made != wanted)).any():
        rank, number = np.argwhere(wrong)[0]
        times = f"is signalled {int(made[rank, number])} times, and expects {int(wanted[rank, number])}"
        yield _at(table, times, flags, wrong, rows)


def _unfit(table: Table, flags: Flags, there: Array, rows: list[Row]) -> Iterator[Found]:
    """A flag of a style that cannot say what it is to say."""
    if flags.name == ENTERED and flags.style != "epoch":
        yield Found(f"`{flags.name}` does not say which call has begun", tuple(rows))
    arrivals = flags.arrivals if flags.style in ("epoch", "data") else None
    if arrivals is not None and (there & (table.by_flag(flags, arrivals) != 1)).any():
        yield Found(f"`{flags.name}` is set, and expects to be counted", tuple(rows))
    elsewhere = [r for r in rows if r.executor.engine.by != "kernel"]
    if flags.style == "data" and elsewhere:
        yield Found(f"`{flags.name}` travels beside data, which only workers see", tuple(elsewhere))


def _rung(table: Table, flags: Flags, made: Array, rows: list[Row]) -> Iterator[Found]:
    """Each doorbell that is rung is waited for once, and no other."""
    waits = [r for r in rows if isinstance(r.op, Await) and (r.op.doorbell or flags.style == "doorbell")]
    if not waits:
        return
    rung = made > 0 if flags.rings is None else (made > 0) & (table.by_flag(flags, flags.rings) != 0)
    awaited = _awaited(table, flags, waits)
    if (awaited > 1).any():
        awaited = _tiles_awaiting(table, made.shape[1], waits)
    if not (wrong := awaited != rung).any():
        return
    rank, number = (int(k) for k in np.argwhere(wrong)[0])
    times = int(awaited[rank, number])
    often = {0: "never", 1: "once", 2: "twice"}.get(times, f"{times} times")
    yield Found(
        f"a copy engine waits {often} for flag {number} of `{flags.name}`"
        + ("" if times != 1 else ", which nobody rings"),
        tuple(sorted(rows, key=lambda r: r not in waits)),
        tuple(_touching(table, r, rank, number, last=last) for r in waits for last in (False, True)[: min(times, 2)]),
        code="TL605",
        why="a doorbell is rung once and reset by the first wait: the next one would never end",
        hint=f"let the tile of `{table.path(waits[0])}` be a multiple of the tile that is signalled",
    )


def _tiles_awaiting(table: Table, width: int, waits: list[Row]) -> Array:
    """(rank, flag): how many tiles wait for each. One that does so twice has heard of it."""
    out = np.zeros((table.ranks, width), dtype=np.int64)
    for loop in {id(r.loop): r.loop for r in waits}.values():
        found: list[Array] = []
        for row in (r for r in waits if r.loop is loop):
            sent, runs = Sent.of(table, row), Runs.of(table, row)
            tile = [runs.along(axis)[..., None] for axis in range(1, 1 + len(loop.axes))]
            found.append(np.stack(picked(sent.there, sent.rank, *tile, sent.flag)))
        rank, *_, flag = np.unique(np.concatenate(found, axis=1), axis=1)
        np.add.at(out, (rank, flag), 1)
    return out


def _unable(table: Table, flags: Flags, row: Row) -> Iterator[Found]:
    """A stream sets a flag to the number of the call, and cannot add; what workers see of their own GPU no peer hears."""
    if not row.executor.engine.adds and flags.style in ("count", "doorbell"):
        what = f"`{flags.name}` is signalled by a stream, which cannot add"
        yield Found(what, (row,), (Moment.first(table, row),))
    if flags.scope != "sys":
        sent = Sent.of(table, row)
        away = [] if row.executor.engine.by == "stream" else [sent.on != sent.rank]
        if possible([*sent.taken, *away]):
            waits = [r for r in table.rows if isinstance(r.op, Await) and r.op.flags == flags.name]
            shown = [Moment.first(table, row, away)]
            yield Found(
                f"the signals of `{flags.name}` reach no further than one GPU",
                (row, *waits),
                (*shown, *(Moment.first(table, r) for r in waits[:1])),
                code="TL612",
                why="another rank or a copy engine gives them: an acquire of GPU scope does not make its data readable",
                hint=REPORT,
            )


def _awaited(table: Table, flags: Flags, rows: Sequence[Row]) -> Array:
    """How often each flag is awaited in its own call, as far as no data decides it."""
    out = np.zeros((table.ranks, table.width(flags.name)), dtype=np.int64)
    for wait in surely(table, Await, flags.name, rows):
        out += wait.often()
    return out


def surely(table: Table, kind: type[Await | Signal], flags: str, rows: Sequence[Row] | None = None) -> Iterator[Sent]:
    """The awaits, or the signals, of a kind of flags, of all rows or of these; none that data may leave out."""
    for row in table.rows if rows is None else rows:
        if isinstance(row.op, kind) and row.op.flags == flags and row.tells and not row.by_data:
            yield Sent.of(table, row)


@dataclass(frozen=True, slots=True)
class Sent:
    """On which rank and about which flag an await or signal is, from which rank, and where it is executed; an axis behind
    those of its loop are the ranks of a signal to all. `inside`: conditions that there is such a flag, of which a rank has at
    most `width`."""

    on: Array
    flag: Array
    rank: Array
    taken: list[Array]
    inside: list[Array]
    shape: tuple[int, ...]
    ranks: int
    width: int

    @staticmethod
    @once
    def of(table: Table, row: Row) -> Sent:
        assert isinstance(row.op, Await | Signal)
        runs, width = Runs.of(table, row), table.width(row.op.flags)
        rank, flag = runs.values["rank"][..., None], runs(row.op.index)[..., None]
        on = rank if isinstance(row.op, Await) else _ranks(table, runs, row.op)
        taken = [c[..., None] for c in runs.taken]
        inside = [(x >= 0) & (x < n) for x, n in ((on, table.ranks), (flag, width))]
        inside = [c for c in inside if not c.all()]
        return Sent(on, flag, rank, taken, inside, (*runs.shape, on.shape[-1]), table.ranks, width)

    @property
    def there(self) -> list[Array]:
        """Where it is executed, about a flag that there is."""
        return [*self.taken, *self.inside]

    @property
    def key(self) -> Array:
        """The number of the flag among those of all ranks; flags that do not exist are taken for their neighbours."""
        return self.on * self.width + within(self.flag, self.width - 1)

    def often(self) -> Array:
        """(rank, flag): how often each is meant."""
        key = self.key
        axes = depends(key)
        times = projected(self.taken, axes, counted=True)
        every = prod(n for k, n in enumerate(self.shape) if k not in axes | depends(*self.taken))
        if times:
            key, times = np.broadcast_arrays(key, together(np.multiply, times))
            found = np.bincount(key[times > 0], times[times > 0], self.ranks * self.width)
        else:
            found = np.bincount(key.ravel(), minlength=self.ranks * self.width)
        return found.reshape(self.ranks, self.width).astype(np.int64, copy=False) * every


def _ranks(table: Table, runs: Runs, op: Signal) -> Array:
    """The ranks that a signal goes to; of a signal to all, those of each rank's submesh, along an axis behind the others."""
    if op.rank is not None:
        return runs(op.rank)[..., None]
    depth, topology = len(runs.shape), table.lowered.topology
    each = along(topology.size(op.along), depth, depth + 1)
    return each if op.along == RANK_AXIS else topology.peer(runs.values["rank"][..., None], each, op.along)


def _at(table: Table, what: str, flags: Flags, where: Array, rows: list[Row]) -> Found:
    """Signals first, in the order of the text."""
    rank, number = (int(k) for k in np.argwhere(where)[0])
    ordered = sorted(rows, key=lambda r: isinstance(r.op, Await))
    moments = [_touching(table, r, rank, number) for r in ordered]
    looped = any(r.around for r in rows if isinstance(r.op, Signal))
    hint = "notify once per tile, behind the loop" if looped else REPORT
    what = f"flag {number} of `{flags.name}` on rank {rank} {what}"
    return Found(what, tuple(ordered), tuple(moments), hint=hint)


def _touching(table: Table, row: Row, rank: int, flag: int, *, last: bool = False) -> Moment | None:
    """When an op is about a flag of a rank."""
    sent = Sent.of(table, row)
    return Moment.first(table, row, [sent.on == rank, sent.flag == flag], last=last)
