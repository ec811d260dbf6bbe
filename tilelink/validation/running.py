"""A run of the emitted file on simulated ranks that is written down: call after call, back to back, as operators make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.topology import Device
from tilelink.runtime.backend import Call
from tilelink.runtime.call import Loaded, Slot, prepare, results_on
from tilelink.runtime.launching import simulated
from tilelink.runtime.memory import Workspace, regions
from tilelink.runtime.session import Session, require
from tilelink.validation.places import Places
from tilelink.validation.recording import Recording


@dataclass(frozen=True, slots=True)
class Run:
    """What was written down of `calls` calls, and by rank the workspace as they left it. `credits`: whether each call takes its
    credits; `results`: by rank, of each call. `error`: what ended it, if something did."""

    recording: Recording
    calls: int
    credits: tuple[bool, ...]
    spaces: tuple[Workspace | None, ...]
    results: tuple[tuple[torch.Tensor, ...], ...]
    error: TilelinkError | None


def run(
    lowered: Lowered,
    loaded: Sequence[Loaded],
    arguments: Sequence[Sequence[torch.Tensor]],
    calls: int,
    seed: int = 0,
    device: Device | None = None,
) -> Run:
    """`loaded`, `arguments`: by rank. `device`: of the ranks, with as many multiprocessors as the plan is for."""
    plan, ranks = loaded[0].plan, len(loaded)
    takes = tuple(plan.takes_credits or not call for call in range(calls))
    loops = {loop.path for e in lowered.executors for loop in e.loops}
    functions = {name: path for name, path in loaded[0].source.functions if path in loops}
    recording = Recording(functions)
    spaces: list[Workspace | None] = [None] * ranks
    results: list[list[torch.Tensor]] = [[] for _ in range(ranks)]

    def rank() -> None:
        session = require()
        backend, me = session.backend, session.backend.rank
        space = spaces[me] = session.workspace("validation", regions(plan))
        recording.places.workspace(space, lowered, me)
        backend.barrier()
        slots: list[Slot] = []
        for call in range(calls):
            tensors = _tensors(recording.places, loaded[me], arguments[me], session)
            this = Call(tensors, int(takes[call]), backend, backend.main_stream())
            slots = slots or [prepare(loaded[me], space, slot, this) for slot in range(plan.schedule.slots)]
            results[me] += [tensors[name] for name in plan.wiring.results]
            recording.calls[me] = call
            for step in slots[call % plan.schedule.slots].steps:
                step(this)
        backend.finish()

    mesh = {a.name: a.size for a in plan.topology.axes} if plan.topology.axes else None
    error = None
    try:
        simulated(rank, ranks, axes=mesh, seed=seed, races=recording, device=device or plan.topology.device)
    except TilelinkError as found:
        if not recording.calls:
            raise  # nothing has run
        error = found
    return Run(recording, calls, takes, tuple(spaces), tuple(map(tuple, results)), error)


def _tensors(
    places: Places, loaded: Loaded, arguments: Sequence[torch.Tensor], session: Session
) -> dict[str, torch.Tensor]:
    """Arguments and fresh results of a call, by name; a call has memory of its own for each, which peers reach where they read
    an argument in place."""
    plan, rank = loaded.plan, session.backend.rank
    found: dict[str, torch.Tensor] = {}
    for name, t in zip(plan.wiring.arguments, arguments, strict=True):
        buffer = plan.buffer(name)
        in_place = buffer.reached and not buffer.staged
        own = session.empty(t.shape, t.dtype) if in_place else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        found[name] = own.copy_(t)
    for name, shape, dtype in results_on(plan, rank):
        found[name] = torch.full(shape, 0, dtype=torch.uint8).to(dtype)
    for name, tensor in found.items():
        places.tensor(tensor, name, rank)
    return found
