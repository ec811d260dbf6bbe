"""Operators of two axes of ranks, wired and placed at random on few ranks: what the proof and the oracle look at."""

from __future__ import annotations

import random
from typing import Any

import tilelink
from tests.mapping.plans import plan_along, wiring_of
from tests.mapping.shelf import columns, double, patient
from tests.mapping.shelf_graphs import REFUSED, placed
from tilelink import Operator, operator
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather, reduce, scatter

WHOLE: dict[str, Any] = {"double": double, "patient": patient}


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


def sound_plan(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    axes = {"A": rng.randint(1, 3), "B": rng.randint(1, 2)}
    tile, slots = rng.choice([1, 2]), rng.choice([1, 2, 2])
    rows, cols = rng.randint(1, 4 * axes["A"]), rng.randint(1, 6)
    recipe, sizes = recipe_of(rng), {"M": rows, "N": cols}
    in_place, op = rng.random() < 0.3, wired(recipe)
    wiring = wiring_of(op, axes["A"] * axes["B"], sizes, axes)
    try:
        plan = plan_along(op.schedule(placed(rng, wiring, tile), slots=slots), axes, sizes, in_place=in_place)
    except TilelinkError as error:
        if not error.code.startswith(REFUSED):
            raise
        return None
    return f"{' '.join(recipe)} on {axes}, {rows}x{cols}, tile {tile}, {slots} slots", plan
