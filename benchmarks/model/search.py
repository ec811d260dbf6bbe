"""How near a search comes to the best of schedules that were all measured: `python -m benchmarks.model.search`.

Of `results/schedules-h200-2.json`, shape by shape, a method may look at a tenth of the schedules, rounded up. `over`: by how much
the best that it has seen is slower than the best of all; of `random` the mean and the 95th percentile over many seeds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, about, parser, save
from benchmarks.model.recorded import searched
from tilelink import Operator
from tilelink.cost import H200
from tilelink.explore.cases import Case
from tilelink.ir.schedule import Schedule
from tilelink.ir.topology import Topology
from tilelink.pipeline.choosing import problem_of
from tilelink.pipeline.tuning import modelled
from tilelink.tuning.methods import at_random, by_model
from tilelink.tuning.search import Limits, Search
from tilelink.tuning.study import Study, Trial

OUT = RESULTS / "search-recorded-h200-2.json"
PART = 0.1
"""Of the schedules, that are tried."""
SEEDS = 500


@dataclass(slots=True)
class Recorded(Search):
    """Schedules that are no product of placements."""

    schedules: tuple[Schedule, ...] = ()

    @property
    def count(self) -> int:
        return len(self.schedules)

    def numbered(self, number: int) -> Schedule:
        return self.schedules[number]


def shapes() -> dict[tuple[str, int, int, int, int], list[tuple[Operator, str, float]]]:
    """By operator, M, N, K and ranks: the operator as it was scheduled, what the file calls that, and microseconds."""
    found: dict[tuple[str, int, int, int, int], list[tuple[Operator, str, float]]] = {}
    for row, operator, sizes, ranks in searched():
        if "ms" in row:
            key = (row["operator"], sizes["M"], sizes["N"], sizes["K"], ranks)
            found.setdefault(key, []).append((operator, row["schedule"], 1e3 * row["ms"]))
    return found


def over(candidates: Recorded, method: Any, us: dict[Schedule, float], trials: int) -> tuple[float, list[Schedule]]:
    """By how much the best of so many trials is slower than the best of all, and the trials."""
    seen: list[Schedule] = []
    for batch in method(candidates):
        seen += batch
        candidates.study.tried.update({s: Trial(s, us[s]) for s in batch})
        if len(seen) >= trials:
            break
    return min(us[s] for s in seen[:trials]) / min(us.values()) - 1, seen[:trials]


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for (name, m, n, k, ranks), recorded in shapes().items():
        case = Case(recorded[0][0], (("M", m), ("N", n), ("K", k)), ranks)
        bound = case.bound(Topology(ranks, "peer", device=H200.device()))
        us: dict[Schedule, float] = {}
        estimated: dict[Schedule, float] = {}
        said: dict[Schedule, str] = {}
        for operator, text, measured in recorded:
            trial = modelled(operator, bound, H200)
            if trial.us is not None:
                us[trial.schedule], estimated[trial.schedule], said[trial.schedule] = measured, trial.us, text

        problem = problem_of(case.operator, bound)

        def candidates(seed: int, problem: Any = problem, us: Any = us, estimated: Any = estimated) -> Recorded:
            study, all_of = Study(problem, "gpu", "model", {}), tuple(us)
            limits, estimate = Limits(seed=seed), estimated.__getitem__
            return Recorded(study, limits, all_of[0], (), lambda *_: [], estimate, schedules=all_of)

        trials = math.ceil(PART * len(us))
        by_chance = [over(candidates(seed), at_random, us, trials)[0] for seed in range(SEEDS)]
        guided, seen = over(candidates(0), by_model, us, trials)
        found.append(
            {
                "operator": name,
                "sizes": {"M": m, "N": n, "K": k},
                "ranks": ranks,
                "schedules": len(us),
                "trials": trials,
                "over": {
                    "model": round(guided, 4),
                    "random": {
                        "mean": round(float(np.mean(by_chance)), 4),
                        "p95": round(float(np.percentile(by_chance, 95)), 4),
                    },
                },
                "tried": [
                    {"schedule": said[s], "us": round(us[s], 1), "estimated": round(estimated[s], 1)} for s in seen
                ],
                "best": {"schedule": said[min(us, key=lambda s: us[s])], "us": round(min(us.values()), 1)},
            }
        )
    return found


def main() -> int:
    out: Path = parser(__doc__, OUT).parse_args().out
    made = rows()
    guided = [row["over"]["model"] for row in made]
    summary = {
        "shapes": len(made),
        "model": {
            "median": float(np.median(guided)),
            "worst": max(guided),
            "within_3_percent": sum(g <= 0.03 for g in guided),
        },
        "random": {"mean": round(float(np.mean([row["over"]["random"]["mean"] for row in made])), 4)},
    }
    save(out, about(gpu=H200.gpu, ranks=made[0]["ranks"]), {"summary": summary, "rows": made})
    print(json.dumps(summary, indent=1))
    for row in made:
        sizes = "x".join(map(str, row["sizes"].values()))
        print(f"{row['operator']:8} {sizes:18} {row['trials']} of {row['schedules']}: {row['over']['model']:.1%}, by chance "
              f"{row['over']['random']['mean']:.1%}")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
