"""Recognises movements: programs that wait for one tile, move it and notify. Engine and direction are then the schedule's."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir.program import (
    At,
    Index,
    Load,
    Move,
    Movement,
    Notify,
    OfTile,
    Op,
    Store,
    Tile,
    Wait,
    walk,
)


def recognise(body: tuple[Op, ...]) -> Movement | None:
    """The movement that a program is, or None if it computes.

    Raises:
        TilelinkError: TL163 if `rank_*` stands in a program that is none, TL164 if a pull does.
    """
    movement = _movement(body)
    if movement is not None:
        return movement
    pinned = next((op for op in walk(body) if _by_stream(op)), None)
    if pinned is not None:
        raise TilelinkError(
            "TL163",
            "`rank_*` in a program that is more than one copy of one tile",
            loc=pinned.loc,
            why="a copy engine waits for a tile, copies it and notifies; it cannot compute",
            hint="write `tl.rank_wait(src, tile)`, `tl.rank_copy_data(dst, tile, source=src)`, `tl.rank_notify(dst, tile)`",
        )
    pull = next((op for op in walk(body) if isinstance(op, Move)), None)
    if pull is not None:
        source, to = pull.source, pull.param
        raise TilelinkError(
            "TL164",
            "a pull in a program that is not the movement of one tile",
            loc=pull.loc,
            why=f"such a program runs for tiles of `{to}`: it waits for one, pulls it, notifies, and does nothing besides",
            hint=f"write `tl.consumer_tile_wait({source}, tile)`, `tl.tile_pull_data({to}, tile, source={source})`, "
            f"`tl.producer_tile_notify({to}, tile)`, and all else in a program of its own",
        )
    return None


def _by_stream(op: Op) -> bool:
    return isinstance(op, (Wait, Notify, Move)) and op.by == "stream"


def _movement(body: tuple[Op, ...]) -> Movement | None:
    if len(body) not in (4, 5):
        return None
    tile, wait, notify, middle = body[0], body[1], body[-1], body[2:-1]
    if not (isinstance(tile, Tile) and isinstance(wait, Wait) and isinstance(notify, Notify)):
        return None
    moved = _moved(middle) or _pushed(middle)
    if moved is None or wait.peer is not None or notify.peer is not None:
        return None
    source, destination, indices, engine = moved
    pull = tile.param == destination
    if (wait.param, notify.param) != (source, destination) or tile.param not in (source, destination):
        return None
    if wait.by != engine or notify.by != engine:
        return None
    if not all(_is_tile(tile, index) for index in (wait.index, notify.index, *indices)):
        return None
    written_as_pull = isinstance(middle[0], Move) and engine == "worker"
    if engine == "worker" and pull != written_as_pull:
        # Pulling at the source's tiles, or pushing at the destination's: legal, but not the normal form.
        return None
    return Movement(source, destination, pull, pinned=engine == "stream")


def _moved(middle: tuple[Op, ...]) -> tuple[str, str, tuple[Index, ...], str] | None:
    if len(middle) == 1 and isinstance(op := middle[0], Move):
        return op.source, op.param, (op.index,), op.by
    return None


def _pushed(middle: tuple[Op, ...]) -> tuple[str, str, tuple[Index, ...], str] | None:
    if len(middle) != 2:
        return None
    load, store = middle
    if not (isinstance(load, Load) and isinstance(store, Store) and store.to == "holders" and store.mask is None):
        return None
    if load.other is not None or store.value.text != load.name:
        return None
    return load.param, store.param, (load.index, store.index), "worker"


def _is_tile(tile: Tile, index: Index | None) -> bool:
    """The index is the program's own tile, entry by entry."""
    if index is None or len(index) != len(tile.names):
        return False
    return all(_same(name, entry) for name, entry in zip(tile.names, index, strict=True))


def _same(name: str | None, entry: object) -> bool:
    if isinstance(entry, OfTile):
        return entry.var == name
    return isinstance(entry, At) and entry.expr.text == name
