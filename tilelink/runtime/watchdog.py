"""Hangs and broken conditions: what kernels report, and what a session does about it before and after each call."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tilelink.device import watch as device
from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.kernel import Checks
from tilelink.runtime.backend import Backend
from tilelink.runtime.cache import Recent
from tilelink.runtime.refusals import Stated, compare_meetings, compare_stated, reported

if TYPE_CHECKING:
    from tilelink.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Process:
    """A process as other processes of its host know it: `space` is what process numbers count in, `started` tells it
    from a later one with the same number."""

    space: str
    pid: int
    started: str


def this_process() -> Process:
    pid = os.getpid()
    return Process(_space(), pid, _state(pid)[1])


def ended(process: Process) -> bool | None:
    """Whether a process has ended, waited for by its parent or not; None if it cannot be seen from here."""
    if process.space != _space() or not process.started:
        return None
    state, started = _state(process.pid)
    return state in ("", "Z", "X") or started != process.started


def _space() -> str:
    """The namespace of process numbers; two hosts hardly ever share one's number and a process's start."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, str]:
    """State and start of a process, by /proc; empty if there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    # The name before it is in parentheses, and may hold any.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]


# ---------------------------------------------------------------------------------------------------------------------
# A thread beside a rank's program. Kernels are ended by the guard's stop flag, streams that wait for a doorbell by ringing it.
# The program gets the error from the next call of an operator. If it makes none, because it waits for a rank that will never
# come, the process ends with `STATUS` as soon as the time limit has passed once more.

STATUS = 70
"""Exit status of a process that its watcher has ended."""


@dataclass(eq=False)
class StoreWatcher:
    """Tells the other ranks what a guard reports, hears what they report, sees when one of them has ended, and ends this process
    when its program does not take the error.

    Args:
        guard: this rank's.
        ranks: how many there are.
        peers: the processes of the other ranks that can be seen from here, until they end.
        board: where ranks leave word; None if there is no other rank.
        release: lets go on what waits for something else than a kernel; called again and again.
        leave: ends the process.
    """

    guard: Guard
    ranks: int
    peers: dict[int, Process]
    board: dist.Store | None  # pyright: ignore[reportPrivateImportUsage]
    release: Callable[[], None]
    leave: Callable[[int], None] = os._exit

    def __post_init__(self) -> None:
        assert self.guard.seconds is not None
        self.patience = max(self.guard.seconds, 1.0)
        self._period = min(0.2, self.guard.seconds / 4)
        self._told = self._dead = False
        self._deadline = 0.0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tilelink-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        atexit.register(self.close)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        atexit.unregister(self.close)

    def close(self) -> None:
        """The process ends: say that this rank leaves by itself; with a status, if an error was not heard by then."""
        self._over.set()
        self._thread.join()
        if self.guard.failed and (self._dead or not self.guard.taken):
            self._end()
        self._ask("set", "left", self.guard.rank, "")

    def reset(self) -> None:
        """All ranks start afresh, and have come to this point before any guard is reset."""
        with self._lock:
            self._ask("delete_key", "failed", self.guard.rank)

    # --------------------------------------------------------------------------------------------------------- the thread
    def _run(self) -> None:
        while not self._over.wait(self._period):
            self.look()

    def look(self) -> None:
        """Once: hear, see, tell, and end the process if it is time."""
        with self._lock:
            self._see()
            if not self.guard.failed:
                self._told = False
                self._hear()
            if not self.guard.failed:
                return
            if not self._told:
                self._deadline = time.monotonic() + self.patience
                if not self.guard.reported:
                    time.sleep(self._period)  # its own kernels may have something to say
                self._say()
            if self._dead or not self.guard.taken:
                # What is enqueued already runs to its end, however much of it there is.
                self.release()
                if time.monotonic() > self._deadline:
                    self._end()

    def _hear(self) -> None:
        for rank in range(self.ranks):
            if rank != self.guard.rank and self._ask("check", "failed", rank):
                text = self._ask("get", "failed", rank)
                if isinstance(text, bytes):
                    self.guard.stop(reported(rank, text.decode()))
                return

    def _see(self) -> None:
        for rank, process in list(self.peers.items()):
            if not ended(process):
                continue
            del self.peers[rank]
            left = self._ask("check", "left", rank)
            error = TilelinkError(
                "TL472",
                f"rank {rank} (process {process.pid}) has ended" + ("" if left is True else " without a word"),
                why="nobody can finish a call with a rank that is gone",
                hint="see why it ended: its output, the kernel's log (out of memory), the scheduler's log",
            )
            if left is False:
                self._dead = True
                self.guard.stop(error)
            else:
                # It may be through with its program, as others will be: no reason to end what goes on without it.
                self.guard.missing = self.guard.missing or error

    def _say(self) -> None:
        self._told = True
        error = self.guard.error()
        assert error is not None
        print(f"\n{error}", file=sys.stderr, flush=True)
        self._ask("set", "failed", self.guard.rank, error.message)

    def _end(self) -> None:
        if not self._told:
            self._say()
        why = "another rank is gone" if self._dead else "its program has not taken the error"
        print(f"tilelink: rank {self.guard.rank} ends with status {STATUS}: {why}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        self.leave(STATUS)

    # ----------------------------------------------------------------------------------------------------------- the board
    def _ask(self, method: str, what: str, rank: int, *given: object) -> object:
        """What a method of the board does with word `what` of a rank; None when there is no board any more: whoever kept it has
        ended."""
        if self.board is None:
            return None
        key = f"tilelink/watchdog/{what}/{rank}"
        try:
            return getattr(self.board, method)([key] if method == "check" else key, *given)
        except (dist.DistError, RuntimeError):
            self.board = None
            return None


# ---------------------------------------------------------------------------------------------------------------------
# A rank's guard: where its kernels report waits that took too long and conditions that do not hold.
#
# Layout of the memory, and what kernels do with it: `tilelink.device.watch`. The first report becomes one error, which is
# raised once, by whatever the rank does next; afterwards nothing runs until all ranks have started afresh.

FOREVER = 1 << 62
"""Nanoseconds: the limit of waits when only conditions are checked."""

_FIRST = device.FIRST.value


@dataclass(frozen=True, slots=True)
class Entry:
    """One report of a kernel. `kind`: `late` or `false`; `tile`: position in the step's order, -1: none."""

    kind: str
    source: int
    site: int
    tile: int
    index: int
    expected: int
    seen: int
    worker: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """An entry in words. `silent`: the ranks that have not signalled; `step`: tile program, or what else has waited."""

    text: str
    step: str
    loc: Loc | None
    silent: tuple[int, ...] = ()


