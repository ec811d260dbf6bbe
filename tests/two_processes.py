"""Tests in two processes on the CPU that talk by gloo: what they start with. `conftest.problem_of` starts them."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[1]
LIBRARIES = (
    "torch._inductor.compile_fx",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
    "pytest",
)
"""What ranks import takes longer than what they do: each worker of pytest does it once, and forks them."""


LIMIT_S = 240
"""Seconds after which a rank ends that waits for ever: nobody else would end it."""
Problem = Callable[[str, Path], str]
"""The fixture `problem_of`: `problem_of(module, folder)`."""
Main = Callable[[int, Path], None]
"""`main(rank, folder)`, in each process; the folder is the command's argument."""


def run(main: Main, of_four: Main | None = None) -> None:
    """`main` in two processes; before that `of_four` in four, of which two end then. Ends this process.

    This is one of them, and the others are forked."""
    folder = Path(sys.argv[1])
    gc.freeze()  # the imports of this module's user as well
    torch.set_num_threads(1)
    rank, children = 0, list[int]()
    for other in range(1, 4 if of_four else 2):
        child = os.fork()
        if not child:
            rank, children = other, []
            break
        children.append(child)
    signal.alarm(LIMIT_S)  # forked processes have none
    for ranks, each in ((4, of_four), (2, main)):
        if each is not None and rank < ranks:
            dist.init_process_group("gloo", init_method=f"file://{folder}/meet{ranks}", rank=rank, world_size=ranks)
            each(rank, folder)
            dist.barrier()
            dist.destroy_process_group()
    sys.exit(max((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), default=0))
