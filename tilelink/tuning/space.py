"""The schedules that are worth a try: for each step a list of placements, derived from what the step does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import has_dot
from tilelink.ir.schedule import PART, ByRuns, CopyEngine, Fused, Library, Placement, Schedule, Sms, as_simulated
from tilelink.mapping import placement_of
from tilelink.mapping.libraries import called, unsuitable, walked
from tilelink.runtime.functions import function_of

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
SUBTILES = (32, 64, 128, 256)
"""Columns that a fused computation takes at a time."""
STREAMS = (1, 2, 3)
"""Side streams of a copy engine; of a library function the first two."""
SLOTS = (2, 1, 3)
MATMUL = "torch.mm"
"""What computes a matmul as a library does."""
ATTENTION = "tilelink.libraries.attention"
"""What computes attention over a run of keys."""
FUNCTIONS = frozenset({MATMUL, ATTENTION})
"""Library functions that a search proposes by itself."""

OCTAVES = (-2, -1, 0, 1, 2)
"""By which a tile grows or shrinks along one dimension, around the placement that an operator comes with."""
APART = 3
"""Octaves by which it may differ along all dimensions together."""
WARPS = (4, 8)
PARTS = (0.25, 0.5, 0.75, 1, 1.5, 2, 4)
"""Of the SMs that a step has to itself."""
ELEMENTS = 16384
"""Of a tile, unless the operator's own has more."""
DOT = range(16, 257)
"""Elements along a dimension that `tl.dot` takes, and registers hold."""
FEW = 16
"""Placements on SMs that are tried all at once, rather than aspect by aspect."""
ASPECTS = (("tile",), ("warps", "stages"), ("count",))
MULTIPLIED = (("tile", "warps", "stages"), ("order",))
COPIED = (("tile", "push", "order"), ("streams",))
"""What is varied at once: of steps on SMs, of matmuls, and of copy engines."""


def space_of(plan: Plan) -> dict[str, tuple[Placement, ...]]:
    """What each step of the operator may be placed on.

    Args:
        plan: of the operator by default; says what its steps are, and what it already chose for them.
    """
    return {s.path: tuple(dict.fromkeys(_options(plan, s))) for s in plan.steps}


def _options(plan: Plan, step: StepPlan) -> list[Placement]:
    own = placement_of(step.step, plan)
    if step.copies:
        return _copying(plan, step)
    dims = [g.dim for g in step.grid if not g.unit]
    if has_dot(step.step.program):
        runs = [own] if isinstance(own, Library) and own.runs else []
        runs += [p for p in _by_runs(plan, step) if p.tile not in [o.tile for o in runs]]
        kernel = as_simulated(own)
        # A step that leaves a dimension whole, as attention its heads' elements, is no product of two matrices.
        if isinstance(kernel, Sms) and not set(dims) <= {d for d, _ in kernel.tile}:
            return [*runs, *around(plan, step, kernel, (2, 3, 4))]
        return _matmuls(plan, step, own)
    subtiles = [(), *(((dims[-1], size),) for size in SUBTILES if len(dims) > 1)]
    hosts = [Fused(h, p) for h in makers(plan, step, through=True) for p in subtiles]
    if isinstance(own, Sms):
        return [*around(plan, step, own), *hosts]
    sizes = ((16, 512, 8), (32, 256, 4), (64, 256, 8))
    return [*hosts, *(Sms(tile=_tile(dims, (m, n)), warps=w) for m, n, w in sizes if dims)]


def makers(plan: Plan, step: StepPlan, *, through: bool = False) -> list[str]:
    """The computing steps whose results a step takes; `through`: also those that copy programs bring to it."""
    found: list[str] = []
    for tensor in step.step.takes:
        for producer in plan.wiring.producers(tensor):
            made = plan.step(producer.path)
            if not made.copies:
                found.append(producer.path)
            elif through:
                found += makers(plan, made)
    return list(dict.fromkeys(found))


def _copying(plan: Plan, step: StepPlan) -> list[Placement]:
    """A copy program, of what another step makes or of arguments, which are there from the beginning."""
    hosts, (dim, part) = makers(plan, step), _leading(plan, step)
    chunks = [((dim, size),) for size in _powers(part) if dim]
    rows = ((dim, 128),) if dim else ()
    counts = [n for n in (4, 8, 16) if n < plan.topology.device.sms]
    if hosts:
        found: list[Placement] = [Fused(h) for h in hosts]
        found += [CopyEngine(tile=t, order=("ring+1",), streams=n) for n in STREAMS for t in chunks]
        return [*found, *(Sms(count=n, tile=rows, order=("ring+1",)) for n in counts)]
    program = step.step.program.copy_program
    pinned = program is not None and program.pinned
    pushes = (None,) if pinned else (True, False)
    found = [CopyEngine(tile=t, push=p, streams=n) for n in STREAMS for t in [(), *chunks[1:]] for p in pushes]
    if pinned:
        return found
    found += [Sms(count=n, tile=rows, order=("ring",), push=p) for n in counts for p in (False, True)]
    return [*found, *(Sms(count=n, tile=rows, push=True, warps=8, own_kernel=True) for n in counts[1:2])]


