"""Operators wired and placed at random on few ranks: what the proof and the oracle look at.

A tensor may have several readers, a program several inputs that peers bring or several outputs, an operator several results
and other operators inside it. Steps are placed by what their programs are, so the same placer takes operators of the library.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.plans import plan_of, wiring_of
from tests.mapping.shelf import columns, double, local, patient, rowwise
from tests.operators.language import elsewhere, matmul_rs, ring_gather, scatter_dma
from tilelink import Operator, by_panels, copy_engine, fused, library, operator, ops, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Tiles, walk
from tilelink.ir.schedule import Fused, Library, Placement, Sms
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping.libraries import unsuitable
from tilelink.ops.all_reduce import spread
from tilelink.ops.all_reduce_one_shot import exchange
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather, keep, keep_parts, matmul, outer, reduce, scatter, share
from tilelink.ops.ulysses import to_heads, to_sequence


# ------------------------------------------------------------------------------------------------------------- programs
@tilelink.program("M/R ... -> M ...")
def pinned(shard: Any, rows: Any) -> None:
    """A gather that runs on a copy engine and nowhere else."""
    tile = tl.tile_id(rows)
    tl.rank_wait(shard, tile)
    tl.rank_copy_data(rows, tile, source=shard)
    tl.rank_notify(rows, tile)


@tilelink.program("M N, M N -> M N")
def both(a: Any, b: Any, out: Any) -> None:
    """Waits for two tensors, each in its own way."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(a, (m, n))
    tl.consumer_tile_wait(b, m)
    tl.tile_store(out, (m, n), tl.tile_load(a, (m, n)) + tl.tile_load(b, (m, n)))
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N, M N")
def twins(rows: Any, one: Any, other: Any) -> None:
    """Makes two tensors."""
    m, n = tl.tile_id(one)
    tl.consumer_tile_wait(rows, (m, n))
    value = tl.tile_load(rows, (m, n))
    tl.tile_store(one, (m, n), value)
    tl.producer_tile_notify(one, (m, n))
    tl.tile_store(other, (m, n), value * 2)
    tl.producer_tile_notify(other, m)


@tilelink.program("M N, N K -> M K")
def awaited(rows: Any, weight: Any, out: Any) -> None:
    """A matmul that waits for both, tile by tile."""
    m, k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for n in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(rows, (m, n))
        tl.consumer_tile_wait(weight, (n, k))
        acc = tl.dot(tl.tile_load(rows, (m, n)), tl.tile_load(weight, (n, k)), acc)
    tl.tile_store(out, (m, k), acc)
    tl.producer_tile_notify(out, (m, k))


@tilelink.program("M/R N, T N, T N -> M/R N")
def look(q: Any, keys: Any, values: Any, out: Any, *, causal: bool) -> None:
    """Of own rows, over the keys up to their own place, or all."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(q, (m, n))
    acc = tl.tile_load(q, (m, n))
    for t in tl.tiles(keys, axis=0, stop=tl.tile_end(out, m) if causal else tl.size(keys, 0)):
        tl.consumer_tile_wait(keys, (t, n))
        tl.consumer_tile_wait(values, (t, n))
        acc += tl.sum(tl.tile_load(keys, (t, n)) * tl.tile_load(values, (t, n)), 0)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


# --------------------------------------------------------------------------------------------------------------- pieces
@dataclass(frozen=True)
class Piece:
    """`takes`, `gives`: what is of each rank's own rows (`split`) or columns (`cols`), of `whole` matrices of M by N, a `square`
    of N by N, `parts` that all ranks have for this one, `slices` that all have; nobody may wait for what is `untold`."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    make: Callable[..., Any]


def _ring(x: Any, *, name: str) -> Any:
    return ring(x, tilelink.symmetric("R/R M N", like=x), name=name)


def _exchange(x: Any, *, name: str) -> Any:
    return exchange(x, tilelink.symmetric("R M N", like=x), name=name)


def _spread(x: Any, *, name: str) -> Any:
    return spread(x, tilelink.symmetric("M/R N", M=x.size("M"), like=x), name=name)


def _epilogue(x: Any, weight: Any, *, name: str) -> Any:
    return matmul_rs(x, weight, tilelink.symmetric("R M/R N", like=x), name=name)[1]


def _together(x: Any, y: Any, *, name: str) -> Any:
    return both(gather(x, name=f"{name}_x"), gather(y, name=f"{name}_y"), name=name)


