"""Memory beside the arguments of calls: symmetric arenas, and the workspaces that operators have there."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.lowered import Buffer
from tilelink.ir.plan import COPIES, LL_DATA, Plan
from tilelink.runtime.refusals import Place

if TYPE_CHECKING:
    from tilelink.runtime.backend import Backend


@dataclass(slots=True, eq=False)
class Arena:
    """One symmetric allocation: the same number of bytes on every rank, zeroed.

    `context`: int64 tensor on the device, `[my_pe, n_pes, base address of the arena on pe 0, on pe 1, …, number of pe 0, of
    pe 1, … among all ranks]`, which device functions take as their last argument. `number`: from 1, of memory of
    `tilelink.empty`; 0 of other memory.

    Args:
        backend: whose rank is its PE.
        local: this rank's instance, uint8.
        peers: every rank's instance, for streams, until `free`; of a rank that no pointer reaches this rank's own, by whose
            addresses NVSHMEM finds it.
        bases: their addresses as kernels see them, 0 where none reaches.
        release: gives the memory back; collective.
    """

    backend: Backend
    local: torch.Tensor
    peers: tuple[torch.Tensor, ...]
    bases: tuple[int, ...]
    release: Callable[[], None]
    number: int = 0
    context: torch.Tensor = field(init=False)
    _lines: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict[tuple[int, ...], torch.Tensor])

    def __post_init__(self) -> None:
        self.context = self.along(tuple(range(len(self.bases))))

    def along(self, line: tuple[int, ...] | None) -> torch.Tensor:
        """The context for some of the ranks, this one among them, or for all: the same tensor each time."""
        if line is None:
            return self.context
        if line not in self._lines:
            bases, numbers = ([of[r] for r in line] for of in (self.bases, self.backend.numbers))
            context = [line.index(self.backend.rank), len(line), *bases, *numbers]
            on = self.local.device
            self._lines[line] = self.backend.lasting(lambda: torch.tensor(context, dtype=torch.int64, device=on))
        return self._lines[line]

    def instance(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        """Rank `pe`'s instance of a contiguous tensor that lies here: flat, in its dtype."""
        start = tensor.data_ptr() - self.local.data_ptr()
        return self.peers[pe][start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)

    def free(self) -> None:
        """Collective. Tensors made of the arena are dangling afterwards; to free again does nothing."""
        if not self.bases:
            return
        self.peers = self.bases = ()
        self.backend.barrier()
        self.backend.arenas.remove(self)
        self.context = self.local = torch.empty(0, dtype=torch.uint8, device=self.context.device)
        self.release()


class Arenas:
    """The arenas of one rank that are not freed, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._arenas: list[Arena] = []
        self.emptied = 0
        """How many have been taken for `tilelink.empty`; most programs take none."""

    def add(self, arena: Arena) -> None:
        start = arena.local.data_ptr()
        at = bisect.bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._arenas.insert(at, arena)

    def remove(self, arena: Arena) -> None:
        at = self._arenas.index(arena)
        del self._starts[at], self._arenas[at]

    def find(self, tensor: torch.Tensor) -> Arena | None:
        """The arena that the tensor lies in, if one does."""
        at = bisect.bisect_right(self._starts, tensor.data_ptr()) - 1
        if at < 0 or tensor.data_ptr() - self._starts[at] >= self._arenas[at].local.numel():
            return None
        return self._arenas[at]

    def holding(self, tensor: torch.Tensor) -> Arena:
        """The same. Raises TL439, it lies in none."""
        found = self.find(tensor)
        if found is None:
            raise TilelinkError(
                "TL439",
                f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} is not in symmetric memory",
                why="peers reach a tensor in place only where every rank has one of the same size",
                hint="allocate it with tilelink.empty, or let the operator stage it",
            )
        return found

    def place(self, tensor: torch.Tensor) -> Place | None:
        """Where in memory of `tilelink.empty` the tensor begins; None: elsewhere. Without elements it begins nowhere."""
        found = self.find(tensor)
        if found is None or not found.number:
            return None
        return found.number, tensor.data_ptr() - found.local.data_ptr()


DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
NAMES: dict[torch.dtype, str] = {v: k for k, v in DTYPES.items()}
ALIGN = 256
WORD = 8
"""Bytes of a counter."""


@dataclass(frozen=True, slots=True)
class Region:
    """A named piece of memory: bytes, and whether peers reach it."""

    name: str
    nbytes: int
    symmetric: bool


def regions(plan: Plan) -> tuple[Region, ...]:
    """Everything a call needs beyond its arguments and results, for the plan's sizes; the same on every rank."""
    out = [Region(name, WORD * plan.topology.ranks, True) for name in ("entered", "ready", "left")]
    out += [Region(name, WORD * COPIES, False) for name in ("epoch", "heard")]
    out += [Region("through", WORD, False), Region("last", WORD * COPIES * plan.schedule.slots, False)]
    slots = range(plan.schedule.slots)
    for b in plan.buffers:
        if b.space == "device" or b.shared:
            name, nbytes = b.name, largest(plan, b) * DTYPES[b.dtype].itemsize
            if plan.ll and b.name in {c.tensor for c in plan.channels}:
                # Memory of its own: what other calls leave behind could read like the number of this one.
                name, nbytes = f"{b.name}.ll", nbytes // LL_DATA * WORD
            out += [Region(f"{name}/{k}", nbytes, b.shared) for k in range(b.slots)]
    for step in (s for s in plan.steps if s.deferred):
        # Its tiles come behind its host's; the first rank has most.
        own = int(F.evaluate(step.own_tiles(plan.step(step.executor)), plan.env(0)))
        sizes = {"made": WORD * max(1, own), "work_indices": WORD}
        out += [Region(f"{step.path}.{kind}/{k}", nbytes, False) for k in slots for kind, nbytes in sizes.items()]
    for c in plan.channels if not plan.ll else ():
        kinds = {"flags": c.scope == "sys", "expected": False} if c.doorbells != "alone" else {}
        if plan.epoch_signalled:
            # Numbers of calls, which calls that count notifies must not find among their counts.
            kinds = {"epoch_flags": True}
        kinds |= {"doorbells": False} if c.doorbells else {}
        kinds |= {"counts": False} if c.joined else {}
        nbytes = WORD * max(1, int(F.evaluate(c.flags, plan.env(0))))
        out += [Region(f"{c.tensor}.{kind}/{k}", nbytes, shared) for k in slots for kind, shared in kinds.items()]
    return tuple(out)


