"""A linear layer on data × tensor parallel ranks: weights are split over both axes, rows over the tensor parallel one.

The weight's rows come together along the data parallel axis (as in FSDP) while the activation's rows come together along the
tensor parallel one (sequence parallelism); the product waits for either as it needs it, and its columns stay split.

Four simulated ranks, without a GPU:  python examples/data_and_tensor_parallel.py
On GPUs:  torchrun --nproc-per-node=4 examples/data_and_tensor_parallel.py
"""

import torch

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather


@tilelink.program("M K, K N -> M N")
def matmul(rows, weight, out):
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(weight, k)
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@tilelink.operator("S/TP K, K/DP N/TP -> S N/TP", axes="DP TP")
def linear(x, weight):
    return matmul(gather(x, name="gather_rows"), gather(weight, name="gather_weight"))


LINEAR = linear.schedule(
    gather_rows=tilelink.sms(2, M=16), gather_weight=tilelink.sms(2, M=16), matmul=tilelink.sms(M=16, N=16, K=16)
)
DP, TP, S, K, N = 2, 2, 64, 64, 32


def main():
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    data, tensor = divmod(tilelink.rank(), TP)
    torch.manual_seed(0)
    x = torch.randn(DP, S, K)  # a batch for each data parallel rank
    weight = torch.randn(K, N) / K**0.5
    mine = x[data].chunk(TP)[tensor].to(device, dtype)
    part = weight.chunk(DP)[data].chunk(TP, dim=1)[tensor].contiguous().to(device, dtype)
    y = LINEAR(mine, part)
    wanted = x[data] @ weight.chunk(TP, dim=1)[tensor]
    return float((y.cpu().float() - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    for error in tilelink.launch(main, ranks=DP * TP, axes={"DP": DP, "TP": TP}):
        print(f"linear layer, weight gathered over DP and rows over TP: relative error {error:.1e}")
        assert error < 1e-2
