"""Running a plan, as it is or changed, in the simulated world; and whether anything is wrong with that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.mutants.edits import Running
from benchmarks.mutants.mappings import DEVICE, RANKS, Mapping
from tilelink.errors import TilelinkError
from tilelink.runtime.call import Loaded, Slot, prepare
from tilelink.runtime.kernels import load
from tilelink.runtime.memory import DTYPES, extents, regions
from tilelink.runtime.session import require, simulated
from tilelink.runtime.work import Call

HOW = {"TL501": "standstill", "TL507": "race"}
CALLS = 3
"""Enough for one of two slots to be used again."""
Results = list[list[torch.Tensor]]
"""By rank, all results of all calls."""


@dataclass(frozen=True, slots=True)
class Adversary:
    """Who is slow, and the seed of every other choice."""

    seed: int
    straggler: int | None


ADVERSARIES = (Adversary(0, None), Adversary(1, 0), Adversary(2, RANKS - 1), Adversary(3, 1), Adversary(4, None))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a simulation noticed; None: nothing. `how`: standstill | race | refused | numbers."""

    how: str
    text: str


def results_of(mapping: Mapping, found: Running, adversary: Adversary) -> Results:
    """Call after call with other inputs, nothing waited for in between.

    Raises:
        TilelinkError: TL501 and whatever else the simulated world says.
    """
    loaded = [
        Loaded(found.plan, found.source, load(found.source.text, found.source.digest, found.source.name), transfers)
        for transfers in found.transfers
    ]
    return simulated(
        lambda: _rank(mapping, loaded), RANKS, seed=adversary.seed, straggler=adversary.straggler, device=DEVICE
    )


def _rank(mapping: Mapping, loaded: list[Loaded]) -> list[torch.Tensor]:
    session = require()
    world, mine = session.world, loaded[session.world.rank]
    plan = mine.plan
    workspace = session.workspace("mutant", regions(plan), "mutant")
    slots: list[Slot] = []
    implied = all(c.implied_by is not None for c in plan.credits)
    out: list[torch.Tensor] = []
    kept: list[dict[str, torch.Tensor]] = []
    for call in range(CALLS):
        case = mapping.case_of_call(call)
        tensors = dict(zip(plan.wiring.arguments, case.arguments(world.rank), strict=True))
        for name in plan.wiring.results:
            b = plan.buffer(name)
            tensors[name] = world.empty(extents(plan, b, world.rank), DTYPES[b.dtype])
        kept.append(tensors)
        this = Call(tensors, int(not (implied and call)), world.main_stream())
        slots = slots or [prepare(mine, workspace, slot, this) for slot in range(plan.schedule.slots)]
        for step in slots[call % plan.schedule.slots].steps:
            step(this)
        out += [tensors[name] for name in plan.wiring.results]
        for name in plan.wiring.arguments:
            # The call is over for whoever goes on from the main stream, and the argument is his again.
            spoilt = torch.nan if tensors[name].is_floating_point() else -1
            world.main_stream().copy(tensors[name], torch.full_like(tensors[name], spoilt))
    world.finish()
    return out


def noticed(mapping: Mapping, expected: Results, found: Running) -> Seen | None:
    """The first thing that goes wrong, whoever is slow."""
    for adversary in ADVERSARIES:
        try:
            got = results_of(mapping, found, adversary)
        except TilelinkError as error:
            # Addresses differ from run to run.
            text = re.sub(r"0x[0-9a-f]+", "an address", error.message)
            return Seen(HOW.get(error.code, "refused"), f"{error.code} {text}")
        for text in _differences(expected, got):
            return Seen("numbers", text)
    return None


def _differences(expected: Results, got: Results) -> Iterator[str]:
    for rank, (want, have) in enumerate(zip(expected, got, strict=True)):
        for k, (a, b) in enumerate(zip(want, have, strict=True)):
            # A NaN is a difference, unless nobody is to write there. Sums may be taken in another order.
            if not torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-3, equal_nan=True):
                yield f"result {k} of rank {rank} differs"
