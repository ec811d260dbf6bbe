"""What sm_90 code of every emitted kernel needs: registers, spilled bytes, instructions of the main loop. No GPU.

    python -m benchmarks.compiler.kernel_resources --out one.json
    python -m benchmarks.compiler.kernel_resources --compare one.json

Each operator of the library is planned for four H200s with the schedule that it ships and the sizes of a model
(`benchmarks.operator_cases`). The first form records a checkout; the second records this one beside it, kernel by kernel.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.harness import RESULTS, about, parser, save
from benchmarks.operator_cases import CASES, Draw
from tests.compiled.checking import RANKS, emitted
from tests.compiled.compiling import compile_kernel
from tilelink import ops

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGET = "sm_90"
MATRIX = ("HGMMA", "HMMA", "QGMMA", "IGMMA")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """`registers` a thread; `spills`: bytes of its stack; `loop`: instructions of the innermost loop with most matrix products,
    or of the longest one where there are none; `instructions`: of the whole kernel."""

    operator: str
    kernel: str
    registers: int
    spills: int
    shared: int
    loop: int
    instructions: int


def kernels(name: str) -> list[Kernel]:
    """Those of an operator at the sizes of a model."""
    operator = getattr(ops, name)
    if not dist.is_initialized():  # references that make the arguments of other operators ask who is there
        dist.init_process_group("fake", rank=1, world_size=RANKS, store=FakeStore())
    call = CASES[name](Draw(1, RANKS, torch.device("cpu"), 1), False)
    plan, source = emitted(operator, list(call.arguments), TARGET, **call.given)
    return [measured(name, d.name, compile_kernel(plan, source, d, TARGET).asm["cubin"]) for d in source.kernels]


def measured(operator: str, kernel: str, cubin: bytes) -> Kernel:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("cuobjdump", "--dump-sass", file.name)
    used = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|SHARED):(\d+)", usage.partition(kernel)[2])}
    found = [(int(at, 16), text) for at, text in INSTRUCTION.findall(code)]
    loop = main_loop(found)
    return Kernel(operator, kernel, used["REG"], used["STACK"], used["SHARED"], loop, len(found))


def main_loop(code: list[tuple[int, str]]) -> int:
    loops: list[tuple[int, int]] = []
    for at, text in code:
        target = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if target is not None and int(target[1], 16) < at:
            loops.append((int(target[1], 16), at))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    bodies = [[text for at, text in code if begin <= at <= end] for begin, end in inner]
    return len(max(bodies, key=lambda b: (sum(any(m in t for m in MATRIX) for t in b), len(b)), default=[]))


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], check=True, capture_output=True, text=True).stdout


def compared(before: list[dict[str, Any]], now: list[Kernel]) -> list[dict[str, Any]]:
    """A row for each kernel of either; numbers as [before, now]."""
    old = {(k["operator"], k["kernel"]): k for k in before}
    new = {(k.operator, k.kernel): asdict(k) for k in now}
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys((*old, *new)):
        a, b = old.get(key), new.get(key)
        numbers = [k for k in (a or b or {}) if k not in ("operator", "kernel")]
        pairs = {n: [a and a[n], b and b[n]] for n in numbers}
        rows.append({"operator": key[0], "kernel": key[1], "same": a == b, **pairs})
    return rows


def main() -> None:
    made = parser(__doc__, RESULTS / "kernel-resources-cpu.json")
    made.add_argument("--compare", type=Path, help="what the first form wrote of another checkout")
    made.add_argument("--jobs", type=int, default=2)
    given = made.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        found = [k for of_one in pool.map(kernels, CASES) for k in of_one]
    said, rows = about(target=TARGET, ranks=RANKS), [asdict(k) for k in found]
    if given.compare is not None:
        other = json.loads(given.compare.read_text())
        said["before"] = other["about"]["commit"]
        rows = compared(other["rows"], found)
        print(f"{sum(not r['same'] for r in rows)} of {len(rows)} kernels differ")
    save(given.out, said, {"rows": rows})


if __name__ == "__main__":
    main()