def _reduced(x: Any, weight: Any, *, name: str) -> Any:
    return reduce(scatter(matmul(x, weight, name=name), name=f"{name}_scatter"), name=f"{name}_reduce")


def _causal(q: Any, keys: Any, values: Any, *, name: str) -> Any:
    return look(q, keys, values, causal=True, name=name)


def _seeing(q: Any, keys: Any, values: Any, *, name: str) -> Any:
    return look(q, keys, values, causal=False, name=name)


ONE = {"double": double, "patient": patient, "rowwise": rowwise, "exchange": _exchange, "keep": keep}
PIECES: dict[str, Piece] = {
    **{name: Piece(("split",), ("whole",), f) for name, f in {"gather": gather, "pinned": pinned, "around": ring_gather}.items()},
    **{name: Piece(("whole",), ("whole",), f) for name, f in ONE.items()},
    "columns": Piece(("cols",), ("whole",), columns),
    "to_heads": Piece(("split",), ("cols",), to_heads),
    "to_sequence": Piece(("cols",), ("split",), to_sequence),
    "local": Piece(("split",), ("split",), local),
    "elsewhere": Piece(("split",), ("split",), elsewhere("m, k -> m // 4 % R")),
    "matmul": Piece(("whole", "weight"), ("whole",), matmul),
    "awaited": Piece(("whole", "square"), ("whole",), awaited),
    "both": Piece(("whole", "whole"), ("whole",), both),
    "twins": Piece(("whole",), ("whole", "whole"), twins),
    "outer": Piece(("whole", "whole"), ("square",), outer),
    "causal": Piece(("split", "whole", "whole"), ("split",), _causal),
    "seeing": Piece(("split", "whole", "whole"), ("split",), _seeing),
    "scatter": Piece(("whole",), ("parts",), scatter),
    "scatter_dma": Piece(("whole",), ("parts",), scatter_dma),
    "share": Piece(("whole",), ("slices",), share),
    "sum": Piece(("parts",), ("split",), reduce),
    "total": Piece(("slices",), ("whole",), reduce),
    "spread": Piece(("parts",), ("whole",), _spread),
    "ring": Piece(("whole",), ("split",), _ring),
    "epilogue": Piece(("whole", "weight"), ("untold",), _epilogue),
    "together": Piece(("split", "split"), ("whole",), _together),
    "reduced": Piece(("whole", "weight"), ("split",), _reduced),
    "inside": Piece(("split", "weight"), ("whole",), ops.ag_gemm),
    "again": Piece(("whole",), ("whole",), ops.all_reduce_two_shot),
}  # fmt: skip
GIVEN = ("split", "split", "whole", "weight")
"""Of the arguments, in order."""
Recipe = tuple[tuple[str, tuple[int, ...]], ...]
"""Pieces, each with the numbers of what it takes: arguments first, then what pieces give, in order."""


def recipe_of(rng: random.Random) -> Recipe:
    kinds, made = [*GIVEN], list[tuple[str, tuple[int, ...]]]()
    for _ in range(rng.randint(1, 4)):
        fit = [name for name, piece in PIECES.items() if set(piece.takes) <= set(kinds)]
        # What takes something that a piece has made makes graphs; pieces of arguments alone are many.
        later = [name for name in fit if any(k in kinds[len(GIVEN) :] for k in PIECES[name].takes)]
        name = rng.choice(later if later and rng.random() < 0.8 else fit)
        found = tuple(_one_of(rng, [i for i, k in enumerate(kinds) if k == kind]) for kind in PIECES[name].takes)
        made.append((name, found))
        kinds += PIECES[name].gives
    taken = {i for _, inputs in made for i in inputs}
    for i, kind in enumerate(kinds[len(GIVEN) :], len(GIVEN)):
        # Peers cannot reach results.
        if i not in taken and kind != "untold" and rng.random() < 0.7:
            made.append(("keep_parts" if kind in ("parts", "slices") else "keep", (i,)))
    return tuple(made)


def _one_of(rng: random.Random, found: list[int]) -> int:
    """More often what was made last."""
    return found[-1] if rng.random() < 0.5 else rng.choice(found)


def wired(recipe: Recipe) -> Operator:
    """What nobody takes is a result."""

    def body(*arguments: Any) -> Any:
        values, taken = list(arguments), set[int]()
        for k, (name, inputs) in enumerate(recipe):
            given = (keep_parts if name == "keep_parts" else PIECES[name].make)(
                *(values[i] for i in inputs), name=f"{name}_{k}"
            )
            values += given if isinstance(given, tuple) else (given,)
            taken |= {*inputs}
        return tuple(v for i, v in enumerate(values) if i >= len(arguments) and i not in taken)

    def call(x: Any, y: Any, z: Any, weight: Any) -> Any:
        return body(x, y, z, weight)

    return operator("M/R N, M/R N, M N, N N", name="graph")(call)


