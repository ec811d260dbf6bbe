"""The machine at hand as a file that the cost model reads: what of its figures one GPU tells, and several.

A cost has a fixed part and one that grows: each is measured at a few sizes, and the line through them gives both. What is not
measured (latencies of flags, what a kernel's launch costs, details of tiles) is taken from the machine that it is like.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

import tilelink
from tilelink.bench.parts import all_gather, gemm, reduce_scatter
from tilelink.cost import H200
from tilelink.cost.machine import LARGE
from tilelink.errors import TilelinkError
from tilelink.pipeline.operator import Operator
from tilelink.runtime.session import Session
from tilelink.tuning.measuring import interleaved

ROUNDS = 7
SECONDS = 50.0
"""After which nothing more is measured."""
DEPTHS = (1024, 4096, 8192)
SQUARE = 8192
COPIED = 1 << 30
ROWS = (4096, 16384, 32768)
WIDTH = 4096
PUSHING = 4
"""Workers whose stores and loads are timed: few enough that a link carries them all."""
Points = list[tuple[float, float]]
Clock = Callable[[Mapping[str, Callable[[], object]]], Mapping[str, float]]
"""Microseconds of what runs, by name; nothing of what does not run, or where there is no time left."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`value`: in the units of `Machine`; `said`: how it was found."""

    value: float
    said: str


def calibrate(session: Session | None) -> tuple[str, dict[str, Figure]]:
    """The GPU's name and what was measured, on all ranks of a session together.

    Raises:
        TilelinkError: TL733, there is no GPU.
    """
    if session is None or not torch.cuda.is_available() or session.backend.topology.backend == "simulated":
        raise TilelinkError(
            "TL733",
            "there is no GPU to calibrate",
            why="a machine's figures are measured on it, and simulated ranks take no time",
            hint="run it where torch finds a GPU, under torchrun for several; or write a file by hand: docs/cost-model.md",
        )
    begun = time.monotonic()

    def clock(runs: Mapping[str, Callable[[], object]]) -> Mapping[str, float]:
        left = SECONDS - (time.monotonic() - begun)
        if max(session.backend.agree(-left)) > 0:
            return {}
        times, _ = interleaved(session.backend, runs, ROUNDS, seconds=left / 4)
        return {name: 1e3 * found.median for name, found in times.items()}

    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    found = {"sms": Figure(sms, "multiprocessors that CUDA counts"), **products(clock, sms), **memory(clock)}
    if session.backend.ranks > 1:
        found |= links(clock, session.backend.ranks, session.backend.rank)
    return torch.cuda.get_device_name(), found


