"""Which world a call runs in, and the workspaces that live there."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.kernel import Checks
from tilelink.ir.topology import Device
from tilelink.runtime import environment
from tilelink.runtime.grid import Grid, grid_of, parsed
from tilelink.runtime.memory import Region, Workspace
from tilelink.runtime.recent import Recent
from tilelink.runtime.vigil import Vigil, compare_calls
from tilelink.runtime.world import Arena, World

T = TypeVar("T")
log = logging.getLogger("tilelink")

CALLS_KEPT = 256
"""Calls that an operator keeps prepared on a rank: kinds of arguments, which differ in sizes, strides or alignment."""


@dataclass(slots=True, eq=False)
class Session:
    """One rank's world with the workspaces of the operators that ran in it, and the sessions of its sub-groups.

    Attributes:
        watchdog: seconds that a wait of a kernel may take; None: for ever.
        debug: whether calls are compared between the ranks, checked on the device, and waited for.
    """

    world: World
    watchdog: float | None = None
    debug: bool = False
    workspaces: dict[object, Workspace] = field(default_factory=dict[object, Workspace])
    shared: list[Arena] = field(default_factory=list[Arena])
    prepared: dict[object, Recent[Any]] = field(default_factory=dict[object, Recent[Any]])
    """What operators keep for cached calls; dropped with the workspaces it refers to."""
    reserved: dict[object, dict[str, int]] = field(default_factory=dict[object, dict[str, int]])
    """Sizes that operators are to be prepared for, by dimension."""
    groups: dict[object, Session] = field(default_factory=dict[object, "Session"])
    retired: dict[object, list[Workspace]] = field(default_factory=dict[object, list[Workspace]])
    """Outgrown workspaces that CUDA graphs may still replay in."""
    _names: dict[str, Session] = field(default_factory=dict[str, "Session"])
    """Sessions that `named` has found: operators of torch ask at each call."""
    vigil: Vigil = field(init=False)

    def __post_init__(self) -> None:
        self.vigil = Vigil(self.world, self.watchdog, self.debug, self._bells, self._forget)

    def watch_over(self, watchdog: float | None, debug: bool) -> None:
        """Make the calls from now on so; all ranks alike."""
        if (watchdog, debug) == (self.watchdog, self.debug):
            return
        self.vigil.stop()
        for calls in self.prepared.values():
            calls.clear()
        # Off first: if nobody can be made to watch, nothing says that somebody does.
        self.watchdog, self.debug = None, False
        self.vigil = Vigil(self.world, None, False, self._bells, self._forget)
        self.vigil = Vigil(self.world, watchdog, debug, self._bells, self._forget)
        self.watchdog, self.debug = watchdog, debug
        for part in self.groups.values():
            part.watch_over(watchdog, debug)

    def check(self) -> None:
        """Wait for this rank's work, then raise what the watchdog or debug mode has found.

        Raises:
            TilelinkError: those of `Guard.check`.
        """
        self.world.drain()
        for part in dict.fromkeys((self, *self.groups.values())):
            part.vigil.check()

    def of(self, group: Any) -> Session:
        """The session of a sub-group that this rank is in, or of ranks along several axes; this one for None. Collective over
        the group, the first time.

        Raises:
            TilelinkError: TL454 it is no group, TL455 this rank is not in it, TL457 its ranks have no such axes.
        """
        if group is None:
            return self
        if group not in self.groups:
            grid = group if isinstance(group, Grid) else self.world.grid(group)
            whole = self.world.within(group) if grid is None else self.of(grid.group).world
            world = whole if grid is None else whole.laid_out(grid)
            known = self._known(world.name)
            self.groups[group] = Session(world, self.watchdog, self.debug) if known is None else known
        return self.groups[group]

    def named(self, name: str) -> Session:
        """The session of the group whose world has this name; what `of` has not seen yet is collective over the group.

        Raises:
            TilelinkError: TL456, no group here has it.
        """
        if name not in self._names:
            self._names[name] = self._known(name) or self._found(*parsed(name))
        return self._names[name]

    def _found(self, name: str, axes: tuple[tuple[str, int], ...]) -> Session:
        """The session of a group by its name, its ranks along axes if there are any."""
        group = None if axes and self._known(name) is self else self.world.named(name)
        return self.of(Grid(axes, group) if axes else group)

    def _known(self, name: str) -> Session | None:
        return next((part for part in (self, *self.groups.values()) if part.world.name == name), None)

    def cached(self, key: object) -> Recent[Any]:
        """What the operator keeps for cached calls: always the same object."""
        known = self.prepared.get(key)
        if known is None:
            known = self.prepared[key] = Recent(CALLS_KEPT)
        return known

    def workspace(self, key: object, wanted: tuple[Region, ...], call: str) -> Workspace:
        """The operator's workspace, allocated or grown if need be (collective, then; every rank sees the same sizes).

        Args:
            call: in words, for ranks that make different ones.

        Raises:
            TilelinkError: TL452, on every rank.
        """
        known = self.workspaces.get(key)
        if known is not None and known.fits(wanted):
            return known
        mine = tuple((r.name, r.nbytes) for r in wanted if r.symmetric)
        asked = self.vigil.agree((call, self.vigil.checks, mine, known is not None and known.captured))
        compare_calls([f"{said}{f' with {checks}' if checks else ''}" for said, checks, *_ in asked])
        _compare([regions for _, _, regions, _ in asked])
        # Forgotten before it is freed: there may be no memory for a larger one.
        self.cached(key).clear()
        self.workspaces.pop(key, None)
        if known is not None:
            wanted = known.grown(wanted)
            self.world.barrier()
            if any(captured for *_, captured in asked):
                self.retired.setdefault(key, []).append(known)
            else:
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
        if not self.shared:
            return False
        at = tensor.data_ptr()
        return any(0 <= at - a.local.data_ptr() < a.local.numel() for a in self.shared)

    def close(self, key: object) -> None:
        """Free what the operator took, here and in the sub-groups. Collective; harmless when repeated."""
        for part in dict.fromkeys(self.groups.values()):
            if part is not self:
                part.close(key)
        self.reserved.pop(key, None)
        self.vigil.check()
        self._drop(key)
        self.vigil.check()

    def _drop(self, key: object) -> None:
        """Free the operator's workspaces."""
        self.cached(key).clear()
        current = self.workspaces.pop(key, None)
        for known in [*self.retired.pop(key, []), *([current] if current is not None else [])]:
            self.world.barrier()
            known.close()

    def _forget(self) -> None:
        """Free all workspaces; collective."""
        for key in [*self.workspaces]:
            self._drop(key)

    def _bells(self) -> list[torch.Tensor]:
        """The words that streams of this rank wait for."""
        return [words for w in list(self.workspaces.values()) if not w.closed for words in w.bells()]


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
_of_process: ContextVar[Session | None] = ContextVar("tilelink_process_session", default=None)
"""The world is chosen once: later calls do not look at the environment again."""


