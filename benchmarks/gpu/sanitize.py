"""compute-sanitizer on one rank's kernels: memcheck and racecheck (shared memory) of every operator as one GPU,
where a rank is its own peer and every signal and copy is made all the same (`one_rank.py`).

python -m benchmarks.gpu.sanitize --out benchmarks/results [--logs FOLDER] [--sanitizer PROGRAM]

Errors that calls of the CUDA API return are not looked at: NCCL asks for kernels that its binary has none of for the GPU.
Triton's launches are checked as they are, with the lines that it compiles in. Launches must not be made blocking
(--force-blocking-launches, CUDA_LAUNCH_BLOCKING): kernels wait for others that are started after them. PyTorch's caching
allocator is switched off, so that accesses beyond a tensor are seen. Status 0 if both tools find nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import parser, table, write

CHECKED = (sys.executable, "-m", "benchmarks.gpu.one_rank")
TOOLS = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
FOUND = 86
"""The status by which the sanitizer says that it found something."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one tool says. `says`: its last line; `program`: the last line of what it watched."""

    tool: str
    ok: bool
    status: int
    says: str
    program: str
    seconds: float


def last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def checked(tool: str, sanitizer: str, logs: Path, environment: Mapping[str, str], seconds: float) -> Row:
    log = logs / f"{tool}.log"
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), *TOOLS[tool], "--log-file", str(log)]
    began = time.monotonic()
    done = subprocess.run([*command, *CHECKED], env=environment, timeout=seconds, text=True, capture_output=True)
    (logs / f"{tool}.out").write_text(done.stdout + done.stderr)
    says = last(log.read_text(errors="replace")).removeprefix("========= ")
    return Row(tool, done.returncode == 0, done.returncode, says, last(done.stdout), time.monotonic() - began)


def main() -> int:
    given = parser(__doc__)
    given.add_argument("--logs", type=Path, default=Path("out/sanitize"))
    given.add_argument("--sanitizer", default="compute-sanitizer", help="where it is; it comes with the CUDA toolkit")
    given.add_argument("--seconds", type=float, default=600.0, help="what each run may take")
    options = given.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    environment = {
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0",
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    # Compiled before, without the sanitizer, which would look at the compilers too.
    subprocess.run(CHECKED, env=environment, timeout=options.seconds, check=True)
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        rows = list(
            pool.map(lambda t: checked(t, options.sanitizer, options.logs, environment, options.seconds), TOOLS)
        )
    write(options.out, "sanitize", [asdict(r) for r in rows], gpus=1, backend="peer")
    table([(row.tool, row.ok, row.seconds, f"{row.says}; {row.program}") for row in rows])
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