# ------------------------------------------------------------------------------------------------------ what is measured
def products(clock: Clock, sms: int) -> dict[str, Figure]:
    """Of matmuls: one wave of large tiles at several depths, and a large square."""
    high = max(n for n in range(1, math.isqrt(sms) + 1) if sms % n == 0)
    rows, columns = LARGE.rows * high, LARGE.columns * (sms // high)
    emitted = gemm.schedule(
        matmul=tilelink.sms(M=128, N=256, K=64, num_warps=LARGE.warps, num_stages=LARGE.stages, order="group 8")
    )
    library, own = Points(), Points()
    for depth in DEPTHS:
        a, b = _random(rows, depth), _random(depth, columns)
        out = torch.empty(rows, columns, dtype=a.dtype, device=a.device)
        us = clock(
            {"library": lambda a=a, b=b, out=out: torch.mm(a, b, out=out), "own": lambda a=a, b=b: emitted(a, b)}
        )
        library += [(depth, us["library"])] if "library" in us else []
        own += [(depth, us["own"])] if "own" in us else []
    emitted.close()
    found: dict[str, Figure] = {}
    wave = f"one wave of {sms} tiles at depths {', '.join(map(str, DEPTHS))}"
    if len(library) > 1:
        fixed, each = line(library)
        found["library_fixed"] = Figure(max(fixed - H200.launch, 1.0), f"torch.mm, {wave}, less a launch")
        found["library_depth"] = Figure(each, f"torch.mm, {wave}")
    if len(own) > 1:
        fixed, each = line(own)
        found["tile_fixed"] = Figure(max(fixed - H200.launch, 1.0), f"the emitted matmul, {wave}, less a launch")
        found["tile_depth"] = Figure(each, f"the emitted matmul, {wave}")
    a, b = _random(SQUARE, SQUARE), _random(SQUARE, SQUARE)
    out = torch.empty_like(a)
    us = clock({"square": lambda: [torch.mm(a, b, out=out) for _ in range(20)]})
    if us:
        found["flops"] = Figure(
            20 * 2 * SQUARE**3 / us["square"], f"torch.mm of {SQUARE} cubed, 20 one after the other"
        )
    return found


def memory(clock: Clock) -> dict[str, Figure]:
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    us = clock({"copy": lambda: target.copy_(source)})
    return {"memory": Figure(2 * COPIED / us["copy"], "copying 1 GiB, read and written")} if us else {}


def links(clock: Clock, ranks: int, rank: int) -> dict[str, Figure]:
    """How a time grows with the bytes: of a gather by copy engines, by few workers that pull, and by NCCL; of a sum that few
    workers push to where it is made, by many."""
    ways: dict[str, Operator] = {
        "link": all_gather.schedule(gather=tilelink.copy_engine(push=False)),
        "push": reduce_scatter.schedule(scatter=tilelink.sms(PUSHING, M=128, num_warps=8)),
        "pull": all_gather.schedule(gather=tilelink.sms(PUSHING, M=128, push=False, num_warps=8)),
    }
    points: dict[str, Points] = {name: [] for name in (*ways, "nccl")}
    for rows in ROWS:
        mine, whole = _random(rows // ranks, WIDTH), _random(rows // ranks * ranks, WIDTH)
        given = {name: whole[None] if name == "push" else mine for name in ways}
        runs: dict[str, Callable[[], object]] = {n: lambda op=op, x=given[n]: op(x) for n, op in ways.items()}
        runs["nccl"] = lambda mine=mine, whole=whole: dist.all_gather_into_tensor(whole, mine)
        nbytes = mine.numel() * mine.element_size() * (ranks - 1)
        for name, us in clock(runs).items():
            points[name].append((nbytes, us))
    for operator in ways.values():
        operator.close()
    found: dict[str, Figure] = {}
    for name, some in points.items():
        if len(some) < 2:
            continue
        fixed, each = line(some)
        by = PUSHING if name in ("push", "pull") else 1
        verb = "adding up" if name == "push" else "gathering"
        said = f"{verb} {', '.join(map(str, ROWS))} rows of {WIDTH} on {ranks} ranks"
        found[name] = Figure(1 / each / by, said)
        if name == "nccl":
            found["nccl_call"] = Figure(max(fixed, 1.0), said)
    if "link" in found:
        found["peer_link"] = found["link"]
    return found


def line(points: Points) -> tuple[float, float]:
    """The fixed part of what grows evenly, and by how much it grows, by least squares of relative errors."""
    x, y = np.array(points).T
    each, fixed = np.polyfit(x, y, 1, w=1 / y)
    return float(fixed), float(each)


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


# -------------------------------------------------------------------------------------------------------------- the file
def file_of(name: str, gpu: str, capability: int, ranks: int, found: Mapping[str, Figure]) -> str:
    """The text of a machine's file."""
    lines = [
        f"# Measured by `tilelink calibrate` on {ranks} GPU{'' if ranks == 1 else 's'}; what is not said is as of {H200.name}.",
        f'name = "{name}"',
        f'like = "{H200.name}"',
        f'gpu = "{gpu}"',
        f"capability = {capability}",
        "",
        "[figures] # microseconds, and flops and bytes per microsecond",
    ]
    for figure, f in found.items():
        value = str(int(f.value)) if figure == "sms" else repr(float(f"{f.value:.4g}"))
        lines.append(f'{figure} = [{value}, "calibrated: {f.said}"]')
    return "\n".join(lines) + "\n"
