"""A plan: everything about one operator on one topology that codegen prints and the runtime executes.

All numbers are formulas over the operator's run-time sizes, `rank` and `RANKS`; a plan also carries the concrete sizes
it was made (and verified) for. Symbols: sizes by name, `rank`, `RANKS`, `t` (position in an order), `c0`, `c1`, …
(a channel's index per axis).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.program import Notify, Wait, is_raw
from tilelink.ir.schedule import Library, Schedule, SortKey
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import Step, TensorDecl, Wiring

RANK = Sym("rank")
RANKS = Sym("RANKS")


def part(size: F.Like) -> Formula:
    """Elements per rank of a split axis: the even split by ceil; at least 1, so that it can be divided by."""
    return F.maximum(F.cdiv(size, RANKS), 1)


def here(size: F.Like, rank: F.Like = RANK) -> Formula:
    """Elements of a split axis that rank `rank` holds: the last ranks get what is left, perhaps nothing."""
    p = part(size)
    return F.maximum(F.minimum(F.of(size) - F.of(rank) * p, p), 0)


def holder(tensor: TensorDecl, axis: int, at: F.Like) -> Formula:
    """f_R: the rank that holds position `at` of an axis, by the tensor's owner map, else by its shape."""
    if tensor.owner_map is not None and tensor.owner_map.formula is not None and axis == tensor.owned:
        return F.substitute(tensor.owner_map.formula, dict.fromkeys(tensor.owner_map.variables, at))
    of = tensor.axes[axis]
    return F.of(at) if of.own_slice else F.of(at) // part(of.size)


