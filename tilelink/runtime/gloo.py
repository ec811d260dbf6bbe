"""The `gloo` backend: processes on CPUs, where nothing is emitted or launched, and operators run their references."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist

from tilelink.ir.topology import Topology
from tilelink.runtime import environment
from tilelink.runtime.backend import Call, Reports, Step, Work
from tilelink.runtime.processes import ProcessBackend
from tilelink.runtime.refusals import no_kernels, not_shared, one_size

log = logging.getLogger("tilelink")


@cache
def say_references() -> None:
    """Once per process."""
    log.warning("no GPU: in these processes operators run their references, in plain torch on the CPU, without overlap")


class OwnMemory:
    """What `tilelink.empty` gives here: memory of this process, which no peer reaches."""

    def __init__(self, nbytes: int, settle: Callable[[], None]) -> None:
        self.local = torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
        self.context = torch.empty(0, dtype=torch.int64, device="cpu")  # no device function takes it
        self._settle = settle

    def along(self, line: tuple[int, ...]) -> torch.Tensor:
        """Raises:
        TilelinkError: TL439, no device function runs here.
        """
        raise not_shared(self.local)

    def peer(self, pe: int) -> torch.Tensor:
        """Raises:
        TilelinkError: TL439, peers do not reach one another's memory.
        """
        raise not_shared(self.local)

    def free(self) -> None:
        """Collective."""
        self._settle()


class GlooBackend(ProcessBackend):
    """One process of a group on CPUs.

    An operator's call is its reference's, with this group: `only_references`. What a plan says is what it would say of
    as many simulated ranks.

    Args:
        group: the ranks; None for all of them.

    Raises:
        TilelinkError: TL435, there is no process group.
    """

    only_references = True

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self.topology = Topology(self.ranks)

    @classmethod
    def from_environment(cls) -> Self:
        """The backend of all processes that `torchrun` started, or of this one alone; a gloo group is made if there is none."""
        if not dist.is_initialized():
            alone = environment.distributed() is None
            given: dict[str, Any] = {"rank": 0, "world_size": 1, "store": dist.HashStore()} if alone else {}  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group("gloo", **given)
        say_references()
        return cls()

    def _part(self, group: dist.ProcessGroup) -> GlooBackend:
        return GlooBackend(group)

    # ------------------------------------------------------------------------------------------------------------- memory
    def arena(self, nbytes: int) -> OwnMemory:
        one_size(nbytes, self.agree(nbytes))
        return OwnMemory(nbytes, self.barrier)

    def context_of(self, tensor: torch.Tensor, line: tuple[int, ...] | None = None) -> torch.Tensor:
        raise not_shared(tensor)

    def symmetric_arena(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        raise not_shared(tensor)

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device="cpu")

    def maker(self, shape: Sequence[int], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        return lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu")

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        del on_host
        return torch.zeros(count, dtype=torch.int64, device="cpu")

    # ------------------------------------------------------------------------------------------------- what kernels would need
    def limit_waits(self, seconds: float | None) -> None:
        """Nothing: no kernel waits."""

    def watch_over(self, guard: Reports, doorbells: Callable[[], list[torch.Tensor]]) -> None:
        """Nobody: gloo has timeouts of its own."""

    def main_stream(self) -> NoReturn:
        raise no_kernels()

    def side_stream(self, index: int) -> NoReturn:
        raise no_kernels()

    def step(self, work: Work, stream: int, first: Call) -> Step:
        raise no_kernels()

    def timed(self, call: Callable[[], Any], host_us: float = 0.0) -> float:
        raise no_kernels()

    @property
    def late(self) -> bool:
        return False

    def read(self, stamps: Sequence[Any]) -> list[int]:
        raise no_kernels()

    def skew(self) -> int:
        raise no_kernels()

    def capturing(self) -> bool:
        return False

    # -------------------------------------------------------------------------------------------------------- the ranks' host
    def drain(self) -> None:
        """Nothing: a reference has done its work when it returns."""

    def finish(self) -> None:
        """Nothing: as `drain`."""

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier(group=self.group)
