"""Predicted against measured times of all calls that were measured on H200s: `python -m benchmarks.model.fidelity`.

One row for each run: the schedules of `results/schedules-h200-2.json`, and the tile programs of every operator in
`results/sweep-*-h200-*.json` and `results/bench-*-h200-*.json`, each with the schedule that its row names, or why it is left out.

`--check` only compares the file with what the model says now. `--fit` looks for the figures in `FITTED` with which predictions
agree best, prints them, and changes no file of a machine. The figures that are fitted are fitted again without each shape, and
without each operator, and what is left out is predicted with them.
"""

from __future__ import annotations

import json
import re
import time
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, about, parser, save
from benchmarks.model.recorded import SCHEDULES, benched, planned, searched
from tilelink import Operator, TilelinkError, ops, sms
from tilelink.cost import H200, Machine, bound, predict
from tilelink.cost.model import Clock
from tilelink.explore.cases import names_of
from tilelink.ir.plan import Plan
from tilelink.mapping.lower import lower
from tilelink.proof.table import Table

OUT = RESULTS / "model-fidelity-h200.json"
FITTED = (
    "tile_fixed", "tile_small", "tile_depth", "tall", "tile_latency", "link", "push", "pull", "few_warps", "copy",
    "doorbell", "launch", "remote_signal", "worker_memory", "tile_flops",
)  # fmt: skip
MISSED = 0.20
ROUNDED = 0.05
"""Microseconds that a time in the file may differ from what it stands for."""
DEFAULT = {"ag_gemm": "ce push | 128x256 g16", "gemm_rs": "ce 1024 | behind | 128x256 g8"}
"""The schedules that the operators ship, as `schedules-h200-2.json` calls them."""


@dataclass(frozen=True)
class Run:
    """A call that was measured. `schedule`: as its file names it; `shape`: all its sizes."""

    file: str
    operator: str
    shape: str
    ranks: int
    schedule: str
    measured: float
    plan: Plan

    @cached_property
    def table(self) -> Table:
        return Table.of(lower(self.plan))


@dataclass(frozen=True)
class Declined:
    """A row that is not predicted, and why."""

    file: str
    operator: str
    shape: str
    why: str


def said(plan: Plan) -> str:
    """A plan's schedule as result files name it."""
    return "; ".join(f"{s.path}: {s}" for s in plan.steps)