Describe = Callable[[Entry], Finding]

WATCHES_KEPT = 1024
"""Kinds of calls whose reports can be put in words: more than are kept prepared."""


class Guard:
    """One rank's reports: those of the kernels of `backend`. `seconds`: how long a wait may take; None if only conditions are
    checked."""

    def __init__(self, backend: Backend, seconds: float | None) -> None:
        self.rank = backend.rank
        self.seconds = seconds
        self._backend = backend
        self._lock = threading.Lock()
        self._describe = Recent[Describe](WATCHES_KEPT)
        self._watched = 0
        self._outside: TilelinkError | None = None
        self.missing: TilelinkError | None = None
        """That a rank is no longer there, which matters as soon as it is needed."""
        self.taken = False
        """Whether the error has been raised."""
        self.memory = backend.shared_words(device.WORDS, on_host=True)
        self._guard = backend.shared_words(device.GUARD, on_host=False)
        # The host polls: numpy reads a flag ten times as fast as torch.
        self._seen = self.memory.numpy()
        self.reset()

    def watch(self, describe: Describe) -> torch.Tensor:
        """What kernels take as `watch_at` in calls of one kind; `describe` puts their entries in words."""
        made = self._backend.zeros(2, torch.int64)
        made.copy_(torch.tensor([self._watched, self._guard.data_ptr()], device="cpu"))
        self._describe[self._watched] = describe
        self._watched += 1
        return made

    # -------------------------------------------------------------------------------------------------------- what is found
    @property
    def calm(self) -> bool:
        """Whether nothing is wrong and nobody is missing: all that most calls ask, so it reads one flag and two fields."""
        return not self._seen[_FIRST] and self._outside is None and self.missing is None

    @property
    def reported(self) -> bool:
        """Whether a kernel has made a report."""
        return bool(self._seen[_FIRST])

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, raised already or not."""
        return self.reported or self._outside is not None

    def entries(self) -> list[Entry]:
        """All reports, the first of them first."""
        rows = self._seen[_FIRST:].reshape(-1, device.LENGTH.value).tolist()
        kinds = {device.LATE.value: "late", device.FALSE.value: "false"}
        return [Entry(kinds[row[0]], *row[1:8], seconds=row[8] / 1e9) for row in rows if row[0] in kinds]

    def error(self) -> TilelinkError | None:
        """What has been found, as one error; None if all is well."""
        entries, rank = self.entries(), self.rank
        if not entries:
            return self._outside
        findings = list(dict.fromkeys((self._describe.get(e.source) or _forgotten)(e) for e in entries))
        if entries[0].kind == "false":
            first, *others = findings
            return TilelinkError(
                "TL473",
                f"on rank {rank}, `{first.step}`: {first.text}",
                loc=first.loc,
                why="debug mode checks on the device what a plan takes for granted",
                hint="look at the table or the expression that gives this value; results of this call are void",
                notes=tuple(Note(f"rank {rank}, {f.step}: {f.text}", f.loc) for f in others),
            )
        # What waits for another rank says more than what waits for that.
        first, *others = sorted(findings, key=lambda f: set(f.silent) <= {rank})
        silent = sorted({r for f in findings for r in f.silent if r != rank} or {rank})
        notes = [Note(f"rank {rank}, {f.step}: {f.text}") for f in others]
        if self._outside is not None:
            notes.append(Note(self._outside.message, self._outside.loc))
        said = ", ".join(map(str, silent))
        return TilelinkError(
            "TL470",
            f"rank {rank} gave up waiting in `{first.step}` after {entries[0].seconds:.1f} s: {first.text}",
            loc=first.loc,
            why=f"ranks {said} have not signalled" if len(silent) > 1 else f"rank {said} has not signalled",
            hint="look at what those ranks do (their reports, a rank that makes other calls); results of this call are void",
            notes=tuple(notes),
        )

    def check(self) -> None:
        """Raise what has been found, once. Raises TL470 a wait took too long, here or (TL471) on another rank, TL472 a rank
        has ended, TL473 a condition does not hold."""
        if self.failed and not self.taken:
            with self._lock:
                error = self.error()
                self.taken = True
            assert error is not None
            raise error

    # ------------------------------------------------------------------------------------------------------- what is done
    def stop(self, error: TilelinkError) -> None:
        """End this rank's waits for a reason that its kernels do not know; called by another thread."""
        with self._lock:
            self._outside = self._outside or error
            self._seen[device.STOP.value] = 1

    def reset(self) -> None:
        """Start afresh; no kernel of this rank is running."""
        limit = FOREVER if self.seconds is None else int(self.seconds * 1e9)
        with self._lock:
            self.memory.zero_()
            self._outside, self.taken = None, False
            self._guard.copy_(torch.tensor([limit, 0, 0, self.memory.data_ptr()], device="cpu"))
            self._backend.limit_waits(self.seconds)


