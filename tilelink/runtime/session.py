"""Which world a call runs in, and the workspaces that live there."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Device
from tilelink.runtime import environment
from tilelink.runtime.memory import Region, Workspace
from tilelink.runtime.world import Arena, World

T = TypeVar("T")
log = logging.getLogger("tilelink")


@dataclass(slots=True, eq=False)
class Session:
    """One rank's world with the workspaces of the operators that ran in it."""

    world: World
    workspaces: dict[object, Workspace] = field(default_factory=dict[object, Workspace])
    shared: list[Arena] = field(default_factory=list[Arena])
    prepared: dict[object, Any] = field(default_factory=dict[object, Any])
    """What operators keep for cached calls; dropped with the workspaces it refers to."""

    def workspace(self, key: object, wanted: tuple[Region, ...]) -> Workspace:
        """The operator's workspace, allocated or grown if need be (collective, then; every rank sees the same sizes)."""
        known = self.workspaces.get(key)
        if known is not None and known.fits(wanted):
            return known
        mine = tuple((r.name, r.nbytes) for r in wanted if r.symmetric)
        _compare(self.world.agree(mine))
        if known is not None:
            wanted = known.grown(wanted)
            self.world.barrier()
            known.close()
        self.workspaces[key] = Workspace.allocate(self.world, wanted)
        return self.workspaces[key]

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in symmetric memory, which peers read in place. Collective; lives as long as the session."""
        count = math.prod(shape)
        arena = self.world.arena(max(count, 1) * dtype.itemsize)
        self.shared.append(arena)
        return arena.local[: count * dtype.itemsize].view(dtype).view(tuple(shape))

    def shares(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in memory that `empty` gave."""
        at = tensor.data_ptr()
        return any(0 <= at - a.local.data_ptr() < a.local.numel() for a in self.shared)

    def close(self, key: object) -> None:
        """Free the operator's workspace. Collective."""
        known = self.workspaces.pop(key, None)
        if known is not None:
            self.world.barrier()
            known.close()
            self.prepared = {k: v for k, v in self.prepared.items() if not v.workspace.closed}


def _compare(asked: list[tuple[tuple[str, int], ...]]) -> None:
    """Every rank needs the same symmetric memory, or they do not run the same call.

    Raises:
        TilelinkError: TL452, on every rank.
    """
    for rank, wanted in enumerate(asked):
        differing = sorted(set(wanted) ^ set(asked[0]))
        if differing:
            name = differing[0][0]
            here, there = (dict(w).get(name) for w in (asked[0], wanted))
            raise TilelinkError(
                "TL452",
                f"ranks 0 and {rank} disagree on the sizes of a call: `{name}` has {here} and {there} bytes",
                why="an operator's call is collective: every rank passes parts of the same global tensors",
                hint="pass equal shapes, or the global size by name (`M=…`) where shards are uneven",
            )


_current: ContextVar[Session | None] = ContextVar("tilelink_session", default=None)


@contextmanager
def using(session: Session) -> Iterator[Session]:
    """Make a session the current one of this coroutine."""
    token = _current.set(session)
    try:
        yield session
    finally:
        _current.reset(token)


def current() -> Session | None:
    """The session of this process or simulated rank, if there is one without starting a simulation."""
    found = _current.get()
    if found is not None:
        return found
    info = environment.distributed()
    if environment.world() == "simulated" or (info is None and not torch.cuda.is_available()):
        return None
    return _process_session()


@cache
def _process_session() -> Session:
    """The session of a process started by torchrun (or alone, on one GPU)."""
    name = environment.world() or "peer"
    if name == "nvshmem":
        from tilelink.runtime.nvshmem import NvshmemWorld

        return Session(NvshmemWorld.from_environment())
    from tilelink.runtime.peer import PeerWorld

    return Session(PeerWorld.from_environment())


@cache
def say_simulated() -> None:
    """Once per process."""
    log.warning("no GPU and no torchrun: running in the simulated world (every rank in this process, on the CPU)")


def simulated(
    main: Callable[[], T],
    ranks: int,
    *,
    seed: int = 0,
    straggler: int | None = None,
    device: Device | None = None,
    recorder: Any = None,
) -> list[T]:
    """Run `main` once for every rank of a simulated world; its results by rank.

    Raises:
        TilelinkError: TL501 a deadlock, with every waiting line; TL450 a simulation inside a simulation.
    """
    from tilelink.runtime.simulated import simulate

    if _current.get() is not None:
        raise TilelinkError(
            "TL450", "a simulation was started inside a rank", hint="call tilelink.launch once, outside"
        )

    def body(world: World) -> T:
        with using(Session(world)):
            return main()

    return simulate(body, ranks, seed=seed, straggler=straggler, device=device or Device(), recorder=recorder)


def launch(main: Callable[[], T], ranks: int = 4, **options: Any) -> list[T]:
    """Run an SPMD function: under `torchrun` once, in this process's rank; without it once per simulated rank.

    Args:
        main: called without arguments; `tilelink.rank()` and `tilelink.ranks()` tell it where it is.
        ranks: simulated ranks; ignored under torchrun.
        options: `seed`, `straggler`, `device`, `recorder` of the simulated world.

    Returns:
        results by rank (under torchrun: this rank's alone).
    """
    session = current()
    if session is not None:
        with using(session):
            return [main()]
    say_simulated()
    return simulated(main, ranks, **options)


def require() -> Session:
    session = current()
    if session is None:
        raise TilelinkError(
            "TL451",
            "there is no rank here",
            why="without torchrun and GPUs, ranks exist only inside tilelink.launch(main, ranks=…)",
            hint="call it inside the function that you launch",
        )
    return session


def rank() -> int:
    """This process's or simulated rank."""
    return require().world.rank


def ranks() -> int:
    """The number of ranks."""
    return require().world.ranks


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Memory for an argument that peers read: operators take it in place instead of copying it to a slot first.

    Collective: every rank asks for the same shape, in the same order. A call that reads it in place ends when all
    peers have read it. It is freed with the process (in the simulated world: with the run).

    Args:
        shape: elements per axis.
        dtype: of the elements.
    """
    return require().empty(shape, dtype)


def spread(call: Callable[..., T], arguments: Sequence[Sequence[Any]], **options: Any) -> list[T]:
    """Call once per rank with that rank's argument of each list, in a simulated world of as many ranks."""
    say_simulated()
    count = len(arguments[0])

    def main() -> T:
        me = require().world.rank
        return call(*[a[me] for a in arguments])

    return simulated(main, count, **options)
