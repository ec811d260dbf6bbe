"""The watchdog on GPUs: hangs are reported and survived, a killed rank takes the others out, and what it costs.

    timeout 900 python -m benchmarks.gpu.watchdog --ranks 4 --out benchmarks/results [--only hang unheard …]

Not by torchrun, which would end all ranks when one ends: this starts the ranks of each part itself, keeps their store,
and ends what has not ended in time. The table comes last; status 0 if all is well. `TILELINK_BACKEND=nvshmem` runs the
same there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton

import tilelink
from benchmarks.gpu.matmuls import BIG, ag_schedules, ring_schedules, rs_schedules
from benchmarks.harness import device_us, parser, table, write
from tests.operators.hanging import without_notify
from tilelink import Operator, TilelinkError
from tilelink.device.clocks import clock
from tilelink.ops import all_gather, all_reduce, reduce_scatter
from tilelink.runtime.session import require
from tilelink.runtime.watchdog import STATUS

SECONDS = 5.0
"""The limit of a wait; compilers are through by then, since ranks wait for one another's."""
M, N, K = 2048, 1024, 512
KILLED = 1
"""The rank that hangs, or is killed."""
RATIO = 1.05
"""What a watched call may take, over one that is not."""

OPERATORS: dict[str, Operator] = {
    "ag_gemm sms pull": ag_schedules(BIG)["sms pull"],
    "ag_gemm sms push": ag_schedules(BIG)["sms push"],
    "ag_gemm dma push": ag_schedules(BIG)["dma push"],
    "gemm_rs fused push": rs_schedules(BIG)["fused push"],
    "gemm_rs dma": rs_schedules(BIG)["dma"],
    "gemm_rs_ring fused": ring_schedules(BIG)["ring fused"],
}
DROPPED = {
    "ag_gemm sms pull": ("gather", "rows"),
    "ag_gemm sms push": ("gather", "rows"),
    "gemm_rs fused push": ("scatter", "dst"),
    "gemm_rs dma": ("matmul", "out"),
    "gemm_rs_ring fused": ("ring", "inbox"),
}
"""Operator -> the step and the parameter whose notify is left out; with "gemm_rs dma" a stream waits for a doorbell."""
FEW = {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter}
"""Operators whose few bytes come by the LL protocol."""


@triton.jit
def spin(nanoseconds):
    """Keep one multiprocessor busy for a bounded time."""
    began = clock()
    while clock() - began < nanoseconds:  # pyright: ignore[reportOperatorIssue]
        pass


