"""What tracing costs, and where traced calls of AG+GEMM and GEMM+RS spend their time, on the shapes of the six MLPs.

    torchrun --nproc-per-node=4 -m benchmarks.gpu.trace --out benchmarks/results [--pictures FOLDER]

`cost`: what a traced call takes more than an untraced one, as a part of it. Milliseconds of the slowest rank; `wait`,
`compute` and the others, and `idle`, are microseconds of a worker, the mean over the workers of all ranks.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.matmuls import SUBJECTS
from benchmarks.harness import Row, Sheet, judged, parser
from tilelink.bench.workloads import MLPS
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.tracing import Trace
from tilelink.tracing.spans import KINDS

LIMIT = 0.03
TRIES = 3
"""Traces of a case; the median of their costs counts."""


def row_of(traces: list[Trace]) -> dict[str, float]:
    last = traces[-1]
    assert last.ms_untraced is not None, "simulated clocks do not say what tracing costs"
    workers = [t for t in last.totals() if t.worker is not None]
    spent = {kind: statistics.mean(t.of(kind) for t in workers) for kind in KINDS}
    idle = statistics.mean(t.idle for t in workers)
    cost = statistics.median(t.cost for t in traces)
    return {"cost": cost, "ms": last.ms, "ms_untraced": last.ms_untraced, **spent, "idle": idle}


def traced(sheet: Sheet, pictures: Path | None) -> None:
    for operator in (ag_gemm, gemm_rs):
        for mlp in MLPS:
            m, n, k = (mlp.ag_gemm if operator is ag_gemm else mlp.gemm_rs)(sheet.machine.ranks)
            case = SUBJECTS[operator.name].make(sheet.machine, m, n, k, 7)
            overlapped: Any = operator.schedule(unfused=False)
            traces = [overlapped.trace(*case.arguments, **case.given) for _ in range(TRIES)]
            found = row_of(traces)
            row: Row = {"operator": operator.name, "case": mlp.name, **found, "ok": found["cost"] < LIMIT}
            sheet.add(row, str({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}))
            overlapped.close()
            if pictures is not None and sheet.machine.rank == 0:
                traces[-1].picture(pictures / f"{operator.name}-{mlp.name}.svg")
                traces[-1].chrome(pictures / f"{operator.name}-{mlp.name}.json")


def main() -> int:
    given = parser(__doc__)
    given.add_argument("--pictures", type=Path)
    options = given.parse_args()
    return judged("trace", lambda sheet: traced(sheet, options.pictures), options.out)


if __name__ == "__main__":
    sys.exit(main())
