"""Programs whose waits and notifies do not fit what they read and write: refused on the user's line, with these words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilelink
import tilelink.language as tl
from tests.mapping.plans import plan_of
from tilelink import Operator, sms
from tilelink.errors import TilelinkError
from tilelink.frontend.program import Program
from tilelink.ir.plan import Plan
from tilelink.ir.program import Expr, If, Loop, Notify, TileProgram
from tilelink.mapping import verify
from tilelink.ops.programs import gather, matmul, scatter

SIZES = {"M": 32, "K": 32, "N": 32}


# ------------------------------------------------------------------------------------------------------------- in the matmul
@tilelink.program("M K, K N -> M N")
def no_wait(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@tilelink.program("M K, K N -> M N")
def late_wait(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    first = tl.tile_load(rows, m)
    tl.consumer_tile_wait(rows, m)
    tl.tile_store(out, (m, n), tl.dot(first, tl.tile_load(weight, n=n) if False else tl.zeros((1, 1), tl.float32)))


@tilelink.program("M K, K N -> M N")
def wait_in_one_branch(rows: Any, weight: Any, out: Any, *, careful: bool = True) -> None:
    m, n = tl.tile_id(out)
    if careful:
        tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@tilelink.program("M K, K N -> M N")
def wait_after_the_first_block(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(rows, (m, k))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    again = tl.tile_load(rows, m)
    tl.tile_store(out, (m, n), acc + tl.sum(again))


@tilelink.program("s M N -> M N")
def wait_for_one_slice(inbox: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    tl.consumer_tile_wait(inbox, (0, m, n))
    for s in tl.tiles(inbox, axis=0):
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.program("s M N -> M N")
def wait_for_the_next_slice(inbox: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        acc += tl.tile_load(inbox, (s, m, n))
        tl.consumer_tile_wait(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.program("s M N -> M N")
def wait_for_all_slices_first(inbox: Any, out: Any) -> None:
    """Right: a walk over the whole axis has waited for all of it."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m, n))
    for q in tl.tiles(inbox, axis=0):
        acc += tl.tile_load(inbox, (q, m, n))
    tl.tile_store(out, (m, n), acc)


# ----------------------------------------------------------------------------------------------------------- in who produces
@tilelink.program("M K, K N -> M N")
def notify_first(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.producer_tile_notify(out, (m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.program("M K, K N -> M N")
def store_again(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), 0.0)
    tl.producer_tile_notify(out, (m, n))
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
        tl.tile_store(out, (m, n), acc)


@tilelink.program("R/R M K, K N -> M N")
def notify_on_rank_0(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (0, m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)
    if tl.size(weight, 0) == 1:
        tl.producer_tile_notify(out, (m, n))


@tilelink.program("M K, K N -> M N")
def both_branches(rows: Any, weight: Any, out: Any, *, doubled: bool = False) -> None:
    """Right: whichever branch is taken, it is told."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    if doubled:
        tl.tile_store(out, (m, n), acc + acc)
    else:
        tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))
