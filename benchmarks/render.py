"""Renders benchmarks/results/*.json into docs/performance.md.

python benchmarks/render.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
OTHERS = ("cublas", "nccl", "sequential", "async-tp")

HEAD = """# Performance

Measured, not estimated: this page is rendered by `python benchmarks/render.py` from the files in
`benchmarks/results/`, which `benchmarks/gpu_check.py` writes (`make gpu`). Times are milliseconds: the median over
rounds of the maximum over ranks, all contenders interleaved in one run on rotating random inputs, the host ahead of the
GPU. A GPU's clock drops under load, so compare within a table only.

Overlap efficiency E is (sequential − ours) / (sequential − cuBLAS alone): 1 when communication costs nothing, 0 when the
operator is no better than cuBLAS and NCCL one after the other, negative when it is worse. `async-tp` is PyTorch's
asynchronous tensor parallelism. Host is the time of a cached call on the host, in microseconds.
"""

WORDS = """## What these numbers say

- Copy engines move while the SMs multiply; pushing or pulling with SMs costs the matmul more than it saves on these
  shapes. The schedules that lose are kept in the table.
- `gemm_rs` ships with the copy-engine schedule and the reduction fused into the matmul, the best of those measured.
- Nothing here has been tuned: one tile size, 128×256×64, for every shape. Some shapes are behind async-TP, and the host
  cost of a call is too high for small sizes.
"""


def load() -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    for path in sorted(RESULTS.glob("gpu-*.json")):
        data = json.loads(path.read_text())
        yield path.name, data["about"], data["rows"]


def described(about: dict[str, Any]) -> str:
    return (
        f"{about['gpus']}×{about['gpu']}, world `{about['world']}`, torch {about['torch']}, Triton {about['triton']}, "
        f"commit {about['commit']}"
    )


def timing_tables(rows: list[dict[str, Any]]) -> Iterator[str]:
    timed = [r for r in rows if "ms" in r]
    for operator in dict.fromkeys(r["operator"] for r in timed):
        mine = [r for r in timed if r["operator"] == operator]
        cases = list(dict.fromkeys(r["case"] for r in mine))
        yield f"\n### {operator}\n"
        yield "| contender | " + " | ".join(cases) + " | host µs |"
        yield "|---|" + "---|" * (len(cases) + 1)
        for label in dict.fromkeys(r["contender"] for r in mine):
            found = {r["case"]: r for r in mine if r["contender"] == label}
            cells = [cell(found.get(c), label) for c in cases]
            host = sorted(r["host_us"] for r in found.values())[len(found) // 2]
            yield f"| {label} | " + " | ".join(cells) + f" | {host:.0f} |"


def cell(row: dict[str, Any] | None, label: str) -> str:
    if row is None:
        return "–"
    return f"{row['ms']:.3f}" if label in OTHERS[:3] else f"{row['ms']:.3f} (E {row['efficiency']:.2f})"


def correctness_line(rows: list[dict[str, Any]]) -> str:
    checked = [r for r in rows if "error" in r]
    bad = [r for r in checked if not r["ok"]]
    worst = max((r["error"] for r in checked), default=0.0)
    cases = ", ".join(dict.fromkeys(r["case"] for r in checked))
    return f"{len(checked)} checks, {len(bad)} wrong, largest relative error {worst:.1e}: {cases}."


def page() -> str:
    out = [HEAD]
    timed = [(n, a, r) for n, a, r in load() if any("ms" in x for x in r)]
    for name, about, rows in timed:
        out.append(f"## Timings\n\n{described(about)} (`benchmarks/results/{name}`).")
        out.append("\n".join(timing_tables(rows)))
    out.append(WORDS)
    out.append(
        "## Numerics on GPUs\n\nEvery operator and placement against torch in fp32; results poisoned before each run."
    )
    checked = [(n, a, r) for n, a, r in load() if any("error" in x for x in r)]
    out.append("\n".join(f"- {described(a)} (`{n}`): {correctness_line(r)}" for n, a, r in checked))
    return "\n\n".join(part.strip("\n") for part in out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
