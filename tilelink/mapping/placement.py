"""Where each step runs: the schedule's entries, and what a step gets that the schedule does not name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.partition import extent, part
from tilelink.ir.program import Store, TileProgram, Tiles, has_dot, tile_names, walk
from tilelink.ir.schedule import PART, CopyEngine, Fused, Library, Placement, Schedule, Sms, as_simulated, counted
from tilelink.ir.topology import Topology, env_of
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping.libraries import called, unsuitable
from tilelink.mapping.orders import parse, words
from tilelink.mapping.waves import DEPTH, LARGE, SHAPES, Product, Shape


@dataclass(frozen=True, slots=True)
class Placed:
    """A step and its placement."""

    step: Step
    placement: Placement

    @property
    def tile(self) -> dict[str, int]:
        """Elements per dimension; of one that is taken part by part, nothing."""
        tile = self.placement.tile if not isinstance(self.placement, Fused) else ()
        return {dim: size for dim, size in tile if size != PART}


def place(wiring: Wiring, topology: Topology, schedule: Schedule, sizes: Mapping[str, int]) -> tuple[Placed, ...]:
    """Every step with a placement that it can have.

    Raises:
        TilelinkError: TL310 no tile order, TL311 the schedule names no step of the operator, TL312 a step cannot be placed so,
            TL313 more SMs than the device has, TL314 a tile that is no power of two, TL315 a tile of no dimension,
            TL320 less than one of something.
    """
    _check_schedule(wiring, schedule)
    placed = tuple(
        Placed(s, _ordered(s, wiring, placement_of(s, wiring, topology, schedule, sizes))) for s in wiring.steps
    )
    for p in placed:
        _check(p, placed, wiring, topology)
    return placed


def _check_schedule(wiring: Wiring, schedule: Schedule) -> None:
    """It speaks of what there is."""
    steps, tensors = [s.path for s in wiring.steps], [t.name for t in wiring.tensors]
    unknown = [(path, "places", "step", steps) for path, _ in schedule.entries if path not in steps]
    unknown += [(name, "gives words to", "tensor", tensors) for name, _ in schedule.channels if name not in tensors]
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
        _at_least_one(f"words of `{name}` for", span, "elements", wiring.loc)


def _ordered(step: Step, wiring: Wiring, placement: Placement) -> Placement:
    """A stream without an order of its own goes along the ring."""
    if isinstance(placement, Library) and not placement.order:
        return replace(placement, order=(_ring(step, wiring),))
    if not isinstance(placement, CopyEngine) or placement.order:
        return placement
    return replace(placement, order=("ring+1",) if _moves_what_is_made(step, wiring) else ("ring",))


def as_called(wiring: Wiring, placed: tuple[Placed, ...]) -> tuple[Wiring, tuple[Placed, ...]]:
    """The steps as what computes them takes them: all heads at once, where that is a library function by runs."""
    found = tuple(
        replace(p, step=called(p.step, runs=p.placement.runs)) if isinstance(p.placement, Library) else p
        for p in placed
    )
    return replace(wiring, steps=tuple(p.step for p in found)), found


def placement_of(
    step: Step, wiring: Wiring, topology: Topology, schedule: Schedule, sizes: Mapping[str, int]
) -> Placement:
    """What a step gets: what the schedule says, else what an inlined operator brings along for it, else the default."""
    found = schedule.get(step.path) or step.shipped or default(step, wiring, topology, schedule, sizes)
    return counted(as_simulated(found) if topology.world == "simulated" else found, topology.device.sms)


def default(step: Step, wiring: Wiring, topology: Topology, schedule: Schedule, sizes: Mapping[str, int]) -> Placement:
    """What a step gets without an entry in the schedule: movements copy engines where there are any, matmuls large tiles, or
    smaller ones that fill the last wave better."""
    program = step.program
    if program.movement is not None:
        # A result is no memory that peers reach: whoever returns it fetches it.
        result = step.binding(program.movement.destination).tensor in wiring.results
        engine = topology.world == "peer" and not _moves_what_is_made(step, wiring) and not _converts(step, wiring)
        if program.movement.pinned or engine:
            return CopyEngine(push=not result if not program.movement.pinned else None)
        away = topology.axis(step.axis).reach == "network" or _made_along_another(step, wiring)
        away = away or (not result and _made_by_others(step, wiring, topology, schedule, sizes))
        push = True if away else False if result else None
        return Sms(count=2, tile=_leading(step, 128), order=("ring",), push=push)
    dims = [a.name for a in program.param(program.domain).shape.axes if not a.unit]
    loops = [_loop_dim(step, op) for op in walk(program.body) if isinstance(op, Tiles)]
    inner = [d for d in loops if d is not None and d not in dims]
    if not has_dot(program):
        tile = dict.fromkeys(dims[:-1], 16) | dict.fromkeys(dims[-1:], 512) | dict.fromkeys(inner, 64)
        return Sms(tile=_named(program, tile), order=("row",))
    small = topology.world == "simulated"
    shape = LARGE if small else _shape(step, wiring, topology, dims, inner, sizes)
    tile = dict.fromkeys(dims[:-1], 64 if small else shape.rows) | dict.fromkeys(
        dims[-1:], 64 if small else shape.columns
    )
    tile |= dict.fromkeys(inner, DEPTH)
    ring = _ring(step, wiring)
    # Measured (docs/performance.md): who waits for rows does best with groups as high as a part, who makes them with half.
    group = "group 16" if ring == "ring" and not small else "group 8"
    return Sms(tile=_named(program, tile), order=(ring, group), warps=shape.warps, stages=shape.stages)


def _named(program: TileProgram, tile: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Tile sizes of a default: an axis of the domain that the program has no name for is one tile, which it takes whole."""
    axes = zip(program.param(program.domain).shape.axes, tile_names(program), strict=True)
    whole = {axis.name for axis, name in axes if name is None}
    return tuple((dim, length) for dim, length in tile.items() if dim not in whole)


