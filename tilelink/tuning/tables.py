"""Tables of measured schedules: the one that the package ships, and a cache on this machine's disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from filelock import FileLock

from tilelink.errors import TilelinkError
from tilelink.ir.schedule import Schedule
from tilelink.tuning.records import form_of, record_of, schedule_of

FAR = 2.0
"""Octaves, summed over all sizes, beyond which a measured schedule says nothing about a call; where a model knows better,
it says something about its own bucket only."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a schedule was measured for. `gpu` is the device's name, `world` that of the ranks' memory."""

    operator: str
    signature: str
    gpu: str
    world: str
    ranks: int
    dtypes: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]

    @property
    def bucket(self) -> tuple[tuple[str, int], ...]:
        """Sizes in quarters of an octave: those of one bucket share a schedule."""
        return tuple((name, round(4 * math.log2(max(size, 1)))) for name, size in self.sizes)

    def comparable(self, other: Problem) -> bool:
        """Equal in all but sizes."""
        mine = (self.operator, self.signature, self.gpu, self.world, self.ranks, self.dtypes)
        theirs = (other.operator, other.signature, other.gpu, other.world, other.ranks, other.dtypes)
        return mine == theirs and [n for n, _ in self.sizes] == [n for n, _ in other.sizes]

    def alike(self, other: Problem) -> bool:
        """Of one bucket."""
        return self.comparable(other) and self.bucket == other.bucket

    def distance(self, other: Problem) -> float:
        """Octaves, summed over all sizes."""
        pairs = zip(self.sizes, other.sizes, strict=True)
        return sum(abs(math.log2(max(a, 1)) - math.log2(max(b, 1))) for (_, a), (_, b) in pairs)


@dataclass(frozen=True, slots=True)
class Entry:
    """A measured schedule. `measured`: when and with what, in words; `ms_sequential`: of the plain form, if measured."""

    problem: Problem
    schedule: Schedule
    ms: float
    ms_sequential: float | None
    measured: str

    @property
    def won(self) -> str:
        """Which form: `sequential`, `library` or `Triton`."""
        return form_of(self.schedule)

    def record(self) -> dict[str, Any] | None:
        schedule = record_of(self.schedule)
        if schedule is None:
            return None
        problem = asdict(self.problem) | {"sizes": dict(self.problem.sizes), "dtypes": list(self.problem.dtypes)}
        times: dict[str, Any] = {"won": self.won}
        times |= {"ms": self.ms, "ms_sequential": self.ms_sequential, "measured": self.measured}
        return {"problem": problem, "schedule": schedule, **times}

    @staticmethod
    def of(record: Mapping[str, Any]) -> Entry:
        p: dict[str, Any] = dict(record["problem"])
        p |= {"dtypes": tuple(p["dtypes"]), "sizes": tuple(p["sizes"].items())}
        problem = Problem(**p)
        schedule = schedule_of(record["schedule"])
        return Entry(problem, schedule, record["ms"], record["ms_sequential"], record["measured"])


def nearest(entries: Sequence[Entry], problem: Problem, far: float = FAR) -> Entry | None:
    """The entry for the problem's bucket, else the nearest within `far` octaves: the first of those that are equally near."""
    known = [e for e in entries if e.problem.comparable(problem)]
    same = [e for e in known if e.problem.bucket == problem.bucket]
    best = min(same or known, key=lambda e: e.problem.distance(problem), default=None)
    return best if best is not None and (same or best.problem.distance(problem) <= far) else None


@cache
def shipped() -> tuple[Entry, ...]:
    """What came with the package: measured on the GPUs that the entries name."""
    text = resources.files("tilelink.tuning").joinpath("shipped.json").read_text()
    return tuple(Entry.of(r) for r in json.loads(text)["entries"])


@dataclass(frozen=True, slots=True)
class DiskCache:
    """One file per problem's bucket and versions. `versions`: of all that a time depends on."""

    directory: Path
    versions: str

    def load(self, problem: Problem) -> Entry | None:
        """The entry of the problem's bucket; None where there is none, or none that this version can read."""
        path = self._path(problem)
        if not path.is_file():
            return None
        try:
            found = Entry.of(json.loads(path.read_text()))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None  # of another version, or cut short: to be measured again
        return found if found.problem.alike(problem) else None

    def save(self, entry: Entry) -> Path | None:
        """Where it was written; None where it is no data, or nothing can be written."""
        record = entry.record()
        if record is None:
            return None
        path = self._path(entry.problem)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock"), timeout=60):
                temporary = path.with_suffix(".tmp")
                temporary.write_text(json.dumps(record, indent=1) + "\n")
                temporary.replace(path)
        except OSError:
            return None  # measured for nothing, but measured
        return path

    def _path(self, problem: Problem) -> Path:
        bucket = [self.versions, problem.operator, problem.signature, problem.gpu, problem.world, problem.ranks]
        key = json.dumps([*bucket, problem.dtypes, problem.bucket])
        return self.directory / f"{problem.operator.split()[0]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def read(path: Path) -> list[Entry]:
    """The entries of a file in the form of the shipped one.

    Raises:
        TilelinkError: TL461, it is none.
    """
    try:
        return [Entry.of(r) for r in json.loads(path.read_text())["entries"]]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise TilelinkError(
            "TL461",
            f"`{path}` holds no table of schedules: {error}",
            hint="pass a file that `tilelink tune --table` has written",
        ) from error


def merge(path: Path, entries: Sequence[Entry]) -> Path:
    """Put entries into such a file, in place of those of the same bucket; the file is made if need be."""
    known = read(path) if path.is_file() else []
    kept = [k for k in known if not any(k.problem.alike(e.problem) for e in entries)]
    records = [r for e in (*kept, *entries) if (r := e.record()) is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"entries": records}, indent=1) + "\n")
    return path