@contextmanager
def using(session: Session) -> Iterator[Session]:
    """Make a session the current one of this thread."""
    token = _current.set(session)
    try:
        yield session
    finally:
        _current.reset(token)


def current() -> Session | None:
    """The session of this process or simulated rank, if there is one without starting a simulation."""
    found = _current.get() or _of_process.get()
    if found is not None:
        return found
    info = environment.distributed()
    if environment.world() == "simulated" or (info is None and not torch.cuda.is_available()):
        return None
    session = _process_session()
    _of_process.set(session)
    return session


@cache
def _process_session() -> Session:
    """The session of a process started by torchrun (or alone, on one GPU)."""
    name = environment.world() or "peer"
    if name == "nvshmem":
        from tilelink.runtime.nvshmem import NvshmemWorld

        return Session(NvshmemWorld.from_environment(), environment.watchdog(), environment.debug())
    from tilelink.runtime.peer import PeerWorld

    return Session(PeerWorld.from_environment(), environment.watchdog(), environment.debug())


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
    policy: Any = None,
    recorder: Any = None,
    races: bool = True,
    watchdog: float | None = None,
    debug: bool | None = None,
    delayed_stores: bool = False,
    nodes: int = 1,
    axes: Mapping[str, int] | None = None,
) -> list[T]:
    """Run `main` once for every rank of a simulated world; its results by rank.

    Args:
        policy: whose turn it is, instead of `seed` and `straggler`: `"priorities-7"`, see `runtime.simulated.policy`.
        races: look for accesses that nothing orders.
        delayed_stores: stores may arrive late and in another order, until something orders them.
        nodes: that the ranks lie on, as many on each; ranks of different nodes reach one another by puts only.
        axes: as of `launch`.
        watchdog: as of `launch`.
        debug: as of `launch`.

    Raises:
        TilelinkError: TL501 a deadlock, with every waiting line; TL507 a race; TL508 no policy; TL450 a simulation inside a
            simulation.
    """
    from tilelink.runtime.simulated import Policy, RaceDetector, simulate

    if _current.get() is not None:
        raise TilelinkError(
            "TL450", "a simulation was started inside a rank", hint="call tilelink.launch once, outside"
        )

    seconds = environment.watchdog() if watchdog is None else watchdog
    checked = environment.debug() if debug is None else debug

    def body(world: World) -> T:
        with using(_along(Session(world, seconds, checked), axes)):
            return main()

    return simulate(
        body,
        ranks,
        seed=seed,
        straggler=straggler,
        policy=Policy.parse(policy) if isinstance(policy, str) else policy,
        device=device or Device(),
        recorder=recorder,
        delayed_stores=delayed_stores,
        observer=RaceDetector() if races else None,
        nodes=nodes,
    )


