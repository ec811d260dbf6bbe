"""What is wrong with a call, in words: what kernels report, and in debug mode which table breaks its promise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.kernel import KernelSource, Site
from tilelink.ir.partition import Channel
from tilelink.ir.plan import LL_DATA, Plan
from tilelink.ir.shape import ITEM_BYTES, evaluated, rank_along
from tilelink.mapping import raising
from tilelink.runtime.watchdog import Describe, Entry, Finding

# ---------------------------------------------------------------------------------------------------------------------
# What a kernel's report means: program, tile, channel and ranks, from the plan that the kernel was emitted from.


def describe(plan: Plan, source: KernelSource, rank: int) -> Describe:
    """Entries of the kernels of `source` in words, on rank `rank`."""

    @cache
    def tiles(path: str) -> list[tuple[tuple[int, int], ...]]:
        return plan.step(path).spans(plan.env(rank))

    def tile(site: Site, position: int) -> str:
        if position < 0:
            return ""
        step = plan.step(site.path)
        host = plan.step(step.into) if step.into is not None else step
        if any(g.table is not None for g in host.grid):
            return f"tile {position} of its order, "  # where it lies is known on the device only
        bounds = zip(host.grid, tiles(host.path)[position], strict=True)
        return f"tile [{', '.join(f'{g.dim} {lo}:{hi}' for g, (lo, hi) in bounds)}], "

    def found(entry: Entry) -> Finding:
        site = source.sites[entry.site]
        where = f"worker {entry.worker}, {tile(site, entry.tile)}"
        if site.kind in ("below", "holds"):
            where = where if entry.tile >= 0 else ""  # every worker looks at the head of a table
            what = f"has the value {entry.seen}, and there are {entry.expected} positions"
            what = what if site.kind == "below" else "does not hold"
            return Finding(f"{where}{site.of} {what}", site.path, site.loc)
        what, silent = _awaited(plan, site, entry.index, rank)
        counts = f"seen {entry.seen}, expected {entry.expected}"
        return Finding(f"{where}{what}: {counts}", site.path, site.loc, silent)

    return found


def _awaited(plan: Plan, site: Site, index: int, rank: int) -> tuple[str, tuple[int, ...]]:
    """What is waited for, and the ranks that give it."""
    if site.kind == "channel":
        channel = plan.channel(site.of)
        silent = _raised_by(plan, channel, index, rank)
        return f"channel `{channel.tensor}` flag {index}, of {_whose(silent, rank)}", silent
    if site.kind == "words":
        channel = plan.channel(site.of)
        at = _element(plan, channel.tensor, index, rank)
        silent = _stored_by(plan, channel, at, rank)
        return f"`{channel.tensor}` from [{', '.join(map(str, at.values()))}] on, of {_whose(silent, rank)}", silent
    if site.kind == "made":
        return f"tile {index} of this rank's own", (rank,)
    said = {
        "ready": f"rank {index} has not staged `{site.of}`",
        "entered": f"rank {index} has not entered the call",
        "left": f"rank {index} has not left the call",
    }
    return said[site.kind], (index,)


def _whose(silent: tuple[int, ...], rank: int) -> str:
    return " and ".join(f"rank {r}" if r != rank else "this rank" for r in silent) or "some rank"


def _element(plan: Plan, name: str, flag: int, rank: int) -> dict[int, int]:
    """The position, by axis, of the first element in a flag of the LL protocol."""
    tensor, env = plan.wiring.tensor(name), plan.env(rank)
    stored = [k for k, a in enumerate(tensor.axes) if not a.own_slice]
    extents = [int(F.evaluate(e, env)) for e in plan.buffer(name).extents]
    at = np.unravel_index(flag * (LL_DATA // ITEM_BYTES[tensor.dtype]), extents)
    # This rank's instance begins behind those of the ranks before it.
    begins = {k: rank_along(a.over) * a.part for k, a in enumerate(tensor.axes) if a.over is not None}
    return {k: int(p) + int(F.evaluate(begins.get(k, F.of(0)), env)) for k, p in zip(stored, at, strict=True)}


def _stored_by(plan: Plan, channel: Channel, at: dict[int, int], rank: int) -> tuple[int, ...]:
    """The ranks that store an element of this rank's instance; none where the plan cannot tell."""
    if any(a.axis is None for a in channel.axes):
        return ()
    indices = [a.index(at[a.axis]) for a in channel.axes if a.axis is not None]
    return _raised_by(plan, channel, int(F.evaluate(channel.flat(tuple(indices)), plan.env(rank))), rank)


def _raised_by(plan: Plan, channel: Channel, flag: int, rank: int) -> tuple[int, ...]:
    """The ranks that signal a flag, seen from the rank that waits for it; none where the plan cannot tell."""
    env = channel.at(flag, plan.env(rank))
    return tuple(dict.fromkeys(int(F.evaluate(source, env)) for source in raising(plan, channel)))


# ---------------------------------------------------------------------------------------------------------------------
# What tables passed as arguments promise, looked at before a call. What a program makes of them, and tables that programs make
# themselves, are checked where they are used, by the kernels.


def broken(plan: Plan, tensors: Sequence[torch.Tensor], constants: Mapping[str, Any]) -> TilelinkError | None:
    """TL473 for the first argument that does not keep its contract; None if all do. Waits for the device.

    Args:
        constants: those of the call, which contracts may name besides its sizes.
    """
    sizes = {**constants, **dict(plan.sizes)}
    for name, table in zip(plan.wiring.arguments, tensors, strict=True):
        decl = plan.wiring.tensor(name)
        if decl.contract is None:
            continue
        if decl.contract.of is not None:
            why = _below(table, evaluated(decl.contract.of, lambda dim: sizes[dim.name]))
        else:
            why = _offsets(plan, name, table) if decl.contract.kind == "offsets" else _permutation(table)
        if why is not None:
            return TilelinkError(
                "TL473",
                f"argument `{name}` of `{plan.wiring.name}` is no `{decl.contract}`: {why}",
                loc=plan.wiring.loc,
                why="a plan takes the contract of a table for granted",
                hint="look at what makes this table",
            )
    return None


def _offsets(plan: Plan, name: str, table: torch.Tensor) -> str | None:
    values = table.flatten().tolist()
    sizes = [a.size for t in plan.wiring.tensors for a in t.axes if a.split == name]
    most = int(F.evaluate(sizes[0], plan.env(0))) if sizes else None
    if not values or values[0] != 0:
        return f"it begins with {values[0] if values else 'nothing'}, not with 0"
    for at, (before, after) in enumerate(itertools.pairwise(values)):
        if after < before:
            return f"entry {at + 1} is {after}, after {before}"
    return (
        f"it ends with {values[-1]}, and there is room for {most}" if most is not None and values[-1] > most else None
    )


def _permutation(table: torch.Tensor) -> str | None:
    values = table.flatten()
    values = values[values != -1]
    outside = values[(values < 0) | (values >= table.numel())]
    if outside.numel():
        return f"{int(outside[0])} is not below {table.numel()}"
    times = torch.bincount(values.long(), minlength=1)
    return f"{int(times.argmax())} is there {int(times.max())} times" if int(times.max()) > 1 else None


def _below(table: torch.Tensor, most: int) -> str | None:
    outside = table[(table < -1) | (table >= most)]
    return f"{int(outside.flatten()[0])} is not below {most}" if outside.numel() else None
