"""Ranks with several axes: each step speaks of one, and the proof holds for the ranks that all of them span."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from examples.data_and_tensor_parallel import LINEAR
from examples.two_levels import GATHER, SCATTER
from tests.frontend.harness import message
from tests.mapping.oracle import asked, assert_right
from tests.mapping.plans import emitted, plan_along, verify, with_channel, with_signal, with_step
from tests.mapping.shelf import double
from tests.mapping.shelf_axes import wired
from tests.selection import table
from tilelink import Operator, copy_engine, fused, operator, sms
from tilelink.ir.plan import Plan
from tilelink.ir.topology import RankAxis, Topology

PUTS = sms(2, M=2, push=True)
TILES = sms(M=2, K=4)
LEVELS = {
    "gather": GATHER.schedule(across=PUTS, inside=PUTS, keep=TILES),
    "scatter": SCATTER.schedule(to_gpus=PUTS, to_nodes=PUTS, add_inside=sms(4, M=2, K=4), add_across=TILES),
}


def two_levels(name: str, nodes: int, gpus: int, n: int = 0, g: int = 0, **placements: Any) -> Plan:
    """`n`, `g`: blocks, where there are others than ranks."""
    sizes = {"n": n or nodes, "g": g or gpus, "M": 3, "K": 4}
    axes = {"NODE": nodes, "GPU": gpus}
    return plan_along(LEVELS[name].schedule(placements), axes, sizes, network=("NODE",))


# ----------------------------------------------------------------------------------------------------------------- backends
def test_lines_of_a_grid() -> None:
    grid = Topology(6, axes=(RankAxis("NODE", 2, "network"), RankAxis("GPU", 3)))
    assert [(grid.at(r, "NODE"), grid.at(r, "GPU")) for r in range(6)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert (grid.line(4, "NODE"), grid.line(4, "GPU"), grid.line(4)) == ((1, 4), (3, 4, 5), tuple(range(6)))
    assert all(grid.peer(r, grid.at(r, a), a) == r for r in range(6) for a in ("NODE", "GPU", "R"))
    assert (grid.axis("NODE").reach, grid.axis("GPU").reach, grid.axis().size) == ("network", "peer", 6)


# -------------------------------------------------------------------------------------------------------------------- plans
def test_each_step_has_an_axis_and_peers_along_it() -> None:
    plan = two_levels("gather", 2, 3)
    assert {s.path: s.axis for s in plan.steps} == {"across": "NODE", "inside": "GPU", "keep": "GPU"}
    flags = {c.tensor: [(a.kind, a.over) for a in c.axes if a.axis is not None] for c in plan.channels}
    assert flags["across_dst"][:2] == [("unit", "NODE"), ("part", "GPU")]
    contexts = {k.name: [(a.name, a.along) for a in k.args if a.kind == "context"] for k in emitted(plan).kernels}
    # The first kernel enters the call, which is everybody's affair.
    assert contexts["across"] == [("NODE_ctx", "NODE"), ("ctx", "R")]
    assert contexts["all_gather_keep"] == [("GPU_ctx", "GPU")]


@pytest.mark.parametrize(("nodes", "gpus", "n", "g"), [(2, 2, 0, 0), (2, 3, 0, 0), (1, 2, 0, 0), (3, 2, 4, 3)])
@pytest.mark.parametrize("name", LEVELS)
def test_two_levels_are_proved_and_right(name: str, nodes: int, gpus: int, n: int, g: int) -> None:
    """Also where there are other numbers of blocks than of ranks, so that some ranks have fewer or none."""
    assert_right(two_levels(name, nodes, gpus, n, g))


def test_many_ranks_are_proved() -> None:
    plan = plan_along(LEVELS["gather"], {"NODE": 16, "GPU": 8}, {"n": 16, "g": 8, "M": 64, "K": 8})
    assert verify(plan).ok


# ----------------------------------------------------------------------------------------------------------------- refusals
def refusal(operator: Operator, **placements: Any) -> str:
    sizes, axes = {"n": 2, "g": 2, "M": 3, "K": 4}, {"NODE": 2, "GPU": 2}
    scheduled = operator.schedule(placements)
    return message(lambda: plan_along(scheduled, axes, sizes, network=("NODE",))).splitlines()[0]


def test_the_network_takes_puts_only_and_the_node_takes_all() -> None:
    pull = sms(2, M=2, push=False)
    assert (
        refusal(LEVELS["gather"], across=pull)
        == "TL330: `across` pulls from ranks that are reached over a network only"
    )
    registers = wired(("gather", "double", "scatter")).schedule(gather_0=PUTS, scatter_2=fused("double_1"))
    text = message(lambda: plan_along(registers, {"A": 2, "B": 2}, {"M": 4, "N": 4}, network=("A",)))
    said = (
        "TL330: `scatter_2` pushes tiles of `double_1` out of registers to ranks that are reached over a network only"
    )
    assert text.splitlines()[0] == said
    assert_right(plan_along(registers, {"A": 2, "B": 2}, {"M": 4, "N": 4}, network=("B",)))
    # What a program takes from an argument may be pulled inside a node.
    assert_right(two_levels("scatter", 2, 2, to_gpus=pull))


def test_what_is_made_along_one_axis_is_not_pulled_along_another() -> None:
    said = refusal(LEVELS["gather"], inside=sms(2, M=2, push=False))
    assert said == "TL331: `across_dst` would be signalled along NODE and GPU"


def test_what_is_fused_shares_the_hosts_axis() -> None:
    @operator("M N -> M N", axes="A B", name="apart")
    def apart(x: Any) -> Any:
        return double(double(x, over="A", name="first"), over="B", name="second")

    placed = apart.schedule(first=sms(M=2, N=2), second=fused("first"))
    said = message(lambda: plan_along(placed, {"A": 2, "B": 2}, {"M": 4, "N": 4}))
    assert said.startswith("TL332: `second` goes along B and cannot be fused into `first`, which goes along A")


def test_copy_engines_wait_for_what_came_along_the_other_axis() -> None:
    plan = two_levels("gather", 2, 3, across=copy_engine(M=2, push=True), inside=copy_engine(M=2, push=True))
    assert_right(plan)


# ------------------------------------------------------------------------------------------------------ broken on purpose
def broken(plan: Plan) -> dict[str, Plan]:
    return {
        "no wait between the levels": with_signal(plan, "inside", "src", "await", action="elided", channel=None, reason="stream"),
        "a notify that stays at home": with_signal(plan, "across", "dst", "notify", to="self"),
        "a step along the other axis": replace(plan, steps=(_along(plan.steps[0], "GPU"), *plan.steps[1:])),
        "a target of the other axis": with_channel(plan, "inside_dst", target=plan.channels[0].target * 2),
        "no credit": replace(plan, credits_implied_by="all"),
    }  # fmt: skip


def _along(step: Any, axis: str) -> Any:
    return replace(step, step=replace(step.step, axis=axis))


@table("what", list(broken(two_levels("gather", 2, 3))))
def test_what_is_broken_is_refused(what: str) -> None:
    plan = broken(two_levels("gather", 2, 3, n=3, g=4))[what]
    assert asked(plan).error is not None


@table(
    "recipe, turned, right",
    [(("columns", "gather", "double"), "gather_1", True), (("gather", "columns", "double"), "columns_1", False)],
    ids=["along a single rank", "from a single rank"],
)
def test_who_pulls_along_another_axis_hears_only_of_its_own_tiles(
    recipe: tuple[str, ...], turned: str, right: bool
) -> None:
    """A push along one axis is made a pull; what it takes was made along the other, where there is one rank or two."""
    beside = sms(2, M=4, own_kernel=True)
    made = wired(recipe).schedule({f"{recipe[0]}_0": beside, turned: PUTS})
    plan = plan_along(made, {"A": 1, "B": 2}, {"M": 3, "N": 5})
    assert asked(with_step(plan, turned, push=False)).ok is right


def test_weights_along_one_axis_and_rows_along_the_other() -> None:
    sizes = {"S": 12, "K": 10, "N": 8}
    engines = {"gather_rows": copy_engine(M=4, push=True), "gather_weight": sms(2, M=4), "matmul": sms(M=4, N=4, K=4)}
    plan = plan_along(LINEAR.schedule(engines), {"DP": 2, "TP": 3}, sizes)
    assert {s.path: s.axis for s in plan.steps} == {"gather_rows": "TP", "gather_weight": "DP", "matmul": "TP"}
    assert_right(plan)
