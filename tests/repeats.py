"""Cases that take long and run no statement of tilelink/ that no other case runs: `repeats.txt`, which `make test` leaves out.

What people have chosen, `left_out.txt`, is not looked at: it stays, and such a run leaves it out.

rm tests/repeats.txt; LINES_RUN=out/lines OMP_NUM_THREADS=1 pytest -n 2 -p tests.lines_run; python -m tests.repeats out/lines

Of each function at least a quarter of the cases stay, the cheaper ones.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from tests.left_out import MEASURED, function

LEAST_S, STAY = 0.05, 1 / 4
"""Seconds of a processor from which it is worth a line of the list; which part of a function's cases is in no list."""
Statement = tuple[str, int]


def found(folder: Path) -> list[str]:
    """By what a run of all tests has written to `folder`: the dearest first, as long as others run all that it runs."""
    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    run: dict[str, set[Statement]] = {
        row["test"]: {(file, n) for file, lines in row["lines"].items() for n in lines} for row in rows
    }
    times = Counter(statement for statements in run.values() for statement in statements)
    every = Counter(function(name) for name in run)
    left, repeats = every.copy(), list[str]()
    for row in sorted(rows, key=lambda row: -row["cpu_s"]):
        name = row["test"]
        of = function(name)
        if row["cpu_s"] < LEAST_S or "[" not in name or left[of] - 1 < max(1, every[of] * STAY):
            continue
        if all(times[statement] > 1 for statement in run[name]):
            times.subtract(run[name])
            left[of] -= 1
            repeats.append(name)
    return sorted(repeats)


if __name__ == "__main__":
    MEASURED.write_text("".join(f"{name}\n" for name in found(Path(sys.argv[1]))))
