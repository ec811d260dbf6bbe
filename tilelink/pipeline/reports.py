"""What a kernel's report means: program, tile, channel and ranks, from the plan that the kernel was emitted from."""

from __future__ import annotations

from functools import cache

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.kernel import KernelSource, Site
from tilelink.ir.plan import Plan
from tilelink.mapping import raising, tiles_of
from tilelink.runtime.guard import Describe, Entry, Finding


def describe(plan: Plan, source: KernelSource, rank: int) -> Describe:
    """Entries of the kernels of `source` in words, on rank `rank`."""

    @cache
    def tiles(path: str) -> list[tuple[tuple[int, int], ...]]:
        return tiles_of(plan, plan.step(path), rank)

    def tile(site: Site, position: int) -> str:
        if position < 0:
            return ""
        step = plan.step(site.path)
        host = plan.step(step.into) if step.into is not None else step
        if any(g.kind == "table" for g in host.grid):
            return f"tile {position} of its order, "  # where it lies is known on the device only
        bounds = zip(host.grid, tiles(host.path)[position], strict=True)
        return f"tile [{', '.join(f'{g.dim} {lo}:{hi}' for g, (lo, hi) in bounds)}], "

    def found(entry: Entry) -> Finding:
        site = source.sites[entry.site]
        where = f"worker {entry.worker}, {tile(site, entry.tile)}"
        if site.kind in ("below", "holds"):
            where = where if entry.tile >= 0 else ""  # every worker looks at the head of a table
            return Finding(where + _broken(site, entry), site.path, site.loc)
        what, silent = _awaited(plan, site, entry.index, rank)
        counts = f"seen {entry.seen}, expected {entry.expected}"
        return Finding(f"{where}{what}: {counts}", site.path, site.loc, silent)

    return found


def _broken(site: Site, entry: Entry) -> str:
    if site.kind == "below":
        return f"{site.of} has the value {entry.seen}, and there are {entry.expected} positions"
    return f"{site.of} does not hold"


def _awaited(plan: Plan, site: Site, index: int, rank: int) -> tuple[str, tuple[int, ...]]:
    """What is waited for, and the ranks that give it."""
    if site.kind == "channel":
        channel = plan.channel(site.of)
        silent = _raised_by(plan, channel, index, rank)
        whose = " and ".join(f"rank {r}" if r != rank else "this rank" for r in silent) or "some rank"
        return f"channel `{channel.tensor}` word {index}, of {whose}", silent
    if site.kind == "made":
        return f"tile {index} of this rank's own", (rank,)
    said = {
        "ready": f"rank {index} has not staged `{site.of}`",
        "entered": f"rank {index} has not entered the call",
        "left": f"rank {index} has not left the call",
    }
    return said[site.kind], (index,)


def _raised_by(plan: Plan, channel: Channel, word: int, rank: int) -> tuple[int, ...]:
    """The ranks that raise a word, seen from the rank that waits for it; none where the plan cannot tell."""
    env = dict(plan.env(rank))
    for k in reversed(range(len(channel.axes))):
        count = max(1, int(F.evaluate(channel.axes[k].count, env)))
        env[f"c{k}"] = word % count
        word //= count
    return tuple(dict.fromkeys(int(F.evaluate(source, env)) for source in raising(plan, channel) if source is not None))
