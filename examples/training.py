"""A tensor-parallel MLP that is trained: `torch.compile`, autograd, AdamW, beside the same MLP on one device.

Two simulated ranks, without a GPU:  python examples/training.py
Four GPUs:  torchrun --nproc-per-node=4 examples/training.py
"""

import torch
from torch import nn

import tilelink
from tilelink.nn import ParallelMLP
from tilelink.ops import all_reduce

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = "inductor" if torch.cuda.is_available() else "aot_eager"
ROWS, FEATURES, HIDDEN, STEPS = 32, 64, 128, 3


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, FEATURES)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def trained(model, x, target):
    """Losses by step: of these rows, as a part of the mean over all."""
    step = torch.compile(
        lambda: (model(x) - target).square().sum() / (ROWS * FEATURES), fullgraph=True, backend=BACKEND
    )
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    torch.manual_seed(0)  # every rank draws the same numbers and keeps its own
    whole = MLP().to(DEVICE)
    split = ParallelMLP.of(whole.up, whole.down)
    x, target = torch.randn(ROWS, FEATURES).to(DEVICE), torch.randn(ROWS, FEATURES).to(DEVICE)

    ours = trained(split, x.chunk(ranks)[rank], target.chunk(ranks)[rank])
    ours = all_reduce(ours[None])[0]  # the losses of all rows
    return trained(whole, x, target).tolist(), ours.tolist()


if __name__ == "__main__":
    for rank, (whole, split) in enumerate(tilelink.launch(main, ranks=2)):
        worst = max(abs(a - b) / a for a, b in zip(whole, split, strict=True))
        print(f"rank {rank}: loss {split[0]:.4f} to {split[-1]:.4f}, relative difference {worst:.1e}")
        assert worst < 1e-3
