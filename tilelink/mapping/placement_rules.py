"""Which placements a step can have, and what a schedule may say."""

from __future__ import annotations

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.schedule import CopyEngine, Fused, Library, Placement, Schedule, Sms
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import Wiring
from tilelink.mapping.libraries import unsuitable
from tilelink.mapping.orders import parse, words
from tilelink.mapping.placement import Placed, converts, hosts


def check_schedule(wiring: Wiring, schedule: Schedule) -> None:
    """It speaks of what there is.

    Raises:
        TilelinkError: TL311 the schedule names no step of the operator, TL320 less than one of something.
    """
    steps, tensors = [s.path for s in wiring.steps], [t.name for t in wiring.tensors]
    unknown = [(path, "places", "step", steps) for path, _ in schedule.entries if path not in steps]
    unknown += [(name, "gives flags to", "tensor", tensors) for name, _ in schedule.channels if name not in tensors]
    for name, does, kind, known in unknown:
        raise TilelinkError(
            "TL311",
            f"the schedule {does} `{name}`, which is not a {kind} of `{wiring.name}`",
            loc=wiring.loc,
            why=f"its {kind}s are {', '.join(known)}",
            hint="name one of them",
        )
    _at_least_one(f"`{wiring.name}` with", schedule.slots, "slots", wiring.loc)
    for name, span in schedule.channels:
        _at_least_one(f"flags of `{name}` for", span, "elements", wiring.loc)


def check_placements(wiring: Wiring, placed: tuple[Placed, ...], topology: Topology) -> None:
    """Each step can be placed so.

    Raises:
        TilelinkError: TL310 no tile order, TL311 no step of the operator, TL312 a step cannot be placed so, TL313 more SMs than
            the device has, TL314 a tile that is no power of two, TL315 a tile of no dimension, TL320 less than one of something.
    """
    for p in placed:
        _check(p, placed, wiring, topology)


_WHERE: dict[type[Placement], str] = {
    Sms: "on SMs so",
    CopyEngine: "on a copy engine",
    Fused: "so: fused",
    Library: "in a library function",
}


def _refuse(p: Placed, reason: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL312",
        f"`{p.step.path}` cannot be placed {_WHERE[type(p.placement)]}",
        loc=p.step.program.loc,
        why=reason,
        hint=hint,
        notes=(Note("the step", p.step.loc),),
    )


def _no_step(what: str, wiring: Wiring) -> TilelinkError:
    return TilelinkError(
        "TL311",
        f"{what}, which is not a step of `{wiring.name}`",
        loc=wiring.loc,
        why=f"its steps are {', '.join(s.path for s in wiring.steps)}",
        hint="name one of them",
    )


def _check(p: Placed, placed: tuple[Placed, ...], wiring: Wiring, topology: Topology) -> None:
    copy_program, placement = p.step.program.copy_program, p.placement
    if isinstance(placement, CopyEngine) and copy_program is None:
        raise _refuse(
            p,
            "a copy engine only moves: a program that also computes is no copy program",
            "place it on SMs, or split the copy program into a program of its own",
        )
    if isinstance(placement, CopyEngine) and converts(p.step, wiring):
        raise _refuse(p, "a copy engine moves bytes as they are, and it moves between two dtypes", "place it on SMs")
    if isinstance(placement, (Sms, Fused)) and copy_program is not None and copy_program.pinned:
        raise _refuse(p, "the `rank_*` primitives pin a program to a copy engine", "use tilelink.copy_engine(…)")
    if isinstance(placement, Library):
        reason = unsuitable(p.step, wiring, placement)
        if reason is not None:
            raise _refuse(p, reason, "place it on SMs")
    if isinstance(placement, Fused):
        _check_fused(p, placed, wiring)
        return
    _check_numbers(p)
    parse(words(placement.order), p.step.loc)
    if isinstance(placement, Sms):
        if placement.push is not None and copy_program is None:
            raise _refuse(p, "only a copy program has a direction", "leave `push` out")
        if placement.joins is not None:
            _check_joins(p, placement, placed, wiring)
        if placement.count is not None and placement.count > topology.device.sms:
            raise TilelinkError(
                "TL313",
                f"`{p.step.path}` asks for {placement.count} SMs and the device has {topology.device.sms}",
                loc=p.step.loc,
                why="workers that wait must all be resident at once",
                hint=f"ask for at most {topology.device.sms}, fewer if another step shares the kernel",
            )
    _check_tiles(p)


