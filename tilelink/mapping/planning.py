"""`make_plan`: a wiring, a topology and a schedule become a plan, in seven short steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.plan import Buffer, Layout, Plan, Signal, StepPlan, here, part
from tilelink.ir.program import Load
from tilelink.ir.schedule import CopyEngine, Schedule, Sms
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping import credits, kernels
from tilelink.mapping.grids import plan_steps, table_name
from tilelink.mapping.orders import table_of
from tilelink.mapping.placement import Placed, place
from tilelink.mapping.signals import crosses, lower, reads_remote
from tilelink.mapping.views import walk

_SYMBOL = re.compile(r"[ci]\d+|t|sorted_t|rank|RANKS|turned|part_top|group_top|group_rows")
"""What formulas call ranks, tiles' positions and indices, and words."""


def make_plan(
    wiring: Wiring,
    topology: Topology,
    schedule: Schedule,
    sizes: Mapping[str, int],
    layouts: Mapping[str, Layout],
) -> Plan:
    """The plan of one operator: owners, grids, orders, channels, slots, credits, kernels and host steps.

    Args:
        sizes: global sizes by name, in elements.
        layouts: memory layout of each argument.

    Raises:
        TilelinkError: TL301…TL316, what the wiring or the schedule cannot mean.
    """
    _check_sizes(wiring)
    placed = place(wiring, topology, schedule)
    _refuse_owner_maps(wiring)
    steps = plan_steps(wiring, placed)
    where = kernels.assign(wiring, steps, topology)
    steps = tuple(_with_workers(s, where) for s in steps)
    found = lower(wiring, topology, schedule, steps, where)
    buffers = tuple(
        b for t in wiring.tensors if (b := _buffer(wiring, t, steps, dict(layouts), schedule.slots)) is not None
    )
    staged = tuple(b.tensor for b in buffers if b.staged)
    _check_moved(wiring, steps, layouts, set(staged))
    _check_runs(steps)
    early = frozenset(s.path for s in steps if s.engine == "stream" and not _waits_for_bell(s, found.signals))
    by_path = {s.path: s for s in steps}
    enters = bool(found.channels) or any(s.action == "ready" for s in found.signals)
    return Plan(
        wiring=wiring,
        topology=topology,
        schedule=schedule,
        sizes=tuple(sizes.items()),
        layouts=tuple(layouts.items()),
        steps=steps,
        buffers=buffers,
        channels=found.channels,
        signals=found.signals,
        links=found.links,
        credits=credits.derive(buffers, found, steps, topology, dict(sizes), schedule.slots),
        kernels=where.kernels,
        host=kernels.host_steps(where, steps, staged, early, enters, _read_in_place(found.signals, buffers, by_path)),
        notes=_notes(found.signals, buffers),
        tables=_tables(placed, steps, dict(sizes), topology.ranks),
    )


def _check_sizes(wiring: Wiring) -> None:
    for name in wiring.sizes:
        if _SYMBOL.fullmatch(name):
            raise TilelinkError(
                "TL319",
                f"a size called `{name}`",
                loc=wiring.loc,
                why=f"`{name}` means something of its own in the formulas of a plan",
                hint="give the dimension another name in the operator's signature",
            )


def _refuse_owner_maps(wiring: Wiring) -> None:
    for tensor in wiring.tensors:
        if tensor.owner_map is not None:
            raise TilelinkError(
                "TL306",
                f"`{tensor.name}` has the owner map `{tensor.owner_map.text}`, which cannot be planned",
                loc=tensor.loc,
                why="the mapping knows the even split by ceil and one slice per rank",
                hint="say who holds what in the shape: `M/R`, `R`, `R/R`",
            )


def _check_moved(wiring: Wiring, steps: tuple[StepPlan, ...], layouts: Mapping[str, Layout], staged: set[str]) -> None:
    """An argument that a movement takes where it lies is one contiguous run; a staged one has contiguous rows."""
    for s in steps:
        movement = s.step.program.movement
        if movement is None:
            continue
        name = s.step.binding(movement.source).tensor
        tensor = wiring.tensor(name)
        if tensor.origin != "argument":
            continue
        last = len([a for a in tensor.axes if not a.own_slice]) - 1
        layout = layouts[name]
        if layout.contiguous if name not in staged else layout.unit_axis == last:
            continue
        raise TilelinkError(
            "TL307",
            f"`{s.path}` moves the argument `{name}`, whose elements do not lie one after the other",
            loc=s.step.loc,
            why="a movement takes contiguous runs" if name not in staged else "what is staged has contiguous rows",
            hint=f"pass {name}.contiguous()",
        )


