"""A rank's guard: where its kernels report waits that took too long and conditions that do not hold.

Layout of the memory, and what kernels do with it: `tilelink.device.watch`. The first report becomes one error, which is
raised once, by whatever the rank does next; afterwards nothing runs until all ranks have started afresh.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tilelink.device import watch as device
from tilelink.errors import Loc, Note, TilelinkError
from tilelink.runtime.recent import Recent
from tilelink.runtime.world import World

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
    """One rank's reports.

    Args:
        world: whose kernels report here.
        seconds: how long a wait may take; None if only conditions are checked.
    """

    def __init__(self, world: World, seconds: float | None) -> None:
        self.rank = world.rank
        self.seconds = seconds
        self._world = world
        self._lock = threading.Lock()
        self._describe = Recent[Describe](WATCHES_KEPT)
        self._watches = Recent[torch.Tensor](WATCHES_KEPT)
        self._watched = 0
        self._outside: TilelinkError | None = None
        self._missing: TilelinkError | None = None
        self._taken = False
        self.memory = world.shared_words(device.WORDS, on_host=True)
        self._guard = world.shared_words(device.GUARD, on_host=False)
        # The host polls: numpy reads a word ten times as fast as torch.
        self._seen = self.memory.numpy()
        self._prepare()

    def watch(self, call: object, describe: Describe) -> torch.Tensor:
        """What kernels take as `watch_at` in calls of one emitted file with one set of sizes, `call`; `describe` puts their
        entries in words."""
        known = self._watches.get(call)
        if known is None:
            known = self._watches[call] = self._world.zeros(2, torch.int64)
            known.copy_(torch.tensor([self._watched, self._guard.data_ptr()]))
            self._describe[self._watched] = describe
            self._watched += 1
        return known

    # -------------------------------------------------------------------------------------------------------- what is found
    @property
    def calm(self) -> bool:
        """Whether nothing is wrong and nobody is missing: all that most calls ask, so it reads one word and two fields."""
        return not self._seen[_FIRST] and self._outside is None and self._missing is None

    @property
    def reported(self) -> bool:
        """Whether a kernel has made a report."""
        return bool(self._seen[_FIRST])

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, raised already or not."""
        return self.reported or self._outside is not None

    @property
    def taken(self) -> bool:
        """Whether the error has been raised."""
        return self._taken

    def entries(self) -> list[Entry]:
        """All reports, the first of them first."""
        first, length = device.FIRST.value, device.LENGTH.value
        rows = self._seen[first:].reshape(-1, length).tolist()
        kinds = {device.LATE.value: "late", device.FALSE.value: "false"}
        return [Entry(kinds[row[0]], *row[1:8], seconds=row[8] / 1e9) for row in rows if row[0] in kinds]

    def error(self) -> TilelinkError | None:
        """What has been found, as one error; None if all is well."""
        entries = self.entries()
        if not entries:
            return self._outside
        findings = [(self._describe.get(e.source) or _forgotten)(e) for e in entries]
        make = _false if entries[0].kind == "false" else _late
        return make(self.rank, entries, findings, self._outside)

    def check(self) -> None:
        """Raise what has been found, once.

        Raises:
            TilelinkError: TL470 a wait took too long, here or (TL471) on another rank, TL472 a rank has ended, TL473 a
                condition does not hold.
        """
        if self.failed and not self._taken:
            with self._lock:
                error = self.error()
                self._taken = True
            assert error is not None
            raise error

    # ------------------------------------------------------------------------------------------------------- what is done
    def stop(self, error: TilelinkError) -> None:
        """End this rank's waits for a reason that its kernels do not know; called by another thread."""
        with self._lock:
            self._outside = self._outside or error
            self._seen[device.STOP.value] = 1

    def miss(self, error: TilelinkError) -> None:
        """A rank is no longer there, which matters as soon as it is needed; called by another thread."""
        self._missing = self._missing or error

    def require_all(self) -> None:
        """Raise TL472 if some rank is no longer there."""
        if self._missing is not None:
            raise self._missing

    def reset(self) -> None:
        """Start afresh; no kernel of this rank is running."""
        with self._lock:
            self.memory.zero_()
            self._outside, self._taken = None, False
            self._prepare()

    def _prepare(self) -> None:
        limit = FOREVER if self.seconds is None else int(self.seconds * 1e9)
        self._guard.copy_(torch.tensor([limit, 0, 0, self.memory.data_ptr()]))
        self._world.limit_waits(self.seconds)


def _forgotten(entry: Entry) -> Finding:
    """Of a call so long ago that what it was made with has been dropped."""
    return Finding(f"worker {entry.worker}: seen {entry.seen}, expected {entry.expected}", "a call of long ago", None)


def _late(rank: int, entries: list[Entry], findings: list[Finding], outside: TilelinkError | None) -> TilelinkError:
    # What waits for another rank says more than what waits for that.
    ordered = sorted(dict.fromkeys(findings), key=lambda f: set(f.silent) <= {rank})
    first, silent = ordered[0], sorted({r for f in findings for r in f.silent if r != rank} or {rank})
    notes = [Note(f"rank {rank}, {f.step}: {f.text}") for f in ordered]
    if outside is not None:
        notes.append(Note(outside.message, outside.loc))
    return TilelinkError(
        "TL470",
        f"rank {rank} gave up waiting in `{first.step}` after {entries[0].seconds:.1f} s: {first.text}",
        loc=first.loc,
        why=f"{_ranks(silent)} has not signalled" if len(silent) == 1 else f"{_ranks(silent)} have not signalled",
        hint="look at what those ranks do (their reports, a rank that makes other calls); results of this call are void",
        notes=tuple(notes[1:]),
    )


def _false(rank: int, entries: list[Entry], findings: list[Finding], outside: TilelinkError | None) -> TilelinkError:
    del entries, outside
    first = findings[0]
    return TilelinkError(
        "TL473",
        f"on rank {rank}, `{first.step}`: {first.text}",
        loc=first.loc,
        why="debug mode checks on the device what a plan takes for granted",
        hint="look at the table or the expression that gives this value; results of this call are void",
        notes=tuple(Note(f"rank {rank}, {f.step}: {f.text}", f.loc) for f in dict.fromkeys(findings) if f != first),
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