def _matmuls(plan: Plan, step: StepPlan, own: Placement) -> list[Placement]:
    dims = [g.dim for g in step.grid if not g.unit]
    inner = dict.fromkeys(g.dim for g in step.loops if g.dim not in dims)
    ring = [o for o in step.order_said if isinstance(o, str) and o.startswith("ring")][:1]
    orders = [own.order] if isinstance(own, Sms) else []
    orders += [(*ring, group) for group in GROUPS]
    found: list[Placement] = []
    for m, n, k, warps, stages in TILES:
        sms = Sms(tile=_tile(dims, (m, n)) + tuple((d, k) for d in inner), warps=warps, stages=stages)
        if fits(plan, sms, (m, n, k)):
            found += [replace(sms, order=order) for order in orders]
    return [*found, *_libraries(plan, step)]


def _libraries(plan: Plan, step: StepPlan) -> list[Placement]:
    """A plain matmul part by part, in halves and quarters of parts, and as a whole, by a library.

    Whether the program is one shows when the candidate's result is compared.
    """
    names = [[v.dim for v in step.step.binding(p.name).view] for p in step.step.program.params]
    if [len(n) for n in names] != [2, 2, 2] or step.step.constants:
        return []
    (rows, depth), *others = names
    if others[0][0] != depth or others[1] != [rows, others[0][1]]:
        return []
    if unsuitable(step.step, Library(MATMUL)) is not None:
        return []
    size = int(F.evaluate(step.grid[0].size, plan.env(0)))
    chunks = [((rows, n),) for n in (PART, *_powers(_part(plan, step, size))[1:3])]
    return [*(Library(MATMUL, t, streams=n) for n in STREAMS[:2] for t in chunks), Library(MATMUL)]


def _by_runs(plan: Plan, step: StepPlan) -> list[Placement]:
    """A library function, run by run of the axis that the program walks, over all rows, halves and quarters of them; the tiles
    take turns on streams. It says by its parameters what it takes: so many tensors, and constants of these names.

    Whether the program is what it computes shows when the candidate's result is compared.
    """
    function = function_of(ATTENTION)
    given = inspect.signature(function.function if isinstance(function, ByRuns) else function).parameters.values()
    constants = sorted(p.name for p in given if p.kind is p.KEYWORD_ONLY and p.name != "at")
    inputs = [p for p in step.step.program.params if p.role == "in"]
    if len(inputs) + len(constants) + 1 != len(given) or sorted(name for name, _ in step.step.constants) != constants:
        return []
    if unsuitable(step.step, Library(ATTENTION, runs=True)) is not None:
        return []
    parts = (walked(called(step.step, runs=True)), PART)
    whole = Library(ATTENTION, (parts,), runs=True)
    rows = step.grid[0]
    size = int(F.evaluate(rows.size, plan.env(0)))
    chunks = [((rows.dim, n), parts) for n in _powers(_part(plan, step, size))[1:3]]
    return [whole, *(replace(whole, tile=t, streams=n) for t in chunks for n in STREAMS[:2])]


# ---------------------------------------------------------------------------------------------------------- neighbours
# Placements near the one that an operator comes with, for steps of which the tuner knows no more than that.


