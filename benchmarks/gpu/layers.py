"""On GPUs: the layers of `tilelink.nn`, results and gradients, against the whole layers of torch; and raw pointers.

    torchrun --nproc-per-node=2 -m benchmarks.gpu.layers --out benchmarks/results

Each layer runs in bf16, as it is and under `torch.compile(fullgraph=True)`; what is expected is computed in fp32 from the same
numbers. An error is a relative Frobenius norm, on the worst rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from benchmarks.harness import Row, Sheet, judged, parser
from tests.operators.raw import exchange, gather_with
from tilelink.errors import TilelinkError
from tilelink.nn import ParallelAttention, ParallelMLP, ParallelMoE, Replicated, SequenceParallelAttention
from tilelink.tuning.comparison import relative_error

TOLERANCE = 3e-2
LOOSE = {"ParallelMoE": 1e-1}
"""A token whose scores are alike may go to another expert in bf16."""
Take = Callable[[Any, Any], list[tuple[Any, Any]]]
"""Gradients of weights: (this rank's, the part of the whole layer's that it should be)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`heads` of queries, `groups` of keys; `choices` of `experts`; `rows`: positions of all ranks."""

    rows: int = 1024
    features: int = 1024
    hidden: int = 2048
    heads: int = 8
    groups: int = 4
    experts: int = 8
    choices: int = 2


class MLP(nn.Module):
    def __init__(self, s: Sizes, gated: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(s.features, s.hidden), nn.Linear(s.hidden, s.features)
        self.gate = nn.Linear(s.features, s.hidden) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gelu(self.up(x)) if self.gate is None else silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.width = s.features // s.heads
        self.query, self.output = nn.Linear(s.features, s.features), nn.Linear(s.features, s.features)
        self.key, self.value = (nn.Linear(s.features, s.groups * self.width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(-2, -3) for p in (self.query, self.key, self.value))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(-2, -3).flatten(-2))


class MoE(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.choices = s.choices
        self.router = nn.Parameter(torch.randn(s.experts, s.features) / s.features**0.5)
        self.gate, self.up = (
            nn.Parameter(torch.randn(s.experts, s.features, s.hidden) / s.features**0.5) for _ in "gu"
        )
        self.down = nn.Parameter(torch.randn(s.experts, s.hidden, s.features) / s.hidden**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, choice = (x @ self.router.t()).softmax(-1).topk(self.choices)
        every = torch.einsum("ethi,eih->eth", (silu(x @ self.gate) * (x @ self.up))[:, :, None], self.down)
        mine = every[choice, torch.arange(len(x), device=x.device)[:, None]]
        return (score / score.sum(-1, keepdim=True))[..., None].mul(mine).sum(1)


@dataclass(frozen=True, slots=True)
class Layer:
    """`make`: this rank's part of a whole layer in bf16. `split`: positions are split over the ranks."""

    whole: nn.Module
    make: Callable[[Any], nn.Module]
    weights: Take
    split: bool = True
    given: tuple[int, ...] = ()


