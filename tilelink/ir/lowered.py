"""A lowered plan: what every executor does in a call, op by op, in formulas and nothing else.

`tilelink.mapping.lower` makes it of a plan. Who hears of a tile, which flag that is, how many arrivals it expects, which bytes
are touched and on which rank, is said here and worked out nowhere else: the proof evaluates the formulas into tables, codegen
prints them, streams compute them.

Symbols of formulas: the call's sizes, `rank` and `RANKS` (`A_rank`, `A_RANKS` along a mesh dimension `A`, where `rank` is a
rank's number among all); in a loop over tiles `t` and what its `lets` name; in a `For` its `var` and its `lets`. A name means one
thing wherever it is known: no variable has that of a size, or of a loop around it. In `Flags.arrivals` and `Buffer.extents`
`rank` is the rank whose flags, or whose memory, they are, and `flag` a flag's number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast, get_args

from tilelink.errors import Loc
from tilelink.ir.formula import Const, Formula, Number
from tilelink.ir.program import Op as Statement
from tilelink.ir.schedule import Engine
from tilelink.ir.topology import RankAxis, Tables, Topology, env_of

Box: TypeAlias = "tuple[tuple[Formula, Formula], ...]"
"""Begin and end along each axis of a buffer, in elements of the rank's own memory; without elements it touches nothing."""
Lets: TypeAlias = "tuple[tuple[str, Formula], ...]"
"""Names and what they stand for, each known to those behind it."""
ONE: Formula = Const(1)
ENTERED, READY, LEFT = "@entered", "@ready", "@left"
"""The call's own flags, one for each rank, by names that no tensor has: that it has begun the call, which it tells before it
waits for anything, that its staged arguments are there, and that it is through."""
STATES = {ENTERED: "entered", READY: "ready", LEFT: "left"}
"""What the workspace calls them."""
STAGE = "@stage"
"""Ends the name of the buffer that an argument is copied to for its peers."""
Style: TypeAlias = Literal["count", "epoch", "doorbell", "data"]


@dataclass(frozen=True, slots=True)
class Flags:
    """`count` 64-bit counters on every rank. `style`: of a `count` each signal adds its amount, and an await ends when all
    `arrivals` of the call are there, as they are in each call, since calls are told apart by the sum; a `doorbell` is a count
    that its only waiter resets; an `epoch` is set to the number of the call, by its one signal, or left alone in the call by
    signals and awaits alike; of `data` (the LL protocol) the number of the call travels beside each flag of the data, and
    nothing is printed: an await of it is sure of what the tile that signals has written to the buffer of the flags' name, and
    of no other memory. `arrivals`: of flag `flag` on rank `rank`, by all signals of a call; None: one signal completes it.
    `scope`: `gpu` (heard on its rank only) | `sys`. `rings`: whoever completes flag `flag` rings its doorbell, for a stream,
    where this is not 0; None: there are no doorbells."""

    name: str
    count: Formula
    arrivals: Formula | None = None
    style: Style = "count"
    scope: str = "sys"
    rings: Formula | None = None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory on every rank. `space`: argument | result | device (workspace) | symmetric (workspace that peers reach). `extents`:
    elements per stored axis (an own-slice axis is not stored). `slots`: after so many calls the same memory is used again.
    `axes`: what they are called; `written`: `once` or `partial`, where a program that writes what data decides declares it;
    `loc`: the line that makes it. `stage`: an argument that peers read is copied on entry into a symmetric buffer of these
    extents, whose parts are all as long as the longest. `reached`: an argument that peers read or write, in its stage if it has
    one, else where it lies."""

    name: str
    extents: tuple[Formula, ...]
    dtype: str
    space: str
    slots: int = 1
    axes: tuple[str, ...] = ()
    written: str | None = None
    loc: Loc | None = None
    stage: tuple[Formula, ...] | None = None
    reached: bool = False

    @property
    def staged(self) -> bool:
        return self.stage is not None

    @property
    def shared(self) -> bool:
        """Whether peers read or write it, or its stage."""
        return self.space == "symmetric" or self.staged


@dataclass(frozen=True, slots=True)
class Data:
    """What data decides. `said`: in the program's words; `table`: offsets whose contract says that what they place is complete
    and disjoint, if it is they; `index`: it is positions that the program works out."""

    said: str
    loc: Loc | None = None
    table: str | None = None
    index: bool = False


@dataclass(frozen=True, slots=True)
class Await:
    """Until flag `index` of this rank is complete, that is all of its arrivals are there, and what came before them is done;
    `back`: in the call so many calls ago (a credit). Where data decides whether there is an await, only what the same tile
    reads as data says is sure to come behind it. `doorbell`: a stream, which cannot compare counts, waits for the
    flag's doorbell: whoever completes the flag rings it once, and the stream resets it. (A `doorbell` is its own doorbell.)"""

    flags: str
    index: Formula
    back: int = 0
    loc: Loc | None = None
    doorbell: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    """To flag `index` on `rank`. None: on every rank of this one's submesh `along`, at once. `amount`: None: all arrivals of the
    flag, by the last tile of a run-time split, whose tiles are counted on the device."""

    flags: str
    index: Formula
    rank: Formula | None
    along: str
    amount: Formula | None = ONE
    loc: Loc | None = None


