"""Placements that nobody would write: a diagnostic, or a plan that is proven and gives what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, find, given
from hypothesis import strategies as st

from tests.fuzz.outcomes import outcome
from tests.fuzz.test_operators import FIRST
from tests.operators.problems import AG, RS, Problem, assert_solves
from tests.selection import cases
from tilelink import Operator, copy_engine, fused, library, sms
from tilelink.errors import TilelinkError
from tilelink.ir.topology import Device, Topology
from tilelink.ir.verdict import Verdict
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

OPERATORS = {op.name: op for op in (ag_gemm, gemm_rs, gemm_rs_ring)}
STEPS = {
    "ag_gemm": ("gather", "matmul"),
    "gemm_rs": ("matmul", "scatter", "reduce"),
    "gemm_rs_ring": ("matmul", "ring"),
}
PATHS = ("gather", "matmul", "scatter", "reduce", "ring", "", "gemm_rs.matmul", "no_such_step", "matmul.x")
NUMBERS = st.one_of(
    st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([-1, 0, 3, 100, 128, 2**40]), st.integers(1, 70)
)
POWERS = st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.sampled_from([1, 2, 4, 8, 16, 32, 64]), NUMBERS)
ODD: st.SearchStrategy[Any] = st.sampled_from([None, True, 1.5, "16", "", (), [], {}, object(), float("nan"), b"x"])
WORDS = st.sampled_from(
    ["row", "column", "ring", "ring+1", "ring+2", "ring-1", "ring+99", "group 2", "group 0", "group", "group x", "", "Ring", "é"]
)  # fmt: skip
KEYS: st.SearchStrategy[Any] = st.sampled_from([
    lambda tile, rank, ranks: sum(tile), lambda tile, rank, ranks: (rank, -tile[0]), lambda tile, rank, ranks: None,
    lambda tile, rank, ranks: str(tile), lambda tile, rank, ranks: (None, 1)[sum(tile) % 2],
])  # fmt: skip


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One in forty is of the wrong kind."""
    return st.integers(0, 39).flatmap(lambda n: ODD if n == 7 else good)


ORDERS = mostly(st.one_of(WORDS, st.lists(st.one_of(WORDS, KEYS), max_size=3).map(tuple), KEYS))
DIMENSIONS = st.one_of(st.sampled_from("MNK"), st.sampled_from("MNK"), st.sampled_from(["R", "s", "_0", "T", "count_"]))
TILES = st.dictionaries(DIMENSIONS, mostly(POWERS), max_size=3)
SMS = st.fixed_dictionaries(
    {},
    optional={
        "order": ORDERS,
        "push": mostly(st.sampled_from([None, True, False])),
        "num_warps": mostly(NUMBERS),
        "num_stages": mostly(NUMBERS),
        "own_kernel": mostly(st.booleans()),
        "joins": mostly(st.one_of(st.none(), st.sampled_from(PATHS))),
    },
)
ENGINE = st.fixed_dictionaries(
    {}, optional={"order": ORDERS, "push": mostly(st.booleans()), "streams": mostly(st.sampled_from([1, 2, 3, 0, -1]))}
)
Make = Callable[[], Any]
PLACEMENTS: st.SearchStrategy[Make] = st.one_of(
    st.tuples(mostly(st.one_of(st.none(), NUMBERS)), SMS, TILES).map(lambda p: lambda: sms(p[0], **{**p[1], **p[2]})),
    st.tuples(ENGINE, TILES).map(lambda p: lambda: copy_engine(**{**p[0], **p[1]})),
    st.tuples(ENGINE, st.just({"M": 8})).map(lambda p: lambda: copy_engine(**{**p[0], **p[1]})),
    mostly(st.sampled_from(PATHS)).map(lambda into: lambda: fused(into)),
    mostly(st.sampled_from(["torch.mm", "os.system", "", "x"])).map(lambda name: lambda: library(name)),
)


@st.composite
def schedules(draw: Any) -> tuple[str, dict[str, Make]]:
    name = draw(st.sampled_from(sorted(OPERATORS)))
    steps = STEPS[name]
    paths = st.integers(0, 29).flatmap(lambda n: st.sampled_from(PATHS if n == 7 else steps))
    return name, draw(st.dictionaries(paths, mostly(PLACEMENTS), max_size=3))