def _check_joins(p: Placed, placement: Sms, placed: tuple[Placed, ...], wiring: Wiring) -> None:
    paths = [q.step.path for q in placed]
    if placement.joins not in paths:
        raise _no_step(f"`{p.step.path}` is to join `{placement.joins}`", wiring)
    host = placed[paths.index(placement.joins)]
    open_to = _leads(host) and isinstance(host.placement, Sms) and host.placement.count is None
    if p.step.program.copy_program is not None or placement.count is not None or placement.own_kernel:
        raise _refuse(
            p, "only a computing step, without SMs or a kernel of its own, joins another", "leave `joins` out"
        )
    if not open_to:
        raise _refuse(
            p, f"`{placement.joins}` has no kernel that others take turns in", "join a computing step on all SMs"
        )
    between = placed[paths.index(placement.joins) + 1 : paths.index(p.step.path)]
    made = {t for q in between if _leads(q) for t in q.step.makes}
    if placed.index(host) > placed.index(p) or made & wiring.read_from(p.step):
        raise _refuse(
            p, f"it needs what is made after the kernel of `{placement.joins}` has begun", "join a later step, or none"
        )


def _leads(p: Placed) -> bool:
    """Whether it has a kernel of its own."""
    return isinstance(p.placement, Sms) and p.placement.joins is None and p.step.program.copy_program is None


def _check_numbers(p: Placed) -> None:
    if isinstance(p.placement, (CopyEngine, Library)):
        _at_least_one(f"`{p.step.path}` over", p.placement.streams, "streams", p.step.loc)
    if isinstance(p.placement, Sms):
        _at_least_one(f"`{p.step.path}` on", p.placement.count, "SMs", p.step.loc)
        _at_least_one(f"`{p.step.path}` in", p.placement.stages, "stages", p.step.loc)
        _at_least_one(f"`{p.step.path}` with", p.placement.warps, "warps", p.step.loc)
        warps = p.placement.warps
        if warps & (warps - 1):
            raise TilelinkError(
                "TL320",
                f"the schedule has `{p.step.path}` with {warps} warps",
                loc=p.step.loc,
                why="Triton takes a power of two",
                hint=f"use {1 << (warps.bit_length() - 1)} or {1 << warps.bit_length()}",
            )


def _at_least_one(what: str, number: int | None, unit: str, loc: Loc) -> None:
    if number is not None and number < 1:
        raise TilelinkError(
            "TL320",
            f"the schedule has {what} {number} {unit}",
            loc=loc,
            why="nothing runs with less than one",
            hint="ask for one or more",
        )


def _check_tiles(p: Placed) -> None:
    known = {a.dim for b in p.step.bindings for a in b.view}
    tile = p.placement.tile if not isinstance(p.placement, Fused) else ()
    for dim, size in tile:
        if dim not in known:
            raise TilelinkError(
                "TL315",
                f"the schedule tiles `{dim}`, which `{p.step.path}` does not have",
                loc=p.step.program.loc,
                why=f"its dimensions are {', '.join(sorted(d for d in known if not d.startswith('_')))}",
                hint="name one of them",
            )
        if p.step.program.copy_program is None and size & (size - 1) and not isinstance(p.placement, Library):
            raise TilelinkError(
                "TL314",
                f"a tile of {size} along `{dim}` of `{p.step.path}` is not a power of two",
                loc=p.step.program.loc,
                why="the shape of a Triton block is made of powers of two",
                hint=f"use {1 << (size.bit_length() - 1)} or {1 << size.bit_length()}",
            )


def _check_fused(p: Placed, placed: tuple[Placed, ...], wiring: Wiring) -> None:
    assert isinstance(p.placement, Fused)
    if p.placement.into not in [s.path for s in wiring.steps]:
        raise _no_step(f"`{p.step.path}` is to be fused into `{p.placement.into}`", wiring)
    host = next(q for q in placed if q.step.path == p.placement.into)
    if isinstance(host.placement, Library):
        raise _refuse(p, "a library function ends without giving its tile away", "place it on SMs")
    if hosts(placed)[p.step.path] not in [q.step.path for q in placed if not isinstance(q.placement, Fused)]:
        raise _refuse(p, "programs that are fused into one another have no workers", "place one of them on SMs")
