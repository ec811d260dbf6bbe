"""What the scripts of this folder share: their arguments, the files of results, ranks on GPUs, and clocks.

A result is named `<what>-<GPU>-<ranks>.json`, or `<what>-cpu.json` where no GPU had a part in it; its `about` says on what it was
made, and at which commit.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
from torch.distributed.distributed_c10d import _resolve_process_group as group_named  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]

import tilelink
from tilelink.bench import commit, file_name
from tilelink.runtime.backend import Backend
from tilelink.runtime.peer import GpuBackend
from tilelink.runtime.session import require

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, Any]
Call = Callable[[], Any]


# --------------------------------------------------------------------------------------------------- arguments and files
def parser(description: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """What every script takes. `out`: where it writes if nothing is said; None: nowhere."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--out", type=Path, default=out, help="a JSON file; of checks on GPUs also a folder, for a file named by them"
    )
    return made


def at_least_one(text: str) -> int:
    """The type of an argument that counts, such as processes."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def about(**more: Any) -> dict[str, Any]:
    """What a result says of where it comes from: `more`, such as the GPU, versions, and the commit."""
    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    return {**more, **versions, "commit": commit()}


def processor() -> str:
    """The name of this machine's."""
    info = Path("/proc/cpuinfo")
    models = [s for s in info.read_text().splitlines() if s.startswith("model name")] if info.is_file() else []
    return models[0].partition(":")[2].strip() if models else platform.machine()


def save(path: Path, said: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write a result, its folder made if need be: the old file or the new one, whenever one looks. What it quotes of this
    repository's files is named from the root.

    Args:
        said: its `about`.
        found: its other keys; of `rows` each is a line of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {key: json.dumps(value, indent=1, ensure_ascii=False) for key, value in {"about": said, **found}.items()}
    if "rows" in found:
        lines = [json.dumps(row, ensure_ascii=False) for row in found["rows"]]
        texts["rows"] = "[\n" + ",\n".join(lines) + "\n]"
    text = ",\n".join(f'"{key}": {value}' for key, value in texts.items())
    new = path.with_suffix(".new")
    new.write_text(f"{{\n{text}\n}}\n".replace(f"{ROOT}/", ""))
    new.replace(path)


def write(
    out: Path | None, what: str, rows: Sequence[Row], *, gpus: int, backend: str, ranks: int | None = None
) -> None:
    """Rows of a check on GPUs. Nothing where there is no path.

    Args:
        out: a file, or the folder of a file that is named by `what`, the GPU, how many ranks there are, and by a backend that
            is not the default or GPUs that are shared.
        ranks: None for as many as GPUs.
    """
    if out is None:
        return
    gpu, count = torch.cuda.get_device_name() if torch.cuda.is_available() else None, ranks or gpus
    if out.suffix != ".json":
        variant = ("-nvshmem" if backend == "nvshmem" else "") + ("-shared" if gpus < count else "")
        out = out / file_name(what + variant, gpu or "cpu", count)
    save(out, about(gpu=gpu, gpus=gpus, ranks=count, backend=backend), {"rows": rows})


def gpus_of(backend: Backend) -> int:
    """How many GPUs the ranks run on: fewer than ranks where they share them."""
    return len(set(backend.places)) if isinstance(backend, GpuBackend) else backend.ranks


# ----------------------------------------------------------------------------------------------------------------- ranks
@contextmanager
def sharing(shared: bool) -> Iterator[None]:
    """Where ranks share GPUs, torch's functional all-gather, which DTensors use, goes through the host.

    Their group is gloo, which takes a CUDA tensor's address for the host's there (torch 2.11: a segmentation fault); its
    `all_gather_into_tensor` copies.
    """

    def gather(shard: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
        found = shard.new_empty((ranks * shard.shape[0], *shard.shape[1:]))
        dist.all_gather_into_tensor(found, shard.contiguous(), group=group_named(group))  # pyright: ignore[reportArgumentType]
        return found

    with torch.library._scoped_library("_c10d_functional", "IMPL") as library:  # pyright: ignore[reportPrivateUsage]
        if shared:
            library.impl("all_gather_into_tensor", gather, "CUDA")
        yield


def greatest(value: float, device: torch.device | str, group: dist.ProcessGroup | None = None) -> float:
    """The largest of the ranks' values, by tensors on a device that the group takes."""
    t = torch.tensor([value], device=device, dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX, group=group)
    return float(t)


class Machine:
    """The group's processes: random inputs that every rank can reproduce, and agreement on times."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device())

    def random(self, seed: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device).to(torch.bfloat16)

    def worst(self, value: float) -> float:
        return greatest(value, self.device)

    def part(self, m: int, rank: int) -> tuple[int, int]:
        """Rows of a rank: the even split by ceil."""
        each = max(1, -(-m // self.ranks))
        return min(rank * each, m), min((rank + 1) * each, m)


@dataclass
class Sheet:
    """What a check on GPUs has found so far, rows of which each has `ok`; every rank collects, rank 0 prints and writes them."""

    what: str
    out: Path | None
    machine: Machine
    backend: Backend
    rows: list[Row] = field(default_factory=list[Row])

    def add(self, row: Row, said: str) -> None:
        """One more row, and what is printed of it."""
        self.rows.append(row)
        self.say(said)

    def say(self, text: str) -> None:
        if self.machine.rank == 0:
            print(text, flush=True)

    def save(self) -> None:
        """Write the rows so far: what comes next may end all processes."""
        if self.machine.rank == 0:
            name, ranks = self.backend.topology.backend, self.machine.ranks
            write(self.out, self.what, self.rows, gpus=gpus_of(self.backend), ranks=ranks, backend=name)


def judged(what: str, check: Callable[[Sheet], None], out: Path | None) -> int:
    """Run `check` on every rank, write its rows, say which of them are bad, and end the group.

    Returns:
        What the process is to end with: 1, some row is bad.
    """
    sheets: list[Sheet] = []

    def body() -> None:
        sheets.append(Sheet(what, out, Machine(), require().backend))
        check(sheets[0])
        sheets[0].save()

    tilelink.launch(body)
    (sheet,) = sheets
    bad = [row for row in sheet.rows if not row["ok"]]
    sheet.say("\n".join([f"{len(sheet.rows)} rows, {len(bad)} bad", *(f"BAD {row}" for row in bad)]))
    dist.destroy_process_group()
    return 1 if bad else 0


def apart(losses: Sequence[float], wanted: Sequence[float]) -> float | None:
    """The largest relative difference of two curves, step by step; None if one of them has no step."""
    return max((abs(a - b) / b for a, b in zip(losses, wanted, strict=False)), default=None)


def table(rows: Sequence[tuple[str, bool, float, str]]) -> None:
    """Print checks: the name of each, whether all is well, seconds, and more."""
    width = max(len(name) for name, *_ in rows)
    for name, ok, seconds, detail in rows:
        print(f"{'ok    ' if ok else 'FAILED'} {name:{width}} {seconds:7.2f} s  {detail}", flush=True)


# ---------------------------------------------------------------------------------------------------------------- clocks
def captured(call: Call) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of one call, which all ranks capture at a time, and what the call gave."""
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def host_us(call: Call, finish: Call, calls: int = 20, batches: int = 30) -> float:
    """Median over batches of the microseconds until a call returns. `finish`: waits for the device, and before a batch for the
    other ranks."""
    found: list[float] = []
    for _ in range(batches):
        finish()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls * 1e6)
    finish()
    return statistics.median(found)


def device_us(call: Call, calls: int) -> float:
    """Microseconds of a call on the GPU, one behind another."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls * 1e3
