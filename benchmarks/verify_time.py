"""What the proof costs, over ranks, for every operator of the library in every form: `python -m benchmarks.verify_time`.

About 100,000 tiles a rank up to 64 ranks, and 800,000 at 1,024; ragged rows. Milliseconds of this thread, the best of three.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mapping.plans import form, forms
from tilelink.bench.running import commit
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Verdict
from tilelink.mapping import verify

OUT = Path(__file__).parent / "results" / "verify-time.json"
TILE, ROWS = 128, 997
RANKS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
LIMITS = {64: 100.0, 1024: 2000.0}
"""Milliseconds that a plan may take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--forms", nargs="*", default=sorted(forms()))
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    head = commit()
    rows = [_row(name, ranks) for ranks in given.ranks for name in given.forms]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "commit": head,
        "machine": platform.processor() or platform.machine(),
        "rows": [asdict(r) for r in rows],
    }
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    late = [r for r in rows if r.ms > LIMITS.get(r.ranks, float("inf"))]
    for r in late:
        print(f"over the limit: {r.form} on {r.ranks} ranks")
    return 1 if late else 0


@dataclass(frozen=True)
class Row:
    """`tiles`: of the largest step, on one rank; `slowest`: the rule that took longest."""

    form: str
    ranks: int
    tiles: int
    ms: float
    slowest: str


def _row(name: str, ranks: int) -> Row:
    columns = -(-_tiles(ranks) // (ranks * -(-ROWS // TILE)))
    started = time.perf_counter()
    plan = form(name, ranks, {"M": ranks * ROWS - 5, "K": 4096, "N": columns * TILE}, TILE)
    planned = (time.perf_counter() - started) * 1e3
    ms, verdict = _best_of_three(plan)
    slowest = max(verdict.proofs, key=lambda p: p.ms)
    print(f"{ranks:5} ranks  {name:58} {ms:8.1f} ms  (plan {planned:8.0f})  mostly {slowest.rule}", flush=True)
    tiles = max(_of(plan, path) for path in (s.path for s in plan.steps))
    return Row(name, ranks, tiles, round(ms, 1), slowest.rule)


def _tiles(ranks: int) -> int:
    return 100_000 if ranks <= 64 else 100_000 * ranks // 128


def _of(plan: Plan, path: str) -> int:
    return int(F.evaluate(plan.step(path).total, plan.env(0)))


def _best_of_three(plan: Plan) -> tuple[float, Verdict]:
    best, verdict = float("inf"), None
    for _ in range(3):
        started = time.thread_time()
        verdict = verify(plan)
        best = min(best, (time.thread_time() - started) * 1e3)
    assert verdict is not None
    return best, verdict


if __name__ == "__main__":
    raise SystemExit(main())