def union(some: Iterable[Region], others: Iterable[Region]) -> tuple[Region, ...]:
    """Every region of either, as large as the larger."""
    both = {r.name: r for r in some}
    for r in others:
        both[r.name] = max(both.get(r.name, r), r, key=lambda region: region.nbytes)
    return tuple(both.values())


def largest(plan: Plan, buffer: Buffer) -> int:
    """Elements of a buffer of the workspace on the rank that needs most: all ranks allocate as many."""
    return max(1, *(math.prod(extents(plan, buffer, r)) for r in (0, plan.topology.ranks - 1)))


def extents(plan: Plan, buffer: Buffer, rank: int) -> tuple[int, ...]:
    """Of a result, or of what the workspace has of a tensor."""
    return tuple(int(F.evaluate(e, plan.env(rank))) for e in buffer.stage or buffer.extents)


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and the byte after the last."""
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + (span * tensor.element_size() if tensor.numel() else 0)


@dataclass(slots=True)
class Workspace:
    """Memory that outlives a call. Growing it is collective and happens only when sizes exceed its capacity.

    Attributes:
        calls: calls made since it was allocated; chooses the slot.
        heard: whether in the last call this rank heard from every rank, so that the next may drop its credits.
        replayed: what calls were made with that CUDA graphs hold. A replay reads its memory, and uses its slot without the
            host knowing: once there is one, every call takes its credits.
        broken: what a call raised between its first step and its last: flags are no longer those of whole calls.
    """

    backend: Backend
    capacity: dict[str, Region]
    arena: Arena
    device: torch.Tensor
    offsets: dict[str, int]
    calls: int = 0
    heard: bool = False
    replayed: set[object] = field(default_factory=set[object])
    broken: str = ""

    @staticmethod
    def allocate(backend: Backend, wanted: tuple[Region, ...]) -> Workspace:
        """Collective: on all ranks or on none. Raises those of `Backend.arena`; TL471, some rank has no memory beside it."""
        offsets: dict[str, int] = {}
        total = {True: 0, False: 0}
        for r in wanted:
            offsets[r.name] = total[r.symmetric]
            total[r.symmetric] += -(-max(r.nbytes, 1) // ALIGN) * ALIGN
        symmetric = max(total[True], ALIGN)
        try:
            device = backend.zeros(max(total[False], ALIGN), torch.uint8)
        except RuntimeError as error:  # torch's: this GPU has no more
            backend.arena(symmetric, wrong=str(error))
            raise
        arena = backend.arena(symmetric)
        return Workspace(backend, {r.name: r for r in wanted}, arena, device, offsets)

    def fits(self, wanted: Iterable[Region]) -> bool:
        pairs = ((self.capacity.get(r.name), r) for r in wanted)
        return all(has is not None and has.nbytes >= r.nbytes and has.symmetric == r.symmetric for has, r in pairs)

    @torch.inference_mode(False)  # as `Backend.lasting`, without a thread for each
    def view(self, name: str, dtype: torch.dtype, count: int, pe: int | None = None) -> torch.Tensor:
        """`count` elements of a region, on this rank or on rank `pe`."""
        region = self.capacity[name]
        start = self.offsets[name]
        base = self.device if not region.symmetric else self.arena.local if pe is None else self.arena.peers[pe]
        return base[start : start + count * dtype.itemsize].view(dtype)

    def words(self, name: str) -> torch.Tensor:
        """All flags of a region, on this rank."""
        return self.view(name, torch.int64, self.capacity[name].nbytes // WORD)

    def close(self) -> None:
        """Free the memory. Collective; harmless when repeated."""
        self.replayed.clear()
        self.arena.free()
