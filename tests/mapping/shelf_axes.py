"""Operators of two axes of ranks, wired and placed at random on few ranks: what the proof and the oracle look at."""

from __future__ import annotations

import random
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.plans import plan_along
from tests.mapping.shelf import double, patient
from tilelink import Operator, copy_engine, fused, operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather, reduce, scatter

WHOLE: dict[str, Any] = {"double": double, "patient": patient}
ORDERS = ["row", "column", "ring", "ring+1", ("ring", "group 2")]


@tilelink.program("M N/R -> M N", name="columns")
def columns(shard: Any, rows: Any) -> None:
    m, n = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, (m, n))
    tl.tile_pull_data(rows, (m, n), source=shard)
    tl.producer_tile_notify(rows, (m, n))


def recipe_of(rng: random.Random) -> tuple[str, ...]:
    """`x` is split by rows along A and by columns along B; each piece leaves it otherwise."""
    rows, cols = True, True
    out: list[str] = []
    for _ in range(rng.randint(2, 4)):
        along: list[str] = ["gather"] if rows else [rng.choice(["scatter", "ring"]), *WHOLE]
        piece = rng.choice([*along, *(["columns"] if cols else []), along[0]])
        rows = piece in ("scatter", "ring") or (rows and piece != "gather")
        cols = cols and piece != "columns"
        out.append(str(piece))
    return tuple(out)


def wired(recipe: tuple[str, ...]) -> Operator:
    def body(x: Any) -> Any:
        value = x
        cols = "N/B"
        for k, piece in enumerate(recipe):
            name = f"{piece}_{k}"
            if piece == "gather":
                value = gather(value, name=name)
            elif piece == "columns":
                value, cols = columns(value, name=name), "N"
            elif piece == "scatter":
                value = reduce(scatter(value, name=name, over="A"), name=f"reduce_{k}")
            elif piece == "ring":
                inbox = tilelink.symmetric(f"A/A M {cols}", like=value)
                value = ring(value, inbox, name=name, over="A")
            else:
                value = WHOLE[piece](value, name=name)
        return value

    return operator("M/A N/B", axes="A B", name="wired")(body)


def placed(rng: random.Random, recipe: tuple[str, ...], tile: int) -> dict[str, Placement]:
    found: dict[str, Placement] = {}
    before: str | None = None
    for k, piece in enumerate(recipe):
        name = f"{piece}_{k}"
        computed = sms(4 if piece == "ring" else None, M=tile * rng.choice([1, 2]), N=tile, order=rng.choice(ORDERS))
        if piece in ("gather", "scatter", "columns"):
            found[name] = _moving(rng, tile, before)
        else:
            found[name] = computed
        if piece == "scatter":
            found[f"reduce_{k}"] = fused(before) if before and rng.random() < 0.4 else sms(M=tile, N=tile)
        before = name if piece in WHOLE else None
    return found


def _moving(rng: random.Random, tile: int, host: str | None) -> Placement:
    kind, push = (
        rng.choice(["sms", "sms", "engine", *(["fused"] if host else [])]),
        rng.choice([None, True, True, False]),
    )
    if kind == "fused" and host:
        return fused(host)
    if kind == "sms":
        own = rng.random() < 0.2
        return sms(
            2, M=tile * rng.choice([1, 2]), order=rng.choice(["row", "ring", "ring+1"]), push=push, own_kernel=own
        )
    return copy_engine(M=tile * rng.choice([1, 2]), push=push)


def sound_plan(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    axes = {"A": rng.randint(1, 3), "B": rng.randint(1, 2)}
    tile, slots = rng.choice([1, 2]), rng.choice([1, 2, 2])
    rows, cols = rng.randint(1, 4 * axes["A"]), rng.randint(1, 6)
    recipe = recipe_of(rng)
    in_place = rng.random() < 0.3
    scheduled = wired(recipe).schedule(placed(rng, recipe, tile), slots=slots)
    try:
        plan = plan_along(scheduled, axes, {"M": rows, "N": cols}, in_place=in_place)
    except TilelinkError as error:
        if error.code not in REFUSED:
            raise
        return None
    return f"{' '.join(recipe)} on {axes}, {rows}x{cols}, tile {tile}, {slots} slots", plan


REFUSED = ("TL305", "TL307", "TL312", "TL316", "TL321", "TL331", "TL332", "TL334")
"""What the planner may say: a result that others write, a copy that is no run, engines at odds, steps of two axes, a pull of
what others push."""
