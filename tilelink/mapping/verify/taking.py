"""Every tile of a step is taken once: its order is a permutation of its grid, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Binary, Formula
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.shape import rank_along
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.mistakes import REPORT

EACH = 20_000_000
"""Tiles of all ranks that may be looked at one by one."""
Turn = tuple[str, Formula, Formula, Formula]
"""(name, e, start, length) of a let `name = (e + start) % length`."""


def check_taking(plan: Plan, world: World) -> str:
    """Raises:
    TilelinkError: TL604, a tile that is taken twice or never; TL607, one that is announced piece by piece; TL606.
    """
    most = 0
    for step in plan.steps:
        if step.into is not None:
            _check_fused(world, step, plan.step(step.into))
        if step.pieces > 1:
            _check_pieces(plan, world, step)
        if step.into is None and all(g.kind != "table" for g in step.grid):
            most = max(most, _check(world, step))
    return f"each of up to {most} tiles per rank and step is taken once"


def _check_fused(world: World, step: StepPlan, host: StepPlan) -> None:
    """Each tile of the host is another tile of what is fused into it."""
    for a in world.several(host):
        if a not in step.host_axes:
            raise TilelinkError(
                "TL604",
                f"`{step.path}` takes the same tile once for each tile of `{host.path}` along `{host.grid[a].dim}`",
                loc=step.step.loc,
                why="it runs after every tile of its host, and has no such axis",
                hint="place it on SMs of its own",
            )


def _check_pieces(plan: Plan, world: World, step: StepPlan) -> None:
    """The pieces of a host's tile are its columns, each once; nobody hears of them one by one."""
    columns = step.grid[-1].tile or 0
    if step.host_axes[-1] != plan.step(step.executor).columns:
        raise TilelinkError(
            "TL604",
            f"`{step.path}` takes `{step.grid[-1].dim}` in pieces, which are not the columns of its host's tile",
            loc=step.step.loc,
            why="the host's tile is cut along its columns",
            hint="leave the pieces out",
        )
    if columns % step.pieces:
        raise TilelinkError(
            "TL604",
            f"`{step.path}` takes its host's tile of {columns} columns in {step.pieces} pieces",
            loc=step.step.loc,
            why="pieces of one length have to make the whole tile",
            hint=f"let the pieces divide {columns}",
        )
    told = next((s for s in plan.signals if s.path == step.path and s.action == "notify"), None)
    if told is not None and int(world.value(step.grid[-1].size).max()) > columns // step.pieces:
        raise TilelinkError(
            "TL607",
            f"`{step.path}` notifies for each of {step.pieces} pieces",
            loc=told.op.loc,
            why="words are counted in tiles",
            hint="leave the pieces out where others wait for the tile",
        )


def _check(world: World, step: StepPlan) -> int:
    total = world.each(world.value(step.total))
    counts = np.ones((world.ranks, 1), dtype=np.int64)
    for g in step.grid:
        counts = counts * world.value(g.count)
    if not bool((total == counts[:, 0]).all()):
        rank = int(np.argwhere(total != counts[:, 0])[0][0])
        raise _wrong(step, rank, f"takes {int(total[rank])} tiles of {int(counts[rank, 0])}")
    for rank in _ranks(world, step, total):
        _check_rank(world, step, rank)
    return int(total.max(initial=0))


def _ranks(world: World, step: StepPlan, total: Any) -> range:
    """The ranks to look at: one where all go through the same sequence, or round the same circle from elsewhere."""
    if step.sort_key is not None:
        return range(world.ranks)
    alike = bool((total == total[0]).all()) and not world.by_rank(*(g.count for g in step.grid))
    lets = (value for name, value in step.order if not _own(step, name))
    if alike and (not world.by_rank(*lets) or turn_of(step) is not None):
        return range(1)
    if int(total.sum()) > EACH:
        raise TilelinkError(
            "TL606",
            f"it cannot be shown that `{step.path}` takes each of its tiles once",
            loc=step.step.loc,
            why="every rank has an order of its own, and there are too many tiles to look at each",
            hint="use row, column, `group N`, ring or ring+N",
        )
    return range(world.ranks)


def _own(step: StepPlan, name: str) -> bool:
    return name[:1] == "i" and name[1:].isdigit() and step.grid[int(name[1:])].kind == "own"


def _check_rank(world: World, step: StepPlan, rank: int) -> None:
    env = step.turns(world.plan.env(rank))
    total = len(env["t"])
    if not total:
        return
    flat = np.zeros(total, dtype=np.int64)
    for a, g in enumerate(step.grid):
        if g.kind == "own":
            continue
        count, index = int(F.evaluate(g.count, env)), env[f"i{a}"]
        least, most = int(np.min(index)), int(np.max(index))
        if least < 0 or most >= count:
            raise _wrong(step, rank, f"takes tile {least if least < 0 else most} of {count} along `{g.dim}`")
        flat = flat * count + index
    taken = np.bincount(flat, minlength=total)
    if len(taken) != total or bool((taken != 1).any()):
        raise _wrong(step, rank, f"takes tile {int(np.argmax(taken))} {int(taken.max())} times")


def turn_of(step: StepPlan) -> Turn | None:
    """The one let through which the rank enters the order, if it only turns a circle: `(e + start) % length`."""
    by_tile, mine = {"t"}, rank_along(step.axis).name
    found: Turn | None = None
    for name, value in step.order:
        used = F.symbols(value)
        if mine in used and used & by_tile:
            if found is not None or not (isinstance(value, Binary) and value.op == "%"):
                return None
            inner, length = value.left, value.right
            if not (isinstance(inner, Binary) and inner.op == "+"):
                return None
            rank_free = not ({mine} & F.symbols(inner.left)) and not (F.symbols(length) & (by_tile | {mine}))
            if not rank_free or F.symbols(inner.right) & by_tile:
                return None
            found = name, inner.left, inner.right, length
        if used & by_tile:
            by_tile.add(name)
    return found


def _wrong(step: StepPlan, rank: int, what: str) -> TilelinkError:
    return TilelinkError(
        "TL604",
        f"`{step.path}` on rank {rank} {what}",
        loc=step.step.loc,
        why="an order names every tile of the domain once",
        hint=REPORT,
    )
