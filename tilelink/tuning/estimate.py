"""What a schedule might cost: a model of a few lines, to leave out what cannot win. It predicts no time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Move, Op, Raw, Store, has_dot, walk
from tilelink.ir.schedule import PART, CopyEngine, Fused, Library, Placement, Schedule, Sms, counted
from tilelink.mapping.waves import LARGE, SHAPES, WAVES, Moving, Product, Shape
from tilelink.tuning.space import makers


@dataclass(frozen=True, slots=True)
class Rates:
    """Of H200s, per microsecond: flops and bytes; and microseconds. From `benchmarks/results` where a file is named, which
    a test compares; what a tile takes, and a copy, `mapping/waves.py` says.

    `flops`: cuBLAS over six MLPs (`bench-*-4.json`, `ms_gemm`). `nccl`, `nccl_call`: rate and latency of NCCL, the line
    through `ms_comm` of `bench-ag_gemm-4.json`; `few`, `few_call`: the same up to `little` bytes (`sweep-*.json`);
    `behind`: what a library's call behind another one saves. `memory`: five sixths of the data sheet's 4.8 TB/s.
    `worker_link`, `copy`, `call`: by which candidates of a search are ranked; guessed.
    """

    flops: float = 7.7e8
    memory: float = 4.0e6
    nccl: float = 3.13e5
    nccl_call: float = 29.0
    few: float = 1.7e5
    few_call: float = 13.3
    little: float = 2e6
    behind: float = 3.0
    worker_link: float = 2.0e4
    copy: float = 3.0
    call: float = 34.0

    def exchanged(self, nbytes: float) -> float:
        """Microseconds in which NCCL brings so many bytes to a rank."""
        if nbytes < self.little:
            return self.few_call + nbytes / self.few
        return self.nccl_call + nbytes / self.nccl


LIBRARY = tuple(
    Shape(rows, columns, 0, 0, 8.0, 0.0089 * rows * columns / LARGE.rows / LARGE.columns)
    for rows, columns in ((128, 256), (128, 192), (128, 128), (64, 128), (64, 64))
)
"""Tiles of cuBLAS, as its times suggest (`sweep-*.json`, `ms_gemm`)."""


def estimate(plan: Plan, schedule: Schedule, rates: Rates = Rates(), moving: Moving = Moving()) -> float:
    """Microseconds of a call.

    Args:
        plan: of the operator as it comes: its steps and sizes.
        schedule: the placements that are asked about.
    """
    entries = tuple((path, counted(p, plan.topology.device.sms)) for path, p in schedule.entries)
    schedule = replace(schedule, entries=entries)
    taken = sum(p.count or 0 for _, p in entries if isinstance(p, Sms) and not p.own_kernel)
    workers = max(1, plan.topology.device.sms - taken)
    work = moves = extra = 0.0
    for step in plan.steps:
        placement = schedule.get(step.path)
        if step.step.program.movement is not None:
            time, burden = _movement(plan, step, placement, rates, moving)
            moves, extra = max(moves, time), extra + burden
        elif has_dot(step.step.program):
            work += _matmul(plan, step, placement, workers, rates)
        else:
            extra += 0.0 if isinstance(placement, Fused) else 2 * _bytes(plan, step) / rates.memory + rates.copy
    return max(work + extra, moves) + 0.1 * min(work, moves) + rates.call


@dataclass(frozen=True, slots=True)
class Forms:
    """Microseconds of a call: its matmuls alone, overlapped at its best, and by libraries one after the other."""

    work: float
    overlapped: float
    sequential: float


MULTIPLIED = ("bf16", "f16", "f32", "f64")
"""What `torch.mm` takes on GPUs."""


def unknown(plan: Plan) -> str:
    """Why no estimate of the operator's forms would mean anything; empty where one does."""
    for step in plan.steps:
        program = step.step.program
        if program.movement is None and any(map(_reaches_out, walk(program.body))):
            return f"`{step.path}` exchanges data itself, and only movements are estimated"
    if all(s.step.program.movement is None for s in plan.steps):
        return "there is nothing to hide"
    matmuls = [s for s in plan.steps if has_dot(s.step.program)]
    if not matmuls:
        return "there is nothing to hide behind"
    for step in matmuls:
        for dtype in (plan.wiring.tensor(t).dtype for t in step.step.takes):
            if dtype not in MULTIPLIED:
                return f"`{step.path}` multiplies {dtype}, and a library on a GPU does not"
    return ""