@dataclass(frozen=True, slots=True)
class _Access:
    """`by_data`: some of the box, data says what. `param`: what the program, and each `Compute` of its value, call it."""

    buffer: str
    rank: Formula
    box: Box
    by_data: Data | None = None
    loc: Loc | None = None
    param: str = ""


class Read(_Access):
    __slots__ = ()


class Write(_Access):
    """`by_data`: it does not count as written, and tiles of no other loop write there, nor does another tile without asking
    data."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A read and a write by one engine, element by element: of one shape, but for axes of one element; workers convert, and
    of other engines both are of one dtype."""

    source: Read
    target: Write


@dataclass(frozen=True, slots=True)
class Compute:
    """What is not looked into: lines of Triton, or a function of a library, between the reads before it and the writes behind.
    Of a function `takes` are the values of its arguments, in order, and `gives` is that of its result: what is given turn after
    turn is taken all together. `at`: for a function that is told, which positions of which dimensions it computes."""

    what: str
    loc: Loc | None = None
    takes: tuple[str, ...] = ()
    gives: str = ""
    at: tuple[tuple[str, Formula, Formula], ...] = ()


@dataclass(frozen=True, slots=True)
class Opaque:
    """Raw pointers: any rank's memory and flags may be touched, and nothing can be proven of the call."""

    loc: Loc | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """`test` holds wherever this is reached; `what`: what would be touched otherwise."""

    test: Formula
    what: str
    loc: Loc | None = None


@dataclass(frozen=True, slots=True)
class For:
    """`body` for each `var` from 0 to below `count`. `by_data`: some of the turns are taken, data says which. `said`: the loop as
    the program says it; a loop over the elements of a block has no flags."""

    var: str
    count: Formula
    body: tuple[Op, ...]
    by_data: Data | None = None
    lets: Lets = ()
    said: str = ""


@dataclass(frozen=True, slots=True)
class If:
    """`test` None: data decides. `said`: the test as the program says it, if it does."""

    test: Formula | None
    body: tuple[Op, ...]
    by_data: Data | None = None
    said: str = ""


Op: TypeAlias = Await | Signal | Read | Write | Copy | Compute | Opaque | Check | For | If
OPS: tuple[type[Any], ...] = get_args(Op)


@dataclass(frozen=True, slots=True)
class Tiles:
    """`body` for each position `t` from 0 to below `total`, in order. `axes`: the indices that tell tiles apart, and how many
    each has on this rank (from 0 to below that; where there is one, it may be any number); a tile that no position takes would
    do nothing but wait. `order`: how they follow from `t`; `lets`: what the body may name besides, by the indices alone. A body
    under a test leaves tiles out. `by_data`: data says how many there are, and each formula stands for any one of them. `dims`:
    what the axes are called."""

    path: str
    total: Formula
    axes: Lets
    order: Lets
    lets: Lets
    body: tuple[Op, ...]
    by_data: Data | None = None
    dims: tuple[str, ...] = ()
    loc: Loc | None = None
    tile: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Executor:
    """Workers share the positions of each loop, and who is through with one begins the next; an `engine` that goes in turn takes
    them one after the other, of several streams stream `k` the positions `k`, `k + workers`, … . `after`: executors
    that end on this rank before it starts. `workers`: how many there are; `kernel`: that they belong to, for those that have to
    be resident together; `warps`: of each worker, 0 for what has none."""

    name: str
    engine: Engine
    loops: tuple[Tiles, ...]
    after: tuple[str, ...] = ()
    workers: int = 1
    kernel: str = ""
    warps: int = 0


