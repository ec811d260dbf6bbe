"""The second half of a mixture of experts, against torch's grouped matmul, a sum and NCCL's reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from tilelink.bench.contest import COMM, UNFUSED, Contest, Place, Roles, Sizes, Variants
from tilelink.bench.subjects.moe import GROUPED, Routing, grouped, ungrouped
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.bench.workloads import MOES
from tilelink.ops import moe_rs

FUSED_SUM = "unfused, sum in one kernel"
BLOCK = 1024


def shapes(_: int) -> list[BenchCase]:
    return [
        BenchCase(m.name, {"T": m.tokens, "H": m.hidden, "I": m.intermediate, "k": m.top, "e": m.experts}) for m in MOES
    ]


@triton.jit
def _weighted_sum(rows, slot, score, out, columns, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(K):  # pyright: ignore[reportGeneralTypeIssues]
        row = tl.load(slot + token * K + k).to(tl.int64)
        one = tl.load(rows + row * columns + at, mask=inside, other=0).to(tl.float32)
        acc += tl.load(score + token * K + k) * one
    tl.store(out + token * columns + at, acc.to(out.dtype.element_ty), mask=inside)


def sum_in_one_kernel(rows: torch.Tensor, slot: torch.Tensor, score: torch.Tensor, out: torch.Tensor) -> None:
    """For each token the weighted sum of its rows."""
    if not rows.is_cuda:
        sum_by_torch(rows, slot, score, out)
        return
    columns, top = rows.shape[1], slot.shape[1]
    grid = (len(slot), triton.cdiv(columns, BLOCK))
    _weighted_sum[grid](rows, slot, score, out, columns, K=top, BLOCK=BLOCK)  # pyright: ignore[reportArgumentType]


def sum_by_torch(rows: torch.Tensor, slot: torch.Tensor, score: torch.Tensor, out: torch.Tensor) -> None:
    """The same as one writes it in torch."""
    picked = rows.index_select(0, slot.view(-1)).view(*slot.shape, -1)
    torch.sum(picked * score.to(rows.dtype)[..., None], 1, out=out)


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """T tokens of H, which chose k of e experts with I columns, all global."""
    t, h, k, e = (sizes[d] for d in ("T", "H", "k", "e"))
    each, mine = place.part(t)
    columns = place.part(sizes["I"])[1]
    hidden, weight = place.random(t * k, columns), place.random(e, columns, h)
    partial, summed = place.random(place.backend.ranks * each, h), place.empty(each, h)
    routing, generator = Routing.of(place, sizes), place.alike()
    score = place.empty(t, k, dtype=torch.float32)

    def redraw() -> None:
        routing.draw()
        score.uniform_(generator=generator)

    redraw()
    found = Contest(
        inputs=[hidden, weight, partial], outputs=[summed], redraws=[redraw], roles=Roles(gemm=GROUPED), graphed=1
    )
    for name, op in ours.items():
        found.enter(name, op, (hidden, routing.start, routing.slot, weight, score), I=sizes["I"])
    if ungrouped():
        found.missing |= dict.fromkeys((GROUPED, UNFUSED, FUSED_SUM), ungrouped())
        return found
    lib = place.libraries

    def after(add: Callable[..., None]) -> torch.Tensor:
        add(grouped(hidden, weight, routing.start), routing.slot, score, partial[:t])
        lib.reduce_scatter_tensor(summed, partial)
        return summed[:mine]

    found.add(GROUPED, lambda: grouped(hidden, weight, routing.start), library=True)
    found.add(COMM, lambda: lib.reduce_scatter_tensor(summed, partial), library=True)
    found.rival(UNFUSED, lambda: after(sum_by_torch), library=True)
    found.rival(FUSED_SUM, lambda: after(sum_in_one_kernel), library=True)
    return found


SUBJECT = Subject(
    "moe_rs", moe_rs, shapes, contest, {"T": 48, "H": 64, "I": 64, "k": 2, "e": 4},
    "torch._grouped_mm, the weighted sum in torch, and NCCL's reduce-scatter", "T",
)  # fmt: skip
