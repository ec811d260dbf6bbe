"""What a check on GPUs finds, row by row: every rank collects, rank 0 says it and writes it, and bad rows end in failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

import tilelink
from benchmarks.cases import Machine
from benchmarks.records import gpus_of, write
from tilelink.runtime.backend import Backend
from tilelink.runtime.session import require

Row = dict[str, Any]


@dataclass
class Sheet:
    """The rows so far, of which each has `ok`. `out`: where rank 0 writes them; None: nowhere."""

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
            name = self.backend.topology.backend
            write(self.out, self.rows, gpus=gpus_of(self.backend), ranks=self.machine.ranks, backend=name)


def judged(check: Callable[[Sheet], None], out: Path | None) -> int:
    """Run `check` on every rank, write its rows, say which of them are bad, and end the group.

    Returns:
        What the process is to end with: 1, some row is bad.
    """
    sheets: list[Sheet] = []

    def body() -> None:
        sheets.append(Sheet(out, Machine(), require().backend))
        check(sheets[0])
        sheets[0].save()

    tilelink.launch(body)
    (sheet,) = sheets
    bad = [row for row in sheet.rows if not row["ok"]]
    sheet.say("\n".join([f"{len(sheet.rows)} rows, {len(bad)} bad", *(f"BAD {row}" for row in bad)]))
    dist.destroy_process_group()
    return 1 if bad else 0
