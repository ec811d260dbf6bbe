# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
"""One of two processes on the CPU: torch's fused operators, installed, against torch's own unfused forms of them.

python door_ranks.py FOLDER
"""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as torchs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilelink
from benchmarks.gpu import install
from tests import two_processes
from tests.inductor.passes import passes
from tilelink.tuning.comparison import relative_error

Tensor = torch.Tensor
device = torch.device("cpu")
"""`benchmarks/gpu/install_check.py` runs the same on GPUs."""


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(device, dtype)


def close(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    error = relative_error(got.detach().float(), want.detach().float())
    assert error < (1e-4 if got.dtype in (torch.float32, torch.float64) else 2e-2), error


def alike(got: Tensor | None, want: Tensor | None) -> None:
    """Values and strides, of axes of one element as well: compiled programs ask whether they are what the fake kernel said."""
    assert (got is None) == (want is None)
    if got is None or want is None:
        return
    close(got, want)
    assert got.stride() == want.stride(), (got.shape, got.stride(), want.stride())


def check_forms(rank: int, group: str, dtype: torch.dtype) -> None:
    """Every axis, with one weight and several, with what is gathered and without, summed and averaged."""
    gather, scatter = torch.ops.symm_mem.fused_all_gather_matmul, torch.ops.symm_mem.fused_matmul_reduce_scatter
    shapes = ((6, 4), (4, 2, 6), (1, 4, 6), (2, 1, 6)) if dtype == torch.float32 else ((4, 2, 2, 6), (1, 4, 1, 6))
    for shape in shapes:
        mine = drawn(*shape, seed=rank, dtype=dtype)
        for dim, count, keep in itertools.product(range(len(shape)), (1, 3), (True, False)):
            k = shape[-1] * (2 if dim == len(shape) - 1 else 1)
            weights = [drawn(8 + n, k, seed=rank, dtype=dtype).t() for n in range(count)]
            got = gather(mine, weights, dim, group, return_A=keep)
            want = torchs._fused_all_gather_matmul_fallback(mine, weights, dim, group, return_A=keep)
            for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
                alike(a, b)
        even = [dim for dim in range(len(shape)) if shape[dim] % 2 == 0]
        for dim, how in itertools.product(even, ("sum", "avg")):
            weight = drawn(shape[-1], 8, seed=rank, dtype=dtype)
            want = torchs._fused_matmul_reduce_scatter_fallback(mine, weight, how, dim, group)
            alike(scatter(mine, weight, how, dim, group), want)
    first, second = (gather(mine * n, [drawn(6, 5, dtype=dtype)], 0, group)[1][0] for n in (1, 2))
    alike(second, 2 * first)  # both are there


def check_gradients(rank: int, group: str, dtype: torch.dtype = torch.float32) -> None:
    """Against both ranks' parts in one process, with plain torch's gradients in fp32."""
    for dim, last in ((0, False), (1, False), (2, True)):
        parts = [drawn(4, 2, 6, seed=r, dtype=dtype) for r in range(2)]
        weights = [[drawn(12 if last else 6, n, seed=r, dtype=dtype) for n in (5, 3)] for r in range(2)]
        exact = [t.to(torch.float32, copy=True).requires_grad_() for t in (*parts, *weights[0], *weights[1])]
        whole = torch.cat(exact[:2], dim)
        sum((whole @ w).square().sum() + whole.sin().sum() / 4 for w in exact[2:]).backward()
        mine = [t.clone().requires_grad_() for t in (parts[rank], *weights[rank])]
        gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(mine[0], mine[1:], dim, group)
        (sum(y.square().sum() for y in products) + gathered.sin().sum() / 2).backward()
        for got, want in zip(mine, (exact[rank], *exact[2 + 2 * rank : 4 + 2 * rank]), strict=True):
            close(got.grad, want.grad)
        for how in ("sum", "avg"):
            pairs = [[drawn(*s, seed=r, dtype=dtype) for s in ((4, 2, 6), (6, 8))] for r in range(2)]
            leaves = [t.to(torch.float32, copy=True).requires_grad_() for t in itertools.chain(*pairs)]
            total = (leaves[0] @ leaves[1] + leaves[2] @ leaves[3]) / (2 if how == "avg" else 1)
            total.square().sum().backward()
            a, b = (t.clone().requires_grad_() for t in pairs[rank])
            torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, how, dim, group).square().sum().backward()
            for got, want in zip((a, b), leaves[2 * rank :], strict=False):
                close(got.grad, want.grad)


