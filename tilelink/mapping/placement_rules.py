"""Which placements a step can have, and what a schedule may say."""

from __future__ import annotations

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.program import Store, walk
from tilelink.ir.schedule import CopyEngine, Fused, Library, Placement, Sms
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping.libraries import unsuitable
from tilelink.mapping.orders import parse
from tilelink.mapping.placement import converts, hosts
from tilelink.mapping.signal_matching import crosses, reads_remote


def check_schedule(plan: Plan) -> None:
    """It speaks of what there is.

    Raises:
        TilelinkError: TL311 the schedule names no step of the operator, TL320 less than one of something.
    """
    wiring, schedule = plan.wiring, plan.schedule
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


def check_placements(plan: Plan) -> None:
    """Each step can be placed so.

    Raises:
        TilelinkError: TL310 no tile order, TL311 no step of the operator, TL312 a step cannot be placed so, TL313 more SMs than
            the device has, TL314 a tile that is no power of two, TL315 a tile of no dimension, TL320 less than one of something.
    """
    for s in plan.wiring.steps:
        copy_program, placement = s.program.copy_program, s.placement
        if isinstance(placement, CopyEngine) and copy_program is None:
            why = "a copy engine only moves: a program that also computes is no copy program"
            raise _refuse(s, why, "place it on SMs, or split the copy program into a program of its own")
        if isinstance(placement, CopyEngine) and converts(s, plan.wiring):
            why = "a copy engine moves bytes as they are, and it moves between two dtypes"
            raise _refuse(s, why, "place it on SMs")
        if isinstance(placement, (Sms, Fused)) and copy_program is not None and copy_program.pinned:
            why = "the `rank_*` primitives pin a program to a copy engine"
            raise _refuse(s, why, "use tilelink.copy_engine(…)")
        if isinstance(placement, Library):
            reason = unsuitable(s, plan.wiring, placement)
            if reason is not None:
                raise _refuse(s, reason, "place it on SMs")
        if isinstance(placement, Fused):
            _check_fused(s, placement, plan.wiring)
            continue
        assert placement is not None
        _check_numbers(s)
        parse(placement.order, s.loc)
        if isinstance(placement, Sms):
            _check_sms(s, placement, plan)
        _check_tiles(s, placement)


_WHERE: dict[type[object], str] = {
    Sms: "on SMs so",
    CopyEngine: "on a copy engine",
    Fused: "so: fused",
    Library: "in a library function",
}


def _refuse(s: Step, reason: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL312",
        f"`{s.path}` cannot be placed {_WHERE[type(s.placement)]}",
        loc=s.program.loc,
        why=reason,
        hint=hint,
        notes=(Note("the step", s.loc),),
    )


def _no_step(what: str, wiring: Wiring) -> TilelinkError:
    return TilelinkError(
        "TL311",
        f"{what}, which is not a step of `{wiring.name}`",
        loc=wiring.loc,
        why=f"its steps are {', '.join(s.path for s in wiring.steps)}",
        hint="name one of them",
    )


def _check_fused(s: Step, placement: Fused, wiring: Wiring) -> None:
    host = next((q for q in wiring.steps if q.path == placement.into), None)
    if host is None:
        raise _no_step(f"`{s.path}` is to be fused into `{placement.into}`", wiring)
    if isinstance(host.placement, Library):
        raise _refuse(s, "a library function ends without giving its tile away", "place it on SMs")
    root = next((q for q in wiring.steps if q.path == hosts(wiring)[s.path]), None)
    if root is None or isinstance(root.placement, Fused):
        raise _refuse(s, "programs that are fused into one another have no workers", "place one of them on SMs")
    if root.moves is not None:
        raise _refuse(s, f"`{root.path}` only moves its tiles, and nothing runs behind one", "place it on SMs")


def _check_sms(s: Step, placement: Sms, plan: Plan) -> None:
    copies, count, sms = s.moves is not None, placement.count, plan.topology.device.sms
    if placement.push is not None and not copies:
        raise _refuse(s, "only a copy program has a direction", "leave `push` out")
    if placement.joins is not None:
        steps = plan.wiring.steps
        paths = [q.path for q in steps]
        if placement.joins not in paths:
            raise _no_step(f"`{s.path}` is to join `{placement.joins}`", plan.wiring)
        at = paths.index(placement.joins)
        host = steps[at]
        if copies or count is not None or placement.own_kernel:
            why = "only a computing step, without SMs or a kernel of its own, joins another"
            raise _refuse(s, why, "leave `joins` out")
        if not (_leads(host) and isinstance(host.placement, Sms) and host.placement.count is None):
            why = f"`{placement.joins}` has no kernel that others take turns in"
            raise _refuse(s, why, "join a computing step on all SMs")
        made = {t for q in steps[at + 1 : paths.index(s.path)] if _leads(q) for t in q.makes}
        if at > paths.index(s.path) or made & plan.wiring.read_from(s):
            why = f"it needs what is made after the kernel of `{placement.joins}` has begun"
            raise _refuse(s, why, "join a later step, or none")
    if count is not None and count > sms:
        raise TilelinkError(
            "TL313",
            f"`{s.path}` asks for {count} SMs and the device has {sms}",
            loc=s.loc,
            why="workers that wait must all be resident at once",
            hint=f"ask for at most {sms}, fewer if another step shares the kernel",
        )


