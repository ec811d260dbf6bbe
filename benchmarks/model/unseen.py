"""The cost model on machines whose runs it was not fitted to: what was measured there, and what it says with the machine's file
as it comes along, and with one that `tilelink calibrate` wrote there.

    python -m benchmarks.model.unseen bench-ag_gemm.json … --machine 8xH100 benchmarks/results/calibrated-h100-2.toml

Rows are those of `tilelink bench --out`; default schedules, on as many GPUs as ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness import RESULTS, ROOT, parser, save
from tilelink import ops
from tilelink.cost import Machine, predict
from tilelink.explore.cases import Case
from tilelink.mapping.lower import lower

OUT = RESULTS / "model-unseen-h100-2.json"


def predicted(operator: str, sizes: Mapping[str, int], ranks: int, machine: Machine) -> float:
    """Microseconds of a call of an operator as it comes."""
    case = Case(getattr(ops, operator), tuple(sizes.items()), ranks)
    return predict(lower(case.unproven(case.topology_on(machine))), machine).us


def machine_of(name: str) -> Machine:
    """Of a name, or of a file in this project."""
    path = ROOT / name
    return Machine.load(path if path.is_file() else name)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By machine's file, the mean and the largest |predicted / measured − 1|."""
    found: dict[str, dict[str, float]] = {}
    for name in rows[0]["predicted_us"]:
        errors = [abs(row["predicted_us"][name] / row["measured_us"] - 1) for row in rows]
        found[name] = {"mean": round(mean(errors), 4), "worst": round(max(errors), 4)}
    return found


def main() -> None:
    made = parser(__doc__, OUT)
    made.add_argument("results", nargs="+", type=Path)
    made.add_argument("--machine", nargs="+", default=["8xH100"])
    made.add_argument("--about", default="{}", help="JSON: GPU, torch, Triton, commit.")
    options = made.parse_args()
    rows: list[dict[str, Any]] = []
    for path in options.results:
        for row in json.loads(path.read_text())["rows"]:
            says = {n: predicted(row["operator"], row["sizes"], row["ranks"], machine_of(n)) for n in options.machine}
            rows.append(
                {
                    **{key: row[key] for key in ("operator", "case", "sizes", "ranks", "schedule")},
                    "measured_us": round(1e3 * row["ms_ours"], 1),
                    "predicted_us": {n: round(us, 1) for n, us in says.items()},
                }
            )
    save(options.out, json.loads(options.about), {"summary": summary(rows), "rows": rows})
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
