"""What torch.distributed says where there are no processes, in words for those who run simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch.distributed as dist

from tilelink.errors import Loc, TilelinkError, whole_line

LIBRARY = "torch.distributed"


@contextmanager
def without_processes() -> Iterator[None]:
    """What torch.distributed raises for want of a process group becomes TL458; all else goes through."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        loc = _asked(error.__traceback__)
        if loc is None or dist.is_initialized():
            raise
        raise TilelinkError(
            "TL458",
            f"{LIBRARY} has no process group here: {error}",
            loc=loc,
            why="simulated ranks are threads of one process: meshes, process groups and its collectives are for torchrun",
            hint='name ranks by tilelink.group([0, 1]), axes by tilelink.group(axes={"DP": 2, "TP": 2}), and call tilelink.ops',
        ) from error


def _asked(trace: TracebackType | None) -> Loc | None:
    """The line that called torch, where torch.distributed is what raised."""
    asking, raising = None, ""
    while trace is not None:
        raising = str(trace.tb_frame.f_globals.get("__name__", ""))
        if not raising.startswith("torch."):
            asking = whole_line(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return asking if f"{raising}.".startswith(f"{LIBRARY}.") else None
