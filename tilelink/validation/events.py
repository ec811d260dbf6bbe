"""What happens: as the emitted file does it, and as the lowered plan says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tilelink.errors import Loc
from tilelink.ir.lowered import Data

Kind: TypeAlias = Literal["await", "signal", "read", "write", "count", "drain", "fence", "mark"]
"""`count`: a tile is counted towards the last one, which signals for all; `drain`: bulk stores have ended; `fence`: what an await
has made readable is readable by bulk loads; `mark`: what calls keep to themselves is changed."""


@dataclass(frozen=True, slots=True)
class Where:
    """In the emitted file: the innermost function and its line. `path`, `tile`: the loop that it is in, and the position."""

    function: str = ""
    line: int = 0
    path: str = ""
    tile: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the emitted file has done. `at`: its number in the run. `name`, `rank`: the flags or the buffer, and whose;
    `slot`: of those that calls take in turn; `index`: the elements, as an array, or the flag. `value`: what an await expects,
    or what a flag is after a signal; `before`: before. `wide`: for the whole system, not for one GPU; `ordered`: it acquires,
    or releases. `how`: by threads, a bulk copy, words of the LL protocol, a doorbell, atomics."""

    at: int
    kind: Kind
    name: str
    rank: int
    slot: int | None
    index: Any
    where: Where
    value: int = 0
    before: int = 0
    wide: bool = True
    ordered: bool = True
    how: str = "threads"


@dataclass(frozen=True, slots=True)
class Said:
    """Something that the lowered plan says of a tile. `at`: its number there. `data`: what decides whether it happens, or
    how much of it. `amount`: of a signal; None: all arrivals, by the last of the tiles that are counted. `back`: of an await,
    so many calls ago. `doorbell`: a stream's. `edges`: of a read or write, from where to where along each axis; `extents`: of the
    buffer."""

    at: int
    kind: Kind
    name: str
    rank: int
    index: Any
    loc: Loc | None
    data: tuple[Data, ...] = ()
    amount: int | None = 1
    back: int = 0
    doorbell: bool = False
    edges: tuple[tuple[int, int], ...] = ()
    extents: tuple[int, ...] = ()
