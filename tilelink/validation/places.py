"""Which piece of a plan's memory an address is: a flag of a rank, an element of a buffer, or what a call keeps for itself."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from tilelink.ir.lowered import STAGE, STATES, Buffer, Lowered
from tilelink.runtime.memory import DTYPES, WORD, Workspace, extent
from tilelink.runtime.simulated.agents import Span

Kind: TypeAlias = Literal["flags", "data", "ll", "doorbells", "counts", "expected", "state"]
"""`flags`: what awaits look at and signals write; `data`: elements; `ll`: elements beside numbers of calls; `doorbells`: of flags
that streams wait for; `counts`: of the tiles of a flag whose last one signals; `expected`, `state`: what calls keep to
themselves."""
Indices: TypeAlias = Any
"""Numbers of elements, as an array."""
OWN = {kept: name for name, kept in STATES.items()}
KINDS: dict[str, Kind] = {
    "flags": "flags",
    "epoch_flags": "flags",
    "doorbells": "doorbells",
    "counts": "counts",
    "expected": "expected",
    "work_indices": "state",
}
"""What the ends of names of a workspace's regions mean."""


@dataclass(frozen=True, slots=True)
class Place:
    """`slot`: of memory that calls take in turn, whose turn it is. `size`: bytes of an element, or of a flag; `each`: elements in
    eight bytes of `ll`."""

    kind: Kind
    name: str
    rank: int
    slot: int | None = None
    size: int = WORD
    each: int = 1
    start: int = 0
    end: int = 0
    numbers: Indices | None = None
    """Of a tensor with gaps, or with axes in another order: the number of the element at each place of its memory."""

    def indices(self, addresses: Indices, itemsize: int) -> Indices:
        """The elements of an access: of one that is wider than they are, all that it covers."""
        first = (addresses - self.start) // self.size * self.each
        wide = max(self.each, itemsize // self.size)
        if self.numbers is not None:
            return self.numbers[first]
        return first if wide == 1 else (first.reshape(-1, 1) + np.arange(wide)).reshape(-1)


@dataclass(slots=True)
class Places:
    """All memory that ranks reach in a run. Tensors are kept, so that no address comes again."""

    kept: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    _places: list[Place] = field(default_factory=list[Place])
    _starts: list[int] = field(default_factory=list[int])
    _memory: list[tuple[int, int]] = field(default_factory=list["tuple[int, int]"])
    """From where to where tensors and workspaces lie, with what is between the places of one."""

    def tensor(self, tensor: torch.Tensor, name: str, rank: int) -> None:
        """An argument or a result of a call."""
        self.kept.append(tensor)
        start, end = extent(tensor)
        self._memory.append((start, end))
        numbers = None
        if not tensor.is_contiguous():
            numbers = np.full((end - start) // tensor.element_size(), -1, dtype=np.int64)
            places = torch.arange(len(numbers)).as_strided(tensor.shape, tensor.stride())
            numbers[places.numpy().reshape(-1)] = np.arange(tensor.numel())
        place = Place("data", name, rank, None, tensor.element_size(), numbers=numbers)
        self._add(place, start, end - start)

    def workspace(self, space: Workspace, lowered: Lowered, rank: int) -> None:
        """What a rank has of it."""
        self._memory += [extent(space.arena.local), extent(space.device)]
        for region in space.capacity.values():
            base = space.arena.local if region.symmetric else space.device
            self._add(place_of(lowered, region.name, rank), base.data_ptr() + space.offsets[region.name], region.nbytes)

    def _add(self, place: Place, start: int, nbytes: int) -> None:
        if nbytes:
            at = bisect_right(self._starts, start)
            self._starts.insert(at, start)
            self._places.insert(at, replace(place, start=start, end=start + nbytes))

    def find(self, address: int) -> Place | None:
        at = bisect_right(self._starts, address) - 1
        return self._places[at] if at >= 0 and address < self._places[at].end else None

    def own(self, addresses: Indices) -> bool:
        """Whether one of some addresses is in memory of a call, be it between two places."""
        return any(((start <= addresses) & (addresses < end)).any() for start, end in self._memory)

    def touched(self, span: Span) -> tuple[Place | None, Indices]:
        """The place of an access, and its elements there. None: it reaches beyond one place, between a tensor's elements, or is
        none of the plan's memory."""
        addresses = span.addresses
        place = self.find(int(addresses.min()))
        if place is None or int(addresses.max()) + span.itemsize > place.end:
            return None, addresses
        indices = place.indices(addresses, span.itemsize)
        return (None, addresses) if (indices < 0).any() else (place, indices)


def place_of(lowered: Lowered, region: str, rank: int) -> Place:
    """What a region of the workspace is, in the words of the lowered plan."""
    name, _, slot = region.rpartition("/")
    if not name:
        return Place("flags", OWN[region], rank) if region in OWN else Place("state", region, rank)
    of, _, kind = name.rpartition(".")
    if not of:
        kind = ""  # a tensor may be called like any
    if kind == "made":
        return Place("flags", f"made.{of}", rank, int(slot))
    if kind in KINDS:
        return Place(KINDS[kind], of, rank, int(slot))
    if kind == "ll":
        each = 4 // DTYPES[_buffer(lowered, of).dtype].itemsize
        return Place("ll", of, rank, int(slot), WORD, each)
    buffer = _buffer(lowered, name)
    return Place("data", buffer.name, rank, int(slot), DTYPES[buffer.dtype].itemsize)


def _buffer(lowered: Lowered, name: str) -> Buffer:
    """The buffer that the workspace has of a tensor: of a staged argument its slots."""
    found = {b.name: b for b in lowered.buffers}
    return found.get(f"{name}{STAGE}", found[name])
