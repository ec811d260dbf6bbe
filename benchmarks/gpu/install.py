"""On GPUs: `tilelink.install()` against torch's own async tensor parallelism, in one and the same compiled program.

    torchrun --nproc-per-node=2 -m benchmarks.gpu.install --out benchmarks/results

The program is a layer of Llama 3 in bf16, split by torch's `parallelize_module` and compiled: norm, MLP or attention, residual;
forward, and forward with gradients. Its contenders, in turn on the same inputs:

    plain      compiled, without async tensor parallelism
    async      torch's own, `torch._inductor.config._micro_pipeline_tp`
    installed  the very same compiled program as `async`, after `tilelink.install()`
    overlap    compiled with `tilelink.inductor.overlap()`, after `tilelink.install()`

What each gives is compared with the whole layer in fp32 before it is timed. Microseconds of a call are medians over rounds of the
slowest rank's; `replay` is the same as a captured CUDA graph. An error of one contender is noted, and the others go on.
`--device cpu --tiny` tries the script out.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import exp, log
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._inductor.compile_fx import compile_fx
from torch.distributed import _symmetric_memory as torchs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention, silu

import tilelink
from benchmarks.harness import Call, Row, device_us, greatest, parser, write
from tilelink.tuning.comparison import relative_error

CONTENDERS = ("plain", "async", "installed", "overlap")
BLOCK_US, ROUNDS = 10_000.0, (5, 40)
"""How long calls between two readings of the clock take together, and how often the clock is read: at least, and at most."""
TOLERANCE = 3e-2
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Of NVLink: what shared hosts ask for; set before torch makes its groups."""
PROBLEMS = (tilelink.TilelinkError, RuntimeError, ValueError, TypeError, KeyError, AssertionError, NotImplementedError)
"""What a contender may raise while the others go on; torch's errors of compiling and of memory are among them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    features: int
    hidden: int
    heads: int
    groups: int
    width: int = 128


MODELS = {"8b": Sizes(4096, 14336, 32, 8), "70b": Sizes(8192, 28672, 64, 8)}
TINY = {"tiny": Sizes(32, 64, 4, 2, 8)}


class Norm(nn.Module):
    """As transformers has it."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(s.features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.float()
        return self.weight * (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm = Norm(s)
        self.gate, self.up = (nn.Linear(s.features, s.hidden, bias=False) for _ in "gu")
        self.down = nn.Linear(s.hidden, s.features, bias=False)
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.inner(self.norm(x))
        return x + self.down(silu(self.gate(rows)) * self.up(rows))


class Attention(nn.Module):
    """Causal, with rotary positions, of `[S, features]`: one sequence."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, s: Sizes, length: int) -> None:
        super().__init__()
        self.norm = Norm(s)
        inner = s.heads * s.width
        self.query, self.output = (
            nn.Linear(s.features, inner, bias=False),
            nn.Linear(inner, s.features, bias=False),
        )
        self.key, self.value = (nn.Linear(s.features, s.groups * s.width, bias=False) for _ in "kv")
        self.inner = nn.Identity()
        self.width, self.shared = s.width, s.heads // s.groups
        angles = torch.outer(torch.arange(length), 500_000.0 ** (-torch.arange(0, s.width, 2) / s.width)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def turned(self, t: torch.Tensor) -> torch.Tensor:
        first, second = t.chunk(2, -1)
        return t * self.cosines + torch.cat([-second, first], -1) * self.sines

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.inner(self.norm(x))
        q, k, v = (p(rows).unflatten(-1, (-1, self.width)).transpose(0, 1) for p in (self.query, self.key, self.value))
        q, k = self.turned(q), self.turned(k)
        if q.dtype == torch.float32 and q.is_cuda:  # a kernel that does not keep all scores
            k, v = (t.repeat_interleave(self.shared, 0) for t in (k, v))
        seen = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=len(q) != len(k))
        return x + self.output(seen[0].transpose(0, 1).flatten(1))


def plan(layer: nn.Module) -> dict[str, Any]:
    """Positions are split between products, as torchtitan splits them: one all-gather, one reduce-scatter."""
    rows = Shard(0)
    columns = ("gate", "up", "query", "key", "value")
    styles: dict[str, Any] = {
        "norm": SequenceParallel(sequence_dim=0),
        "inner": PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate()),
        **{name: ColwiseParallel() for name in columns},
        **{name: RowwiseParallel(output_layouts=rows) for name in ("down", "output")},
    }
    return {name: styles[name] for name, _ in layer.named_children()}


@dataclass(frozen=True, slots=True)
class Case:
    """`training`: with gradients of rows and weights."""

    model: str
    layer: str
    length: int
    training: bool

    @property
    def name(self) -> str:
        return f"{self.model} {self.layer} {self.length} {'training' if self.training else 'forward'}"

    def whole(self, s: Sizes) -> nn.Module:
        return MLP(s) if self.layer == "mlp" else Attention(s, self.length)


class Ranks:
    """The processes of this job: where this one runs, and what they agree on."""

    def __init__(self, device: str) -> None:
        os.environ.update(NO_MULTICAST)
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        seconds = timedelta(seconds=120)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=seconds)
        self.agreeing: Any = dist.new_group(backend="gloo", timeout=seconds)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.device, self.dtype = torch.device(device), torch.bfloat16 if device == "cuda" else torch.float32
        self.mesh = init_device_mesh(device, (self.count,), mesh_dim_names=("tensor",))
        self.group = self.mesh.get_group().group_name

    def worst(self, value: float) -> float:
        return greatest(value, "cpu", self.agreeing)

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def tried(self, what: Callable[[], Any]) -> tuple[Any, str]:
        """What it gives, and "" if it went well on all ranks; else None, and what the first rank that failed says."""
        found, problem = None, ""
        try:
            found = what()
            self.finish()
        except PROBLEMS as error:
            problem = f"rank {self.rank}: {type(error).__name__}: {str(error)[:2000]}"
        said: list[str] = [""] * self.count
        dist.all_gather_object(said, problem, group=self.agreeing)
        first = next((each for each in said if each), "")
        return (None, first) if first else (found, "")

    def clocked(self, call: Call, calls: int) -> float:
        """Microseconds of a call, one behind another; the slowest rank's."""
        self.finish()
        dist.barrier(self.agreeing)
        if self.device.type == "cuda":
            return self.worst(device_us(call, calls))
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return self.worst((time.perf_counter() - begun) / calls * 1e6)


@contextmanager
def torch_on_cpu() -> Iterator[Any]:
    """On CPUs: torch's pass, which asks for NCCL, and unfused forms of its operators, which have none there; and Inductor's
    passes alone, so that no C++ is compiled. Yields what stands in the place of Inductor's lowering."""
    from tests.inductor.passes import inner

    library = torch.library.Library("symm_mem", "IMPL")
    gather, scatter = torchs._fused_all_gather_matmul_fallback, torchs._fused_matmul_reduce_scatter_fallback
    library.impl("fused_all_gather_matmul", gather, "CPU")
    library.impl("fused_matmul_reduce_scatter", scatter, "CPU")
    with mock.patch.object(dist, "is_nccl_available", return_value=True):
        yield inner
    library._destroy()


def drawn(layer: nn.Module, length: int) -> nn.Module:
    """With results about as large as the residual, or an error in them would hide behind it: attention averages `length` rows."""
    for name, each in layer.named_children():
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=each.in_features**-0.5 * (length**0.5 / 2 if name == "value" else 1.0))
    return layer


