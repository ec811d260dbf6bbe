"""Tests in two processes on the CPU that talk by gloo: what starts them, and what they start with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[1]


def assert_both_end_well(module: str, folder: Path) -> None:
    """Of a module that calls `run` when it is the main one."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [sys.executable, "-m", module, str(folder)]
    ended = subprocess.run(ranks, cwd=ROOT, env=environment, timeout=300, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


Main = Callable[[int, Path], None]
"""`main(rank, folder)`, in each process; the folder is the command's argument."""


def run(main: Main, of_four: Main | None = None) -> None:
    """`main` in two processes; before that `of_four` in four, of which two end then. Ends this process."""
    folder = Path(sys.argv[1])
    # What the ranks import takes longer than what they do: this is one of them, and the others are forked.
    torch.set_num_threads(1)
    rank, children = 0, list[int]()
    for other in range(1, 4 if of_four else 2):
        child = os.fork()
        if not child:
            rank, children = other, []
            break
        children.append(child)
    for ranks, each in ((4, of_four), (2, main)):
        if each is not None and rank < ranks:
            dist.init_process_group("gloo", init_method=f"file://{folder}/meet{ranks}", rank=rank, world_size=ranks)
            each(rank, folder)
            dist.barrier()
            dist.destroy_process_group()
    sys.exit(max((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), default=0))
