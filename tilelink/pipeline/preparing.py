"""What a call needs and its data does not change: arguments bound, memory taken, kernels loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilelink.codegen import emit
from tilelink.errors import TilelinkError
from tilelink.frontend import check_keywords
from tilelink.ir.plan import Plan
from tilelink.pipeline.apart import sharing, written
from tilelink.pipeline.arguments import Bound, bind, check_devices, check_results, in_words, stored
from tilelink.pipeline.by_runs import refused
from tilelink.pipeline.contracts import broken
from tilelink.pipeline.reports import describe
from tilelink.pipeline.stages import Maker, Stages
from tilelink.runtime.call import Prepared
from tilelink.runtime.memory import Workspace, regions, union
from tilelink.runtime.session import Session


def prepare(
    maker: Maker,
    session: Session,
    tensors: Sequence[Any],
    outs: Sequence[Any],
    given: dict[str, Any],
    *,
    traced: bool = False,
) -> Prepared:
    """Everything about a call that does not depend on its data. Collective: a rank's error is every rank's.

    Raises:
        TilelinkError: before any launch, on the user's line.
    """
    world, vigil = session.world, session.vigil
    try:
        found = bind_here(maker, session, tensors, given)
        stages = maker.stages(found, world.topology, vigil.checks)
    except TilelinkError as error:
        vigil.compare(error)
        raise
    plan, said = stages.plan, _call(stages.plan)
    if traced:
        stages = Stages(plan, stages.verdict, emit(plan, vigil.checks, traced=True))
    numbers = written(plan)
    mixed = sharing(plan, numbers, tensors, ())
    vigil.compare(refused(plan) or mixed or violated(session, plan, tensors, given) or said)
    loaded, memory = stages.on(world.rank), workspace(maker, session, found, plan)
    source = stages.source
    watch = vigil.guard.watch((source.digest, plan.sizes), describe(plan, source, world.rank)) if vigil.guard else None
    prepared = Prepared.of(loaded, memory, said, watch, numbers)
    prepared.changed = stages.outside.changed if stages.outside is not None else None
    check_results(maker.name, outs, prepared.results, world.topology.world != "simulated", maker.loc)
    return prepared


def run(
    session: Session, prepared: Prepared, tensors: Sequence[Any], outs: Sequence[Any] = ()
) -> tuple[torch.Tensor, ...]:
    """The call itself.

    Raises:
        TilelinkError: TL240, an argument that is written to shares memory with another one.
    """
    world, vigil = session.world, session.vigil
    if prepared.written and (mixed := sharing(prepared.plan, prepared.written, tensors, outs)) is not None:
        raise mixed
    # Compilers take their time: ranks wait for one another before any wait is timed.
    timed = vigil.watchdog is not None and not prepared.workspace.calls
    if prepared.sliced:
        tensors = stored(prepared.plan.wiring.signature, tensors)
    values = prepared.run(tensors, outs, (lambda: world.agree(None)) if timed else None)
    vigil.end()
    return values


def bind_here(maker: Maker, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> Bound:
    """The arguments of a call on this rank, checked and bound to the signature's sizes."""
    world = session.world
    check_keywords(maker.name, maker.fn, maker.signature, given)
    found = bind(maker.name, maker.signature, tensors, given, world.topology, maker.loc, session.shares, world.rank)
    check_devices(maker.name, tensors, world.topology.world != "simulated", maker.loc)
    return found


def violated(session: Session, plan: Plan, tensors: Sequence[Any], given: Mapping[str, Any]) -> TilelinkError | None:
    """In debug mode: an argument that does not keep its contract."""
    if not session.vigil.debug or session.world.capturing():
        return None
    session.world.drain()
    return broken(plan, tensors, given)


def workspace(maker: Maker, session: Session, of: Bound, plan: Plan) -> Workspace:
    """The workspace for a plan, of the capacity that has been reserved."""
    wanted, reserved = regions(plan), session.reserved.get(maker.identity, {})
    most = tuple((name, max(size, reserved.get(name, 0))) for name, size in of.sizes)
    if most != of.sizes:
        wanted = union(wanted, regions(maker.stages(replace(of, sizes=most), plan.topology).plan))
    return session.workspace(maker.identity, wanted, _call(plan))


def _call(plan: Plan) -> str:
    """A plan's call in words."""
    wiring = plan.wiring
    return in_words(wiring.name, plan.sizes, (wiring.tensor(name).dtype for name in wiring.arguments))
