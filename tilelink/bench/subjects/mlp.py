"""A whole tensor-parallel MLP: AG+GEMM, SwiGLU, GEMM+RS, against cuBLAS and NCCL one after the other."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilelink.bench.contest import (
    ASYNC_TP,
    COMM,
    GEMM,
    OWN_COMM,
    TRITON,
    UNFUSED,
    Contest,
    Place,
    Sizes,
    Variants,
    how,
)
from tilelink.bench.parts import all_gather, gemm_like, reduce_scatter
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.bench.workloads import MLPS
from tilelink.ops import ag_gemm, gemm_rs

BLOCK = 1024


@triton.jit
def _swiglu(both, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    gate = tl.load(both + row * 2 * columns + at, mask=inside, other=0).to(tl.float32)
    up = tl.load(both + row * 2 * columns + columns + at, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * columns + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def swiglu(both: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of `[M, 2 I]` into `[M, I]`; the same for every contender."""
    columns = out.shape[1]
    if not both.is_cuda:
        return out.copy_(torch.nn.functional.silu(both[:, :columns]) * both[:, columns:])
    _swiglu[(out.shape[0], triton.cdiv(columns, BLOCK))](both, out, columns, BLOCK=BLOCK)  # pyright: ignore[reportArgumentType]
    return out


def layer_contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M tokens, H hidden, I intermediate, all global. The operators' own schedules; `ours` names only the contest."""
    m, h, i = sizes["M"], sizes["H"], sizes["I"] // place.backend.ranks
    each, mine = place.part(m)
    padded, first, second = place.random(each, h), place.random(h, 2 * i), place.random(i, h)
    x, rows = padded[:mine], place.random(place.backend.ranks * each, h)
    both, active = place.random(m, 2 * i), place.random(m, i)
    partial, summed = place.random(place.backend.ranks * each, h), place.empty(each, h)
    contest = Contest(inputs=[padded, first, second, rows, partial], outputs=[both, active, summed])
    whole = i * place.backend.ranks

    def overlapped() -> Any:
        return gemm_rs(swiglu(ag_gemm(x, first, M=m), active), second, K=whole)

    def without_communication(up: Any, down: Any) -> None:
        up(rows[:m], first, out=both)
        down(swiglu(both, active), second, out=partial[:m])

    for name in ours:
        contest.add(name, overlapped, overlapped)
        contest.ran[name] = lambda: f"{how(ag_gemm, (x, first), M=m)}; {how(gemm_rs, (active, second), K=whole)}"
    lone_up, lone_down = gemm_like(ag_gemm), gemm_like(gemm_rs)
    contest.used += [ag_gemm, gemm_rs, lone_up, lone_down]
    contest.add(TRITON, lambda: without_communication(lone_up, lone_down))
    contest.missing[ASYNC_TP] = "not part of this case"
    lib = place.libraries

    def gather() -> None:
        lib.all_gather_into_tensor(rows, padded)

    def scatter() -> None:
        lib.reduce_scatter_tensor(summed, partial)

    def unfused() -> torch.Tensor:
        gather()
        without_communication(torch.mm, torch.mm)
        scatter()
        return summed[:mine]

    def in_turn() -> Any:
        up = lone_up(all_gather(x, M=m), first, out=both)
        return reduce_scatter(lone_down(swiglu(up, active), second, out=partial[:m]), M=m)

    contest.add(GEMM, lambda: without_communication(torch.mm, torch.mm), library=True)
    contest.add(COMM, lambda: (gather(), scatter()), library=True)
    if place.simulated:
        contest.add(OWN_COMM, lambda: (all_gather(x, M=m), reduce_scatter(partial[:m], M=m)))
    contest.rival(UNFUSED, in_turn if place.simulated else unfused)
    return contest


def _shapes(_: int) -> list[BenchCase]:
    return [BenchCase(m.name, {"M": m.tokens, "H": m.hidden, "I": m.intermediate}) for m in MLPS]


SUBJECT = Subject(
    "mlp", None, _shapes, layer_contest, {"M": 256, "H": 128, "I": 256}, "cuBLAS and NCCL one after the other", "M"
)