@dataclass(frozen=True, slots=True)
class GridAxis:
    """A one-axis partition into tiles, in closed form.

    `kind`: `plain` (from 0 to `size`), `cut` (ends at every rank's border too), `mine` (this rank's part only, in global
    positions), `unit` (one position at a time), `own` (this rank's coordinate), `table` (ends where the offsets table
    `table` says). `tile`: elements, None for the whole axis (or the whole part). `ring`: the part length along which the
    tiles belong to ranks, if they do.
    """

    dim: str
    kind: str
    size: Formula
    tile: int | None
    var: str | None = None
    ring: Formula | None = None
    table: str | None = None

    @property
    def part(self) -> Formula:
        return part(self.size)

    @property
    def step(self) -> Formula:
        """Elements from one tile's begin to the next's."""
        if self.kind in ("unit", "own"):
            return F.of(1)
        if self.tile is not None:
            return F.of(self.tile)
        return self.part if self.kind in ("cut", "mine") else F.maximum(self.size, 1)

    @property
    def per(self) -> Formula:
        """Tiles of one whole part (`cut`)."""
        return F.cdiv(self.part, self.step)

    @property
    def count(self) -> Formula:
        """Number of tiles on this rank."""
        if self.kind == "own":
            return F.of(1)
        if self.kind == "unit":
            return self.size
        if self.kind == "table":
            return Sym(f"{self.table}_tiles")
        if self.kind == "cut":
            return self.size // self.part * self.per + F.cdiv(self.size % self.part, self.step)
        if self.kind == "mine":
            return F.cdiv(here(self.size), self.step)
        return F.cdiv(self.size, self.step) if self.tile is not None else F.of(1)

    def begin(self, index: F.Like) -> Formula:
        """First position of tile `index`."""
        i = F.of(index)
        if self.kind == "own":
            return RANK
        if self.kind == "cut":
            return i // self.per * self.part + i % self.per * self.step
        if self.kind == "mine":
            return RANK * self.part + i * self.step
        if self.kind == "plain" and self.tile is None:
            return F.of(0)
        return i * self.step

    def limit(self, index: F.Like) -> Formula:
        """The border that tile `index` does not cross."""
        if self.kind == "cut":
            return F.minimum(F.of(index) // self.per * self.part + self.part, self.size)
        if self.kind == "mine":
            return F.minimum(RANK * self.part + self.part, self.size)
        return self.size

    def end(self, index: F.Like) -> Formula:
        """One past the last position of tile `index`."""
        if self.kind in ("unit", "own"):
            return self.begin(index) + 1
        return F.minimum(self.begin(index) + self.step, self.limit(index))


@dataclass(frozen=True, slots=True)
class InPlace:
    """A consumer reads the part of `tensor` that this rank has brought along from the argument `source`.

    `axis`: of the tensor, the one that the ranks bring parts of; `var`: the consumer's tile on it. A copy engine moves
    `source` to `tensor` as it is, so that the rank's own part need not be moved.
    """

    tensor: str
    source: str
    axis: int
    var: str


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step placed: its domain, tiles, order and engine.

    `engine`: workers | stream | fused. `grid`: one axis per view axis of the domain parameter. `loops`: the partition of
    each dimension that a `tl.tiles` loop may walk. `order`: assignments that turn position `t` into `i0`, `i1`, … .
    `into`: the step it is fused into; `fused`: the steps that run in this step's worker after each tile, in order.
    """

    step: Step
    engine: str
    domain: str
    grid: tuple[GridAxis, ...]
    loops: tuple[GridAxis, ...]
    order: tuple[tuple[str, Formula], ...]
    total: Formula
    order_names: tuple[str, ...]
    sort_key: SortKey | None = None
    """A user's order. `order` then begins by looking `t` up in the plan's table of this step."""
    push: bool | None = None
    warps: int = 4
    stages: int = 3
    workers: int | None = None
    own_kernel: bool = False
    into: str | None = None
    fused: tuple[str, ...] = ()
    streams: int = 1
    host_axes: tuple[int | None, ...] = ()
    """Fused: per axis of `grid`, the axis of the host's grid whose tile it is (None: this rank's coordinate)."""
    own_rows: bool = False
    """It runs for the tiles that this rank holds in its domain, and for no others: fused, or held by an owner map."""
    forwarded: tuple[str, ...] = ()
    """Fused: tensors whose tile is taken from the host's registers (at slice `rank`, where it has slices)."""
    pieces: int = 1
    """Fused: how many pieces of its columns the host's tile is taken in, one after the other."""
    in_place: tuple[InPlace, ...] = ()
    skip_own: bool = False
    """A push: what stays on this rank is not moved, because its consumer takes it from registers."""
    library: Library | None = None
    """A function that computes each tile, called between the waits and the notifies of the program."""

    @property
    def path(self) -> str:
        return self.step.path

    def loop(self, dim: str) -> GridAxis:
        return next(a for a in self.loops if a.dim == dim)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a tensor's own instance lives.

    `space`: argument | result | device (plain workspace) | symmetric. `extents`: elements per stored axis (an own-slice
    axis is not stored). `slots`: how many copies rotate from call to call. `staged`: an argument that peers read is
    copied into this symmetric buffer on entry.
    """

    tensor: str
    extents: tuple[Formula, ...]
    dtype: str
    space: str
    slots: int = 1
    staged: bool = False


@dataclass(frozen=True, slots=True)
class ChannelAxis:
    """One axis of a tensor's words (f_C, paper section 4).

    `axis`: the tensor's axis, or None for the axis of source ranks. `kind`: `unit` (one word per position or rank),
    `plain` (per `span` elements), `cut` (per `span` elements inside each rank's part), `part` (the same inside the one
    part that the words' rank holds).
    """

    axis: int | None
    kind: str
    size: Formula
    span: int | None
    """None: one word for a whole part, whatever its length."""

    @property
    def part(self) -> Formula:
        return part(self.size)

    @property
    def length(self) -> Formula:
        """Elements per word."""
        return self.part if self.span is None else F.of(self.span)

    @property
    def per(self) -> Formula:
        """Words of one part."""
        return F.of(1) if self.span is None else F.cdiv(self.part, self.span)

    @property
    def count(self) -> Formula:
        if self.kind == "unit":
            return self.size
        if self.kind == "plain":
            return F.cdiv(self.size, self.length)
        return self.per * RANKS if self.kind == "cut" else self.per

    def index(self, at: F.Like) -> Formula:
        """The word of position `at`."""
        a = F.of(at)
        if self.kind == "unit":
            return a
        if self.kind == "plain":
            return a // self.length
        within = F.of(0) if self.span is None else a % self.part // self.span
        return a // self.part * self.per + within if self.kind == "cut" else within

    def holds(self, grid: GridAxis) -> bool:
        """Whether a tile of `grid` can only lie in one word (`free`: it may begin anywhere)."""
        if grid.kind in ("unit", "own"):
            return True
        if grid.kind == "free":
            return False
        # Words end only where tiles do, counted from the same begin.
        aligned = self.span is None or (grid.tile is not None and self.span % grid.tile == 0)
        if grid.kind in ("cut", "mine"):
            return self.kind in ("cut", "part") and aligned
        # Positions counted from the part's own begin: the words of that part are aligned to them.
        local = self.kind == "part" and grid.kind == "plain" and grid.size != self.size
        return grid.tile is not None and aligned and (self.kind == "plain" or local)

    def interval(self, c: F.Like) -> tuple[Formula, Formula]:
        """Positions `[lo, hi)` of word `c`; empty where the rank's part ends before it."""
        i = F.of(c)
        if self.kind == "unit":
            return i, i + 1
        if self.kind == "plain":
            return i * self.length, F.minimum(i * self.length + self.length, self.size)
        rank = i // self.per if self.kind == "cut" else RANK
        within = i % self.per if self.kind == "cut" else i
        base = rank * self.part
        end = F.minimum(within * self.length + self.length, here(self.size, rank))
        return base + within * self.length, base + end


@dataclass(frozen=True, slots=True)
class Channel:
    """The words of one tensor: how many, which word a position has, how often each is raised in a call.

    `target`: notifies per call of word (`c0`, `c1`, …), at the rank that holds the words; a word whose `guard` is 0 is
    not raised. `writers`: `workers` add 1 each, a `stream` sets the epoch. `scope`: gpu (one rank's own counters) | sys.
    `bells`: a stream waits: the worker that completes a word rings its bell. `joined`: the offsets table that splits the
    tensor at run time: how many tiles that makes is known on the device only, so they are counted where they are made,
    and the last one notifies for all, `target` at once.
    """

    name: str
    tensor: str
    axes: tuple[ChannelAxis, ...]
    target: Formula
    guard: Formula | None
    writers: str
    scope: str
    bells: bool = False
    joined: str | None = None

    @property
    def words(self) -> Formula:
        total: Formula = F.of(1)
        for a in self.axes:
            total = total * a.count
        return total

    def flat(self, indices: tuple[F.Like, ...]) -> Formula:
        """The word's number, row-major."""
        out: Formula = F.of(0)
        for a, i in zip(self.axes, indices, strict=True):
            out = out * a.count + F.of(i)
        return out

    def indices(self, word: F.Like) -> tuple[Formula, ...]:
        """The word's index per axis, of its number: what `c0`, `c1`, … stand for."""
        out: list[Formula] = []
        behind: Formula = F.of(1)
        for k in reversed(range(len(self.axes))):
            index = F.of(word) // behind
            out.insert(0, index if k == 0 else index % self.axes[k].count)
            behind = behind * self.axes[k].count
        return tuple(out)


@dataclass(frozen=True, slots=True)
class Signal:
    """What becomes of one wait or notify of a step.

    `action`: await | ready (an argument of the rank that holds it) | notify | elided. `to`: whose words a notify raises:
    self | owner (who holds the tile along `owner_axis` of the tensor or of the index) | all | peer. `reason`: by what it
    is implied, when elided.
    """

    path: str
    op: Wait | Notify
    action: str
    channel: str | None = None
    to: str = "self"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A dependence: the producer's notify and the consumer's wait it serves, and how it is kept."""

    tensor: str
    producer: str
    consumer: str
    kept_by: str
    """`channel` or the reason why no signal is needed (`stream`, `worker`, `argument`)."""
    remote: bool


@dataclass(frozen=True, slots=True)
class Credit:
    """The right to write a slot again: its readers of call e - slots have left that call (G8).

    `implied_by`: the tensor whose ready signals already say so, or None: the `enter` kernel waits for it.
    """

    tensor: str
    implied_by: str | None


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A kernel: roles in worker order (movements first), `workers` per role (None: whatever SMs are left)."""

    name: str
    roles: tuple[tuple[str, int | None], ...]
    stream: int
    warps: int
    stages: int


# ----------------------------------------------------------------------------------------------------------- host steps
@dataclass(frozen=True, slots=True)
class Enter:
    """Launch the one-block kernel that begins a call: epoch, credits, targets."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Copy the arguments that peers read into their slots, then tell every peer that they are ready."""

    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """Side stream `stream` goes on from here."""

    stream: int


@dataclass(frozen=True, slots=True)
class Join:
    """The main stream waits for side stream `stream`."""

    stream: int


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: str
    stream: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """The steps of a program that streams run, on `streams` side streams from `stream` on."""

    path: str
    stream: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Wait until every peer has come here: arguments that peers read in place may be overwritten afterwards."""


HostStep: TypeAlias = Enter | Stage | Fork | Join | Launch | Transfer | Leave


# ------------------------------------------------------------------------------- what a stream does, ready to execute
@dataclass(frozen=True, slots=True)
class BellWait:
    """The stream waits until word `word` of a channel is complete, and resets its bell."""

    channel: str
    word: int


@dataclass(frozen=True, slots=True)
class WordWait:
    """The stream waits for a word that another rank raises: of a channel (`of`), or `ready` / `entered` of rank `word`."""

    of: str
    kind: str
    word: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Runs of `count` elements; offsets in elements. `at`: whose instance is `pe`'s, `source` or `target`; the other is
    one's own. `outer`: how the runs lie, from the outermost axis in: how many, and elements from one to the next in the
    target and in the source; nothing where there is one run.
    """

    target: str
    target_offset: int
    source: str
    source_offset: int
    count: int
    pe: int
    at: str
    outer: tuple[tuple[int, int, int], ...] = ()

    def runs(self) -> Iterator[tuple[int, int]]:
        """(target offset, source offset) of each run."""
        for at in itertools.product(*(range(times) for times, _, _ in self.outer)):
            steps = list(zip(at, self.outer, strict=True))
            yield (
                self.target_offset + sum(i * there for i, (_, there, _) in steps),
                self.source_offset + sum(i * here for i, (_, _, here) in steps),
            )


@dataclass(frozen=True, slots=True)
class SetWord:
    """Write the epoch to word `word` of a channel on rank `pe`, after the copies before it."""

    channel: str
    word: int
    pe: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions `[begin, end)` along each stored axis of this rank's own instance of a tensor."""

    tensor: str
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """The library function of a step, once: `inputs` in the program's order. It reads these, and writes all of `output`."""

    inputs: tuple[Piece, ...]
    output: Piece


StreamOp: TypeAlias = BellWait | WordWait | Copy | SetWord | Compute


@dataclass(frozen=True, slots=True)
class Layout:
    """What the plan may know of an argument's memory: its unit-stride axis (None: none), 16-byte alignment of the base
    and of every other stride, and whether it is one contiguous run."""

    unit_axis: int | None
    aligned: bool
    contiguous: bool = True
    symmetric: bool = False
    """Allocated by `tilelink.empty`: peers can read it in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    wiring: Wiring
    topology: Topology
    schedule: Schedule
    sizes: tuple[tuple[str, int], ...]
    layouts: tuple[tuple[str, Layout], ...]
    steps: tuple[StepPlan, ...]
    buffers: tuple[Buffer, ...]
    channels: tuple[Channel, ...]
    signals: tuple[Signal, ...]
    links: tuple[Link, ...]
    credits: tuple[Credit, ...]
    kernels: tuple[KernelPlan, ...]
    host: tuple[HostStep, ...]
    notes: tuple[str, ...] = ()
    tables: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = ()
    """Orders by a user's key, by name: for each rank the positions of its tiles, sorted."""

    @property
    def unverified(self) -> tuple[str, ...]:
        """Steps whose programs use raw pointers: nothing can be said of a plan that has some."""
        return tuple(s.path for s in self.steps if is_raw(s.step.program))

    def step(self, path: str) -> StepPlan:
        return next(s for s in self.steps if s.path == path)

    def buffer(self, tensor: str) -> Buffer:
        return next(b for b in self.buffers if b.tensor == tensor)

    def buffer_or_none(self, tensor: str) -> Buffer | None:
        """None: the tensor lives in registers only."""
        return next((b for b in self.buffers if b.tensor == tensor), None)

    def channel(self, name: str) -> Channel:
        return next(c for c in self.channels if c.name == name)

    def channel_of(self, tensor: str) -> Channel | None:
        return next((c for c in self.channels if c.tensor == tensor), None)

    def signal(self, path: str, op: Wait | Notify) -> Signal:
        return next(s for s in self.signals if s.path == path and s.op == op)

    def layout(self, tensor: str) -> Layout:
        return dict(self.layouts)[tensor]

    def env(self, rank: int) -> dict[str, F.Number]:
        """The symbols of every formula, on rank `rank`."""
        values: dict[str, F.Number] = {**dict(self.sizes), "rank": rank, "RANKS": self.topology.ranks}
        for name, rows in self.tables:
            values[name] = np.asarray(rows[rank], dtype=np.int64)
        return values


def substituted(values: Mapping[str, F.Like], *formulas: Formula) -> tuple[Formula, ...]:
    return tuple(F.substitute(f, values) for f in formulas)
