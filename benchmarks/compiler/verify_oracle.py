"""The proof against the checker of certificates, on random small plans.

    python -m benchmarks.compiler.verify_oracle --plans 5000

Each plan is of an operator wired and placed at random, in most cases spoilt in one place. The two must say the same of its
lowered form. A plan that the planner does not make counts for nothing.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from multiprocessing import Pool

from benchmarks.harness import RESULTS, about, parser, processor, save
from tests.mapping.oracle import Agreement, agreement

OUT = RESULTS / "verify-oracle-cpu.json"


def main() -> int:
    made = parser(__doc__, OUT)
    made.add_argument("--plans", type=int, default=5000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=2)
    given = made.parse_args()
    said, started, tried, first = about(cpu=processor()), time.perf_counter(), 0, given.seed * 1_000_000
    kinds: Counter[tuple[str, str]] = Counter()  # by what was spoilt, and the verdict
    differ: list[str] = []
    with Pool(given.jobs) as pool:
        for found in pool.imap(_agreement, range(first, first + 10 * given.plans), chunksize=4):
            tried += 1
            if found is not None:
                kinds[found.spoilt, found.proof] += 1
                if found.differs:
                    differ.append(f"{found}: agreement(random.Random({first + tried - 1}))")
                    print(differ[-1], flush=True)
            if kinds.total() >= given.plans:
                pool.terminate()
                break
    proved = sum(n for (_, verdict), n in kinds.items() if verdict == "proved")
    report = {
        "plans": kinds.total(),
        "same_verdict": kinds.total() - len(differ),
        "differ": differ,
        "proved": proved,
        "refused": kinds.total() - proved,
        "not_planned": tried - kinds.total(),
        "seed": given.seed,
        "seconds": round(time.perf_counter() - started),
        "by_spoilt": {
            spoilt: {v: n for (s, v), n in sorted(kinds.items()) if s == spoilt}
            for spoilt in sorted({s for s, _ in kinds})
        },
    }
    save(given.out, said, report)
    print(f"{kinds.total()} plans, {len(differ)} verdicts differ: {given.out}")
    return 1 if differ else 0


def _agreement(seed: int) -> Agreement | None:
    return agreement(random.Random(seed))


if __name__ == "__main__":
    raise SystemExit(main())
