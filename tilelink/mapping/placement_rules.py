"""Which placements a step can have, what a schedule may say, and what owner maps may."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Expr, Load, Notify, OfTile, Op, Store, Tiles, Wait, walk
from tilelink.ir.schedule import CopyEngine, Fused, Library, Placement, Sms
from tilelink.ir.wiring import Step, TensorAxis, TensorDecl, Wiring, entry_on
from tilelink.mapping.libraries import unsuitable
from tilelink.mapping.orders import parse
from tilelink.mapping.placement import converts, hosts
from tilelink.mapping.signal_matching import crosses, owned, reads_remote


def check_schedule(plan: Plan) -> None:
    """It speaks of what there is.

    Raises:
        TilelinkError: TL311, the schedule names no step of the operator.
    """
    wiring, schedule = plan.wiring, plan.schedule
    steps, tensors = [s.path for s in wiring.steps], [t.name for t in wiring.tensors]
    unknown = [(path, "places", "step", steps) for path, _ in schedule.entries if path not in steps]
    unknown += [(name, "gives flags to", "tensor", tensors) for name, _ in schedule.channels if name not in tensors]
    for name, does, kind, known in unknown:
        raise _unknown(f"the schedule {does} `{name}`", kind, known, wiring)


def check_placements(plan: Plan) -> None:
    """Each step can be placed so.

    Raises:
        TilelinkError: TL310 no tile order, TL311 no step of the operator, TL312 a step cannot be placed so, TL313 more SMs than
            the device has, TL314 a tile, or TL320 warps, that are no power of two, TL315 a tile of no
            dimension.
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
            reason = unsuitable(s, placement)
            if reason is not None:
                raise _refuse(s, reason, "place it on SMs")
        if isinstance(placement, Fused):
            _check_fused(s, placement, plan.wiring)
            continue
        assert placement is not None
        _check_warps(s)
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


def _unknown(what: str, kind: str, known: list[str], wiring: Wiring) -> TilelinkError:
    return TilelinkError(
        "TL311",
        f"{what}, which is not a {kind} of `{wiring.name}`",
        loc=wiring.loc,
        why=f"its {kind}s are {', '.join(known)}",
        hint="name one of them",
    )


def _check_fused(s: Step, placement: Fused, wiring: Wiring) -> None:
    host = next((q for q in wiring.steps if q.path == placement.into), None)
    if host is None:
        paths = [q.path for q in wiring.steps]
        raise _unknown(f"`{s.path}` is to be fused into `{placement.into}`", "step", paths, wiring)
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
            raise _unknown(f"`{s.path}` is to join `{placement.joins}`", "step", paths, plan.wiring)
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


def _check_warps(s: Step) -> None:
    if isinstance(s.placement, Sms) and _no_power_of_two(s.placement.warps):
        raise TilelinkError(
            "TL320",
            f"the schedule has `{s.path}` with {s.placement.warps} warps",
            loc=s.loc,
            why="Triton takes a power of two",
            hint=_powers_around(s.placement.warps),
        )


def _no_power_of_two(size: int) -> bool:
    return size & (size - 1) != 0


def _powers_around(size: int) -> str:
    return f"use {1 << (size.bit_length() - 1)} or {1 << size.bit_length()}"


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
        walks = [op for op in walk(s.step.program.body) if isinstance(op, Tiles) and not s.view(op).unit]
        tiles = [(g.var, g, False) for g in s.grid] + [(op.said or op.var, s.loop(op), True) for op in walks]
        found = (
            (t, grid, walked) for t in s.step.program.together for v, grid, walked in tiles if t.stored and t.var == v
        )
        for t, grid, walked in found:
            hint = "weigh tiles by how long they are" if walked else "walk the axis with `tl.tiles`"
            if grid.kind == "table":
                many = f"as many of them as `{grid.table}` says"
            else:
                # The first rank has most.
                count, size = (int(F.evaluate(f, plan.env(0))) for f in (grid.count, grid.size))
                if count <= 1:
                    continue
                many, whole = f"{count} of them", 1 << (size - 1).bit_length()
                written = "" if walked else "`_` for its index in `tl.tile_id`, or "
                hint = f"let it be one tile: {written}{grid.dim}={whole} in the schedule; or {hint}"
            takes = (
                f"`{t.what}` takes a tile of `{grid.dim}` together"
                if t.what
                else f"what is stored hangs on the tiles of `{grid.dim}`"
            )
            raise TilelinkError(
                "TL336",
                f"{takes}, and `{s.path}` has {many}",
                loc=t.loc,
                why="how long tiles are is the schedule's matter, and it would say what comes out",
                hint=hint,
                notes=(Note("the step", s.step.loc),),
            )


def check_fillers(plan: Plan) -> None:
    """What a load of integers gives past an edge is one of theirs.

    Raises:
        TilelinkError: TL337.
    """
    for s in plan.steps:
        for op in (o for o in walk(s.step.program.body) if isinstance(o, Load) and o.other is not None):
            dtype = plan.wiring.tensor(s.step.binding(op.param).tensor).dtype
            number = _number(op.other, s.step.compiled) if op.other is not None else None
            if number is None or dtype[0] not in "iu":
                continue
            bits = int(dtype[1:])
            least, most = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            if least <= number <= most and number == int(number):
                continue
            raise TilelinkError(
                "TL337",
                f"`other={op.other}` of `{op.param}`, which holds {dtype}",
                loc=op.loc,
                why=f"{dtype} holds whole numbers from {least} to {most}: it would become another number",
                hint=f"say `other={least if number < least else most if number > most else 0}`",
                notes=(Note("the step", s.step.loc),),
            )


