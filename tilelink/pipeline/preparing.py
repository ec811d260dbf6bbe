"""What a call needs and its data does not change: arguments bound, memory taken, kernels loaded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.frontend import check_keywords
from tilelink.ir.plan import Plan
from tilelink.pipeline.arguments import Bound, bind, check_devices, check_results, in_words, stored
from tilelink.pipeline.by_runs import refused
from tilelink.pipeline.contracts import broken
from tilelink.pipeline.reports import describe
from tilelink.pipeline.stages import Maker, Stages
from tilelink.runtime.apart import Written
from tilelink.runtime.call import Prepared, results_on
from tilelink.runtime.memory import Workspace, regions, union
from tilelink.runtime.refusals import Stated
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
        results = results_on(stages.plan, world.rank)
        check_results(maker.name, outs, results, tensors[0].device, maker.loc)
    except TilelinkError as error:
        vigil.compare(maker.identity, error)
        raise
    plan, said = stages.plan, stated(maker, session, found, stages, tensors)
    if traced:
        stages = Stages.of(plan, stages.lowered, stages.verdict, vigil.checks, traced=True)
    written = Written.of(plan, tensors, [math.prod(shape) * dtype.itemsize for _, shape, dtype in results])
    wrong = refused(plan) or written.refused(tensors, outs) or violated(session, plan, tensors, given)
    vigil.compare(maker.identity, wrong or said)
    loaded, memory = stages.on(world.rank), workspace(maker, session, found, plan)
    source = stages.source
    watch = vigil.guard.watch((source.digest, plan.sizes), describe(plan, source, world.rank)) if vigil.guard else None
    prepared = Prepared.of(loaded, memory, said, watch, written)
    prepared.changed = stages.outside.changed if stages.outside is not None else None
    return prepared


def stated(
    maker: Maker, session: Session, bound: Bound, stages: Stages | None = None, tensors: Sequence[torch.Tensor] = ()
) -> Stated:
    """What this rank says of a call. `stages`: of what runs it; None: it is the plain form."""
    call, how = in_words(maker.name, bound, maker.fn), str(maker.schedule) or "as it comes"
    if stages is None:
        return Stated(call, how, loc=maker.loc)
    plan, checks = stages.plan, str(session.vigil.checks)
    where = zip(map(plan.buffer, plan.wiring.arguments), tensors, strict=True)
    text = hashlib.sha256(repr((stages.source.digest, plan.tables)).encode()).hexdigest()
    return Stated(
        call=call,
        how=f"{how} with {checks}" if checks else how,
        places=tuple((b.tensor, None if b.staged else session.place(t)) for b, t in where if b.reached),
        of=repr((bound.layouts, plan.topology)),
        text=text,
        loc=maker.loc,
    )


def again(
    maker: Maker,
    session: Session,
    prepared: Prepared,
    tensors: Sequence[Any],
    outs: Sequence[Any],
    given: Mapping[str, Any],
) -> None:
    """What is looked at before a later call of a kind: where peers are to read its arguments; in debug mode everything."""
    vigil, said = session.vigil, prepared.said
    places = tuple([session.place(tensors[k]) for k in prepared.in_place])
    if not vigil.debug and prepared.places.get(places):
        return
    if places:
        moved = {prepared.arguments[k]: place for k, place in zip(prepared.in_place, places, strict=True)}
        said = replace(said, places=tuple((name, moved.get(name)) for name, _ in said.places))
    wrong = prepared.written.refused(tensors, outs) or violated(session, prepared.plan, tensors, given)
    vigil.compare(maker.identity, wrong or said)
    prepared.places[places] = True


def run(
    session: Session, prepared: Prepared, tensors: Sequence[Any], outs: Sequence[Any] = ()
) -> tuple[torch.Tensor, ...]:
    """The call itself.

    Raises:
        TilelinkError: TL240, TL244 to TL246, the call would write to what it must not write to.
    """
    vigil, written = session.vigil, prepared.written
    writes = bool(outs or written.stored)
    if writes and (wrong := written.refused(tensors, outs)) is not None:
        raise wrong
    # Compilers take their time: ranks wait for one another before any wait is timed.
    timed = vigil.watchdog is not None and not prepared.workspace.calls
    values = prepared.run(
        _stored(prepared, tensors), outs, (lambda: vigil.agree("has compiled", None)) if timed else None
    )
    if writes:
        written.changed(tensors, outs)
    vigil.end()
    return values


def load(prepared: Prepared, tensors: Sequence[Any]) -> None:
    """Compile and load what calls with such arguments will start. Starts nothing; on this rank alone."""
    prepared.load(_stored(prepared, tensors))


def _stored(prepared: Prepared, tensors: Sequence[Any]) -> Sequence[Any]:
    return stored(prepared.plan.wiring.signature, tensors) if prepared.sliced else tensors


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
    return session.workspace(maker.identity, wanted)
