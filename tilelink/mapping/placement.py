"""Where each step runs: the schedule's entries, and what a step gets that the schedule does not name."""

from __future__ import annotations

from dataclasses import replace

from tilelink.cost.machine import DEPTH, LARGE, Tile
from tilelink.cost.tiles import Matmul
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.program import Store, TileProgram, Tiles, has_dot, tile_names, walk
from tilelink.ir.schedule import CopyEngine, Fused, Library, Placement, Sms, as_simulated, counted
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping.libraries import called


def placed(plan: Plan) -> Wiring:
    """The wiring, each of whose steps has its placement."""
    found: list[Step] = []
    for s in plan.wiring.steps:
        placement = placement_of(s, plan)
        if isinstance(placement, (CopyEngine, Library)) and not placement.order:
            # A stream without an order of its own goes along the ring.
            others = "ring+1" if _moves_what_is_made(s, plan.wiring) else "ring"
            order = _ring(s, plan.wiring) if isinstance(placement, Library) else others
            placement = replace(placement, order=(order,))
        found.append(replace(s, placement=placement))
    return replace(plan.wiring, steps=tuple(found))


def as_called(wiring: Wiring) -> Wiring:
    """The steps as what computes them takes them: all heads at once, where that is a library function by panels."""
    steps = (called(s, runs=s.placement.runs) if isinstance(s.placement, Library) else s for s in wiring.steps)
    return replace(wiring, steps=tuple(steps))


def placement_of(step: Step, plan: Plan) -> Placement:
    """What a step gets: what the schedule says, else what an inlined operator brings along for it, else the default."""
    found = plan.schedule.get(step.path) or step.shipped or _default(step, plan)
    simulated = plan.topology.backend == "simulated"
    return counted(as_simulated(found) if simulated else found, plan.topology.device.sms)


def _default(step: Step, plan: Plan) -> Placement:
    """What a step gets without an entry in the schedule: copy programs copy engines where there are any, matmuls large tiles, or
    smaller ones that fill the last wave better."""
    wiring, topology = plan.wiring, plan.topology
    program = step.program
    if program.copy_program is not None:
        # A result is no memory that peers reach: whoever returns it fetches it.
        result = step.moved_to in wiring.results
        engine = topology.backend == "peer" and not _moves_what_is_made(step, wiring) and not converts(step, wiring)
        if program.copy_program.pinned or engine:
            return CopyEngine(push=not result if not program.copy_program.pinned else None)
        # Nor can anybody pull what a step makes that goes along another axis of ranks.
        along_another = any(s.axis != step.axis and step.moved_from in s.writes for s in wiring.steps)
        away = topology.axis(step.axis).reach == "network" or along_another
        away = away or (not result and _made_by_others(step, plan))
        push = True if away else False if result else None
        # The first dimension is tiled that is neither walked singly nor part of `...`.
        first = [a.name for a in program.param(program.domain).shape.axes if not a.unit][:1]
        return Sms(count=2, tile=tuple((dim, 128) for dim in first), order=("ring",), push=push)
    dims = [a.name for a in program.param(program.domain).shape.axes if not a.unit]
    walks = [step.binding(op.param).view[op.axis] for op in walk(program.body) if isinstance(op, Tiles)]
    inner = [v.dim for v in walks if not v.unit and v.dim not in dims]
    if not has_dot(program):
        tile = dict.fromkeys(dims[:-1], 16) | dict.fromkeys(dims[-1:], 512) | dict.fromkeys(inner, 64)
        return Sms(tile=_named(program, tile), order=("row",))
    small = topology.backend == "simulated"
    chosen = LARGE if small else _tile(step, plan, dims, inner)
    rows, columns = (64, 64) if small else (chosen.rows, chosen.columns)
    tile = dict.fromkeys(dims[:-1], rows) | dict.fromkeys(dims[-1:], columns) | dict.fromkeys(inner, DEPTH)
    ring = _ring(step, wiring)
    # Measured (docs/performance.md): who waits for rows does best with groups as high as a part, who makes them with half.
    group = "group 16" if ring == "ring" and not small else "group 8"
    return Sms(tile=_named(program, tile), order=(ring, group), warps=chosen.warps, stages=chosen.stages)


