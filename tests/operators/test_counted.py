# pyright: reportArgumentType=false
"""Both sides of a flag count alike, however programs announce their tiles and whoever takes them; and what cannot be counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import Sizes, plan_of, with_channel
from tests.mapping.shelf import double, local, rowwise
from tests.operators.language import elsewhere, mlp, ring_gather, send
from tests.operators.problems import (
    Problem,
    assert_as_torch,
    each,
    moved_away,
    perceptron,
    products,
    random,
    split,
    told,
)
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, fused, library, operator, sms
from tilelink.ir import formula as F
from tilelink.ir.schedule import Placement
from tilelink.ops import all_reduce_two_shot, gemm_rs
from tilelink.ops.programs import gather, keep, keep_parts, matmul, reduce, scatter, share
from tilelink.ops.ulysses import to_heads, to_sequence

TILE = sms(M=2, N=2, K=2, order="ring+1")
TILES = sms(M=2, N=2)
PULLS = {"SMs": sms(2, M=2, push=False), "copy engine": copy_engine(M=2, push=False)}


@tilelink.program("R/R M N -> R/R M N")
def twice(partial: Any, out: Any) -> None:
    """Stores and announces this rank's own slice."""
    s, m, n = tl.tile_id(out)
    tl.consumer_tile_wait(partial, (s, m, n))
    tl.tile_store(out, (s, m, n), 2 * tl.tile_load(partial, (s, m, n)))
    tl.producer_tile_notify(out, (s, m, n))


@tilelink.program("s M N -> M N")
def summed(inbox: Any, out: Any) -> None:
    """`reduce`, which announces its whole result with each tile."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(inbox))
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m, n))
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out)


@tilelink.program("M N -> M N")
def doubled(x: Any, out: Any) -> None:
    """Of a tensor that is there as a whole."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x)
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, *, out: torch.Tensor) -> None:
    out.copy_((a := x @ gate) * torch.sigmoid(a) * (x @ up))


def copied(x: torch.Tensor, *, out: torch.Tensor) -> None:
    out.copy_(x)


