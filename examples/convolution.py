"""A causal convolution along a sequence that is split over the ranks: a rank needs the last rows of the rank before it.

The rows that neighbours need (the halo) are one small tile, sent to the next rank and waited for there; `peer_tile_notify`
names the neighbour. Everything else stays where it is.

Four simulated ranks, without a GPU:  python examples/convolution.py
Four GPUs:  torchrun --nproc-per-node=4 examples/convolution.py
"""

import torch

import tilelink
import tilelink.language as tl


@tilelink.program("S/R C, R/R E C -> R/R C i32")
def send_edge(x, edges, mine):  # communication: my last rows to the next rank; nothing is stored in `mine`
    r, c = tl.tile_id(mine)
    part = tl.cdiv(tl.size(x, 0), tl.num_ranks())
    e = tl.tile_range(edges, axis=1)
    tl.tile_push_data(edges, (r + 1, e, c), tl.tile_load(x, (r * part + part - tl.size(edges, 1) + e, c)))
    tl.peer_tile_notify(edges, (r + 1,), r + 1)


@tilelink.program("S/R C, R/R E C, W C -> S/R C")
def convolve(x, edges, weight, out):  # computation: a tile of rows, from those of this rank and those before its first
    s, c = tl.tile_id(out)
    r = tl.rank_of(x, s)
    before = r * tl.cdiv(tl.size(x, 0), tl.num_ranks()) - tl.size(edges, 1)  # where the edge begins
    tl.peer_tile_wait(edges, (r,), r - 1)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for w in tl.static_range(tl.size(weight, 0)):
        row = tl.tile_range(out, s) - w
        # Rows of other ranks are past the edge of `x`, and so are 0; before the first row of all there is nothing.
        at = tl.where((row >= 0) & (row - before < tl.size(edges, 1)), row - before, -1)
        rows = tl.tile_load(x, (row, c)).to(tl.float32) + tl.tile_load(edges, (r, at, c))
        acc += rows * tl.tile_load(weight, (w, c))[None, :]
    tl.tile_store(out, (s, c), acc)


@tilelink.operator("S/R C, W C -> S/R C")
def convolution(x, weight):
    """`out[s] = sum(x[s - w] * weight[w])` per channel, for parts of at least `W - 1` rows (the last may be shorter)."""
    edges = tilelink.symmetric("R/R E C", like=x, E=int(weight.size("W")) - 1)
    send_edge(x, edges)
    return convolve(x, edges, weight)


S, C, W = 250, 96, 4  # 63 rows each, and 61 for the last of four ranks; channels; taps
FORMS = {
    "default": convolution,
    "in small tiles": convolution.schedule(send_edge=tilelink.sms(1, C=32), convolve=tilelink.sms(S=16, C=32)),
}


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own.
    x, weight = (torch.randn(n, C).to(device, torch.bfloat16) for n in (S, W))
    behind = torch.cat([torch.zeros(W - 1, C, device=device), x.float()])
    terms = [behind[W - 1 - w : W - 1 - w + S] * weight[w].float() for w in range(W)]
    expected = torch.stack(terms).sum(0).split(-(-S // ranks))[rank]
    mine = x.split(-(-S // ranks))[rank].contiguous()
    results = {name: op(mine, weight, S=S) for name, op in FORMS.items()}
    return {name: float((y.float() - expected).norm() / expected.norm()) for name, y in results.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"convolution, {name}: relative error {error:.1e}")
            assert error < 2e-2
