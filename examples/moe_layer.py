"""A mixture of experts with every expert split over the ranks, in one operator and in two.

Four simulated ranks, without a GPU:  python examples/moe_layer.py
Four GPUs:  torchrun --nproc-per-node=4 examples/moe_layer.py
"""

import torch

import tilelink
from tilelink.ops import ag_moe, moe_layer, moe_rs

TOKENS, H, I, EXPERTS, K = 24, 64, 48, 4, 2  # noqa: E741  # tokens of each rank; columns of each rank; experts; of a token


def relative(found, expected):
    return float((found.float() - expected).norm() / expected.norm())


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    def random(*shape):  # every rank draws the same numbers and keeps its own
        return torch.randn(*shape).to(device, torch.bfloat16)

    x, choice = random(ranks * TOKENS, H), torch.randint(EXPERTS, (ranks * TOKENS, K), dtype=torch.int32).to(device)
    score = torch.rand(ranks * TOKENS, K, device=device)
    gate, up, down = random(EXPERTS, H, ranks * I), random(EXPERTS, H, ranks * I), random(EXPERTS, ranks * I, H)
    mine, part = slice(rank * TOKENS, (rank + 1) * TOKENS), slice(rank * I, (rank + 1) * I)
    my_gate, my_up = (w[:, :, part].contiguous() for w in (gate, up))
    my_down = down[:, part].contiguous()

    # One operator, from tokens to tokens: routing, all-gather, both products, the activation, the sums.
    y = moe_layer(x[mine], choice[mine], score[mine], my_gate, my_up, my_down)

    # Two operators, and something of one's own between them: rows sorted by expert, and the tables that say whose they are.
    hidden, start, slot = ag_moe(x[mine], choice[mine], my_up)
    z = moe_rs(torch.nn.functional.gelu(hidden), start, slot, my_down, score)

    def torch_says(act):
        of = choice.long()
        hidden = act(*(torch.einsum("th,tkhi->tki", x.float(), w.float()[of]) for w in (gate, up)))
        each = torch.einsum("tki,tkih->tkh", hidden, down.float()[of])
        return (score[..., None] * each).sum(1)[mine]

    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    return {
        "one operator": relative(y, torch_says(lambda a, b: silu(a) * b)),
        "two operators": relative(z, torch_says(lambda a, b: gelu(b))),
    }


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"moe_layer, {name}: relative error {error:.1e}")
            assert error < 2e-2