def _shape(
    step: Step, wiring: Wiring, topology: Topology, dims: list[str], inner: list[str], sizes: Mapping[str, int]
) -> Shape:
    """The tile of a matmul: the large one, unless it is a plain product whose sizes are better off with another."""
    env = env_of(sizes, topology, 0)
    extents = {
        v.dim: int(F.evaluate(extent(wiring.tensor(b.tensor), v, step.axis), env))
        for b in step.bindings
        for v in b.view
        if v.axis is not None and v.dim in (*dims, *inner)
    }
    if topology.device.capability != 90 or len(dims) != 2 or len(inner) != 1 or {*dims, *inner} - extents.keys():
        return LARGE
    rows, columns, depth = (extents[d] for d in (*dims, *inner))
    if ring_of(wiring, step, dims[0]) is None:
        return Product(rows, columns, depth).best(SHAPES, topology.device.sms)
    product = Product(rows, columns, depth, topology.size(step.axis))
    each = 2 * -(-rows // product.parts)
    if _ring(step, wiring) == "ring":
        return product.best(SHAPES, topology.device.sms, coming=each * depth)
    return product.best(SHAPES, topology.device.sms, going=each * columns)


def ring_of(wiring: Wiring, step: Step, dim: str) -> Formula | None:
    """The part length along a dimension of a step, if some movement of this operator splits a tensor there over the ranks."""
    for b in step.bindings:
        for w in b.view:
            if w.dim != dim or w.axis is None:
                continue
            for other in (s for s in wiring.steps if s.axis == step.axis):
                dims = other.program.signature.global_dims()
                for c in other.bindings:
                    if c.tensor == b.tensor and any(x.axis == w.axis and x.dim in dims for x in c.view):
                        return part(wiring.tensor(b.tensor).axes[w.axis].size, step.axis)
    return None


def _ring(step: Step, wiring: Wiring) -> str:
    """Who reads what arrives begins with what is there, its own rows; who makes rows for others begins with theirs."""
    return "ring" if any(wiring.tensor(t).origin == "program" for t in step.takes) else "ring+1"


def _converts(step: Step, wiring: Wiring) -> bool:
    """Whether a movement's tensors have two dtypes."""
    movement = step.program.movement
    if movement is None:
        return False
    source, target = (wiring.tensor(step.binding(p).tensor) for p in (movement.source, movement.destination))
    return source.dtype != target.dtype


def _moves_what_is_made(step: Step, wiring: Wiring) -> bool:
    """Whether a movement takes what a step of this operator computes, rather than an argument."""
    if step.program.movement is None:
        return False
    source = step.binding(step.program.movement.source).tensor
    return wiring.tensor(source).origin != "argument"


def _made_along_another(step: Step, wiring: Wiring) -> bool:
    """Whether a movement takes what a step makes that goes along another axis of ranks: nobody could pull it."""
    assert step.program.movement is not None
    source = step.binding(step.program.movement.source).tensor
    return any(s.axis != step.axis and source in s.writes for s in wiring.steps)


def _made_by_others(
    step: Step, wiring: Wiring, topology: Topology, schedule: Schedule, sizes: Mapping[str, int]
) -> bool:
    """Whether ranks write to one another what a movement takes, and not parts of it: nobody could pull it."""
    assert step.program.movement is not None
    source = step.binding(step.program.movement.source).tensor
    if any(a.over == step.axis and not a.own_slice for a in wiring.tensor(source).axes):
        return False
    for s in wiring.steps[: wiring.steps.index(step)]:
        if source not in s.writes:
            continue
        if s.program.movement is not None:
            pushed = directed(wiring, Placed(s, placement_of(s, wiring, topology, schedule, sizes)))[1]
        else:
            stores = (op for op in walk(s.program.body) if isinstance(op, Store) and op.to == "holders")
            pushed = source in (s.binding(op.param).tensor for op in stores)
        if pushed:
            return True
    return False


def _leading(step: Step, size: int) -> tuple[tuple[str, int], ...]:
    """Tile the first dimension that is neither walked singly nor part of `...`."""
    for axis in step.program.param(step.program.domain).shape.axes:
        if not axis.unit:
            return ((axis.name, size),)
    return ()


def _loop_dim(step: Step, op: Tiles) -> str | None:
    axis = step.binding(op.param).view[op.axis]
    return None if axis.unit else axis.dim


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


def _check(p: Placed, placed: tuple[Placed, ...], wiring: Wiring, topology: Topology) -> None:
    movement, placement = p.step.program.movement, p.placement
    if isinstance(placement, CopyEngine) and movement is None:
        raise _refuse(
            p,
            "a copy engine only moves: a program that also computes is no movement",
            "place it on SMs, or split the movement into a program of its own",
        )
    if isinstance(placement, CopyEngine) and _converts(p.step, wiring):
        raise _refuse(p, "a copy engine moves bytes as they are, and it moves between two dtypes", "place it on SMs")
    if isinstance(placement, (Sms, Fused)) and movement is not None and movement.pinned:
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
        if placement.push is not None and movement is None:
            raise _refuse(p, "only a movement has a direction", "leave `push` out")
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
        raise TilelinkError(
            "TL311",
            f"`{p.step.path}` is to join `{placement.joins}`, which is not a step of `{wiring.name}`",
            loc=wiring.loc,
            why=f"its steps are {', '.join(paths)}",
            hint="name one of them",
        )
    host = placed[paths.index(placement.joins)]
    open_to = _leads(host) and isinstance(host.placement, Sms) and host.placement.count is None
    if p.step.program.movement is not None or placement.count is not None or placement.own_kernel:
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
    return isinstance(p.placement, Sms) and p.placement.joins is None and p.step.program.movement is None


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
        if p.step.program.movement is None and size & (size - 1) and not isinstance(p.placement, Library):
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
        raise TilelinkError(
            "TL311",
            f"`{p.step.path}` is to be fused into `{p.placement.into}`, which is not a step of `{wiring.name}`",
            loc=wiring.loc,
            why=f"its steps are {', '.join(s.path for s in wiring.steps)}",
            hint="name one of them",
        )
    host = next(q for q in placed if q.step.path == p.placement.into)
    if isinstance(host.placement, Library):
        raise _refuse(p, "a library function ends without giving its tile away", "place it on SMs")
    if hosts(placed)[p.step.path] not in [q.step.path for q in placed if not isinstance(q.placement, Fused)]:
        raise _refuse(p, "programs that are fused into one another have no workers", "place one of them on SMs")


def hosts(placed: tuple[Placed, ...]) -> dict[str, str]:
    """Path -> path of the step in whose workers it runs, chains of fusions followed."""
    into = {p.step.path: p.placement.into for p in placed if isinstance(p.placement, Fused)}
    out: dict[str, str] = {}
    for p in placed:
        at = p.step.path
        for _ in placed:
            at = into.get(at, at)
        out[p.step.path] = at
    return out


def directed(wiring: Wiring, p: Placed) -> tuple[str, bool]:
    """(domain parameter, push) of a movement as scheduled; within a rank there is no direction."""
    movement = p.step.program.movement
    assert movement is not None
    push = not movement.pull
    if isinstance(p.placement, (Sms, CopyEngine)) and p.placement.push is not None:
        push = p.placement.push
    elif isinstance(p.placement, Fused) or movement.pinned:
        push = True
    push = push and (isinstance(p.placement, Fused) or not _stays(wiring, p.step))
    return (movement.source if push else movement.destination), push


def _stays(wiring: Wiring, step: Step) -> bool:
    """Whether a movement speaks of no rank: each of them moves what it has. A push would be to all, who have their own."""
    return not any(
        v.axis is None or wiring.tensor(b.tensor).axes[v.axis].own_slice or wiring.tensor(b.tensor).names_holder(v)
        for b in step.bindings
        for v in b.view
    )