# ------------------------------------------------------------------------------------------------------- what a rank does
def inputs(name: str, m: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part: ag_gemm takes rows of x, the others columns; data differs by rank."""
    me, ranks = tilelink.rank(), tilelink.ranks()
    generator = torch.Generator(device="cuda").manual_seed(100 * seed + me)
    rows, columns = (m // ranks, K) if name.startswith("ag_gemm") else (m, K // ranks)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).to(torch.bfloat16)

    return made(rows, columns), made(columns, N)


def error(name: str, tensors: tuple[torch.Tensor, ...], out: torch.Tensor) -> float:
    """The relative Frobenius norm against torch in fp32, the worst of all ranks."""
    x, w = (t.float() for t in tensors)
    if name.startswith("ag_gemm"):
        parts = [torch.empty_like(x) for _ in range(tilelink.ranks())]
        dist.all_gather(parts, x)
        want = torch.cat(parts) @ w
    else:
        whole = x @ w
        dist.all_reduce(whole)
        want = whole.chunk(tilelink.ranks())[tilelink.rank()]
    worst = ((out.float() - want).norm() / want.norm()).reshape(1)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def healthy(name: str) -> float:
    tensors = inputs(name, M, 3)
    return error(name, tensors, OPERATORS[name](*tensors))


def broken(name: str) -> tuple[Operator, tuple[torch.Tensor, ...]]:
    """The operator; on one rank it does not signal."""
    session, tensors = require(), inputs(name, M, 1)
    if tilelink.rank() != KILLED:
        return OPERATORS[name], tensors
    checks, topology = session.vigil.checks, session.backend.topology
    return without_notify(OPERATORS[name], tensors, topology, checks, *DROPPED[name]), tensors


def found(call: Callable[[], object]) -> TilelinkError | None:
    """What a call, or the wait for it, raises."""
    try:
        call()
        tilelink.check()
    except TilelinkError as error:
        return error
    return None


def heard() -> TilelinkError | None:
    """What the others report, as soon as they do: a program that does not ask is ended."""
    until = time.monotonic() + 2 * SECONDS
    while time.monotonic() < until:
        if (error := found(lambda: None)) is not None:
            return error
        time.sleep(0.1)
    return None


def hang() -> dict[str, Any]:
    """Each operator with a signal missing on one rank: an error on every rank, then the right result in this process."""
    said: dict[str, Any] = {}
    for name in DROPPED:
        wrong, tensors = broken(name)
        began = time.monotonic()
        error = found(lambda wrong=wrong, tensors=tensors: wrong(*tensors))
        if error is None:
            error = heard()  # its own waits were served
        took = time.monotonic() - began
        print(f"{name}: {error}", flush=True)
        after = healthy(name)
        said[name] = {
            "code": error.code if error is not None else None,
            "message": error.message if error is not None else "nothing was raised",
            "seconds": took,
            "error_after": after,
            "ok": error is not None and error.code in ("TL470", "TL471") and took < 4 * SECONDS and after < 2e-2,
        }
    return said


def absent() -> dict[str, Any]:
    """One rank does not make a call that the others make."""
    name = "ag_gemm sms pull"
    first = healthy(name)
    tensors = inputs(name, M, 4)
    began = time.monotonic()
    error = heard() if tilelink.rank() == KILLED else found(lambda: OPERATORS[name](*tensors))
    took = time.monotonic() - began
    print(error, flush=True)
    after = healthy(name)
    fine = error is not None and f"rank {KILLED}" in str(error) and took < 4 * SECONDS
    return {"message": str(error), "seconds": took, "error_after": after, "ok": fine and max(first, after) < 2e-2}


def words() -> dict[str, Any]:
    """One rank does not make a call of few bytes, which come as words that say whose they are: so do the others then."""
    said: dict[str, Any] = {}
    for name, operator in FEW.items():
        x = inputs("gemm_rs dma", 8 * tilelink.ranks(), 5)[0]
        first = operator(x).clone()
        began = time.monotonic()
        error = heard() if tilelink.rank() == KILLED else found(lambda operator=operator, x=x: operator(x))
        took = time.monotonic() - began
        print(f"{name}: {error}", flush=True)
        same = torch.equal(operator(x), first)
        fine = error is not None and f"rank {KILLED}" in str(error) and took < 4 * SECONDS
        said[name] = {"message": str(error), "seconds": took, "same_after": same, "ok": fine and same}
    return said


def unheard() -> dict[str, Any]:
    """A program that never asks: it waits for something else, and its watcher ends it."""
    wrong, tensors = broken("ag_gemm sms push")
    wrong(*tensors)
    time.sleep(120)
    return {"ok": False}


def uncaught() -> dict[str, Any]:
    """A program that takes no notice: the error ends it."""
    wrong, tensors = broken("gemm_rs fused push")
    for _ in range(1000):
        wrong(*tensors)
        torch.cuda.synchronize()
        time.sleep(0.1)
    return {"ok": False}


def killed() -> dict[str, Any]:
    """One rank is killed between two of its calls; the others are in the middle of theirs."""
    tensors = inputs("ag_gemm dma push", M, 1)
    for call in range(100_000):
        OPERATORS["ag_gemm dma push"](*tensors)
        if call == 300 and tilelink.rank() == KILLED:
            torch.cuda.synchronize()
            print("killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if call % 10 == 0:
            torch.cuda.synchronize()
    return {"ok": False}


def overhead() -> dict[str, Any]:
    """Times of calls with and without, in turns; milliseconds, of the slowest rank. Small calls, which wait the most."""
    session, said = require(), dict[str, Any]()
    for name, operator in OPERATORS.items():
        tensors = inputs(name, 4 * M, 1)
        times: dict[str, list[float]] = {"off": [], "on": []}
        for turn in range(12):
            kind = ("off", "on")[turn % 2]
            session.watch_over(30.0 if kind == "on" else None, False)
            for _ in range(5):
                operator(*tensors)
            session.backend.barrier()
            took = device_us(lambda operator=operator, tensors=tensors: operator(*tensors), 40) / 1e3
            if turn >= 2:
                times[kind].append(max(session.backend.agree(took)))
        off, on = (statistics.median(times[kind]) for kind in ("off", "on"))
        said[name] = {"off_ms": off, "on_ms": on, "ratio": on / off, "ok": on / off <= RATIO}
        operator.close()
    session.watch_over(SECONDS, False)
    return said


def stragglers(calls: int) -> dict[str, Any]:
    """Calls of changing operators and shapes with ranks that are late at random, bit for bit as without."""
    order, late = random.Random(1), random.Random(100 + tilelink.rank())
    require().watch_over(30.0, False)
    cases = [(name, inputs(name, m, seed)) for seed, m in enumerate((2048, 1024, 1536)) for name in OPERATORS]
    firsts = [OPERATORS[name](*tensors).clone() for name, tensors in cases]
    worst = max(error(name, tensors, out) for (name, tensors), out in zip(cases, firsts, strict=True))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    began = time.monotonic()
    for call in range(calls):
        case = order.randrange(len(cases))
        if late.random() < 0.02:
            spin[(late.choice((1, 1000)),)](int(late.uniform(1e5, 5e6)))
        if late.random() < 0.005:
            time.sleep(late.uniform(0.0, 0.01))
        name, tensors = cases[case]
        wrong += (OPERATORS[name](*tensors) != firsts[case]).sum()
        if call % 1000 == 999 and tilelink.rank() == 0:
            print(f"{call + 1} calls, {time.monotonic() - began:.0f} s", flush=True)
    tilelink.check()
    differ = sum(require().backend.agree(int(wrong)))
    seconds = time.monotonic() - began
    return {"calls": calls, "differ": differ, "error": worst, "seconds": seconds, "ok": not differ and worst < 2e-2}


def sound() -> dict[str, Any]:
    """In new processes, after all that: every operator is right."""
    errors = {name: healthy(name) for name in OPERATORS}
    return {"errors": errors, "ok": max(errors.values()) < 2e-2}


# ---------------------------------------------------------------------------------------------------- who starts the ranks
@dataclass(frozen=True, slots=True)
class Part:
    """`seconds`: until everything is ended. `status`: of ranks that end by themselves; None: not 0."""

    run: Callable[[], dict[str, Any]]
    seconds: float
    status: int | None = 0
    says: str = ""
    """What every rank that is left prints."""


PARTS = {
    "hang": Part(hang, 300),
    "absent": Part(absent, 120),
    "flags": Part(words, 120),
    "unheard": Part(unheard, 100, STATUS, "TL47"),
    "uncaught": Part(uncaught, 100, None, "TL47"),
    "killed": Part(killed, 100, None, f"TL472: rank {KILLED} "),
    "overhead": Part(overhead, 240),
    "stragglers": Part(lambda: stragglers(int(os.environ["CALLS"])), 420),
    "sound": Part(sound, 120),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One part, or one operator of it."""

    part: str
    ok: bool
    seconds: float
    detail: str


def as_rank(part: str, out: Path) -> int:
    """What a started process does."""
    said = tilelink.launch(PARTS[part].run, watchdog=SECONDS)[0]
    out.write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def start(part: str, ranks: int, calls: int, folder: Path) -> tuple[dict[int, dict[str, Any]], list[Row]]:
    """Run one part; what each rank has written, and how the processes ended."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is here, whoever dies
        "CALLS": str(calls),
    }
    began = time.monotonic()
    logs = [folder / f"{part}-{r}.log" for r in range(ranks)]
    outs = [folder / f"{part}-{r}.json" for r in range(ranks)]
    children: list[subprocess.Popen[bytes]] = []
    for r in range(ranks):
        command = [sys.executable, "-m", "benchmarks.gpu.watchdog", "--part", part, "--out", str(outs[r])]
        env = {**os.environ, **common, "RANK": str(r), "LOCAL_RANK": str(r)}
        with logs[r].open("wb") as log:
            children.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    ended = [_ended(child, began + PARTS[part].seconds) for child in children]
    took = time.monotonic() - began
    rows = [_row(part, r, status, logs[r].read_text(errors="replace"), took) for r, status in enumerate(ended)]
    return {r: json.loads(out.read_text()) for r, out in enumerate(outs) if out.exists()}, rows


def _ended(child: subprocess.Popen[bytes], deadline: float) -> int | None:
    try:
        return child.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return None


def _row(part: str, rank: int, status: int | None, said: str, took: float) -> Row:
    wanted = PARTS[part]
    if part == "killed" and rank == KILLED:
        return Row(f"{part}, rank {rank}", status == -signal.SIGKILL, took, f"status {status}")
    right = status == wanted.status if wanted.status is not None else status not in (0, None)
    heard = wanted.says in said
    message = next((line for line in said.splitlines() if wanted.says and wanted.says in line), "")
    if not right or not heard:
        message += "\n" + "\n".join(said.splitlines()[-25:])
    text = "had to be ended" if status is None else f"status {status}"
    return Row(f"{part}, rank {rank}", right and heard, took, f"{text} {message}".strip())


def rows_of(part: str, said: dict[int, dict[str, Any]]) -> list[Row]:
    """What the ranks have measured."""
    rows: list[Row] = []
    for rank, value in said.items():
        each = value if all(isinstance(v, dict) for v in value.values()) else {"": value}
        for name, entry in each.items():
            if part in ("overhead", "stragglers", "sound") and rank:
                continue
            detail = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in entry.items() if k != "ok"
            )
            rows.append(Row(f"{part} {name}, rank {rank}", bool(entry["ok"]), float(entry.get("seconds", 0.0)), detail))
    return rows


def main() -> int:
    given = parser(__doc__)
    given.add_argument("--ranks", type=int, default=4)
    given.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    given.add_argument("--calls", type=int, default=10_000)
    given.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.part is not None:
        return as_rank(options.part, options.out)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in options.only:
            said, ended = start(part, options.ranks, options.calls, Path(folder))
            rows += ended + rows_of(part, said)
            print(f"== {part}: {'ok' if all(r.ok for r in ended) else 'FAILED'}", flush=True)
    backend = os.environ.get("TILELINK_BACKEND", "peer")
    gpus = min(options.ranks, torch.cuda.device_count())
    write(options.out, "watchdog", [asdict(r) for r in rows], gpus=gpus, ranks=options.ranks, backend=backend)
    table([(row.part, row.ok, row.seconds, row.detail[: 160 if row.ok else 3000]) for row in rows])
    return 0 if all(r.ok for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
