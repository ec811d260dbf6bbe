"""Attention with gathered keys, against the same computation, and torch's in one piece, after NCCL's all-gather."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attend

import tilelink
from tilelink.bench.contest import COMM, OURS, UNFUSED, Contest, Place, Roles, Sizes, Variants
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import ag_attention
from tilelink.ops.attention import exponent, flash, placed, tiles
from tilelink.pipeline.operator import Operator

LONE = "ours alone"
KERNEL = "ours, our kernel"
SDPA = "sdpa"
SDPA_AFTER = "sdpa after nccl"


@tilelink.operator("S/R h D, T g D, T g D -> S/R h D")
def attention(q: Any, keys: Any, values: Any, *, causal: bool) -> Any:
    """`ag_attention`, with all keys there from the beginning."""
    return flash(q, keys, values, causal=causal, scale=exponent(q, None), schedule=placed(q))


def alone(operator: Operator) -> Operator:
    """What computes in `operator`, with its own placement."""
    own = operator.schedules.get("flash")
    return attention.schedule({} if own is None else {"flash": own}, unfused=False)


def shapes(_: int) -> list[BenchCase]:
    heads = {"h": 32, "g": 32, "D": 128}
    cases = [("16k", 16, 0), ("32k", 32, 0), ("64k", 64, 0), ("16k causal", 16, 1), ("64k causal", 64, 1)]
    return [BenchCase(name, {"S": 1024 * s, **heads, "causal": causal}) for name, s, causal in cases]


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """S positions of all ranks, h heads, g of keys, of D elements; `causal`: 0 or 1. `UNFUSED`: NCCL, and then what ours
    computes with."""
    s, h, g, d, causal = (sizes[n] for n in ("S", "h", "g", "D", "causal"))
    each, mine = place.part(s)
    end = min(s, each * place.backend.rank + mine)
    q, padded = place.random(mine, h, d), [place.random(each, g, d) for _ in range(2)]
    whole = [place.random(place.backend.ranks * each, g, d) for _ in range(2)]
    found = Contest(inputs=[q, *padded, *whole], roles=Roles(LONE, baseline=(UNFUSED, SDPA_AFTER)))
    kernel = {} if place.simulated else {KERNEL: ours[OURS].schedule(flash=tiles(d))}
    for name, op in {**ours, **kernel}.items():
        found.enter(name, op, (q, *(t[:mine] for t in padded)), S=s, causal=bool(causal))
    lone, lib = alone(ours[OURS]), place.libraries
    found.used.append(lone)

    def gather() -> None:
        for all_of_it, part in zip(whole, padded, strict=True):
            lib.all_gather_into_tensor(all_of_it, part)

    def ours_alone() -> Any:
        return lone(q, *(t[:s] for t in whole), S=s, causal=bool(causal))

    def sdpa() -> torch.Tensor:
        queries, keys, values = (t.transpose(0, 1)[None] for t in (q, *(t[: end if causal else s] for t in whole)))
        mask = causal_lower_right(mine, end) if causal else None
        return attend(queries, keys, values, attn_mask=mask, enable_gqa=g != h)[0].transpose(0, 1)

    found.add(LONE, ours_alone)
    found.add(COMM, gather, library=True)
    found.rival(UNFUSED, lambda: (gather(), ours_alone())[1], library=True)
    if causal and g != h:
        found.missing |= dict.fromkeys((SDPA, SDPA_AFTER), "torch masks no grouped heads from the lower right")
        return found
    found.add(SDPA, sdpa, library=True)
    found.rival(SDPA_AFTER, lambda: (gather(), sdpa())[1], library=True)
    return found


SUBJECT = Subject(
    "ag_attention", ag_attention, shapes, contest, {"S": 64, "h": 2, "g": 2, "D": 16, "causal": 1},
    "the same computation, and torch's in one piece, after NCCL's all-gather",
)  # fmt: skip