def _leads(s: Step) -> bool:
    """Whether it has a kernel of its own."""
    return isinstance(s.placement, Sms) and s.placement.joins is None and s.moves is None


def _check_numbers(s: Step) -> None:
    placement, loc = s.placement, s.loc
    if isinstance(placement, (CopyEngine, Library)):
        _at_least_one(f"`{s.path}` over", placement.streams, "streams", loc)
    if isinstance(placement, Sms):
        _at_least_one(f"`{s.path}` on", placement.count, "SMs", loc)
        _at_least_one(f"`{s.path}` in", placement.stages, "stages", loc)
        _at_least_one(f"`{s.path}` with", placement.warps, "warps", loc)
        if _no_power_of_two(placement.warps):
            raise TilelinkError(
                "TL320",
                f"the schedule has `{s.path}` with {placement.warps} warps",
                loc=loc,
                why="Triton takes a power of two",
                hint=_powers_around(placement.warps),
            )


def _no_power_of_two(size: int) -> bool:
    return size & (size - 1) != 0


def _powers_around(size: int) -> str:
    return f"use {1 << (size.bit_length() - 1)} or {1 << size.bit_length()}"


def _at_least_one(what: str, number: int | None, unit: str, loc: Loc) -> None:
    if number is not None and number < 1:
        raise TilelinkError(
            "TL320",
            f"the schedule has {what} {number} {unit}",
            loc=loc,
            why="nothing runs with less than one",
            hint="ask for one or more",
        )


def _check_tiles(s: Step, placement: Placement) -> None:
    known = {a.dim for b in s.bindings for a in b.view}
    for dim, size in placement.tile:
        if dim not in known:
            raise TilelinkError(
                "TL315",
                f"the schedule tiles `{dim}`, which `{s.path}` does not have",
                loc=s.program.loc,
                why=f"its dimensions are {', '.join(sorted(d for d in known if not d.startswith('_')))}",
                hint="name one of them",
            )
        if s.moves is None and _no_power_of_two(size) and not isinstance(placement, Library):
            raise TilelinkError(
                "TL314",
                f"a tile of {size} along `{dim}` of `{s.path}` is not a power of two",
                loc=s.program.loc,
                why="the shape of a Triton block is made of powers of two",
                hint=_powers_around(size),
            )


def check_together(plan: Plan) -> None:
    """What a program takes together and stores, along an axis of its domain, is one tile: else that would hang on how long
    tiles are.

    Raises:
        TilelinkError: TL336.
    """
    for s in (s for s in plan.steps if s.library is None):
        tiles = {g.var: g for g in s.grid if g.kind != "table"}
        for t in (t for t in s.step.program.together if t.stored and t.var in tiles):
            grid = tiles[t.var]
            # The first rank has most.
            count, size = (int(F.evaluate(f, plan.env(0))) for f in (grid.count, grid.size))
            if count > 1:
                whole = 1 << (size - 1).bit_length()
                raise TilelinkError(
                    "TL336",
                    f"`{t.what}` takes a tile of `{grid.dim}` together, and `{s.path}` has {count} of them",
                    loc=t.loc,
                    why="how long tiles are is the schedule's matter, and it would say what comes out",
                    hint=f"let it be one tile: `_` for its index in `tl.tile_id`, or {grid.dim}={whole} in the schedule; or walk "
                    "the axis with `tl.tiles`",
                    notes=(Note("the step", s.step.loc),),
                )


# ---------------------------------------------------------------------------------------------------------------- networks
def check_network(plan: Plan) -> None:
    """Where a network lies between ranks, steps put from memory, with their signals, and do nothing else there.

    Raises:
        TilelinkError: TL330, a step that reads from other ranks, or stores to them what is in registers.
    """
    for s in plan.steps:
        axis, moves = plan.topology.axis(s.axis), s.step.moves
        if axis.reach != "network" or axis.size == 1:
            continue
        if moves is not None and reads_remote(s, moves[0].param, plan.wiring.tensor(moves[0].tensor)):
            hint = "let it push (push=True)"
            raise _away(s.step.loc, f"`{s.path}` pulls from ranks that are reached over a network only", hint)
        if moves is not None and s.into is not None and crosses(s, moves[1].param):
            what = (
                f"`{s.path}` pushes tiles of `{s.into}` out of registers to ranks that are reached over a network only"
            )
            raise _away(
                s.step.loc, what, "give it workers of its own, which put what lies in memory: sms(2, push=True)"
            )
        for op in walk(s.step.program.body) if moves is None else ():
            if isinstance(op, Store) and crosses(s, op.param):
                hint = "store the tile, and let a copy program of its own push it"
                raise _away(op.loc, f"`{s.path}` stores to ranks that are reached over a network only", hint)


def _away(loc: Loc, message: str, hint: str) -> TilelinkError:
    why = "a network takes puts: contiguous memory of this rank, copied to another"
    return TilelinkError("TL330", message, loc=loc, why=why, hint=hint)