def _named(program: TileProgram, tile: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Tile sizes of a default: an axis of the domain that the program has no name for is one tile, which it takes whole."""
    axes = zip(program.param(program.domain).shape.axes, tile_names(program), strict=True)
    whole = {axis.name for axis, name in axes if name is None}
    return tuple((dim, length) for dim, length in tile.items() if dim not in whole)


def _tile(step: Step, plan: Plan, dims: list[str], inner: list[str]) -> Tile:
    """The tile of a matmul: the large one, unless it is a plain product whose sizes are better off with another."""
    wiring, topology, env = plan.wiring, plan.topology, plan.env(0)
    extents = {
        v.dim: int(F.evaluate(v.extent(step.axis), env))
        for b in step.bindings
        for v in b.view
        if v.axis is not None and v.dim in (*dims, *inner)
    }
    if topology.device.capability != 90 or len(dims) != 2 or len(inner) != 1 or {*dims, *inner} - extents.keys():
        return LARGE
    rows, columns, depth = (extents[d] for d in (*dims, *inner))
    if not is_shared(wiring, step, dims[0]):
        return Matmul(rows, columns, depth).best(topology.device.sms)
    parts = topology.size(step.axis)
    each = 2 * -(-rows // parts)
    moved = {"coming": each * depth} if _ring(step, wiring) == "ring" else {"going": each * columns}
    return Matmul(rows, columns, depth, parts, **moved).best(topology.device.sms)


def is_shared(wiring: Wiring, step: Step, dim: str) -> bool:
    """Whether some program of this operator splits a tensor over the ranks along a dimension of a step."""
    mine = {(b.tensor, v.axis) for b in step.bindings for v in b.view if v.dim == dim and v.axis is not None}
    along = [s for s in wiring.steps if s.axis == step.axis]
    split = (
        (b.tensor, v.axis)
        for s in along
        for dims in [s.program.signature.global_dims()]
        for b in s.bindings
        for v in b.view
        if v.dim in dims
    )
    return not mine.isdisjoint(split)


def _ring(step: Step, wiring: Wiring) -> str:
    """Who reads what arrives begins with what is there, its own rows; who makes rows for others begins with theirs."""
    return "ring" if any(wiring.tensor(t).origin == "program" for t in step.takes) else "ring+1"


def converts(step: Step, wiring: Wiring) -> bool:
    """Whether a copy program's tensors have two dtypes."""
    return len({wiring.tensor(b.tensor).dtype for b in step.moves or ()}) > 1


def _moves_what_is_made(step: Step, wiring: Wiring) -> bool:
    """Whether a copy program takes what a step of this operator computes, rather than an argument."""
    return step.moved_from is not None and wiring.tensor(step.moved_from).origin != "argument"


def _made_by_others(step: Step, plan: Plan) -> bool:
    """Whether ranks write to one another what a copy program takes, and not parts of it: nobody could pull it."""
    source, wiring = step.moved_from, plan.wiring
    assert source is not None
    if any(a.over == step.axis and not a.own_slice for a in wiring.tensor(source).axes):
        return False
    for s in wiring.steps[: wiring.steps.index(step)]:
        if source not in s.writes:
            continue
        if s.program.copy_program is not None:
            pushed = directed(wiring, replace(s, placement=placement_of(s, plan)))[1]
        else:
            stores = (op for op in walk(s.program.body) if isinstance(op, Store) and op.to == "holders")
            pushed = source in (s.binding(op.param).tensor for op in stores)
        if pushed:
            return True
    return False


def hosts(wiring: Wiring) -> dict[str, str]:
    """Path -> path of the step in whose workers it runs, chains of fusions followed."""
    into = {s.path: s.placement.into for s in wiring.steps if isinstance(s.placement, Fused)}
    out: dict[str, str] = {}
    for s in wiring.steps:
        at = s.path
        for _ in wiring.steps:
            at = into.get(at, at)
        out[s.path] = at
    return out


def directed(wiring: Wiring, step: Step) -> tuple[str, bool | None]:
    """(domain parameter, push) of a step as scheduled; within a rank there is no direction, nor of a step that computes."""
    copy_program, placement = step.program.copy_program, step.placement
    if copy_program is None:
        return step.program.domain, None
    push = not copy_program.pull
    if isinstance(placement, (Sms, CopyEngine)) and placement.push is not None:
        push = placement.push
    elif isinstance(placement, Fused) or copy_program.pinned:
        push = True
    # A program that speaks of no rank: each of them moves what it has. A push would be to all, who have their own.
    names = any(b.names_holders for b in step.bindings)
    push = push and (isinstance(placement, Fused) or names)
    return (copy_program.source if push else copy_program.destination), push
