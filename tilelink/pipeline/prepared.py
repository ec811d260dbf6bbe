"""A call of one kind on one rank, bound: checked and agreed on, in its workspace, its kernels loaded with the first call."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tilelink.codegen import emit
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.pipeline.arguments import Bound, bind, check_memory, check_results, constants_of, in_words, stored
from tilelink.pipeline.choosing import undivided
from tilelink.pipeline.compiled import Compiled, refused
from tilelink.pipeline.reports import broken, describe
from tilelink.runtime.aliasing import Written, span, writes_of
from tilelink.runtime.backend import Call
from tilelink.runtime.cache import Recent
from tilelink.runtime.call import Slot, prepare, results_on
from tilelink.runtime.memory import Workspace, regions, union
from tilelink.runtime.refusals import Stated, warn_once
from tilelink.runtime.session import Session

if TYPE_CHECKING:
    from tilelink.pipeline.operator import Operator

Result: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
PLACES_KEPT = 1024
"""Places of arguments that peers read where they lie: those of the last calls of a kind are known to be agreed on."""


class Prepared:
    """What a cached call needs and nothing else. Making it is collective: a rank's error is every rank's.

    `loaded`: plan and kernels. `said`: what this rank says of the call, which is the same on all ranks. `slots`: the steps of a
    call on each slot; made at the first call, all of them, so that the second is like every other. `in_place`: the arguments
    that peers read where they lie, by number. `fresh`: makes each result. `changed`: whether something is another one by now
    of what the plan's functions read in modules and closures; None: they read nothing. `settled`: only in debug mode is anything
    looked at before a later call.

    Args:
        tensors, outs, given: as of a call.
        traced: with kernels that write down when they do what.

    Raises:
        TilelinkError: before any launch, on the user's line.
    """

    __slots__ = (
        "_agreed", "_arguments", "_operator", "_results", "_session", "_viewed", "_watch", "_written",
        "changed", "fresh", "in_place", "loaded", "plan", "said", "settled", "slots", "workspace",
    )  # fmt: skip

    def __init__(
        self,
        operator: Operator,
        session: Session,
        tensors: Sequence[Any],
        outs: Sequence[Any],
        given: dict[str, Any],
        *,
        traced: bool = False,
    ) -> None:
        backend, vigil = session.backend, session.vigil
        self._operator, self._session = operator, session
        try:
            found = bind_here(operator, session, tensors, given)
            made = operator.compiled(found, vigil.checks)
            results = results_on(made.plan, backend.rank)
            check_results(operator, outs, results, tensors[0].device)
        except TilelinkError as error:
            vigil.compare(operator.identity, error)
            raise
        self.plan: Plan = made.plan
        self.said = stated(operator, session, found, made, tensors)
        if traced:
            source = emit(made.plan, made.lowered, vigil.checks, traced=True)
            made = replace(made, source=source, loaded={})
        nbytes = [math.prod(shape) * dtype.itemsize for _, shape, dtype in results]
        spans = (*map(span, tensors), *nbytes)
        self._written = Written(operator.name, operator.loc, len(tensors), writes_of(self.plan), spans)
        self._agree(tensors, outs, given, refused(self.plan) or self.said)
        self.loaded = made.on(backend.rank)
        self.workspace: Workspace = workspace(operator, session, found, self.plan)
        guard = vigil.guard
        self._watch = guard.watch(describe(self.plan, made.source, backend.rank)) if guard is not None else None
        self.changed = made.outside.changed if made.outside is not None else None
        self._arguments = self.plan.wiring.arguments
        self._results = [name for name, _, _ in results]
        self.fresh = [backend.maker(shape, dtype) for _, shape, dtype in results]
        buffers = enumerate(map(self.plan.buffer, self._arguments))
        self.in_place = [k for k, b in buffers if b.reached and not b.staged]
        self.settled = self.changed is None and not self.in_place
        # Programs take a view of an argument: without the axis of one element of a slice, or truth values as bytes.
        self._viewed = any(a.own_slice for shape in self.plan.wiring.signature.inputs for a in shape.axes)
        self._viewed |= any(t.dtype == torch.bool for t in tensors)
        self._agreed = Recent[bool](PLACES_KEPT)
        self.slots: tuple[Slot, ...] = ()

    def _agree(
        self, tensors: Sequence[Any], outs: Sequence[Any], given: Mapping[str, Any], said: Stated | TilelinkError
    ) -> None:
        """Every rank makes this call, and none finds anything wrong with it; `said`: what this one says, or has found so far."""
        backend, vigil = self._session.backend, self._session.vigil
        if isinstance(said, Stated):
            said = self._written.refused(tensors, outs) or said
        if isinstance(said, Stated) and vigil.debug and not backend.capturing():
            backend.drain()
            said = broken(self.plan, tensors, given) or said
        vigil.compare(self._operator.identity, said)

    def again(self, tensors: Sequence[Any], outs: Sequence[Any], given: Mapping[str, Any]) -> None:
        """What is looked at before a later call: where peers are to read its arguments; in debug mode everything."""
        place = self._session.backend.arenas.place
        places, said = tuple([place(tensors[k]) for k in self.in_place]), self.said
        if not self._session.vigil.debug and self._agreed.get(places):
            return
        if places:
            moved = {self._arguments[k]: place for k, place in zip(self.in_place, places, strict=True)}
            said = replace(said, places=tuple((name, moved.get(name)) for name, _ in said.places))
        self._agree(tensors, outs, given, said)
        self._agreed[places] = True

    def run(self, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None] = ()) -> Result:
        """One call.

        Args:
            outs: where results go, as many as are given.

        Raises:
            TilelinkError: TL240, TL244 to TL246, the call would write to what it must not write to; TL478, from then on, if
                a step fails.
        """
        vigil, space, written = self._session.vigil, self.workspace, self._written
        writes = bool(outs or written.stored)
        if writes and (wrong := written.refused(tensors, outs)) is not None:
            raise wrong
        backend = space.backend
        capturing = backend.capturing()
        if capturing:
            space.replayed.add(self)
        call = self.ready(tensors, outs, capturing)
        if vigil.watchdog is not None and not space.calls:
            # Compilers take their time: ranks wait for one another before any wait is timed.
            vigil.agree("has compiled", None)
        calls = space.calls
        try:
            for step in self.slots[calls % len(self.slots)].steps:
                step(call)
            space.calls = calls + 1
        finally:
            # By whatever error, Ctrl-C too. A graph that is not there runs nothing.
            if space.calls == calls and not capturing:
                error = sys.exception()
                space.broken = f"{type(error).__name__}: {error}".splitlines()[0]
                self._session.prepared[self._operator.identity].clear()
        space.heard = not self.plan.takes_credits
        backend.finish()
        if writes:
            written.changed(tensors, outs)
        vigil.end()
        return alone([call.tensors[name] for name in self._results])

    def ready(
        self,
        tensors: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor | None] = (),
        capturing: bool | None = None,
    ) -> Call:
        """A call whose kernels are compiled and loaded. Starts nothing; on this rank alone."""
        if self._viewed:
            tensors = stored(self.plan.wiring.signature, tensors)
        space, named = self.workspace, dict(zip(self._arguments, tensors, strict=True))
        for k, name in enumerate(self._results):
            out = outs[k] if k < len(outs) else None
            named[name] = self.fresh[k]() if out is None else out
        credits = 1 if space.replayed or not space.heard else 0
        call = Call(named, credits, space.backend, space.backend.main_stream(capturing))
        if not self.slots:
            slots = range(self.plan.schedule.slots)
            self.slots = tuple([prepare(self.loaded, space, slot, call, self._watch) for slot in slots])
        return call


class Unfused:
    """The unfused form of an operator, whose libraries take their turns, for calls of one kind. Making it is collective.

    Args:
        tensors, outs, given: as of a call.

    Raises:
        TilelinkError: those of arguments and of `reference_of`.
    """

    __slots__ = ("_checked", "_operator", "_reference", "_said", "_session", "_written")

    in_place: Sequence[int] = ()
    changed = None
    settled = True

    def __init__(
        self,
        operator: Operator,
        session: Session,
        tensors: Sequence[Any],
        outs: Sequence[Any],
        given: dict[str, Any],
    ) -> None:
        self._operator, self._session = operator, session
        try:
            bound = bind_here(operator, session, tensors, given)
            reference = reference_of(operator, session, bound)
        except TilelinkError as error:
            session.vigil.compare(operator.identity, error)
            raise
        taken = constants_of(operator.signature, given, operator.uneven)
        self._reference = partial(reference, **taken, group=session.backend.group)
        self._said = Stated(in_words(operator, bound), str(operator.schedules) or "default", loc=operator.loc)
        spans = tuple(map(span, (*tensors, *outs)))
        self._written = Written(operator.name, operator.loc, len(tensors), (), spans)
        self._checked = not outs
        self.again(tensors, outs)

    def again(self, tensors: Sequence[Any], outs: Sequence[Any], *_: object) -> None:
        """What is looked at before a later call, in debug mode: that all ranks make it, and none must not."""
        self._session.vigil.compare(self._operator.identity, self._written.refused(tensors, outs) or self._said)

    def run(self, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None] = ()) -> Result:
        """One call; arguments and errors as of `Prepared.run`, and TL226, results do not fit into `outs`."""
        if outs and (wrong := self._written.refused(tensors, outs)) is not None:
            raise wrong
        backend = self._session.backend
        if backend.ranks > 1 and not backend.only_references:
            backend.main_stream()  # collectives of libraries take their turn with kernels, too
        cast = torch._C._is_any_autocast_enabled()
        for t in tensors:
            if cast or (t.requires_grad and torch.is_grad_enabled()):
                # As programs run, which no mode of torch's changes.
                with torch.no_grad(), torch.autocast(t.device.type, enabled=False):
                    found = self._reference(*tensors)
                break
        else:
            found = self._reference(*tensors)
        if not outs:
            return alone(found) if isinstance(found, tuple) else found
        values = found if isinstance(found, tuple) else (found,)
        if not self._checked:
            results = [("", tuple(v.shape), v.dtype) for v in values]
            check_results(self._operator, outs, results, tensors[0].device)
            self._checked = True
        into = (*outs, *[None] * (len(values) - len(outs)))
        return alone([v if t is None else t.copy_(v) for v, t in zip(values, into, strict=True)])


def alone(results: Sequence[torch.Tensor]) -> Result:
    """What a call gives: of one result the tensor itself."""
    return results[0] if len(results) == 1 else tuple(results)


def reference_of(operator: Operator, session: Session, bound: Bound) -> Callable[..., Any]:
    """The unfused form of a call.

    Raises:
        TilelinkError: TL229, there is none here; TL474, processes on CPUs run nothing but references, and this call has none.
    """
    name, reference, backend = operator.name, operator.reference_fn, session.backend
    sizes, uneven = dict(bound.sizes), undivided(operator.signature, bound, operator.uneven)
    ragged = [dim for dim in uneven if dim in sizes] if backend.only_references else []
    if reference is not None and backend.group is not None and not ragged:
        return reference
    why, hint = "it has no reference", f"write its unfused form in torch, `@{name}.reference`"
    if not backend.only_references:
        why = why if reference is None else "its libraries need GPUs"
        raise TilelinkError("TL229", f"`{name}` has no unfused form here", loc=operator.loc, why=why)
    if reference is not None:
        shown = ", ".join(f"{dim}={sizes[dim]}" for dim in ragged)
        why = f"its reference takes parts of one size, and {backend.ranks} ranks do not divide {shown}"
        hint = f"give its reference the parameter `{ragged[0]}`"
    raise TilelinkError(
        "TL474",
        f"`{name}` cannot run in processes on the CPU",
        loc=operator.loc,
        why=f"operators run their references there, and {why}",
        hint=f"{hint}, or simulate the ranks: tilelink.launch without torchrun",
    )


def stated(
    operator: Operator,
    session: Session,
    bound: Bound,
    made: Compiled,
    tensors: Sequence[torch.Tensor],
) -> Stated:
    """What this rank says of a call of the tile programs."""
    plan, how, checks = made.plan, str(operator.schedules) or "default", str(session.vigil.checks)
    where = zip(map(plan.buffer, plan.wiring.arguments), tensors, strict=True)
    text = hashlib.sha256(repr((made.source.digest, plan.tables)).encode()).hexdigest()
    return Stated(
        call=in_words(operator, bound),
        how=f"{how} with {checks}" if checks else how,
        places=tuple((b.name, None if b.staged else session.backend.arenas.place(t)) for b, t in where if b.reached),
        of=repr((bound.layouts, plan.topology)),
        text=text,
        loc=operator.loc,
    )


def bind_here(operator: Operator, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> Bound:
    """The arguments of a call on this rank, checked and bound to the signature's sizes."""
    backend = session.backend
    found = bind(operator, tensors, given, backend.topology, session.shares, backend.rank)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        layers = "operators and layers with gradients are in tilelink.nn.functional"
        warn_once(f"results of `{operator.name}` have no gradient: {layers}")
    check_memory(operator, tensors, backend.device)
    return found


def workspace(operator: Operator, session: Session, of: Bound, plan: Plan) -> Workspace:
    """The workspace for a plan, of the capacity that has been reserved."""
    wanted, reserved = regions(plan), session.reserved.get(operator.identity, {})
    most = tuple((name, max(size, reserved.get(name, 0))) for name, size in of.sizes)
    if most != of.sizes:
        wanted = union(wanted, regions(operator.compiled(replace(of, sizes=most)).plan))
    return session.workspace(operator.identity, wanted)
