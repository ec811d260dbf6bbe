"""Schedules: how an operator runs. Only these change when the design space is explored (paper section 3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias

from tilelink.errors import is_whole
from tilelink.ir.topology import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`name`: as people read it. `by`: who runs it: a kernel's workers, a stream, the host's one-block kernels, or the workers of
    the step that it is inside of. `adds`: it adds to a flag; else it sets a flag to the number of the call, so that each of its
    tiles has a flag of its own. `compares`: it can wait for a count on its own rank; else a doorbell is rung for each of its
    waits there. `in_turn`: it takes tiles one after the other, of several streams stream `k` the tiles `k`, `k + streams`, …;
    else any worker may take the next. `computes`: it computes, and converts what it copies; else it moves bytes as they are.
    `sm`: for what it needs a multiprocessor: for each `worker`, until that ends; `always`; for what stays `within` the GPU, and
    to wait for peers; `never`. `launched`: it takes a launch to begin."""

    name: str
    by: Literal["kernel", "stream", "host", "step"]
    adds: bool
    compares: bool
    in_turn: bool
    computes: bool
    sm: Literal["worker", "always", "within", "never"]
    launched: bool

    def __str__(self) -> str:
        return self.name


HOST = Engine(name="host", by="host", adds=True, compares=True, in_turn=True, computes=False, sm="never", launched=True)
WORKERS = replace(HOST, name="workers", by="kernel", in_turn=False, computes=True, sm="worker")
EPILOGUE = replace(WORKERS, name="epilogue", by="step", sm="never", launched=False)
LIBRARY = Engine(
    name="library function", by="stream", adds=False, compares=False, in_turn=True, computes=True, sm="always", launched=False
)  # fmt: skip
COPY_ENGINE = replace(LIBRARY, name="copy engine", computes=False, sm="within")


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What a schedule says of a kernel and Triton is told when it compiles it; nothing between the two looks inside. A new
    option is a field here, of `Sms`, and a parameter of `tilelink.sms`."""

    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int | None = None
    """Registers of a thread at most (NVIDIA's)."""

    def on(self, device: Device) -> KernelOptions:
        """As the device's compiler takes them."""
        # 64 KiB hold no more, and AMD's compiler unrolls them: eight took it half a minute.
        return replace(self, num_stages=min(self.num_stages, 2), maxnreg=None) if device.amd else self

    def given(self) -> dict[str, Any]:
        """For Triton: what is None is left to it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


AS_GIVEN = KernelOptions()
"""Of a kernel of which a schedule says nothing."""
ONE_BLOCK = KernelOptions(num_warps=1, num_stages=1)
"""Of kernels that signal and wait, and do nothing else."""


SortKey: TypeAlias = Callable[[tuple[int, ...], int, int], Any]
"""A user's order: `key(tile, rank, ranks)` of the tile's index per axis; tiles are taken by rising key."""
Order: TypeAlias = "tuple[str | SortKey, ...]"
ACROSS = "across"
"""An order of an axis that is split at run time: the first tiles of all its segments before all second ones. `across N`: the
first N of each."""


def across(order: Order) -> int:
    """How many tiles of a segment an order takes before it goes on to the next one; 0: all of them."""
    words = [name.split() for name in order if isinstance(name, str) and name.split()[:1] == [ACROSS]]
    return int(words[-1][1]) if words and len(words[-1]) == 2 else len(words[-1:])


_OPTIONS = {"warps": "num_warps", "stages": "num_stages"}
"""What the calls that make placements call some fields."""


def _as_called(name: str, p: Placement, *given: str) -> str:
    """`sms(2, M=128, push=True)`: the call that makes a placement, behind `given` what does not go without saying."""
    tiles = [f"{dim}={size}" if size != PART else f"{dim}='{dim}/R'" for dim, size in p.tile]
    others = [f for f in fields(p) if f.name not in ("count", "part", "into", "function", "runs", "tile")]
    values = [(f, getattr(p, f.name)) for f in others]
    said = [f"{_OPTIONS.get(f.name, f.name)}={as_written(value)}" for f, value in values if value != f.default]
    return f"{name}({', '.join([*given, *tiles, *said])})"


def as_written(value: Any) -> str:
    """As one writes it; of a function its name."""
    if isinstance(value, tuple):
        words = [as_written(word) for word in value]  # pyright: ignore[reportUnknownVariableType]
        return words[0] if len(words) == 1 else f"({', '.join(words)})"
    return value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sms:
    """Run on streaming multiprocessors. `count`: SMs of its own (None: all that are left), or `part`: their part of the
    device's; `tile`: elements per dimension of the program; `order`: names that compose, the first outermost: row | column |
    `group N` | ring | ring+N | across | `across N` (segments), and a sort key, by which the tiles are sorted, stably, after the
    others have ordered them; `push`: direction of a copy program (None: as written); `warps`, `stages`, `maxnreg`: Triton's
    num_warps, num_stages, and maxnreg; `own_kernel`: a kernel of its own on a side stream instead of a role in its neighbour's
    kernel; `joins`: the computing step in whose kernel a computing step runs, in turn after it, with its warps and stages."""

    count: int | None = None
    tile: tuple[tuple[str, int], ...] = ()
    order: Order = ("row",)
    push: bool | None = None
    warps: int = 4
    stages: int = 3
    maxnreg: int | None = None
    own_kernel: bool = False
    joins: str | None = None
    part: float | None = None
    engine: ClassVar[Engine] = WORKERS

    @property
    def options(self) -> KernelOptions:
        return KernelOptions(self.warps, self.stages, self.maxnreg)

    def __repr__(self) -> str:
        return _as_called("sms", self, *(str(n) for n in (self.count, self.part) if n is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEngine:
    """Run a copy program on copy engines, one stream step per tile, over `streams` side streams. No `order`: along the ring,
    own rows first where they are there on entry, and last where a step makes them."""

    tile: tuple[tuple[str, int], ...] = ()
    order: Order = ()
    push: bool | None = None
    streams: int = 1
    engine: ClassVar[Engine] = COPY_ENGINE

    def __repr__(self) -> str:
        return _as_called("copy_engine", self)


@dataclass(frozen=True, slots=True)
class Fused:
    """Run right after (or before) the tile it depends on, in the same worker. `tile`: take the host's tile in pieces of this
    many elements along the last axis, one after the other. `deferred`: not right after the tile but behind all tiles of the
    host, from memory, by whichever worker is free; None: where that can be."""

    into: str
    tile: tuple[tuple[str, int], ...] = ()
    deferred: bool | None = False

    def __repr__(self) -> str:
        return _as_called("fused", self, repr(self.into))


LENGTH, COUNT = 1 << 31, 1024
"""What elements of a tile, and any other number of a schedule, are at most."""

PART = 0
"""A tile that is the part of one rank, `M/R`, whatever its size; of a library function."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor that need not be there: its shape, its dtype as signatures name it, and the GPU that it is on."""

    shape: tuple[int, ...]
    dtype: str
    device: Device = Device()


@dataclass(frozen=True, slots=True)
class ByRuns:
    """A library function that computes a tile from runs of an axis that the tile does not have: the keys of attention, the
    depth of a product. `function(*inputs, at=…, **constants)` gives what one run contributes, in whatever form; `merge(parts,
    out=…)` makes the tile of what all its runs gave, in the order in which they were taken. `refuses`: called like the
    function, with `Shaped` for tensors: why the function cannot run so on a GPU, empty where it can."""

    function: Callable[..., Any]
    merge: Callable[..., None]
    refuses: Callable[..., str] | None = None

    def __call__(self, *inputs: Any, **constants: Any) -> Any:
        """What one run contributes."""
        return self.function(*inputs, **constants)


@dataclass(frozen=True, slots=True)
class Library:
    """Let a library function compute each tile, one stream step per tile, over `streams` side streams. `function`: a dotted
    name such as `torch.mm`, or the function itself; `tile`: elements per dimension of what it computes, or `PART`; `runs`: the
    function is `ByRuns`, and `tile` may also cut an axis that the program walks; `fallback`: the placement where the function
    refuses, and where ranks are simulated. No `order`: along the ring, own rows first where others bring rows, and last where
    others get them."""

    function: str | Callable[..., Any]
    tile: tuple[tuple[str, int], ...] = ()
    order: Order = ()
    streams: int = 1
    runs: bool = False
    fallback: Placement | None = None
    engine: ClassVar[Engine] = LIBRARY

    @property
    def name(self) -> str:
        """`torch.mm`."""
        if isinstance(self.function, str):
            return self.function
        function = self.function.function if isinstance(self.function, ByRuns) else self.function
        module, name = (getattr(function, a, None) for a in ("__module__", "__qualname__"))
        return f"{module}.{name}" if module and name else repr(type(function).__name__)

    def __repr__(self) -> str:
        return _as_called("library", self, repr(self.function) if isinstance(self.function, str) else self.name)


Placement: TypeAlias = Sms | CopyEngine | Fused | Library


def counted(placement: Placement, sms: int) -> Placement:
    """With a number of SMs where a part of the device's is asked for."""
    if not isinstance(placement, Sms) or placement.part is None:
        return placement
    return replace(placement, count=max(1, round(placement.part * sms)), part=None)


def as_simulated(placement: Placement) -> Placement:
    """What simulated ranks run: what a simulation is to look at is what is emitted, where there is such a way."""
    return (isinstance(placement, Library) and placement.fallback) or placement


def under(prefix: str, entries: Iterable[tuple[str, Placement]]) -> dict[str, Placement]:
    """Placements of an operator's steps, as another operator's that has it inside: paths begin with `prefix`."""
    return {prefix + path: _within(prefix, p) for path, p in entries}


def _within(prefix: str, p: Placement) -> Placement:
    if isinstance(p, Library) and p.fallback is not None:
        return replace(p, fallback=_within(prefix, p.fallback))
    if isinstance(p, Sms) and p.joins is not None:
        return replace(p, joins=prefix + p.joins)
    return replace(p, into=prefix + p.into) if isinstance(p, Fused) else p


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Placements by step path. `slots`: buffers a symmetric tensor rotates through; `channels`: per rank, by tensor. `unfused`:
    do not overlap at all; the operator's unfused form runs instead of its tile programs. `ll`: small tensors of calls of one
    kernel come by NCCL's LL protocol (`Plan.ll`), where they can."""

    entries: tuple[tuple[str, Placement], ...] = ()
    slots: int = 2
    channels: tuple[tuple[str, int], ...] = ()
    unfused: bool = False
    ll: bool = True

    def __str__(self) -> str:
        """As one writes it, without what goes without saying."""
        return ", ".join([*(f"{path}={placement!r}" for path, placement in self.entries), *self.besides])

    @property
    def besides(self) -> list[str]:
        """What it says that is no placement, the same way."""
        said = [f"slots={self.slots}"] if self.slots != Schedule().slots else []
        said += [f"channels={dict(self.channels)}"] if self.channels else []
        said += ["unfused=True"] if self.unfused else []
        said += [] if self.ll else ["ll=False"]
        return said

    def get(self, path: str) -> Placement | None:
        return dict(self.entries).get(path)

    def merged(self, entries: Mapping[str, Placement]) -> Schedule:
        """This schedule with some entries replaced."""
        both = {**dict(self.entries), **entries}
        return replace(self, entries=tuple(sorted(both.items())), unfused=False)


# ------------------------------------------------------------------------------------------------------------- what is held
def _is_share(value: Any) -> bool:
    # How many SMs there are, the device says.
    return 0 < value < 1 if isinstance(value, float) else value is None or (is_whole(value) and value > 0)


def _is_order(order: Any) -> bool:
    words: tuple[Any, ...] = order if isinstance(order, tuple) else (order,)  # pyright: ignore[reportUnknownVariableType]
    numbers = [n for word in words if isinstance(word, str) for n in re.findall("[0-9]+", word)]
    small = all(len(n) <= len(str(LENGTH)) and int(n) <= LENGTH for n in numbers)
    return small and all(isinstance(word, str) or callable(word) for word in words)


Field: TypeAlias = tuple[str, Callable[[Any], bool]]
"""What a value is to be, in words, and whether it is."""
_FLAG: Field = ("True or False", lambda v: v is None or isinstance(v, bool))
_COUNT: Field = (f"a whole number from 1 to {COUNT:,}", lambda v: is_whole(v) and 1 <= v <= COUNT)
PLACED: Field = ("one of sms, copy_engine, fused and library", lambda v: isinstance(v, Placement))
ELEMENTS: Field = (f"a number of elements, from 1 to {LENGTH:,}", lambda v: is_whole(v) and 1 <= v <= LENGTH)
_ORDERS = '"row", "column", "group N", "ring", "ring+N", "across N", a sort key, or a tuple of them'
FIELDS: dict[str, Field] = {
    "count": ("a number of SMs, or a part of all between 0 and 1", _is_share),
    "part": ("a part of all SMs, between 0 and 1", lambda v: v is None or (isinstance(v, float) and 0 < v < 1)),
    "order": (f"{_ORDERS}, with numbers of at most {LENGTH:,}", _is_order),
    "push": _FLAG,
    "num_warps": _COUNT,
    "num_stages": _COUNT,
    "maxnreg": ("a number of registers from 24 to 255", lambda v: v is None or (is_whole(v) and 24 <= v <= 255)),
    "own_kernel": _FLAG,
    "joins": ('the name of a step, as "matmul"', lambda v: v is None or isinstance(v, str)),
    "streams": _COUNT,
    "deferred": ("True, False or None", _FLAG[1]),
    "into": ('the name of a step, as "matmul"', lambda v: isinstance(v, str)),
    "function": ('a function, or its name, as "torch.mm"', lambda v: isinstance(v, str) or callable(v)),
    "runs": _FLAG,
    "fallback": (PLACED[0], lambda v: v is None or PLACED[1](v)),
    "slots": (f"the number of buffers that take turns, from 1 to {COUNT:,}", _COUNT[1]),
    "ll": _FLAG,
}
"""What parameters of a placement, and of a schedule, hold; every other keyword of a placement is a tile size."""


def holds(field: str, value: Any) -> bool:
    """Whether a field of a placement other than `tile`, or one of a schedule, may have this value."""
    return FIELDS[_OPTIONS.get(field, field)][1](value)