def _check_runs(steps: tuple[StepPlan, ...]) -> None:
    """A movement with an engine of its own takes one contiguous run per tile; a fused one stores a block."""
    for s in steps:
        if s.step.program.movement is None or s.into is not None:
            continue
        cut = False
        for g in reversed(s.grid):
            if cut and g.kind not in ("unit", "own"):
                raise TilelinkError(
                    "TL317",
                    f"`{s.path}` would move tiles that are not contiguous in memory (axis `{g.dim}`)",
                    loc=s.step.program.loc,
                    why="a movement takes one contiguous run per tile: only its first tiled axis may be cut",
                    hint="tile the leading dimension only",
                )
            cut = cut or g.tile is not None or g.kind != "plain"


def _with_workers(s: StepPlan, where: kernels.Placement) -> StepPlan:
    for k in where.kernels:
        for path, workers in k.roles:
            if path == s.path:
                return replace(s, workers=workers)
    return s


def _tables(
    placed: tuple[Placed, ...], steps: tuple[StepPlan, ...], sizes: dict[str, int], ranks: int
) -> tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]:
    """The orders by a user's key, worked out for every rank."""
    out: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for p, s in zip(placed, steps, strict=True):
        if s.sort_key is None or s.into is not None or not isinstance(p.placement, (Sms, CopyEngine)):
            continue
        order, key = p.placement.order, s.sort_key
        rows = [table_of(s.grid, order, key, {**sizes, "rank": r, "RANKS": ranks}, r, ranks) for r in range(ranks)]
        out.append((table_name(s.path), tuple(rows)))
    return tuple(out)


def _read_in_place(signals: tuple[Signal, ...], buffers: tuple[Buffer, ...], steps: dict[str, StepPlan]) -> bool:
    """Whether peers read an argument where it lies."""
    staged = {b.tensor for b in buffers if b.staged}
    return any(s.action == "ready" and steps[s.path].step.binding(s.op.param).tensor not in staged for s in signals)


def _waits_for_bell(s: StepPlan, signals: tuple[Signal, ...]) -> bool:
    return any(g.path == s.path and g.action == "await" for g in signals)


def _buffer(
    wiring: Wiring, tensor: TensorDecl, steps: tuple[StepPlan, ...], layouts: dict[str, Layout], slots: int
) -> Buffer | None:
    """Where the tensor's own instance lives, from who touches it (G9); None: it lives in registers only."""
    by_path = {s.path: s for s in steps}
    touching = [(by_path[s.path], b.param) for s in wiring.steps for b in s.bindings if b.tensor == tensor.name]
    remote = any(reads_remote(s, p, tensor) for s, p in touching) or any(crosses(wiring, s, p) for s, p in touching)
    if tensor.origin == "argument":
        staged = remote and not layouts[tensor.name].symmetric
        return Buffer(tensor.name, _extents(tensor, exact=not staged), tensor.dtype, "argument", slots, staged)
    if tensor.name in wiring.results:
        if remote:
            raise TilelinkError(
                "TL305",
                f"the result `{tensor.name}` would be written by other ranks",
                loc=wiring.loc,
                why="results are fresh tensors, which peers cannot reach",
                hint="schedule its last movement as a pull (push=False)",
            )
        return Buffer(tensor.name, _extents(tensor, exact=True), tensor.dtype, "result")
    if not any(_reads_memory(s, p) for s, p in touching):
        return None
    space = "symmetric" if remote else "device"
    return Buffer(tensor.name, _extents(tensor, exact=False), tensor.dtype, space, slots if remote else 1)


def _reads_memory(s: StepPlan, param: str) -> bool:
    """Whether the step reads the tensor from memory, rather than from the registers of the worker that made it."""
    binding = s.step.binding(param)
    movement = s.step.program.movement
    if movement is not None:
        return param == movement.source and s.engine != "fused"
    loads = any(isinstance(op, Load) and op.param == param for op in walk(s.step.program.body))
    forwarded = binding.tensor in s.forwarded and all(v.axis is None or not v.unit for v in binding.view)
    return loads and not forwarded


def _extents(tensor: TensorDecl, exact: bool) -> tuple[Formula, ...]:
    """Elements per stored axis on a rank; a symmetric or workspace instance has whole parts, so that peers agree."""
    return tuple(
        (here(a.size) if exact else part(a.size)) if a.split == "R" else F.of(a.size)
        for a in tensor.axes
        if not a.own_slice
    )


def _notes(signals: tuple[Signal, ...], buffers: tuple[Buffer, ...]) -> tuple[str, ...]:
    out = [
        f"{s.path}: {type(s.op).__name__.lower()} on `{s.op.param}` needs no signal ({s.reason})"
        for s in signals
        if s.action == "elided"
    ]
    out += [f"argument `{b.tensor}` is read by peers: copied to a symmetric slot on entry" for b in buffers if b.staged]
    return tuple(out)