def times(x: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.mul(x, 2, out=out)


# --------------------------------------------------------------------------------------------------------------- operators
@operator("M N -> M/R N")
def slices(x: Any) -> Any:
    return reduce(scatter(twice(x)))


@operator("M K/R, K/R N -> M/R N")
def at_once(x: Any, weight: Any) -> Any:
    return doubled(summed(scatter(matmul(x, weight))))


@operator("M/R N -> M N")
def there_and_back(x: Any) -> Any:
    return keep(gather(to_sequence(to_heads(x))))


@operator("M N -> M/R N")
def by_rows(x: Any) -> Any:
    return reduce(scatter(rowwise(x)))


@operator("M/R N -> M N")
def through_registers(x: Any) -> Any:
    return keep(ring_gather(local(x)))


@operator("M N -> M/R N")
def between(x: Any) -> Any:
    return reduce(scatter(double(double(x, name="first"), name="second")))


@operator("M/R N -> M N")
def there(x: Any) -> Any:
    return gather(double(double(x, name="first"), name="second"))


# ----------------------------------------------------------------------------------------------------------------- problems
def sums(rows: int, columns: int, factor: int) -> Callable[[int], Problem]:
    """A sum over ranks of what each has of all rows."""

    def make(ranks: int) -> Problem:
        own = [random(rows, columns, seed=r) for r in range(ranks)]
        return Problem(each(own), each(split(factor * torch.stack(own).sum(0), ranks)))

    return make


def rows_of_all(rows: int, columns: int, factor: int = 1) -> Callable[[int], Problem]:
    def make(ranks: int) -> Problem:
        x = random(rows, columns)
        return Problem(each(split(x, ranks)), each([factor * x] * ranks), {"M": rows})

    return make


HELD_IN_TURN = partial(moved_away, lambda m, ranks: m // 4 % ranks, 13, 3)
ELSEWHERE = elsewhere("m, k -> m // 4 % R").schedule(work=sms(M=1, K=2), keep=sms(M=2))
RIGHT: dict[str, tuple[Operator, Callable[[int], Problem]]] = {
    "rows held in turn, pulled by a copy engine": (
        ELSEWHERE.schedule(send=copy_engine(M=1, push=False)),
        HELD_IN_TURN,
    ),
    "rows held in turn, taken whole": (ELSEWHERE.schedule(send=sms(1, M=1), keep=library(copied)), HELD_IN_TURN),
    "own slices, pulled by SMs": (slices.schedule(twice=sms(M=2, N=2), scatter=sms(2, M=2, push=False)), sums(5, 3, 2)),
    "own slices, pulled by a copy engine": (
        slices.schedule(twice=sms(M=2, N=2), scatter=copy_engine(M=2, push=False), reduce=sms(M=2, N=2)),
        sums(5, 3, 2),
    ),
    "a fused step that announces all that it makes": (
        at_once.schedule(
            matmul=TILE, scatter=copy_engine(M=2), summed=fused("matmul"), doubled=sms(2, M=2, N=2, own_kernel=True)
        ),
        lambda ranks: products(9, 4, 3, ranks, factor=2),
    ),
    "parts that are pushed, and pulled on": (there_and_back, rows_of_all(5, 2)),
    "parts that copy engines push, and pull on": (
        there_and_back.schedule(to_sequence=copy_engine(S=2, push=True), gather=copy_engine(M=1, push=False)),
        rows_of_all(5, 2),
    ),
    "columns of a function, pulled by rows": (
        gemm_rs.schedule(
            matmul=library("torch.mm", M=2, N=2), scatter=copy_engine(M=2, push=False), reduce=sms(M=2, N=2)
        ),
        lambda ranks: products(5, 4, 5, ranks),
    ),
    "columns of a function that announces rows": (
        by_rows.schedule(rowwise=library(times, M=2, N=2), scatter=copy_engine(M=2, push=False)),
        sums(5, 5, 2),
    ),
    "tiles of a function that reach into two parts": (
        between.schedule(first=library(times, M=3), second=library(times, M=2)),
        sums(7, 3, 4),
    ),
    "own rows, announced to oneself and to another": (
        through_registers.schedule(local=sms(M=2, N=4), ring_gather=fused("local")),
        rows_of_all(3, 3, 2),
    ),
    "own rows, fused into own rows, and gathered": (
        there.schedule(first=sms(M=2, N=2), second=fused("first"), gather=copy_engine(M=2, push=False)),
        rows_of_all(5, 3, 4),
    ),
    "columns that not every rank has": (
        mlp.schedule(glu=library(gated)),
        lambda ranks: perceptron(5, 4, ranks - 1, ranks),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_against_torch(name: str) -> None:
    """On three ranks, and on two; what goes through registers reaches the next rank only."""
    operator, make = RIGHT[name]
    for ranks in (2,) if operator.name == "through_registers" else (2, 3):
        assert_as_torch(operator, make(ranks))


@pytest.mark.parametrize("columns", [1, 4, 5])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("pull", PULLS)
def test_sizes_at_which_the_two_sides_differed(pull: str, ranks: int, rows: int, columns: int) -> None:
    """Fewer rows, or columns, than ranks, and tiles that end elsewhere than parts do."""
    by_columns, sizes = library("torch.mm", M=2, N=2), {"M": rows, "N": columns}
    plans = (
        plan_of(gemm_rs, ranks, {**sizes, "K": 4}, matmul=by_columns, scatter=PULLS[pull], reduce=TILES),
        plan_of(all_reduce_two_shot, ranks, sizes, scatter=PULLS[pull], reduce=library("torch.sum")),
        plan_of(by_rows, ranks, sizes, rowwise=library(times, M=2, N=2), scatter=PULLS[pull], reduce=TILES),
        plan_of(slices, ranks, sizes, twice=TILES, scatter=PULLS[pull], reduce=TILES),
        plan_of(there_and_back, ranks, sizes, gather=PULLS[pull]),
        plan_of(there_and_back, ranks, sizes, to_sequence=copy_engine(push=True), gather=PULLS[pull]),
    )
    for plan in plans:
        assert_right(plan)


def test_who_waits_for_a_flag_of_a_function_finds_it_set() -> None:
    """A rank without columns has no tile to announce: with one flag for all columns it would wait for ever."""
    plan = plan_of(mlp, 2, {"M": 1, "K": 2, "I": 1}, glu=library(gated))
    assert_right(plan)
    one = with_channel(plan, "glu_out", axes=(), target=F.substitute(plan.channel("glu_out").target, {"c0": 0}))
    assert_refused(one, "TL607")


# -------------------------------------------------------------------------------------------------- what cannot be counted
@operator("M/R N -> R M N")
def sent_on(x: Any) -> Any:
    return keep_parts(share(gather(x)))


@operator("M/R N -> R M N")
def sent_on_at_once(x: Any) -> Any:
    return share(gather(x))


def refused(op: Operator, ranks: int, sizes: Sizes, **given: Any) -> TilelinkError:
    """The diagnostic, which is of a line in this file."""
    with pytest.raises(TilelinkError) as caught:
        plan_of(op, ranks, sizes, **given)
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__
    return caught.value


@table("gathered", [copy_engine(push=True), sms(2, M=2, push=True)], ids=["copy engine", "SMs"])
def test_nobody_pulls_what_others_have_pushed(gathered: Placement) -> None:
    sizes = {"M": 4, "N": 2}
    hint = "let `share` push (push=True): it then waits on its own rank for what it sends on"
    assert told(refused(sent_on, 2, sizes, gather=gathered, share=sms(2, M=2, push=False))) == (
        "TL334",
        "`share` would pull `gather_rows` from instances that `gather` writes on other ranks",
        "who pushes a tile tells the rank that gets it, and not those where `share` pulls it from there",
        hint,
    )
    assert refused(sent_on_at_once, 2, sizes, gather=gathered).hint == f"{hint}, and another program stores the result"
    plan = plan_of(sent_on, 2, sizes, gather=gathered)  # as it comes
    assert plan.step("share").push
    assert_right(plan)


@tilelink.program("M N -> M N")
def echo(x: Any, out: Any) -> None:
    """Announces what it has not made, too."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(out, (m, n))
    tl.producer_tile_notify(x, (m, n))


@operator("M/R N -> M N")
def echoed(x: Any) -> Any:
    return echo(gather(x))


def test_a_flag_is_counted_or_set() -> None:
    assert told(refused(echoed, 2, {"M": 4, "N": 2}, gather=copy_engine(push=True))) == (
        "TL335",
        "`rows` would be announced by the stream of `gather` and by the workers of `echo`",
        "workers count in a flag, and a stream sets it to the number of the call: it cannot be both",
        "place `gather` on SMs too, or let only one of the two programs notify",
    )


@tilelink.program("M K, M/R K")
def vague(there: Any, back: Any) -> None:
    """`work`, which does not say which of the rows that it sends back are there."""
    m, k = tl.tile_id(there)
    tl.consumer_tile_wait(there, (m, k))
    tl.tile_push_data(back, (m, k), tl.tile_load(there, (m, k)))
    tl.producer_tile_notify(back)


@operator("M/R K -> M/R K")
def in_turn(x: Any) -> Any:
    there, back = tilelink.symmetric("M K", owner="m, k -> m % R"), tilelink.symmetric("M/R K")
    send(x, there)
    vague(there, back)
    return doubled(back)


def test_tiles_of_an_owner_map_are_named() -> None:
    sizes, tiles = {"M": 7, "K": 2}, {"send": sms(1, M=1), "vague": sms(M=1, K=2)}
    assert told(refused(in_turn, 3, sizes, **tiles)) == (
        "TL306",
        "`vague` notifies `back` and names no tile of `M`, along which `dst` is mapped",
        "`doubled` waits for as many notifies as there are tiles, and how many each rank has, the owner map `m, k -> m % R` says "
        "tile by tile only",
        "name the tile that the program has made",
    )
    with pytest.raises(TilelinkError, match=r"^TL321") as caught:
        plan_of(
            elsewhere("m, k -> m % R"), 3, {"M": 7, "K": 2}, channels={"dst": 4}, send=sms(1, M=1), work=sms(M=1, K=2)
        )
    assert (
        caught.value.why
        == "an owner map says of each tile which rank has it, so each of its tiles has a flag of its own"
    )
