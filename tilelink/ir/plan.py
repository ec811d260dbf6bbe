"""A plan: everything about one operator on one topology that codegen prints and the runtime executes.

All numbers are formulas over the operator's run-time sizes, `rank` and `RANKS`; a plan also carries the concrete sizes
it was made (and verified) for. Symbols: sizes by name, `rank`, `RANKS`, `t` (position in an order), `c0`, `c1`, …
(a channel's index per axis). Where the ranks have several axes, those along axis `NODE` are `NODE_rank` and `NODE_RANKS`,
and `rank` and `RANKS` are of all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tilelink.ir import Shown
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import Buffer
from tilelink.ir.partition import Channel, GridAxis
from tilelink.ir.program import Notify, Tiles, Wait, is_raw
from tilelink.ir.schedule import AS_GIVEN, Engine, KernelOptions, Library, Order, Schedule, SortKey, as_written
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along
from tilelink.ir.topology import Tables, Topology, env_of
from tilelink.ir.wiring import Step, ViewAxis, Wiring


@dataclass(frozen=True, slots=True)
class InPlace:
    """A consumer reads the part of `tensor` that this rank has brought along from the argument `source`. The ranks bring parts
    of its first axis; `var`: the consumer's tile on it, "" for the run of a library function. A copy engine moves `source` to
    `tensor` as it is, so that the rank's own part need not be moved."""

    tensor: str
    source: str
    var: str


