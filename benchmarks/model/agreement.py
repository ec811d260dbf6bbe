"""The form that a call takes by the cost model against what was measured on H200s: `python -m benchmarks.model.agreement`.

Of all rows of `results/sweep-*.json` and `results/bench-*.json`: both forms' estimates and times, overlapped and one after the
other, and by how much the form that is chosen was slower than the faster one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, about, parser, save
from benchmarks.model.recorded import benched, planned
from tilelink.cost import H200, predict, unfused
from tilelink.mapping.lower import lower
from tilelink.pipeline.choosing import estimated, inestimable

OUT = RESULTS / "cost-agreement-h200.json"


def rows() -> Iterator[dict[str, Any]]:
    for name, row, operator in benched():
        if operator is None:
            continue
        plan = planned(operator, row["sizes"], row["ranks"])
        lowered = lower(plan)
        form = "unfused" if estimated(plan, operator.schedules).schedule.unfused else "overlapped"
        us = None if inestimable(plan) else (predict(lowered).us, unfused(lowered))
        measured = times(row)
        yield {
            "file": name,
            "operator": row["operator"],
            "case": row["case"],
            "form": form,
            "us": None if us is None else [round(each, 1) for each in us],
            "measured_us": [None if ms is None else round(1e3 * ms, 1) for ms in measured],
            "regret": regret(form, measured),
        }


def times(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """Milliseconds of the tile programs, and of the unfused form."""
    if row["schedule"].startswith("unfused"):
        other = row["others"].get("ours, tile programs")
        return None if other is None else other["ms"], row["ms_unfused"]
    return row["ms_ours"], row["ms_unfused"]


def regret(form: str, measured: Sequence[float | None]) -> float | None:
    """How much slower a form was than the faster one, of times overlapped and unfused; None if one of them was not measured."""
    ours, plain = measured
    if ours is None or plain is None:
        return None
    return round((plain if form == "unfused" else ours) / min(ours, plain) - 1, 4)


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`slower`: file and case of each row whose form was the slower one, and by how much."""

    def errors(form: int) -> dict[str, float]:
        pairs = [(r["us"][form], r["measured_us"][form]) for r in found if r["us"] and r["measured_us"][form]]
        off = [abs(us / measured - 1) for us, measured in pairs]
        return {"median": round(float(np.median(off)), 3), "worst": round(max(off), 3)}

    return {
        "both_measured": sum(r["regret"] is not None for r in found),
        "slower": [[r["file"], r["case"], r["regret"]] for r in found if r["regret"]],
        "error_overlapped": errors(0),
        "error_unfused": errors(1),
    }


def main() -> int:
    out = parser(__doc__, OUT).parse_args().out
    found = [*rows()]
    told = summary(found)
    save(out, about(gpu=H200.gpu), {"summary": told, "rows": found})
    print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