def _along(session: Session, axes: Mapping[str, int] | None) -> Session:
    """The session with its ranks along axes, if any are named."""
    return session if axes is None else session.of(grid_of(axes))


def launch(
    main: Callable[[], T],
    ranks: int = 4,
    *,
    axes: Mapping[str, int] | None = None,
    watchdog: float | None = None,
    debug: bool | None = None,
    **options: Any,
) -> list[T]:
    """Run an SPMD function: under `torchrun` once, in this process's rank; without it once per simulated rank.

    Args:
        main: called without arguments; `tilelink.rank()` and `tilelink.ranks()` tell it where it is.
        ranks: simulated ranks; ignored under torchrun.
        axes: how many ranks lie along each axis of ranks, the outermost first, such as `{"NODE": 2, "GPU": 8}`; neighbours
            lie along the last. Operators with these axes may be called, and those of one axis, along all ranks.
        watchdog: seconds that a wait of a kernel may take before it is reported; default: TILELINK_WATCHDOG.
        debug: whether calls are checked on the host and on the device; default: TILELINK_DEBUG.
        options: those of the simulated world: `seed`, `straggler`, `policy`, `races`, `delayed_stores`, `device`, `nodes`,
            `recorder`.

    Returns:
        results by rank (under torchrun: this rank's alone).
    """
    session = current()
    if session is not None:
        session.watch_over(
            session.watchdog if watchdog is None else watchdog, session.debug if debug is None else debug
        )
        with using(_along(session, axes)):
            return [main()]
    say_simulated()
    return simulated(main, ranks, axes=axes, watchdog=watchdog, debug=debug, **options)


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


def group(ranks: Sequence[int] | None = None, *, axes: Mapping[str, int] | None = None) -> Any:
    """Some of the ranks, to be passed to operators as `group=`: a process group on GPUs.

    Collective over these ranks; the others need not call it. A rank that is in several groups makes them in the same
    order as the other ranks of each.

    Args:
        ranks: their numbers, in any order; None: all. In a call with this group they are numbered from 0, the lowest first.
        axes: the axes that they are laid out along, as of `launch`, for operators that have such axes.

    Raises:
        TilelinkError: TL455, this rank is not among them; TL457, these are no axes.
    """
    found = None if ranks is None else require().world.among(sorted(ranks))
    if axes is not None:
        return grid_of(axes, found)
    return require().world.among(range(require().world.ranks)) if found is None else found


def rank(group: Any = None) -> int:
    """This process's or simulated rank; in a group, its number there."""
    return require().of(group).world.rank


def ranks(group: Any = None) -> int:
    """The number of ranks, of a group if one is given."""
    return require().of(group).world.ranks


def checks_here() -> Checks:
    """What kernels look after beside their work, when called from here."""
    session = current()
    if session is not None:
        return session.vigil.checks
    return Checks(environment.watchdog() is not None, environment.debug())


def check() -> None:
    """Wait for this rank's work, then raise what the watchdog or debug mode has found in it.

    The next call of an operator raises it too; this is for the end of a program, and for places where results are used.

    Raises:
        TilelinkError: TL470 a wait took too long, TL471 on another rank, TL472 a rank has ended, TL473 a condition does
            not hold, TL451 there is no rank here.
    """
    require().check()


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16, group: Any = None) -> torch.Tensor:
    """Memory for an argument that peers read: operators take it in place instead of copying it to a slot first.

    Collective: every rank asks for the same shape, in the same order. A call that reads it in place ends when all
    peers have read it. It is freed with the process (in the simulated world: with the run).

    Args:
        shape: elements per axis.
        dtype: of the elements.
        group: the ranks whose operators read it in place; None for all.
    """
    return require().of(group).empty(shape, dtype)


def spread(call: Callable[..., T], arguments: Sequence[Sequence[Any]], **options: Any) -> list[T]:
    """Call once per rank with that rank's argument of each list, in a simulated world of as many ranks."""
    for k, given in enumerate(arguments):
        if not isinstance(given, (list, tuple)) or len(given) != len(arguments[0]) or not given:
            raise TilelinkError(
                "TL238",
                f"argument {k + 1} is no list of {len(arguments[0]) or 'one or more'} tensors, one per rank",
                why="the first argument is a list, and so the call is that of all ranks at once",
                hint="pass a list of the same length for every argument, or call on each rank (tilelink.launch)",
            )
    say_simulated()
    count = len(arguments[0])

    def main() -> T:
        me = require().world.rank
        return call(*[a[me] for a in arguments])

    return simulated(main, count, **options)
