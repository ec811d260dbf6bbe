"""Calls that were measured on H200s, and the plans that the operators have now: rows of `tilelink bench`, and of a search."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import RESULTS
from tilelink import Operator, fused, ops, sms
from tilelink.cost import H200
from tilelink.explore.cases import Case, names_of
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import CopyEngine
from tilelink.ir.topology import Topology

SCHEDULES = "schedules-h200-2"


def planned(operator: Operator, sizes: Mapping[str, int], ranks: int) -> Plan:
    case = Case(operator, tuple(sizes.items()), ranks)
    return case.compiled(Topology(ranks, "peer", device=H200.device())).plan


def benched() -> Iterator[tuple[str, dict[str, Any], Operator | None]]:
    """Of `tilelink bench` on H200s: the file, a row, and the operator of the library that can be planned at its sizes, if any."""
    for path in sorted([*RESULTS.glob("sweep-*-h200-*.json"), *RESULTS.glob("bench-*-h200-*.json")]):
        for row in json.loads(path.read_text())["rows"]:
            operator = getattr(ops, row["operator"], None)
            fits = operator is not None and {*names_of(operator)} <= {*row["sizes"]}
            yield path.stem, row, operator if fits else None


# ------------------------------------------------------------------------------------------------------------ a search
def placed(operator: str, said: str) -> Operator | None:
    """The operator with a schedule as `schedules-h200-2.json` names it; None: it is none of ours."""
    parts = said.split(" | ")
    if len(parts) == 1:
        return None
    how, gather = parts[-1], operator == "ag_gemm"
    m, n = (int(x) for x in re.findall(r"(\d+)x(\d+)", how)[0])
    few = how.endswith("w4") or (m, n) == (64, 256)
    grouped = re.search(r" g(\d+)", how)
    group = "row" if how.endswith("row") else f"group {grouped[1] if grouped else 16 if gather else 8}"
    ring = [] if how.endswith("no ring") else ["ring" if gather else "ring+1"]
    matmul = sms(M=m, N=n, K=64, num_warps=4 if few else 8, num_stages=4 if few else 3, order=(*ring, group))
    moving = parts[0]
    size = re.search(r" (\d+)$", moving)
    chunk = (("M", int(size[1])),) if size else ()
    count = re.match(r"sm(\d+)", moving)
    if gather:
        push = "push" in moving
        by = sms(int(count[1]), M=128, order="ring", push=push) if count else CopyEngine(tile=chunk, push=push)
        return ops.ag_gemm.schedule(gather=by, matmul=matmul)
    by = sms(int(count[1]), M=128, order="ring+1") if count else CopyEngine(tile=chunk, order=("ring+1",))
    reduce = {"behind": fused("matmul", deferred=True), "fused": fused("matmul"), "own": sms(M=16, N=512, num_warps=8)}
    scatter = fused("matmul") if moving == "fused" else by
    return ops.gemm_rs.schedule(scatter=scatter, reduce=reduce[parts[1]], matmul=matmul)


def searched() -> Iterator[tuple[dict[str, Any], Operator, dict[str, int], int]]:
    """Of a search on H200s: rows that are ours, the operator as it was scheduled, its sizes, and how many ranks there were."""
    recorded = json.loads((RESULTS / f"{SCHEDULES}.json").read_text())
    ranks: int = recorded["about"]["ranks"]
    for row in recorded["rows"]:
        operator = placed(row["operator"], row["schedule"])
        if operator is not None:
            depth = row["K"] * (ranks if row["operator"] == "gemm_rs" else 1)
            yield row, operator, {"M": row["M"], "N": row["N"], "K": depth}, ranks
