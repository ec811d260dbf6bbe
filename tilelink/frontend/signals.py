"""What a whole program says to others: where its signals may stand, and whether it is a copy program.

Every rank must be able to count the notifies of the others without seeing their data. A copy program waits for one tile, moves it
and notifies: its engine and its direction are then the schedule's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.program import (
    At,
    CopyProgram,
    If,
    Index,
    Load,
    Loop,
    Move,
    Notify,
    OfTile,
    Op,
    Store,
    Tile,
    Tiles,
    Wait,
    walk,
)

_COUNTED = "a waiter counts notifies, and it does not see the data that this rank sees"
_COUNTED_ALIKE = "a waiter counts notifies, and counts on as many from each rank"


def check_signals(body: tuple[Op, ...]) -> None:
    """Refuses signals whose number depends on data.

    Raises:
        TilelinkError: TL160 (branch), TL161 (while), TL162 (loop).
    """
    for op in walk(body):
        if isinstance(op, If):
            _branch(op)
        elif isinstance(op, Loop) and op.target is None:
            _while(op)
        elif isinstance(op, (Loop, Tiles)):
            _loop(op)


def _branch(op: If) -> None:
    body, orelse = list(_notifies(op.body)), list(_notifies(op.orelse))
    if op.test.positional or Counter(map(_anywhere, body)) == Counter(map(_anywhere, orelse)):
        return
    known = {_anywhere(n) for n in orelse}
    odd = next((n for n in body if _anywhere(n) not in known), None) or (orelse or body)[0]
    hint = "notify outside the `if`, or on both paths alike"
    if op.test.formula is not None:  # of numbers of ranks, which `tl.rank()` and `tl.num_ranks()` give
        message, why = f"a notify of `{odd.param}` on one path only, chosen by the rank", _COUNTED_ALIKE
        note = Note("this is another on each rank", op.loc)
    else:
        message, why = f"a notify of `{odd.param}` on one path only, chosen by data", _COUNTED
        note = Note(f"`{op.test}` depends on loaded values", op.loc)
    raise TilelinkError("TL160", message, loc=odd.loc, why=why, hint=hint, notes=(note,))


def _anywhere(notify: Notify) -> Notify:
    """A notify without its place in the file."""
    return replace(notify, loc=Loc("", 0))


def _while(op: Loop) -> None:
    signal = next((o for o in walk(op.body) if isinstance(o, (Notify, Wait))), None)
    if signal is not None:
        word = "notify" if isinstance(signal, Notify) else "wait"
        why = "nobody can tell how often a `while` goes round, so nobody can count its signals"
        hint = "use `for ... in range(...)` or `tl.tiles(...)`, or signal outside the loop"
        raise TilelinkError("TL161", f"a {word} in a `while`", loc=signal.loc, why=why, hint=hint)


def _loop(op: Loop | Tiles) -> None:
    limits = (op.header,) if isinstance(op, Loop) else (op.start, op.stop, *(op.part or ()))
    data = next((e for e in limits if e is not None and not e.positional), None)
    notify = next(_notifies(op.body), None)
    if data is not None and notify is not None:
        message, hint = f"a notify of `{notify.param}` in a loop whose length is data", "notify once, after the loop"
        note = Note(f"`{data}` depends on loaded values", op.loc)
        raise TilelinkError("TL162", message, loc=notify.loc, why=_COUNTED, hint=hint, notes=(note,))


def _notifies(body: tuple[Op, ...]) -> Iterator[Notify]:
    return (op for op in walk(body) if isinstance(op, Notify))


# ------------------------------------------------------------------------------------------------------------- copy programs
def recognise(body: tuple[Op, ...]) -> CopyProgram | None:
    """The copy program that a program is, or None if it computes.

    Raises:
        TilelinkError: TL163 if `rank_*` stands in a program that is none, TL164 if a pull does.
    """
    copy_program = _copy_program(body)
    if copy_program is not None:
        return copy_program
    pinned = next((op for op in walk(body) if isinstance(op, (Wait, Notify, Move)) and op.by == "stream"), None)
    if pinned is not None:
        message = "`rank_*` in a program that is more than one copy of one tile"
        why = "a copy engine waits for a tile, copies it and notifies; it cannot compute"
        hint = (
            "write `tl.rank_wait(src, tile)`, `tl.rank_copy_data(dst, tile, source=src)`, `tl.rank_notify(dst, tile)`"
        )
        raise TilelinkError("TL163", message, loc=pinned.loc, why=why, hint=hint)
    pull = next((op for op in walk(body) if isinstance(op, Move)), None)
    if pull is not None:
        source, to = pull.source, pull.param
        wait, notify = f"`tl.consumer_tile_wait({source}, tile)`", f"`tl.producer_tile_notify({to}, tile)`"
        there = {(type(op), op.param) for op in walk(body) if isinstance(op, (Wait, Notify))}
        missing = [call for call, has in ((wait, (Wait, source)), (notify, (Notify, to))) if has not in there]
        message = "a pull in a program that is not the copy program of one tile"
        why = f"such a program runs for tiles of `{to}`: it waits for one, pulls it, notifies, and does nothing besides"
        if missing:
            why += f"; this one lacks {' and '.join(missing)}"
        hint = f"write {wait}, `tl.tile_pull_data({to}, tile, source={source})`, {notify}, and all else in a program of its own"
        raise TilelinkError("TL164", message, loc=pull.loc, why=why, hint=hint)
    return None


def _copy_program(body: tuple[Op, ...]) -> CopyProgram | None:
    match body:
        case Tile() as tile, Wait(peer=None) as wait, Move() as move, Notify(peer=None) as notify:
            source, to, moved, engine, pulled = move.source, move.param, (move.index,), move.by, True
        case (
            Tile() as tile,
            Wait(peer=None) as wait,
            Load(other=None) as load,
            Store(to="holders", mask=None) as store,
            Notify(peer=None) as notify,
        ) if store.value.text == load.name:
            source, to, moved, engine, pulled = load.param, store.param, (load.index, store.index), "worker", False
        case _:
            return None
    pull = tile.param == to
    if (wait.param, notify.param) != (source, to) or tile.param not in (source, to):
        return None
    if not wait.by == notify.by == engine or not all(_is_tile(tile, i) for i in (wait.index, notify.index, *moved)):
        return None
    if engine == "worker" and pull != pulled:
        # Pulling at the source's tiles, or pushing at the destination's: legal, but not the normal form.
        return None
    return CopyProgram(source, to, pull, pinned=engine == "stream")


def _is_tile(tile: Tile, index: Index | None) -> bool:
    """The index is the program's own tile, entry by entry."""
    if index is None or len(index) != len(tile.names):
        return False
    said = [e.var if isinstance(e, OfTile) else e.expr.text if isinstance(e, At) else "" for e in index]
    return said == list(tile.names)