def _reaches_out(op: Op) -> bool:
    """Whether it reads or writes what other ranks hold, or may for all that one sees."""
    return isinstance(op, (Move, Raw)) or (isinstance(op, Store) and op.to != "own")


def forms(plan: Plan, rates: Rates = Rates(), moving: Moving = Moving()) -> Forms:
    """What the two forms of an operator would take on H200s; where nothing is `unknown`."""
    moved = [s for s in plan.steps if s.step.program.movement is not None]
    matmuls = [s for s in plan.steps if has_dot(s.step.program)]
    work = sum(_by_library(plan, s, rates) for s in matmuls)
    others = [s for s in plan.steps if s not in moved and s not in matmuls]
    behind = sum(_passed(plan, s) / rates.memory for s in others)
    fed = {m.path for s in matmuls for m in _feeding(plan, s)}
    taken = {s.path for s in moved if any(plan.step(m) in matmuls for m in makers(plan, s))}
    for s in moved:  # nothing is computed meanwhile
        if s.path not in fed | taken:
            behind += moving.arrivals(_each(plan, s), plan.topology.size(s.axis))[-1]
    return Forms(
        work=work,
        overlapped=moving.start + sum(_overlapped(plan, s, rates, moving) for s in matmuls) + behind,
        sequential=work + sum(rates.exchanged(_bytes(plan, s)) - rates.behind for s in moved),
    )


def _overlapped(plan: Plan, step: StepPlan, rates: Rates, moving: Moving) -> float:
    """From when a matmul's kernel begins until all is made, and is where it goes."""
    ranks, sms = plan.topology.size(step.axis), plan.topology.device.sms
    going = [s for s in plan.steps if s.step.program.movement is not None and step.path in makers(plan, s)]
    come, go = (sum(_each(plan, s) for s in some) for some in (_feeding(plan, step), going))
    found = _product(plan, step)
    whole = found is not None and (found[0].parts > 1 or not come + go)
    if found is not None and whole and found[0].waves(found[1], sms) <= WAVES:
        chunks = max([_chunks(plan, s) for s in going], default=1)
        made = found[0].overlapped(found[1], sms, moving, coming=come, going=go, chunks=chunks)
        return max(made, _matmul(plan, step, Library("a library's"), sms, rates))
    at, ready = 0.0, list[float]()
    for there in moving.arrivals(come, ranks) if come else (0.0,) * ranks:
        at = max(at, there) + _by_library(plan, step, rates) / ranks
        ready.append(at)
    return max(at, moving.sent(ready[:-1], go)) if go else at


def _feeding(plan: Plan, matmul: StepPlan) -> list[StepPlan]:
    """The movements of what is there on entry that a matmul waits for."""
    made = [plan.step(s.path) for t in matmul.step.takes for s in plan.wiring.producers(t)]
    return [s for s in made if s.step.program.movement is not None and not makers(plan, s)]


