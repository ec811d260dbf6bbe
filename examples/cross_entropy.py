"""The loss of a language model whose vocabulary is split over the ranks: no rank ever has all of a token's logits.

Each rank looks at its own columns and sends everyone three numbers a token: its greatest logit, the sum of exponents below
it, and the logit of the target, where the target is its own. Everyone puts them together, tile by tile, as they arrive.

Four simulated ranks, without a GPU:  python examples/cross_entropy.py
Four GPUs:  torchrun --nproc-per-node=4 examples/cross_entropy.py
"""

import torch

import tilelink
import tilelink.language as tl

LEAST = tl.constexpr(-1e30)


@tilelink.program("T V/R, T i32 <V, R T f32, R T f32, R T f32 -> R/R T i32")
def look(logits, target, tops, sums, hits, mine):  # `mine` says which rank this is; nothing is stored there
    s, t = tl.tile_id(mine)
    wanted = tl.tile_load(target, t, other=-1)
    top = tl.full([wanted.shape[0]], LEAST, tl.float32)
    total, hit = tl.zeros([wanted.shape[0]], tl.float32), tl.zeros([wanted.shape[0]], tl.float32)
    for v in tl.tiles(logits, axis=1):
        there = tl.tile_mask(logits, v)  # the last tile of a part ends in the next rank's columns
        x = tl.where(there, tl.tile_load(logits, (t, v)).to(tl.float32), LEAST)
        new = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new[:, None]), 1)
        hit += tl.sum(tl.where(there & (tl.tile_range(logits, v)[None, :] == wanted[:, None]), x, 0.0), 1)
        top = new
    tl.tile_push_data(tops, (s, t), top)
    tl.tile_push_data(sums, (s, t), total)
    tl.tile_push_data(hits, (s, t), hit)
    tl.producer_tile_notify(tops, (s, t))
    tl.producer_tile_notify(sums, (s, t))
    tl.producer_tile_notify(hits, (s, t))


@tilelink.program("s T, s T, s T -> T f32")
def put_together(tops, sums, hits, loss):
    t = tl.tile_id(loss)
    top = tl.full(tl.tile_shape(loss), LEAST, tl.float32)
    total, hit = tl.zeros(tl.tile_shape(loss), tl.float32), tl.zeros(tl.tile_shape(loss), tl.float32)
    for s in tl.tiles(tops, axis=0):
        tl.consumer_tile_wait(tops, (s, t))
        tl.consumer_tile_wait(sums, (s, t))
        tl.consumer_tile_wait(hits, (s, t))
        its = tl.tile_load(tops, (s, t))
        new = tl.maximum(top, its)
        total = total * tl.exp(top - new) + tl.tile_load(sums, (s, t)) * tl.exp(its - new)
        hit += tl.tile_load(hits, (s, t))
        top = new
    tl.tile_store(loss, t, top + tl.log(total) - hit)


@tilelink.operator("T V/R, T i32 <V -> T f32", schedule={"look": tilelink.sms(T=8, V=1024, num_warps=8)})
def cross_entropy(logits, target):
    tops = tilelink.symmetric("R T f32", T=logits.size("T"))
    sums, hits = tilelink.symmetric("R T f32", like=tops), tilelink.symmetric("R T f32", like=tops)
    look(logits, target, tops, sums, hits)
    return put_together(tops, sums, hits)


TOKENS, VOCABULARY = 50, 1001  # 251 words each, and 248 for the last of four ranks
FORMS = {
    "default": cross_entropy,
    "in small tiles": cross_entropy.schedule(look=tilelink.sms(T=16, V=64), put_together=tilelink.sms(T=16)),
}


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own columns.
    logits = (3 * torch.randn(TOKENS, VOCABULARY)).to(device, torch.bfloat16)
    target = torch.randint(VOCABULARY, (TOKENS,), dtype=torch.int32, device=device)
    mine = logits.split(-(-VOCABULARY // ranks), 1)[rank].contiguous()
    expected = torch.nn.functional.cross_entropy(logits.float(), target.long(), reduction="none")
    results = {name: op(mine, target, V=VOCABULARY) for name, op in FORMS.items()}
    return {name: float((loss - expected).norm() / expected.norm()) for name, loss in results.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"cross_entropy, {name}: relative error {error:.1e}")
            assert error < 1e-5
