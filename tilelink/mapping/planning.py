"""`make_plan`: a wiring, a topology and a schedule become a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilelink.errors import Loc, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.host import HostStep
from tilelink.ir.kernel import OF_EVERY_FILE, OF_EVERY_FUNCTION, PLANNED
from tilelink.ir.partition import here, part
from tilelink.ir.plan import Buffer, Layout, Plan, Signal, StepPlan
from tilelink.ir.program import Load, is_raw, pointed, walk
from tilelink.ir.schedule import Schedule
from tilelink.ir.shape import rank_along, ranks_along
from tilelink.ir.topology import Topology, env_of
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping import credits, kernels, protocols
from tilelink.mapping.deferred import with_behind
from tilelink.mapping.grids import plan_steps
from tilelink.mapping.in_place import kept_first, with_own_parts
from tilelink.mapping.orders import tables
from tilelink.mapping.owners import check_owners
from tilelink.mapping.placement import as_called, place
from tilelink.mapping.remote import check_network, crosses, reads_remote
from tilelink.mapping.sequence import host_steps
from tilelink.mapping.signals import Signals, matched


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
        TilelinkError: TL301 to TL333, what the wiring or the schedule cannot mean; TL606, a signal of which nobody can say
            who hears it.
    """
    _check_names(wiring)
    _check_results(wiring)
    wiring, placed = as_called(wiring, place(wiring, topology, schedule, sizes))
    steps = plan_steps(wiring, placed, env_of(sizes, topology, 0))
    check_owners(wiring, steps, dict(sizes), topology.ranks)
    check_network(wiring, steps, topology)
    where = kernels.assign(wiring, steps, topology)
    workers = {path: n for k in where.kernels for path, n in k.roles}
    steps = tuple(replace(s, workers=workers.get(s.path, s.workers)) for s in steps)
    # Parts get no longer with the rank's coordinates.
    found = matched(wiring, schedule, steps, where, env_of(sizes, topology, topology.ranks - 1))
    steps = with_behind(wiring, steps, placed, where.kernels, found.signals, sizes, topology)
    buffers = tuple(
        b for t in wiring.tensors if (b := _buffer(wiring, t, steps, dict(layouts), schedule.slots)) is not None
    )
    staged = tuple(b.tensor for b in buffers if b.staged)
    steps = tuple(replace(s, pieces=_pieces(s, found.signals)) for s in steps)
    _check_pieces(steps, found.signals)
    _check_moved(wiring, steps, layouts, set(staged))
    if len(wiring.axes) == 1:
        steps = with_own_parts(wiring, steps, found.channels, layouts, sizes, topology.ranks)
    plan = Plan(
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
        credits=(),
        kernels=where.kernels,
        host=_host(wiring, where, steps, found, staged),
        notes=_notes(found.signals, buffers) + _own_parts(steps),
        tables=tables(steps, topology, lambda rank: env_of(sizes, topology, rank)),
    )
    plan = replace(plan, credits=credits.derive(plan))
    plan = replace(plan, brief=protocols.epoch_signalled(plan))
    return replace(plan, low_latency=protocols.by_ll(plan))


def _check_names(wiring: Wiring) -> None:
    """Sizes, and what is copied from the users' modules, keep their names in formulas and files."""
    along = {sym.name for axis in wiring.axes for sym in (rank_along(axis), ranks_along(axis))}
    for name in wiring.sizes:
        if name in ("t", "rank", "RANKS", *along) or name.endswith(("_begin", "_end")) or PLANNED.fullmatch(name):
            raise _taken(
                f"a size called `{name}`", name, wiring.loc, "give the dimension another name in the signature"
            )
    for program in (s.program for s in wiring.steps):
        copied = {"helper": [h.name for h in program.helpers], "constant": [n for n, _ in program.globals]}
        for kind, names in copied.items():
            for name in names:
                if name in OF_EVERY_FILE | OF_EVERY_FUNCTION or PLANNED.fullmatch(name):
                    raise _taken(f"a {kind} called `{name}`", name, program.loc, f"give the {kind} another name")


def _taken(message: str, name: str, loc: Loc, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL319", message, loc=loc, why=f"`{name}` means something of its own in plans and emitted files", hint=hint
    )


def _check_results(wiring: Wiring) -> None:
    for name in wiring.results:
        if not wiring.producers(name):
            raise TilelinkError(
                "TL308",
                f"the result `{name}` of `{wiring.name}` is made by no program",
                loc=wiring.loc,
                why="results are fresh tensors, which the operator's tile programs write",
                hint="return what a program returns",
            )


