"""All-reduce in its forms, behind a matrix product too, and resharding: each is a few tile programs and a schedule.

Four simulated ranks, without a GPU:  python examples/collectives.py
Four GPUs:  torchrun --nproc-per-node=4 examples/collectives.py
"""

import torch

import tilelink
from tilelink import ops


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own.
    xs = [torch.randn(32, 256).to(device, torch.bfloat16) for _ in range(ranks)]
    weights = [torch.randn(256, 64).to(device, torch.bfloat16) for _ in range(ranks)]
    x, whole = xs[rank], torch.cat(xs)
    total = torch.stack([x.float() for x in xs]).sum(0)
    product = torch.stack([x.float() @ w.float() for x, w in zip(xs, weights, strict=True)]).sum(0)
    heads = whole.view(len(whole), 16, 16)
    results = {
        "all_reduce, one shot": (ops.all_reduce(x), total),
        "all_reduce, two shots": (ops.all_reduce(x, form="two_shot"), total),
        "all_reduce, along a ring": (ops.all_reduce(x, form="ring"), total),
        "gemm_ar, one shot": (ops.gemm_ar(x, weights[rank]), product),
        "gemm_ar, two shots": (ops.gemm_ar(x, weights[rank], form="two_shot"), product),
        "reduce_scatter": (ops.reduce_scatter(x), total.chunk(ranks)[rank]),
        "all_gather": (ops.all_gather(x), whole),
        "all_to_all": (ops.all_to_all(x), torch.stack([x.chunk(ranks)[rank] for x in xs])),
        "ulysses": (ops.ulysses(x.view(32, 16, 16)), heads.chunk(ranks, 1)[rank]),
    }
    return {name: float((got.float() - want).norm() / want.float().norm()) for name, (got, want) in results.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"{name}: relative error {error:.1e}")
            assert error < 2e-2