def order_of(path: str) -> str:
    """What formulas call the order of a step by a user's key: no parameter and no other step's order has this name."""
    return f"{path}:order"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step placed: its domain, tiles, order and engine. `grid`: one axis per view axis of the domain parameter. `loops`:
    the partition of each dimension that a `tl.tiles` loop may walk, two where they may walk all of it and this rank's part.
    `order`: assignments that turn position `t` into `i0`, `i1`, … . `into`: the step it is fused into; `fused`: the steps that
    run in this step's worker after each tile, in order."""

    step: Step
    engine: Engine
    domain: str
    grid: tuple[GridAxis, ...]
    loops: tuple[GridAxis, ...]
    order: tuple[tuple[str, Formula], ...]
    total: Formula
    order_said: Order
    """As the schedule says it. Behind a user's key `order` begins by looking `t` up in the plan's table of this step."""
    push: bool | None = None
    options: KernelOptions = AS_GIVEN
    workers: int | None = None
    into: str | None = None
    fused: tuple[str, ...] = ()
    streams: int = 1
    host_axes: tuple[int | None, ...] = ()
    """Fused: per axis of `grid`, the axis of the host's grid whose tile it is (None: this rank's coordinate)."""
    forwarded: tuple[str, ...] = ()
    """Fused: tensors whose tile is taken from the host's registers (at slice `rank`, where it has slices)."""
    subtiles: int = 1
    """Fused: how many subtiles, of its columns, the host's tile is taken in, one after the other."""
    deferred: bool = False
    """Fused: its tiles come behind all of the host's, from memory, each taken by the next worker that is free."""
    own_axis: int | None = None
    """It runs for the tiles that this rank holds in its domain, and for no others: the axis of the grid that says whose a tile
    is, by an owner map, or fused, of the host's grid."""
    in_place: tuple[InPlace, ...] = ()
    skip_own: bool = False
    """A push: what stays on this rank is not moved, because its consumer takes it from registers."""
    library: Library | None = None
    """A function that computes each tile, called between the waits and the notifies of the program."""

    @property
    def path(self) -> str:
        return self.step.path

    @property
    def executor(self) -> str:
        """The step whose workers, or stream, run it."""
        return self.path if self.into is None else self.into

    def turns(self, env: Mapping[str, F.Number]) -> dict[str, Any]:
        """`env`, of a rank, with the positions `t` of all tiles that it takes, and the indices `i0`, `i1`, … of each."""
        found: dict[str, Any] = {**env, "t": np.arange(max(int(F.evaluate(self.total, env)), 0))}
        for name, value in self.order:
            found[name] = F.evaluate(value, found) if len(found["t"]) else found["t"]
        return found

    def spans(self, env: Mapping[str, F.Number]) -> list[tuple[tuple[int, int], ...]]:
        """Begin and end of each of these tiles per axis of the grid, in order."""
        found = self.turns(env)
        ends = [f(Sym(f"i{a}")) for a, g in enumerate(self.grid) for f in (g.begin, g.end)]
        edges = np.array([np.broadcast_to(F.evaluate(f, found), found["t"].shape) for f in ends])
        return [tuple(zip(of[::2], of[1::2], strict=True)) for of in edges.T.tolist()]

    @property
    def sort_key(self) -> SortKey | None:
        """A user's order of its own tiles; of several keys the last one counts."""
        keys = [key for key in self.order_said if not isinstance(key, str)]
        return keys[-1] if keys and self.into is None else None

    @property
    def by_panels(self) -> bool:
        """Whether a library function takes its tiles run by run."""
        return self.library is not None and self.library.runs

    @property
    def copies(self) -> bool:
        """Whether it moves tiles and computes nothing: a copy program."""
        return self.step.moved_to is not None

    @property
    def axis(self) -> str:
        """The axis of ranks that the step speaks of."""
        return self.step.axis

    @property
    def rank(self) -> Formula:
        """This rank's coordinate along it."""
        return rank_along(self.axis)

    @property
    def ranks(self) -> Formula:
        """How many ranks there are along it."""
        return ranks_along(self.axis)

    @property
    def columns(self) -> int:
        """The axis of `grid` along which the columns of a tile lie."""
        return max((a for a, g in enumerate(self.grid) if not g.unit), default=0)

    def __str__(self) -> str:
        """One line on how the step runs."""
        tiles = " ".join(f"{g.dim}={g.tile}" for g in (*self.grid, *self.loops) if g.tile and not g.unit)
        tiles = f", tiles {tiles}" if tiles else ""
        direction = {True: "push, ", False: "pull, ", None: ""}[self.push]
        direction += "" if self.axis == RANK_AXIS else f"along {self.axis}, "
        if self.into is not None:
            subtiles = f", in {self.subtiles} subtiles" if self.subtiles > 1 else ""
            return f"{direction}fused into {self.into}{subtiles}{', deferred' if self.deferred else ''}"
        order = f", order {as_written(self.order_said)}"
        if self.library is not None:
            streams = f", over {self.streams} streams" if self.streams > 1 else ""
            return f"{direction}library {self.library.name}({', '.join(self._viewed())}){order}{streams}"
        who = f"{self.workers} {self.engine}" if self.engine.by == "kernel" else str(self.engine)
        return f"{direction}{who}{tiles}{order}"

    def _viewed(self) -> Iterator[str]:
        """What a library function gets of each parameter: `rows[M by M/R, K]`."""
        axes = (*self.grid, *self.loops) if self.by_panels else self.grid
        cut = {g.dim: str(g.tile) if g.tile else f"{g.dim}/R" for g in axes if g.tile or g.by_parts}
        for p in self.step.program.params:
            dims = [v.dim if not v.dim.startswith("_") else "…" for v in self.step.binding(p.name).view]
            text = f"{p.name}[{', '.join(f'{d} by {cut[d]}' if d in cut else d for d in dims)}]"
            yield text if p.role == "in" else f"out={text}"

    def view(self, walk: Tiles) -> ViewAxis:
        """The axis that a loop walks."""
        return self.step.binding(walk.param).view[walk.axis]

    def loop(self, walk: Tiles) -> GridAxis:
        """The partition that a loop walks: of a dimension that one tensor has whole, and another by parts, there are two."""
        view = self.view(walk)
        found = [a for a in self.loops if a.dim == view.dim]
        return next((a for a in found if a.own_part == view.by_parts), found[0])

    def own_tiles(self, host: StepPlan) -> Formula:
        """Of a fused step for own rows: how many tiles of its host a rank holds."""
        counts = (g.own if a == self.own_axis else g.count for a, g in enumerate(host.grid))
        return math.prod(counts, start=F.of(1))


