"""On GPUs: training steps of Llama blocks of transformers, unmodified, split by `tilelink.nn.parallelize` or by torch's styles.

    torchrun --nproc-per-node=4 -m benchmarks.gpu.llama_step --out benchmarks/results

Both take the model's own `tp_plan`, over `--split` ranks; over what is left of the ranks parameters are sharded by `fully_shard`.
Contenders, each on its own copy of one model and the same tokens:

    torch              torch's styles
    tilelink           `tilelink.nn.parallelize`
    torch, compiled    the first, under `torch.compile`
    tilelink, compiled the second, under `torch.compile`
    overlap, compiled  the third, after `tilelink.install()` and with `tilelink.inductor.overlap()`

Milliseconds of a step (forward, backward, AdamW) are medians of the slowest rank's, memory is the most that was allocated on any.
Sequences can be learnt, each step's are new, and losses must be those of torch. An error of one contender is noted, and the
others go on. `--device cpu --tiny` tries it out.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._inductor import config as inductor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import tilelink
from benchmarks.gpu.install import NO_MULTICAST, PROBLEMS
from benchmarks.gpu.training import Options, data, finished
from benchmarks.harness import Row, apart, greatest, parser, write
from tilelink.nn import parallelize

CONTENDERS = ("torch", "tilelink", "torch, compiled", "tilelink, compiled", "overlap, compiled")
TOLERANCE = 2e-2
STYLES = {
    "colwise": ColwiseParallel(),
    "colwise_rep": ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    "rowwise": RowwiseParallel(),
}
"""What the names in Llama's plan are in torch."""


def model_of(config: LlamaConfig, device: str) -> Any:
    torch.manual_seed(0)  # all ranks draw the same model
    with torch.device(device):
        made: Any = LlamaForCausalLM(config)
        return made.to(torch.bfloat16 if device == "cuda" else torch.float32)


def split(model: Any, contender: str, mesh: DeviceMesh) -> None:
    """In place: over the tensor-parallel ranks, then over the others; compiled last."""
    if contender.startswith("tilelink"):
        parallelize(model, mesh=mesh["tp"])
    else:
        parallelize_module(model, mesh["tp"], {name: STYLES[style] for name, style in model.tp_plan.items()})
    if mesh["dp"].size() > 1:
        for block in model.model.layers:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    if contender.endswith("compiled"):
        model.compile()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; parameters of one mesh together, since torch's fused loops take no others."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for p in model.parameters():
        groups.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
    return torch.optim.AdamW([{"params": ps} for ps in groups.values()], lr=1e-4)


def trained(contender: str, config: LlamaConfig, mesh: DeviceMesh, drawn: Options) -> Row:
    """Losses, milliseconds and memory of one contender; collective."""
    device = mesh.device_type
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()
    with ExitStack() as stack:
        if contender.startswith("overlap"):
            stack.enter_context(tilelink.install())
            passes = mock.patch.object(inductor, "post_grad_custom_pre_pass", tilelink.inductor.overlap())
            stack.enter_context(passes)
        model = model_of(config, device)
        split(model, contender, mesh)
        optimizer = optimizer_of(model)
        losses, times, host = [], [], []
        for step in range(drawn.steps):
            tokens = data(drawn, step * mesh["dp"].size() + mesh.get_local_rank("dp"), device)[0]
            dist.barrier()
            begin = finished(device)
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            host.append(1e3 * (time.perf_counter() - begin))
            times.append(1e3 * greatest(finished(device) - begin, device))
            losses.append(loss.item())
        memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    settled = slice(min(5, drawn.steps // 2), None)
    return {
        "losses": losses,
        "ms_step": statistics.median(times[settled]),
        "ms_host": statistics.median(host[settled]),
        "ms_first": times[0],
        "gib": greatest(memory / 2**30, device),
    }


def main(arguments: list[str] | None = None) -> bool:
    made = parser(__doc__)
    made.add_argument("--split", type=int, default=2, help="tensor-parallel ranks")
    made.add_argument("--layers", type=int, default=4)
    made.add_argument("--positions", type=int, nargs="*", default=[2048, 4096, 8192])
    made.add_argument("--steps", type=int, default=25)
    made.add_argument("--device", default="cuda")
    made.add_argument("--tiny", action="store_true")
    made.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=CONTENDERS)
    given = made.parse_args(arguments)
    return run(given)


def run(given: argparse.Namespace) -> bool:
    """On this rank. `ok`: every contender ran, and its losses are torch's."""
    os.environ |= NO_MULTICAST
    cuda = given.device == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=240))
    ranks = dist.get_world_size()
    mesh = init_device_mesh(given.device, (ranks // given.split, given.split), mesh_dim_names=("dp", "tp"))
    sizes = (64, 128, 4, 2, 256) if given.tiny else (4096, 14336, 32, 8, 16_384)
    config = LlamaConfig(
        hidden_size=sizes[0], intermediate_size=sizes[1], num_attention_heads=sizes[2], num_key_value_heads=sizes[3],
        vocab_size=sizes[4], num_hidden_layers=given.layers, max_position_embeddings=max(given.positions),
        use_cache=False,
    )  # fmt: skip
    rows: list[Row] = []
    for positions in given.positions:
        drawn = Options(vocabulary=sizes[4], sequence=positions, batch=1, steps=given.steps)
        for contender in given.contenders:
            row: Row = {"contender": contender, "positions": positions, "layers": given.layers, "split": given.split}
            try:
                row |= trained(contender, config, mesh, drawn)
            except (*PROBLEMS, AttributeError) as error:
                row["error"] = f"{type(error).__name__}: {error}"[:2000]
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
            rows.append(row)
            if dist.get_rank() == 0:
                said = row.get("error") or f"{row['ms_step']:8.2f} ms, host {row['ms_host']:8.2f}, {row['gib']:.1f} GiB"
                print(f"{positions:6} {contender:20} {said}", flush=True)
    for row in rows:
        torchs = next(r for r in rows if r["positions"] == row["positions"])
        row["off"] = apart(row.get("losses", []), torchs.get("losses", []))
        row["ok"] = row["off"] is not None and row["off"] <= TOLERANCE
    ok = all(row["ok"] for row in rows)
    if dist.get_rank() == 0:
        write(given.out, "llama_step", rows, gpus=torch.cuda.device_count() if cuda else 0, ranks=ranks, backend="peer")
        print(f"ok {ok}, losses off by {max((row['off'] or 0) for row in rows):.1e}")
    dist.destroy_process_group()
    return ok


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
