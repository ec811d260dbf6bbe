"""Attention over several runs of keys becomes attention over all of them: one pass over what the runs gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

ROWS = 64
"""Rows of one head that a block merges."""

Part: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""Weighted values of a run, `[S, h, D]`, and the logarithms of their weights' sums, `[h, S]` of fp32."""


def merge(runs: Sequence[Sequence[Part]], *, out: torch.Tensor) -> None:
    """The weighted values of all runs together.

    Args:
        runs: parts of each run; where there are none, nothing is seen, and `out` becomes 0.
        out: `[S, h, D]`, written whole, in its own dtype; sums are fp32.
    """
    parts = [part for run in runs for part in run]
    if not parts:
        out.zero_()
    elif out.is_cuda:
        launch(parts, out)
    else:
        _in_torch(parts, out)


def _in_torch(parts: Sequence[Part], out: torch.Tensor) -> None:
    import torch

    sums = torch.stack([total for _, total in parts])
    top = sums.amax(0)
    weight = (sums - torch.where(top.isinf(), 0.0, top)).exp()
    weight = (weight / weight.sum(0).clamp_min(1e-30)).transpose(1, 2)[..., None]
    out.copy_((torch.stack([values.float() for values, _ in parts]) * weight).sum(0))


def launch(parts: Sequence[Part], out: torch.Tensor) -> None:
    """The merge as one kernel."""
    rows, heads, d = out.shape
    values = tuple(v.contiguous() for v, _ in parts)
    sums = tuple(s.contiguous() for _, s in parts)
    kernel: Any = merge_runs
    kernel[triton.cdiv(rows, ROWS), heads](
        values, sums, out, rows, heads, *out.stride(), len(parts), d, triton.next_power_of_2(d), ROWS, num_warps=8
    )


@triton.jit
def merge_runs(
    values, sums, out, rows, heads, stride_row, stride_head, stride_d,
    RUNS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of rows of one head: every run is read once, the result written once."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, BLOCK_D)
    real = row < rows
    keep = real[:, None] & (d < D)[None, :]
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for i in tl.static_range(RUNS):  # pyright: ignore[reportGeneralTypeIssues]
        top = tl.maximum(top, tl.load(sums[i] + head * rows + row, mask=real, other=float("-inf")))
    top = tl.where(top == float("-inf"), 0.0, top)  # of rows that see no key at all
    total = tl.full([BLOCK], 0.0, tl.float32)
    acc = tl.full([BLOCK, BLOCK_D], 0.0, tl.float32)
    for i in tl.static_range(RUNS):  # pyright: ignore[reportGeneralTypeIssues]
        weight = tl.exp(tl.load(sums[i] + head * rows + row, mask=real, other=float("-inf")) - top)
        value = tl.load(values[i] + (row * heads + head)[:, None] * D + d[None, :], mask=keep, other=0.0)
        acc += value.to(tl.float32) * weight[:, None]
        total += weight
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    place = row[:, None] * stride_row + head * stride_head + d[None, :] * stride_d
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=keep)
