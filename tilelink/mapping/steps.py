"""Every step placed: which tiles it has on a rank, in which order, and which steps run in its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilelink.ir import formula as F
from tilelink.ir.plan import StepPlan
from tilelink.ir.wiring import Wiring
from tilelink.mapping.epilogues import epilogue
from tilelink.mapping.grids import split_over, standing
from tilelink.mapping.lineage import lineage_of, moved_tiles, stored_tiles
from tilelink.mapping.placement import Placed, directed, hosts


def plan_steps(wiring: Wiring, placed: tuple[Placed, ...], env: Mapping[str, F.Number]) -> tuple[StepPlan, ...]:
    """Every step with its grid and order; fused steps follow their host's. `env`: sizes, and how many ranks there are.

    Raises:
        TilelinkError: of what is fused, TL316 tiles that are not its host's, TL325 pieces of them, TL332 another axis of ranks.
    """
    host_of = hosts(placed)
    plans: dict[str, StepPlan] = {}
    for p in placed:
        if host_of[p.step.path] == p.step.path:
            followers = [q for q in placed if q.step.path != p.step.path and host_of[q.step.path] == p.step.path]
            forced = _forced_cuts(wiring, p, followers) | _pulled_cuts(wiring, placed, p)
            plans[p.step.path] = standing(wiring, p, forced, env)
    for p in placed:
        host = host_of[p.step.path]
        if host != p.step.path:
            plans[p.step.path] = epilogue(wiring, placed, p, plans[host])
    ordered = [plans[p.step.path] for p in placed]
    return tuple(_with_followers(s, ordered) for s in ordered)


def _with_followers(s: StepPlan, steps: list[StepPlan]) -> StepPlan:
    """The step with the list of those fused into it; a copy program learns what need not be moved."""
    # A pull is for tiles of other ranks anyway: what it brings is read from memory, also this rank's own.
    skip = bool(s.push) and any(s.step.moved_to in q.forwarded for q in steps)
    return replace(s, fused=tuple(q.path for q in steps if q.into == s.path), skip_own=skip)


def _forced_cuts(wiring: Wiring, host: Placed, followers: list[Placed]) -> frozenset[int]:
    """Axes of the host's domain that must end at rank borders because a fused program's do."""
    lineage = lineage_of(host.step, wiring.steps) if followers else {}
    forced: set[int] = set()
    for q in followers:
        dims = q.step.program.signature.global_dims()
        for tensor, v in ((wiring.tensor(b.tensor), v) for b in q.step.bindings for v in b.view):
            found = None if v.axis is None else lineage.get((tensor.name, v.axis))
            # A fused program that runs for own rows only needs whole parts as well.
            if found is not None and (v.dim in dims or split_over(tensor, v) == q.step.axis):
                forced.add(found)
    return frozenset(forced)


def _pulled_cuts(wiring: Wiring, placed: tuple[Placed, ...], host: Placed) -> frozenset[int]:
    """Axes along which others pull what the step makes: a tile that one rank waits for may not reach into two parts."""
    made = moved_tiles(host.step) if host.step.program.copy_program is not None else stored_tiles(host.step)
    forced: set[int] = set()
    for q in placed:
        if q.step.moves is None or directed(wiring, q)[1] or q.step.axis != host.step.axis:
            continue
        source, target = (b.tensor for b in q.step.moves)
        for v, w in q.step.moved_axes:
            split = split_over(wiring.tensor(target), w) == q.step.axis
            if v.axis is not None and split and (source, v.axis) in made:
                forced.add(made[(source, v.axis)])
    return frozenset(forced)
