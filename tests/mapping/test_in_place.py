"""What a rank has brought along is read where it lies, unless something about the tensor or a reader forbids it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_right
from tests.mapping.plans import plan_of
from tests.mapping.shelf import columns, double, local, patient
from tests.selection import table
from tilelink import Operator, copy_engine, fused, operator, sms
from tilelink.ops.programs import gather, keep, matmul, move, share
from tilelink.ops.ulysses import to_heads

TILE = sms(M=2, N=2)
RANKS, SIZES = 2, {"M": 8, "N": 4}


@tilelink.program("M N -> M N")
def twice(rows: Any, out: Any) -> None:
    """Loads its tile again."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) + tl.tile_load(rows, (m, n)))


@tilelink.program("M N -> M N")
def waiting_twice(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)))


@tilelink.program("M N -> M N")
def waiting_inside(rows: Any, out: Any, *, many: int = 1) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for _ in range(many):
        tl.consumer_tile_wait(rows, (m, n))
        acc += tl.tile_load(rows, (m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.program("m N -> m N")
def one_by_one(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)))


@tilelink.program("M N H -> M N H")
def of_three(rows: Any, out: Any) -> None:
    m, n, h = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.tile_store(out, (m, n, h), tl.tile_load(rows, (m, n, h)))


@tilelink.program("M N, M N -> M N")
def added(left: Any, right: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(left, (m, n))
    tl.consumer_tile_wait(right, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(left, (m, n)) + tl.tile_load(right, (m, n)))


@tilelink.program("M N -> M/R N")
def own_rows(rows: Any, out: Any) -> None:
    """This rank's part of what all have."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)))


@tilelink.program("S M N -> S M N")
def of_slices(rows: Any, out: Any) -> None:
    s, m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, s)
    tl.tile_store(out, (s, m, n), tl.tile_load(rows, (s, m, n)))


again = tilelink.program("M ... -> M ...", name="again")(move)


@dataclass(frozen=True)
class Case:
    """An operator with its placements, and what is read in place."""

    operator: Operator
    placements: dict[str, Any]
    read: list[str] = field(default_factory=list[str])
    sizes: dict[str, int] = field(default_factory=lambda: SIZES)


def of(program: Any) -> Operator:
    return operator("M/R N -> M N", name="op")(lambda x: program(gather(x)))


def with_gather(name: str, placement: Any = TILE, **more: Any) -> dict[str, Any]:
    return {"gather": copy_engine(push=True), name: placement, **more}


@operator("M N -> M N")
def of_all(x: Any) -> Any:
    return double(keep(x))


@operator("M/R N H -> M N/R H")
def of_other_parts(x: Any) -> Any:
    return of_three(to_heads(x))


@operator("M N/R -> M N")
def of_columns(x: Any) -> Any:
    return double(columns(x))


@operator("M/R N -> M N")
def of_made(x: Any) -> Any:
    return double(gather(local(x)))


@operator("M/R N -> M N, M N")
def moved_on(x: Any) -> Any:
    rows = gather(x)
    return double(rows), keep(rows)


@operator("M/R N, M K, K N -> M N")
def in_an_epilogue(x: Any, left: Any, right: Any) -> Any:
    return added(matmul(left, right), gather(x))


@operator("M/R N -> M N, M N")
def returned_too(x: Any) -> Any:
    rows = gather(x)
    return double(rows), rows


@operator("M/R N -> M N, M N")
def loaded_and_moved_on(x: Any) -> Any:
    rows = gather(x)
    return double(rows), again(rows)


@operator("M/R N -> M N")
def before_another(x: Any) -> Any:
    return double(double(gather(x)), name="second")


@operator("M/R N -> M/R N")
def of_own(x: Any) -> Any:
    return own_rows(gather(x))


@operator("R/R M N -> M N")
def of_a_slice(x: Any) -> Any:
    return double(keep(x))


@operator("R/R M N -> R M N")
def of_all_slices(x: Any) -> Any:
    return of_slices(share(x))


CASES = {
    "tile by tile": Case(of(double), with_gather("double"), ["double"]),
    "tiles that end with their part": Case(
        of(double), with_gather("double", sms(M=2, N=2, order="ring")), ["double"], {"M": 18, "N": 4}
    ),
    "tiles of two parts": Case(of(double), with_gather("double"), sizes={"M": 10, "N": 4}),
    "rows in no tiles": Case(of(double), with_gather("double", sms(N=2))),
    "rows one by one": Case(of(one_by_one), with_gather("one_by_one", sms(N=2))),
    "moved by workers": Case(of(double), with_gather("double") | {"gather": sms(1, M=2)}),
    "an argument that all have": Case(of_all, {"keep": copy_engine(), "double": TILE}),
    "other parts": Case(
        of_other_parts, {"to_heads": copy_engine(), "of_three": sms(M=2, N=2, H=2)}, sizes={"M": 8, "N": 4, "H": 2}
    ),
    "columns": Case(of_columns, {"columns": copy_engine(), "double": TILE}),
    "made here": Case(of_made, with_gather("double", local=TILE)),
    "a result": Case(returned_too, with_gather("double", gather=copy_engine(push=False))),
    "moved on": Case(moved_on, with_gather("double", keep=copy_engine())),
    "moved on by workers": Case(loaded_and_moved_on, with_gather("double", again=sms(M=2, push=False))),
    "before what is fused": Case(before_another, with_gather("double", second=fused("double"))),
    "own rows of what all have": Case(of_own, with_gather("own_rows")),
    "of a slice": Case(of_a_slice, {"keep": copy_engine(), "double": TILE}),
    "of all slices": Case(of_all_slices, {"share": copy_engine(), "of_slices": sms(S=1, M=2, N=2)}),
    "in an epilogue": Case(
        in_an_epilogue, with_gather("added", fused("matmul"), matmul=sms(M=2, N=2, K=2)), sizes=SIZES | {"K": 2}
    ),
    "loaded twice": Case(of(twice), with_gather("twice")),
    "waited for twice": Case(of(waiting_twice), with_gather("waiting_twice")),
    "waited for in a loop": Case(of(waiting_inside), with_gather("waiting_inside")),
    "waited for as a whole": Case(of(patient), with_gather("patient")),
}


@table("case", CASES.values(), ids=[*CASES])
def test_who_reads_in_place(case: Case) -> None:
    plan = plan_of(case.operator, RANKS, case.sizes, **case.placements)
    assert [s.path for s in plan.steps if s.in_place] == case.read
    assert_right(plan)
