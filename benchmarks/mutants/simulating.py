"""Running a plan, as it is or changed, in the simulated backend; and whether anything is wrong with that."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.mutants.edits import Running
from benchmarks.mutants.mappings import DEVICE, RANKS, Mapping
from tilelink.errors import TilelinkError
from tilelink.ir.shape import RANK_AXIS
from tilelink.runtime.backend import Call
from tilelink.runtime.call import Loaded, Slot, prepare
from tilelink.runtime.kernels import load
from tilelink.runtime.launching import simulated
from tilelink.runtime.memory import DTYPES, extents, regions
from tilelink.runtime.session import require
from tilelink.runtime.simulated import SimulatedBackend
from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.scheduler import Turns

HOW = {"TL501": "standstill", "TL507": "race"}
TRUSTED = 2
"""Runs of a mutant that is proven to do no harm: of proof and simulation neither is to be wrong."""
CALLS = 3
"""Enough for one of two slots to be used again."""
Results = Sequence[Sequence[torch.Tensor]]
"""By rank, all results of all calls."""


@dataclass(frozen=True, slots=True)
class Adversary:
    """Who is slow, and the seed of every other choice. `idle`: the rank whose tables choose nothing. `unwritten`: each byte of
    what nobody has written: NaN and -1, or 0."""

    seed: int
    straggler: int | None
    idle: int | None = None
    unwritten: int = 0xFF

    @property
    def turns(self) -> Turns:
        return Turns(self.seed, self.straggler)


ADVERSARIES = (
    Adversary(0, None),
    Adversary(1, 0, idle=0),
    Adversary(2, RANKS - 1),
    Adversary(3, 1),
    Adversary(4, None),
)
"""Nobody has to wait for the rows of a slow rank of which no row is chosen."""


class OutOfTime(Exception):
    """Looked at for so long, a mutant showed nothing."""


class Timed(Turns):
    """Somebody's turns, until `end`, seconds of the monotonic clock."""

    def __init__(self, turns: Turns, end: float) -> None:
        self._turns = turns
        self._end = end

    def __str__(self) -> str:
        return str(self._turns)

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, agent: Agent) -> None:
        self._turns.add(agent)

    def next(self) -> Agent:
        if time.monotonic() > self._end:
            raise OutOfTime
        return self._turns.next()

    def yields(self, agent: Agent) -> bool:
        return self._turns.yields(agent)

    def interrupts(self) -> bool:
        return self._turns.interrupts()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a simulation noticed; None: nothing. `how`: standstill | race | refused | numbers."""

    how: str
    text: str


def results_of(mapping: Mapping, found: Running, adversary: Adversary, end: float = float("inf")) -> Results:
    """Call after call with other inputs, nothing waited for in between.

    Raises:
        TilelinkError: TL501 and whatever else the simulated backend says.
        OutOfTime: the monotonic clock is past `end`.
    """
    module = load(replace(found.source, lines=(), advice=()))
    loaded = [Loaded(found.plan, found.source, module, streams) for streams in found.streams]
    turns = Timed(adversary.turns, end)
    return simulated(lambda: _rank(mapping, loaded, adversary), RANKS, policy=turns, device=DEVICE)


def _arguments(mapping: Mapping, call: int, rank: int, idle: int | None) -> list[torch.Tensor]:
    found = replace(mapping.case, seed=call).arguments(rank)  # each call has inputs of its own
    for tensor, shape in zip(found, mapping.operator.signature.inputs, strict=True):
        chosen = shape.contract is not None and shape.contract.kind == "below"
        if rank == idle and chosen and any(a.split == RANK_AXIS for a in shape.axes):
            tensor.fill_(-1)
    return found


def _rank(mapping: Mapping, loaded: list[Loaded], adversary: Adversary) -> list[torch.Tensor]:
    session = require()
    backend, mine = session.backend, loaded[session.backend.rank]
    assert isinstance(backend, SimulatedBackend)
    plan = mine.plan
    workspace = session.workspace("mutant", regions(plan))
    tensors_of = {f"{b.name}/{k}" for b in plan.buffers for k in range(b.slots)}
    for region in workspace.capacity.values():
        if region.name in tensors_of:
            workspace.view(region.name, torch.uint8, region.nbytes).fill_(adversary.unwritten)
    backend.barrier()  # nobody is to be pushed to before
    slots: list[Slot] = []
    out: list[torch.Tensor] = []
    kept: list[dict[str, torch.Tensor]] = []
    for call in range(CALLS):
        given = _arguments(mapping, call, backend.rank, adversary.idle)
        tensors = dict(zip(plan.wiring.arguments, given, strict=True))
        for name in plan.wiring.results:
            b = plan.buffer(name)
            tensors[name] = backend.maker(extents(plan, b, backend.rank), DTYPES[b.dtype])()
            tensors[name].view(torch.uint8).fill_(adversary.unwritten)
        kept.append(tensors)
        this = Call(tensors, int(plan.takes_credits or not call), backend, backend.main_stream())
        slots = slots or [prepare(mine, workspace, slot, this) for slot in range(plan.schedule.slots)]
        for step in slots[call % plan.schedule.slots].steps:
            step(this)
        for name in plan.wiring.results:
            # Whoever goes on from the main stream takes the results there, and nobody waits for more.
            out.append(torch.empty_like(tensors[name]))
            backend.main_stream().copy(out[-1], tensors[name])
        for name in plan.wiring.arguments:
            # The call is over for whoever goes on from the main stream, and the argument is his again.
            spoilt = torch.nan if tensors[name].is_floating_point() else -1
            backend.main_stream().copy(tensors[name], torch.full_like(tensors[name], spoilt))
    backend.finish()
    return out


def noticed(
    mapping: Mapping,
    expected: Callable[[Adversary], Results],
    found: Running,
    seconds: float = 600,
    harmless: Callable[[], bool] = lambda: False,
) -> Seen | None:
    """The first thing that goes wrong, whoever is slow; None: nothing, or not in so many seconds.

    Args:
        expected: what the plan gives on the same data; asked for when a run gets to its end.
        harmless: whether it is proven that nothing can go wrong; asked when nothing has. Then two runs are enough.
    """
    end = time.monotonic() + seconds
    for number, adversary in enumerate(ADVERSARIES):
        if number == TRUSTED and harmless():
            return None
        try:
            got = results_of(mapping, found, adversary, end)
        except OutOfTime:
            return None
        except TilelinkError as error:
            # Addresses differ from run to run.
            text = re.sub(r"0x[0-9a-f]+", "an address", error.message)
            return Seen(HOW.get(error.code, "refused"), f"{error.code} {text}")
        for text in differences(expected(adversary), got):
            return Seen("numbers", text)
    return None


def differences(expected: Results, got: Results, where: Results | None = None) -> Iterator[str]:
    """A NaN is a difference, unless nobody is to write there. Sums may be taken in another order. `where`: only there."""
    for rank, (want, have) in enumerate(zip(expected, got, strict=True)):
        for k, (a, b) in enumerate(zip(want, have, strict=True)):
            near = torch.isclose(a.float(), b.float(), rtol=1e-4, atol=1e-3, equal_nan=True)
            if not bool((near if where is None else near | ~where[rank][k]).all()):
                yield f"result {k} of rank {rank} differs"
