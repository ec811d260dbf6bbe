# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""One of two processes on the CPU: programs whose collectives the pass fuses, against themselves as they are.

python pass_ranks.py FOLDER; it writes a line of JSON for each program: what the pass said of each collective, or an error.
The passes behind autograd run as Inductor runs them, and then the graph itself: no C++ is compiled but for one program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import config
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilelink
from tests import two_processes
from tests.inductor.passes import passes

Tensor = torch.Tensor
EIGHT = torch.float8_e4m3fn
Program = tuple[Callable[..., Any], tuple[Tensor, ...]]
GROUP = ""
PROGRAMS: dict[str, Callable[[int], Program]] = {}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def gathered(x: Tensor, dim: int) -> Tensor:
    return funcol.all_gather_tensor_autograd(x, dim, GROUP)


def scattered(x: Tensor, dim: int, how: str = "sum") -> Tensor:
    return funcol.reduce_scatter_tensor_autograd(x, how, dim, GROUP)


def summed(x: Tensor) -> Tensor:
    return funcol.all_reduce(x, "sum", GROUP)


def program(*shapes: tuple[int, ...], name: str = "") -> Any:
    """A function of tensors of these shapes, other ones on each rank, with gradients."""

    def noted(body: Callable[..., Any]) -> Callable[..., Any]:
        drawing = lambda rank: (body, tuple(drawn(*s, seed=7 * n + rank) for n, s in enumerate(shapes)))  # noqa: E731
        PROGRAMS[name or body.__name__] = drawing
        return body

    return noted


