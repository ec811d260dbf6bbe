"""Operators of several products with one gathering, what torch's fused all-gather takes, and of a product that is added to what
is there, reduced and scattered."""

from __future__ import annotations

from functools import cache
from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.outer import outer
from tilelink.ops.parts import gathered, scattered
from tilelink.ops.programs import gather, matmul, reduce, scatter
from tilelink.pipeline import Operator


@cache
def ag_products(products: int, *, turned: bool, keep: bool) -> Operator:
    """`all_gather(x) @ y` for each of `products` matrices; `turned`: `all_gather(x).T @ y`.

    Arguments are `x`, `[M/R, K]`, and the matrices, `[K, N0]`, `[K, N1]`, … (`turned`: `[M, N0]`, …), of one dtype. Results
    have it too, accumulated in fp32: with `keep` the gathered rows, `[M, K]`, then the products, `[M, N0]`, … (`[K, N0]`, …).
    """
    summed, left = ("M", "K") if turned else ("K", "M")
    columns = [f"N{k}" for k in range(products)]
    inputs = ", ".join(["M/R K", *(f"{summed} {n}" for n in columns)])
    results = ", ".join([*(["M K"] if keep else []), *(f"{left} {n}" for n in columns)])
    name = f"ag_{'outer' if turned else 'gemm'}_{products}{'_keep' if keep else ''}"

    @tilelink.operator(f"{inputs} -> {results}", name=name)
    def several(x: Any, *others: Any) -> Any:
        rows, program = gather(x), outer if turned else matmul
        found = [program(rows, each, name=f"{program.name}_{k}") for k, each in enumerate(others)]
        return (rows, *found) if keep else tuple(found)

    @several.reference
    def _(x: Any, *others: Any, M: int | None = None, group: Any = None) -> Any:
        rows = gathered(x, group, M)
        found = [(rows.t() if turned else rows) @ each for each in others]
        return (rows.clone() if rows is x else rows, *found) if keep else tuple(found)

    return several


@tilelink.program("M K, K N, M N -> M N")
def matmul_onto(rows: Any, weight: Any, before: Any, out: Any) -> None:
    """One tile of `before + rows @ weight`, accumulated in fp32 (int32, fp64)."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.consumer_tile_wait(before, (m, n))
    acc = tl.tile_load(before, (m, n)).to(tl.acc_dtype(rows))
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(weight, (k, n))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc, out_dtype=acc.dtype)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator(
    "M K/R, K/R N, M N -> M/R N",
    schedule={
        "scatter": tilelink.copy_engine(M=1024, order="ring+1"),  # as of gemm_rs
        "reduce": tilelink.fused("matmul_onto", deferred=None),
    },
)
def gemm_rs_onto(x: Any, weight: Any, before: Any) -> Any:
    """`reduce_scatter(before + x @ weight)` over the rows.

    Args:
        x: this rank's columns of the activation, `[M, K/R]`.
        weight: this rank's rows of the weight, `[K/R, N]`, any strides.
        before: what this rank adds, `[M, N]`, any strides.

    Returns:
        this rank's rows of the sum, `[M/R, N]` in the dtype of `x`; partial sums travel in that dtype.
    """
    return reduce(scatter(matmul_onto(x, weight, before)))


@gemm_rs_onto.reference
def _(x: Any, weight: Any, before: Any, *, M: int | None = None, K: int | None = None, group: Any = None) -> Any:
    import torch

    del M, K  # `x` has all rows, and a product of no columns is 0
    return scattered(lambda out: torch.addmm(before, x, weight, out=out), x, x.shape[0], weight.shape[1], group)
