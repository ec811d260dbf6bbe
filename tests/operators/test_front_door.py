"""What users hold: its surface, copies of it, and what is said of keys and operators that cannot be."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import tilelink
from tilelink import Operator, TilelinkError, ops, sms

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


def test_a_key_that_raises() -> None:
    with pytest.raises(TilelinkError) as caught:
        placed(matmul=sms(order=raising, **TILE))
    assert caught.value.message == "the sort key of `matmul` raises ZeroDivisionError: division by zero"
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__
    of_one: Any = lambda tile: tile  # noqa: E731
    with pytest.raises(TilelinkError, match="TL310: the sort key of `matmul` raises TypeError"):
        placed(matmul=sms(order=of_one, **TILE))


def test_a_lambda_has_no_name() -> None:
    with pytest.raises(TilelinkError, match="TL216: an operator is called `<lambda>`"):
        tilelink.operator("M -> M")(lambda x: x)


def test_a_lambda_with_a_name() -> None:
    named = tilelink.operator("M/R K, K N -> M N", name="named")(lambda x, w: ops.ag_gemm(x, w))
    assert named.plan(*LISTS).wiring.name == "named"