AT = "at"
"""What a `Walk` calls a position, as the program counts them."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The flags of a wait in a loop over tiles, where each tile of the loop has flags of its own: `index` of a position `at`,
    `first` of position 0, and the positions `[begin, end)` of flag `flag`, along the axis that the loop walks. `alone`: no
    other axis has flags."""

    wait: Statement
    index: Formula
    first: Formula
    begin: Formula
    end: Formula
    alone: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What a step does for one of its tiles, in the names of its own program, for text. A variable `m` is a tile from `m.begin`
    to `m.end` (a copy program has numbers for variables). A value of the program's is called as there, or is the expression
    there, behind a dot; of a vector of positions `.x` the least and the greatest are `.x.low` and `.x.high`, and a test of `.x`
    says which of its elements are meant. Ranks are coordinates along the step's mesh dimension. `tiles`: of the domain, by
    variable: where one begins and ends, by the indices `i0`, `i1`, … alone; of a run-time split a table says it; of an
    epilogue, by the variables of its mainloop step. `tests`: under which this rank takes the tile. `body`: of a copy program.
    `said`: what the statements of others become: waits, notifies, loads and stores; `holders`: the ranks that statements ask
    for; `walks`: by the variable of a loop over tiles, the flags that it walks."""

    path: str
    tiles: tuple[tuple[str, Formula, Formula], ...]
    tests: tuple[Formula, ...]
    body: tuple[Op, ...]
    said: tuple[tuple[Statement, tuple[Op, ...]], ...]
    holders: tuple[tuple[Statement, Formula], ...]
    walks: tuple[tuple[str, Walk], ...] = ()

    @property
    def copies(self) -> bool:
        """Whether it is of a copy program."""
        return bool(self.body)

    def of(self, statement: Statement) -> tuple[Op, ...]:
        return next(ops for said, ops in self.said if said == statement)

    def holder(self, statement: Statement) -> Formula:
        return next(rank for said, rank in self.holders if said == statement)

    def walk(self, var: str, wait: Statement) -> Walk | None:
        """None: what is waited for does not change with the loop's tile."""
        return next((w for v, w in self.walks if (v, w.wait) == (var, wait)), None)


@dataclass(frozen=True)
class Lowered:
    """`ranks`: by name, those that `R` spans (all, unless a dimension is called so), then the mesh's dimensions, the last being
    that of neighbours. `slots`: calls take turns with flags as with memory, and the flags of a call are used again so many
    calls later, but for those of the call itself (that a rank has entered, staged, left). `tables`: for each rank the
    positions of its tiles, where an order is sorted. `ends`: the executors whose end is the call's end. `parts`: what
    the loops of workers are made of, step by step. `sms`: that a rank has for workers, and for what streams need one for.
    `entry`, `exit`: the kernels whose workers begin and end the call, if that takes no kernel of its own; where it has such an
    entry and no exit, each worker counts the calls for itself."""

    name: str
    ranks: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[str, int], ...]
    tables: Tables
    buffers: tuple[Buffer, ...]
    flags: tuple[Flags, ...]
    executors: tuple[Executor, ...]
    ends: tuple[str, ...]
    slots: int = 2
    sms: int = 0
    loc: Loc | None = None
    parts: tuple[Part, ...] = ()
    entry: str = ""
    exit: str = ""

    @property
    def by_epoch(self) -> bool:
        """Whether workers signal flags by the number of the call."""
        return bool(self.entry) and not self.exit

    def part(self, path: str) -> Part:
        return next(p for p in self.parts if p.path == path)

    def executor(self, name: str) -> Executor:
        return next(e for e in self.executors if e.name == name)

    def flag(self, name: str) -> Flags:
        return next(f for f in self.flags if f.name == name)

    def loop(self, path: str) -> Tiles:
        """The loop of workers over a step's tiles."""
        return next(t for e in self.executors for t in e.loops if t.path == path)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    @cached_property
    def topology(self) -> Topology:
        """The ranks and the mesh that they are laid out in."""
        mesh = tuple(RankAxis(name, size) for name, size in self.ranks[1:])
        return Topology(math.prod(a.size for a in mesh) if mesh else self.ranks[0][1], axes=mesh)

    def env(self, rank: int) -> dict[str, Number]:
        """What formulas call the sizes, a rank's coordinates, and its rows of the tables."""
        return env_of(dict(self.sizes), self.topology, rank, self.tables)


def walk(body: tuple[Op, ...]) -> Iterator[Op]:
    """All ops, those around others before them."""
    for op in body:
        yield op
        if isinstance(op, (For, If)):
            yield from walk(op.body)


def formulas(op: Op) -> tuple[Formula, ...]:
    """All formulas of an op, those of its body left out."""

    def of(value: Any) -> Iterator[Formula]:
        if isinstance(value, Formula):
            yield value
        elif isinstance(value, tuple):
            for one in cast("tuple[Any, ...]", value):
                yield from of(one)
        elif isinstance(value, Read | Write):
            yield from formulas(value)

    return tuple(found for f in fields(op) if f.name != "body" for found in of(getattr(op, f.name)))


def unplaced(op: Op) -> Op:
    """The op without the user's lines: equal to whatever does the same."""
    if isinstance(op, Copy):
        return Copy(replace(op.source, loc=None), replace(op.target, loc=None))
    if isinstance(op, For | If):
        return replace(op, body=tuple(unplaced(o) for o in op.body), by_data=None, said="")
    return replace(op, loc=None)
