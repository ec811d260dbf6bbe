"""`tilelink::matmul_add_reduce_scatter`: torch's `fused_matmul_reduce_scatter` of a product that is added to what is there."""

from __future__ import annotations

import torch
from torch.distributed import distributed_c10d as torchs

from tilelink.runtime.session import require
from tilelink.torch_ops.serving import matmul_reduce_scatter

LIBRARY = torch.library.Library("tilelink", "FRAGMENT")
NAME = "matmul_add_reduce_scatter"
LIBRARY.define(
    f"{NAME}(Tensor A, Tensor B, Tensor C, str reduce_op, int scatter_dim, str group_name) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


def _run(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, reduce_op: str, dim: int, group: str) -> torch.Tensor:
    return matmul_reduce_scatter(A, B, reduce_op == "avg", dim % A.dim(), require().named(group), C)


def _fake(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, reduce_op: str, dim: int, group: str) -> torch.Tensor:
    shape = list(C.shape)
    shape[dim] //= torchs._resolve_process_group(group).size()  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage, reportArgumentType]
    return A.new_empty(shape)


LIBRARY.impl(NAME, _run, "CompositeExplicitAutograd")
torch.library.register_fake(f"tilelink::{NAME}", _fake, lib=LIBRARY)
