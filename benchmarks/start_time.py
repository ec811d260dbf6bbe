"""What it costs to start: `import tilelink`, its commands up to their output. No GPU.

python -m benchmarks.start_time [--before CHECKOUT]

Seconds of CPU of a process of its own, the least of several, with bytecode on disk. `--before`: another checkout, measured
in turns with this one. It ends with 1 if something exceeds its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.compile_time import about

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "start-time-cpu.json"
SHAPE = ("--shape", "512x512x512")
STARTS: dict[str, tuple[tuple[str, ...], float]] = {
    "import tilelink": (("-c", "import tilelink"), 0.6),
    "import tilelink.mapping": (("-c", "import tilelink.mapping"), 1.0),
    "tilelink --help": (("-m", "tilelink", "--help"), 0.6),
    "tilelink --version": (("-m", "tilelink", "--version"), 0.6),
    "tilelink pln": (("-m", "tilelink", "pln"), 0.6),
    "tilelink plan ag_gemm": (("-m", "tilelink", "plan", "ag_gemm", *SHAPE), 1.5),
    "tilelink verify ag_gemm": (("-m", "tilelink", "verify", "ag_gemm", *SHAPE), 1.5),
    "tilelink emit ag_gemm": (("-m", "tilelink", "emit", "ag_gemm", *SHAPE), 1.5),
}
"""What is started: the interpreter's arguments, and the seconds that it may take."""


def seconds(arguments: tuple[str, ...], root: Path) -> float:
    """CPU time of one process, its children's included."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    roots = {"seconds": ROOT} | ({"before": given.before.resolve()} if given.before else {})
    rows: list[dict[str, object]] = []
    late = False
    for name, (arguments, limit) in STARTS.items():
        times = [{key: seconds(arguments, root) for key, root in roots.items()} for _ in range(given.rounds)]
        row = {key: round(min(t[key] for t in times), 3) for key in roots}
        late |= row["seconds"] > limit
        rows.append({"start": name, **row, "limit": limit})
        print(f"{name:28s}", row)
    given.out.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
