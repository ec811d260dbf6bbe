"""Attention over a sequence that is split over the ranks, and decoding over a cache that is.

Four simulated ranks, without a GPU:  python examples/attention.py
Four GPUs:  torchrun --nproc-per-node=4 examples/attention.py
"""

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

import tilelink
from tilelink import ops

S, HEADS, GROUPS, D = 256, 2, 1, 64  # positions of all ranks, heads of queries, of keys, elements of a head


def attend(q, k, v, **how):
    q, k, v = (t.float().transpose(-2, -3) for t in (q, k, v))
    return scaled_dot_product_attention(q, k, v, enable_gqa=True, **how).transpose(-2, -3)


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own.
    q, k, v = (torch.randn(S, heads, D).to(device, torch.bfloat16) for heads in (HEADS, GROUPS, GROUPS))
    mine = [t.chunk(ranks)[rank].contiguous() for t in (q, k, v)]
    starts = torch.tensor([0, 100, 130, S], dtype=torch.int32, device=device)
    packed = [attend(*(t[a:b] for t in (q, k, v)), is_causal=True) for a, b in pairwise(starts.tolist())]
    # One new position of each of two sequences, of which 150 and all positions are in the cache.
    new, keys, values = torch.stack([q[:1], q[1:2]]), torch.stack([k, v]), torch.stack([v, k])
    lengths = torch.tensor([150, S], dtype=torch.int32, device=device)
    there = (torch.arange(S, device=device) < lengths[:, None])[:, None, None, :]
    decoded = attend(new, keys, values, attn_mask=there).view(2, GROUPS, HEADS // GROUPS, D)
    cache = [t.chunk(ranks, 1)[rank].contiguous() for t in (keys, values)]

    causal, full = (attend(q, k, v, is_causal=how).chunk(ranks)[rank] for how in (True, False))
    small = tilelink.sms(S=64, T=64)
    results = {
        "ag_attention": (ops.ag_attention.schedule(flash=small)(*mine), causal),
        "ag_attention, not causal": (ops.ag_attention(*mine, causal=False), full),
        "ag_attention_zigzag": (
            ops.ag_attention_zigzag.schedule(deal=tilelink.copy_engine(S=32), flash_there=tilelink.sms(S=32, T=64))(
                *mine, chunk=32
            ),
            causal,
        ),
        "ag_attention_varlen": (ops.ag_attention_varlen(*mine, starts), torch.cat(packed).chunk(ranks)[rank]),
        "ring_attention": (ops.ring_attention(*mine), causal),
        "flash_decode": (ops.flash_decode(new.view(2, GROUPS, -1, D), *cache, lengths, splits=2), decoded),
    }
    return {name: float((got.float() - want).norm() / want.norm()) for name, (got, want) in results.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"{name}: relative error {error:.1e}")
            assert error < 2e-2
