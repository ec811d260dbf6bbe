"""What the cost model chooses against what was measured on H200s: `python -m benchmarks.model.agreement`.

Three choices, each beside that of the four models which this one has replaced (`old`, kept in the results file as they were
recorded before those were deleted):

- which form a call takes (`forms`): of all rows of `results/sweep-*.json` and `results/bench-*.json`, how much slower the form
  that is chosen was than the faster one;
- which tile a matmul gets (`tiles`), for the same rows;
- how the schedules of a search are ranked (`ranking`): of `results/schedules-h200-2.json`, by shape, Spearman's correlation of
  the estimates with the times, and how much slower the schedule that is estimated to be the fastest was than the fastest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, about, parser, save
from tilelink import Operator, TilelinkError, fused, ops, sms
from tilelink.cost import predict, unfused
from tilelink.explore.cases import Case, names_of
from tilelink.ir.plan import Plan
from tilelink.ir.program import has_dot
from tilelink.ir.schedule import CopyEngine
from tilelink.ir.topology import Device, Topology
from tilelink.mapping.lower import lower
from tilelink.pipeline.choosing import estimated, inestimable

OUT = RESULTS / "cost-agreement-h200.json"
SCHEDULES = "schedules-h200-2"
H200 = Device("NVIDIA H200", 132, capability=90)


@dataclass(frozen=True)
class Model:
    """`forms`: microseconds overlapped and one after the other, None where they cannot be estimated; `unfused`: whether
    a call takes the unfused form; `us`: of a candidate of a search."""

    forms: Callable[[Plan], tuple[float, float] | None]
    unfused: Callable[[Plan, Operator], bool]
    us: Callable[[Plan], float]


def planned(operator: Operator, sizes: dict[str, int], ranks: int) -> Plan:
    case = Case(operator, tuple(sizes.items()), ranks)
    return case.compiled(Topology(ranks, "peer", device=H200)).plan


def benched() -> Iterator[tuple[str, dict[str, Any], Operator | None]]:
    """Of `tilelink bench` on H200s: the file, a row, and the operator of the library that can be planned at its sizes, if any."""
    for path in sorted([*RESULTS.glob("sweep-*-h200-*.json"), *RESULTS.glob("bench-*-h200-*.json")]):
        for row in json.loads(path.read_text())["rows"]:
            operator = getattr(ops, row["operator"], None)
            fits = operator is not None and {*names_of(operator)} <= {*row["sizes"]}
            yield path.stem, row, operator if fits else None


def form_rows(model: Model) -> Iterator[dict[str, Any]]:
    for name, row, operator in benched():
        if operator is None:
            continue
        plan = planned(operator, row["sizes"], row["ranks"])
        unfused, found = model.unfused(plan, operator), model.forms(plan)
        tiles = {s.path: [g.tile for g in s.grid] for s in plan.steps if has_dot(s.step.program)}
        ours, plain = times(row)
        yield {
            "file": name,
            "operator": row["operator"],
            "case": row["case"],
            "form": "unfused" if unfused else "overlapped",
            "us": None if found is None else [round(us, 1) for us in found],
            "measured_us": [None if ms is None else round(1e3 * ms, 1) for ms in (ours, plain)],
            "regret": regret("unfused" if unfused else "overlapped", (ours, plain)),
            "tiles": tiles,
        }


def times(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """Milliseconds of the tile programs, and of the unfused form."""
    if row["schedule"].startswith("unfused"):
        other = row["others"].get("ours, tile programs")
        return None if other is None else other["ms"], row["ms_unfused"]
    return row["ms_ours"], row["ms_unfused"]


# ------------------------------------------------------------------------------------------------------------- rankings
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


def ranked(model: Model) -> Iterator[dict[str, Any]]:
    found: dict[tuple[Any, ...], list[tuple[str, float, float]]] = {}
    for row, operator, sizes, ranks in searched():
        if "ms" not in row:
            continue
        try:
            plan = planned(operator, sizes, ranks)
        except TilelinkError:
            continue
        key = (row["operator"], row["M"], row["K"], row["N"])
        found.setdefault(key, []).append((row["schedule"], 1e3 * row["ms"], model.us(plan)))
    for key, rows in found.items():
        _, measured, estimated = (list(column) for column in zip(*rows, strict=True))
        errors = [abs(e / m - 1) for m, e in zip(measured, estimated, strict=True)]
        yield {
            "operator": key[0],
            "shape": list(key[1:]),
            "schedules": len(rows),
            "spearman": round(spearman(measured, estimated), 3),
            "regret": round(measured[int(np.argmin(estimated))] / min(measured) - 1, 4),
            "error": {"median": round(float(np.median(errors)), 3), "worst": round(max(errors), 3)},
            "us": {name: [round(m, 1), round(e, 1)] for name, m, e in rows},
        }


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of ranks, equal values sharing the mean of theirs."""

    def ranks(values: list[float]) -> Any:
        _, inverse, counts = np.unique(np.round(values, 3), return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return (ends - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def table(model: Model) -> dict[str, Any]:
    return {"forms": [*form_rows(model)], "ranking": [*ranked(model)]}


# -------------------------------------------------------------------------------------------------------------- summary
def summary(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same or better, in a few numbers. Of rows that came after the models before were deleted nobody knows
    what those would have chosen; of the others, what they chose is judged by the times that are measured now."""
    before = {(r["file"], r["operator"], r["case"]): r for r in old["forms"]}
    keys = [(r["file"], r["operator"], r["case"]) for r in new["forms"]]
    pairs = [(before[key], r) for key, r in zip(keys, new["forms"], strict=True) if key in before]
    ours = [(r["us"][0], r["measured_us"][0]) for r in new["forms"] if r["us"] and r["measured_us"][0]]
    plain = [(r["us"][1], r["measured_us"][1]) for r in new["forms"] if r["us"] and r["measured_us"][1]]
    ranked = [e for row in new["ranking"] for e in row["us"].values()]
    return {
        "decisions": len(pairs),
        "decided_otherwise": [b["case"] for a, b in pairs if a["form"] != b["form"]],
        "tiled_otherwise": [b["case"] for a, b in pairs if a["tiles"] != b["tiles"]],
        "worst_regret_of_a_form": {
            "old": worst(regret(a["form"], b["measured_us"]) for a, b in pairs),
            "new": worst(regret(r["form"], r["measured_us"]) for r in new["forms"]),
        },
        "error_overlapped": errors(ours),
        "error_unfused": errors(plain),
        "error_of_schedules": errors([(us, measured) for measured, us in ranked]),
        "ranking": [
            {
                "operator": a["operator"],
                "shape": a["shape"],
                "spearman": {"old": a["spearman"], "new": b["spearman"]},
                "regret": {"old": a["regret"], "new": b["regret"]},
            }
            for a, b in zip(old["ranking"], new["ranking"], strict=True)
        ],
    }


def regret(form: str, measured: Sequence[float | None]) -> float | None:
    """How much slower a form was than the faster one, of times overlapped and unfused; None if one of them was not measured."""
    ours, plain = measured
    if ours is None or plain is None:
        return None
    return round((plain if form == "unfused" else ours) / min(ours, plain) - 1, 4)


def worst(regrets: Iterable[float | None]) -> float:
    return max(r for r in regrets if r is not None)


def errors(pairs: list[tuple[float, float]]) -> dict[str, float]:
    found = [abs(us / measured - 1) for us, measured in pairs]
    return {"median": round(float(np.median(found)), 3), "worst": round(max(found), 3)}


def main() -> int:
    out = parser(__doc__, OUT).parse_args().out
    old = json.loads(OUT.read_text())["old"]
    new = table(NEW)
    told = summary(old, new)
    save(out, about(gpu=H200.name), {"summary": told, "new": new, "old": old})
    print(json.dumps(told, indent=1))
    return 0


def forms(plan: Plan) -> tuple[float, float] | None:
    lowered = lower(plan)
    return None if inestimable(plan) else (predict(lowered).us, unfused(lowered))


NEW = Model(
    forms,
    lambda plan, operator: estimated(plan, operator.schedules).schedule.unfused,
    lambda plan: predict(lower(plan)).us,
)

if __name__ == "__main__":
    raise SystemExit(main())
