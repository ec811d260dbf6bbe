"""Operators that wait inside loops over tiles: each flag is awaited where the loop first needs it."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather, outer


@tilelink.program("M K -> K")
def column_sums(rows: Any, out: Any) -> None:
    """The loop's tiles and the producer's are cut differently."""
    k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, m)
        acc += tl.sum(tl.tile_load(rows, (m, k)).to(tl.float32), 0)
    tl.tile_store(out, k, acc)


@tilelink.program("S/R K, M K -> S/R K")
def between(own: Any, rows: Any, out: Any, *, back: int) -> None:
    """For each of this rank's rows: itself and the sum of `rows` from its tile's begin less `back` to its tile's end."""
    s, k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    begin = tl.tile_begin(out, s)
    for m in tl.tiles(rows, axis=0, start=begin - back, stop=tl.tile_end(out, s)):
        tl.consumer_tile_wait(rows, (m, k))
        acc += tl.sum(tl.tile_load(rows, (m, k)).to(tl.float32), 0)[None, :]
    tl.tile_store(out, (s, k), acc + tl.tile_load(own, (s, k)))


@tilelink.program("S/R K, M K, M K -> S/R K")
def between_both(own: Any, rows: Any, others: Any, out: Any) -> None:
    """For each of this rank's rows: itself and the sums of `rows` and of `others` from the first to its tile's end."""
    s, k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0, stop=tl.tile_end(out, s)):
        tl.consumer_tile_wait(rows, (m, k))
        tl.consumer_tile_wait(others, (m, k))
        acc += tl.sum(tl.tile_load(rows, (m, k)) + tl.tile_load(others, (m, k)), 0)[None, :]
    tl.tile_store(out, (s, k), acc + tl.tile_load(own, (s, k)))


@tilelink.program("S/R K, M K -> S/R K")
def banded(own: Any, rows: Any, out: Any, *, back: int, ahead: int, first: int) -> None:
    """For each of this rank's rows: its number of neighbours among `rows` from `first` on, and their sum."""
    s, k = tl.tile_id(out)
    at = tl.tile_range(out, s)
    acc, count = tl.zeros(tl.tile_shape(out), tl.float32), tl.zeros([at.shape[0]], tl.int32)
    for m in tl.tiles(rows, axis=0, start=first):
        tl.consumer_tile_wait(rows, (m, k))
        near = tl.tile_mask(rows, m, start=at - back if back >= 0 else None, stop=at + ahead)
        count += tl.sum(tl.reshape(near.to(tl.int32), [at.shape[0], tl.tile_range(rows, m).shape[0]]), 1)
        acc += tl.sum(tl.where(near[:, :, None], tl.tile_load(rows, (m, k)).to(tl.float32)[None, :, :], 0), 1)
    tl.tile_store(out, (s, k), acc + count[:, None] + 0 * tl.tile_load(own, (s, k)))


@tilelink.program("S/R K, M K -> S/R K")
def ever_fewer(own: Any, rows: Any, out: Any, *, ahead: int) -> None:
    """For each of this rank's rows: the sum of `rows` before `ahead`, by a limit that moves on with tiles of at most 64."""
    s, k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, (m, k))
        limit = tl.minimum(tl.tile_begin(rows, m) + 64, ahead)
        near = tl.tile_mask(rows, m, stop=limit)
        acc += tl.sum(tl.where(near[:, :, None], tl.tile_load(rows, (m, k)).to(tl.float32)[None, :, :], 0), 1)
    tl.tile_store(out, (s, k), acc + 0 * tl.tile_load(own, (s, k)))


@tilelink.program("M K -> K")
def after_all(rows: Any, out: Any) -> None:
    """A loop that waits and does nothing else, then the sums."""
    k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, m)
    for m in tl.tiles(rows, axis=0):
        acc += tl.sum(tl.tile_load(rows, (m, k)).to(tl.float32), 0)
    tl.tile_store(out, k, acc)


@tilelink.program("M K -> K")
def guarded(rows: Any, out: Any) -> None:
    """The first rows, where there are peers; tiles that need no mask have a loop of their own."""
    k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        if tl.num_ranks() > 1:
            tl.consumer_tile_wait(rows, m)
            first = tl.trans(tl.tile_mask(rows, m, stop=13))
            acc += tl.sum(tl.where(first, tl.tile_load(rows, (m, k)).to(tl.float32), 0), 0)
    tl.tile_store(out, k, acc)


@tilelink.program("M K -> c K")
def in_parts(rows: Any, out: Any) -> None:
    """The sum of part `c` of the rows."""
    c, k = tl.tile_id(out)
    acc = tl.zeros([tl.tile_range(out, k).shape[0]], tl.float32)
    for m in tl.tiles(rows, axis=0, part=(c, tl.size(out, 0))):
        tl.consumer_tile_wait(rows, (m, k))
        acc += tl.sum(tl.tile_load(rows, (m, k)).to(tl.float32), 0)
    tl.tile_store(out, (c, k), acc)


@tilelink.program("M K -> M K")
def doubled(x: Any, out: Any) -> None:
    m, k = tl.tile_id(out)
    tl.tile_store(out, (m, k), 2 * tl.tile_load(x, (m, k)))
    tl.producer_tile_notify(out, (m, k))


@tilelink.operator("M/R K -> K")
def sums(x: Any) -> Any:
    return column_sums(gather(x))


@tilelink.operator("M/R K -> K")
def sums_after_all(x: Any, *, gathered: bool = True) -> Any:
    """Of all rows, or of this rank's own, for which there is nothing to wait."""
    return after_all(gather(x) if gathered else x)


@tilelink.operator("M/R K -> K")
def sums_of_first(x: Any) -> Any:
    return guarded(gather(x))


@tilelink.operator("M/R K, M/R N -> K N")
def gradient(x: Any, y: Any) -> Any:
    """`all_gather(x).T @ all_gather(y)`: the operands arrive in tiles of different sizes."""
    return outer(gather(x, name="gather_x"), gather(y, name="gather_y"))


@tilelink.operator("M/R K -> M/R K")
def window(x: Any, *, back: int = 0) -> Any:
    return between(x, gather(x), back=back)


@tilelink.operator("M/R K -> M/R K")
def window_of_two(x: Any) -> Any:
    return between_both(x, gather(x, name="gather_rows"), gather(x, name="gather_others"))


@tilelink.operator("M/R K -> M/R K")
def bands(x: Any, *, back: int, ahead: int, first: int = 0) -> Any:
    return banded(x, gather(x), back=back, ahead=ahead, first=first)


@tilelink.operator("M/R K -> M/R K")
def fewer(x: Any, *, ahead: int) -> Any:
    return ever_fewer(x, gather(x), ahead=ahead)


@tilelink.operator("M/R K -> c K")
def parts(x: Any, *, pieces: int = 3) -> Any:
    return in_parts(gather(x), c=pieces)


@tilelink.operator("M/R K -> K")
def own_sums(x: Any) -> Any:
    """Of this rank's rows alone: positions count from its part's begin."""
    return column_sums(doubled(x))