# ----------------------------------------------------------------------------------------------------------- placements
ORDERS: list[Any] = [
    "row", "column", "ring", "ring+1", "ring+1", "ring+1", "ring+2", ("ring", "group 2"), ("ring+1", "group 2"), "group 2",
    ("ring", lambda tile, rank, ranks: -tile[0]), ("row", lambda tile, rank, ranks: (tile[-1] + rank) % (ranks + 1)),
]  # fmt: skip


def placed(rng: random.Random, wiring: Wiring, tile: int) -> dict[str, Placement]:
    """Each step in a way that its program can run."""
    found: dict[str, Placement] = {}
    for step in wiring.steps:
        hosts = [m for m in dict.fromkeys(_makers(step, wiring)) if isinstance(found.get(m), Sms)]
        if step.program.copy_program is not None:
            found[step.path] = _moving(rng, step, tile, hosts, kept=step.moved_to in wiring.results)
        else:
            leads = [path for path, p in found.items() if isinstance(p, Sms) and _leads(p, wiring, path)]
            found[step.path] = _computing(rng, step, tile, hosts, leads)
    for p in [*found.values()]:
        host = found.get(p.into) if isinstance(p, Fused) and p.deferred is not False else None
        if isinstance(p, Fused) and isinstance(host, Sms) and rng.random() < 0.7:
            found[p.into] = replace(host, order=("ring+1",))  # own rows last: what comes behind is of them
    return found


def _makers(step: Step, wiring: Wiring) -> list[str]:
    """Who computes what a step takes, also where it is moved in between."""
    found = [p for t in step.takes for p in wiring.producers(t) if p is not step]
    return [path for p in found for path in ([p.path] if p.program.copy_program is None else _makers(p, wiring))]


def _leads(p: Sms, wiring: Wiring, path: str) -> bool:
    moves = next(s for s in wiring.steps if s.path == path).program.copy_program is not None
    return not moves and p.count is None and p.joins is None and not p.own_kernel


def _moving(rng: random.Random, step: Step, tile: int, hosts: list[str], *, kept: bool) -> Placement:
    """`kept`: it makes a result, which peers cannot reach."""
    assert step.program.copy_program is not None
    size: dict[str, Any] = {d: tile * rng.choice([1, 1, 2, 3]) for d in _dims(step)[:1]} if rng.random() < 0.8 else {}
    if step.program.copy_program.pinned:
        return copy_engine(streams=rng.choice([1, 1, 2]), **size)
    kind = rng.choice(["sms", "sms", "engine", "engine", *(["fused"] * 2 if hosts and not kept else [])])
    push = False if kept else rng.choice([None, None, True, False])
    if kind == "fused":
        return fused(rng.choice(hosts))
    if kind == "engine":
        return copy_engine(push=push, streams=rng.choice([1, 1, 2]), **size)
    order = rng.choice(["row", "ring", "ring+1"])
    return sms(rng.choice([None, 2, 2]), order=order, push=push, own_kernel=rng.random() < 0.15, **size)


