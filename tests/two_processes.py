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


def run(main: Callable[[int, Path], None]) -> None:
    """`main(rank, folder)` in both; the folder is the command's argument. Ends this process."""
    folder = Path(sys.argv[1])
    # What the ranks import takes longer than what they do: this is one of them, and the other is forked.
    torch.set_num_threads(1)
    child = os.fork()
    rank = 0 if child else 1
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    main(rank, folder)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
