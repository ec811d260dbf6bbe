"""Attention on some ranks and experts on the others: two micro-batches of tokens go to and fro between the two groups.

While the experts work on the first micro-batch, the attention ranks make the second one, and the other way round on the
way back. Who holds which expert is said by an owner map, and the tables that route the tokens are made on the device.

Six simulated ranks, without a GPU:  python examples/m2n.py
Six GPUs:  torchrun --nproc-per-node=6 examples/m2n.py
"""

import torch

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import matmul
from tilelink.ops.routing import tables


@tilelink.program("T H, P i32 <T, e+1 i32 offsets, e R C H partial, e R i32 -> e R/R i32")
def m2n_send(x, order, start, inbox, counts, mine):  # this rank's tokens of expert `e`, to whoever has that expert
    e, s = tl.tile_id(mine)
    tl.consumer_tile_wait(x)
    tl.consumer_tile_wait(order)
    tl.consumer_tile_wait(start)
    first = tl.tile_load(start, e)
    n = tl.minimum(tl.tile_load(start, e + 1) - first, tl.size(inbox, 2))
    tl.tile_push_data(counts, (e, s), n)
    tl.producer_tile_notify(counts, (e, s))
    for c in tl.tiles(inbox, axis=2, stop=n):
        at = tl.where(tl.tile_range(inbox, c) < n, tl.tile_range(inbox, c), -1)
        who = tl.tile_load(order, tl.where(at >= 0, first + at, -1), other=-1)
        tl.tile_push_data(inbox, (e, s, at), tl.tile_load(x, who))
    tl.producer_tile_notify(inbox, (e, s))


@tilelink.program("e R C H, e R i32, l H H, e R/R C H partial")
def expert(inbox, counts, weight, back):  # what came from one rank for one expert, and what it makes of that back there
    e, s = tl.tile_id(counts)
    tl.consumer_tile_wait(counts, (e, s))
    tl.consumer_tile_wait(inbox, (e, s))
    for c in tl.tiles(inbox, axis=2, stop=tl.tile_load(counts, (e, s))):
        x = tl.tile_load(inbox, (e, s, c))
        tl.tile_push_data(back, (e, s, c), tl.dot(x, tl.tile_load(weight, e % tl.size(weight, 0))))
    tl.producer_tile_notify(back, (e, s))


@tilelink.program("e C H, T k i32, T k i32, e+1 i32, T k f32 -> T H")
def m2n_recv(back, choice, slot, start, score, out):  # the weighted sum of what came back for each token
    t, h = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    tl.consumer_tile_wait(slot)
    tl.consumer_tile_wait(start)
    for k in tl.static_range(tl.size(choice, 1)):
        e = tl.tile_load(choice, (t, k), other=-1)
        row = tl.tile_load(slot, (t, k), other=-1) - tl.tile_load(start, e)
        row = tl.where(row < tl.size(back, 1), row, -1)
        tl.consumer_tile_wait(back, (e, row, h))
        acc += tl.tile_load(score, (t, k))[:, None] * tl.tile_load(back, (e, row, h))
    tl.tile_store(out, (t, h), acc)


# Experts lie on the ranks from `attention` on, which have no tokens: their choices are -1. `a` and `b` are micro-batches.
@tilelink.operator(
    "T H, T k i32 <experts, T k f32, T H, T k i32 <experts, T k f32, H H, l H H -> T H, T H",
)
def layer(x_a, choice_a, score_a, x_b, choice_b, score_b, attend, weight, *, attention, experts, capacity):
    held = int(weight.size("l"))
    going, coming = [], []
    for n, x, choice in (("a", x_a, choice_a), ("b", x_b, choice_b)):
        made = matmul(x, attend, name=f"attend_{n}")  # stands for the attention
        order, start, slot = tables(choice, experts, name=n)
        inbox = tilelink.symmetric("e R C H", like=x, e=experts, C=capacity, owner=f"e -> {attention} + e // {held}")
        counts = tilelink.symmetric("e R i32", e=experts, owner=f"e -> {attention} + e // {held}")
        m2n_send(made, order, start, inbox, counts, name=f"m2n_send_{n}")
        going.append((inbox, counts, choice, slot, start))
    for n, (inbox, counts, choice, slot, start) in zip("ab", going, strict=True):
        back = tilelink.symmetric("e R/R C H", like=inbox)
        expert(inbox, counts, weight, back, name=f"expert_{n}")
        coming.append((back, choice, slot, start))
    return tuple(
        m2n_recv(*tables, score, name=f"m2n_recv_{n}")
        for n, tables, score in zip("ab", coming, (score_a, score_b), strict=True)
    )


ATTENTION, EXPERT, TOKENS, H, HELD, K = 4, 2, 24, 64, 3, 2  # ranks of each kind; tokens of a rank; experts of a rank; …
EXPERTS = EXPERT * HELD
SMALL = layer.schedule({f"attend_{n}": tilelink.sms(M=16, N=64, K=64) for n in "ab"})


def main():
    rank = tilelink.rank()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    attend, weights = torch.randn(H, H) / H**0.5, torch.randn(EXPERTS, H, H) / H**0.5
    attend, weights = (w.to(device, torch.bfloat16) for w in (attend, weights))
    mine = max(0, rank - ATTENTION) * HELD  # attention ranks look at no weight, whatever is passed
    batches, expected = [], []
    for _ in range(2):
        # Every rank draws the same numbers and keeps its own; rank r's tokens are r + 1 times as large.
        x = torch.stack([(r + 1) * torch.randn(TOKENS, H) for r in range(ATTENTION + EXPERT)])[rank]
        choice = torch.randint(EXPERTS, (ATTENTION + EXPERT, TOKENS, K), dtype=torch.int32)
        choice[ATTENTION:] = -1
        x, choice = x.to(device, torch.bfloat16), choice[rank].to(device)
        score = torch.rand(TOKENS, K, device=device)
        batches += [x, choice, score]
        each = torch.einsum("th,tkhn->tkn", x.float() @ attend.float(), weights.float()[choice.clamp(min=0).long()])
        expected.append((torch.where(choice < 0, 0, score)[..., None] * each).sum(1))
    weight, room = weights[mine : mine + HELD].contiguous(), TOKENS * K
    found = SMALL(*batches, attend, weight, attention=ATTENTION, experts=EXPERTS, capacity=room)
    return [float((y.float() - want).norm() / max(want.norm(), 1)) for y, want in zip(found, expected, strict=True)]


if __name__ == "__main__":
    for rank, errors in enumerate(tilelink.launch(main, ranks=ATTENTION + EXPERT)):
        print(
            f"m2n, {'attention' if rank < ATTENTION else 'expert'} rank {rank}: relative errors",
            *(f"{e:.1e}" for e in errors),
        )
        assert max(errors) < 2e-2