@program((4, 6), (6, 5), (5,))
def gather_addmm(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return torch.addmm(b, gathered(x, 0), w)


@program((1, 4, 6), (1, 6, 5))
def gather_bmm(x: Tensor, w: Tensor) -> Any:
    return torch.bmm(gathered(x, 1), w)


@program((2, 4, 6), (6, 5))
def gather_bmm_of_one_weight(x: Tensor, w: Tensor) -> Any:
    return torch.bmm(gathered(x, 1), w.expand(2, 6, 5))


@program((4, 6), (12, 5))
def gather_last_axis(x: Tensor, w: Tensor) -> Any:
    return gathered(x, 1) @ w


@program((4, 6), (6, 5), (6, 3))
def gather_mixed(x: Tensor, w: Tensor, b: Tensor) -> Any:
    rows = gathered(x, 0)
    return rows @ w, torch.addmm(rows.sin()[:, 0].sum().expand(3), rows, b), rows.cos()


@program((1, 4, 6), (5, 6), (5,))
def gather_batch_of_one(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return nn.functional.linear(gathered(x, 1), w, b)


@program((2, 4, 6), (6, 5), (6, 3), (6, 7))
def gather_several_products(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    rows = gathered(x, 1)
    return rows @ q, rows @ k, rows @ v


@program((4, 2, 6), (12, 5))
def gather_split_cat_view(x: Tensor, w: Tensor) -> Any:
    rows = torch.cat(funcol.all_gather_tensor_autograd(x, 0, GROUP).chunk(2, 0), dim=2)
    return rows.view(-1, 12) @ w


@program((4, 2, 6), (6, 5))
def gather_slice_cat(x: Tensor, w: Tensor) -> Any:
    rows = gathered(x, 0)
    return torch.cat([rows[:4], rows[4:]], dim=1) @ w


@program((4, 6), (6, 5))
def gather_cut(x: Tensor, w: Tensor) -> Any:
    rows = gathered(x, 0)
    return torch.cat([rows[:4], rows[4:6]]) @ w


@program((4, 6), (3, 8))
def gather_right_factor(x: Tensor, w: Tensor) -> Any:
    return w @ gathered(x, 0)


@program((8, 6), (6, 5))
def scatter_twice_used(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return scattered(y, 0), y.sin()


@program((4, 2, 6), (6, 5))
def scatter_views(x: Tensor, w: Tensor) -> Any:
    return scattered((x.view(8, 6) @ w).view(4, 2, 5).unsqueeze(0).squeeze(0), 0)


@program((2, 4, 6), (8, 6), (8,))
def scatter_bias(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return scattered(nn.functional.linear(x, w, b), 1)


@program((2, 4, 6), (8, 6), (8,))
def scatter_bias_last_axis(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return scattered(nn.functional.linear(x, w, b), 2)


@program((1, 4, 6), (1, 6, 5))
def scatter_bmm(x: Tensor, w: Tensor) -> Any:
    return scattered(torch.bmm(x, w), 1)


@program((8, 6), (6, 5))
def scatter_saved(x: Tensor, w: Tensor) -> Any:
    return scattered(x @ w, 0).sigmoid().square()


@program((2, 4, 6), (5, 6))
def unfused(x: Tensor, w: Tensor) -> Any:
    return scattered((x @ w.t()).sin(), 1), gathered(x, 0).sin()


def without_gradients(body: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: Tensor) -> Any:
        return body(*(t.detach() for t in tensors))

    return run


def scaled(x: Tensor, w: Tensor) -> Tensor:
    """Of numbers of eight bits, which gloo moves as bytes."""
    one = torch.ones((), device=x.device)
    return torch._scaled_mm(x.to(EIGHT), w.to(EIGHT).t(), one, one, out_dtype=torch.float32)


@program((16, 16), (32, 16))
def gather_scaled(x: Tensor, w: Tensor) -> Any:
    shard = x.detach().to(EIGHT).view(torch.uint8)
    return scaled(gathered(shard, 0).view(EIGHT), w.detach())


@program((16, 16), (32, 16))
def scatter_scaled(x: Tensor, w: Tensor) -> Any:
    return scattered(scaled(x.detach(), w.detach()), 0)


class MLP(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, bias=bias), nn.Linear(8, 6, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def model(rank: int, *, bias: bool, rows: bool) -> Program:
    """What `parallelize_module` makes of a model; `rows`: activations are split between the linear layers."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    outer = Shard(1) if rows else Replicate()
    plan = {"up": ColwiseParallel(input_layouts=outer), "down": RowwiseParallel(output_layouts=outer)}
    split = parallelize_module(MLP(bias), mesh, plan)
    return split, (drawn(1, 4, 6, seed=rank if rows else 0),)


PROGRAMS["sum_linear"] = lambda rank: (
    without_gradients(lambda x, w: summed(x @ w)),
    (drawn(4, 6, seed=rank), drawn(6, 8, seed=rank)),
)
PROGRAMS["sum_bias"] = lambda rank: (
    without_gradients(lambda x, w, b: summed(nn.functional.linear(x, w, b)).sin()),
    (drawn(2, 3, 6, seed=rank), drawn(8, 6, seed=rank), drawn(8, seed=rank)),
)
PROGRAMS["model_rows"] = partial(model, bias=False, rows=True)
PROGRAMS["model_rows_bias"] = partial(model, bias=True, rows=True)
PROGRAMS["model_sum"] = partial(model, bias=True, rows=False)


def ran(body: Callable[..., Any], tensors: tuple[Tensor, ...], call: Callable[..., Any]) -> list[Tensor]:
    """Results, strides as tensors, and gradients."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    parameters = list(body.parameters()) if isinstance(body, nn.Module) else []
    for p in parameters:
        p.grad = None
    found = call(*leaves)
    results = list(found) if isinstance(found, tuple) else [found]
    results = [1 * r if isinstance(r, funcol.AsyncCollectiveTensor) else r for r in results]
    if any(r.requires_grad for r in results):
        sum((n + 1) * r.square().sum() for n, r in enumerate(results)).backward()
    gradients = [t.grad for t in (*leaves, *parameters)]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients if g is not None]
    return [*(r.detach() for r in results), *(torch.tensor(r.stride()) for r in results), *local]


def check(rank: int, name: str, backend: Any) -> list[list[str]]:
    body, tensors = PROGRAMS[name](rank)
    want = ran(body, tensors, body)
    before = len(tilelink.report().collectives)
    torch._dynamo.reset()
    got = ran(body, tensors, torch.compile(body, fullgraph=True, backend=backend, dynamic=False))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    rows = tilelink.report().collectives[before:]
    return [[row.operator, row.by or row.why, str(row.loc and row.loc.source_line().strip())] for row in rows]


def main(rank: int, folder: Path) -> None:
    global GROUP
    GROUP = dist.group.WORLD.group_name
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(
        folder / f"cache{rank}"
    )  # no pass sees what the other rank has put there
    said: dict[str, Any] = {}
    only = sys.argv[2:] or [*PROGRAMS, "inductor", "strict", "not_installed"]
    tilelink.install()
    seen: list[int] = []

    def first(graph: torch.fx.Graph) -> None:
        seen.append(len(graph.nodes))

    with config.patch(post_grad_custom_pre_pass=first):
        chained = tilelink.inductor.overlap()
    assert chained.uuid() is None  # the one before it has none
    said["summed_over_ranks"] = {}

    def behind(graph: torch.fx.Graph) -> None:
        """Whether what is gathered is passed by columns, which takes a copy."""
        gathers = graph.find_nodes(op="call_function", target=torch.ops.symm_mem.fused_all_gather_matmul.default)
        along: Any = [node.args[2] == node.args[0].meta["val"].dim() - 1 for node in gathers]
        said["summed_over_ranks"].setdefault(name, []).extend(along)

    with config.patch(post_grad_custom_pre_pass=chained, post_grad_custom_post_pass=behind):
        for name in PROGRAMS:
            if name in only:
                said[name] = check(rank, name, passes)
    said["chained"] = len(seen)
    if "inductor" in only:
        with config.patch(post_grad_custom_pre_pass=tilelink.inductor.overlap(strict=True)):
            said["inductor"] = check(rank, "gather_bmm", "inductor")  # of which Inductor compiles no C++
            assert tilelink.report().cached == 0
            said["again"] = check(rank, "gather_bmm", "inductor")
            said["cached"] = tilelink.report().cached
    with config.patch(post_grad_custom_pre_pass=tilelink.inductor.overlap(strict=True)):
        for name in ("strict", "not_installed"):
            if name in only:
                if name == "not_installed":
                    tilelink.uninstall()
                try:
                    check(rank, "unfused" if name == "strict" else "gather_addmm", passes)
                except BackendCompilerFailed as error:
                    said[name] = str(error)
    if rank == 0:
        (folder / "said.json").write_text(json.dumps({**said, "report": str(tilelink.report())}))


if __name__ == "__main__":
    two_processes.run(main)