def _number(filler: Expr, constants: Mapping[str, Any]) -> float | None:
    """What a filler comes to, where no data says it."""
    found = re.fullmatch(r"""(-?)float\(['"]([+-]?(?:inf[a-z]*|nan))['"]\)""", str(filler))
    if found is not None:
        return float(found[2]) * (-1 if found[1] else 1)
    if filler.formula is not None and F.symbols(filler.formula) <= constants.keys():
        value = F.evaluate(filler.formula, constants)
        return value if isinstance(value, int) else None
    try:
        return float(str(filler))
    except ValueError:
        return None


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
        if moves is not None and reads_remote(s, moves[0].param):
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


# -------------------------------------------------------------------------------------------------------------- owner maps
def check_owners(plan: Plan) -> None:
    """A map gives every position one of the ranks; a tile lies with one of them; a rank reads what it holds.

    Raises:
        TilelinkError: TL306.
    """
    wiring = plan.wiring
    for tensor in wiring.tensors:
        if tensor.owned is None:
            continue
        held_by = _holders(plan, tensor, tensor.axes[tensor.owned])
        uses = [(s, b.param) for s in plan.steps for b in s.step.bindings if b.tensor == tensor.name]
        for s, param in uses:
            if s.step.moves is not None and s.step.moves[0].param == param and not s.push:
                raise _refused(tensor, s.step.loc, f"`{s.path}` pulls from it", "let it push (`push=True`)")
            for op, grid in _touched(tensor, s, param):
                if grid is None:
                    raise _refused(
                        tensor, op.loc, "more than one tile of the map's axis is named", "name one tile of it"
                    )
                if isinstance(op, (Load, Wait)) and not _runs_where_held(tensor, s, grid):
                    what = f"`{s.path}` also runs where this tile is not held"
                    raise _refused(tensor, op.loc, what, f"take the program's tiles from it: `tl.tile_id({param})`")
                _check_lies_with_one(plan, tensor, s, grid, held_by)


def _holders(plan: Plan, tensor: TensorDecl, axis: TensorAxis) -> Any:
    """The rank of each position on the map's axis."""
    assert axis.owner is not None
    env, ranks = plan.env(0), plan.topology.ranks
    variables = dict(zip(axis.owner.variables, range(len(tensor.axes)), strict=False))
    named = F.symbols(axis.owner.formula)
    if len(named & variables.keys()) > 1:
        raise _refused(tensor, tensor.loc, "it looks at two axes", "let one axis say who holds what")
    if any(a.split is not None for a in tensor.axes):
        raise _refused(tensor, tensor.loc, "its shape splits it as well", "say it once: in the shape or by `owner=`")
    unknown = named - variables.keys() - env.keys()
    if unknown:
        raise _refused(
            tensor, tensor.loc, f"`{min(unknown)}` is not a size of the operator", "name sizes, numbers and `R`"
        )
    size = int(F.evaluate(axis.size, env))
    found = np.broadcast_to(F.evaluate(axis.holder(F.Sym("_at")), {**env, "_at": np.arange(size)}), (size,))
    wrong = np.flatnonzero((found < 0) | (found >= ranks))
    if len(wrong):
        at = int(wrong[0])
        hint = "end it with `% R`" if found[at] > 0 else "add `R` before `% R`: of what is below 0 that is below 0, too"
        raise _refused(tensor, tensor.loc, f"position {at} would lie with rank {int(found[at])} of {ranks}", hint)
    return found


def _touched(tensor: TensorDecl, s: StepPlan, param: str) -> Iterator[tuple[Op, GridAxis | None]]:
    """Each op on the tensor, with the partition whose tile it names on the map's axis; of an axis that is walked singly that is
    a position."""
    for op in walk(s.step.program.body):
        if isinstance(op, (Load, Store, Wait, Notify)) and op.param == param:
            entry = entry_on(s.step, param, op.index, tensor.owned)
            grids: list[GridAxis] = []
            if isinstance(entry, OfTile):
                grids = [g for g in s.grid if g.var == entry.var]
            elif isinstance(entry, At) and entry.ring is None:
                grids = [g for g in s.grid if g.var == entry.expr.text and g.kind == "unit"]
            yield op, next(iter(grids), None)


def _runs_where_held(tensor: TensorDecl, s: StepPlan, grid: GridAxis) -> bool:
    """The program runs for the tiles that this rank holds of a tensor with the same map."""
    mine, theirs = owned(s, grid), tensor.axes[tensor.owned or 0]
    return mine is not None and mine.holder(F.Sym("_at")) == theirs.holder(F.Sym("_at"))


def _check_lies_with_one(plan: Plan, tensor: TensorDecl, s: StepPlan, grid: GridAxis, held_by: Any) -> None:
    """A tile has one holder."""
    borders = np.flatnonzero(np.diff(held_by)) + 1
    for env in map(plan.env, range(plan.topology.ranks)):
        count = int(F.evaluate(grid.count, env))
        index = {**env, "_at": np.arange(count)}
        begin, end = (
            np.broadcast_to(F.evaluate(f, index), (count,)) for f in (grid.begin(F.Sym("_at")), grid.end(F.Sym("_at")))
        )
        across = np.searchsorted(borders, begin, side="right") < np.searchsorted(borders, end, side="left")
        if across.any():
            at = int(np.flatnonzero(across)[0])
            raise _refused(
                tensor,
                s.step.loc,
                f"the tile of `{s.path}` from {int(begin[at])} to {int(end[at])} lies with two ranks",
                f"tile `{grid.dim}` so that its tiles end where the map changes",
            )


def _refused(tensor: TensorDecl, loc: Loc | None, why: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL306",
        f"`{tensor.name}` cannot be held as its owner map `{tensor.axes[tensor.owned or 0].owner}` says",
        loc=loc or tensor.loc,
        why=why,
        hint=hint,
    )