def _computing(rng: random.Random, step: Step, tile: int, hosts: list[str], leads: list[str]) -> Placement:
    kind = rng.random()
    if hosts and kind < 0.35:
        pieces: dict[str, Any] = dict.fromkeys(_dims(step)[-1:], tile // 2) if tile > 1 and rng.random() < 0.2 else {}
        return fused(rng.choice(hosts), deferred=rng.choice([False, None, True]), **pieces)
    if kind < 0.6 and (called := _called(rng, step, tile)) is not None:
        return called
    size: dict[str, Any] = {d: tile * rng.choice([1, 1, 1, 2]) for d in _dims(step)}
    order = rng.choice(ORDERS)
    if leads and kind > 0.75:
        return sms(order=order, joins=leads[-1], **size)
    own = kind > 0.7
    return sms(rng.choice([2, 4]) if own else rng.choice([None, None, 4]), order=order, own_kernel=own, **size)


def _called(rng: random.Random, step: Step, tile: int) -> Library | None:
    """In a library function, of whole tiles or by panels; None: neither way."""
    size: dict[str, Any] = {d: rng.choice([tile, tile + 1]) for d in _dims(step) if rng.random() < 0.7}
    for made in (library("torch.mm", streams=rng.choice([1, 2]), **size), library(_by_runs, **size)):
        if unsuitable(step, made) is None:
            return made
    return None


@by_panels(merge=lambda parts, *, out: None)
def _by_runs(*_inputs: Any, at: Any) -> Any:
    """Nothing: plans are not run here."""


def _dims(step: Step) -> list[str]:
    """The axes that a program tiles, and walks in tiles."""
    view = step.binding(step.program.domain).view
    walked = [step.binding(o.param).view[o.axis] for o in walk(step.program.body) if isinstance(o, Tiles)]
    named = len(step.program.param(step.program.domain).shape.axes)
    return [*dict.fromkeys(v.dim for v in (*view[:named], *walked) if not v.unit)]


@tilelink.program("R/R M N, R M/R N")
def hand_out(x: Any, inbox: Any) -> None:
    """Computes, and pushes by itself what it has computed."""
    s, m, n = tl.tile_id(x)
    tl.consumer_tile_wait(x, (s, m, n))
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)) * 2)
    tl.producer_tile_notify(inbox, (s, m, n))


@operator("R/R M N -> M/R N", name="pushed_sum")
def pushed_sum(x: Any) -> Any:
    inbox = tilelink.symmetric("R M/R N", like=x)
    hand_out(x, inbox)
    return reduce(inbox)


# ---------------------------------------------------------------------------------------------------------------- plans
LIBRARY: dict[str, tuple[Operator, dict[str, int]]] = {
    "gemm_rs": (ops.gemm_rs, {"M": 9, "K": 2, "N": 3}),
    "ag_attention": (ops.ag_attention, {"S": 7, "h": 2, "g": 1, "D": 2}),
    "ring_attention": (ops.ring_attention, {"S": 5, "h": 2, "g": 1, "D": 2}),
    "pushed_sum": (pushed_sum, {"M": 7, "N": 3}),
    "all_to_all": (ops.all_to_all, {"M": 6}),
    "all_reduce_two_shot": (ops.all_reduce_two_shot, {"M": 5, "N": 3}),
    "all_reduce_ring": (ops.all_reduce_ring, {"M": 5, "N": 3}),
    "gemm_ar_two_shot": (ops.gemm_ar_two_shot, {"M": 5, "K": 2, "N": 3}),
    "ulysses": (ops.ulysses, {"S": 5, "H": 4}),
}

OFTEN = [*sorted(LIBRARY), *["gemm_rs"] * 2]
"""Few plans else have tiles behind their host's."""


def _rows(rng: random.Random, ranks: int, tile: int) -> int:
    """Often so many that each tile is of one rank, and more: then own parts can be read in place."""
    return ranks * tile * rng.choice([1, 2]) if ranks * tile < 9 and rng.random() < 0.4 else rng.randint(1, 9)


def sound_plan(rng: random.Random) -> tuple[str, Plan] | None:
    """A plan as the planner makes it, and what it is of; None: the planner refuses the schedule."""
    ranks, tile, slots = rng.randint(1, 4), rng.choice([1, 2, 2, 4]), rng.choice([1, 2, 2, 3])
    if rng.random() < 0.25:
        name = rng.choice(OFTEN)
        op, sizes = LIBRARY[name]
        sizes = {n: rng.randint(1, size) if n in ("M", "S") else size for n, size in sizes.items()}
    else:
        recipe = recipe_of(rng)
        name, op, sizes = (
            " ".join(p for p, _ in recipe),
            wired(recipe),
            {"M": _rows(rng, ranks, tile), "N": rng.randint(1, 4)},
        )
    wiring = wiring_of(op, ranks, sizes)
    schedule = placed(rng, wiring, tile)
    in_place = rng.random() < 0.3
    channels = {rng.choice(wiring.tensors).name: tile * 3} if rng.random() < 0.1 else None
    try:
        plan = plan_of(op, ranks, sizes, slots=slots, channels=channels, in_place=in_place, **schedule)
    except TilelinkError as error:
        if not error.code.startswith(REFUSED):
            raise
        return None
    shown = "x".join(str(n) for n in sizes.values())
    return f"{name} on {ranks} ranks, {shown}, tile {tile}, {slots} slots", plan


REFUSED = ("TL3", "TL606")
"""What the planner may say: that a schedule cannot be, or that it cannot count who hears of a tile that others pull whole."""
