"""Tables of measured schedules: the one that the package ships, and a cache on this machine's disk."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

from tilelink.errors import TilelinkError
from tilelink.ir.schedule import Schedule
from tilelink.runtime import cache
from tilelink.tuning.records import form_of, made, object_of, record_of, taken

Sizes = tuple[tuple[str, int], ...]
FAR = 2.0
"""Octaves, summed over all sizes, beyond which a measured schedule says nothing about a call."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a schedule was measured for. `gpu` is the device's name, `backend` that of the ranks' memory."""

    operator: str
    signature: str
    gpu: str
    backend: str
    ranks: int
    dtypes: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]

    @property
    def bucket(self) -> tuple[tuple[str, int], ...]:
        """Sizes in quarters of an octave: those of one bucket share a schedule."""
        return tuple((name, round(4 * math.log2(max(size, 1)))) for name, size in self.sizes)

    def comparable(self, other: Problem) -> bool:
        """Equal in all but sizes."""
        return replace(self, sizes=other.sizes) == other and [n for n, _ in self.sizes] == [n for n, _ in other.sizes]

    def alike(self, other: Problem) -> bool:
        """Of one bucket."""
        return self.comparable(other) and self.bucket == other.bucket


@dataclass(frozen=True, slots=True)
class Entry:
    """A measured schedule. `measured`: when and with what, in words; `ms_unfused`: of the unfused form, if measured."""

    problem: Problem
    schedule: Schedule
    ms: float
    ms_unfused: float | None
    measured: str

    @property
    def won(self) -> str:
        """Which form: `unfused`, `library` or `Triton`."""
        return form_of(self.schedule)

    def record(self) -> dict[str, Any] | None:
        found = record_of(self)
        return None if found is None else found | {"won": self.won}

    @staticmethod
    def of(record: Any) -> Entry:
        """
        Raises:
            ValueError: the record is none of this version's.
        """
        given = dict(object_of(record, Entry.__name__))
        won = given.pop("won", None)
        found = made(Entry, given)
        if won != found.won:
            raise ValueError(f"it says that {won!r} won, and has a schedule of {found.won!r}")
        return found


def octaves(one: Sizes, other: Sizes) -> float:
    """How far two shapes are apart, summed over all sizes."""
    return sum(abs(math.log2(max(a, 1)) - math.log2(max(b, 1))) for (_, a), (_, b) in zip(one, other, strict=True))


def nearest(entries: Sequence[Entry], problem: Problem) -> Entry | None:
    """The entry for the problem's bucket, else the nearest that is not `FAR`: the first of those that are equally near."""
    known = [e for e in entries if e.problem.comparable(problem)]
    same = [e for e in known if e.problem.bucket == problem.bucket]
    best = min(same or known, key=lambda e: octaves(e.problem.sizes, problem.sizes), default=None)
    return best if best is not None and (same or octaves(best.problem.sizes, problem.sizes) <= FAR) else None


@functools.cache
def shipped() -> tuple[Entry, ...]:
    """What came with the package: measured on the GPUs that the entries name."""
    text = resources.files("tilelink.tuning").joinpath("shipped.json").read_text()
    return tuple(taken(text, _entries))


MOST = 1 << 16
"""Bytes of a file of the cache."""


@dataclass(frozen=True, slots=True)
class DiskCache:
    """One file per problem's bucket and versions, in the directory `tuned` of the cache. `versions`: of all that a time
    depends on."""

    versions: str

    def load(self, problem: Problem) -> Entry | None:
        """The entry of the problem's bucket; None where there is none.

        Raises:
            TilelinkError: TL402, TL403, TL407 where the cache is not this user's alone, TL509 the file is damaged.
        """
        path = self.path(problem)
        text = cache.read(path, MOST)
        if text is None:
            return None
        try:
            found = taken(text, _opened)
            if not found.problem.alike(problem):
                raise ValueError("it was measured for something else")
        except ValueError as error:
            raise cache.untrue(path, problem.operator, str(error)) from error
        return found

    def save(self, entry: Entry) -> Path | None:
        """Where it was written; None where it is no data.

        Raises:
            TilelinkError: TL402, TL403.
        """
        record = entry.record()
        if record is None:
            return None
        path = self.path(entry.problem)
        with cache.writing(path):
            cache.replace(path, json.dumps({"entry": record, "digest": _digest(record)}, indent=1) + "\n")
        return path

    def path(self, problem: Problem) -> Path:
        """Where the entry of the problem's bucket lies, or would.

        Raises:
            TilelinkError: TL402, TL403.
        """
        bucket = [self.versions, problem.operator, problem.signature, problem.gpu, problem.backend, problem.ranks]
        key = [*bucket, problem.dtypes, problem.bucket]
        name = re.sub(r"\W", "_", problem.operator.partition(" ")[0])
        return cache.directory("tuned") / f"{name}-{_digest(key)[:16]}.json"


def _opened(kept: Any) -> Entry:
    """What such a file holds: an entry, and the digest of its record."""
    given = object_of(kept, "file")
    if set(given) != {"entry", "digest"} or given["digest"] != _digest(given["entry"]):
        raise ValueError("it has no digest, or another than that of what it holds")
    return Entry.of(given["entry"])


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> list[Entry]:
    """The entries of a file in the form of the shipped one.

    Raises:
        TilelinkError: TL461, it is none.
    """
    try:
        return taken(path.read_text(), _entries)
    except (OSError, ValueError) as error:
        raise TilelinkError(
            "TL461",
            f"`{path}` holds no table of schedules: {error}",
            hint="pass a file that `tilelink tune --table` has written",
        ) from error


def _entries(table: Any) -> list[Entry]:
    records = object_of(table, "table").get("entries")
    if not isinstance(records, list):
        raise ValueError("it has no list of entries")
    return [Entry.of(r) for r in cast("list[Any]", records)]


def merge(path: Path, entries: Sequence[Entry]) -> Path:
    """Put entries into such a file, in place of those of the same bucket; the file is made if need be."""
    known = read(path) if path.is_file() else []
    kept = [k for k in known if not any(k.problem.alike(e.problem) for e in entries)]
    records = [r for e in (*kept, *entries) if (r := e.record()) is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"entries": records}, indent=1) + "\n")
    return path
