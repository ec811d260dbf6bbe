"""Which backend a call runs in, and the workspaces that live there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.runtime import environment
from tilelink.runtime.backend import Backend
from tilelink.runtime.cache import Recent
from tilelink.runtime.grid import Grid, parsed
from tilelink.runtime.memory import Region, Workspace, union
from tilelink.runtime.refusals import compare_memory
from tilelink.runtime.watchdog import Vigil

CALLS_KEPT = 512
"""Calls that an operator keeps prepared on a rank, half of them at least: kinds of arguments, which differ in sizes, strides or
alignment."""


@dataclass(slots=True, eq=False)
class Session:
    """One rank's backend with the workspaces of the operators that ran in it, and the sessions of its sub-groups.

    Args:
        watchdog, debug: as of `Vigil`.
    """

    backend: Backend
    watchdog: InitVar[float | None] = None
    debug: InitVar[bool] = False
    workspaces: dict[object, Workspace] = field(default_factory=dict[object, Workspace])
    prepared: defaultdict[object, Recent[Any]] = field(default_factory=lambda: defaultdict(partial(Recent, CALLS_KEPT)))
    """What operators keep for cached calls; dropped with the workspaces it refers to."""
    reserved: dict[object, dict[str, int]] = field(default_factory=dict[object, dict[str, int]])
    """Sizes that operators are to be prepared for, by dimension."""
    groups: dict[object, Session] = field(default_factory=dict[object, "Session"])
    retired: dict[object, list[Workspace]] = field(default_factory=dict[object, list[Workspace]])
    """Outgrown workspaces that CUDA graphs may still replay in."""
    compared: set[object] = field(default_factory=set[object])
    """Schedules from disk whose results have been compared here, each with what it is a schedule of."""
    _names: dict[str, Session] = field(init=False)
    """This one and those of sub-groups, by the names of their backends: operators of torch ask at each call."""
    vigil: Vigil = field(init=False)
    of_process: ClassVar[Session | None] = None
    """That of this process, once there is one: later calls do not look at the environment again. It is no context variable:
    autograd's threads, which call operators of gradients, come to Python anew each time."""

    def __post_init__(self, watchdog: float | None, debug: bool) -> None:
        self._names = {self.backend.name: self}
        self.vigil = Vigil(self, watchdog, debug)

    def watch_over(self, watchdog: float | None, debug: bool) -> None:
        """Make the calls from now on so; all ranks alike."""
        if (watchdog, debug) == (self.vigil.watchdog, self.vigil.debug):
            return
        self.vigil.stop()
        self.unprepare()
        # Off first: if nobody can be made to watch, nothing says that somebody does.
        self.vigil = Vigil(self, None, False)
        self.vigil = Vigil(self, watchdog, debug)
        for part in self.groups.values():
            part.watch_over(watchdog, debug)

    def check(self) -> None:
        """Wait for this rank's work, then raise what the watchdog or debug mode has found. Raises those of `Guard.check`."""
        self.backend.drain()
        for part in self._names.values():
            part.vigil.check()

    def of(self, group: Any) -> Session:
        """The session of a sub-group that this rank is in, or of ranks along several axes; this one for None. Collective
        over the group, the first time. Raises TL454 it is no group, TL455 this rank is not in it, TL457 its ranks have no
        such axes."""
        if group is None:
            return self
        if not isinstance(group, Hashable):
            self.backend.within(group)  # which raises: it is a list of ranks, or the like
        if group not in self.groups or not self.groups[group].backend.alive:
            # Groups may have been destroyed: torch gives their names to others.
            self.groups = {key: part for key, part in self.groups.items() if part.backend.alive}
            self._names = {name: part for name, part in self._names.items() if part.backend.alive}
            grid = group if isinstance(group, Grid) else self.backend.grid(group)
            whole = self.backend.within(group) if grid is None else self.of(grid.group).backend
            backend = whole if grid is None else whole.laid_out(grid)
            if backend.name not in self._names:
                self._names[backend.name] = Session(backend, self.vigil.watchdog, self.vigil.debug)
            self.groups[group] = self._names[backend.name]
        return self.groups[group]

    def named(self, name: str) -> Session:
        """The session of the group whose backend has this name; what `of` has not seen yet is collective over the group.
        Raises TL456, no group here has it."""
        found = self._names.get(name)
        if found is None or not found.backend.alive:
            base, axes = parsed(name)
            group = None if axes and self._names.get(base) is self else self.backend.named(base)
            found = self.of(Grid(axes, group) if axes else group)
        return found

    def workspace(self, key: object, wanted: tuple[Region, ...]) -> Workspace:
        """The operator's workspace, allocated or grown if need be (collective, then; every rank sees the same sizes). Raises
        TL452, on every rank; TL478, a call in it ended between its steps."""
        known = self.workspaces.get(key)
        if known is not None and known.broken:
            raise TilelinkError(
                "TL478",
                f"an earlier call ended between its steps on rank {self.backend.rank}: {known.broken}",
                why="peers have been told of a call that this rank has not finished",
                hint="call the operator's `close()` on every rank, which frees its memory, and then the operator again",
            )
        if known is not None and known.fits(wanted):
            return known
        mine = tuple((r.name, r.nbytes) for r in wanted if r.symmetric)
        asked = self.vigil.agree("takes memory", (mine, known is not None and bool(known.replayed)))
        compare_memory([regions for regions, _ in asked])
        # Forgotten before it is freed: there may be no memory for a larger one.
        self.prepared[key].clear()
        self.workspaces.pop(key, None)

        def allocated() -> Workspace:
            if known is None:
                return Workspace.allocate(self.backend, wanted)
            self.backend.barrier()
            if any(captured for _, captured in asked):
                self.retired.setdefault(key, []).append(known)
            else:
                known.close()
            return Workspace.allocate(self.backend, union(known.capacity.values(), wanted))

        # With the ranks' meetings, of which NCCL keeps a tensor for a while.
        self.workspaces[key] = self.backend.lasting(allocated)
        return self.workspaces[key]

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in symmetric memory, which peers read in place. Collective; lives as long as the session."""
        count, arenas = math.prod(shape), self.backend.arenas
        arena = self.backend.arena(max(count, 1) * dtype.itemsize)
        arenas.emptied = arena.number = arenas.emptied + 1
        return arena.local[: count * dtype.itemsize].view(dtype).view(tuple(shape))

    def shares(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in memory that `empty` gave."""
        arenas = self.backend.arenas
        return arenas.emptied > 0 and arenas.place(tensor) is not None

    def close(self, key: object) -> None:
        """Free what the operator took, here and in the sub-groups. Collective; harmless when repeated."""
        for part in self._names.values():
            if part is not self:
                part.close(key)
        self.reserved.pop(key, None)
        self.vigil.check()
        self._drop(key)
        self.vigil.check()

    def _drop(self, key: object) -> None:
        """Free the operator's workspaces."""
        self.prepared[key].clear()
        current = self.workspaces.pop(key, None)
        for known in [*self.retired.pop(key, []), *([current] if current is not None else [])]:
            self.backend.barrier()
            known.close()

    def forget(self) -> None:
        """Free all workspaces; collective."""
        for key in [*self.workspaces]:
            self._drop(key)

    def unprepare(self) -> None:
        """Every kind of call is prepared again when it comes."""
        for calls in self.prepared.values():
            calls.clear()

    def doorbells(self) -> list[torch.Tensor]:
        """The flags that streams of this rank wait for."""
        spaces = list(self.workspaces.values())
        return [w.words(name) for w in spaces for name in w.capacity if ".doorbells/" in name]


