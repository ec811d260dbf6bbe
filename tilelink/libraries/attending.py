"""Attention over runs of keys by the kernels that torch has, which also give what it takes to merge the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

import tilelink
from tilelink.libraries.merging import Part, merge

LN2 = math.log(2.0)


@tilelink.by_runs(merge=merge)
def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    at: Mapping[str, tuple[int, int]],
    causal: bool,
    scale: float,
) -> Part:
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
        weighted values in the dtype of `q`, and logarithms of the sums of weights, `[h, S]` of fp32.

    Raises:
        ValueError: no kernel takes these tensors, or the diagonal of `causal` crosses the run from elsewhere than a corner.
    """
    (first, end), (begin, last) = at["S"], at["T"]
    masked = causal and last - 1 > first
    if not q.is_cuda:
        return _plain(q, keys, values, _mask(at) if masked else None, scale * LN2)
    if masked and (first, end) != (begin, last):
        raise ValueError(
            f"rows {first} to {end} see some of the keys {begin} to {last}: kernels mask squares only, so cut T as S"
        )
    return _by_kernel(q, keys, values, masked, scale * LN2)


def _mask(at: Mapping[str, tuple[int, int]]) -> torch.Tensor:
    return torch.arange(*at["T"])[None, :] <= torch.arange(*at["S"])[:, None]


def _plain(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float) -> Part:
    """Written out, in fp32."""
    many = [t.float().repeat_interleave(q.shape[1] // t.shape[1], 1).transpose(0, 1) for t in (keys, values)]
    score = q.float().transpose(0, 1) @ many[0].transpose(1, 2) * scale
    if mask is not None:
        score = score.masked_fill(~mask, float("-inf"))
    total = score.logsumexp(-1)
    weight = (score - torch.where(total.isinf(), 0.0, total)[..., None]).exp()
    return (weight @ many[1]).transpose(0, 1).to(q.dtype), total


def _by_kernel(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masked: bool, scale: float) -> Part:
    given = [t.transpose(0, 1)[None] for t in (q, keys, values)]
    kind = kernel_for(given[0], given[1], given[2], masked)
    ops: Any = torch.ops.aten
    if kind == "cudnn":
        found = ops._scaled_dot_product_cudnn_attention(*given, None, True, 0.0, masked, False, scale=scale)
    elif kind == "flash":
        found = ops._scaled_dot_product_flash_attention(*given, 0.0, masked, False, scale=scale)
    else:
        raise ValueError(f"torch has no kernel here that attends to keys of {q.shape[-1]} elements of {q.dtype}")
    return found[0][0].transpose(0, 1), found[1].reshape(q.shape[1], q.shape[0])


def kernel_for(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masked: bool) -> str:
    """`cudnn`, which is the faster one, or `flash`, as torch says that it can use them; "": neither."""
    cuda = torch.backends.cuda
    params = cuda.SDPAParams(q, keys, values, None, 0.0, masked, q.shape[1] != keys.shape[1])
    if cuda.can_use_cudnn_attention(params):
        return "cudnn"
    return "flash" if cuda.can_use_flash_attention(params) else ""
