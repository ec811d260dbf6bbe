"""On GPUs: whole models of transformers in bf16, unmodified, split by `tilelink.nn.parallelize`, against themselves unsplit.

    torchrun --nproc-per-node=2 -m benchmarks.gpu.models --out benchmarks/results

Splitting changes the order in which products add numbers up, so that bf16 results part. How far they may part is measured: by
the whole model again, whose linear layers add up in another order. Rows have relative Frobenius norms of differences to the
whole model, over the logits or all gradients of some batches:

    split   the split model
    turned  the whole model, in each product of a linear layer the axis that is reduced turned around
    fp32    the whole model in fp32

`ok`: `split` is at most twice as far off as `turned`. `--device cpu` tries it out.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from datetime import timedelta
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from benchmarks.harness import Row, parser, sharing, write
from tilelink.nn import parallelize

Tensor = torch.Tensor
LIMIT = 2.0
BATCHES, ROWS, POSITIONS = 8, 2, 128
SIZES: dict[str, Any] = {
    "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": POSITIONS, "use_cache": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
MODELS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "Qwen3-MoE": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=8, moe_intermediate_size=512)
    ),
    "Mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, **EXPERTS, num_local_experts=8)),
}


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, the axis that is reduced turned around."""
    return a.flip(-1) @ b.flip(0)


class Turned(torch.autograd.Function):
    """A linear layer without a bias, by three such products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        return product(grad, weight), product(grad.flatten(0, -2).t(), x.flatten(0, -2))


def turned(whole: nn.Module) -> nn.Module:
    """A copy whose linear layers add up in another order."""

    def forward(layer: Any, x: Tensor) -> Tensor:
        return Turned.apply(x, layer.weight)

    made = deepcopy(whole)
    for layer in made.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = MethodType(forward, layer)
    return made


def whole_of(grad: Tensor) -> Tensor:
    """A gradient of all ranks' parts; `full_tensor` of torch 2.11 knows no parts of gate and up projections side by side."""
    if not isinstance(grad, DTensor):
        return grad
    (placement,), part, ranks = grad.placements, grad.to_local().contiguous(), grad.device_mesh.size()
    if placement.is_replicate():
        return part
    parts = [torch.empty_like(part) for _ in range(ranks)]
    dist.all_gather(parts, part)
    dim, factor = placement.dim, getattr(placement, "split_factor", 1)  # pyright: ignore[reportAttributeAccessIssue]
    pieces = [each.chunk(factor, dim) for each in parts]
    return torch.cat([pieces[rank][k] for k in range(factor) for rank in range(ranks)], dim)


def results(model: Any, ids: Tensor) -> dict[str, list[Tensor]]:
    """The logits, and all gradients of a loss, in fp32."""
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    return {
        "logits": [out.logits.detach().float()],
        "gradients": [whole_of(p.grad).float() for p in model.parameters()],
    }


def norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


def rows_of(name: str, device: str) -> list[Row]:
    """How far each is from the whole model; collective."""
    torch.manual_seed(0)
    with torch.device(device):
        exact = MODELS[name]()
    whole = deepcopy(exact).to(torch.bfloat16)
    exact = deepcopy(whole).float()
    others = {
        "split": parallelize(deepcopy(whole)),
        "turned": turned(whole),
        "fp32": exact,
    }
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(BATCHES):
        drawn = torch.Generator().manual_seed(seed)
        ids = torch.randint(SIZES["vocab_size"], (ROWS, POSITIONS), generator=drawn).to(device)
        want = results(whole, ids)
        for other, model in others.items():
            for what, got in results(model, ids).items():
                off = norm(a - b for a, b in zip(got, want[what], strict=True)) / norm(want[what])
                found.setdefault(what, {}).setdefault(other, []).append(off)
    rows: list[Row] = []
    for what, by_model in found.items():
        off = {other: math.sqrt(sum(each**2 for each in every) / BATCHES) for other, every in by_model.items()}
        times = off["split"] / off["turned"]
        rows.append({"model": name, "of": what, **off, "times": times, "ok": 0 < times <= LIMIT})
    return rows


def run(given: argparse.Namespace) -> bool:
    cuda = given.device == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    shared = cuda and torch.cuda.device_count() < int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if cuda and not shared else "gloo", timeout=timedelta(seconds=240))
    rows: list[Row] = []
    for name in MODELS:
        with sharing(shared):
            rows += rows_of(name, given.device)
        if dist.get_rank() == 0:
            for row in rows[-2:]:
                said = "  ".join(f"{key} {value:.2e}" for key, value in row.items() if isinstance(value, float))
                print(f"{name:10} {row['of']:10} {said}", flush=True)
    ok = all(row["ok"] for row in rows)
    if dist.get_rank() == 0:
        ranks = dist.get_world_size()
        write(given.out, "models", rows, gpus=torch.cuda.device_count() if cuda else 0, ranks=ranks, backend="peer")
        print(f"ok {ok}")
    dist.destroy_process_group()
    return ok


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--device", default="cuda")
    return 0 if run(made.parse_args()) else 1


if __name__ == "__main__":
    sys.exit(main())