_current: ContextVar[Session | None] = ContextVar("tilelink_session", default=None)


@contextmanager
def using(session: Session) -> Iterator[Session]:
    """Make a session the current one of this thread."""
    token = _current.set(session)
    try:
        yield session
    finally:
        _current.reset(token)


def in_rank() -> bool:
    """Whether this is called where `using` has made a session the current one."""
    return _current.get() is not None


def current() -> Session | None:
    """The session of this process or simulated rank, if there is one without starting a simulation."""
    found = _current.get() or Session.of_process
    if found is not None and found.backend.alive:
        return found
    if found is not None:
        # Its process group was destroyed.
        found.vigil.stop()
        if Session.of_process is found:  # another thread may have made the next one already
            Session.of_process = None
    asked = environment.backend()
    if asked == "simulated":
        return None
    grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if not (asked == "gloo" or torch.cuda.is_available() or environment.local_rank() is not None or grouped):
        return None
    # Started by torchrun, or alone, on one GPU.
    name = asked or ("peer" if torch.cuda.is_available() else "gloo")
    if name == "gloo":
        from tilelink.runtime.processes import GlooBackend as Chosen
    elif name == "nvshmem":
        from tilelink.runtime.nvshmem import NvshmemBackend as Chosen
    else:
        from tilelink.runtime.peer import PeerBackend as Chosen
    Session.of_process = made = Session(Chosen.from_environment(), environment.watchdog(), environment.debug())
    return made


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
