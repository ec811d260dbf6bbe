# pyright: reportArgumentType=false
"""Numbers and functions outside of programs and operators may change: a call is of what they are then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.frontend.harness import run_cell
from tilelink import Operator, sms
from tilelink.runtime.session import require

HEADER = """import argparse
import tilelink
import tilelink.language as tl
import triton

FACTOR, TILE = 2, 4


class Config:
    factor = 2


class Box:
    def __init__(self, factor):
        self.factor, self.around = factor, self

    def times(self, n):
        return n * self.factor


BOX, BOXES, TABLE = Box(2), [Box(2)], {"factor": 2}
ARGUMENTS = argparse.Namespace(factor=2)


def factor_of(n):
    return n * FACTOR


def held(box):
    return box.factor


@triton.jit
def helped(x):
    return x * FACTOR


@tilelink.program("M N -> M N")
def scaled(x, out, *, by: float = 1.0):
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) * by)


"""
OPERATOR = """@tilelink.program("M N -> M N")
def program(x, out):
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), {value})


@tilelink.operator("M N -> M N")
def operator(x):
    return {body}
"""


def cell(value: str = "0 * tl.tile_load(x, (m, n))", body: str = "program(x)") -> dict[str, Any]:
    return run_cell(HEADER + OPERATOR.format(value=value, body=body))


def three(names: dict[str, Any]) -> None:
    names["FACTOR"] = 3


def redefined(names: dict[str, Any]) -> None:
    names["helped"] = run_cell(
        "import triton\nimport triton.language as tl\n@triton.jit\ndef helped(x):\n    return x * 3\n"
    )["helped"]


def other_program(names: dict[str, Any]) -> None:
    names["program"] = cell("3 * tl.tile_load(x, (m, n))")["program"]


CHANGES: dict[str, tuple[dict[str, str], Callable[[dict[str, Any]], None]]] = {
    "a number in a program": ({"value": "tl.tile_load(x, (m, n)) * FACTOR"}, three),
    "an attribute in a program": (
        {"value": "tl.tile_load(x, (m, n)) * Config.factor"}, lambda names: setattr(names["Config"], "factor", 3)
    ),
    "a number of a helper": ({"value": "helped(tl.tile_load(x, (m, n)))"}, three),
    "a helper": ({"value": "helped(tl.tile_load(x, (m, n)))"}, redefined),
    "a program": ({"value": "2 * tl.tile_load(x, (m, n))"}, other_program),
    "a number in an operator": ({"body": "scaled(x, by=FACTOR)"}, three),
    "an attribute in an operator": (
        {"body": "scaled(x, by=Config.factor)"}, lambda names: setattr(names["Config"], "factor", 3)
    ),
    "a number that is called for": ({"body": "scaled(x, by=factor_of(1))"}, three),
    "an object's": ({"body": "scaled(x, by=BOX.times(1))"}, lambda names: setattr(names["BOX"], "factor", 3)),
    "an entry of a table": ({"body": 'scaled(x, by=TABLE["factor"])'}, lambda names: names["TABLE"].update(factor=3)),
    "an object's that is handed on": ({"body": "scaled(x, by=held(BOX))"}, lambda names: setattr(names["BOX"], "factor", 3)),
    "an object's that holds itself": (
        {"body": "scaled(x, by=BOX.around.around.factor)"}, lambda names: setattr(names["BOX"], "factor", 3)
    ),
    "an object's in a list": (
        {"body": "scaled(x, by=BOXES[0].factor)"}, lambda names: setattr(names["BOXES"][0], "factor", 3)
    ),
    "an object's of a library": (
        {"body": "scaled(x, by=ARGUMENTS.factor)"}, lambda names: setattr(names["ARGUMENTS"], "factor", 3)
    ),
    "in a lambda": ({"body": "scaled(x, by=(lambda: FACTOR)())"}, three),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_outside_changes(what: str) -> None:
    """Between calls that are prepared, between launches, and in other shapes."""
    written, change = CHANGES[what]
    names = cell(**written)
    operator, x, y = names["operator"], torch.ones(4, 4), torch.ones(6, 4)

    def main() -> list[float]:
        found = [float(operator(x)[0, 0]), float(operator(x)[0, 0])]
        change(names)
        return [*found, float(operator(x)[0, 0]), float(operator(y)[0, 0])]

    assert tilelink.launch(main, 1) == [[2, 2, 3, 3]]
    names["FACTOR"] = 5
    again = tilelink.launch(lambda: float(operator(x)[0, 0]), 2)
    assert again == [5 if change is three else 3] * 2


def test_closures() -> None:
    names: dict[str, Any] = run_cell(
        HEADER
        + """def made(factor):
    @tilelink.program("M N -> M N")
    def program(x, out):
        m, n = tl.tile_id(out)
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) * factor)
        tl.producer_tile_notify(out, (m, n))

    @tilelink.operator("M N -> M N")
    def operator(x):
        return scaled(program(x), by=factor)

    def change(to):
        nonlocal factor
        factor = to

    return operator, change