def _forgotten(entry: Entry) -> Finding:
    """Of a call so long ago that what it was made with has been dropped."""
    return Finding(f"worker {entry.worker}: seen {entry.seen}, expected {entry.expected}", "a call of long ago", None)


# ---------------------------------------------------------------------------------------------------------------------
# What a session does about hangs and, in debug mode, about calls that do not fit together: before and after each call.
#
# Off, it does nothing. What happens while calls run, a `StoreWatcher` says.

_AFRESH = "starts afresh"
_CALLS = "calls an operator"
AGREED_KEPT = 16384
"""Kinds of calls that ranks remember to have agreed on. All forget them in the same call, since all agree on the same ones."""


class Vigil:
    """One rank's part. `watchdog`: seconds that a wait of a kernel may take; None: for ever. `debug`: whether calls are compared
    between the ranks, checked on the device, and waited for. `checks`: what kernels look after beside their work."""

    def __init__(self, session: Session, watchdog: float | None, debug: bool) -> None:
        self.watchdog = watchdog
        self.debug = debug
        self.checks = Checks(watchdog is not None, debug)
        self.guard = Guard(session.backend, watchdog) if watchdog is not None or debug else None
        self._session = session
        self._backend = session.backend
        self._agreed: set[object] = set()
        self._watcher: StoreWatcher | None = None
        if self.guard is not None and watchdog is not None:
            self._watcher = self._backend.watch_over(self.guard, session.doorbells)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()

    def begin(self) -> None:
        """Before a call: raise what was found in an earlier one. Once that has been raised, start afresh: collective. Raises
        those of `Guard.check`; TL472, some rank is no longer there."""
        if self.guard is None or self.guard.calm:
            return
        self.guard.check()
        if self.guard.missing is not None:
            raise self.guard.missing
        if self.guard.failed:
            self._start_afresh(self.guard)

    def compare(self, operator: object, call: Stated | TilelinkError) -> None:
        """All ranks make the same call: looked at before the first of its kind, and in debug mode before each.

        A kind is what all ranks state alike, so all of them meet here or none does. What only one rank may have, such as the
        alignment of its arguments, makes no other kind. Raises TL452, TL459 they do not, TL471 another rank cannot; `call`
        itself.

        Args:
            operator: whose call it is.
            call: which, or why this rank cannot make it: only in debug mode the others hear of that.
        """
        if isinstance(call, TilelinkError):
            if self.debug and not self._backend.capturing():
                self.agree(_CALLS, call.message)
            raise call
        kind = operator, call.shared
        if kind in self._agreed and (not self.debug or self._backend.capturing()):
            return
        said = self.agree(_CALLS, call)
        wrong = next((rank for rank, each in enumerate(said) if not isinstance(each, Stated)), None)
        if wrong is not None:
            raise reported(wrong, said[wrong])
        compare_stated(said)
        if len(self._agreed) >= AGREED_KEPT:
            # What is kept differs from rank to rank, and no rank may come here without the others.
            self._session.unprepare()
            self._agreed.clear()
        self._agreed.add(kind)

    def end(self) -> None:
        """After a call: raise what has been found by now; in debug mode wait for the call, so that it raises its own. Raises
        those of `Guard.check`, in debug mode on every rank."""
        if self.guard is None:
            return
        if not self.debug or self._backend.capturing():
            if not self.guard.calm:
                self.guard.check()
            return
        self._backend.drain()
        found = self.guard.error()
        said = self.agree("has made its call", None if found is None else (found.code, found.message))
        wrong = next((rank for rank, each in enumerate(said) if each is not None), None)
        if wrong is None:
            return
        error = reported(wrong, said[wrong][1])
        if all(each is None or each[0] == "TL473" for each in said):
            # Every kernel has run to its end and every rank knows: nothing has to be undone.
            self.guard.reset()
            raise found or error
        self.guard.stop(error)
        self.guard.check()

    def check(self) -> None:
        """Raise what has been found by now: what `Guard.check` does."""
        if self.guard is not None:
            self.guard.check()

    def agree(self, what: str, value: Any) -> list[Any]:
        """`backend.agree`, where some rank may start afresh meanwhile. `what`: this rank does, as others are to hear of it.
        Raises TL471, another starts afresh; TL452, it does something else."""
        said = self._backend.agree((what, value))
        does = [_does(each) for each in said]
        if self.guard is not None and _AFRESH in does:
            failed = does.index(_AFRESH)
            self.guard.stop(reported(failed, said[failed][1]))
            self.guard.check()
        compare_meetings(does)
        return [each for _, each in said]

    def _start_afresh(self, guard: Guard) -> None:
        """Collective, after an error that every rank has seen: flags and slots are as before the first call."""
        error = guard.error()
        mine = _AFRESH, error.message if error is not None else ""
        # A rank that was about to allocate learns of the error by this, and comes again.
        while not all(_does(said) == _AFRESH for said in self._backend.agree(mine)):
            pass
        if self._watcher is not None:
            self._watcher.reset()
        self._backend.barrier()
        self._session.forget()
        guard.reset()


def _does(said: Any) -> str:
    """What a rank says that it does; the user's own programs may meet in other ways."""
    known = isinstance(said, tuple) and len(said) == 2 and isinstance(said[0], str)  # pyright: ignore[reportUnknownArgumentType]
    return said[0] if known else "does something else"  # pyright: ignore[reportUnknownVariableType]
