"""Running a benchmark in the backend that is there."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import triton

from tilelink.bench.checking import errors_of
from tilelink.bench.contest import NO_GPU, OURS, Contender, Place
from tilelink.bench.graphs import in_graphs
from tilelink.bench.rows import Found, Row, Setting, row_of
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.errors import TilelinkError
from tilelink.ops import ag_gemm
from tilelink.pipeline.operator import Operator
from tilelink.runtime.launching import simulated
from tilelink.runtime.session import Session, require
from tilelink.tuning.measuring import interleaved
from tilelink.version import __version__


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds`: of each case; `seconds`: after which no further one begins. `budget`: seconds after which no further case
    does."""

    rounds: int = 20
    seconds: float = 15.0
    budget: float = 600.0


def bench(
    subject: Subject,
    cases: list[BenchCase],
    variants: Mapping[str, Operator],
    options: Options,
    *,
    session: Session | None,
    ranks: int,
    say: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Rows of all cases. Collective where there is a session; else all ranks are simulated, and so are times.

    Args:
        variants: further schedules of the operator by name, `OURS` the one that is compared.
        say: called with each row as it is there, on rank 0.
    """
    group = None if session is None else dist.group.WORLD

    def on_rank() -> list[Row]:
        place = Place(require().backend, None if group is None else group.group_name)
        begun, rows = time.monotonic(), list[Row]()
        for case in cases:
            if rows and max(place.backend.agree(time.monotonic() - begun)) > options.budget:
                break
            rows.append(_one(place, subject, case, variants, options))
            if place.backend.rank == 0:
                say(rows[-1])
        return rows

    return simulated(on_rank, ranks)[0] if session is None else on_rank()


def _one(place: Place, subject: Subject, case: BenchCase, variants: Mapping[str, Operator], options: Options) -> Row:
    torch.manual_seed(1 + place.backend.rank)
    # An operator made of several has no schedule of its own.
    ours = {OURS: subject.operator or ag_gemm} | dict(variants)
    contest = subject.contest(place, case.sizes, ours)
    errors, missing = errors_of(place, contest)
    missing = contest.missing | missing
    runs = {n: c.run for n, c in contest.contenders.items() if n not in missing and not _untimed(place, c)}
    times, failed = interleaved(place.backend, runs, options.rounds, contest.fresh, seconds=options.seconds)
    graphed, ungraphed, error = in_graphs(place, contest, list(times), options.rounds)
    missing = {n: NO_GPU for n, c in contest.contenders.items() if _untimed(place, c)} | missing | failed | ungraphed
    schedules = {n: contest.ran[n]() for n in contest.ran if n in times}
    place.backend.barrier()
    contest.close()
    found = Found(times, graphed, errors, error, missing, schedules, contest.roles, contest.graphed)
    del contest, runs  # with what they hold of the GPU's memory
    if not place.simulated:
        torch.cuda.empty_cache()
    return row_of(subject.name, case.name, case.sizes, setting_of(place), found)


def _untimed(place: Place, contender: Contender) -> bool:
    """A library takes no simulated time."""
    return place.simulated and contender.library


def commit() -> str:
    """The commit of this checkout; the file COMMIT names it where the tree is a copy without its history."""
    root = Path(__file__).parents[2]
    noted = root / "COMMIT"
    if noted.is_file():
        return noted.read_text().strip()
    found = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or f"version {__version__}"


def setting_of(place: Place) -> Setting:
    backend = place.backend
    gpu = "simulated" if place.simulated else backend.topology.gpu
    return Setting(backend.ranks, gpu, torch.__version__, triton.__version__, commit(), backend.topology.backend)


def case_of(subject: Subject, sizes: Mapping[str, int]) -> BenchCase:
    """A case of sizes that the user gives.

    Raises:
        TilelinkError: TL704, not those of the operator.
    """
    wanted = set(subject.small)
    if set(sizes) != wanted:
        raise TilelinkError(
            "TL704",
            f"`{subject.name}` is benchmarked at {', '.join(sorted(wanted))}, and {', '.join(sorted(sizes))} are given",
            hint=f"give sizes by name: --shape {','.join(f'{d}=…' for d in subject.small)}",
        )
    return BenchCase(" ".join(f"{d}={sizes[d]}" for d in subject.small), dict(sizes))