"""
    )
    (two, change), (seven, _) = names["made"](2), names["made"](7)
    x = torch.ones(4, 4)

    def main() -> list[float]:
        found = [float(op(x)[0, 0]) for op in (two, seven, two, seven)]
        change(3)
        return found + [float(op(x)[0, 0]) for op in (two, seven)]

    assert tilelink.launch(main, 1) == [[4, 49, 4, 49, 9, 49]]


def test_one_body_of_two_signatures() -> None:
    body = cell()["operator"].fn
    whole, part = (tilelink.operator(signature, name="one")(body) for signature in ("M N -> M N", "M/R N -> M/R N"))
    x = torch.ones(4, 4)

    def main() -> list[str]:
        for op in (whole, part):
            op(x)
        (one,), (other,) = (require().prepared[op.identity]._new.values() for op in (whole, part))
        return [prepared.said.call for prepared in (one, other)]

    assert tilelink.launch(main, 2)[0] == ["one(M=4, N=4, f32)", "one(M=8, N=4, f32)"]


def test_the_key_of_an_order() -> None:
    names = run_cell("SIGN = 1\ndef key(tile, rank, ranks):\n    return SIGN * tile[0]\n")
    operator = cell("2 * tl.tile_load(x, (m, n))")["operator"].schedule(program=sms(M=2, N=4, order=names["key"]))
    x = torch.ones(6, 4)
    assert operator.plan(x).tables[0][1] == ((0, 1, 2),)
    names["SIGN"] = -1
    assert operator.plan(x).tables[0][1] == ((2, 1, 0),)


def test_what_stays_is_made_once() -> None:
    """A number that is assigned again and is the same, and what the functions do not read."""
    names = cell("tl.tile_load(x, (m, n)) * FACTOR", "program(x, schedule=tilelink.sms(M=TILE, N=4))")
    operator, x = names["operator"], torch.ones(4, 4)
    names["TILE"] = 1024
    first = operator.plan(x)
    names.update(TILE=int("1024"), OTHER=3)
    assert operator.plan(x) is first
    names["TILE"] = 512
    assert operator.plan(x) is not first


# ------------------------------------------------------------------------------------------------------ constants of calls
CONSTANT = (
    HEADER
    + """@tilelink.operator("M N -> M N")
def operator(x, *, by):
    return scaled(x, by=float(by) / (4 if isinstance(by, bool) else 2 if isinstance(by, float) else 1))
"""
)


def test_constants_that_python_takes_for_one_another() -> None:
    operator, x = run_cell(CONSTANT)["operator"], torch.ones(4, 4)
    assert isinstance(operator, Operator)

    def main() -> list[float]:
        return [float(operator(x, by=by)[0, 0]) for by in (1, 1.0, True, 1)]

    assert tilelink.launch(main, 1) == [[1, 0.5, 0.25, 1]]
    zeros = tilelink.launch(lambda: [operator(x, by=by)[0, 0] for by in (0.0, -0.0, 0.0)], 1)[0]
    assert [bool(torch.signbit(z)) for z in zeros] == [False, True, False]


def test_not_a_number_is_prepared_once() -> None:
    operator, x = run_cell(CONSTANT)["operator"], torch.ones(4, 4)
    assert isinstance(operator, Operator)

    def main() -> int:
        for _ in range(3):
            assert operator(x, by=float("nan")).isnan().all()
        return len(require().prepared[operator.identity])

    assert tilelink.launch(main, 1) == [1]


ARRAY, TENSOR = np.array([2.0]), torch.tensor([2.0])


@tilelink.program("M -> M")
def times(x: Any, out: Any, *, by: float = 1.0) -> None:
    m = tl.tile_id(out)
    tl.tile_store(out, m, tl.tile_load(x, m) * by)


@tilelink.operator("M -> M")
def by_both(x: Any) -> Any:
    return times(x, by=float(ARRAY[0]) + float(TENSOR))


def test_numbers_of_an_array_that_is_changed_in_place() -> None:
    x = torch.ones(1)
    assert by_both([x])[0].tolist() == [4.0]
    ARRAY[0] = 3.0
    assert by_both([x])[0].tolist() == [5.0]
    TENSOR.fill_(3.0)
    assert by_both([x])[0].tolist() == [6.0]


@tilelink.operator("M -> M")
def by_first(x: Any, *, factors: Any) -> Any:
    return times(x, by=float(factors[0]))


@pytest.mark.parametrize("factors", [[2.0], torch.tensor([2.0])], ids=["list", "tensor"])
def test_a_constant_that_is_changed_in_place(factors: Any) -> None:
    assert by_first([torch.ones(1)], factors=factors)[0].tolist() == [2.0]
    factors[0] = 3.0
    assert by_first([torch.ones(1)], factors=factors)[0].tolist() == [3.0]
