"""`Operator`: the object users hold. Every stage can be looked at; calling it goes through all of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilelink.errors import Loc, TilelinkError, with_article
from tilelink.frontend import SymbolicTensor, check_keywords, inline, parse_signature, sizes_of
from tilelink.ir.kernel import Checks
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement, Schedule
from tilelink.ir.shape import Signature
from tilelink.ir.topology import Topology
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Wiring
from tilelink.pipeline.arguments import Bound, bind, check_results, constants_of, exact, in_words, is_plain
from tilelink.pipeline.choosing import Choice, choose, even, named_sizes, problem_of, undivided
from tilelink.pipeline.preparing import again, bind_here, prepare, run, stated, workspace
from tilelink.pipeline.schedules import checked, refuse
from tilelink.pipeline.stages import Maker, Stages
from tilelink.pipeline.tracing import traced_call
from tilelink.pipeline.tuning import Tuning
from tilelink.runtime.apart import Written
from tilelink.runtime.call import Prepared
from tilelink.runtime.launching import check_ranks, listed, say_simulated, simulated, spread
from tilelink.runtime.recent import Recent
from tilelink.runtime.refusals import compare_calls, no_kernels
from tilelink.runtime.session import Session, checks_here, current, require
from tilelink.runtime.world import World
from tilelink.tracing import Trace
from tilelink.tuning import Space
from tilelink.validation import Validation, validate

Reference = Callable[..., Any]
log = logging.getLogger("tilelink")

CHOICES_KEPT = 4096
"""Kinds of calls of which an operator remembers how they run."""


def _facts(t: Any, session: Session) -> object:
    """What of an argument or a result a prepared call depends on."""
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return type(t)
    return t.shape, t.dtype, t.stride(), t.data_ptr() % 16, t.device, session.shares(t)


def _prepared(cached: Recent[Prepared], key: object) -> Prepared | None:
    """What has been prepared for a call, if all that it was made of is still so."""
    found = cached.get(key)
    return None if found is None or (found.changed is not None and found.changed()) else found


def _are_lists(tensors: Sequence[Any]) -> bool:
    """Whether the arguments are those of all ranks at once: lists with one tensor per rank."""
    return bool(tensors) and isinstance(tensors[0], (list, tuple))


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


@dataclass(slots=True, eq=False)
class Operator:
    """An operator: tile programs wired to tensors (paper section 3). Made by `tilelink.operator`.

    Calling it runs it on this rank; all ranks call it together. `schedule` gives the same operator, run differently.
    """

    fn: Callable[..., Any]
    signature: Signature
    name: str
    loc: Loc
    schedules: Schedule = field(default_factory=Schedule)
    reference_fn: Reference | None = None
    scheduled: bool = False
    """Whether somebody has said how it runs; else a call may take a schedule that was measured, or the plain form."""
    maker: Maker = field(init=False)
    _choices: Recent[Operator] = field(default_factory=lambda: Recent["Operator"](CHOICES_KEPT))
    _variants: dict[Schedule, Operator] = field(default_factory=dict[Schedule, "Operator"])
    """This operator with the schedules that calls have chosen: as many as have been measured or estimated."""

    uneven: frozenset[str] = field(init=False)
    """Dimensions along which the plain form takes parts of unequal length."""

    def __post_init__(self) -> None:
        self.maker = Maker(self.fn, self.signature, self.name, self.loc, self.schedules)
        self.uneven = named_sizes(self.reference_fn, self.signature)

    # -------------------------------------------------------------------------------------------------------- schedules
    def schedule(
        self,
        entries: Mapping[str, Placement] | None = None,
        *,
        slots: int | None = None,
        channels: Mapping[str, int] | None = None,
        sequential: bool | None = None,
        low_latency: bool | None = None,
        **placements: Placement,
    ) -> Operator:
        """The same operator with some steps placed differently.

        Args:
            entries: placements by path, for steps of inlined operators (`{"gemm_rs.matmul": tilelink.sms(…)}`).
            slots: buffers that a symmetric tensor rotates through from call to call.
            channels: elements per channel along the moved axis, by tensor name.
            sequential: True: run the plain form, one library after the other; False: run the tile programs, whatever
                was measured or estimated.
            low_latency: False: small tensors come with words of their own, and not by NCCL's low-latency protocol.
            placements: placements by step name.

        Raises:
            TilelinkError: TL329, something that is no placement, no number of slots, no length of channels, or no flag.
        """
        for given, what in ((entries, "`entries`"), (channels, "`channels`")):
            if given is not None and (not isinstance(given, Mapping) or not all(isinstance(n, str) for n in given)):
                raise refuse(what, given, "a mapping by name")
        merged = self.schedules.merged({**(entries or {}), **placements})
        if slots is not None:
            merged = replace(merged, slots=slots)
        if channels is not None:
            merged = replace(merged, channels=tuple(sorted(channels.items())))
        if low_latency is not None:
            merged = replace(merged, low_latency=low_latency)
        merged = replace(merged, sequential=bool(sequential))
        said = bool(entries or placements or channels)
        said |= any(given is not None for given in (slots, sequential, low_latency))
        return replace(self.with_schedule(checked(merged)), scheduled=self.scheduled or said)

    def with_schedule(self, schedule: Schedule) -> Operator:
        """The same operator with this whole schedule, and no other."""
        return replace(self, schedules=schedule, scheduled=True, _choices=Recent[Operator](CHOICES_KEPT), _variants={})

    def reference(self, fn: Reference) -> Reference:
        """Decorator: the operator's plain-torch form, called with the same tensors and constants, and `group=`.

        Libraries know parts of one length. A form that has a parameter called like a dimension, `M=None`, also takes parts
        of `ceil(M / ranks)`, of which the last ranks get what is left, perhaps nothing; it gets the size where the call
        names it. It runs without gradients, and waits for nothing on the host.

        Raises:
            TilelinkError: TL237, it is no function.
        """
        if not callable(fn):
            raise TilelinkError(
                "TL237",
                f"{with_article(type(fn).__name__)} is no plain form of `{self.name}`",
                loc=self.loc,
                why="`reference` decorates the function that is the plain form",
                hint=f"to call the plain form that there is: {self.name}.reference_fn(…, group=…)",
            )
        self.reference_fn = fn
        self.uneven = named_sizes(fn, self.signature)
        return fn

    # ----------------------------------------------------------------------------------------------------------- stages
    def wiring(self, *tensors: Any, ranks: int | None = None, **given: Any) -> Wiring:
        """Tensors and steps, with sizes bound."""
        return self.plan(*tensors, ranks=ranks, **given).wiring

    def plan(
        self,
        *tensors: Any,
        ranks: int | None = None,
        topology: Topology | None = None,
        verify: bool = True,
        **given: Any,
    ) -> Plan:
        """The plan for these arguments: owners, tiles, orders, channels, slots, credits, kernels.

        Args:
            tensors: as of a call.
            ranks: how many there are, where no rank is here.
            topology: instead, what the ranks run on.
            verify: False: without the proof, so that a plan that it refuses can be looked at; its notes say so.
            given: as of a call.

        Raises:
            TilelinkError: when there is no plan; the diagnostic of the proof, unless it is left out.
        """
        if verify:
            return self._made(tensors, ranks, topology, given).plan
        bound, topology = self._for(tensors, ranks, topology, given)
        return self._tiled(bound, topology).unproven(bound, topology)

    def verify(
        self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any
    ) -> Verdict:
        """The proof of the plan: form, order, coverage, counts, deadlock, epochs; or the diagnostic that a call would raise,
        with an interleaving that goes wrong in a small world.

        Raises:
            TilelinkError: when there is no plan to prove.
        """
        bound, topology = self._for(tensors, ranks, topology, given)
        return self._tiled(bound, topology).judged(bound, topology)

    def validate(self, *tensors: Any, topology: Topology | None = None, **given: Any) -> Validation:
        """Whether the emitted file does what the proved plan says, on simulated ranks: what each tile awaits, reads, writes and
        signals, in which order.

        Args:
            tensors: as of a call with lists, or those of one rank; what tables hold decides what the plan leaves to data.
            topology: what the ranks run on.
            given: as of a call.

        Raises:
            TilelinkError: when there is no plan, or none that is proved; TL450 in a rank.
        """
        bound, topology = self._for(tensors, None, topology, given)
        made = self._tiled(bound, topology).stages(bound, topology)
        by_rank = list(zip(*tensors, strict=True)) if _are_lists(tensors) else [tensors]
        return validate(self.name, made.lowered, [made.on(rank) for rank in range(len(by_rank))], by_rank)

    def source(self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any) -> str:
        """The emitted Triton file."""
        return self._made(tensors, ranks, topology, given).source.text

    def _made(
        self, tensors: Sequence[Any], ranks: int | None, topology: Topology | None, given: dict[str, Any]
    ) -> Stages:
        bound, topology = self._for(tensors, ranks, topology, given)
        return self._tiled(bound, topology).stages(bound, topology, checks_here())

    def _for(
        self, tensors: Sequence[Any], ranks: int | None, topology: Topology | None, given: dict[str, Any]
    ) -> tuple[Bound, Topology]:
        given.pop("out", None)
        check_keywords(self.name, self.fn, self.signature, given)
        if ranks is not None:
            check_ranks(ranks)
        session = current()
        if topology is None and session is not None:
            topology = session.world.topology
        if not _are_lists(tensors):
            topology = topology or Topology(ranks or 1)
            return bind(self.name, self.signature, tensors, given, topology, self.loc), topology
        count = listed(tensors, ranks if topology is None else topology.ranks)
        topology = topology or Topology(count)
        return self._alike(list(zip(*tensors, strict=True)), given, topology), topology

    def _alike(self, by_rank: Sequence[Sequence[Any]], given: dict[str, Any], topology: Topology) -> Bound:
        """What every rank's tensors say, if they say the same."""
        found = [
            bind(self.name, self.signature, mine, given, topology, self.loc, rank=rank)
            for rank, mine in enumerate(by_rank)
        ]
        compare_calls([in_words(self.name, bound, self.fn) for bound in found])
        return found[0]

    def judged(self, bound: Bound, topology: Topology) -> Verdict:
        """The verdict on the plan for bound arguments, whichever it is."""
        return self.maker.judged(bound, topology)

    def unproven(self, bound: Bound, topology: Topology) -> Plan:
        """The plan for bound arguments, whatever the proof would say of it."""
        return self.maker.unproven(bound, topology)

    def stages(self, bound: Bound, topology: Topology, checks: Checks = Checks()) -> Stages:
        """Plan, verdict and source for bound arguments, made once."""
        return self.maker.stages(bound, topology, checks)

    # ------------------------------------------------------------------------------------------------------------- call
    def __call__(
        self, *tensors: Any, out: Any = None, group: Any = None, session: Session | None = None, **given: Any
    ) -> Any:
        """Run on this rank.

        Args:
            tensors: this rank's part of each input; without torchrun and GPUs also lists with one tensor per rank.
            out: a tensor, or a tuple of tensors, to write the results to; with lists a list of such.
            group: the ranks that call it together: a `torch.distributed` process group, a `DeviceMesh` of one dimension,
                what `tilelink.group` gave; None for all ranks.
            session: the rank to run as; None for this process's or simulated rank.
            given: sizes that no input binds or that shards leave open (`M=10`), and the operator's constants.

        Returns:
            a fresh tensor per result (one: the tensor itself); with lists, a list over ranks.

        Raises:
            TilelinkError: before any launch, on the user's line.
        """
        if tensors and isinstance(tensors[0], SymbolicTensor):
            return inline(self.name, self.fn, self.signature, tensors, given, self.loc, self.schedules.entries)
        session = session or (current() if group is None else require())
        if session is None:
            check_keywords(self.name, self.fn, self.signature, given)
            if _are_lists(tensors):
                if out is None:
                    return spread(lambda *mine: self(*mine, **given), tensors)
                return spread(lambda *mine: self(*mine[:-1], out=mine[-1], **given), (*tensors, out))
            say_simulated()
            return simulated(lambda: self(*tensors, out=out, **given), 1)[0]
        return self._run(session.of(group), tensors, out, given)

    def _run(self, session: Session, tensors: Sequence[Any], out: Any, given: dict[str, Any]) -> Any:
        session.vigil.begin()
        outs = () if out is None else _tuple(out)
        key = (tuple([_facts(t, session) for t in tensors]), *[(name, exact(value)) for name, value in given.items()])
        # What an operator with a schedule of somebody's has been called with says nothing of one that chooses.
        whole = (self.scheduled, key, tuple([_facts(t, session) for t in outs]))
        keyed = not given or all(is_plain(v) for v in given.values())
        operator, cached = self, session.cached(self.maker.identity)
        prepared = _prepared(cached, whole) if keyed else None
        if prepared is None and (not self.scheduled or session.world.only_references):
            operator = self._chosen(session, key, tensors, given)
            cached = session.cached(operator.maker.identity)
            prepared = _prepared(cached, whole) if keyed else None
        if prepared is None:
            if operator.schedules.sequential:
                known = session.cached((operator.maker.identity, "plain"))
                if not keyed or session.vigil.debug or known.get(key) is None:
                    bound = bind_here(operator.maker, session, tensors, given)
                    if session.world.only_references:
                        self._require_reference(session.world, bound)
                    session.vigil.compare(operator.maker.identity, stated(operator.maker, session, bound))
                    known[key] = True
                return operator._plain(session, tensors, out, given)
            prepared = cached[whole] = prepare(operator.maker, session, tensors, outs, given)
        elif prepared.in_place or session.vigil.debug:
            again(operator.maker, session, prepared, tensors, outs, given)
        values = run(session, prepared, tensors, outs)
        return values[0] if len(values) == 1 else values

    def _plain(self, session: Session, tensors: Sequence[Any], out: Any, given: dict[str, Any]) -> Any:
        """The reference, whose libraries take their turns."""
        if self.reference_fn is None or session.world.group is None:
            why = "it has no reference" if self.reference_fn is None else "its libraries need GPUs"
            raise TilelinkError("TL229", f"`{self.name}` has no sequential form here", loc=self.loc, why=why)
        outs = () if out is None else _tuple(out)
        if outs and (wrong := Written.outside(self.name, self.loc, tensors, outs).refused(tensors, outs)) is not None:
            raise wrong
        sizes = {name: given[name] for name in self.uneven if name in given}
        with torch.no_grad():
            constants = constants_of(self.signature, given)
            found = self.reference_fn(*tensors, **constants, **sizes, group=session.world.group)
        if out is None:
            return found
        values = list(_tuple(found))
        check_results(self.name, outs, [("", tuple(v.shape), v.dtype) for v in values], tensors[0].device, self.loc)
        for k, target in enumerate(outs):
            if target is not None:
                values[k] = target.copy_(values[k])
        return tuple(values) if len(values) > 1 else values[0]

    def trace(self, *tensors: Any, group: Any = None, session: Session | None = None, **given: Any) -> Trace:
        """Call a variant that writes down when it does what: who waits, computes and communicates, on every rank.

        Collective. The call is made some times more, traced and not, to say what tracing costs.

        Args:
            tensors: as of a call.
            group: as of a call.
            session: as of a call.
            given: as of a call.

        Returns:
            the same on every rank, with lists too: `picture(path)`, `chrome(path)`, `totals()`, `lanes`.

        Raises:
            TilelinkError: as a call; TL475 processes on the CPU run no kernels.
        """
        session = session or (current() if group is None else require())
        if session is None:
            lists = tensors if _are_lists(tensors) else [[t] for t in tensors]
            return spread(lambda *mine: self.trace(*mine, **given), lists)[0]
        session = session.of(group)
        if session.world.only_references:
            raise no_kernels()
        chosen = self._tiled(bind_here(self.maker, session, tensors, given), session.world.topology)
        plain = prepare(chosen.maker, session, tensors, (), given)
        prepared = prepare(chosen.maker, session, tensors, (), given, traced=True)

        def traced() -> Prepared:
            run(session, prepared, tensors)
            return prepared

        sizes = " ".join(f"{name}={size}" for name, size in prepared.plan.sizes)
        return traced_call(session, f"{self.name}: {sizes}", lambda: run(session, plain, tensors), traced)

    def tune(
        self,
        *tensors: Any,
        budget: float = 60.0,
        space: Space | None = None,
        fresh: bool = False,
        group: Any = None,
        session: Session | None = None,
        **given: Any,
    ) -> Operator:
        """The operator with the fastest schedule for calls like this one, measured; from the cache if it was before.

        Collective: all ranks try the same candidates at the same time, and the slowest rank's time counts. What does not
        run on one rank is tried on none. The plain form (`reference`) is one of the candidates. In processes on the CPU, where
        nothing else runs, it is this operator as it is.

        Args:
            tensors: as of a call.
            budget: seconds for the search; 0 measures nothing but what the operator comes with.
            space: placements to try, by step; None for what the steps' doing suggests.
            fresh: measure again, whatever the cache has.
            group: as of a call.
            session: as of a call.
            given: as of a call.

        Raises:
            TilelinkError: as a call; TL460 a candidate does not end, TL462 nothing runs.
        """
        session = (session or require()).of(group)
        if session.world.only_references:
            return self
        tuning = self.tuning(*tensors, session=session, **given)
        entry = None if fresh else tuning.known(space)
        if entry is None:
            entry = tuning.kept(tuning.search(budget, space))
        return self.with_schedule(entry.schedule)

    def tuning(self, *tensors: Any, group: Any = None, session: Session | None = None, **given: Any) -> Tuning:
        """What `tune` works with: for those who want to see what was tried. Collective; arguments as of a call."""
        session = (session or require()).of(group)
        bound, topology = bind_here(self.maker, session, tensors, given), session.world.topology
        plain = (lambda: self._plain(session, tensors, None, given)) if self._has_plain(session.world, bound) else None
        problem = problem_of(self.name, self.signature, bound, topology)
        return Tuning(self, session, tensors, given, bound, problem, self.stages(bound, topology).plan, plain)

    def choice(self, *tensors: Any, group: Any = None, session: Session | None = None, **given: Any) -> Choice:
        """How a call like this one runs, and why: `str` of it says so in a line. Arguments as of a call, lists too."""
        session = session or (current() if group is None and _are_lists(tensors) else require())
        if session is None:
            return spread(lambda *mine: self.choice(*mine, **given), tensors)[0]
        session = session.of(group)
        bound = bind_here(self.maker, session, tensors, given)
        return self._choice(bound, session.world.topology, self._has_plain(session.world, bound))

    def _choice(self, bound: Bound, topology: Topology, plain: bool) -> Choice:
        if self.scheduled:
            return Choice(self.schedules, "as it is scheduled")
        problem = problem_of(self.name, self.signature, bound, topology)
        return choose(problem, self.schedules, lambda s: self._variant(s).stages(bound, topology).plan, plain=plain)

    def _has_plain(self, world: World, bound: Bound) -> bool:
        return (
            self.reference_fn is not None
            and world.group is not None
            and even(self.signature, bound, world.topology, self.uneven)
        )

    def _require_reference(self, world: World, bound: Bound) -> None:
        """Raises:
        TilelinkError: TL474, processes on CPUs run nothing but references, and this call has none.
        """
        ragged = undivided(self.signature, bound, world.topology, self.uneven, unknown=0)
        if self.reference_fn is not None and not ragged:
            return
        why, hint = "it has no reference", f"write its unfused form in torch, `@{self.name}.reference`"
        if self.reference_fn is not None:
            shown = ", ".join(f"{name}={dict(bound.sizes)[name]}" for name in ragged)
            why = f"its reference takes parts of one size, and {world.ranks} ranks do not divide {shown}"
            hint = f"give its reference the parameter `{ragged[0]}`"
        raise TilelinkError(
            "TL474",
            f"`{self.name}` cannot run in processes on the CPU",
            loc=self.loc,
            why=f"operators run their references there, and {why}",
            hint=f"{hint}, or simulate the ranks: tilelink.launch without torchrun",
        )

    def _chosen(
        self, session: Session, key: tuple[Any, ...], tensors: Sequence[Any], given: dict[str, Any]
    ) -> Operator:
        """This operator with the schedule that is chosen for a call; itself where that is its own."""
        world = session.world
        if world.only_references:
            return self._variant(Schedule(sequential=True))
        at = (world.ranks, world.topology.world, key)
        known = self._choices.get(at) if all(is_plain(v) for v in given.values()) else None
        if known is None:
            try:
                bound = bind_here(self.maker, session, tensors, given)
                choice = self._choice(bound, world.topology, self._has_plain(world, bound))
            except TilelinkError:
                return self  # which finds the same again, and tells the other ranks
            known = self._choices[at] = self._variant(choice.schedule)
            if known is not self:
                # What was reserved for this operator was reserved for however it runs.
                session.reserved[known.maker.identity] = session.reserved.setdefault(self.maker.identity, {})
                log.info("%s at %s runs %s", self.name, dict(bound.sizes), choice)
        return known

    def _variant(self, schedule: Schedule) -> Operator:
        """This operator with a schedule that was chosen for it: the same object each time."""
        if schedule == self.schedules:
            return self
        if schedule not in self._variants:
            self._variants[schedule] = self.with_schedule(schedule)
        return self._variants[schedule]

    def _tiled(self, bound: Bound, topology: Topology) -> Operator:
        """The operator whose tile programs run, or would if they did: with the schedule that was measured, if any."""
        return self if self.scheduled else self._variant(self._choice(bound, topology, plain=False).schedule)

    def reserve(self, *tensors: Any, group: Any = None, session: Session | None = None, **sizes: int) -> None:
        """Prepare for calls of up to these sizes: calls within them take no memory but their results. Collective.

        Args:
            tensors: arguments as of a call, by which the memory is taken now; without them the first call takes it.
            group: as of a call.
            session: as of a call.
            sizes: the largest size of a dimension, of all ranks together (`M=16384`); of others, that of the call.

        Raises:
            TilelinkError: TL228 no dimension of the operator or no size; as a call.
        """
        session = (session or require()).of(group)
        dims = sizes_of(self.signature)
        for name, size in sizes.items():
            if name not in dims or size < 1:
                raise TilelinkError(
                    "TL228",
                    f"`{self.name}` cannot be prepared for {name}={size}",
                    loc=self.loc,
                    why=f"its signature is `{self.signature}`",
                    hint="give sizes above 0 for dimensions of the inputs",
                )
        reserved = session.reserved.setdefault(self.maker.identity, {})
        reserved.update({name: max(size, reserved.get(name, 0)) for name, size in sizes.items()})
        for operator in (self, *self._variants.values()):
            # The next call takes the memory, on all ranks together, whatever kind it is of on some of them.
            session.cached(operator.maker.identity).clear()
        if tensors:
            bound = bind_here(self.maker, session, tensors, {})
            stages = self.stages(bound, session.world.topology, session.vigil.checks)
            session.vigil.compare(self.maker.identity, stated(self.maker, session, bound, stages, tensors))
            workspace(self.maker, session, bound, stages.plan)

    def close(self) -> None:
        """Free this operator's memory on this rank, that of sub-groups too; graphs that hold calls of it must not be
        replayed any more. Collective. The operator can be called again.
        """
        session = current()
        if session is not None:
            for operator in (self, *self._variants.values()):
                session.close(operator.maker.identity)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        said = str(self.schedules)
        return f"<operator {self.name} `{self.signature}`{' scheduled ' + said if said else ''}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Where values are printed prettily, in notebooks and by hypothesis, it reads as anywhere."""
        printer.text(repr(self))


def operator(
    signature: str,
    *,
    name: str | None = None,
    schedule: Mapping[str, Placement] | None = None,
    axes: str | None = None,
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare an operator: its body is Python, run once per plan on symbolic tensors; it wires tile programs. Where it, or they,
    read a number of a module or a closure that is another one by now, it is run again: on all ranks, which change it alike.

    Args:
        signature: shapes of arguments and results, `"M/R K, K N -> M N"`; a parameter `*rest` takes the arguments that follow.
        name: instead of the function's own.
        schedule: placements that the operator comes with; `Operator.schedule` replaces them step by step.
        axes: the axes of ranks that the signature may name instead of `R`, the outermost first, such as `"NODE GPU"`. Each
            step speaks of one of them; ranks that differ along the others do the same side by side.

    Raises:
        TilelinkError: TL1xx, a signature that does not parse.
    """

    def declare(fn: Callable[..., Any]) -> Operator:
        code = inspect.unwrap(fn).__code__
        loc = Loc(code.co_filename, code.co_firstlineno)
        shipped = Schedule().merged(schedule or {})
        return Operator(fn, parse_signature(signature, loc, axes), name or fn.__name__, loc, shipped)

    return declare
