"""A thread beside a rank's program, which watches over it and over the processes of the other ranks."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.runtime.refusals import reported

if TYPE_CHECKING:
    from tilelink.runtime.watchdog import Guard

# ---------------------------------------------------------------------------------------------------------------------
# Which processes of this host are alive.


@dataclass(frozen=True, slots=True)
class Process:
    """A process as other processes of its host know it: `space` is what process numbers count in, `started` tells it
    from a later one with the same number."""

    space: str
    pid: int
    started: str


def this_process() -> Process:
    """This one."""
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
# A thread beside a rank's program: tells the other ranks what its guard reports, hears what they report, sees when one
# of them has ended, and ends this process when its program does not take the error.
#
# Kernels are ended by the guard's stop flag, streams that wait for a doorbell by ringing it. The program gets the error from
# the next call of an operator. If it makes none, because it waits for a rank that will never come, the process ends with
# `STATUS` as soon as the time limit has passed once more.

STATUS = 70
"""Exit status of a process that its watcher has ended."""


class StoreWatcher:
    """A thread that carries reports between ranks, and ends the process of a rank that cannot go on.

    Args:
        guard: this rank's.
        ranks: how many there are.
        peers: the processes of the other ranks that can be seen from here.
        board: where ranks leave word; None if there is no other rank.
        release: lets go on what waits for something else than a kernel; called again and again.
        leave: ends the process.
    """

    def __init__(
        self,
        guard: Guard,
        ranks: int,
        peers: Mapping[int, Process],
        board: dist.Store | None,  # pyright: ignore[reportPrivateImportUsage]
        release: Callable[[], None],
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        assert guard.seconds is not None
        self._guard = guard
        self._ranks = ranks
        self.peers = dict(peers)
        self.board = board
        self._release = release
        self._leave = leave
        self.patience = max(guard.seconds, 1.0)
        self._period = min(0.2, guard.seconds / 4)
        self._told = False
        self._dead = False
        self._deadline = 0.0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tilelink-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        atexit.register(self.close)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()
        atexit.unregister(self.close)

    def close(self) -> None:
        """The process ends: say that this rank leaves by itself; with a status, if an error was not heard by then."""
        self._over.set()
        self._thread.join()
        if self._guard.failed and (self._dead or not self._guard.taken):
            self._end()
        self._tell("left", "")

    def reset(self) -> None:
        """All ranks start afresh, and have come to this point before any guard is reset."""
        with self._lock:
            self._ask(lambda board: board.delete_key(self._key("failed", self._guard.rank)))

    # --------------------------------------------------------------------------------------------------------- the thread
    def _run(self) -> None:
        while not self._over.wait(self._period):
            self.look()

    def look(self) -> None:
        """Once: hear, see, tell, and end the process if it is time."""
        with self._lock:
            self._see()
            if not self._guard.failed:
                self._told = False
                self._hear()
            if self._guard.failed:
                self._act()

    def _act(self) -> None:
        guard = self._guard
        if not self._told:
            self._deadline = time.monotonic() + self.patience
            if not guard.reported:
                time.sleep(self._period)  # its own kernels may have something to say
            self._say()
        if self._dead or not guard.taken:
            # What is enqueued already runs to its end, however much of it there is.
            self._release()
            if time.monotonic() > self._deadline:
                self._end()

    def _hear(self) -> None:
        for rank in range(self._ranks):
            if rank != self._guard.rank and self._ask(lambda board, r=rank: board.check([self._key("failed", r)])):
                text = self._ask(lambda board, r=rank: board.get(self._key("failed", r)))
                if isinstance(text, bytes):
                    self._guard.stop(reported(rank, text.decode()))
                return

    def _see(self) -> None:
        for rank, process in list(self.peers.items()):
            if not ended(process):
                continue
            del self.peers[rank]
            left = self._ask(lambda board, r=rank: board.check([self._key("left", r)]))
            error = _ended(rank, process, by_itself=left is True)
            if left is False:
                self._dead = True
                self._guard.stop(error)
            else:
                # It may be through with its program, as others will be: no reason to end what goes on without it.
                self._guard.miss(error)

    def _say(self) -> None:
        self._told = True
        error = self._guard.error()
        assert error is not None
        print(f"\n{error}", file=sys.stderr, flush=True)
        self._tell("failed", error.message)

    def _end(self) -> None:
        if not self._told:
            self._say()
        why = "another rank is gone" if self._dead else "its program has not taken the error"
        print(f"tilelink: rank {self._guard.rank} ends with status {STATUS}: {why}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        self._leave(STATUS)

    # ----------------------------------------------------------------------------------------------------------- the board
    def _key(self, what: str, rank: int) -> str:
        return f"tilelink/watchdog/{what}/{rank}"

    def _tell(self, what: str, text: str) -> None:
        self._ask(lambda board: board.set(self._key(what, self._guard.rank), text))

    def _ask(self, question: Callable[[Any], object]) -> object:
        """The answer; None when there is no board any more: whoever kept it has ended."""
        if self.board is None:
            return None
        try:
            return question(self.board)
        except (dist.DistError, RuntimeError):
            self.board = None
            return None


def _ended(rank: int, process: Process, *, by_itself: bool) -> TilelinkError:
    return TilelinkError(
        "TL472",
        f"rank {rank} (process {process.pid}) has ended" + ("" if by_itself else " without a word"),
        why="nobody can finish a call with a rank that is gone",
        hint="see why it ended: its output, the kernel's log (out of memory), the scheduler's log",
    )
