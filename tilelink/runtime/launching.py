"""Runs SPMD functions, on GPUs or simulated ranks, and answers what they ask: which rank this is, groups, memory."""

from __future__ import annotations

import difflib
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError, is_whole, whole_line
from tilelink.runtime import environment
from tilelink.runtime.backend import Backend
from tilelink.runtime.grid import grid_of
from tilelink.runtime.memory import NAMES
from tilelink.runtime.refusals import check_option, warn_once
from tilelink.runtime.session import Session, current, in_rank, require, using

if TYPE_CHECKING:
    from tilelink.runtime.simulated import Observer

T = TypeVar("T")
SIMULATED = "no GPU and no torchrun: running in the simulated backend (every rank in this process, on the CPU)"
OPTIONS = ("seed", "straggler", "policy", "races", "delayed_stores", "device", "nodes", "recorder")
"""Of the simulated backend alone."""


def simulated(
    main: Callable[[], T],
    ranks: int,
    *,
    axes: Mapping[str, int] | None = None,
    watchdog: float | None = None,
    debug: bool | None = None,
    races: bool | Observer = True,
    **options: Any,
) -> list[T]:
    """Run `main` once for every rank of a simulated run; its results by rank.

    Args:
        axes, watchdog, debug: as of `launch`.
        races: look for accesses that nothing orders; or an observer that does, or keeps what it sees.
        options: those of `runtime.simulated.simulate`.

    Raises:
        TilelinkError: those of `simulate`; TL464 a value that an option cannot have; TL450 a simulation inside another one or
            beside it; TL239 that is no number of ranks; TL458 there are no processes for torch.distributed.
    """
    check_ranks(ranks)
    from tilelink.runtime.simulated import Observer, RaceDetector, simulate

    if in_rank():
        raise TilelinkError(
            "TL450", "a simulation was started inside a rank", hint="call tilelink.launch once, outside"
        )
    check_option("races", races, isinstance(races, (bool, Observer)), "True, False or an observer")
    seconds, checked = _checks(watchdog, debug, environment.watchdog, environment.debug)

    def body(backend: Backend) -> T:
        with using(along(Session(backend, seconds, checked), axes)), without_processes():
            return main()

    observer = (RaceDetector() if races else None) if isinstance(races, bool) else races
    return simulate(body, ranks, observer=observer, **options)


