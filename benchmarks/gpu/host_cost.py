"""What a call costs its host on one GPU, A backend of one rank, beside `torch.mm` in the same loop, and where the time goes.

    python -m benchmarks.gpu.host_cost --out benchmarks/results

Microseconds until a call returns. `warm`: in batches that leave no queue full; `cold`: one call after 100 ms of other work on the
host; medians of both, over rounds in which every call is measured after the others. `times`: in units of `torch.mm`. The second
table takes calls apart: each row does what the one before does and a little more, `adds` is the difference of the two.
`TILELINK_BACKEND=gloo` and `--device cpu` try the script out.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tilelink
from benchmarks.harness import Call, host_us, parser, write
from tilelink import ops
from tilelink.nn import ColumnParallelLinear, functional, parallelize
from tilelink.nn.groups import session_of

ROUNDS, COLD = 5, 3
"""How often every call is measured after the others, as hosts are faster and slower; cold calls in a round."""


def cold(call: Call, finish: Call) -> float:
    """After other work of the host: lists of objects, which push code and data of the call out of its caches."""
    found: list[float] = []
    for _ in range(COLD):
        finish()
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:
            sorted(str(n) for n in range(2000, 0, -1))
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1e6)
    finish()
    return statistics.median(found)


def medians(calls: dict[str, Call], measure: Callable[[Call, Call], float], finish: Call) -> dict[str, float]:
    """Microseconds by name."""
    for call in calls.values():
        for _ in range(3):
            call()
    rounds = [{name: measure(call, finish) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(each[name] for each in rounds) for name in calls}


def backward(run: Callable[[], torch.Tensor], of: torch.Tensor) -> Call:
    """Forward and backward, with gradients of the leaves of `run`."""
    return lambda: run().backward(of)


def calls(x: torch.Tensor, w: torch.Tensor) -> dict[str, Call]:
    """What users call, by name; `torch.mm` and its gradient are what the others are compared with."""
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    grad = torch.mm(x, w)
    layer = ColumnParallelLinear(*w.shape, bias=False, device=x.device, dtype=x.dtype)
    plain = nn.Linear(*w.shape, bias=False, device=x.device, dtype=x.dtype)
    mesh = init_device_mesh(x.device.type, (1,))
    split = parallelize(
        nn.Sequential(nn.Linear(*w.shape, bias=False, device=x.device, dtype=x.dtype)), {"0": "colwise"}, mesh
    )
    return {
        "torch.mm": lambda: torch.mm(x, w),
        "tilelink call": lambda: ops.ag_gemm(x, w),
        "torch operator": lambda: functional.ag_gemm(x, w),
        "Linear": lambda: plain(x),
        "ColumnParallelLinear": lambda: layer(x),
        "Linear, ColwiseParallel": lambda: split(x),
        "torch.mm, with gradient": backward(lambda: torch.mm(a, b), grad),
        "torch operator, with gradient": backward(lambda: functional.ag_gemm(a, b), grad),
        "torch.mm, recorded for gradients": lambda: torch.mm(a, b),
        "torch operator, recorded for gradients": lambda: functional.ag_gemm(a, b),
    }


def parts(x: torch.Tensor, w: torch.Tensor) -> dict[str, Call]:
    """Each does what the one before does, and a little more."""
    session: Any = session_of("")
    unfused: Any = ops.ag_gemm.reference_fn
    group = session.backend.group

    @torch.library.custom_op("hostcost::empty", mutates_args=())
    def empty(x: torch.Tensor, w: torch.Tensor, group: str) -> torch.Tensor:
        return x.new_empty(0)

    overload = functional.ag_gemm.overload
    return {
        "an empty function": lambda: None,
        "torch.mm": lambda: torch.mm(x, w),
        "the unfused form": lambda: unfused(x, w, group=group),
        "tilelink call, session given": lambda: ops.ag_gemm(x, w, session=session),
        "tilelink call": lambda: ops.ag_gemm(x, w),
        "torch operator": lambda: functional.ag_gemm(x, w),
        "torch operator, by its overload": lambda: overload(x, w, "", None),
        "for comparison: a torch operator that does nothing": lambda: empty(x, w, ""),
    }


def steps(device: str, dtype: torch.dtype) -> dict[str, Call]:
    """A training step of a small Llama of transformers, eager, without its optimizer: whole, and split over the one rank."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 128, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    tokens = torch.arange(1, 65, device=device).repeat(2, 1)

    def made() -> Any:
        config: Any = LlamaConfig(**sizes, num_hidden_layers=2)  # pyright: ignore[reportArgumentType]
        model: Any = LlamaForCausalLM(config)
        return model.to(device, dtype)

    def step(model: Any) -> Call:
        def run() -> None:
            model.zero_grad()
            model(tokens, labels=tokens).loss.backward()

        return run

    mesh = init_device_mesh(device, (1,))
    return {"Llama, a step": step(made()), "Llama, a step, split": step(parallelize(made(), None, mesh))}


def main() -> int:
    given = parser(__doc__)
    given.add_argument("--device", default="cuda")
    given.add_argument("--shape", type=int, nargs=3, default=(256, 256, 256), metavar=("M", "N", "K"))
    options = given.parse_args()
    m, n, k = options.shape
    store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    x, w = (torch.randn(*shape, device=options.device, dtype=dtype) for shape in ((m, k), (k, n)))
    finish: Call = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    rows: list[dict[str, Any]] = []
    named = calls(x, w)
    warm, cooled = medians(named, host_us, finish), medians(named, cold, finish)
    for name in named:
        row: dict[str, Any] = {"call": name, "warm_us": warm[name], "cold_us": cooled[name]}
        rows.append(row)
        for kind in ("warm", "cold"):  # the first row is torch.mm
            row[f"{kind}_times"] = row[f"{kind}_us"] / rows[0][f"{kind}_us"]
        numbers = [f"{k} {row[f'{k}_us']:8.1f}  {row[f'{k}_times']:5.1f} x" for k in ("warm", "cold")]
        print(f"{name:32s} {'   '.join(numbers)}", flush=True)
    found = medians(steps(options.device, dtype), host_us, finish)
    whole = next(iter(found.values()))
    for name, took in found.items():
        rows.append({"step": name, "warm_us": took, "times": took / whole})
        print(f"{name:32s} warm {took:8.1f}  {took / whole:5.2f} x", flush=True)
    last = 0.0
    for name, took in medians(parts(x, w), host_us, finish).items():
        rows.append({"part": name, "warm_us": took, "adds_us": took - last})
        print(f"{name:52s} {took:8.1f}  adds {took - last:8.1f}", flush=True)
        last = took
    write(options.out, "host-cost", rows, gpus=1, backend="peer" if options.device == "cuda" else "gloo")
    tilelink.check()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
