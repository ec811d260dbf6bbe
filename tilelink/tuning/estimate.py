"""What a schedule might cost: a model of a few lines, to leave out what cannot win. It predicts no time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Move, Op, Raw, Store, walk
from tilelink.ir.schedule import PART, CopyEngine, Fused, Library, Placement, Schedule, Sms
from tilelink.tuning.space import is_matmul, makers


@dataclass(frozen=True, slots=True)
class Rates:
    """Of H200s, per microsecond: flops and bytes; and microseconds. From `benchmarks/results` where a file is named, which
    a test compares.

    `flops`: cuBLAS over six MLPs (`bench-*-4.json`, `ms_gemm`). `nccl`, `nccl_call`: rate and latency of NCCL, the line
    through `ms_comm` of `bench-ag_gemm-4.json`. `call`: an overlapped call beyond its work, AG+GEMM by copy engine
    (`host-cost-4.json`, `eager_us` of a small shape); `made`: as much more where copy engines move what a step makes
    (GEMM+RS there). `memory`: five sixths of the data sheet's 4.8 TB/s. `link`: a copy engine's over NVLink, which no file
    has by itself. `worker_link`, `copy`: by which candidates of a search are ranked; guessed.
    """

    flops: float = 7.7e8
    memory: float = 4.0e6
    link: float = 3.6e5
    nccl: float = 3.13e5
    nccl_call: float = 29.0
    call: float = 34.0
    made: float = 22.0
    worker_link: float = 2.0e4
    copy: float = 3.0


def estimate(plan: Plan, schedule: Schedule, rates: Rates = Rates()) -> float:  # frozen
    """Microseconds of a call.

    Args:
        plan: of the operator as it comes: its steps and sizes.
        schedule: the placements that are asked about.
    """
    taken = sum(p.count or 0 for _, p in schedule.entries if isinstance(p, Sms) and not p.own_kernel)
    workers = max(1, plan.topology.device.sms - taken)
    work = moves = extra = 0.0
    for step in plan.steps:
        placement = schedule.get(step.path)
        if step.step.program.movement is not None:
            time, burden = _movement(plan, step, placement, rates)
            moves, extra = max(moves, time), extra + burden
        elif is_matmul(step):
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


def unknown(plan: Plan) -> str:
    """Why no estimate of the operator's forms would mean anything; empty where one does."""
    for step in plan.steps:
        program = step.step.program
        if program.movement is None and any(map(_reaches_out, walk(program.body))):
            return f"`{step.path}` exchanges data itself, and only movements are estimated"
    if all(s.step.program.movement is None for s in plan.steps):
        return "there is nothing to hide"
    if not any(is_matmul(s) for s in plan.steps):
        return "there is nothing to hide behind"
    return ""


def _reaches_out(op: Op) -> bool:
    """Whether it reads or writes what other ranks hold, or may for all that one sees."""
    return isinstance(op, (Move, Raw)) or (isinstance(op, Store) and op.to != "own")


def forms(plan: Plan, rates: Rates = Rates()) -> Forms:  # frozen
    """What the two forms of an operator would take on H200s, if the emitted matmul is as fast as the library's; where
    nothing is `unknown`."""
    sms = plan.topology.device.sms
    work = sum(_matmul(plan, s, Library("a library's"), sms, rates) for s in plan.steps if is_matmul(s))
    moving = [s for s in plan.steps if s.step.program.movement is not None]
    nbytes = sum(_bytes(plan, s) for s in moving)
    made = sum(bool(makers(plan, s)) for s in moving)
    return Forms(
        work=work,
        overlapped=max(work, nbytes / rates.link) + rates.call + made * rates.made,
        sequential=work + nbytes / rates.nccl + len(moving) * rates.nccl_call,
    )


def _movement(plan: Plan, step: StepPlan, placement: Placement | None, rates: Rates) -> tuple[float, float]:
    """Its own time, and by how much it holds up the matmul."""
    nbytes = _bytes(plan, step)
    if isinstance(placement, Fused):
        return 0.0, 0.5 * nbytes / rates.link
    if isinstance(placement, Sms):
        count = placement.count or plan.topology.device.sms
        return nbytes / min(rates.link, count * rates.worker_link), 0.0
    chunks = 1
    if isinstance(placement, CopyEngine) and placement.tile:
        chunks = max(1, -(-_extent(plan, step, placement.tile[0][0]) // placement.tile[0][1]))
    return nbytes / rates.link + chunks * rates.copy, nbytes / rates.link / max(1, chunks) * 0.1


def _matmul(plan: Plan, step: StepPlan, placement: Placement | None, workers: int, rates: Rates) -> float:
    dims = [g.dim for g in step.grid if g.kind not in ("unit", "own")]
    tile = dict(placement.tile) if isinstance(placement, Sms) else {}
    sizes = {d: _extent(plan, step, d) for d in dims}
    depth = math.prod(_extent(plan, step, g.dim) for g in step.loops if g.dim not in dims)
    traffic = 2 * (math.prod(sizes.values()) + depth * sum(sizes.values())) / rates.memory
    if isinstance(placement, Library):
        parts = [-(-sizes[d] // n) if n != PART else plan.topology.ranks for d, n in placement.tile if d in sizes]
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
    ranks = plan.topology.ranks
    sizes = [_extent(plan, step, g.dim) for g in step.grid if g.kind not in ("unit", "own")]
    return 2.0 * math.prod(sizes) * (ranks - 1) / max(1, ranks)
