"""Plans to verify: the operators of the library in every form, for any number of ranks, without tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilelink import Operator, copy_engine, fused, library, sms
from tilelink.codegen import emit
from tilelink.frontend import trace
from tilelink.ir import formula as F
from tilelink.ir.kernel import Checks, KernelSource
from tilelink.ir.lowered import Buffer
from tilelink.ir.partition import Channel
from tilelink.ir.plan import Launch, Layout, Plan, Signal, StepPlan
from tilelink.ir.schedule import Placement
from tilelink.ir.topology import Device, RankAxis, Topology
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Wiring
from tilelink.mapping import make_plan
from tilelink.mapping.judge import judge
from tilelink.mapping.lower import lower
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

Sizes = dict[str, int]
SMS = 64


def emitted(plan: Plan, checks: Checks = Checks(), *, traced: bool = False) -> KernelSource:
    """The text of a plan; `checks`, `traced`: as of `tilelink.codegen.emit`."""
    return emit(plan, lower(plan), checks, traced=traced)


def wiring_of(operator: Operator, ranks: int, sizes: Sizes, axes: Mapping[str, int] | None = None) -> Wiring:
    dtypes = [s.dtype or "bf16" for s in operator.signature.inputs]
    signature = operator.signature
    return trace(operator.name, operator.fn, signature, sizes, dtypes, {}, operator.loc, axes=axes or {"R": ranks})


def plan_of(
    operator: Operator,
    ranks: int,
    sizes: Sizes,
    *,
    slots: int = 2,
    channels: dict[str, int] | None = None,
    in_place: bool = False,
    **placements: Placement,
) -> Plan:
    """The plan for global sizes, on ranks that see one another's memory; `in_place`: arguments included."""
    scheduled = operator.schedule(placements, slots=slots, channels=channels)
    return _planned(
        scheduled, wiring_of(scheduled, ranks, sizes), Topology(ranks, device=Device(sms=SMS)), sizes, in_place
    )


def plan_along(
    operator: Operator,
    axes: Mapping[str, int],
    sizes: Sizes,
    *,
    network: tuple[str, ...] = (),
    in_place: bool = False,
) -> Plan:
    """The plan on ranks that have several axes, so many along each; `network`: those that a network crosses."""
    ranks = math.prod(axes.values())
    shape = tuple(RankAxis(n, k, "network" if n in network else "peer") for n, k in axes.items())
    topology = Topology(ranks, device=Device(sms=SMS), axes=shape)
    return _planned(operator, wiring_of(operator, ranks, sizes, axes), topology, sizes, in_place)


def _planned(operator: Operator, wiring: Wiring, topology: Topology, sizes: Sizes, in_place: bool) -> Plan:
    held = {name: [a for a in wiring.tensor(name).axes if not a.own_slice] for name in wiring.arguments}
    layouts = {name: Layout(len(axes) - 1, True, symmetric=in_place) for name, axes in held.items()}
    return make_plan(wiring, topology, operator.schedules, sizes, layouts)


def _matmul(tile: int, *order: str) -> Placement:
    return sms(M=tile, N=tile, K=tile, order=order)