def check_refused(rank: int, group: str) -> None:
    """What tilelink does not serve runs as torch has it, on CPUs unfused, and is reported."""
    whole, weight = drawn(4, 6, seed=rank), drawn(6, 4)
    # As torch 2.13 says, and 2.11.
    with pytest.raises((IndexError, ValueError), match=r"Dimension out of range|Invalid gather_dim"):
        torch.ops.symm_mem.fused_all_gather_matmul(whole, [drawn(12, 4)], 5, group)
    got = torch.ops.symm_mem.fused_all_gather_matmul(whole.cfloat(), [weight.cfloat()], 0, group)[1][0]
    want = torch.ops.symm_mem.fused_all_gather_matmul(whole, [weight], 0, group)[1][0]
    torch.testing.assert_close(got.real, want)
    why = "tilelink multiplies floats of one dtype from 16 to 64 bits, and this is complex64"
    said = f"symm_mem::fused_all_gather_matmul: 1 call by torch: {why}"
    assert said in str(tilelink.report()).splitlines(), str(tilelink.report())


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (torch.nn.Linear(n, m, bias=False) for n, m in ((16, 32), (16, 32), (32, 16)))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def check_compiled(rank: int) -> None:
    """A model that knows nothing of tilelink, behind Inductor's async tensor parallelism. What Inductor emits of the same
    operators `tests/inductor` runs.

    torch's pass does nothing in a build without NCCL, which it asks for by one predicate: that is patched.
    """
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    torchs.enable_symm_mem_for_group(mesh.get_group().group_name)
    torch.manual_seed(0)
    model = MLP()
    x = drawn(8, 16)
    want = model(x)
    want.square().sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    columns = ColwiseParallel(input_layouts=Shard(0))
    parallelize_module(model, mesh, {"up": columns, "gate": columns, "down": RowwiseParallel(output_layouts=Shard(0))})
    compiled = torch.compile(model, fullgraph=True, backend=passes)
    with (
        mock.patch.object(dist, "is_nccl_available", return_value=True),
        torch._inductor.config.patch(_micro_pipeline_tp=True),
    ):
        got = compiled(x.chunk(2)[rank].clone())
        got.square().sum().backward()
    torch.testing.assert_close(got, want.chunk(2)[rank], rtol=1e-4, atol=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.full_tensor(), gradients[name], rtol=1e-4, atol=1e-4)


def check_benchmark(folder: Path) -> None:
    """The script that compares torch's own with ours on GPUs, on a layer of 32 features."""
    given = [
        "--device",
        "cpu",
        "--tiny",
        "--seconds",
        "0",
        "--cases",
        "mlp forward",
        "--out",
        str(folder / "install.json"),
    ]
    (row,) = install.rows_of(install.parsed(given), install.Ranks("cpu"))
    assert row["ok"], row
    assert [*row["us"]] == [*row["errors"]] == [*install.CONTENDERS]
    assert "fused_all_gather_matmul: 6 calls by tilelink" in row["fused"]
    assert "1.000" in install.table([row | {"us": dict.fromkeys(row["us"], 1.0)}])


def main(rank: int, folder: Path) -> None:
    whole, pair = dist.group.WORLD.group_name, dist.new_group([0, 1]).group_name
    tilelink.install()
    for dtype, group in ((torch.float32, whole), (torch.bfloat16, pair)):
        check_forms(rank, group, dtype)
    check_gradients(rank, pair)
    check_refused(rank, whole)
    tilelink.uninstall()
    with tilelink.install():
        check_compiled(rank)
        ours = [row.operator for row in tilelink.report().rows if row.by == "tilelink"]
        assert sorted(ours) == ["fused_all_gather_matmul", "fused_matmul_reduce_scatter"], str(tilelink.report())
    check_benchmark(folder)


if __name__ == "__main__":
    two_processes.run(main)