def layers(s: Sizes, rank: int, ranks: int, device: Any) -> Iterator[tuple[str, Layer]]:
    def mine(t: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return t.chunk(ranks, dim)[rank]

    def of_mlp(part: Any, whole: Any) -> list[tuple[Any, Any]]:
        first = [w.weight.grad for w in (whole.gate, whole.up) if w is not None]
        up = part.up.weight.grad, torch.cat([mine(g) for g in first])
        return [
            up,
            (part.down.weight.grad, mine(whole.down.weight.grad, 1)),
            (part.down.bias.grad, whole.down.bias.grad),
        ]

    forms: list[tuple[str, bool, dict[str, Any]]] = [
        ("ParallelMLP", False, {"activation": gelu}),
        ("ParallelMLP, gated", True, {"activation": silu}),
        ("ParallelMLP, every rank has all positions", False, {"activation": gelu, "sequence_parallel": False}),
    ]
    for name, gated, how in forms:
        split = "sequence_parallel" not in how
        yield name, Layer(MLP(s, gated), lambda w, h=how: ParallelMLP.of(w.up, w.down, w.gate, **h), of_mlp, split)

    def of_heads(part: Any, whole: Any) -> list[tuple[Any, Any]]:
        inputs = torch.cat([mine(p.weight.grad) for p in (whole.query, whole.key, whole.value)])
        return [(part.inputs.weight.grad, inputs), (part.output.bias.grad, whole.output.bias.grad)]

    yield (
        "ParallelAttention",
        Layer(Attention(s), lambda w: ParallelAttention.of(w.query, w.key, w.value, w.output, s.heads), of_heads),
    )

    def by_positions(w: Any) -> nn.Module:
        made: Any = SequenceParallelAttention(s.features, s.heads, s.groups, device=device, dtype=torch.bfloat16)
        with torch.no_grad():
            made.inputs.module.weight.copy_(torch.cat([p.weight for p in (w.query, w.key, w.value)]))
            made.inputs.module.bias.copy_(torch.cat([p.bias for p in (w.query, w.key, w.value)]))
            made.output.module.load_state_dict(w.output.state_dict())
        return made

    def of_positions(part: Any, whole: Any) -> list[tuple[Any, Any]]:
        inputs = torch.cat([p.weight.grad for p in (whole.query, whole.key, whole.value)])
        return [(part.inputs.module.weight.grad, inputs), (part.output.module.bias.grad, whole.output.bias.grad)]

    yield "SequenceParallelAttention", Layer(Attention(s), by_positions, of_positions, given=(s.rows,))

    def of_experts(w: Any) -> nn.Module:
        made: Any = ParallelMoE(s.features, s.hidden, s.experts, s.choices, device=device, dtype=torch.bfloat16)
        with torch.no_grad():
            made.router.module.weight.copy_(w.router)
            made.up.copy_(torch.cat([mine(g, 2) for g in (w.gate, w.up)], 2))
            made.down.copy_(mine(w.down, 1))
        return made

    def weights_of_experts(part: Any, whole: Any) -> list[tuple[Any, Any]]:
        up = torch.cat([mine(g.grad, 2) for g in (whole.gate, whole.up)], 2)
        return [(part.up.grad, up), (part.down.grad, mine(whole.down.grad, 1))]

    yield "ParallelMoE", Layer(MoE(s), of_experts, weights_of_experts)
    yield (
        "Replicated",
        Layer(
            nn.LayerNorm(s.features),
            Replicated,
            lambda part, whole: [(part.module.weight.grad, whole.weight.grad)],
        ),
    )


def errors_of(layer: Layer, s: Sizes, rank: int, ranks: int, device: Any, compiled: bool) -> list[float]:
    """Of the result, the argument's gradient, and those of weights."""
    generator = torch.Generator().manual_seed(5)
    x, weight = (torch.randn(s.rows, s.features, generator=generator).bfloat16().to(device) for _ in "xw")
    low = deepcopy(layer.whole).to(device, torch.bfloat16)
    whole = deepcopy(low).float()
    exact = x.float().requires_grad_()
    want = whole(exact)
    (want * weight.float()).sum().backward()
    assert exact.grad is not None

    def mine(t: torch.Tensor) -> torch.Tensor:
        return t.chunk(ranks)[rank] if layer.split else t

    part = layer.make(low)
    part.zero_grad()
    run: Any = torch.compile(part, fullgraph=True, backend="aot_eager") if compiled else part
    given = mine(x).clone().requires_grad_()
    got = run(given, *layer.given)
    (got * mine(weight)).sum().backward()
    assert given.grad is not None
    pairs = [(got, mine(want)), (given.grad, mine(exact.grad)), *layer.weights(part, whole)]
    return [relative_error(a.detach().float(), b.detach().float()) for a, b in pairs]


def by_hand(rank: int, ranks: int, device: Any) -> list[float]:
    """An all-gather of one tile by raw pointers, five times: it leaves its flags as it found them."""
    every = torch.stack([torch.randn(5, 27, generator=torch.Generator().manual_seed(r)) for r in range(ranks)])
    operator = gather_with(exchange)
    return [relative_error(operator(every[rank].to(device) * (1 + k)).cpu(), every * (1 + k)) for k in range(5)]


def checks(s: Sizes, rank: int, ranks: int, device: Any) -> Iterator[tuple[str, str, Callable[[], list[float]]]]:
    torch.manual_seed(3)
    for name, layer in list(layers(s, rank, ranks, device)):  # all weights are drawn before anybody waits
        for case in ("as it is", "compiled"):
            yield (
                name,
                case,
                lambda x=layer, c=case == "compiled": errors_of(x, s, rank, ranks, device, c),
            )
    yield "raw pointers", "as it is", lambda: by_hand(rank, ranks, device)


def check(sheet: Sheet) -> None:
    machine = sheet.machine
    for name, case, found in checks(Sizes(), machine.rank, machine.ranks, machine.device):
        row: Row = {"layer": name, "case": case}
        try:
            row["error"] = machine.worst(max(found()))
            row["ok"] = row["error"] < LOOSE.get(name, TOLERANCE)
        except TilelinkError as problem:  # the same on every rank
            row |= {"ok": False, "problem": str(problem).splitlines()[0]}
        sheet.add(row, f"{name:42s} {case:9s} {row.get('error', row.get('problem'))}")
        sheet.save()


def main() -> int:
    return judged("layers", check, parser(__doc__).parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