PIECE = 64
"""Columns that a fused step takes at a time where it reads more of the same shape and the schedule does not say: as much
as leaves registers, and shared memory, for what the host has under way."""
PIECE_BEHIND = 128
"""The same of a step that comes behind its host's tiles, which has all registers for itself: fewer tickets are drawn."""


def _pieces(s: StepPlan, signals: tuple[Signal, ...]) -> int:
    if s.pieces or s.into is None:
        return max(s.pieces, 1)
    tile, piece = s.grid[-1].tile, PIECE_BEHIND if s.behind else PIECE
    notifies = any(g.path == s.path and g.action == "notify" for g in signals)
    if tile is None or tile <= piece or tile % piece or notifies:
        return 1
    return tile // piece


def _check_pieces(steps: tuple[StepPlan, ...], signals: tuple[Signal, ...]) -> None:
    """A tile that is taken in pieces is complete after the last only: what it notifies would be raised too often."""
    for s in steps:
        for g in signals:
            if s.pieces > 1 and g.path == s.path and g.action == "notify":
                raise TilelinkError(
                    "TL325",
                    f"`{s.path}` cannot take tiles of `{s.into}` in pieces, because others wait for what it makes",
                    loc=g.op.loc,
                    why="each piece would notify, and the words are counted in tiles",
                    hint=f'leave the tile size out of fused("{s.into}")',
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


def _host(
    wiring: Wiring, where: kernels.Assignment, steps: tuple[StepPlan, ...], found: Signals, staged: tuple[str, ...]
) -> tuple[HostStep, ...]:
    """What the host does in a call. It ends with leaving where peers read an argument in place."""
    by_path = {s.path: s.step for s in steps}
    awaited = {by_path[s.path].binding(s.op.param).tensor for s in found.signals if s.action == "ready"}
    enters = bool(found.channels) or bool(awaited) or any(is_raw(s.program) for s in wiring.steps)
    keeps = kept_first(steps, found.signals, found.channels)
    return host_steps(wiring, where, steps, staged, enters, not awaited <= {*staged}, keeps)


def _own_parts(steps: tuple[StepPlan, ...]) -> tuple[str, ...]:
    return tuple(
        f"{s.path}: this rank's own part of `{i.tensor}` is read in `{i.source}`" for s in steps for i in s.in_place
    )


def _buffer(
    wiring: Wiring, tensor: TensorDecl, steps: tuple[StepPlan, ...], layouts: dict[str, Layout], slots: int
) -> Buffer | None:
    """Where the tensor's own instance lives, from who touches it; None: it lives in registers only."""
    by_path = {s.path: s for s in steps}
    touching = [(by_path[s.path], b.param) for s in wiring.steps for b in s.bindings if b.tensor == tensor.name]
    remote = any(reads_remote(s, p, tensor) for s, p in touching) or any(crosses(s, p) for s, p in touching)
    if tensor.origin == "argument":
        stage = _extents(tensor, exact=False) if remote and not layouts[tensor.name].symmetric else None
        return Buffer(tensor.name, _extents(tensor, exact=True), tensor.dtype, "argument", slots, stage, remote)
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
    splits = any(a.split == tensor.name for t in wiring.tensors for a in t.axes)
    # Nobody knows what a program does with a pointer.
    raw = any(p in pointed(s.step.program) for s, p in touching)
    remote = remote or raw
    if not splits and not raw and not any(_in_memory(s, p) for s, p in touching):
        return None
    space = "symmetric" if remote else "device"
    return Buffer(tensor.name, _extents(tensor, exact=False), tensor.dtype, space, slots if remote else 1)


def _in_memory(s: StepPlan, param: str) -> bool:
    """Whether the step needs the tensor in memory, rather than in the registers of the worker that makes it."""
    binding = s.step.binding(param)
    movement = s.step.program.movement
    if s.library is not None:
        return True  # a function takes tensors, and fills one
    if movement is not None:
        return s.engine != "fused" or (bool(s.push) and param == movement.destination)
    loads = any(isinstance(op, Load) and op.param == param for op in walk(s.step.program.body))
    forwarded = binding.tensor in s.forwarded and all(v.axis is None or not v.unit for v in binding.view)
    return loads and not forwarded


def _extents(tensor: TensorDecl, exact: bool) -> tuple[Formula, ...]:
    """Elements per stored axis on a rank; a symmetric or workspace instance has whole parts, so that peers agree."""
    return tuple(
        (here(a.size, over=a.over) if exact else part(a.size, a.over)) if a.over is not None else F.of(a.size)
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
