"""Matrix product and reduce-scatter along a ring: each rank adds its share to what its neighbour sent and passes it on.

Four simulated ranks, without a GPU:  python examples/gemm_rs_ring.py
Four GPUs:  torchrun --nproc-per-node=4 examples/gemm_rs_ring.py
"""

import torch

import tilelink
import tilelink.language as tl


@tilelink.program("M K, K N -> M N")
def matmul(rows, weight, out):  # computation: one tile of this rank's share of the sum
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(weight, (k, n))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("R/R M N, R/R M N -> M/R N")
def ring(partial, inbox, out):  # both at once: one tile; `s` is where this rank stands in the ring
    s, m, n = tl.tile_id(partial)
    tl.consumer_tile_wait(partial, (s, m, n))
    acc = tl.tile_load(partial, (s, m, n)).to(tl.float32)
    owner = tl.rank_of(out, (m, n))
    if owner != s + 1:  # not the first of this chain: the next rank has sent its sum
        tl.peer_tile_wait(inbox, (s, m, n), s + 1)
        acc += tl.tile_load(inbox, (s, m, n))
    if owner == s:  # the last: the sum stays
        tl.tile_store(out, (m, n), acc)
        tl.producer_tile_notify(out, (m, n))
    else:
        tl.tile_push_data(inbox, (s - 1, m, n), acc)
        tl.peer_tile_notify(inbox, (s - 1, m, n), s - 1)


@tilelink.operator("M K/R, K/R N -> M/R N")
def gemm_rs_ring(x, weight):
    partial = matmul(x, weight)
    return ring(partial, tilelink.symmetric("R/R M N", like=partial))


# The chain of a row ends with its owner and starts one rank further on, so each rank begins there.
FORMS = {
    "on eight SMs": gemm_rs_ring.schedule(
        matmul=tilelink.sms(M=64, N=64, K=64, order="ring+1"),
        ring=tilelink.sms(8, M=64, N=64, order="ring+1"),
    ),
    "in the epilogue": gemm_rs_ring.schedule(
        matmul=tilelink.sms(M=64, N=64, K=64, order="ring+1"),
        ring=tilelink.fused("matmul"),
    ),
}
M, K, N = 512, 128, 256  # all rows; each rank's part of K; all columns


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own; rank r's part of x is r + 1 times as large.
    xs = [((r + 1) * torch.randn(M, K)).to(device, torch.bfloat16) for r in range(ranks)]
    weights = [torch.randn(K, N).to(device, torch.bfloat16) for _ in range(ranks)]

    total = torch.stack([x.float() @ w.float() for x, w in zip(xs, weights, strict=True)]).sum(0)
    expected = total.chunk(ranks)[rank]
    results = {name: op(xs[rank], weights[rank]) for name, op in FORMS.items()}
    return {name: float((y.float() - expected).norm() / expected.norm()) for name, y in results.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"gemm_rs_ring, {name}: relative error {error:.1e}")
            assert error < 2e-2
