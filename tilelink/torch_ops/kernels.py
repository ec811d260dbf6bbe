"""What torch's dispatcher calls once tilelink is installed: ours where it can, torch's own otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import _symmetric_memory as torchs

from tilelink.torch_ops.dispatch import function_of, kernel_of
from tilelink.torch_ops.door import Door
from tilelink.torch_ops.gradients import keep_gathering, keep_scattering, of_gathering, of_scattering
from tilelink.torch_ops.serving import all_gather_matmul, matmul_reduce_scatter, unserved

GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"


def register(door: Door) -> torch.library.Library:
    """Put ours in front of torch's, on GPUs and CPUs, with gradients. Destroying the library takes them away."""

    def gather(
        A: torch.Tensor, Bs: Sequence[torch.Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        dim, session = gather_dim % max(A.dim(), 1), door.session(group_name)
        why = door.closed[group_name] if session is None else _shapes(A, Bs, gather_dim) or unserved([A, *Bs], session)
        if door.count(GATHER, why) and session is not None:
            return all_gather_matmul(A, Bs, dim, session, return_A)
        torchs_own = torchs._fused_all_gather_matmul if A.is_cuda else torchs._fused_all_gather_matmul_fallback
        return torchs_own(A, list(Bs), gather_dim, group_name, return_A=return_A)  # pyright: ignore[reportArgumentType]

    def scatter(A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> torch.Tensor:
        dim, session = scatter_dim % max(A.dim(), 1), door.session(group_name)
        why = door.closed[group_name] if session is None else _shapes(A, [B], scatter_dim) or unserved([A, B], session)
        if why is None and reduce_op not in ("sum", "avg"):
            why = f"tilelink sums and averages, and this is {reduce_op!r}"
        ranks = 1 if session is None else session.backend.ranks
        if why is None and (B.shape[1] if dim == A.dim() - 1 else A.shape[dim]) % ranks:
            why = f"{ranks} ranks do not divide the scattered axis"
        if door.count(SCATTER, why) and session is not None:
            return matmul_reduce_scatter(A, B, reduce_op == "avg", dim, session)
        torchs_own = torchs._fused_matmul_reduce_scatter if A.is_cuda else torchs._fused_matmul_reduce_scatter_fallback
        return torchs_own(A, B, reduce_op, scatter_dim, group_name)  # pyright: ignore[reportArgumentType]

    library = torch.library.Library("symm_mem", "IMPL")
    for name, kernel in ((GATHER, gather), (SCATTER, scatter)):
        for key in ("CUDA", "CPU"):
            library.impl(name, kernel, key, allow_override=True)
    gathering, scattering = (getattr(torch.ops.symm_mem, name).default for name in (GATHER, SCATTER))

    def gather_below(keyset: Any, A: torch.Tensor, dim: int, group: str, keep: bool, *Bs: torch.Tensor) -> Any:
        gathered, products = gathering.redispatch(keyset, A, Bs, dim, group, return_A=keep)
        return gathered, *products

    gather_all = kernel_of(gather_below, function_of(keep_gathering, of_gathering).apply)

    def gather_above(keyset: Any, A: Any, Bs: Any, gather_dim: int, group_name: str, *, return_A: bool = True) -> Any:
        gathered, *products = gather_all(keyset, A, gather_dim, group_name, return_A, *Bs)
        return gathered, products

    scatter_above = kernel_of(scattering.redispatch, function_of(keep_scattering, of_scattering).apply)
    for name, kernel in ((GATHER, gather_above), (SCATTER, scatter_above)):
        library.impl(name, kernel, "Autograd", with_keyset=True)
    forget()
    return library


def forget() -> None:
    """Let torch's compiler look for kernels anew: what it remembers of those that have come or gone ends the process."""
    for name in (GATHER, SCATTER):
        getattr(torch.ops.symm_mem, name).default._dispatch_cache.clear()


def _shapes(A: torch.Tensor, Bs: Sequence[torch.Tensor], dim: int) -> str | None:
    """Why these are no products of matrices, or not along that axis, which torch says in its own words."""
    fit = A.dim() >= 2 and -A.dim() <= dim < A.dim() and Bs and all(B.dim() == 2 for B in Bs)
    return None if fit else "these are no products of matrices"
