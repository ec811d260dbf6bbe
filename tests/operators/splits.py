"""Operators whose rows are split at run time, and which are read while they are still being made."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import move


@tilelink.program("P H, e+1 i32, e H N -> P/start N")
def scaled(x: Any, start: Any, weight: Any, out: Any) -> None:
    """The rows of each segment through the segment's own weight."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(x, axis=1):
        acc = tl.dot(tl.tile_load(x, (p, k)), tl.tile_load(weight, (e, k, n)), acc)
    tl.tile_store(out, (p, n), acc)
    tl.producer_tile_notify(out, (p, n))


@tilelink.program("P N, T i32 -> T N")
def picked(rows: Any, at: Any, out: Any) -> None:
    """Row `at[t]` of `rows`; -1: nothing."""
    t, n = tl.tile_id(out)
    where = tl.tile_load(at, t, other=-1)
    tl.consumer_tile_wait(rows, (where, n))
    tl.tile_store(out, (t, n), tl.tile_load(rows, (where, n)))


@tilelink.program("P N, T i32 -> T N")
def picked_whole(rows: Any, at: Any, out: Any) -> None:
    """The same, waiting for all of it."""
    t, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows)
    tl.tile_store(out, (t, n), tl.tile_load(rows, (tl.tile_load(at, t, other=-1), n)))


copied = tilelink.program("M ... -> M ...", name="copied")(move)


@tilelink.operator("P H, e+1 i32 offsets, e H N, T i32 -> T N")
def route(x: Any, start: Any, weight: Any, at: Any) -> Any:
    return picked(scaled(x, start, weight), at)


@tilelink.operator("P H, e+1 i32 offsets, e H N, T i32 -> T N")
def route_whole(x: Any, start: Any, weight: Any, at: Any) -> Any:
    return picked_whole(scaled(x, start, weight), at)


@tilelink.operator("P H, e+1 i32 offsets, e H N, T i32 -> T N")
def route_copies(x: Any, start: Any, weight: Any, at: Any) -> Any:
    return picked_whole(copied(scaled(x, start, weight)), at)


sent = tilelink.program("R/R M ... -> R M ...", name="sent")(move)


@tilelink.program("s M N, T i32 -> T N")
def picked_of_all(rows: Any, at: Any, out: Any) -> None:
    t, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows)
    tl.tile_store(out, (t, n), tl.tile_load(rows, (0, tl.tile_load(at, t, other=-1), n)))


@tilelink.operator("P H, e+1 i32 offsets, e H N, T i32 -> T N")
def route_everywhere(x: Any, start: Any, weight: Any, at: Any) -> Any:
    return picked_of_all(sent(scaled(x, start, weight)), at)
