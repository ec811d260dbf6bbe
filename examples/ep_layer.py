"""A mixture of experts with the experts split over the ranks: tokens travel to their experts and back.

Four simulated ranks, without a GPU:  python examples/ep_layer.py
Four GPUs:  torchrun --nproc-per-node=4 examples/ep_layer.py
"""

import torch

import tilelink
import tilelink.language as tl
from tilelink.ops import ep_combine, ep_dispatch_fp8
from tilelink.ops.ep_dispatch import send


@tilelink.program("e r C H, e r i32, e H N -> e r C N partial")
def expert_matmul(inbox, counts, weight, out):  # computation: one tile of the rows that one rank sent to one expert
    e, r, c, n = tl.tile_id(out)
    tl.consumer_tile_wait(counts, (e, r))
    tl.consumer_tile_wait(inbox, (e, r, c))
    if tl.tile_begin(out, c) < tl.tile_load(counts, (e, r)):
        acc = tl.zeros(tl.tile_shape(out), tl.float32)
        for k in tl.tiles(inbox, axis=3):
            acc = tl.dot(tl.tile_load(inbox, (e, r, c, k)), tl.tile_load(weight, (e, k, n)), acc)
        tl.tile_store(out, (e, r, c, n), acc)
    tl.producer_tile_notify(out, (e, r, c, n))


# The programs of `ep_dispatch`, the matmul, and the operator `ep_combine`: an expert begins with what has arrived from one
# rank while others still send, and what it made of that travels back while it goes on.
@tilelink.operator("T/R H, T/R k i32 <e, T/R k f32, e/R H H -> T/R H")
def ep_layer(x, choice, score, weight, *, capacity):
    inbox, counts, at = send(x, choice, weight.size("e"), capacity)
    return ep_combine(expert_matmul(inbox, counts, weight), counts, choice, at, score)


def in_torch(rows, scale, weight):
    """The experts between the two operators as plain torch, on tokens that came as fp8; rows that nobody sent are noise."""
    return torch.einsum("ersh,ehn->ersn", rows.float() * scale[..., None], weight.float()).to(weight.dtype)


TOKENS, H, EXPERTS, K = 48, 128, 8, 2  # tokens of each rank; their length; experts of all ranks; experts of a token
LAYER = ep_layer.schedule(expert_matmul=tilelink.sms(C=16, N=64, H=64))


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own; rank r's tokens are r + 1 times as large.
    x = torch.cat([(r + 1) * torch.randn(TOKENS, H) for r in range(ranks)]).to(device, torch.bfloat16)
    chosen = [torch.randperm(EXPERTS)[:K] for _ in range(len(x))]
    choice, score = torch.stack(chosen).to(device, torch.int32), torch.rand(len(x), K, device=device)
    weights = (torch.randn(EXPERTS, H, H) / H**0.5).to(device, torch.bfloat16)

    mine, part = slice(rank * TOKENS, (rank + 1) * TOKENS), EXPERTS // ranks
    weight = weights[rank * part : (rank + 1) * part]
    x, choice, score = x[mine], choice[mine], score[mine]
    one = LAYER(x, choice, score, weight, e=EXPERTS, capacity=TOKENS)
    rows, scale, counts, at = ep_dispatch_fp8(x, choice, experts=EXPERTS, capacity=TOKENS)
    two = ep_combine(in_torch(rows, scale, weight), counts, choice, at, score, experts=EXPERTS)

    each = torch.einsum("th,tkhn->tkn", x.float(), weights.float()[choice.long()])
    expected = (score[..., None] * each).sum(1)
    found = {"one operator": one, "fp8, and experts in torch": two}
    return {name: float((y.float() - expected).norm() / expected.norm()) for name, y in found.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"ep_layer, {name}: relative error {error:.1e}")
            assert error < (5e-2 if "fp8" in name else 2e-2)
