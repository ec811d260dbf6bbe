"""What users hold: its surface, copies of it, and what is said of schedules, keys and operators that cannot be."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, ops, sms

LISTS = [torch.zeros(8, 16)] * 2, [torch.zeros(16, 8)] * 2
TILE: Any = {"M": 8, "N": 8, "K": 8}
PUBLIC = {
    "calls", "close", "compiled", "explore", "fn", "identity", "kept", "loc", "name", "plan", "reference",
    "reference_fn", "reserve", "schedule",
    "scheduled", "schedules", "signature", "source", "trace", "tune", "tuning", "uneven", "validate", "verify", "wiring",
    "with_schedule",
}  # fmt: skip


def test_what_is_on_an_operator() -> None:
    assert {name for name in dir(Operator) if not name.startswith("_")} == PUBLIC


def test_a_plan_is_short_where_it_is_shown() -> None:
    plan = ops.ag_gemm.plan(*LISTS)
    assert repr(plan) == "<plan of ag_gemm: M/R K, K N -> M N  (M=16 K=16 N=8, 2 ranks), 2 steps>"
    assert str(plan).startswith("ag_gemm: M/R K, K N -> M N  (M=16 K=16 N=8, 2 ranks)\n")


def test_operators_are_copied_and_pickled_as_functions_are() -> None:
    placed = ops.ag_gemm.schedule(matmul=sms(**TILE))
    for op in (ops.ag_gemm, placed):
        assert copy.copy(op) is op
        assert copy.deepcopy({"op": op})["op"] is op
    assert pickle.loads(pickle.dumps(ops.ag_gemm)) is ops.ag_gemm
    found = pickle.loads(pickle.dumps(placed))
    assert (found.fn, found.schedules, found.scheduled) == (placed.fn, placed.schedules, True)
    assert found.identity == placed.identity  # they share what calls have prepared


def test_an_operator_of_no_module_is_not_pickled() -> None:
    @tilelink.operator("M/R K, K N -> M N")
    def inner(x: Any, w: Any) -> Any:
        return ops.ag_gemm(x, w)

    with pytest.raises(pickle.PicklingError, match=r"no operator `inner` is called `.*<locals>\.inner`"):
        pickle.dumps(inner)


def raising(tile: tuple[int, ...], rank: int, ranks: int) -> float:
    return 1 / 0


def placed(**placements: Any) -> Any:
    return ops.ag_gemm.schedule(**placements).plan(*LISTS)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a group beyond 64 bits": (lambda: sms(order=f"group {'9' * 30}", **TILE), "TL329: `order` is 'group 9"),
    "a tile beyond any tensor": (lambda: sms(M=2**40), "TL329: the tile along `M` is 1099511627776"),
    "a million streams": (lambda: copy_engine(streams=10**6), "TL329: `streams` is 1000000"),
    "a hundred thousand slots": (lambda: ops.ag_gemm.schedule(slots=100_000), "TL329: `slots` is 100000"),
    "a key that raises": (
        lambda: placed(matmul=sms(order=raising, **TILE)),
        "TL310: the sort key of `matmul` raises ZeroDivisionError: division by zero",
    ),
    "a key of one argument": (
        lambda: placed(matmul=sms(order=lambda tile: tile, **TILE)),  # pyright: ignore[reportArgumentType]
        "TL310: the sort key of `matmul` raises TypeError",
    ),
    "a key that cannot be hashed": (
        lambda: placed(matmul=sms(order=lambda tile, rank, ranks: [*tile], **TILE)),
        "TL310: the keys of an order cannot be compared",
    ),
    "a lambda": (lambda: tilelink.operator("M -> M")(lambda x: x), "TL216: an operator is called `<lambda>`"),
    "a form": (lambda: ops.all_reduce([torch.zeros(8, 8)] * 2, form="tree"), "TL248: `all_reduce` has no form 'tree'"),
}


@table("what", REFUSED)
def test_what_cannot_be_is_said(what: str) -> None:
    call, message = REFUSED[what]
    with pytest.raises(TilelinkError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_the_line_of_a_key_that_raises() -> None:
    with pytest.raises(TilelinkError) as caught:
        placed(matmul=sms(order=raising, **TILE))
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__


def test_a_lambda_with_a_name() -> None:
    named = tilelink.operator("M/R K, K N -> M N", name="named")(lambda x, w: ops.ag_gemm(x, w))
    assert named.plan(*LISTS).wiring.name == "named"