def forms(tile: int = 16) -> dict[str, tuple[Operator, dict[str, Placement]]]:
    """Every way in which the operators are scheduled, by a name for people."""
    read = _matmul(tile, "ring", "group 2")
    made = _matmul(tile, "ring+1", "group 2")
    add = sms(M=tile, N=tile)
    one: dict[str, tuple[Operator, dict[str, Placement]]] = {}
    for name, gather in {
        "pull": sms(2, M=tile, order="ring"),
        "push": sms(2, M=tile, order="ring", push=True),
        "own kernel": sms(2, M=tile, order="ring", own_kernel=True),
        "copy engine push": copy_engine(M=2 * tile, push=True),
        "copy engine pull": copy_engine(M=2 * tile, push=False),
        "copy engine in whole parts": copy_engine(push=True),
        "copy engine over 3 streams": copy_engine(M=tile, push=True, streams=3),
    }.items():
        one[f"ag_gemm {name}"] = ag_gemm, {"gather": gather, "matmul": read}
    for name, scatter in {
        "push": sms(2, M=tile, order="ring+1", push=True),
        "pull": sms(2, M=tile, push=False),
        "fused": fused("matmul"),
        "copy engine": copy_engine(M=2 * tile, order="ring+1"),
        "copy engine in whole parts": copy_engine(order="ring+1"),
    }.items():
        one[f"gemm_rs {name}"] = gemm_rs, {"scatter": scatter, "reduce": add, "matmul": made}
        if name != "pull":
            one[f"gemm_rs {name}, reduced in the epilogue"] = (
                gemm_rs,
                {"scatter": scatter, "reduce": fused("matmul"), "matmul": made},
            )
    parts, chunks = library("torch.mm", M="M/R"), library("torch.mm", M=tile + 5, streams=2)
    engine = copy_engine(M=2 * tile, push=True)
    one["ag_gemm library"] = ag_gemm, {"gather": engine, "matmul": parts}
    one["ag_gemm library, pull by SMs"] = ag_gemm, {"gather": sms(2, M=tile, order="ring"), "matmul": chunks}
    one["gemm_rs library"] = gemm_rs, {"matmul": parts, "scatter": copy_engine(M=tile), "reduce": add}
    one["gemm_rs library, pull"] = gemm_rs, {"matmul": chunks, "scatter": copy_engine(push=False), "reduce": add}
    ring = sms(4, M=tile, N=tile, order="ring+1")
    one["gemm_rs_ring"] = gemm_rs_ring, {"ring": ring, "matmul": made}
    one["gemm_rs_ring fused"] = gemm_rs_ring, {"ring": fused("matmul"), "matmul": made}
    return one


def form(name: str, ranks: int, sizes: Sizes, tile: int = 16, *, slots: int = 2) -> Plan:
    operator, placements = forms(tile)[name]
    return plan_of(operator.schedule(placements), ranks, sizes, slots=slots)


def verify(plan: Plan) -> Verdict:
    """The verdict of a plan that is not refused."""
    verdict = judge(plan)
    if verdict.error is not None:
        raise verdict.error
    return verdict


# ------------------------------------------------------------------------------------------------------- broken on purpose
def unguarded(channel: Channel) -> F.Formula:
    """How often its flags would be signalled without the tests above the notifies."""
    target = channel.target
    while isinstance(target, F.Binary) and target.op == "*" and F.is_truth(target.left):
        target = target.right
    return target


def with_channel(plan: Plan, tensor: str, **changes: Any) -> Plan:
    def changed(c: Channel) -> Channel:
        return replace(c, **changes) if c.tensor == tensor else c

    return replace(plan, channels=tuple(changed(c) for c in plan.channels))


def with_axis(plan: Plan, tensor: str, axis: int | None, **changes: Any) -> Plan:
    axes = tuple(replace(a, **changes) if a.axis == axis else a for a in plan.channel(tensor).axes)
    return with_channel(plan, tensor, axes=axes)


def with_signal(plan: Plan, path: str, param: str, action: str, /, **changes: Any) -> Plan:
    def changed(s: Signal) -> Signal:
        hit = (s.path, s.op.param, s.action) == (path, param, action)
        return replace(s, **changes) if hit else s

    return replace(plan, signals=tuple(changed(s) for s in plan.signals))


def with_buffer(plan: Plan, name: str, **changes: Any) -> Plan:
    def changed(b: Buffer) -> Buffer:
        return replace(b, **changes) if b.name == name else b

    return replace(plan, buffers=tuple(changed(b) for b in plan.buffers))


def launched_backwards(plan: Plan) -> Plan:
    """The last kernel first."""
    launches = iter([h for h in plan.host if isinstance(h, Launch)][::-1])
    return replace(plan, host=tuple(next(launches) if isinstance(h, Launch) else h for h in plan.host))


def with_step(plan: Plan, path: str, **changes: Any) -> Plan:
    def changed(s: StepPlan) -> StepPlan:
        return replace(s, **changes) if s.path == path else s

    return replace(plan, steps=tuple(changed(s) for s in plan.steps))