MORE = st.fixed_dictionaries(
    {},
    optional={
        "slots": mostly(st.sampled_from([1, 2, 2, 3, 3, 0, -1])),
        "channels": mostly(st.dictionaries(st.sampled_from(["rows", "dst", "x", "none"]), mostly(POWERS), max_size=2)),
    },
)


def problem(operator: Operator, m: int, n: int, k: int, ranks: int) -> Problem:
    import torch

    return (AG if operator is ag_gemm else RS).call(m, n, k, ranks, torch.float32)


def scheduled(operator: Operator, schedule: dict[str, Make], more: dict[str, Any]) -> Operator:
    return operator.schedule({path: make() if callable(make) else make for path, make in schedule.items()}, **more)


@cases(120)
@example(("ag_gemm", {"gather": lambda: copy_engine(order="")}), {}, 1, 1)
@given(schedules(), MORE, st.integers(1, 4), st.integers(1, 40))
def test_any_schedule(made: tuple[str, dict[str, Make]], more: dict[str, Any], ranks: int, m: int) -> None:
    name, schedule = made
    operator = OPERATORS[name]
    call = problem(operator, m, 24, 16, ranks)

    def planned() -> Any:
        placed = scheduled(operator, schedule, more)
        return placed.verify(*call.inputs[0], topology=Topology(ranks, device=Device(sms=6)), **call.given)

    assert isinstance(outcome(planned), (Verdict, TilelinkError))


GOOD_ORDERS = st.sampled_from(["row", "column", "ring", "ring+1", "ring+2", ("ring", "group 2"), ("ring+1", "group 2")])


@st.composite
def sensible(draw: Any) -> tuple[str, dict[str, Any]]:
    """Placements of the right kinds, in any combination: most can be planned, and some of those must be refused."""
    name = draw(st.sampled_from(sorted(OPERATORS)))
    entries: dict[str, Any] = {}
    for path in STEPS[name]:
        moves = path in ("gather", "scatter")
        kind = draw(st.sampled_from(["sms", "copy", "fused", "own"] if moves else ["sms", "sms", "fused", "own"]))
        tile = {n: draw(st.sampled_from([16, 32])) for n in (["M"] if moves else ["M", "N", "K"])}
        if path in ("reduce", "ring"):
            tile.pop("K")
        order = draw(GOOD_ORDERS)
        push = draw(st.sampled_from([None, True, False])) if moves else None
        if kind == "copy":
            entries[path] = copy_engine(order=order, push=push, streams=draw(st.sampled_from([1, 2])), **tile)
        elif kind == "fused" and path != "matmul":
            entries[path] = fused("matmul")
        else:
            count = draw(st.sampled_from([None, 1, 2]))
            entries[path] = sms(count, order=order, push=push, own_kernel=kind == "own", **tile)
    return name, entries


@cases(15)
@given(
    sensible(),
    st.integers(1, 4),
    st.integers(1, 70),
    st.sampled_from([8, 24, 33]),
    st.integers(0, 99),
    st.sampled_from([1, 2, 3]),
)
def test_what_is_planned_is_right(
    made: tuple[str, dict[str, Any]], ranks: int, m: int, k: int, seed: int, slots: int
) -> None:
    name, entries = made
    operator = OPERATORS[name]
    call = problem(operator, m, 24, k, ranks)
    placed = operator.schedule(entries, slots=slots)
    # What runs is compared with torch.
    found = outcome(lambda: assert_solves(placed, [call, call], seed=seed, straggler=seed % ranks))
    assert found is None or isinstance(found, TilelinkError)


def test_some_of_them_are_planned() -> None:
    """Or else the test above would compare nothing."""

    def planned(made: tuple[str, dict[str, Any]]) -> bool:
        operator = OPERATORS[made[0]]
        call = problem(operator, 33, 24, 24, 2)
        found = outcome(lambda: operator.schedule(made[1]).plan(
            *call.inputs[0], topology=Topology(2, device=Device(sms=6)), verify=True, **call.given
        ))  # fmt: skip
        return len(made[1]) > 1 and not isinstance(found, TilelinkError)

    for name in OPERATORS:
        assert planned(find(sensible().filter(lambda made, name=name: made[0] == name), planned, settings=FIRST))
