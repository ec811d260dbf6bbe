"""What the two halves of a mixture of experts have in common: choices, their tables, and the grouped matmul of torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilelink.bench.contest import Place, Sizes

GROUPED = "torch grouped gemm"


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Experts of all tokens, alike on all ranks, and the tables that follow; drawn anew in place.

    An expert's rows begin with token `first`, as `ag_moe` has them. `choice`: `[T, k]`. `order`: the token of each row,
    `[T*k]`. `start`: where each expert's rows begin, `[e+1]`. `slot`: the row of each choice, `[T, k]`. All int32.
    """

    choice: torch.Tensor
    order: torch.Tensor
    start: torch.Tensor
    slot: torch.Tensor
    generator: torch.Generator
    first: int

    @staticmethod
    def of(place: Place, sizes: Sizes) -> Routing:
        t, k, e = (sizes[d] for d in ("T", "k", "e"))
        choice, order, start, slot = (
            place.empty(*shape, dtype=torch.int32) for shape in ((t, k), (t * k,), (e + 1,), (t, k))
        )
        made = Routing(choice, order, start, slot, place.alike(), place.part(t)[0] * place.backend.rank)
        made.draw()
        return made

    def draw(self) -> None:
        self.choice.random_(0, len(self.start) - 1, generator=self.generator)
        tables(self.choice, self.order, self.start, self.slot, self.first)


def tables(choice: torch.Tensor, order: torch.Tensor, start: torch.Tensor, slot: torch.Tensor, first: int) -> None:
    """Fill the tables by torch on the device; the host is not asked."""
    sorted_choice, by_row = choice.roll(-first, 0).flatten().sort(stable=True)
    by_row = (by_row + first * choice.shape[1]) % choice.numel()
    experts = torch.arange(len(start), dtype=torch.int32, device=choice.device)
    start.copy_(torch.searchsorted(sorted_choice, experts, out_int32=True))
    order.copy_(by_row // choice.shape[1])
    rows = torch.arange(len(by_row), dtype=torch.int32, device=choice.device)
    slot.view(-1).scatter_(0, by_row, rows)


def grouped(rows: torch.Tensor, weight: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Rows sorted by expert, each times its expert's matrix: `[P, K]`, `[e, K, N]`, `[e+1]` to `[P, N]`, bf16."""
    return torch._grouped_mm(rows, weight, offs=start[1:])  # pyright: ignore[reportPrivateImportUsage]


def ungrouped() -> str:
    """Why there is no grouped matmul here; empty where there is."""
    return "" if hasattr(torch, "_grouped_mm") else f"torch {torch.__version__} has no torch._grouped_mm"
