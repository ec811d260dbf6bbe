"""All-gather and matrix product at the same time: the first half of a tensor-parallel MLP.

Four simulated ranks, without a GPU:  python examples/ag_gemm.py
Four GPUs:  torchrun --nproc-per-node=4 examples/ag_gemm.py
"""

import torch

import tilelink
import tilelink.language as tl


@tilelink.program("M/R ... -> M ...")  # M split over the ranks; afterwards every rank holds all of it
def gather(shard, rows):  # communication: one tile of `rows`, from whoever holds it
    tile = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, tile)
    tl.tile_pull_data(rows, tile, source=shard)
    tl.producer_tile_notify(rows, tile)


@tilelink.program("M K, K N -> M N")
def matmul(rows, weight, out):  # computation: one tile of `out`
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(weight, (k, n))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator("M/R K, K N -> M N")
def ag_gemm(shard, weight):
    return matmul(gather(shard), weight)


# The same programs, run differently: nothing above changes.
FORMS = {
    "default": ag_gemm,
    "pushed by a copy engine": ag_gemm.schedule(
        gather=tilelink.copy_engine(M=64, push=True),
        matmul=tilelink.sms(M=64, N=64, K=64, order=("ring", "group 4")),
    ),
    "pulled by two SMs": ag_gemm.schedule(
        gather=tilelink.sms(2, M=64, push=False),
        matmul=tilelink.sms(M=64, N=64, K=64, order="ring"),
    ),
}
ROWS, K, N = 128, 256, 256  # rows and columns of each rank


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own; rank r's rows are r + 1 times as large.
    shards = [(r + 1) * torch.randn(ROWS, K) for r in range(ranks)]
    weights = [torch.randn(K, N) for _ in range(ranks)]
    shard, weight = (t[rank].to(device, torch.bfloat16) for t in (shards, weights))

    rows = torch.cat(shards).to(device, torch.bfloat16)
    expected = rows.float() @ weight.float()
    return {name: float((op(shard, weight).float() - expected).norm() / expected.norm()) for name, op in FORMS.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"ag_gemm, {name}: relative error {error:.1e}")
            assert error < 2e-2
