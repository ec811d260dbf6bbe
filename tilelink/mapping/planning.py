"""`make_plan`: a wiring, a topology and a schedule become a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilelink.errors import TilelinkError
from tilelink.ir.kernel import OF_EVERY_FILE, OF_EVERY_FUNCTION, PLANNED
from tilelink.ir.plan import Layout, Plan, StepPlan
from tilelink.ir.schedule import Schedule
from tilelink.ir.shape import rank_along, ranks_along
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping import protocols
from tilelink.mapping.buffers import buffers_of, with_aliases
from tilelink.mapping.channels import matched
from tilelink.mapping.epilogues import epilogue, with_deferred, with_subtiles
from tilelink.mapping.grids import lineage_of, made_tiles, standing
from tilelink.mapping.kernels import assign, host_steps
from tilelink.mapping.orders import tables
from tilelink.mapping.placement import as_called, directed, hosts, placed
from tilelink.mapping.placement_rules import (
    check_fillers,
    check_network,
    check_owners,
    check_placements,
    check_schedule,
    check_together,
)


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
        TilelinkError: TL301 to TL336, what the wiring or the schedule cannot mean; TL606, a signal of which nobody can say
            who hears it.
    """
    _check_names(wiring)
    for name in wiring.results:
        if not wiring.producers(name):
            raise TilelinkError(
                "TL308",
                f"the result `{name}` of `{wiring.name}` is made by no program",
                loc=wiring.loc,
                why="results are fresh tensors, which the operator's tile programs write",
                hint="return what a program returns",
            )
    plan = Plan(
        wiring=wiring,
        topology=topology,
        schedule=schedule,
        sizes=tuple(sizes.items()),
        layouts=tuple(layouts.items()),
    )
    check_schedule(plan)
    plan = replace(plan, wiring=placed(plan))
    check_placements(plan)
    plan = replace(plan, wiring=as_called(plan.wiring))
    plan = replace(plan, steps=_steps(plan))
    check_owners(plan)
    check_together(plan)
    check_fillers(plan)
    check_network(plan)
    plan = replace(plan, kernels=assign(plan))
    workers = {path: n for k in plan.kernels for path, n in k.roles}
    plan = replace(plan, steps=tuple(replace(s, workers=workers.get(s.path)) for s in plan.steps))
    signals, channels = matched(plan)
    plan = replace(plan, signals=signals, channels=channels)
    plan = replace(plan, steps=with_deferred(plan))
    plan = replace(plan, buffers=buffers_of(plan))
    plan = replace(plan, steps=with_subtiles(plan))
    if len(wiring.axes) == 1:
        plan = replace(plan, steps=with_aliases(plan))
    plan = replace(plan, host=host_steps(plan), notes=tuple(_notes(plan)), tables=tables(plan))
    plan = replace(plan, credits_implied_by=protocols.implying_credits(plan))
    plan = replace(plan, epoch_signalled=protocols.epoch_signalled(plan))
    return replace(plan, ll=protocols.by_ll(plan))


def _notes(plan: Plan) -> Iterator[str]:
    for s in plan.signals:
        if s.action == "elided":
            yield f"{s.path}: {type(s.op).__name__.lower()} on `{s.op.param}` needs no signal ({s.reason})"
    for b in plan.buffers:
        if b.staged:
            yield f"argument `{b.name}` is read by peers: copied to a symmetric slot on entry"
    for s in plan.steps:
        yield from (f"{s.path}: this rank's own part of `{i.tensor}` is read in `{i.source}`" for i in s.in_place)


def _check_names(wiring: Wiring) -> None:
    """Sizes, and what is copied from the users' modules, keep their names in formulas and files."""
    along = {sym.name for axis in wiring.axes for sym in (rank_along(axis), ranks_along(axis))}
    hint = "give the dimension another name in the signature"
    taken = [
        (f"a size called `{name}`", name, wiring.loc, hint)
        for name in wiring.sizes
        if name in ("t", "rank", "RANKS", *along) or name.endswith(("_begin", "_end")) or PLANNED.fullmatch(name)
    ]
    for program in (s.program for s in wiring.steps):
        copied = [("helper", h.name) for h in program.helpers] + [("constant", name) for name, _ in program.globals]
        taken += [
            (f"a {kind} called `{name}`", name, program.loc, f"give the {kind} another name")
            for kind, name in copied
            if name in OF_EVERY_FILE | OF_EVERY_FUNCTION or PLANNED.fullmatch(name)
        ]
    for message, name, loc, hint in taken:
        why = f"`{name}` means something of its own in plans and emitted files"
        raise TilelinkError("TL319", message, loc=loc, why=why, hint=hint)


# ------------------------------------------------------------------------------------------------------------------ steps
def _steps(plan: Plan) -> tuple[StepPlan, ...]:
    """Every step with its grid and order; fused steps follow their host's.

    Raises:
        TilelinkError: of what is fused, TL316 tiles that are not its host's, TL325 pieces of them, TL332 another axis of ranks.
    """
    wiring, host_of = plan.wiring, hosts(plan.wiring)
    plans: dict[str, StepPlan] = {}
    for s in wiring.steps:
        if host_of[s.path] == s.path:
            followers = [q for q in wiring.steps if q.path != s.path and host_of[q.path] == s.path]
            plans[s.path] = standing(plan, s, frozenset(_cuts(wiring, s, followers)))
    for s in wiring.steps:
        if host_of[s.path] != s.path:
            plans[s.path] = epilogue(wiring, s, plans[host_of[s.path]])
    ordered = [plans[s.path] for s in wiring.steps]
    forwarded = {tensor for s in ordered for tensor in s.forwarded}
    # A copy program need not move what is forwarded; but a pull is for tiles of other ranks anyway: what it brings is read from
    # memory, also this rank's own.
    return tuple(
        replace(
            s,
            fused=tuple(q.path for q in ordered if q.into == s.path),
            skip_own=bool(s.push) and s.step.moved_to in forwarded,
        )
        for s in ordered
    )


def _cuts(wiring: Wiring, host: Step, followers: list[Step]) -> Iterator[int]:
    """Axes of the step's domain that must end at rank borders: those that a fused program's do, and along which others pull what
    it makes, since a tile that one rank waits for may not reach into two parts."""
    lineage = lineage_of(host, wiring.steps) if followers else {}
    for q in followers:
        dims = q.program.signature.global_dims()
        for tensor, v in ((b.tensor, v) for b in q.bindings for v in b.view):
            found = None if v.axis is None else lineage.get((tensor, v.axis))
            # A fused program that runs for own rows only needs whole parts as well.
            if found is not None and (v.dim in dims or v.over == q.axis):
                yield found
    made = made_tiles(host)
    for q in wiring.steps:
        if q.moves is None or directed(wiring, q)[1] or q.axis != host.axis:
            continue
        for v, w in q.moved_axes:
            found = None if v.axis is None else made.get((q.moves[0].tensor, v.axis))
            if found is not None and w.over == q.axis:
                yield found
