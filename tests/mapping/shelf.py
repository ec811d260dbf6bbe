"""Chains of tile programs wired at random, placed at random, on few ranks: what the proof and the oracle look at."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.plans import forms, plan_of
from tilelink import Operator, copy_engine, fused, operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import CopyEngine, Fused, Placement
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather, matmul, reduce, scatter

ORDERS = ["row", "column", "ring", "ring+1", "ring+2", ("ring", "group 2"), ("ring+1", "group 2"), "group 2"]


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


@tilelink.program("M K, K N -> M N")
def looping(rows: Any, weight: Any, out: Any) -> None:
    """A matmul that waits in its loop, for the tile that comes next."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(rows, (m, k))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M/R N -> M/R N")
def local(rows: Any, out: Any) -> None:
    """Of a rank's own rows."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) * 2)
    tl.producer_tile_notify(out, (m, n))


PRODUCTS = {"matmul": matmul, "looping": looping}
WHOLE = {"double": double, "patient": patient, "rowwise": rowwise}
TO_SPLIT = ["scatter", "ring"]
PIECES = {"gather", "local", *PRODUCTS, *WHOLE, *TO_SPLIT}


def wired(recipe: tuple[str, ...]) -> Operator:
    """`x` is split by rows; each piece of the recipe gathers, computes, or hands rows back to their owners."""

    def body(x: Any, weight: Any) -> Any:
        value = x
        for k, piece in enumerate(recipe):
            name = f"{piece}_{k}"
            if piece == "gather":
                value = gather(value, name=name)
            elif piece in PRODUCTS:
                value = PRODUCTS[piece](value, weight, name=name)
            elif piece == "scatter":
                value = reduce(scatter(value, name=name), name=f"reduce_{k}")
            elif piece == "ring":
                value = ring(value, tilelink.symmetric("R/R M N", like=value), name=name)
            elif piece == "local":
                value = local(value, name=name)
            else:
                value = WHOLE[piece](value, name=name)
        return value

    split = recipe[-1] in ("scatter", "ring", "local")
    return operator(f"M/R N, N N -> {'M/R N' if split else 'M N'}", name="wired")(body)


def recipe_of(rng: random.Random) -> tuple[str, ...]:
    whole, out = False, list[str]()
    for _ in range(rng.randint(1, 4)):
        piece = rng.choice([*PRODUCTS, *WHOLE, *TO_SPLIT, *TO_SPLIT] if whole else ["gather", "gather", "local"])
        whole = piece not in (*TO_SPLIT, "local") if piece != "gather" else True
        out.append(piece)
    return tuple(out)


def placed(rng: random.Random, recipe: tuple[str, ...], tile: int) -> dict[str, Placement]:
    found: dict[str, Placement] = {}
    before: str | None = None
    for k, piece in enumerate(recipe):
        name = f"{piece}_{k}"
        if piece == "gather":
            found[name] = _moving(rng, tile, None)
        elif piece == "scatter":
            found[name] = _moving(rng, tile, before)
            if k and isinstance(found.get(f"gather_{k - 1}"), CopyEngine) and isinstance(found[name], CopyEngine):
                return placed(rng, recipe, tile)  # from one copy engine to the next: cannot be planned
            columns: dict[str, Any] = {"N": tile // 2} if tile > 1 and rng.random() < 0.5 else {}
            found[f"reduce_{k}"] = fused(before, **columns) if before and rng.random() < 0.5 else sms(M=tile, N=tile)
        else:
            stuck = before is not None and rng.random() < 0.3 and piece in ("ring", "double")
            assert before is not None or not stuck
            found[name] = fused(before) if stuck and before else _computing(rng, piece, tile)
        before = name if piece in (*PRODUCTS, *WHOLE) and not isinstance(found[name], type(fused("x"))) else None
    return found


def _computing(rng: random.Random, piece: str, tile: int) -> Placement:
    size = rng.choice([tile, tile, tile, 2 * tile])
    count: int | None = 4 if piece == "ring" else None
    depth: dict[str, Any] = {"K": tile} if piece in PRODUCTS else {}
    return sms(count, M=size, N=size, order=rng.choice(ORDERS), **depth)


def _moving(rng: random.Random, tile: int, host: str | None) -> Placement:
    size = tile * rng.choice([1, 1, 2, 3])
    kind = rng.choice(["sms", "sms", "engine", *(["fused"] if host else [])])
    if kind == "fused" and host:
        return fused(host)
    if kind == "sms":
        order, push = rng.choice(["row", "ring", "ring+1"]), rng.choice([True, False])
        return sms(2, M=size, order=order, push=push, own_kernel=rng.random() < 0.2)
    push = rng.choice([None, True, False])
    if rng.random() < 0.2:
        return copy_engine(push=push, streams=rng.choice([1, 2]))
    return replace(copy_engine(M=size, push=push), streams=rng.choice([1, 1, 2]))


def sound_plan(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    ranks, rows, columns = rng.randint(1, 4), rng.randint(1, 13), rng.randint(1, 6)
    tile, slots = rng.choice([1, 2, 2, 4]), rng.choice([1, 2, 2, 3])
    if rng.random() < 0.4:
        name = rng.choice(sorted(forms()))
        op, placements = forms(tile)[name]
        if rng.random() < 0.5:
            placements = {n: replace(p, deferred=None) if isinstance(p, Fused) else p for n, p in placements.items()}
        sizes = {"M": rows, "K": 3, "N": columns}
    else:
        recipe = recipe_of(rng)
        name, op, placements = " ".join(recipe), wired(recipe), placed(rng, recipe, tile)
        sizes = {"M": rows, "N": columns}
    in_place = rng.random() < 0.3
    moved = [n for n, p in placements.items() if n.split("_")[0] in ("gather", "scatter")]
    channels = {"rows": tile * 3} if moved and rng.random() < 0.1 else None
    try:
        plan = plan_of(op, ranks, sizes, slots=slots, channels=channels, in_place=in_place, **placements)
    except TilelinkError as error:
        if error.code not in REFUSED:
            raise
        return None
    return f"{name} on {ranks} ranks, {rows}x{columns}, tile {tile}, {slots} slots", plan


REFUSED = ("TL305", "TL311", "TL321", "TL325", "TL334")
"""What the planner may say: a result that others write, flags for no tensor, engines at odds, pieces that others wait for, a
pull of what others push."""