def along(session: Session, axes: Mapping[str, int] | None) -> Session:
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
        options: those of the simulated backend, see `runtime.simulated.simulate` and `simulated`: `seed`, `straggler`, `policy`,
            `races`, `delayed_stores`, `device`, `nodes`, `recorder`.

    Returns:
        results by rank (under torchrun: this rank's alone).

    Raises:
        TilelinkError: TL464, an option that there is not, or a value that it cannot have; and those of a simulation.
    """
    check_option("main", main, callable(main), "a function without arguments")
    known = [*list(inspect.signature(launch).parameters)[1:-1], *OPTIONS]
    for name in options.keys() - OPTIONS:
        close = difflib.get_close_matches(name, known, n=1)
        raise TilelinkError(
            "TL464",
            f"`launch` has no option `{name}`",
            why=f"its options are {', '.join(known)}",
            hint=f"did you mean `{close[0]}`?" if close else "leave it out",
        )
    session = current()
    if session is not None:
        now = session.vigil
        session.watch_over(*_checks(watchdog, debug, lambda: now.watchdog, lambda: now.debug))
        with using(along(session, axes)):
            return [main()]
    warn_once(SIMULATED)
    return simulated(main, ranks, axes=axes, watchdog=watchdog, debug=debug, **options)


def _checks(
    watchdog: Any, debug: Any, seconds: Callable[[], float | None], on: Callable[[], bool]
) -> tuple[float | None, bool]:
    """Seconds that a wait may take (None: any number), and whether calls are checked; as asked, else as is usual here."""
    number = isinstance(watchdog, float) or is_whole(watchdog)
    usual = "a number of seconds, such as 30, or 0 for waits without a limit"
    check_option("watchdog", watchdog, watchdog is None or (number and 0 <= watchdog < environment.LONGEST_WAIT), usual)
    check_option("debug", debug, debug is None or isinstance(debug, bool), "True or False")
    return seconds() if watchdog is None else watchdog or None, on() if debug is None else debug


def listed(arguments: Sequence[Any], ranks: int | None = None) -> int:
    """Of how many ranks these lists are, with one entry per rank each; `ranks`, where it is known how many there are. Raises
    TL238, they are not all lists of one length."""
    count = ranks or len(arguments[0])
    for k, given in enumerate(arguments):
        if not isinstance(given, (list, tuple)) or len(given) != count or not given:
            raise TilelinkError(
                "TL238",
                f"argument {k + 1} is no list of {count or 'one or more'} tensors, one per rank",
                why="the first argument is a list, and so the call is that of all ranks at once",
                hint="pass a list of the same length for every argument, or call on each rank (tilelink.launch)",
            )
    return count


def check_ranks(ranks: Any) -> None:
    """Raises TL239, that is no number of ranks."""
    if not is_whole(ranks) or ranks < 1:
        raise TilelinkError("TL239", f"{ranks!r} is no number of ranks", hint="pass a whole number, 1 or more")


def spread(call: Callable[..., T], arguments: Sequence[Sequence[Any]]) -> list[T]:
    """Call once per rank with that rank's argument of each list, in a simulated ranks, as many ranks."""
    count = listed(arguments)
    warn_once(SIMULATED)

    def main() -> T:
        me = require().backend.rank
        return call(*[a[me] for a in arguments])

    return simulated(main, count)


def group(ranks: Sequence[int] | None = None, *, axes: Mapping[str, int] | None = None) -> Any:
    """Some of the ranks, to be passed to operators as `group=`: a process group on GPUs.

    Collective over these ranks; the others need not call it. A rank that is in several groups makes them in the same
    order as the other ranks of each.

    Args:
        ranks: their numbers, in any order; None: all. In a call with this group they are numbered from 0, the lowest first.
        axes: the axes that they are laid out along, as of `launch`, for operators that have such axes.

    Raises:
        TilelinkError: TL454, that is no list of ranks, each once; TL455, this rank is not among them; TL457, these are no axes.
    """
    count = require().backend.ranks
    members = list(ranks) if isinstance(ranks, Iterable) else []
    known = bool(members) and all(is_whole(r) and 0 <= r < count for r in members)
    if ranks is not None and (not known or len(set(members)) < len(members)):
        raise TilelinkError(
            "TL454",
            f"{ranks!r} is no list of ranks",
            why=f"a group is some of the {count} ranks here, each of them once",
            hint=f"name numbers from 0 to {count - 1}: tilelink.group([0, 1])",
        )
    found = None if ranks is None else require().backend.among(sorted(members))
    if axes is not None:
        return grid_of(axes, found)
    return require().backend.among(range(count)) if found is None else found


def rank(group: Any = None) -> int:
    """This process's or simulated rank; in a group, its number there."""
    return require().of(group).backend.rank


def ranks(group: Any = None) -> int:
    """The number of ranks, of a group if one is given."""
    return require().of(group).backend.ranks


def check() -> None:
    """Wait for this rank's work, then raise what the watchdog or debug mode has found in it.

    The next call of an operator raises it too; this is for the end of a program, and for places where results are used.

    Raises:
        TilelinkError: TL470 a wait took too long, TL471 on another rank, TL472 a rank has ended, TL473 a condition does
            not hold, TL451 there is no rank here.
    """
    require().check()


def empty(*shape: int | Sequence[int], dtype: torch.dtype = torch.bfloat16, group: Any = None) -> torch.Tensor:
    """Memory for an argument that peers read: operators take it in place instead of copying it to a slot first.

    Collective: every rank asks for the same shape, in the same order. A call that reads it in place ends when all
    peers have read it. It is freed with the process (in the simulated backend: with the run).

    Args:
        shape: elements per axis, one by one or as one sequence.
        dtype: of the elements.
        group: the ranks whose operators read it in place; None for all.

    Raises:
        TilelinkError: TL465, that is no shape, or no dtype that operators take.
    """
    sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not all(is_whole(n) and n >= 0 for n in sizes) or math.prod(sizes) >= 1 << 63:
        raise TilelinkError(
            "TL465",
            f"`empty` cannot make a tensor of shape {list(sizes)}",
            why="a shape is whole numbers, 0 or more",
            hint="write for example tilelink.empty(4096, 1024)",
        )
    if dtype not in NAMES:
        raise TilelinkError(
            "TL465",
            f"`empty` cannot make a tensor of {dtype}",
            why=f"operators take {', '.join(str(known).removeprefix('torch.') for known in NAMES)}",
            hint="take torch.uint8 for truth values" if dtype == torch.bool else "pass one of these, as dtype=torch.…",
        )
    return require().of(group).empty(tuple(sizes), dtype)


LIBRARY = "torch.distributed"


@contextmanager
def without_processes() -> Iterator[None]:
    """What torch.distributed raises for want of a process group becomes TL458; all else goes through."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        asking, raising = None, ""
        for frame, line in traceback.walk_tb(error.__traceback__):
            raising = str(frame.f_globals.get("__name__", ""))
            if not raising.startswith("torch."):
                asking = whole_line(frame.f_code.co_filename, line)
        if asking is None or not f"{raising}.".startswith(f"{LIBRARY}.") or dist.is_initialized():
            raise
        raise TilelinkError(
            "TL458",
            f"{LIBRARY} has no process group here: {error}",
            loc=asking,  # the line that called torch
            why="simulated ranks are threads of one process: meshes, process groups and its collectives are for torchrun",
            hint='name ranks by tilelink.group([0, 1]), axes by tilelink.group(axes={"DP": 2, "TP": 2}), and call tilelink.ops',
        ) from error