@dataclass(frozen=True, slots=True)
class Signal:
    """What becomes of one wait or notify of a step. `action`: await | ready (an argument of the rank that holds it) | notify |
    elided. `to`: whose flags a notify raises: self | owner (who holds the tile) | all | peer. `reason`: by what it is implied,
    when elided."""

    path: str
    op: Wait | Notify
    action: str
    channel: str | None = None
    to: str = "self"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A kernel: roles in worker order (copy programs first), `workers` per role (None: whatever SMs are left). `turns`: so many
    of the last roles have the same workers, each of which is through with one before it begins the next."""

    name: str
    roles: tuple[tuple[str, int | None], ...]
    stream: int
    options: KernelOptions
    turns: int = 1

    @property
    def beside(self) -> tuple[tuple[str, int | None], ...]:
        """The roles with workers of their own."""
        return self.roles[: len(self.roles) - self.turns]

    @property
    def in_turn(self) -> tuple[str, ...]:
        """The others."""
        return tuple(path for path, _ in self.roles[len(self.roles) - self.turns :])

    @property
    def workers(self) -> int:
        """All of them, once they are counted."""
        return sum(n or 0 for _, n in (*self.beside, self.roles[-1]))


# ---------------------------------------------------------------------------------------- what the host does in a call, in order
MAIN = 0
"""The caller's stream; side streams count from 1."""