def shape_of(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


# ---------------------------------------------------------------------------------------------------------------- runs
def runs() -> Iterator[Run | Declined]:
    yield from _searched()
    for file, row, operator in benched():
        yield _defaults(file, row, operator)


def _searched() -> Iterator[Run | Declined]:
    for row, operator, sizes, ranks in searched():
        why = row.get("refused")
        try:
            plan = planned(operator, sizes, ranks)
        except TilelinkError as error:
            plan, why = None, f"refused: {error.code}"
        if why is not None or plan is None:
            yield Declined(SCHEDULES, row["operator"], shape_of(sizes), f"{row['schedule']}: {why}")
        else:
            yield Run(SCHEDULES, row["operator"], shape_of(sizes), ranks, row["schedule"], 1e3 * row["ms"], plan)


def _defaults(file: str, row: dict[str, Any], operator: Operator | None) -> Run | Declined:
    """Of a row whose operator ran its unfused form, the tile programs are among the others."""
    name, sizes, shape = row["operator"], row["sizes"], shape_of(row["sizes"])
    plain = row["schedule"].startswith("unfused")
    found = (
        row["contenders"].get("ours, tile programs") if plain else {"ms": row["ms_ours"], "schedule": row["schedule"]}
    )
    if found is None or not found["ms"]:
        return Declined(file, name, shape, "its tile programs were not measured")
    if operator is None:
        return Declined(
            file, name, shape, "it is not a single operator of tilelink.ops, or has sizes that only its inputs tell"
        )
    sizes = {n: sizes[n] for n in names_of(operator)}
    try:
        plan = planned(_as_recorded(operator, found["schedule"]), sizes, row["ranks"])
    except TilelinkError as error:
        return Declined(file, name, shape, f"it cannot be planned: {error.code}")
    if said(plan) != found["schedule"]:
        return Declined(file, name, shape, "it was measured with another schedule than it is planned with here")
    if any(loop.by_data for e in lower(plan).executors for loop in e.loops):
        return Declined(file, name, shape, "data decides how many tiles there are")
    return Run(file, name, shape, row["ranks"], "default", 1e3 * found["ms"], plan)


def _as_recorded(operator: Operator, schedule: str) -> Operator:
    """With the tile that a matmul had, which defaults have not always been."""
    found = re.search(r"(?:^|; )matmul: \d+ workers, tiles M=(\d+) N=(\d+) K=(\d+), order ([^;]*)", schedule)
    if found is None or operator.name not in DEFAULT:
        return operator
    m, n, k = (int(size) for size in found.groups()[:3])
    order = literal_eval(found[4])
    large = m * n >= 128 * 256
    matmul = sms(M=m, N=n, K=k, num_warps=8 if large else 4, num_stages=3 if large else 4, order=order)
    return operator.schedule(matmul=matmul)


# ----------------------------------------------------------------------------------------------------------------- fit
def times(found: Sequence[Run], machine: Machine) -> np.ndarray:
    return np.array([Clock(run.table, machine).run().us for run in found])


def weights(found: Sequence[Run]) -> np.ndarray:
    """All files of one operator count as much as its schedules do together; what a library computes is not fitted."""
    return np.array([1.0 if run.file == SCHEDULES else 0.7 for run in found])


def moved(machine: Machine, by: np.ndarray) -> Machine:
    """The machine with its fitted figures changed by so much, in logarithms; a link to one peer is as fast as all of a GPU's."""
    found = {n: getattr(machine, n) * float(np.exp(x)) for n, x in zip(FITTED, by, strict=True)}
    return replace(machine, **found, peer_link=found["link"])


def slopes(found: Sequence[Run], machine: Machine, step: float = 0.03) -> np.ndarray:
    """(run, figure): how the logarithm of a time changes with that of a figure."""
    before = np.log(times(found, machine))
    changes = [np.log(times(found, moved(machine, step * unit))) - before for unit in np.eye(len(FITTED))]
    return np.stack(changes, axis=1) / step


def fitted(found: Sequence[Run], slope: np.ndarray, error: np.ndarray, keep: float = 0.15) -> np.ndarray:
    """By how much to change figures: least squares of what is left of each error, errors above 15 % counting less, and no figure
    changed for little."""
    by = np.zeros(len(FITTED))
    for _ in range(20):
        left = error - slope @ by
        weight = weights(found) / np.maximum(np.abs(left) / 0.15, 1.0)
        normal = slope.T @ (slope * weight[:, None]) + keep * np.eye(len(FITTED))
        by = np.linalg.solve(normal, slope.T @ (error * weight))
    return np.clip(by, -0.4, 0.4)


def fit(found: Sequence[Run], machine: Machine, rounds: int = 4) -> Machine:
    for turn in range(rounds):
        error = np.log([run.measured for run in found]) - np.log(times(found, machine))
        print(f"round {turn}: mean error {np.abs(np.expm1(-error)).mean():.4f}", flush=True)
        by = fitted(found, slopes(found, machine), error)
        tried = [(np.abs(np.log([r.measured for r in found]) - np.log(times(found, moved(machine, by * s)))).mean(), s)
                 for s in (1.0, 0.5, 0.25)]  # fmt: skip
        best = min(tried)
        if best[0] >= np.abs(error).mean():
            break
        machine = moved(machine, by * best[1])
    return machine


def left_out(
    found: Sequence[Run], groups: Sequence[str], slope: np.ndarray, error: np.ndarray
) -> dict[str, list[float]]:
    """By group, the predictions of its runs by figures that were fitted to all others."""
    out: dict[str, list[float]] = {}
    for group in dict.fromkeys(groups):
        others = np.array([g != group for g in groups])
        by = fitted([r for r, other in zip(found, others, strict=True) if other], slope[others], error[others])
        mine = [r for r, other in zip(found, others, strict=True) if not other]
        out[group] = [float(us) for us in times(mine, moved(H200, by))]
    return out


# ------------------------------------------------------------------------------------------------------------- summary
def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    found = np.abs([us / measured - 1 for measured, us in pairs])
    p95, worst = float(np.percentile(found, 95)), float(found.max())
    return {"mean": _r(float(found.mean())), "median": _r(float(np.median(found))), "p95": _r(p95), "worst": _r(worst)}


def _r(value: float) -> float:
    return round(value, 4)


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of ranks, equal values sharing the mean of theirs."""

    def ranks(values: list[float]) -> Any:
        _, inverse, counts = np.unique(np.round(values, 3), return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return (ends - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranking(rows: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Of each shape that was searched: how predictions rank its schedules, and how much slower than the fastest the one is that
    they would take, and the default."""
    out: list[dict[str, Any]] = []
    mine = [r for r in rows if r["file"] == SCHEDULES]
    for operator, shape in dict.fromkeys((r["operator"], r["shape"]) for r in mine):
        some = [r for r in mine if (r["operator"], r["shape"]) == (operator, shape)]
        measured, us = [r["measured_us"] for r in some], [r[key] for r in some]
        default = next(r["measured_us"] for r in some if r["schedule"] == DEFAULT[operator])
        out.append(
            {
                "operator": operator,
                "shape": shape,
                "schedules": len(some),
                "spearman": _r(spearman(measured, us)),
                "regret": _r(measured[int(np.argmin(us))] / min(measured) - 1),
                "regret_of_the_default": _r(default / min(measured) - 1),
                "error": errors([*zip(measured, us, strict=True)]),
            }
        )
    return out


def overall(rows: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    found = ranking(rows, key)
    regrets = [r["regret"] for r in found]
    pairs = [(r["measured_us"], r[key]) for r in rows]
    searched = [(r["measured_us"], r[key]) for r in rows if r["file"] == SCHEDULES]
    return {
        "error": errors(pairs),
        "error_of_schedules": errors(searched),
        "spearman_median": _r(float(np.median([r["spearman"] for r in found]))),
        "regret_median": _r(float(np.median(regrets))),
        "regret_p95": _r(float(np.percentile(regrets, 95))),
    }


def table() -> dict[str, Any]:
    found = [*runs()]
    taken = [r for r in found if isinstance(r, Run)]
    declined = [r for r in found if isinstance(r, Declined)]
    us = times(taken, H200)
    error = np.log([r.measured for r in taken]) - np.log(us)
    slope = slopes(taken, H200)
    shapes = left_out(taken, [f"{r.operator} {r.shape}" for r in taken], slope, error)
    operators = left_out(taken, [r.operator for r in taken], slope, error)
    rows = [
        {
            "file": r.file,
            "operator": r.operator,
            "shape": r.shape,
            "ranks": r.ranks,
            "schedule": r.schedule,
            "measured_us": round(r.measured, 1),
            "predicted_us": round(float(predicted), 1),
            "without_its_shape_us": round(shapes[f"{r.operator} {r.shape}"].pop(0), 1),
            "without_its_operator_us": round(operators[r.operator].pop(0), 1),
            "bound_us": round(bound(r.table.lowered).us, 1),
        }
        for r, predicted in zip(taken, us, strict=True)
    ]
    return {"rows": rows, "declined": [vars(d) for d in declined], "summary": summary(rows)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All of what docs/cost-model.md says in numbers, from the rows alone."""
    by_operator = {
        name: {"runs": len(some), **errors([(r["measured_us"], r["predicted_us"]) for r in some])}
        for name in sorted({r["operator"] for r in rows})
        if (some := [r for r in rows if r["operator"] == name])
    }
    return {
        "runs": len(rows),
        "predicted": overall(rows, "predicted_us"),
        "leave_one_shape_out": overall(rows, "without_its_shape_us"),
        "leave_one_operator_out": overall(rows, "without_its_operator_us"),
        "ranking": ranking(rows, "predicted_us"),
        "by_operator": by_operator,
        "missed_by_more_than_a_fifth": [
            {k: r[k] for k in ("file", "operator", "shape", "schedule", "measured_us", "predicted_us")}
            for r in rows
            if abs(r["predicted_us"] / r["measured_us"] - 1) > MISSED
        ],
        "faster_than_their_bound": [r["shape"] for r in rows if r["measured_us"] < r["bound_us"]],
    }


def page_table(told: dict[str, Any]) -> str:
    """The table of docs/cost-model.md."""
    columns = {
        "all runs": "predicted",
        "shape left out": "leave_one_shape_out",
        "operator left out": "leave_one_operator_out",
    }
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    kinds = {
        "mean": "mean error",
        "median": "median error",
        "p95": "95th percentile of the error",
        "worst": "worst error",
    }
    for key, name in kinds.items():
        lines.append(f"| {name} | " + " | ".join(f"{told[c]['error'][key]:.1%}" for c in columns.values()) + " |")
    searched = (f"{told[c]['error_of_schedules']['mean']:.1%}" for c in columns.values())
    lines.append("| mean error of searched schedules | " + " | ".join(searched) + " |")
    ranked = (f"{told[c]['spearman_median']:.2f}" for c in columns.values())
    lines.append("| Spearman within a shape, median | " + " | ".join(ranked) + " |")
    for key, name in (("regret_median", "regret, median"), ("regret_p95", "regret, 95th percentile")):
        lines.append(f"| {name} | " + " | ".join(f"{told[c][key]:.1%}" for c in columns.values()) + " |")
    lines += [
        "",
        "| searched | Spearman | regret | regret of the default | mean error | worst |",
        "|---|---|---|---|---|---|",
    ]
    for r in told["ranking"]:
        lines.append(
            f"| {r['operator']} {r['shape']} | {r['spearman']:.2f} | {r['regret']:.1%} | {r['regret_of_the_default']:.1%} | "
            f"{r['error']['mean']:.1%} | {r['error']['worst']:.0%} |"
        )
    lines += ["", "| operator | runs | mean error | worst |", "|---|---|---|---|"]
    lines += [f"| {n} | {r['runs']} | {r['mean']:.1%} | {r['worst']:.0%} |" for n, r in told["by_operator"].items()]
    return "\n".join(lines)


def page_speed(told: dict[str, Any]) -> str:
    """What docs/cost-model.md says of the model's own time."""
    return "; ".join(f"{name}: {found['seconds']:.2f} s" for name, found in told.items()) + "."


def speed() -> dict[str, Any]:
    """Seconds of a processor that a prediction takes, its table included."""
    out: dict[str, Any] = {}
    for name, ranks, sizes in (
        ("4 ranks of 10,240 tiles", 4, {"M": 65536, "N": 20480, "K": 4096}),
        ("72 ranks of 4,608 tiles", 72, {"M": 73728, "N": 2048, "K": 4096}),
    ):
        lowered = lower(planned(ops.ag_gemm, sizes, ranks))
        begin = time.thread_time()
        us = predict(lowered).us
        out[name] = {"seconds": round(time.thread_time() - begin, 3), "predicted_us": round(us, 1)}
    return out


def main() -> int:
    made = parser(__doc__, OUT)
    made.add_argument("--fit", action="store_true", help="print figures that agree better, and write nothing")
    made.add_argument("--check", action="store_true", help="compare the file with what is predicted now")
    given = made.parse_args()
    if given.fit:
        taken = [r for r in runs() if isinstance(r, Run)]
        machine = fit(taken, H200)
        print(json.dumps({n: float(f"{getattr(machine, n):.4g}") for n in FITTED}, indent=1))
        return 0
    if given.check:
        recorded = json.loads(given.out.read_text())["rows"]
        now = [r for r in runs() if isinstance(r, Run)]
        # Of a few microseconds, what rounds a time in the file is half a hundredth of it.
        differ = (abs(us - r["predicted_us"]) - ROUNDED for us, r in zip(times(now, H200), recorded, strict=True))
        worst = max(max(us, 0.0) / r["predicted_us"] for us, r in zip(differ, recorded, strict=True))
        print(f"{len(recorded)} rows, the worst differs by {worst:.2%} beyond what times are rounded by")
        return int(worst > 0.0005)
    found = table()
    said = about(gpu=H200.gpu, machine=H200.name, fitted=FITTED, speed=speed())
    save(given.out, said, found)
    print(json.dumps({**found["summary"], "about": said}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
