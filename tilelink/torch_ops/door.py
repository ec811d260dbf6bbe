"""`install`: torch's fused operators on symmetric memory become tilelink's, for a program that stays as it is."""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from tilelink.errors import Loc, TilelinkError
from tilelink.runtime.session import Session, require

log = logging.getLogger("tilelink")

OURS, TORCHS = "tilelink", "torch"
SCALED = "tilelink has no scaled product"
SCALED_NAMES = ("fused_all_gather_scaled_matmul", "fused_scaled_matmul_reduce_scatter")


@dataclass(frozen=True, slots=True)
class Served:
    """Calls of one of torch's operators. `by`: `tilelink` or `torch`; `why` it was torch; `calls`: None where all are."""

    operator: str
    by: str
    calls: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Collective:
    """One of a compiled graph, as `tilelink.inductor.overlap` saw it. `by`: the operator it became a part of, or "", and then
    `why`; `loc`: the model's line, if the graph knows it."""

    operator: str
    loc: Loc | None
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What `tilelink.report()` gives. `installed`: whether torch's operators are tilelink's now; `rows`: who served them,
    `collectives`: those of compiled graphs that `tilelink.inductor.overlap` saw, and `cached`: how many graphs came out of
    Inductor's cache, which it saw when they were put there; all since the last `install`."""

    installed: bool
    rows: tuple[Served, ...]
    collectives: tuple[Collective, ...] = ()
    cached: int = 0

    def __str__(self) -> str:
        lines = [f"tilelink is {'' if self.installed else 'not '}installed"]
        for row in self.rows:
            calls = "every call" if row.calls is None else f"{row.calls} call{'s' if row.calls != 1 else ''}"
            lines.append(f"symm_mem::{row.operator}: {calls} by {row.by}{': ' if row.why else ''}{row.why}")
        table = [
            (row.operator, str(row.loc or "line unknown"), f"fused: {row.by}" if row.by else f"not fused: {row.why}")
            for row in self.collectives
        ]
        wide = [max((len(row[k]) for row in table), default=0) for k in range(2)]
        lines += [f"{name:{wide[0]}}  {line:{wide[1]}}  {what}" for name, line, what in table]
        if self.cached:
            came = f"{self.cached} compiled graph{'s' if self.cached != 1 else ''} came out of Inductor's cache"
            lines.append(
                f"{came}, as fused when put there: TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 shows their collectives"
            )
        return "\n".join(lines)


@dataclass(slots=True, eq=False)
class Door:
    """What is installed in this process, and who served which call."""

    library: torch.library.Library | None = None
    served: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    collectives: list[Collective] = field(default_factory=list[Collective])
    closed: dict[str, str] = field(default_factory=dict[str, str])
    """Groups whose ranks tilelink cannot run on, and why: found once, because finding out is collective."""
    hits: int = 0
    """Graphs that had come out of Inductor's cache when it was installed."""

    def count(self, operator: str, why: str | None) -> bool:
        """Note a call. Whether tilelink serves it."""
        key = (operator, OURS if why is None else TORCHS, why or "")
        if why is not None and key not in self.served:
            log.warning("symm_mem::%s runs as torch has it: %s", operator, why)
        self.served[key] += 1
        return why is None

    def session(self, group: str) -> Session | None:
        """The session of the ranks of a group of torch; None where tilelink cannot run on them, as `closed` says."""
        if group not in self.closed:
            try:
                return require().named(group)
            except TilelinkError as error:
                self.closed[group] = f"{error.code}: {error.message}"
        return None


def _hits() -> int:
    """Graphs of this process that came out of Inductor's cache; no pass sees them."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else dynamo.counters["inductor"]["fxgraph_cache_hit"]


@cache
def door() -> Door:
    """This process's: torch's table of kernels is the process's, too."""
    return Door()


def install() -> ExitStack:
    """Let tilelink serve torch's `symm_mem::fused_all_gather_matmul` and `symm_mem::fused_matmul_reduce_scatter`.

    These are what async tensor parallelism of `torch.compile` ends in (`torch._inductor.config._micro_pipeline_tp`). On GPUs
    they run `ag_gemm` and `gemm_rs`, in processes on the CPU their references; they have gradients. Calls that tilelink does not
    serve (another dtype, GPUs that do not reach one another) run as torch has them: `report` says which and why, and the log
    does once. Again, without `uninstall`: nothing.

    Returns:
        a context manager: `with tilelink.install(): …` uninstalls at its end, if it was this call that installed.

    Raises:
        TilelinkError: TL476, torch has no such operators here.
    """
    here = door()
    if here.library is not None:
        return ExitStack()
    if not torch.distributed.is_available():
        raise TilelinkError(
            "TL476",
            "this build of torch has no operators on symmetric memory",
            why="`install` replaces the fused products of torch.distributed, and torch was built without it",
            hint="install a build of torch with distributed, or call tilelink.ops",
        )
    from tilelink.torch_ops.kernels import register

    here.served.clear()
    here.collectives.clear()
    here.closed.clear()
    here.hits = _hits()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        here.library = register(here)
    undo = ExitStack()
    undo.callback(uninstall)
    return undo


def uninstall() -> None:
    """Let torch serve its operators itself again; nothing if `install` was not called. What was counted can still be reported."""
    here = door()
    if here.library is not None:
        from tilelink.torch_ops.kernels import forget

        here.library._destroy()
        here.library = None
        forget()


def report() -> Report:
    """Who served torch's fused operators since the last `install`, and why torch did where it did."""
    here = door()
    rows = [Served(operator, by, calls, why) for (operator, by, why), calls in here.served.items()]
    rows += [Served(operator, TORCHS, None, SCALED) for operator in SCALED_NAMES]
    return Report(here.library is not None, tuple(rows), tuple(here.collectives), max(0, _hits() - here.hits))