def _chunks(plan: Plan, step: StepPlan) -> int:
    """In how many pieces a movement takes a part."""
    cut = [g for g in step.grid if g.kind in ("cut", "mine") and g.tile]
    return max(1, -(-int(F.evaluate(cut[0].part, plan.env(0))) // (cut[0].tile or 1))) if cut else 1


def _product(plan: Plan, step: StepPlan) -> tuple[Product, Shape] | None:
    """A step that multiplies two matrices whose rows come or go part by part, and its tile; None: it is another."""
    dims = [g for g in step.grid if not g.unit]
    inner = [g for g in step.loops if g.dim not in {d.dim for d in dims}]
    if len(dims) != 2 or len(inner) != 1 or step.engine != "workers":
        return None
    shape = next((s for s in SHAPES if (s.rows, s.columns) == (dims[0].tile, dims[1].tile)), None)
    rows, columns, depth = (_extent(plan, step, g.dim) for g in (*dims, *inner))
    parts = plan.topology.size(step.axis) if dims[0].ring is not None else 1
    return (Product(rows, columns, depth, parts), shape) if shape is not None else None


def _by_library(plan: Plan, step: StepPlan, rates: Rates) -> float:
    """A matmul by cuBLAS, if it is as fast with any."""
    flops = _matmul(plan, step, Library("a library's"), plan.topology.device.sms, rates)
    found = _product(plan, step)
    if found is None or found[0].waves(LARGE, plan.topology.device.sms) > WAVES:
        return flops
    product = replace(found[0], parts=1)
    return max(min(product.us(s, plan.topology.device.sms) for s in LIBRARY), flops)


def _passed(plan: Plan, step: StepPlan) -> float:
    """Bytes that a step reads and writes that is neither a movement nor a matmul, two an element."""
    made = math.prod(_extent(plan, step, g.dim) for g in step.grid if not g.unit)
    mine = [g for g in step.grid if g.kind == "mine" or (g.ring is not None and step.own_rows)]
    read = math.prod(_extent(plan, step, g.dim) for g in step.loops if g.kind == "unit")
    return 2.0 * made * (1 + read) / (plan.topology.size(step.axis) if mine else 1)


def _movement(
    plan: Plan, step: StepPlan, placement: Placement | None, rates: Rates, moving: Moving
) -> tuple[float, float]:
    """Its own time, and by how much it holds up the matmul."""
    nbytes = _bytes(plan, step)
    if isinstance(placement, Fused):
        return 0.0, 0.5 * nbytes / moving.link
    if isinstance(placement, Sms):
        count = placement.count or plan.topology.device.sms
        return nbytes / min(moving.link, count * rates.worker_link), 0.0
    chunks = 1
    if isinstance(placement, CopyEngine) and placement.tile:
        chunks = max(1, -(-_extent(plan, step, placement.tile[0][0]) // placement.tile[0][1]))
    return nbytes / moving.link + chunks * rates.copy, nbytes / moving.link / max(1, chunks) * 0.1


def _matmul(plan: Plan, step: StepPlan, placement: Placement | None, workers: int, rates: Rates) -> float:
    dims = [g.dim for g in step.grid if not g.unit]
    tile = dict(placement.tile) if isinstance(placement, Sms) else {}
    sizes = {d: _extent(plan, step, d) for d in dims}
    depth = math.prod(_extent(plan, step, d) for d in {g.dim for g in step.loops} if d not in dims)
    traffic = 2 * (math.prod(sizes.values()) + depth * sum(sizes.values())) / rates.memory
    if isinstance(placement, Library):
        ranks = plan.topology.size(step.axis)
        parts = [-(-sizes[d] // n) if n != PART else ranks for d, n in placement.tile if d in sizes]
        return (
            max(2 * math.prod(sizes.values()) * depth / rates.flops, traffic)
            + (math.prod(parts) if parts else 0) * rates.copy
        )
    area = math.prod(min(tile.get(d, 128), 256) for d in dims[-2:])
    tiles = math.prod(-(-sizes[d] // max(1, tile.get(d, 128))) for d in dims)
    waves = -(-tiles // workers)
    per_tile = 2 * math.prod(tile.get(d, 128) for d in dims) * depth
    efficiency = min(1.0, math.sqrt(area / (128 * 256)))
    compute = waves * per_tile / (rates.flops / plan.topology.device.sms * efficiency)
    return max(compute, traffic)


def _extent(plan: Plan, step: StepPlan, dim: str) -> int:
    grid = next((g for g in (*step.grid, *step.loops) if g.dim == dim), None)
    return max(1, int(F.evaluate(grid.size, plan.env(0)))) if grid is not None else 1


def _bytes(plan: Plan, step: StepPlan) -> float:
    """What crosses the links into one rank, two bytes an element."""
    ranks = plan.topology.size(step.axis)
    sizes = [_extent(plan, step, g.dim) for g in step.grid if not g.unit]
    return 2.0 * math.prod(sizes) * (ranks - 1) / ranks


def _each(plan: Plan, step: StepPlan) -> float:
    """Of these, what comes from each other rank."""
    return _bytes(plan, step) / max(1, plan.topology.size(step.axis) - 1)
