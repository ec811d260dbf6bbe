"""What a GPU machine shows: correctness of every operator, placement and shape. (`tilelink bench` measures.)

    torchrun --nproc-per-node=4 -m benchmarks.gpu.placements --out benchmarks/results [--only ragged mlp calls graphs]

Rank r's input is scaled by r + 1, results are poisoned with NaN before each run, errors are relative Frobenius norms
against fp32. `TILELINK_BACKEND=nvshmem` runs the same on NVSHMEM's device library, `TILELINK_SHARE_GPUS=1` on fewer GPUs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.matmuls import BIG, SMALL, SUBJECTS, Tiles
from benchmarks.harness import Machine, Row, Sheet, captured, judged, parser
from benchmarks.operator_cases import error
from tilelink.bench.workloads import MLPS
from tilelink.errors import TilelinkError

TOLERANCE = 2e-2
RAGGED = ((997, 640, 512), (1, 256, 128), (131, 200, 72), (520, 264, 136), (128, 1000, 4096))
"""(rows per rank, N, K) that fit no tile."""
Shape = Callable[[str], tuple[int, int, int]]


def ragged_shapes(ranks: int) -> dict[str, Shape]:
    def shape(rows: int, n: int, k: int) -> Shape:
        return lambda operator: (rows, n, k)

    table = {f"{r}x{n}x{k}": shape(r * ranks, n, k) for r, n, k in RAGGED}
    return table | {"empty rank": shape(2 * ranks - 3 if ranks > 2 else 1, 256, 128)}


def mlp_shapes(ranks: int) -> dict[str, Shape]:
    def shape(index: int) -> Shape:
        return lambda operator: (MLPS[index].ag_gemm if operator == "ag_gemm" else MLPS[index].gemm_rs)(ranks)

    return {p.name: shape(i) for i, p in enumerate(MLPS)}


def correctness(sheet: Sheet, shapes: dict[str, Shape], tiles: Tiles, only: set[str]) -> None:
    machine = sheet.machine
    for name, subject in SUBJECTS.items():
        for label, shape in shapes.items():
            m, n, k = shape(name)
            case = subject.make(machine, m, n, k, 7)
            for schedule, op in subject.schedules(tiles).items():
                if only and schedule not in only:
                    continue
                row: Row = {"operator": name, "case": label, "schedule": schedule, "m": m, "n": n, "k": k}
                try:
                    row["error"] = machine.worst(max(_poisoned(op, case) for _ in range(3)))
                    row["ok"] = row["error"] < TOLERANCE
                except TilelinkError as problem:
                    row |= {"ok": False, "problem": str(problem).splitlines()[0]}
                op.close()
                sheet.add(row, f"{name:13s} {label:14s} {schedule:26s} {row.get('error', row.get('problem'))}")
            torch.cuda.empty_cache()


def _poisoned(op: Any, case: Any) -> float:
    out = torch.full(case.want.shape, float("nan"), dtype=torch.bfloat16, device=case.want.device)
    op(*case.arguments, out=out, **case.given)
    torch.cuda.synchronize()
    return error(out, case.want)


def many_calls(sheet: Sheet, calls: int) -> None:
    """Back-to-back calls with changing inputs and sizes, bit for bit equal to the first run of the same input."""
    machine = sheet.machine
    for name, subject in SUBJECTS.items():
        schedule, op = next(iter(subject.schedules(BIG).items()))
        cases = [subject.make(machine, m, 1024, 512, s) for s, m in enumerate((2048, 1024, 1536))]
        firsts = [op(*c.arguments, **c.given).clone() for c in cases]
        wrong = torch.zeros((), dtype=torch.int64, device=machine.device)
        for call in range(calls):
            c = cases[call % len(cases)]
            wrong += (op(*c.arguments, **c.given) != firsts[call % len(cases)]).sum()
        worst = machine.worst(max(error(f, c.want) for f, c in zip(firsts, cases, strict=True)))
        bad = int(machine.worst(float(wrong)))
        ok = bad == 0 and worst < TOLERANCE
        case = f"{calls} calls, 3 sizes"
        row: Row = {"operator": name, "case": case, "schedule": schedule, "error": worst, "differ": bad, "ok": ok}
        op.close()
        sheet.add(row, f"{name:13s} {case}: {bad} elements differ")


def graphs(sheet: Sheet) -> None:
    """A captured call replayed on new inputs, with eager calls in between."""
    machine = sheet.machine
    for name, subject in SUBJECTS.items():
        for schedule, op in subject.schedules(BIG).items():
            found = machine.worst(_replayed(machine, subject, op))
            row: Row = {"operator": name, "case": "graph", "schedule": schedule}
            op.close()
            sheet.add(
                row | {"error": found, "ok": found < TOLERANCE}, f"{name:13s} graph replay   {schedule:26s} {found}"
            )


def _replayed(machine: Machine, subject: Any, op: Any) -> float:
    case = subject.make(machine, 2048, 1024, 512, 1)
    out = op(*case.arguments, **case.given)
    op(*case.arguments, out=out, **case.given)
    graph, _ = captured(lambda: op(*case.arguments, out=out, **case.given))
    worst = 0.0
    for replay in range(20):
        fresh = subject.make(machine, 2048, 1024, 512, 1000 * replay)
        for held, new in zip(case.arguments, fresh.arguments, strict=True):
            held.copy_(new)
        out.fill_(float("nan"))
        graph.replay()
        if replay % 3 == 2:
            worst = max(worst, error(op(*case.arguments, **case.given), fresh.want))
        torch.cuda.synchronize()
        worst = max(worst, error(out, fresh.want))
    return worst


def main() -> int:
    given = parser(__doc__)
    given.add_argument("--only", nargs="*", default=["ragged", "mlp", "calls", "graphs"])
    given.add_argument("--schedules", nargs="*", default=[])
    given.add_argument("--calls", type=int, default=1000)
    options = given.parse_args()

    def check(sheet: Sheet) -> None:
        ranks, chosen = sheet.machine.ranks, set(options.schedules)
        sections: dict[str, Callable[[], None]] = {
            "ragged": lambda: correctness(sheet, ragged_shapes(ranks), SMALL, chosen),
            "mlp": lambda: correctness(sheet, mlp_shapes(ranks), BIG, chosen),
            "calls": lambda: many_calls(sheet, options.calls),
            "graphs": lambda: graphs(sheet),
        }
        for name in options.only:
            started = time.time()
            sections[name]()
            sheet.say(f"== {name}: {time.time() - started:.0f} s")
            sheet.save()

    return judged("placements", check, options.out)


if __name__ == "__main__":
    sys.exit(main())
