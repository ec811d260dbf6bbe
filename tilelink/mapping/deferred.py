"""Fused steps whose tiles come behind all of their host's: which can, of those that are to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.plan import KernelPlan, Signal, StepPlan
from tilelink.ir.program import Store, walk
from tilelink.ir.schedule import Fused
from tilelink.ir.topology import Topology, env_of
from tilelink.ir.wiring import Wiring
from tilelink.mapping.placement import Placed


def with_deferred(
    wiring: Wiring,
    steps: tuple[StepPlan, ...],
    placed: tuple[Placed, ...],
    kernels: tuple[KernelPlan, ...],
    signals: tuple[Signal, ...],
    sizes: Mapping[str, int],
    topology: Topology,
) -> tuple[StepPlan, ...]:
    """The steps, with `deferred` set for those whose schedule asks for it and that can.

    Such a step computes for this rank's own rows, which the host makes last; nobody waits for what it makes, in this call,
    and the host waits for nobody: else who waits could hold up whom it waits for. Its tiles lie in memory in any case.

    Raises:
        TilelinkError: TL333, one that must and cannot.
    """
    by_path = {s.path: s for s in steps}
    out: list[StepPlan] = []
    for p, step in zip(placed, steps, strict=True):
        wanted = p.placement.deferred if isinstance(p.placement, Fused) else False
        if wanted is False:
            out.append(step)
            continue
        host = by_path[step.executor]
        why = _sharing(step, host, kernels) or _heard(step, host, signals) or _nowhere(wiring, step, host, steps)
        hint = ""
        if not why and not _own_last(step, host, sizes, topology):
            why = f"`{host.path}` does not make this rank's own tiles last"
            hint = f'order `{host.path}` so that own rows come last, such as order="ring+1"'
        if why and wanted:
            raise _refused(step, host, why, hint)
        out.append(replace(step, deferred=not why))
    return tuple(out)


def _sharing(step: StepPlan, host: StepPlan, kernels: tuple[KernelPlan, ...]) -> str:
    """Why the step is of another kind than those that can come behind its host; nothing if it is not."""
    if step.step.program.copy_program is not None or step.own_axis is None:
        return "it does not compute for this rank's own rows alone"
    roles = next((k.roles for k in kernels if host.path in (path for path, _ in k.roles)), ())
    return "" if len(roles) == 1 else f"`{host.path}` shares its workers with other steps"


def _heard(step: StepPlan, host: StepPlan, signals: tuple[Signal, ...]) -> str:
    """Who would wait for whom."""
    if any(g.path == step.path and g.action == "notify" for g in signals):
        return "somebody waits for what it makes"
    waits = any(g.path == host.path and g.action == "await" for g in signals)
    return f"`{host.path}` waits for others" if waits else ""


def _nowhere(wiring: Wiring, step: StepPlan, host: StepPlan, steps: tuple[StepPlan, ...]) -> str:
    """A tile that nobody moves from memory is not stored at all."""
    made = {host.step.binding(op.param).tensor for op in walk(host.step.program.body) if isinstance(op, Store)}
    moved = {s.step.moved_from for s in steps if s.into is None}
    if {wiring.moved_from(tensor, made) for tensor in step.forwarded} <= moved:
        return ""
    return f"`{host.path}` hands its tiles over and stores none: nobody moves them from memory"


def _own_last(step: StepPlan, host: StepPlan, sizes: Mapping[str, int], topology: Topology) -> bool:
    """Whether the last tiles of the host's order are a rank's own, and no others. The order itself is looked at, on ranks of each
    kind: parts may lack tiles."""
    if host.sort_key is not None:
        return False  # a user's function, which may know the ranks apart
    axis = step.own_axis or 0
    grid = host.grid[axis]
    for rank in {0, 1 % topology.ranks, topology.ranks // 2, topology.ranks - 1}:
        turns = host.turns(env_of(sizes, topology, rank))
        begin = np.broadcast_to(F.evaluate(grid.begin(Sym(f"i{axis}")), turns), turns["t"].shape)
        own = begin // F.evaluate(grid.part, turns) == topology.at(rank, step.axis)
        if (own != (turns["t"] >= len(turns["t"]) - F.evaluate(step.own_tiles(host), turns))).any():
            return False
    return True


def _refused(step: StepPlan, host: StepPlan, why: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL333",
        f"`{step.path}` cannot come behind the tiles of `{host.path}`",
        loc=step.step.loc,
        why=why,
        hint=hint or f'let it come right after each tile: fused("{host.path}")',
        notes=(Note(f"`{host.path}` is called here", host.step.loc),),
    )
