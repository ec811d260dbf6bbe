"""`Operator`: the object users hold. What it compiles to can be looked at; calling it runs that.

Declaring, scheduling and planning from shapes need no torch; it is imported with the first tensor.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from tilelink.codegen import emit
from tilelink.errors import Loc, TilelinkError, with_article
from tilelink.frontend import Found, Outside, SymbolicTensor, inline, parse_signature, sizes_of
from tilelink.ir.kernel import Checks, EmittedText
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement, Schedule
from tilelink.ir.shape import Signature
from tilelink.ir.topology import Topology
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Wiring
from tilelink.mapping.judge import judge
from tilelink.pipeline.arguments import Bound
from tilelink.pipeline.compiled import Compiled, planned, proved, unproven
from tilelink.pipeline.schedules import checked, refuse
from tilelink.runtime.cache import Recent

if TYPE_CHECKING:
    from tilelink.cost import Machine
    from tilelink.pipeline.calls import Calls
    from tilelink.pipeline.tuning import Tuning
    from tilelink.runtime.session import Session
    from tilelink.tracing import Trace
    from tilelink.tuning.methods import Method
    from tilelink.tuning.search import Progress
    from tilelink.tuning.space import Space
    from tilelink.tuning.study import On, Study
    from tilelink.validation import Validation

Reference = Callable[..., Any]
KEPT = 256
"""Plans, proofs and emitted texts that an operator keeps: one per set of sizes, memory layouts and checks."""


class Identity:
    """Which operator with which schedule: of equal ones there is one object, which dicts find without a look at its value."""

    __slots__ = ("__weakref__",)
    _known: ClassVar[WeakValueDictionary[object, Identity]] = WeakValueDictionary()

    def __new__(cls, *value: object) -> Identity:
        return cls._known.setdefault(value, super().__new__(cls))


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
    """Whether somebody has said how it runs; else a call may take a schedule that was measured, or the unfused form."""
    identity: Identity = field(init=False)
    kept: Recent[Compiled] = field(init=False, default_factory=lambda: Recent[Compiled](KEPT))
    _calls: Calls | None = field(init=False, default=None)
    """Made at the first call, which imports torch."""

    def __post_init__(self) -> None:
        self.identity = Identity(self.fn, self.signature, self.name, self.loc, self.schedules)

    @property
    def uneven(self) -> frozenset[str]:
        """Dimensions along which the unfused form takes parts of unequal length: those that it has parameters for."""
        if self.reference_fn is None:
            return frozenset()
        return frozenset(inspect.signature(self.reference_fn).parameters) & frozenset(sizes_of(self.signature))

    @property
    def calls(self) -> Calls:
        """How it is called: the same object each time."""
        if self._calls is None:
            from tilelink.pipeline.calls import Calls

            self._calls = Calls(self)
        return self._calls

    def compiled(self, bound: Bound, checks: Checks = Checks()) -> Compiled:
        """Plan, verdict and source for bound arguments, made once.

        Raises:
            TilelinkError: there is no plan, or the proof refuses it.
        """
        key = (bound, checks)
        known = self.kept.get(key)
        if known is None or (known.outside is not None and known.outside.changed()):
            found: list[Found] = []
            plan = planned(self, bound, found)
            lowered, verdict = proved(plan)
            source = emit(plan, lowered, checks)
            known = self.kept[key] = Compiled(plan, lowered, verdict, source, Outside(found) if found else None)
        return known

    # -------------------------------------------------------------------------------------------------------- schedules
    def schedule(
        self,
        entries: Mapping[str, Placement] | None = None,
        *,
        slots: int | None = None,
        channels: Mapping[str, int] | None = None,
        unfused: bool | None = None,
        ll: bool | None = None,
        **placements: Placement,
    ) -> Operator:
        """The same operator with some steps placed differently.

        Args:
            entries: placements by path, for steps of inlined operators (`{"gemm_rs.matmul": tilelink.sms(…)}`).
            slots: buffers that a symmetric tensor rotates through from call to call.
            channels: elements per channel along the moved axis, by tensor name.
            unfused: True: run the unfused form, one library after the other; False: run the tile programs, whatever
                was measured or estimated.
            ll: False: small tensors come with flags of their own, and not by NCCL's LL protocol.
            placements: placements by step name.

        Raises:
            TilelinkError: TL329, something that is no placement, no number of slots, no length of channels, or no flag.
        """
        for given, what in ((entries, "`entries`"), (channels, "`channels`")):
            if given is not None and (not isinstance(given, Mapping) or not all(isinstance(n, str) for n in given)):
                raise refuse(what, given, "a mapping by name")
        lengths = None if channels is None else tuple(sorted(channels.items()))
        further = {"slots": slots, "channels": lengths, "ll": ll, "unfused": bool(unfused)}
        merged = self.schedules.merged({**(entries or {}), **placements})
        merged = replace(merged, **{name: value for name, value in further.items() if value is not None})
        said = any((entries, placements, channels)) or (slots, unfused, ll) != (None, None, None)
        return replace(self.with_schedule(checked(merged)), scheduled=self.scheduled or said)

    def with_schedule(self, schedule: Schedule) -> Operator:
        """The same operator with this whole schedule, and no other."""
        return replace(self, schedules=schedule, scheduled=True)

    def reference(self, fn: Reference) -> Reference:
        """Decorator: the operator's unfused form in plain torch, called with the same tensors and constants, and `group=`.

        Libraries know parts of one length. A form that has a parameter called like a dimension, `M=None`, also takes parts
        of `ceil(M / ranks)`, of which the last ranks get what is left, perhaps nothing; it gets the size where the call
        names it. It runs without gradients, and waits for nothing on the host.

        Raises:
            TilelinkError: TL237, it is no function.
        """
        if not callable(fn):
            raise TilelinkError(
                "TL237",
                f"{with_article(type(fn).__name__)} is no unfused form of `{self.name}`",
                loc=self.loc,
                why="`reference` decorates the function that is the unfused form",
                hint=f"to call the unfused form that there is: {self.name}.reference_fn(…, group=…)",
            )
        self.reference_fn = fn
        self._calls = None
        return fn

    # ----------------------------------------------------------------------------------------------------------- looked at
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
        """The plan for these arguments: owners, tiles, orders, channels, slots, credits, kernels. Others as of a call.

        Args:
            ranks: how many there are, where no rank is here.
            topology: instead, what the ranks run on.
            verify: False: without the proof, so that a plan that it refuses can be looked at; its notes say so.

        Raises:
            TilelinkError: when there is no plan; the diagnostic of the proof, unless it is left out.
        """
        tiled, bound = self.calls.planned_for(tensors, ranks, topology, given)
        return tiled.compiled(bound).plan if verify else unproven(tiled, bound)

    def verify(
        self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any
    ) -> Verdict:
        """The proof of the plan: form, order, coverage, counts, deadlock, epochs; or the diagnostic that a call would raise,
        with an interleaving that goes wrong with few ranks.

        Raises:
            TilelinkError: when there is no plan to prove.
        """
        return judge(planned(*self.calls.planned_for(tensors, ranks, topology, given)))

    def validate(self, *tensors: Any, topology: Topology | None = None, **given: Any) -> Validation:
        """Whether the emitted file does what the proved plan says, on simulated ranks: what each tile awaits, reads, writes and
        signals, in which order.

        Args:
            tensors: as of a call with lists, or those of one rank, which all have alike; what tables hold decides what the plan
                leaves to data.
            topology: what the ranks run on.

        Raises:
            TilelinkError: when there is no plan, or none that is proved; TL450 in a rank.
        """
        from tilelink.pipeline.calls import are_lists
        from tilelink.validation import validate

        tiled, bound = self.calls.planned_for(tensors, None, topology, given)
        made = tiled.compiled(bound)
        by_rank = list(zip(*tensors, strict=True)) if are_lists(tensors) else [tensors] * made.plan.topology.ranks
        return validate(self.name, made.lowered, [made.on(rank) for rank in range(len(by_rank))], by_rank)

    def source(
        self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any
    ) -> EmittedText:
        """The emitted Triton file: text, and in a notebook beside the tile programs."""
        from tilelink.runtime import environment
        from tilelink.runtime.session import current

        tiled, bound = self.calls.planned_for(tensors, ranks, topology, given)
        here = current()
        usual = Checks(environment.watchdog() is not None, environment.debug()) if here is None else here.vigil.checks
        return EmittedText(tiled.compiled(bound, usual).source)

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
        return (self._calls or self.calls)(tensors, out, group, session, given)

    def trace(self, *tensors: Any, group: Any = None, session: Session | None = None, **given: Any) -> Trace:
        """Call a variant that writes down when it does what: who waits, computes and communicates, on every rank.

        Collective; arguments as of a call. On GPUs it is made some times more, traced and not, to say what tracing costs.

        Returns:
            the same on every rank, with lists too: `picture(path)`, `chrome(path)`, `totals()`, `lanes`.

        Raises:
            TilelinkError: as a call; TL475 processes on the CPU run no kernels.
        """
        from tilelink.pipeline.calls import on_ranks
        from tilelink.pipeline.tracing import traced_call

        return on_ranks(tensors, group, session, lambda mine, here: traced_call(self, here, mine, given))

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
        run on one rank is tried on none. The unfused form (`reference`) is one of the candidates. In processes on the CPU, where
        nothing else runs, it is this operator as it is. Arguments as of a call, and

        Args:
            budget: seconds for the search, which the schedule that the operator comes with may exceed; 0 measures nothing else.
            space: placements to try, by step; None for what the steps' doing suggests.
            fresh: measure again, whatever the cache has.

        Raises:
            TilelinkError: as a call; TL460 a candidate does not end, TL462 nothing runs.
        """
        from tilelink.runtime.session import require

        session = (session or require()).of(group)
        if session.backend.only_references:
            return self
        entry, _ = self.tuning(*tensors, session=session, **given).found(budget, space, fresh=fresh)
        return self.with_schedule(entry.schedule)

    def explore(
        self,
        *tensors: Any,
        on: On = "model",
        space: Space | None = None,
        method: Method | None = None,
        trials: int = 100,
        budget: float = 60.0,
        seed: int = 0,
        file: Path | str | None = None,
        progress: Progress | None = None,
        ranks: int | None = None,
        topology: Topology | None = None,
        machine: Machine | None = None,
        group: Any = None,
        session: Session | None = None,
        **given: Any,
    ) -> Study:
        """Try schedules for calls like this one, and say what each takes: time, multiprocessors, memory.

        Only proved schedules are tried; those that cannot run are in the study with the reason. Like `tune`, it calls what
        it tries on GPUs and simulated ranks, all ranks together, and compares results; nothing is kept but in `file`.
        Arguments as of `plan` on the model, else as of a call, and

        Args:
            on: what says how long a schedule takes: the cost `model`, `simulated` ranks in simulated time, or this `gpu`.
            space: placements to try, by step; None for what the steps' doing suggests.
            method: `exhaustive`, `random`, `annealing`, `descent` (what `tune` does), `model` (the order of the cost model)
                or `optuna` (of the extra `tilelink-triton[search]`); None: on the model `descent`, elsewhere `model`.
            trials: at most.
            budget: seconds; the schedule that the operator comes with is tried in any case.
            seed: of methods that draw lots.
            file: where trials are kept: a search with the same file goes on where the last one ended.
            progress: called with the study whenever something was tried; None: a bar on a terminal.
            machine: of the cost model; None: an H200.

        Raises:
            TilelinkError: as a call; TL462 the schedule to begin with does not run, TL466 the file has trials of something
                else, TL467 optuna is not installed, TL468 no such method, TL469 no such ranks here.
        """
        from tilelink.cost import H200
        from tilelink.pipeline.calls import are_lists
        from tilelink.pipeline.tuning import explored, modelled_study
        from tilelink.runtime.launching import listed
        from tilelink.runtime.session import current
        from tilelink.tuning.search import Limits
        from tilelink.tuning.study import on_named

        limits = Limits(method, budget, trials, seed, None if file is None else Path(file), progress)
        if on_named(on) != "model":
            return explored(self, tensors, given, on, limits, space, group, session)
        machine = machine or H200
        if topology is None and session is None and current() is None:
            count = listed(tensors, ranks) if are_lists(tensors) else ranks or 1
            topology = Topology(count, "peer", device=machine.device())
        return modelled_study(*self.calls.planned_for(tensors, ranks, topology, given), limits, space, machine)

    def tuning(self, *tensors: Any, group: Any = None, session: Session | None = None, **given: Any) -> Tuning:
        """What `tune` works with: for those who want to see what was tried. Collective; arguments as of a call."""
        from tilelink.pipeline.tuning import Tuning
        from tilelink.runtime.session import require

        return Tuning(self, (session or require()).of(group), tensors, given)

    def reserve(self, *tensors: Any, group: Any = None, session: Session | None = None, **sizes: int) -> None:
        """Prepare for calls of up to these sizes: calls within them take no memory but their results. Collective.

        Args:
            tensors: arguments as of a call, by which the memory is taken now; without them the first call takes it.
            sizes: the largest size of a dimension, of all ranks together (`M=16384`); of others, that of the call.

        Raises:
            TilelinkError: TL228 no dimension of the operator or no size; as a call.
        """
        from tilelink.runtime.session import require

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
        self.calls.reserve((session or require()).of(group), tensors, sizes)

    def close(self) -> None:
        """Free this operator's memory on this rank, that of sub-groups too; graphs that hold calls of it must not be
        replayed any more. Collective. The operator can be called again.
        """
        self.calls.close()

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self, memo: object = None) -> Operator:
        """Itself, as functions are: what calls have prepared is kept by what it is, not by which object."""
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        """By the name that its module has it under, as functions are, and its schedule.

        Raises:
            PicklingError: no module has it under the name of its function.
        """
        module, name = self.fn.__module__, self.fn.__qualname__
        try:
            found = _declared(module, name)
        except (AttributeError, ImportError):
            found = None
        if not isinstance(found, Operator) or found.fn is not self.fn:
            raise pickle.PicklingError(f"no operator `{self.name}` is called `{name}` in the module `{module}`")
        return _unpickled, (module, name, self.schedules, self.scheduled)

    def __repr__(self) -> str:
        said = str(self.schedules)
        return f"<operator {self.name} `{self.signature}`{' scheduled ' + said if said else ''}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Where values are printed prettily, in notebooks and by hypothesis, it reads as anywhere."""
        printer.text(repr(self))


def _declared(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def _unpickled(module: str, name: str, schedule: Schedule, scheduled: bool) -> Operator:
    found = _declared(module, name)
    same = (found.schedules, found.scheduled) == (schedule, scheduled)
    return found if same else replace(found, schedules=schedule, scheduled=scheduled)


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
        TilelinkError: TL1xx, a signature that does not parse; TL216, a function without a name, and none given.
    """

    def declare(fn: Callable[..., Any]) -> Operator:
        code = inspect.unwrap(fn).__code__
        loc = Loc(code.co_filename, code.co_firstlineno)
        if not (name or fn.__name__).isidentifier():
            raise TilelinkError(
                "TL216",
                f"an operator is called `{name or fn.__name__}`",
                loc=loc,
                why="schedules, files and kernels name it",
                hint='give it a name: tilelink.operator(…, name="…")',
            )
        shipped = Schedule().merged(schedule or {})
        return Operator(fn, parse_signature(signature, loc, axes), name or fn.__name__, loc, shipped)

    return declare
