"""The schedules that are worth a try: for each step a list of placements, derived from what the step does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Let, walk
from tilelink.ir.schedule import CopyEngine, Fused, Placement, Schedule, Sms

Space = Mapping[str, tuple[Placement, ...]]
"""Placements by step path."""

TILES = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4),
    (128, 128, 128, 8, 3), (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (64, 128, 128, 4, 3), (64, 64, 128, 4, 4),
    (32, 128, 128, 4, 4), (16, 128, 128, 4, 5), (16, 64, 256, 4, 4),
)  # fmt: skip
"""Of a matmul: rows, columns, depth, warps, stages."""
GROUPS = ("group 8", "group 4", "group 16", "row")
ACCUMULATOR = 128
"""Registers of a thread that the accumulator may take."""


def space_of(plan: Plan) -> dict[str, tuple[Placement, ...]]:
    """What each step of the operator may be placed on.

    Args:
        plan: of the operator as it comes; says what its steps are, and what it already chose for them.
    """
    return {s.path: tuple(dict.fromkeys(_options(plan, s))) for s in plan.steps}


def _options(plan: Plan, step: StepPlan) -> list[Placement]:
    if step.step.program.movement is not None:
        return _made(plan, step) if makers(plan, step) else _given(plan, step)
    if is_matmul(step):
        return _matmuls(plan, step)
    hosts = [Fused(h) for h in makers(plan, step, through=True)]
    dims = [g.dim for g in step.grid if g.kind != "unit" and g.kind != "own"]
    sizes = ((16, 512, 8), (32, 256, 4), (64, 256, 8))
    return [*hosts, *(Sms(tile=_tile(dims, (m, n)), warps=w) for m, n, w in sizes if dims)]


def is_matmul(step: StepPlan) -> bool:
    return any(isinstance(op, Let) and "tl.dot(" in op.value.text for op in walk(step.step.program.body))


def makers(plan: Plan, step: StepPlan, *, through: bool = False) -> list[str]:
    """The computing steps whose results a step takes; `through`: also those that movements bring to it."""
    found: list[str] = []
    for b in step.step.bindings:
        if step.step.program.param(b.param).role != "in":
            continue
        for producer in plan.wiring.producers(b.tensor):
            made = plan.step(producer.path)
            if producer.program.movement is None:
                found.append(producer.path)
            elif through:
                found += makers(plan, made)
    return list(dict.fromkeys(found))


def _given(plan: Plan, step: StepPlan) -> list[Placement]:
    """A movement of arguments: what is there from the beginning."""
    dim, part = _leading(plan, step)
    chunks = [(), *(((dim, size),) for size in _powers(part)[1:] if dim)]
    pinned = step.step.program.movement is not None and step.step.program.movement.pinned
    pushes = (None,) if pinned else (True, False)
    found: list[Placement] = [CopyEngine(tile=t, push=p) for t in chunks for p in pushes]
    if pinned:
        return found
    rows = ((dim, 128),) if dim else ()
    counts = [n for n in (4, 8, 16) if n < plan.topology.device.sms]
    found += [Sms(count=n, tile=rows, order=("ring",), push=p) for n in counts for p in (False, True)]
    return [*found, *(Sms(count=n, tile=rows, push=True, warps=8, own_kernel=True) for n in counts[1:2])]


def _made(plan: Plan, step: StepPlan) -> list[Placement]:
    """A movement of what another step makes."""
    dim, part = _leading(plan, step)
    found: list[Placement] = [Fused(h) for h in makers(plan, step)]
    found += [CopyEngine(tile=((dim, size),), order=("ring+1",)) for size in _powers(part) if dim]
    rows = ((dim, 128),) if dim else ()
    counts = [n for n in (4, 8, 16) if n < plan.topology.device.sms]
    return [*found, *(Sms(count=n, tile=rows, order=("ring+1",)) for n in counts)]


def _matmuls(plan: Plan, step: StepPlan) -> list[Placement]:
    dims = [g.dim for g in step.grid if g.kind not in ("unit", "own")]
    inner = [g.dim for g in step.loops if g.dim not in dims]
    ring = [o for o in step.order_names if o.startswith("ring")][:1]
    found: list[Placement] = []
    for m, n, k, warps, stages in TILES:
        sms = Sms(tile=_tile(dims, (m, n)) + tuple((d, k) for d in inner), warps=warps, stages=stages)
        if fits(plan, sms, (m, n, k)):
            found += [replace(sms, order=(*ring, group)) for group in GROUPS]
    return found


def fits(plan: Plan, placement: Sms, tile: tuple[int, int, int]) -> bool:
    """Whether two operands of 16 bits fit shared memory, stage by stage, and the accumulator the registers."""
    m, n, k = tile
    shared = 2 * placement.stages * k * (m + n)
    return shared <= plan.topology.device.shared_bytes and m * n <= ACCUMULATOR * 32 * placement.warps


def _tile(dims: list[str], sizes: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    """The last two dimensions get the sizes, those before them tiles of one element."""
    return tuple((d, 1) for d in dims[:-2]) + tuple(zip(dims[-2:], sizes[-len(dims) :], strict=False))


def _leading(plan: Plan, step: StepPlan) -> tuple[str, int]:
    """The first dimension that a movement may cut, and the elements of it that one rank has."""
    for g in step.grid:
        if g.kind not in ("unit", "own") and g.dim.isidentifier():
            size = int(F.evaluate(g.size, plan.env(0)))
            return g.dim, max(1, -(-size // plan.topology.ranks) if _split(plan, step, g.dim) else size)
    return "", 1


def _split(plan: Plan, step: StepPlan, dim: str) -> bool:
    """Whether ranks hold parts of a dimension, on one side of the movement or the other."""
    return any(
        v.dim == dim and v.axis is not None and plan.wiring.tensor(b.tensor).axes[v.axis].split == "R"
        for b in step.step.bindings
        for v in b.view
    )


def _powers(part: int) -> list[int]:
    """Chunks of a part: all of it, a half, a quarter, an eighth, as powers of two of at least 64."""
    whole = 1 << max(0, part - 1).bit_length()
    return [size for size in (whole, whole // 2, whole // 4, whole // 8) if size >= min(64, whole)]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """What is varied at once: the placement of one step, or of a matmul only its tile or only its order."""

    path: str
    options: tuple[Placement, ...]


def coordinates(space: Space, best: Schedule) -> list[Coordinate]:
    """What to vary next around the best schedule so far: a matmul's tile and its order one after the other."""
    found: list[Coordinate] = []
    for path, options in space.items():
        now = best.get(path)
        tiles = {o.tile for o in options if isinstance(o, Sms)}
        orders = {o.order for o in options if isinstance(o, Sms)}
        if isinstance(now, Sms) and len(tiles) > 1 and len(orders) > 1 and len(options) > 16:
            found.append(Coordinate(path, tuple(o for o in options if isinstance(o, Sms) and o.order == now.order)))
            same = (now.tile, now.warps, now.stages)
            found.append(
                Coordinate(
                    path, tuple(o for o in options if isinstance(o, Sms) and (o.tile, o.warps, o.stages) == same)
                )
            )
        else:
            found.append(Coordinate(path, options))
    return found
