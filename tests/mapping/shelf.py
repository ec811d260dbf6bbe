"""Programs for operators that the proof and the oracle look at, and those of the library in every form, on few ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.plans import forms, plan_of
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Fused


@tilelink.program("M N -> M N")
def double(rows: Any, out: Any) -> None:
    """Waits for the tile that it reads."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) * 2)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def patient(rows: Any, out: Any) -> None:
    """Waits for everything."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows)
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) * 2)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def rowwise(rows: Any, out: Any) -> None:
    """Waits for whole rows, and says of its tile no more than which rows it is of."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) * 2)
    tl.producer_tile_notify(out, m)


@tilelink.program("M/R N -> M/R N")
def local(rows: Any, out: Any) -> None:
    """Of a rank's own rows."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) * 2)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N/R -> M N", name="columns")
def columns(shard: Any, rows: Any) -> None:
    m, n = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, (m, n))
    tl.tile_pull_data(rows, (m, n), source=shard)
    tl.producer_tile_notify(rows, (m, n))


def sound_plan(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    ranks, rows, cols = rng.randint(1, 4), rng.randint(1, 13), rng.randint(1, 6)
    tile, slots = rng.choice([1, 2, 2, 4]), rng.choice([1, 2, 2, 3])
    name = rng.choice(sorted(forms()))
    op, placements = forms(tile)[name]
    if rng.random() < 0.5:
        placements = {n: replace(p, deferred=None) if isinstance(p, Fused) else p for n, p in placements.items()}
    in_place = rng.random() < 0.3
    channels = {"rows": tile * 3} if rng.random() < 0.1 else None
    sizes = {"M": rows, "K": 3, "N": cols}
    try:
        plan = plan_of(op, ranks, sizes, slots=slots, channels=channels, in_place=in_place, **placements)
    except TilelinkError as error:
        if error.code not in REFUSED:
            raise
        return None
    return f"{name} on {ranks} ranks, {rows}x{cols}, tile {tile}, {slots} slots", plan


REFUSED = ("TL305", "TL311", "TL321", "TL325", "TL334")
"""What the planner may say: a result that others write, flags for no tensor, engines at odds, pieces that others wait for, a
pull of what others push."""
