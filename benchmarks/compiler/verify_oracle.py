"""The proof against the checker of certificates, on random small plans.

    python -m benchmarks.compiler.verify_oracle --plans 5000

Each plan is of an operator wired and placed at random, in most cases spoilt in one place. The two must say the same of its
lowered form. A plan that the planner does not make counts for nothing.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import Pool

from benchmarks.harness import RESULTS, about, parser, processor, save
from tests.mapping.oracle import Agreement, agreement

OUT = RESULTS / "verify-oracle-cpu.json"


@dataclass
class Tally:
    """`kinds`: (what was spoilt, verdict) -> plans."""

    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    differ: list[str] = field(default_factory=list)

    def add(self, found: Agreement, seed: int) -> None:
        self.kinds[found.spoilt, found.proof] += 1
        if found.differs:
            self.differ.append(f"{found}: agreement(random.Random({seed}))")
            print(self.differ[-1], flush=True)


def main() -> int:
    made = parser(__doc__, OUT)
    made.add_argument("--plans", type=int, default=5000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=2)
    given = made.parse_args()
    tally, tried, started, said = Tally(), 0, time.perf_counter(), about(cpu=processor())
    first = given.seed * 1_000_000
    with Pool(given.jobs) as pool:
        for found in pool.imap(_agreement, range(first, first + 10 * given.plans), chunksize=4):
            tried += 1
            if found is not None:
                tally.add(found, first + tried - 1)
            if sum(tally.kinds.values()) >= given.plans:
                pool.terminate()
                break
    save(given.out, said, _report(tally, tried, given.seed, time.perf_counter() - started))
    print(f"{sum(tally.kinds.values())} plans, {len(tally.differ)} verdicts differ: {given.out}")
    return 1 if tally.differ else 0


def _agreement(seed: int) -> Agreement | None:
    return agreement(random.Random(seed))


def _report(tally: Tally, tried: int, seed: int, seconds: float) -> dict[str, object]:
    total = sum(tally.kinds.values())
    proved = sum(n for (_, verdict), n in tally.kinds.items() if verdict == "proved")
    return {
        "plans": total,
        "same_verdict": total - len(tally.differ),
        "differ": tally.differ,
        "proved": proved,
        "refused": total - proved,
        "not_planned": tried - total,
        "seed": seed,
        "seconds": round(seconds),
        "by_spoilt": {
            spoilt: {v: n for (s, v), n in sorted(tally.kinds.items()) if s == spoilt}
            for spoilt in sorted({s for s, _ in tally.kinds})
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())
