"""`make_plan`: a wiring, a topology and a schedule become a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.kernel import OF_EVERY_FILE, OF_EVERY_FUNCTION, PLANNED
from tilelink.ir.plan import Buffer, Layout, Plan, Signal, StepPlan
from tilelink.ir.schedule import Schedule
from tilelink.ir.shape import rank_along, ranks_along
from tilelink.ir.topology import Topology, env_of
from tilelink.ir.wiring import Wiring
from tilelink.mapping import credits, kernels, protocols
from tilelink.mapping.aliases import with_aliases
from tilelink.mapping.buffers import buffers_of
from tilelink.mapping.deferred import with_deferred
from tilelink.mapping.epilogues import with_subtiles
from tilelink.mapping.orders import tables
from tilelink.mapping.owners import check_owners
from tilelink.mapping.placement import as_called, place
from tilelink.mapping.placement_rules import check_placements, check_schedule
from tilelink.mapping.remote import check_network
from tilelink.mapping.sequence import host_steps
from tilelink.mapping.signals import matched
from tilelink.mapping.steps import plan_steps


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
    check_schedule(wiring, schedule)
    placed = place(wiring, topology, schedule, sizes)
    check_placements(wiring, placed, topology)
    wiring, placed = as_called(wiring, placed)
    steps = plan_steps(wiring, placed, env_of(sizes, topology, 0))
    check_owners(wiring, steps, dict(sizes), topology.ranks)
    check_network(wiring, steps, topology)
    where = kernels.assign(wiring, steps, topology)
    workers = {path: n for k in where.kernels for path, n in k.roles}
    steps = tuple(replace(s, workers=workers.get(s.path, s.workers)) for s in steps)
    # Parts get no longer with the rank's coordinates.
    found = matched(wiring, schedule, steps, where, env_of(sizes, topology, topology.ranks - 1))
    steps = with_deferred(wiring, steps, placed, where.kernels, found.signals, sizes, topology)
    buffers = buffers_of(wiring, steps, layouts, schedule.slots)
    steps = with_subtiles(steps, found.signals)
    if len(wiring.axes) == 1:
        steps = with_aliases(wiring, steps, found.channels, layouts, sizes, topology.ranks)
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
        credits=(),
        kernels=where.kernels,
        host=host_steps(wiring, where, steps, found, buffers),
        notes=_notes(steps, found.signals, buffers),
        tables=tables(steps, topology, sizes),
    )
    plan = replace(plan, credits=credits.derive(plan))
    plan = replace(plan, epoch_signalled=protocols.epoch_signalled(plan))
    return replace(plan, ll=protocols.by_ll(plan))


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


def _notes(steps: tuple[StepPlan, ...], signals: tuple[Signal, ...], buffers: tuple[Buffer, ...]) -> tuple[str, ...]:
    out = [
        f"{s.path}: {type(s.op).__name__.lower()} on `{s.op.param}` needs no signal ({s.reason})"
        for s in signals
        if s.action == "elided"
    ]
    out += [f"argument `{b.tensor}` is read by peers: copied to a symmetric slot on entry" for b in buffers if b.staged]
    out += [
        f"{s.path}: this rank's own part of `{i.tensor}` is read in `{i.source}`" for s in steps for i in s.in_place
    ]
    return tuple(out)