@dataclass(frozen=True, slots=True)
class CallEntry:
    """Begin the call: epoch, credits, targets. By a one-block kernel of its own, or as `Plan.whole_call` says."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Copy the arguments that peers read into their slots, then tell every peer that they are ready."""

    tensors: tuple[str, ...]
    executor: ClassVar[str] = "stage"
    """What a lowered plan calls it."""


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

    @property
    def executor(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Keep:
    """What `Transfer` of the same step would move within the rank, on the main stream, before kernels start that wait for
    it: a copy within one GPU is made by its SMs, and workers that wait may have taken them all."""

    path: str
    stream: ClassVar[int] = MAIN

    @property
    def executor(self) -> str:
        return f"{self.path}.keep"


@dataclass(frozen=True, slots=True)
class CallExit:
    """Wait until every peer has come here: arguments that peers read in place may be overwritten afterwards."""


HostStep: TypeAlias = CallEntry | Stage | Fork | Join | Launch | Transfer | Keep | CallExit


@dataclass(frozen=True, slots=True)
class Layout:
    """What the plan may know of an argument's memory: its unit-stride axis (None: none), 16-byte alignment of the base
    and of every other stride, and whether it is one contiguous run."""

    unit_axis: int | None
    aligned: bool
    contiguous: bool = True
    symmetric: bool = False
    """Allocated by `tilelink.empty`: peers can read it in place."""


LL_DATA = 4
"""Bytes of data in a word of NCCL's LL protocol, whose other 4 hold the number of the call. Who reads such a word sees from the
number whether the data is this call's, so that nothing is signalled: no barrier, no release that waits until all stores have
arrived, no word that is set behind them. It costs twice the bytes."""
LL_MOST = 384 * 1024
"""Bytes that a rank gets from its peers by a tensor, up to which twice as many take less time than a release and a signal:
on two H200s 128 KiB take 0.9 µs less, and 512 KiB as long (docs/performance.md)."""
COPIES = 512
"""How many copies of the epoch a workspace keeps: one for each worker, which in epoch-signalled calls counts for itself."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Shown):
    wiring: Wiring
    topology: Topology
    schedule: Schedule
    sizes: tuple[tuple[str, int], ...]
    layouts: tuple[tuple[str, Layout], ...]
    steps: tuple[StepPlan, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    channels: tuple[Channel, ...] = ()
    signals: tuple[Signal, ...] = ()
    credits_implied_by: str | None = None
    """The tensors whose signals say that the readers of a slot of call e - slots have left that call; None: nobody's do, and a
    call waits for credits, the right to write its slots again."""
    kernels: tuple[KernelPlan, ...] = ()
    host: tuple[HostStep, ...] = ()
    notes: tuple[str, ...] = ()
    tables: Tables = ()
    """Orders by a user's key, sorted."""
    epoch_signalled: bool = False
    """An epoch-signalled call: flags are set to the number of the call, which each worker counts for itself."""
    ll: bool = False
    """Such a call, whose tensors come by the LL protocol: flags hold data and the number of the call, and there are no others."""

    def __repr__(self) -> str:
        return f"<plan of {self._head}, {len(self.steps)} steps>"

    @property
    def _head(self) -> str:
        sizes, ranks = " ".join(f"{n}={v}" for n, v in self.sizes), self.topology.ranks
        return f"{self.wiring.name}: {self.wiring.signature}  ({sizes}, {ranks} rank{'s' if ranks > 1 else ''})"

    def __str__(self) -> str:
        """The steps, one a line, and the plan's notes; `tilelink plan` has the rest in tables."""
        width = max((len(s.path) for s in self.steps), default=0)
        steps = [f"    {s.path.ljust(width)}  {s}" for s in self.steps]
        return "\n".join([self._head, *steps, *(f"    note: {n}" for n in self.notes)])

    @property
    def unverified(self) -> tuple[str, ...]:
        """Steps whose programs use raw pointers: nothing can be said of a plan that has some."""
        return tuple(s.path for s in self.steps if is_raw(s.step.program))

    @property
    def takes_credits(self) -> bool:
        """Whether calls wait for the right to write slots again."""
        return self.credits_implied_by is None and any(b.shared for b in self.buffers)

    @property
    def read_in_place(self) -> tuple[str, ...]:
        """Tensors whose own part somebody reads where the rank has brought it along: it is not moved."""
        return tuple(dict.fromkeys(i.tensor for s in self.steps for i in s.in_place))

    @property
    def whole_call(self) -> tuple[str, ...]:
        """Kernels one after the other that are all that there is of a call, so that it takes a launch less: the first begins the
        call, and the last, when all of its workers are through, raises what the next one counts from."""
        kernels = tuple(h.kernel for h in self.host if isinstance(h, Launch) and h.stream == MAIN)
        return kernels if self.host[:1] == (CallEntry(),) and len(self.host) == 1 + len(kernels) else ()

    def step(self, path: str) -> StepPlan:
        return next(s for s in self.steps if s.path == path)

    def kernel(self, name: str) -> KernelPlan:
        return next(k for k in self.kernels if k.name == name)

    def buffer(self, tensor: str) -> Buffer:
        return next(b for b in self.buffers if b.name == tensor)

    def buffer_or_none(self, tensor: str) -> Buffer | None:
        """None: the tensor lives in registers only."""
        return next((b for b in self.buffers if b.name == tensor), None)

    def channel(self, tensor: str) -> Channel:
        return next(c for c in self.channels if c.tensor == tensor)

    def signal(self, path: str, op: Wait | Notify) -> Signal | None:
        """What becomes of a wait or notify of a step; None: nothing, and it is not emitted."""
        return next((s for s in self.signals if s.path == path and s.op == op), None)

    def layout(self, tensor: str) -> Layout:
        return dict(self.layouts)[tensor]

    def env(self, rank: int) -> dict[str, F.Number]:
        """The symbols of every formula, on rank `rank`."""
        return env_of(dict(self.sizes), self.topology, rank, self.tables)

    @cached_property
    def on_all(self) -> dict[str, F.Number]:
        """The same, but for the tables, on all ranks at once."""
        return env_of(dict(self.sizes), self.topology, np.arange(self.topology.ranks))
