"""Renders benchmarks/results/*.json into docs/performance.md.

python -m benchmarks.render
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT
from benchmarks.plots import curves, picture
from tilelink.bench.workloads import MLPS, MOES

COMPILER = RESULTS / "compile-time-cpu.json"
KERNELS = RESULTS / "kernel-resources-cpu.json"
PAGE = ROOT / "docs" / "performance.md"
CHECKED = ("placements", "operators", "layers", "install-check")
"""Results of checks on GPUs, in the order of the page."""

WORDS = (ROOT / "benchmarks" / "words.md").read_text()
"""How to read the tables, what they say and what was tried: written by people, not rendered."""
HEAD, SAID, TRIED = re.split(r"^(?=## What (?:these numbers say|was tried)$)", WORDS, flags=re.MULTILINE)


def load(*kinds: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Of each file its name, what it says about itself (`tilelink bench` says that in each row), and its rows."""
    for path in (path for kind in kinds for path in sorted(RESULTS.glob(f"{kind}-*.json"))):
        data = json.loads(path.read_text())
        yield path.name, data.get("about", {}), data["rows"]


def table(lines: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def case_table() -> str:
    """The sizes behind the names of cases."""
    lines = [["case", "tokens", "hidden", "intermediate", "experts", "of which a token takes"], ["---", *["---:"] * 5]]
    lines += [[c.name, *map(str, (c.tokens, c.hidden, c.intermediate)), "–", "–"] for c in MLPS]
    lines += [[c.name, *map(str, (c.tokens, c.hidden, c.intermediate, c.experts, c.top))] for c in MOES]
    return table(lines)


def described(about: dict[str, Any]) -> str:
    ranks = about.get("ranks", about["gpus"])
    shared = "" if ranks == about["gpus"] else f"{ranks} ranks on "
    return (
        f"{shared}{about['gpus']}×{about['gpu']}, backend `{about['backend']}`, torch "
        f"{about['torch']}, Triton {about['triton']}, "
        f"commit {about['commit']}"
    )


def measured(name: str, row: dict[str, Any]) -> str:
    """What a file of `tilelink bench` was measured with, by one of its rows."""
    return (
        f"Backend `{row['backend']}`, torch {row['torch']}, Triton {row['triton']}, commit {row['commit']}, "
        f"{row['rounds']} rounds (`benchmarks/results/{name}`)."
    )


MATMUL_HEAD = (
    "| case | ours | GEMM | Triton GEMM | communication | unfused | async-tp | E | ratio | host µs |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n"
)


def bench_section(name: str, rows: list[dict[str, Any]]) -> str:
    """One file of `tilelink bench`: the picture, the table, what is missing, what ran."""
    first = rows[0]
    stem = Path(name).stem
    picture(rows, PAGE.parent / f"{stem}.svg", f"{first['operator']} on {first['ranks']}×{first['gpu']}")
    out = [
        f"## {first['operator']} on {first['ranks']}×{first['gpu']}",
        measured(name, first),
        f"![speed against the baseline]({stem}.svg)",
        MATMUL_HEAD + table(map(cells, rows)) if first["ms_gemm_triton"] is not None else contenders(rows),
    ]
    missing = dict.fromkeys(f"{n} ({why})" for r in rows for n, why in r["missing"].items())
    if missing:
        out.append(f"Missing: {'; '.join(missing)}.")
    others = [(r["case"], n, o) for r in rows for n, o in r["others"].items()]
    if others and first["ms_gemm_triton"] is not None:
        lines = [f"| {c} | {n} | {three(o['ms'])} | {two(o['efficiency'])} |" for c, n, o in others]
        out.append("| case | further schedule | ms | E |\n|---|---|---|---|\n" + "\n".join(lines))
    ran: dict[str, list[str]] = {}
    for r in rows:
        ran.setdefault(r["schedule"], []).append(r["case"])
    out.append("What ran:\n\n" + "\n".join(f"- {', '.join(cases)}: {text}" for text, cases in ran.items()))
    return "\n\n".join(out)


def sweep_section(name: str, rows: list[dict[str, Any]]) -> str:
    """One shape with few and many rows: who wins where, and by which form ours runs."""
    first, stem = rows[0], Path(name).stem
    shape = first["case"].split(" M=")[0]
    title = f"{first['operator']} of {shape} by rows, on {first['ranks']}×{first['gpu']}"
    picture(rows, PAGE.parent / f"{stem}.svg", title)
    lines = [["rows", "ours", "unfused", "async-tp", "ours / best of both", "form"], ["---"] * 6]
    for r in rows:
        rivals = [r[f] for f in ("ms_unfused", "ms_async_tp") if r[f] is not None]
        form = "unfused" if r["schedule"].startswith("unfused") else "overlapped"
        form += ", cuBLAS part by part" if "matmul: library" in r["schedule"] else ""
        times = [four(r[f]) for f in ("ms_ours", "ms_unfused", "ms_async_tp")]
        lines.append([str(r["sizes"]["M"]), *times, two(r["ms_ours"] / min(rivals)), form])
    return "\n\n".join(
        [
            f"## {title}",
            measured(name, first),
            f"![speed against the baseline by rows]({stem}.svg)",
            table(lines),
        ]
    )


def contenders(rows: list[dict[str, Any]]) -> str:
    """Where no matmul hides anything: ours, what it is to beat, and all others."""
    names = list(dict.fromkeys(n for r in rows for n in r["contenders"] if n != "ours"))
    head = ["case", "ours", "baseline", "times as fast", "in a graph", "baseline there", "times as fast there"]
    lines = [head + names, ["---"] * len(head + names)]
    for r in rows:
        ours = f"{four(r['ms_ours'])} ({four(r['ms_ours_low'])}–{four(r['ms_ours_high'])})"
        rival = four(r["ms_baseline"]) + (f" ({r['baseline']})" if r["baseline"] else "")
        eager = [r["case"], ours, rival, two(r["speedup"])]
        graph = [four(r["ms_graph"]), four(r["ms_baseline_graph"]), two(r["speedup_graph"])]
        lines.append([*eager, *graph, *(four(r["contenders"].get(n, {}).get("ms")) for n in names)])
    return table(lines)


def cells(r: dict[str, Any]) -> list[str]:
    """Of a row of an operator around a matmul."""
    return [
        r["case"],
        f"{three(r['ms_ours'])} ({three(r['ms_ours_low'])}–{three(r['ms_ours_high'])})",
        *(three(r[f]) for f in ("ms_gemm", "ms_gemm_triton", "ms_comm", "ms_unfused", "ms_async_tp")),
        f"{two(r['efficiency'])} ({two(r['efficiency_low'])}–{two(r['efficiency_high'])})",
        two(r["ratio"]),
        "–" if r["host_us"] is None else f"{r['host_us']:.0f}",
    ]


def four(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def correctness_line(rows: list[dict[str, Any]]) -> str:
    checked = [r for r in rows if "error" in r]
    bad = [r for r in checked if not r["ok"]]
    worst = max((r["error"] for r in checked if r["error"] is not None), default=0.0)
    cases = ", ".join(dict.fromkeys(r["case"] for r in checked))
    return f"{len(checked)} checks, {len(bad)} wrong, largest relative error {worst:.1e}: {cases}."


def training_section(name: str, about: dict[str, Any], row: dict[str, Any]) -> str:
    """What `benchmarks/gpu/training.py` found."""
    stem, options = Path(name).stem, row["options"]
    curves(row["losses"], PAGE.parent / f"{stem}.svg", f"loss on {about['gpus']}×{about['gpu']}")
    graphs = "; in graphs: with its mode `reduce-overhead`" if options.get("graphs") else ""
    last = options["steps"] - 1
    shown = sorted({0, *(last * k // 4 for k in range(1, 5))})
    lines = [["", *(f"step {n}" for n in shown), "ms a step"], ["---"] * (len(shown) + 2)]
    lines += [[n, *(f"{c[k]:.4f}" for k in shown), f"{row['step_ms'][n]:.1f}"] for n, c in row["losses"].items()]
    return "\n\n".join(
        [
            f"## Training on {about['gpus']}×{about['gpu']}",
            f"{described(about)} (`benchmarks/results/{name}`). A decoder of {options['layers']} layers, {options['features']} "
            f"features, {options['batch']}×{options['sequence']} tokens, under `torch.compile`: whole on one GPU, and split "
            f"over all by AG+GEMM, GEMM+RS and all-reduce{graphs}. Greatest difference of the losses, relative: "
            f"{row['worst']:.1e}.",
            f"![losses by step]({stem}.svg)",
            table(lines),
        ]
    )


def compiler_part() -> Iterator[str]:
    data = json.loads(COMPILER.read_text())
    about = data["about"]
    yield "## The compiler and the simulated backend\n"
    yield (
        f"One core of {about['cpu']}, Python {about['python']}, torch {about['torch']}, Triton {about['triton']}, commit "
        f"{about['commit']} (`benchmarks/results/{COMPILER.name}`). The least time of that core over several rounds.\n"
    )
    yield "| stage | of | ms | limit |\n|---|---|---|---|"
    for row in data["rows"]:
        yield f"| {row['stage']} | {row['subject']} | {1e3 * row['seconds']:.1f} | {1e3 * row['limit']:.0f} |"


def kernels_part() -> Iterator[str]:
    """Machine code of emitted kernels, beside that of an earlier commit."""
    data = json.loads(KERNELS.read_text())
    about, rows = data["about"], [r for r in data["rows"] if not r["same"]]
    numbers = ["registers", "spills", "loop", "instructions"]
    yield "## The emitted kernels\n"
    same = f"{len(data['rows']) - len(rows)} are the same at {about['commit']} as at {about['before']}"
    yield (
        f"Of {len(data['rows'])} kernels of all operators, compiled for {about['target']} by Triton {about['triton']} at the "
        f"sizes of a model on {about['ranks']} ranks, {same} (`benchmarks/results/{KERNELS.name}`). The others, before → after:\n"
    )
    yield f"| operator | kernel | {' | '.join(numbers)} |\n|---|---|{'---|' * len(numbers)}"
    for r in rows:
        changes = [f"{a} → {b}" if a != b else str(a) for a, b in (r[n] for n in numbers)]
        yield table([[r["operator"], r["kernel"], *changes]])


def page() -> str:
    out = [HEAD, case_table(), SAID, *(bench_section(name, rows) for name, _, rows in load("bench"))]
    out += [sweep_section(name, rows) for name, _, rows in load("sweep")]
    out += [training_section(name, about, row) for name, about, rows in load("training") for row in rows]
    out.append(TRIED)
    out.append(
        "## Numerics on GPUs\n\nEvery operator and placement against torch in fp32; results poisoned before each run."
    )
    checked = load(*CHECKED)
    out.append("\n".join(f"- {described(about)} (`{n}`): {correctness_line(rows)}" for n, about, rows in checked))
    out += ["\n".join(compiler_part()), "\n".join(kernels_part())]
    return "\n\n".join(part.strip("\n") for part in out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
