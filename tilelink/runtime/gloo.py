"""The `gloo` backend: processes on CPUs, where nothing is emitted or launched, and operators run their references."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Self

import torch
import torch.distributed as dist

from tilelink.ir.topology import Topology
from tilelink.runtime import environment
from tilelink.runtime.arena import SymmetricBlock
from tilelink.runtime.processes import ProcessBackend

log = logging.getLogger("tilelink")


@cache
def say_references() -> None:
    """Once per process."""
    log.warning("no GPU: in these processes operators run their references, in plain torch on the CPU, without overlap")


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
    device = torch.device("cpu")

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

    def _block(self, nbytes: int) -> SymmetricBlock:
        """What `tilelink.empty` gives here: memory of this process, which no peer reaches."""
        return SymmetricBlock(self.zeros(nbytes, torch.uint8), (), (0,) * self.ranks, lambda: None)

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier(group=self.group)
