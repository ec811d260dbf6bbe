"""Operators of several products with one gathering: what torch's fused all-gather takes."""

from __future__ import annotations

from functools import cache
from typing import Any

import tilelink
from tilelink.ops.plain import gathered
from tilelink.ops.programs import gather, matmul, outer
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
