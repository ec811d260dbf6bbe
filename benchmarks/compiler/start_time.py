"""What it costs to start: `import tilelink`, its commands up to their output. No GPU.

    python -m benchmarks.compiler.start_time [--before CHECKOUT]

Seconds of CPU of a process of its own, the least of several, with bytecode on disk. `--before`: another checkout, measured
in turns with this one. It ends with 1 if something exceeds its limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT, about, parser, processor, save

OUT = RESULTS / "start-time-cpu.json"
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
    given = parser(__doc__, OUT)
    given.add_argument("--before", type=Path)
    given.add_argument("--rounds", type=int, default=3)
    options = given.parse_args()
    roots = {"seconds": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    rows: list[dict[str, object]] = []
    late = False
    for name, (arguments, limit) in STARTS.items():
        times = [{key: seconds(arguments, root) for key, root in roots.items()} for _ in range(options.rounds)]
        row = {key: round(min(t[key] for t in times), 3) for key in roots}
        late |= row["seconds"] > limit
        rows.append({"start": name, **row, "limit": limit})
        print(f"{name:28s}", row)
    save(options.out, about(cpu=processor()), {"rows": rows})
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
