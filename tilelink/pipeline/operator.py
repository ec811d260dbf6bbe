"""`Operator`: the object users hold. Every stage can be looked at; calling it goes through all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilelink.codegen import emit
from tilelink.errors import Loc, TilelinkError
from tilelink.frontend import SymbolicTensor, inline, parse_signature, trace
from tilelink.ir.kernel import KernelSource
from tilelink.ir.plan import Plan, Transfer, Verdict
from tilelink.ir.schedule import Placement, Schedule
from tilelink.ir.shape import Signature
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import Wiring
from tilelink.mapping import expand, make_plan, verify
from tilelink.pipeline.arguments import Bound, bind, check_devices
from tilelink.runtime.call import Loaded, Prepared, prepare
from tilelink.runtime.kernels import load
from tilelink.runtime.memory import DTYPES, Workspace, extents, regions
from tilelink.runtime.session import Session, current, say_simulated, simulated, spread

Reference = Callable[..., Any]


@dataclass(slots=True, eq=False)
class Stages:
    """What has been made for one set of sizes on one topology."""

    plan: Plan
    verdict: Verdict
    source: KernelSource
    loaded: dict[int, Loaded] = field(default_factory=dict[int, Loaded])


@dataclass(slots=True, eq=False)
class Ready:
    """A plan ready to run in one workspace, for arguments of one kind: what a cached call needs and nothing else."""

    loaded: Loaded
    workspace: Workspace
    scalars: Mapping[str, float]
    results: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    implied: bool
    slots: dict[int, Prepared] = field(default_factory=dict[int, Prepared])

    @property
    def plan(self) -> Plan:
        return self.loaded.plan

    def slot(self, slot: int) -> Prepared:
        if slot not in self.slots:
            self.slots[slot] = prepare(self.loaded, self.workspace, slot)
        return self.slots[slot]


def _facts(t: Any, session: Session) -> object:
    """What of an argument a plan depends on."""
    if not isinstance(t, torch.Tensor):
        return type(t)
    return t.shape, t.dtype, t.stride(), t.data_ptr() % 16, t.is_cuda, session.shares(t)


def _hashable(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _given_results(out: Any, ready: Ready) -> tuple[Any, ...]:
    count = len(ready.results)
    given = () if out is None else out if isinstance(out, tuple) else (out,)
    return (*given, *[None] * (count - len(given)))


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
    _stages: dict[object, Stages] = field(default_factory=dict[object, Stages])

    # -------------------------------------------------------------------------------------------------------- schedules
    def schedule(
        self,
        entries: Mapping[str, Placement] | None = None,
        *,
        slots: int | None = None,
        channels: Mapping[str, int] | None = None,
        **placements: Placement,
    ) -> Operator:
        """The same operator with some steps placed differently.

        Args:
            entries: placements by path, for steps of inlined operators (`{"gemm_rs.matmul": tilelink.sms(…)}`).
            slots: buffers that a symmetric tensor rotates through from call to call.
            channels: elements per channel along the moved axis, by tensor name.
            placements: placements by step name.
        """
        merged = self.schedules.merged({**(entries or {}), **placements})
        if slots is not None:
            merged = replace(merged, slots=slots)
        if channels is not None:
            merged = replace(merged, channels=tuple(sorted(channels.items())))
        return replace(self, schedules=merged, _stages={})

    def reference(self, fn: Reference) -> Reference:
        """Decorator: the operator's plain-torch form, called with the same arguments and `group=`."""
        self.reference_fn = fn
        return fn

    # ----------------------------------------------------------------------------------------------------------- stages
    def wiring(self, *tensors: Any, ranks: int | None = None, **given: Any) -> Wiring:
        """Tensors and steps, with sizes bound."""
        return self.plan(*tensors, ranks=ranks, **given).wiring

    def plan(self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any) -> Plan:
        """The plan for these arguments: owners, tiles, orders, channels, slots, credits, kernels."""
        return self._made(tensors, ranks, topology, given).plan

    def verify(
        self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any
    ) -> Verdict:
        """The structural proof of the plan: form, order, coverage, counts, deadlock, epochs.

        Raises:
            TilelinkError: TL6xx, on the user's line, when the plan is wrong.
        """
        return self._made(tensors, ranks, topology, given).verdict

    def source(self, *tensors: Any, ranks: int | None = None, topology: Topology | None = None, **given: Any) -> str:
        """The emitted Triton file."""
        return self._made(tensors, ranks, topology, given).source.text

    def _made(
        self, tensors: Sequence[Any], ranks: int | None, topology: Topology | None, given: dict[str, Any]
    ) -> Stages:
        given.pop("out", None)
        mine, counted = one_rank(tensors)
        if topology is None:
            session = current()
            topology = session.world.topology if session is not None else Topology(ranks or counted or 1)
        return self.stages(bind(self.name, self.signature, mine, given, topology.ranks, self.loc), topology)

    def stages(self, bound: Bound, topology: Topology) -> Stages:
        """Plan, verdict and source for bound arguments, made once."""
        key = (bound, topology)
        if key not in self._stages:
            wiring = trace(
                self.name,
                self.fn,
                self.signature,
                dict(bound.sizes),
                bound.dtypes,
                dict(bound.constants),
                self.loc,
                ranks=topology.ranks,
            )
            layouts = dict(zip(wiring.arguments, bound.layouts, strict=True))
            plan = make_plan(wiring, topology, self.schedules, dict(bound.sizes), layouts)
            self._stages[key] = Stages(plan, verify(plan), emit(plan))
        return self._stages[key]

    # ------------------------------------------------------------------------------------------------------------- call
    def __call__(self, *tensors: Any, out: Any = None, session: Session | None = None, **given: Any) -> Any:
        """Run on this rank.

        Args:
            tensors: this rank's part of each input; without torchrun and GPUs also lists with one tensor per rank.
            out: a tensor, or a tuple of tensors, to write the results to.
            given: sizes that no input binds or that shards leave open (`M=10`), and the operator's constants.

        Returns:
            a fresh tensor per result (one: the tensor itself); with lists, a list over ranks.

        Raises:
            TilelinkError: before any launch, on the user's line.
        """
        if tensors and isinstance(tensors[0], SymbolicTensor):
            return inline(self.name, self.fn, self.signature, tensors, given, self.loc)
        session = session or current()
        if session is None:
            if tensors and isinstance(tensors[0], (list, tuple)):
                return spread(lambda *mine: self(*mine, **given), tensors)
            say_simulated()
            return simulated(lambda: self(*tensors, out=out, **given), 1)[0]
        return self._run(session, tensors, out, given)

    def _run(self, session: Session, tensors: Sequence[Any], out: Any, given: dict[str, Any]) -> Any:
        world = session.world
        key = (*(_facts(t, session) for t in tensors), *given.items())
        ready = session.prepared.get((self._identity, key)) if all(_hashable(v) for v in given.values()) else None
        if ready is None or ready.workspace.closed:
            ready = self._prepare(session, tensors, given)
            session.prepared[(self._identity, key)] = ready
        workspace, plan = ready.workspace, ready.plan
        named = dict(zip(plan.wiring.arguments, tensors, strict=True))
        for name, (shape, dtype), mine in zip(
            plan.wiring.results, ready.results, _given_results(out, ready), strict=True
        ):
            if mine is not None:
                _check_out(self.name, mine, shape, dtype, self.loc)
            named[name] = mine if mine is not None else world.empty(shape, dtype)
        workspace.captured = workspace.captured or world.capturing()
        ready.slot(workspace.calls % plan.schedule.slots).run(
            world, named, ready.scalars, int(workspace.captured or not workspace.heard)
        )
        workspace.calls += 1
        workspace.heard = ready.implied
        world.finish()
        values = tuple(named[n] for n in plan.wiring.results)
        return values[0] if len(values) == 1 else values

    def _prepare(self, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> Ready:
        """Everything about a call that does not depend on its data."""
        world = session.world
        bound = bind(self.name, self.signature, tensors, given, world.ranks, self.loc, session.shares)
        check_devices(self.name, tensors, world.topology.world != "simulated", self.loc)
        stages = self.stages(bound, world.topology)
        plan = stages.plan
        return Ready(
            loaded=self._load(stages, world.rank),
            workspace=session.workspace(self._identity, regions(plan)),
            scalars=_scalars(plan),
            results=tuple(
                (extents(plan, plan.buffer(n), world.rank), DTYPES[plan.buffer(n).dtype]) for n in plan.wiring.results
            ),
            implied=all(c.implied_by is not None for c in plan.credits),
        )

    @property
    def _identity(self) -> object:
        return (self.name, self.loc, self.schedules)

    def _load(self, stages: Stages, rank: int) -> Loaded:
        if rank not in stages.loaded:
            module = load(stages.source.text, stages.source.digest, stages.source.name)
            paths = [h.path for h in stages.plan.host if isinstance(h, Transfer)]
            transfers = {p: expand(stages.plan, p, rank) for p in paths}
            stages.loaded[rank] = Loaded(stages.plan, stages.source, module, transfers)
        return stages.loaded[rank]

    def close(self) -> None:
        """Free this operator's workspace on this rank. Collective."""
        session = current()
        if session is not None:
            session.close(self._identity)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        entries = ", ".join(f"{path}={placement}" for path, placement in self.schedules.entries)
        return f"<operator {self.name} `{self.signature}`{' scheduled ' + entries if entries else ''}>"


def _scalars(plan: Plan) -> dict[str, float]:
    return {
        f"{s.path}.{name}": value for s in plan.steps for name, value in s.step.constants if isinstance(value, float)
    }


def _check_out(name: str, out: Any, shape: tuple[int, ...], dtype: torch.dtype, loc: Loc) -> None:
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != shape or out.dtype != dtype or not out.is_contiguous():
        got = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise TilelinkError(
            "TL226",
            f"`out` of `{name}` is {got}",
            loc=loc,
            why=f"the result on this rank is a contiguous {shape} of {dtype}",
            hint="pass such a tensor, or none",
        )


def one_rank(tensors: Sequence[Any]) -> tuple[Sequence[Any], int | None]:
    """Rank 0's tensors and the number of ranks, when lists with one tensor per rank are given."""
    if tensors and all(isinstance(t, (list, tuple)) for t in tensors):
        return [t[0] for t in tensors], len(tensors[0])
    return tensors, None


def operator(
    signature: str, *, name: str | None = None, schedule: Mapping[str, Placement] | None = None
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare an operator: its body is Python, run once per plan on symbolic tensors; it wires tile programs.

    Args:
        signature: shapes of arguments and results, `"M/R K, K N -> M N"`.
        name: instead of the function's own.
        schedule: placements that the operator comes with; `Operator.schedule` replaces them step by step.

    Raises:
        TilelinkError: TL1xx, a signature that does not parse.
    """

    def declare(fn: Callable[..., Any]) -> Operator:
        code = inspect.unwrap(fn).__code__
        loc = Loc(code.co_filename, code.co_firstlineno)
        shipped = Schedule().merged(schedule or {})
        return Operator(fn, parse_signature(signature, loc), name or fn.__name__, loc, shipped)

    return declare
