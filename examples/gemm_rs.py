"""Matrix product and reduce-scatter at the same time: the second half of a tensor-parallel MLP.

Four simulated ranks, without a GPU:  python examples/gemm_rs.py
Four GPUs:  torchrun --nproc-per-node=4 examples/gemm_rs.py
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


@tilelink.program("R/R M ... -> R M/R ...")  # each rank's slice of all rows becomes every rank's slice of some rows
def scatter(partial, inbox):  # communication: one tile to whoever owns its rows
    tile = tl.tile_id(partial)
    tl.consumer_tile_wait(partial, tile)
    tl.tile_push_data(inbox, tile, tl.tile_load(partial, tile))
    tl.producer_tile_notify(inbox, tile)


@tilelink.program("s M N -> M N")
def reduce(inbox, out):  # computation: one tile of the sum over everyone's shares
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m, n))
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator("M K/R, K/R N -> M/R N")
def gemm_rs(x, weight):
    return reduce(scatter(matmul(x, weight)))


# Three forms of one operator: nothing above changes.
FORMS = {
    "scattered by two SMs": gemm_rs.schedule(scatter=tilelink.sms(2, M=64)),
    "pushed from the epilogue": gemm_rs.schedule(scatter=tilelink.fused("matmul")),
    "pushed in chunks by a copy engine": gemm_rs.schedule(scatter=tilelink.copy_engine(M=64, push=True)),
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
            print(f"gemm_rs, {name}: relative error {error:.1e}")
            assert error < 2e-2
