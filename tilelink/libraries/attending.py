"""Attention over runs of keys by the kernels that torch has, which also give what it takes to merge the runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tilelink
from tilelink.libraries.merging import Part, merge

if TYPE_CHECKING:
    import torch

LN2 = math.log(2.0)

Span = tuple[int, int]


def refuses(q: Any, *_: Any, **__: Any) -> str:
    """Why torch has no kernel for rows like these on GPUs; empty: it has one."""
    d = q.shape[-1]
    if q.device.amd:
        return "what torch's kernels give beside their result was looked at on NVIDIA's GPUs only"
    if q.dtype not in ("bf16", "f16"):
        return f"torch's kernels attend in bf16 and fp16, and this is {q.dtype}"
    if d % 8 or d > 256:
        return f"torch's kernels take heads of multiples of 8 elements up to 256, and these have {d}"
    return ""


@tilelink.by_panels(merge=merge, refuses=refuses)
def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    at: Mapping[str, Span],
    causal: bool,
    scale: float,
) -> list[Part]:
    """What `tilelink.ops.attention.flash` computes for its rows, over one run of keys: rows `S`, keys `T`.

    On GPUs by cuDNN's attention or else by torch's flash attention, whichever torch can use; on CPUs by plain torch.

    Args:
        q: `[S, h, D]`.
        keys: `[T, g, D]`; `h` is a multiple of `g`.
        values: `[T, g, D]`.
        at: positions of the rows and of the keys.
        causal: row s sees keys up to s.
        scale: by which scores are multiplied; weights are powers of two.

    Returns:
        of one block of keys, or several: weighted values in the dtype of `q`, and logarithms of the sums of weights.
    """
    (first, end), (begin, last) = at["S"], at["T"]
    seen = blocks((first, end), (begin, last)) if causal else iter([((first, end), (begin, last), False)])
    parts: list[Part] = []
    for rows, columns, masked in seen:
        mine = _rows(q, rows, first)
        found = _attend(mine, _rows(keys, columns, begin), _rows(values, columns, begin), masked, scale * LN2)
        parts.append(found if rows == (first, end) else _among(found, rows[0] - first, end - first))
    return parts


def blocks(rows: Span, keys: Span) -> Iterator[tuple[Span, Span, bool]]:
    """What rows of causal attention see of a run of keys: (rows, keys, whether the block is a square under its diagonal)."""
    (first, end), (begin, last) = rows, keys
    low, high = max(first, begin), min(end, last)
    behind = max(first, last)
    if behind < end:
        yield (behind, end), (begin, last), False
    if low < high:
        if begin < low:
            yield (low, high), (begin, low), False
        yield (low, high), (low, high), True


def _rows(t: torch.Tensor, span: Span, first: int) -> torch.Tensor:
    """Positions of a tensor that begins at `first`; itself where they are all of it, which takes the host no time."""
    return t if span == (first, first + len(t)) else t[span[0] - first : span[1] - first]


def _among(part: Part, first: int, rows: int) -> Part:
    """Of some rows as of all of them: the others see nothing."""
    values, total = part
    end = first + len(values)
    all_values, all_totals = values.new_zeros(rows, *values.shape[1:]), total.new_full((len(total), rows), -math.inf)
    all_values[first:end], all_totals[:, first:end] = values, total
    return all_values, all_totals


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masked: bool, scale: float) -> Part:
    if not q.is_cuda:
        return _plain(q, keys, values, masked, scale)
    import torch

    given = [t.transpose(0, 1).unsqueeze(0) for t in (q, keys, values)]
    kind = kernel_for(given[0], given[1], given[2], masked)
    ops: Any = torch.ops.aten
    if kind == "cudnn":
        found = ops._scaled_dot_product_cudnn_attention(*given, None, True, 0.0, masked, False, scale=scale)
    elif kind == "flash":
        found = ops._scaled_dot_product_flash_attention(*given, 0.0, masked, False, scale=scale)
    else:
        raise ValueError(f"torch has no kernel here for heads of {q.shape[-1]} elements of {q.dtype}")
    return found[0].squeeze(0).transpose(0, 1), found[1].reshape(q.shape[1], q.shape[0])


def kernel_for(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masked: bool) -> str:
    """`cudnn`, which is the faster one, or `flash`, as torch says that it can use them; "": neither."""
    import torch

    cuda = torch.backends.cuda
    params = cuda.SDPAParams(q, keys, values, None, 0.0, masked, q.shape[1] != keys.shape[1])
    if cuda.can_use_cudnn_attention(params):
        return "cudnn"
    return "flash" if cuda.can_use_flash_attention(params) else ""


def _plain(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masked: bool, scale: float) -> Part:
    """Written out, in fp32."""
    import torch

    many = [t.float().repeat_interleave(q.shape[1] // t.shape[1], 1).transpose(0, 1) for t in (keys, values)]
    score = q.float().transpose(0, 1) @ many[0].transpose(1, 2) * scale
    if masked:
        score = score.masked_fill(torch.ones_like(score, dtype=torch.bool).triu(1), -math.inf)
    return (score.softmax(-1) @ many[1]).transpose(0, 1).to(q.dtype), score.logsumexp(-1)