class Program:
    """A layer split over the ranks, this rank's inputs, and what it should give.

    Attributes:
        wanted: this rank's rows of the result, then of the gradient of the layer's argument.
    """

    def __init__(self, ranks: Ranks, case: Case, sizes: Sizes) -> None:
        self.ranks, self.case = ranks, case
        torch.manual_seed(0)
        with ranks.device:
            whole = drawn(case.whole(sizes), case.length)
            x, grad = (torch.randn(case.length, sizes.features) for _ in "xg")
        whole = whole.to(ranks.dtype)
        x, grad = x.to(ranks.dtype), grad.to(ranks.dtype)
        self.wanted = [t.clone() for t in self._exact(whole, x, grad)]
        self.x, self.grad = (t.chunk(ranks.count)[ranks.rank].clone() for t in (x, grad))
        self.split = parallelize_module(whole, ranks.mesh, plan(whole))
        self.leaves = [self.x.requires_grad_(case.training), *self.split.parameters()]

    def _exact(self, low: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        whole, rows = deepcopy(low).float(), x.float().requires_grad_(self.case.training)
        with torch.set_grad_enabled(self.case.training):
            y = whole(rows)
        found = [y.detach()]
        if self.case.training:
            found += torch.autograd.grad(y, [rows], grad.float())
        return [t.chunk(self.ranks.count)[self.ranks.rank] for t in found]

    def compiled(self, inner: Any, **patches: Any) -> Call:
        lowering = {} if inner is None else {"inner_compile": inner}

        def backend(graph: Any, inputs: Any) -> Any:  # another one each time: no graph is shared
            return compile_fx(graph, inputs, config_patches=patches, **lowering)

        run: Any = torch.compile(self.split, fullgraph=True, dynamic=False, backend=backend)
        if not self.case.training:
            return torch.no_grad()(lambda: [run(self.x)])

        def step() -> list[torch.Tensor]:
            y = run(self.x)
            return [y, *torch.autograd.grad(y, self.leaves, self.grad)]

        return step

    def error(self, call: Call) -> float:
        """This rank's, of the second call, since the first one compiles; and of the third, if that is worse."""
        call()
        found: list[float] = []
        for _ in range(2):
            got = [t.to_local() if isinstance(t, DTensor) else t for t in call()[: len(self.wanted)]]
            found += [relative_error(a.detach().float(), b) for a, b in zip(got, self.wanted, strict=True)]
        return max(found)


def captured(call: Call) -> Call:
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def prepare(name: str) -> None:
    """Tilelink is installed for some contenders, and gone for others."""
    if name in ("installed", "overlap"):
        tilelink.install()
    else:
        tilelink.uninstall()


def timed(ranks: Ranks, calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Medians over rounds in which every contender has its turn, the first one another each time."""
    first = dict[str, float]()
    for name, call in calls.items():
        prepare(name)
        call()
        first[name] = min(ranks.clocked(call, 2) for _ in range(2))
    counts = {name: max(1, min(50, round(BLOCK_US / us))) for name, us in first.items()}
    round_us = sum(counts[name] * us for name, us in first.items())
    rounds = max(ROUNDS[0], min(ROUNDS[1], int(seconds * 1e6 / max(round_us, 1.0))))
    found: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            prepare(name)
            calls[name]()
            found[name].append(ranks.clocked(calls[name], counts[name]))
        order = [*order[1:], order[0]]
    return {name: statistics.median(each) for name, each in found.items()}


def measured(ranks: Ranks, case: Case, sizes: Sizes, inner: Any, options: argparse.Namespace) -> Row:
    """All contenders of a case; what one raises is noted."""
    row: Row = {"case": case.name, "errors": {}, "problems": {}, "us": {}, "replay_us": {}, "fused": ""}
    problems: dict[str, str] = row["problems"]
    tilelink.uninstall()
    begun = time.monotonic()
    program, problem = ranks.tried(lambda: Program(ranks, case, sizes))
    if problem:
        return row | {"problems": {"all": problem}, "ok": False}
    plain = program.compiled(inner)
    torchs_own = program.compiled(inner, _micro_pipeline_tp=True)
    ours = program.compiled(inner, post_grad_custom_pre_pass=tilelink.inductor.overlap())
    calls: dict[str, Call] = dict(zip(CONTENDERS, (plain, torchs_own, torchs_own, ours), strict=True))
    for name in [n for n in calls if n in options.contenders]:
        prepare(name)
        error, problem = ranks.tried(partial(program.error, calls[name]))
        if error is not None:
            row["errors"][name] = error = ranks.worst(error)
            problem = "" if error <= TOLERANCE else f"wrong: relative error {error:.1e}"
        if problem:
            problems[name] = problem
    if "installed" in calls:
        row["fused"] = str(tilelink.report())
    row["ready_s"] = time.monotonic() - begun
    calls = {n: c for n, c in calls.items() if n in row["errors"] and n not in problems}
    times, problem = ranks.tried(lambda: timed(ranks, calls, options.seconds)) if calls else ({}, "")
    if problem:
        problems["times"] = problem
    row["us"] = times or {}
    if options.graphs and ranks.device.type == "cuda" and not case.training and not problem:
        replays = dict[str, Call]()
        for name, call in calls.items():
            prepare(name)
            replay, problem = ranks.tried(partial(captured, call))
            if problem:
                problems[f"{name}, captured"] = problem
            else:
                replays[name] = replay
        times, problem = ranks.tried(lambda: timed(ranks, replays, options.seconds)) if replays else ({}, "")
        if problem:
            problems["replays"] = problem
        row["replay_us"] = times or {}
    tilelink.uninstall()
    return row | {"ok": not problems}


def cases(options: argparse.Namespace) -> list[Case]:
    """Those whose names have all flags of one of `--cases`."""
    models, lengths = (TINY, [16]) if options.tiny else (MODELS, options.lengths)
    every = [
        Case(model, layer, length, training)
        for training in (False, True)
        for model in models
        for layer in ("mlp", "attention")
        for length in lengths
    ]
    asked = [each.split() for each in options.cases]
    return [c for c in every if not asked or any(all(word in c.name.split() for word in words) for words in asked)]


def line(row: Row, kind: str) -> str:
    us: dict[str, float] = row[kind]
    numbers = [f"{us[n]:11.1f}" if n in us else f"{'-':>11s}" for n in CONTENDERS]
    ratio = f"{us['async'] / us['installed']:8.3f}" if "async" in us and "installed" in us else " " * 8
    other = f"{us['async'] / us['overlap']:8.3f}" if "async" in us and "overlap" in us else " " * 8
    return f"{row['case']:30s}{''.join(numbers)}{ratio}{other}  {', '.join(row['problems'])}"


def means(rows: list[Row], kind: str) -> Iterator[str]:
    """Geometric means of how many times as fast ours are, and the least."""
    for what in ("forward", "training"):
        for ours in ("installed", "overlap"):
            for other in ("async", "plain"):
                us = [row[kind] for row in rows if row["case"].endswith(what)]
                found = [u[other] / u[ours] for u in us if other in u and ours in u]
                if found:
                    mean = exp(sum(map(log, found)) / len(found))
                    yield f"{what:9s}{other:>6s} / {ours:10s} geometric mean {mean:.3f}, least {min(found):.3f}, of {len(found)}"


def table(rows: list[Row]) -> str:
    said: list[str] = []
    for kind in ("us", "replay_us"):
        if any(row[kind] for row in rows):
            said.append(f"{kind:30s}{''.join(f'{n:>11s}' for n in CONTENDERS)}  a/inst  a/over")
            said += [*(line(row, kind) for row in rows), *means(rows, kind)]
    return "\n".join(said)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    given = parser(__doc__)
    given.add_argument("--cases", nargs="*", default=[], metavar="'8b mlp 2048 forward'", help="flags of cases' names")
    given.add_argument("--lengths", nargs="*", type=int, default=[512, 2048, 8192, 16384])
    given.add_argument("--contenders", nargs="*", default=CONTENDERS, choices=CONTENDERS)
    given.add_argument("--seconds", type=float, default=3.0, help="for the rounds of a case")
    given.add_argument("--limit", type=float, default=540.0, help="seconds after which no case is begun")
    given.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=False, help="replays as well")
    given.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    given.add_argument("--tiny", action="store_true", help="a layer of 32 features")
    return given.parse_args(arguments)


def rows_of(options: argparse.Namespace, ranks: Ranks) -> list[Row]:
    begun = time.monotonic()
    torchs.enable_symm_mem_for_group(ranks.group)
    rows: list[Row] = []
    with ExitStack() as stack:
        inner = stack.enter_context(torch_on_cpu()) if options.device == "cpu" else None
        for case in cases(options):
            if ranks.worst(time.monotonic() - begun) > options.limit:
                ranks.say(f"not begun: {case.name}")
                continue
            torch._dynamo.reset()
            row = measured(ranks, case, (MODELS | TINY)[case.model], inner, options)
            rows.append(row)
            took = time.monotonic() - begun
            ranks.say(
                f"{took:6.1f} s  {line(row, 'us')}" + "".join(f"\n  {n}: {p}" for n, p in row["problems"].items())
            )
            if ranks.rank == 0:
                write(options.out, "install", rows, gpus=ranks.count, ranks=ranks.count, backend=options.device)
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
    return rows


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    ranks = Ranks(options.device)
    rows = rows_of(options, ranks)
    ranks.say(table(rows))
    dist.destroy_process_group()
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
