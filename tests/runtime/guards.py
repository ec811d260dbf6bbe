"""Guards and watchers without GPUs and without threads."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from tilelink.device import watch
from tilelink.runtime.watchdog import Entry, Finding, Guard, StoreWatcher


class StandIn:
    """As much of a backend as a guard needs."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int64)

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype)

    def limit_waits(self, seconds: float | None) -> None: ...

    def watch_over(self, guard: Guard, doorbells: Callable[[], list[torch.Tensor]]) -> StoreWatcher | None: ...


def reporting(guard: Guard) -> None:
    """Write what a kernel of this rank would."""
    guard.watch(lambda entry: Finding(f"worker {entry.worker}", "matmul", None, (1 - guard.rank,)))
    at = watch.FIRST.value
    guard.memory[at + 1 : at + 9] = torch.tensor([0, 0, 3, 2, 5, 4, 17, 2_000_000_000])
    guard.memory[at] = watch.LATE.value
    assert guard.entries() == [Entry("late", 0, 0, 3, 2, 5, 4, 17, 2.0)]


class Bench:
    """Ranks in one process, with a store between them."""

    def __init__(self, ranks: int, seconds: float = 1.0) -> None:
        self.board = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        self.left: list[int] = []
        self.released = [0] * ranks
        self.guards = [Guard(StandIn(rank, ranks), seconds) for rank in range(ranks)]  # type: ignore[arg-type]
        self.watchers = [
            StoreWatcher(guard, ranks, {}, self.board, self._releasing(rank), self.left.append)
            for rank, guard in enumerate(self.guards)
        ]

    def _releasing(self, rank: int) -> Callable[[], None]:
        def release() -> None:
            self.released[rank] += 1

        return release
