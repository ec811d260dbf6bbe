"""Calls of an operator with one schedule on one rank: what its data does not change is prepared once per kind of call.

A cached call finds what was prepared by the facts of its arguments, and runs it. Everything else on this page is for the
first call of a kind: arguments bound, a schedule chosen, memory taken, kernels loaded, ranks asked whether they agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tilelink.errors import TilelinkError
from tilelink.frontend import check_keywords
from tilelink.ir.schedule import Schedule
from tilelink.ir.topology import Topology
from tilelink.pipeline.arguments import SCALAR, Bound, bind, exact, in_words
from tilelink.pipeline.choosing import Choice, choose, undivided
from tilelink.pipeline.prepared import Prepared, Unfused, bind_here
from tilelink.runtime.backend import Backend
from tilelink.runtime.cache import Recent
from tilelink.runtime.launching import SIMULATED, check_ranks, listed, simulated, spread
from tilelink.runtime.refusals import compare_calls, warn_once
from tilelink.runtime.session import Session, current, require

if TYPE_CHECKING:
    from tilelink.pipeline.operator import Operator

T = TypeVar("T")
Key: TypeAlias = tuple[object, ...]
"""Of a kind of calls."""
log = logging.getLogger("tilelink")

CHOICES_KEPT = 4096
"""Kinds of calls of which an operator remembers how they run: more than it keeps prepared."""


def facts(tensors: Sequence[Any], session: Session) -> list[object]:
    """What of arguments or results a prepared call depends on; of what is no tensor with strides and memory, its type."""
    shares = session.shares if session.backend.arenas.emptied else None  # asked in every call
    found: list[object] = []
    for t in tensors:
        try:
            shared = shares is not None and shares(t)
            at = t.data_ptr()  # 0: of none, or of other tensors' memory
            found.append((t.shape, t.dtype, t.stride(), at % 16 if at else None, t.device, t.is_neg(), shared))
        except (AttributeError, RuntimeError):
            found.append(type(t))
    return found


def are_lists(tensors: Sequence[Any]) -> bool:
    """Whether the arguments are those of all ranks at once: lists with one tensor per rank."""
    return bool(tensors) and isinstance(tensors[0], (list, tuple))


def on_ranks(tensors: Sequence[Any], group: Any, session: Session | None, run: Callable[..., T]) -> T:
    """What `run(tensors, session)` gives, which is collective: on this rank, or else on the first of simulated ones, one for each
    entry of lists."""
    session = session or (current() if group is None else require())
    if session is not None:
        return run(tensors, session.of(group))
    lists = tensors if are_lists(tensors) else [[t] for t in tensors]
    return spread(lambda *mine: run(mine, require()), lists)[0]


class Calls:
    """How an operator with its schedule is called."""

    __slots__ = ("_choices", "_variants", "operator")

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._choices = Recent["Operator"](CHOICES_KEPT)
        self._variants: dict[Schedule, Operator] = {}
        """With the schedules that calls have chosen: as many as have been measured or estimated."""

    # ------------------------------------------------------------------------------------------------------------- call
    def __call__(
        self, tensors: Sequence[Any], out: Any, group: Any, session: Session | None, given: dict[str, Any]
    ) -> Any:
        """Arguments as of `Operator.__call__`."""
        session = session or (current() if group is None else require())
        if session is None:
            return self._simulated(tensors, out, given)
        if group is not None:
            session = session.of(group)
        vigil = session.vigil
        vigil.begin()
        outs = () if out is None else out if isinstance(out, tuple) else (out,)
        of = facts(tensors, session)
        if outs:
            of += facts(outs, session)
        key = None
        if not given or all(isinstance(v, SCALAR) for v in given.values()):
            of += [(name, exact(value)) for name, value in given.items()]
            # What an operator with a schedule of somebody's has been called with says nothing of one that chooses.
            key = (self.operator.identity if self.operator.scheduled else None, len(outs), *of)
        prepared = session.prepared[self.operator.identity].get(key)
        if prepared is None or not prepared.settled or vigil.debug:
            prepared = self._prepared(session, key, tensors, outs, given)
        return prepared.run(tensors, outs)

    def _prepared(
        self, session: Session, key: Key | None, tensors: Sequence[Any], outs: Sequence[Any], given: dict[str, Any]
    ) -> Prepared | Unfused:
        """What has been prepared for a call, if all that it was made of is still so, looked at once more if need be;
        else made, and kept. `key`: None, nothing names its kind."""
        kept = session.prepared[self.operator.identity]
        found: Prepared | Unfused | None = kept.get(key)
        if found is None or (found.changed is not None and found.changed()):
            operator = self._chosen(session, tensors, given)
            made = Unfused if operator.schedules.unfused else Prepared
            found = made(operator, session, tensors, outs, given)
            if key is not None:
                kept[key] = found
        elif found.in_place or session.vigil.debug:
            found.again(tensors, outs, given)
        return found

    def _simulated(self, tensors: Sequence[Any], out: Any, given: dict[str, Any]) -> Any:
        """Where there is no rank yet: one for each entry of lists, or one alone."""
        check_keywords(self.operator.name, self.operator.fn, self.operator.signature, given)
        if not are_lists(tensors):
            warn_once(SIMULATED)
            warn_once(
                "tensors that are passed outside tilelink.launch are those of one rank alone: to simulate several, pass a list "
                "with one tensor per rank for each, or call in tilelink.launch(main, ranks=4)"
            )
            return simulated(lambda: self(tensors, out, None, None, given), 1)[0]
        if out is None:
            return spread(lambda *mine: self(mine, None, None, None, given), tensors)
        return spread(lambda *mine: self(mine[:-1], mine[-1], None, None, given), (*tensors, out))

    # -------------------------------------------------------------------------------------------------------- schedules
    def variant(self, schedule: Schedule) -> Operator:
        """The same operator with a schedule that was chosen for it: the same object each time."""
        if schedule == self.operator.schedules:
            return self.operator
        if schedule not in self._variants:
            self._variants[schedule] = self.operator.with_schedule(schedule)
        return self._variants[schedule]

    def how(self, tensors: Sequence[Any], given: dict[str, Any]) -> Choice:
        """The choice for a call, which says so in a line as `str`."""

        def here(mine: Sequence[Any], session: Session) -> Choice:
            bound = bind_here(self.operator, session, mine, given)
            return choose(self.operator, bound, plain=self.has_plain(session.backend, bound))

        return on_ranks(tensors, None, None if are_lists(tensors) else require(), here)

    def tiled(self, bound: Bound) -> Operator:
        """The operator whose tile programs run, or would if they did: with the schedule that was measured, if any."""
        return self.variant(choose(self.operator, bound, plain=False).schedule)

    def has_plain(self, backend: Backend, bound: Bound) -> bool:
        """Whether the unfused form can run such a call."""
        possible = self.operator.reference_fn is not None and backend.group is not None
        return possible and not undivided(self.operator.signature, bound, self.operator.uneven)

    def _chosen(self, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> Operator:
        """With the schedule that is chosen for a call; itself where that is its own."""
        operator, backend = self.operator, session.backend
        if backend.only_references:
            return self.variant(Schedule(unfused=True))
        if operator.scheduled:
            return operator
        try:
            bound = bind_here(operator, session, tensors, given)
            chosen = self._choices.get(bound)
            if chosen is None:
                choice = choose(operator, bound, plain=self.has_plain(backend, bound))
                chosen = self._choices[bound] = self.variant(choice.schedule)
                if chosen is not operator:
                    log.info("%s at %s runs %s", operator.name, dict(bound.sizes), choice)
        except TilelinkError:
            return operator  # which finds the same again, and tells the other ranks
        # What was reserved for this operator was reserved for however it runs, and what is prepared goes with its memory.
        session.reserved[chosen.identity] = session.reserved.setdefault(operator.identity, {})
        session.prepared[chosen.identity] = session.prepared[operator.identity]
        return chosen

    # ----------------------------------------------------------------------------------------------------------- looked at
    def planned_for(
        self, tensors: Sequence[Any], ranks: int | None, topology: Topology | None, given: dict[str, Any]
    ) -> tuple[Operator, Bound]:
        """The operator whose tile programs such a call runs, and what it is compiled for; arguments as of `Operator.plan`."""
        given.pop("out", None)
        if ranks is not None:
            check_ranks(ranks)
        session = current()
        if topology is None and session is not None:
            topology = session.backend.topology
        if are_lists(tensors):
            topology = topology or Topology(listed(tensors, ranks))
            listed(tensors, topology.ranks)
            by_rank = enumerate(zip(*tensors, strict=True))
            found = [bind(self.operator, mine, given, topology, rank=rank) for rank, mine in by_rank]
            compare_calls([in_words(self.operator, bound) for bound in found])
            bound = found[0]
        else:
            shared = session.shares if session is not None else lambda _: False
            bound = bind(self.operator, tensors, given, topology or Topology(ranks or 1), shared)
        return self.tiled(bound), bound

    # ------------------------------------------------------------------------------------------------------------- memory
    def reserve(self, session: Session, tensors: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """Prepare for calls of up to these sizes; arguments as of `Operator.reserve`. Collective."""
        operator = self.operator
        reserved = session.reserved.setdefault(operator.identity, {})
        reserved.update({name: max(size, reserved.get(name, 0)) for name, size in sizes.items()})
        # The next call takes the memory, on all ranks together, whatever kind it is of on some of them.
        session.prepared[operator.identity].clear()
        if tensors:
            Prepared(operator, session, tensors, (), {})

    def close(self) -> None:
        """Free what calls have taken on this rank. Collective."""
        session = current()
        if session is not None:
            for operator in (self.operator, *self._variants.values()):
                session.close(operator.identity)