def around(plan: Plan, step: StepPlan, own: Sms, stages: tuple[int, ...] = ()) -> Iterator[Sms]:
    """The placement itself, then others of its order.

    Args:
        own: that of the operator by default.
        stages: to try besides its own, of a step with `tl.dot`.
    """
    counts = [own.count]
    if own.count is not None:
        most = max(own.count, plan.topology.device.sms // 2)
        counts += [n for n in (int(own.count * part) for part in PARTS) if 1 <= n <= most]
    tiles = _tiles_around(plan, step, own, DOT if stages else range(1, ELEMENTS + 1))
    choices = product(tiles, (own.warps, *WARPS), (own.stages, *stages), counts)
    seen = dict.fromkeys(replace(own, tile=t, warps=w, stages=s, count=n) for t, w, s, n in choices)
    yield from seen


def _tiles_around(plan: Plan, step: StepPlan, own: Sms, sizes: range) -> Iterator[tuple[tuple[str, int], ...]]:
    """Its own first, the others by how far they are from it. What it leaves whole stays whole."""
    most = max(ELEMENTS, prod(size for _, size in own.tile))
    for octaves in sorted(product(OCTAVES, repeat=len(own.tile)), key=lambda o: sum(map(abs, o))):
        tile = tuple((dim, int(size * 2.0**octave)) for (dim, size), octave in zip(own.tile, octaves, strict=True))
        near = sum(map(abs, octaves)) <= APART and prod(s for _, s in tile) <= most
        if tile == own.tile or (near and all(s in sizes and s < 2 * _there(plan, step, d, s) for d, s in tile)):
            yield tile


def _there(plan: Plan, step: StepPlan, dim: str, otherwise: int) -> int:
    """Elements along a dimension: a tile of twice as many is for nothing."""
    grid = next((g for g in (*step.grid, *step.loops) if g.dim == dim), None)
    return int(F.evaluate(grid.size, plan.env(0))) if grid is not None else otherwise


# ------------------------------------------------------------------------------------------------------------- measures
def fits(plan: Plan, placement: Sms, tile: tuple[int, int, int]) -> bool:
    """Whether two operands of 16 bits fit shared memory, stage by stage, and the accumulator the registers."""
    m, n, k = tile
    shared = 2 * placement.stages * k * (m + n)
    return shared <= plan.topology.device.shared_bytes and m * n <= ACCUMULATOR * 32 * placement.warps


def _tile(dims: list[str], sizes: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    """The last two dimensions get the sizes, those before them tiles of one element."""
    return tuple((d, 1) for d in dims[:-2]) + tuple(zip(dims[-2:], sizes[-len(dims) :], strict=False))


def _leading(plan: Plan, step: StepPlan) -> tuple[str, int]:
    """The first dimension that a copy program may cut, and the elements of it that one rank has."""
    for g in step.grid:
        if not g.unit and g.dim.isidentifier():
            size = int(F.evaluate(g.size, plan.env(0)))
            return g.dim, _part(plan, step, size) if _split(plan, step, g.dim) else max(1, size)
    return "", 1


def _part(plan: Plan, step: StepPlan, size: int) -> int:
    """How much of so much one rank of a line has."""
    return max(1, -(-size // plan.topology.size(step.axis)))


def _split(plan: Plan, step: StepPlan, dim: str) -> bool:
    """Whether the ranks of a line hold parts of a dimension, on one side of the copy program or the other."""
    return any(v.dim == dim and v.over == step.axis for b in step.step.bindings for v in b.view)


def _powers(part: int) -> list[int]:
    """Chunks of a part: all of it, a half, a quarter, an eighth, as powers of two of at least 64."""
    whole = 1 << max(0, part - 1).bit_length()
    return [size for size in (whole, whole // 2, whole // 4, whole // 8) if size >= min(64, whole)]


def ways(space: Space, best: Schedule, path: str) -> list[list[Placement]]:
    """What to vary next of a step around the best schedule so far, each list at once: aspect by aspect of what it is placed on,
    then what else it may be placed on."""
    now, kinds = best.get(path), dict[type, list[Placement]]()
    for option in space[path]:
        kinds.setdefault(type(option), []).append(option)
    found = [*_varied(kinds.pop(type(now), []), now)]
    found.append([option for options in kinds.values() for option in next(_varied(options, options[0]))])
    return [group for group in found if group]


def _varied(options: Sequence[Placement], now: Placement | None) -> Iterator[list[Placement]]:
    """For each aspect of placements of one kind, those that are like `now` in all others."""
    aspects: tuple[tuple[str, ...], ...] = ((),)
    if isinstance(now, CopyEngine):
        aspects = COPIED
    elif isinstance(now, Sms) and len(options) > FEW:
        aspects = MULTIPLIED if len({o.order for o in options if isinstance(o, Sms)}) > 1 else ASPECTS
    for aspect in aspects:
        kept = [name for other in aspects if other is not aspect for name in other]
        yield [o for o in options if all(getattr(o, name) == getattr(now, name) for name in kept)]


def changed(space: Space, best: Schedule, path: str, option: Placement) -> Schedule:
    """The best schedule so far with one step placed otherwise. Whatever was fused into a step that a library now computes
    gets the first placement of its own."""
    changes = {path: option}
    if isinstance(option, Library):
        for other, placement in best.entries:
            alone = next((o for o in space.get(other, ()) if not isinstance(o, Fused)), None)
            if isinstance(placement, Fused) and placement.into == path and alone is not None:
                changes[other] = alone
    return best.merged(changes)
