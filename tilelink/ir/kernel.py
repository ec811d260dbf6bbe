"""Emitted source and how to start it: codegen gives, runtime takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tilelink.errors import Loc
from tilelink.ir import Shown
from tilelink.ir.formula import Formula
from tilelink.ir.schedule import KernelOptions
from tilelink.ir.shape import RANK_AXIS

AWAIT_FLAG = "await_flag"
"""The kernel by which a stream waits for another rank: one block, which needs next to nothing of its SM."""

OF_EVERY_FILE = frozenset({"tl", "triton", "shmem", "blocks", "call_entry", "finish", "ready", "call_exit", AWAIT_FLAG})
"""Names in emitted files: imports and one-block kernels."""

OF_EVERY_FUNCTION = frozenset(
    {"worker", "workers", "rank", "RANKS", "t", "ctx", "epoch", "take_credits", "through_at"}
    | {"epoch_at", "heard_at", "last_at", "entered_at", "ready_at", "left_at", "flag_at", "value_at", "watch_at"}
)
"""Names in emitted functions: locals and parameters."""

PLANNED = re.compile(r"[ci]\d+|sorted_t|turned|part_top|group_top|group_rows|whole_parts|rest_tiles|part_turn")
"""Symbols of a plan's formulas, which are locals of emitted functions; `t`, `rank` and `RANKS` are the others."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What emitted kernels look after beside their work; nothing by default. `watchdog`: waits have a time limit. `debug`:
    positions in index vectors, tables and `tl.device_assert` are checked."""

    watchdog: bool = False
    debug: bool = False

    def __bool__(self) -> bool:
        return self.watchdog or self.debug

    def __str__(self) -> str:
        return " and ".join(word for word, on in (("watchdog", self.watchdog), ("debug mode", self.debug)) if on)


@dataclass(frozen=True, slots=True)
class Site:
    """A place of an emitted file that can make a report; its number is its position in `KernelSource.sites`. `path`: of the
    step, or the one-block kernel. `kind`: `channel` | `ready` | `entered` | `left` (a wait, for flags of channel or state
    `of`), `flags` (the same, by the LL protocol), `made` (a wait for a tile of the host of step `of`), `below` (a position,
    `of` what) | `holds` (a condition, `of` its text)."""

    path: str
    kind: str
    of: str
    loc: Loc | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do if Triton does not accept one of these lines of a user's file; `last` is one of them."""

    file: str
    first: int
    last: int
    hint: str


@dataclass(frozen=True, slots=True)
class Arg:
    """A kernel parameter and what to pass for it. `kind`: `flag` (one flag, given by a stream's wait as its `of`), `number`
    (the same, a number), `watch` (where reports go), `tensor` (this call's slot of buffer `of`), `ll` (the same, whose flags
    hold data and the number of a call), `descriptor` (the same as a TMA descriptor with `block`; `axes` gives the order of its
    axes; `parts`: an axis that is made two before, and the length of the second one), `flags` | `epoch_flags` | `expected` |
    `doorbells` | `counts` (of channel `of`), `made` | `work_indices` (of step `of`, which comes behind its host), `stage`
    (symmetric slot of a staged argument), `order` (int32 table of step `of`), `state` (`of`: epoch | heard | last | through |
    entered | ready | left), `context` (of the arena that holds `of`, for the ranks along axis `along`), `size` (`formula`),
    `stride` (axis `axis` of tensor `of`), `scalar` (run-time constant `of`: step path and name joined by a dot), `credits` (1:
    wait for them), `constant` (`value`), `trace` (int64 memory for the events of kernel `of`), `trace_tiles` (for how many
    tiles of each worker there is room)."""

    name: str
    kind: str
    of: str = ""
    formula: Formula | None = None
    axis: int | None = None
    block: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    parts: tuple[int, int] | None = None
    value: int | None = None
    along: str = RANK_AXIS


@dataclass(frozen=True, slots=True)
class KernelDecl:
    """`workers`: instances to start, all of which run at once (None: one per SM)."""

    name: str
    args: tuple[Arg, ...]
    workers: int | None
    tiles: Formula | None
    """Never more workers than this many tiles, plus `extra` (those of other roles)."""
    extra: int
    options: KernelOptions


@dataclass(frozen=True, slots=True)
class TraceSite:
    """Two slots of a traced tile, from `slot` on, of function `function`. `what`: `wait` (from when to when), `waits` (nothing,
    and how long all of a loop's waits took), `part` (from when to when the fused function `function` ran). `loc`: the line that
    waits or moves."""

    slot: int
    what: Literal["wait", "waits", "part"]
    function: str
    loc: Loc | None


@dataclass(frozen=True, slots=True)
class TraceRole:
    """Which workers of a traced kernel run `function`: `workers` of them (None: all that are left), in turn over `total`
    tiles (None: nobody knows how many). Slots 0 and 1 of each tile are its begin and its end. `turn`: how many functions the
    same workers run before it. `drawn`: whoever is free takes the next tile, so that one worker may take all of them."""

    function: str
    workers: int | None
    total: Formula | None
    sites: tuple[TraceSite, ...] = ()
    turn: int = 0
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class TraceLayout:
    """The memory of a traced kernel: per worker its multiprocessor, then `slots` flags for each tile; nanoseconds. Where
    workers run `turns` functions, the tiles of the second come behind those of the first."""

    kernel: str
    slots: int
    roles: tuple[TraceRole, ...]
    turns: int = 1


@dataclass(frozen=True, slots=True)
class KernelSource(Shown):
    """`lines`: emitted line -> the user's line it comes from. `functions`: emitted function -> the path of the step whose tiles
    it makes, or takes. `traces`: of the variant that writes down what it does."""

    name: str
    text: str
    kernels: tuple[KernelDecl, ...]
    lines: tuple[tuple[int, Loc], ...]
    functions: tuple[tuple[str, str], ...] = ()
    traces: tuple[TraceLayout, ...] = ()
    sites: tuple[Site, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def digest(self) -> str:
        """Stands for the text in names of files and modules."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def kernel(self, name: str) -> KernelDecl:
        return next(k for k in self.kernels if k.name == name)

    def location(self, line: int) -> Loc | None:
        """The user's line of an emitted one: that of the last line that has any."""
        found = [loc for at, loc in self.lines if at <= line]
        return found[-1] if found else None


class EmittedText(str, Shown):
    """The text of an emitted file, which a notebook shows beside the programs that it comes from."""

    def __new__(cls, source: KernelSource) -> EmittedText:
        made = super().__new__(cls, source.text)
        made.source = source
        return made

    source: KernelSource


def advised(advice: Sequence[Advice], loc: Loc | None) -> str | None:
    """What to do about a line of the user's, if anything is known: that of the innermost loop."""
    found = [a.hint for a in advice if loc is not None and a.file == loc.file and a.first <= loc.line <= a.last]
    return found[-1] if found else None
