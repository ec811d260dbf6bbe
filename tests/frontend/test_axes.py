"""Axes of ranks by name: what declares them, which of them a step speaks of, and what is said where nothing tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tilelink
import tilelink.language as tl
from tests.frontend.harness import message
from tests.selection import table
from tilelink.frontend import bind_sizes, parse_signature, ranks_here, trace
from tilelink.ir.formula import evaluate
from tilelink.ir.shape import Dim
from tilelink.ir.wiring import Wiring
from tilelink.ops.programs import gather, matmul, scatter

NAMED = {"DP": 2, "TP": 3}


def traced(
    signature: str, body: Callable[..., Any], sizes: dict[str, int], axes: dict[str, int] | None = None
) -> Wiring:
    axes = axes or NAMED
    parsed = parse_signature(signature, axes=" ".join(axes))
    return trace("op", body, parsed, sizes, ["f32"] * len(parsed.inputs), {}, axes=axes)


def axes_of(wiring: Wiring) -> dict[str, str]:
    return {s.path: s.axis for s in wiring.steps}


# ------------------------------------------------------------------------------------------------------------ declarations
def test_a_tensor_may_be_split_over_each_axis_once() -> None:
    read = parse_signature("M/DP K/TP, DP/DP TP M -> M", axes="DP TP")
    assert [(a.name, a.split) for a in read.inputs[0].axes] == [("M", "DP"), ("K", "TP")]
    assert [(a.name, a.split, a.unit) for a in read.inputs[1].axes] == [
        ("DP", "DP", True),
        ("TP", None, True),
        ("M", None, False),
    ]
    assert (read.axes, read.global_dims()) == (("DP", "TP"), {"M", "K"})


def test_one_axis_is_r_whatever_it_is_called() -> None:
    read = parse_signature("M/TP K, TP/TP K -> M", axes="TP")
    assert (read.axes, read.along) == (("R",), "TP")
    assert read.inputs[1].axes[0].size == Dim("R")
    assert replace(read, along=None) == parse_signature("M/R K, R/R K -> M")


@table(
    "signature, axes, said",
    [
        ("M/DP K", "dp", "TL105: `dp` is no axis of ranks"),
        ("M/DP K", "DP DP", "TL105: `DP` twice"),
        ("M/DP K", "DP R", "TL105: `R` beside other axes"),
        ("M/DP K", " ", "TL105: no axis of ranks is named"),
        ("M/R K", "DP TP", "TL103: `M` is split over `R`"),
        ("R M", "DP TP", "TL102: `R` where the axes of ranks have names"),
        ("M/DP/TP K", "DP TP", "TL103: `M` is split twice"),
        ("M/DP K/DP", "DP TP", "TL103: `M/DP` and `K/DP` are both split"),
        ("DP/TP M", "DP TP", "TL103: DP is split by `TP`"),
        ("DP*2 M", "DP TP", "TL102: `DP*2` computes with DP"),
    ],
)
def test_what_cannot_be_declared(signature: str, axes: str, said: str) -> None:
    assert message(lambda: parse_signature(signature, axes=axes)).splitlines()[0] == said


def test_a_program_speaks_of_one_axis() -> None:
    text = message(lambda: tilelink.program("M/DP K/TP -> M K", axes="DP TP"))
    assert text.splitlines()[0] == "TL105: a tile program that speaks of DP and TP"


# ------------------------------------------------------------------------------------------------------------------- sizes
def test_sizes_follow_from_the_ranks_along_each_axis() -> None:
    read = parse_signature("M/DP K/TP, DP/DP TP N", axes="DP TP")
    assert bind_sizes(read, [(5, 4), (3, 7)], NAMED) == {"M": 10, "K": 12, "N": 7}
    assert bind_sizes(read, [(4, 4), (1, 3, 7)], NAMED, {"M": 9}, at={"DP": 1, "TP": 0})["M"] == 9
    wrong = message(lambda: bind_sizes(read, [(4, 4), (3, 7)], NAMED, {"M": 9}, at={"DP": 0, "TP": 1}))
    assert wrong.splitlines()[0] == "TL204: `M` is 9 and 8"
    wrong = message(lambda: bind_sizes(read, [(5, 4), (2, 7)], NAMED))
    assert wrong.splitlines()[0] == "TL204: `TP` is 3 and 2"


# ------------------------------------------------------------------------------------------------------------ which is meant
def test_a_step_speaks_of_the_axis_that_its_tensors_are_split_over() -> None:
    wiring = traced(
        "S/TP K, K/DP N -> S N", lambda x, w: matmul(gather(x, name="a"), gather(w, name="b")), {"S": 6, "K": 4, "N": 2}
    )
    assert axes_of(wiring) == {"a": "TP", "b": "DP", "matmul": "TP"}
    assert [a.over for a in wiring.tensor("x").axes] == ["TP", None]
    assert wiring.axes == ("DP", "TP")


def test_what_is_split_over_another_axis_is_this_ranks_part() -> None:
    wiring = traced("S/DP K/TP -> S/DP K", lambda x: columns(x), {"S": 6, "K": 6})
    view = wiring.steps[0].binding("rows").view
    assert [(v.dim, v.local) for v in view] == [("M", True), ("K", False)]
    made = wiring.tensor("rows")
    assert [(a.over, evaluate(a.size, {"S": 6, "K": 6})) for a in made.axes] == [("DP", 6), (None, 6)]


def test_who_speaks_of_no_ranks_goes_with_who_takes_what_it_makes() -> None:

    def body(x: Any, w: Any) -> Any:
        return scatter(matmul(matmul(gather(x), w, name="first"), w, name="second"), over="DP")

    wiring = traced("S/TP K, K K -> s S/DP K", body, {"S": 6, "K": 4})
    assert axes_of(wiring) == {"gather": "TP", "first": "DP", "second": "DP", "scatter": "DP"}


def test_an_operator_of_one_axis_in_one_of_several() -> None:
    inner = tilelink.operator("M/R K -> M K", name="inner")(lambda x: gather(x))
    wiring = traced("S/TP K -> S K", lambda x: inner(x, over="TP"), {"S": 6, "K": 4})
    assert axes_of(wiring) == {"inner.gather": "TP"}
    text = message(lambda: traced("S/TP K -> S K", lambda x: inner(x), {"S": 6, "K": 4}))
    assert text.splitlines()[0] == "TL213: which axes of ranks those of `inner` are"
    named = tilelink.operator("M/TP K -> M K", name="named", axes="TP")(lambda x: gather(x))
    assert axes_of(traced("S/TP K -> S K", lambda x: named(x), {"S": 6, "K": 4})) == {"named.gather": "TP"}


def test_ranks_are_those_of_the_axis_that_an_operator_knows_of() -> None:
    seen: list[int] = []
    named = tilelink.operator("M/TP K -> M K", name="named", axes="TP")(
        lambda x: seen.append(ranks_here()) or gather(x)
    )
    inner = tilelink.operator("M/R K -> M K", name="inner")(lambda x: seen.append(ranks_here()) or gather(x))
    traced("S/TP K -> S K", lambda x: named(x), {"S": 6, "K": 4})
    traced("S/DP K -> S K", lambda x: inner(x, over="DP"), {"S": 6, "K": 4})
    assert seen == [NAMED["TP"], NAMED["DP"]]
    assert message(lambda: ranks_here()).splitlines()[0] == "TL211: ranks are counted outside an operator"


@table(
    "signature, body, said",
    [
        ("M K -> M K", lambda x: ranks_here(), "TL213: along which axis ranks are counted"),
        ("M K -> s M/DP K", lambda x: scatter(x), "TL213: which axis of ranks `R` of `scatter` is"),
        ("M K -> s M/DP K", lambda x: scatter(x, over="R"), "TL213: `over='R'` is no axis of ranks"),
        ("M/DP K -> M K", lambda x: gather(x, over="TP"), "TL207: `x` does not fit `shard` of `gather`"),
        ("M/DP K -> M K", lambda x: owned(x), "TL214: an owner map where the ranks have several axes"),
        ("M/DP K -> M K", lambda x: x, "TL207: `x` does not fit `result 1` of `op`"),
    ],
)  # fmt: skip
def test_what_nothing_tells(signature: str, body: Callable[..., Any], said: str) -> None:
    assert message(lambda: traced(signature, body, {"M": 6, "K": 4})).splitlines()[0] == said


def owned(x: Any) -> Any:
    return tilelink.symmetric("M K", like=x, owner="m -> m % 2")


@tilelink.program("M K/R -> M K")
def columns(shard: Any, rows: Any) -> None:
    m, k = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, (m, k))
    tl.tile_pull_data(rows, (m, k), source=shard)
    tl.producer_tile_notify(rows, (m, k))
