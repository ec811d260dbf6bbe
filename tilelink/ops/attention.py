"""What the attention operators share: blocks of keys with an online softmax (arXiv:2503.20313, section 5: sequence parallel)."""

from __future__ import annotations

from typing import Any

import triton

import tilelink
import tilelink.language as tl


def tiles(q: Any, order: str = "group 32") -> Any:
    """How the kernel runs for heads like those of `q`: three blocks of keys and values on their way, as long as they, and what is
    added up, fit."""
    row = q.size("D") * q.itemsize
    if row > 512:
        return tilelink.sms(S=64, T=32, order=order, num_warps=8, num_stages=2)
    wide = row > 256
    return tilelink.sms(S=128, T=64 if wide else 128, order=order, num_warps=8, num_stages=2 if wide else 3)


def placed(q: Any) -> Any:
    """How attention runs over keys that arrive part by part: by torch's kernels where they can, else by this one."""
    return tilelink.library("tilelink.libraries.attention", T="T/R", fallback=tiles(q))


def exponent(q: Any, scale: float | None) -> float:
    """By what scores are multiplied when weights are powers of two; None: by `D ** -0.5` and log2(e).

    Raises:
        ValueError: the scale is not positive; the greatest score is found before it is scaled.
    """
    if scale is not None and not scale > 0:
        raise ValueError(f"attention with scale={scale}: it is a positive number")
    return 1.4426950408889634 * (float(q.size("D")) ** -0.5 if scale is None else scale)


def check_heads(q: Any, k: Any) -> None:
    """Raises ValueError where heads of queries cannot share those of keys evenly: some would see none of their own."""
    if q.size("h") % (k.size("g") or q.size("h") + 1):
        raise ValueError(f"attention of {q.size('h')} heads over {k.size('g')}: the first is a multiple of the second")


@triton.jit
def soften(score, keep, scale, top, total):
    """One block of scores: (weights, factor of what was added up so far, new maximum, new sum); weights are powers of two."""
    score = tl.where(keep, score, float("-inf"))
    new = tl.maximum(top, tl.max(score, 1) * scale)
    weight, factor = tl.exp2(score * scale - new[:, None]), tl.exp2(top - new)
    return weight, factor, new, total * factor + tl.sum(weight, 1)


@tilelink.program("S/R h D, T g D, T g D -> S/R h D")
def flash(q: Any, keys: Any, values: Any, out: Any, *, causal: bool, scale: float = 1.0) -> None:
    """Some rows of a head. Keys are taken from these rows' own place on and then from the first: as they come in a ring."""
    s, h, _ = tl.tile_id(out)
    g = h * tl.size(keys, 1) // tl.size(q, 1)
    tl.consumer_tile_wait(q, (s, h))
    rows, query, middle = tl.tile_range(out, s), tl.tile_load(q, (s, h)), tl.tile_begin(out, s)
    top, total = tl.full([rows.shape[0]], -1e30, tl.float32), tl.zeros([rows.shape[0]], tl.float32)
    acc = tl.zeros(query.shape, tl.float32)
    for turn in range(2):
        first = middle * (1 - turn)
        last = middle * turn + (tl.tile_end(out, s) if causal else tl.size(keys, 0)) * (1 - turn)
        for t in tl.tiles(keys, axis=0, start=first, stop=last):
            tl.consumer_tile_wait(keys, (t, g))
            tl.consumer_tile_wait(values, (t, g))
            keep = tl.tile_mask(keys, t, stop=rows + 1 if causal else None)
            # Together: copies that arrive at one barrier, and warps that need not meet between the two products.
            key, value = tl.tile_load(keys, (t, g)), tl.tile_load(values, (t, g))
            score = tl.dot(query, tl.trans(key))
            weight, factor, top, total = soften(score, keep, scale, top, total)
            acc = tl.dot(weight.to(query.dtype), value, acc * factor[:, None])
    tl.tile_store(out, (s, h), acc / total[:, None])
