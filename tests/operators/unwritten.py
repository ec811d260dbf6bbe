"""Programs that do, or do not, write all of their results: what a new user writes. `messages` in the test name their lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import move

LIMIT = 2
WORD = "b"
NOBODY = 0


@dataclass(frozen=True)
class Case:
    """`code`: what it is refused with; else `expected` gives each rank's result from its argument."""

    operator: tilelink.Operator
    code: str | None
    expected: Callable[[torch.Tensor, int], Any] | None
    tiles: tuple[str, ...]


CASES: dict[str, Case] = {}


@tilelink.program("M N -> M N")
def again(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)))


def _case(code: str | None, expected: Any, signature: str, tiles: str = "MN", **constants: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        made = tilelink.program(signature)(function)

        def body(x: Any) -> Any:
            y = made(x, **constants)
            return again(y) if "push" in function.__name__ else y

        call = tilelink.operator(signature, name=function.__name__)(body)
        CASES[function.__name__] = Case(call, code, expected, tuple(tiles))
        return made

    return decorate


def refused(code: str, signature: str = "M N -> M N", **constants: Any) -> Callable[[Any], Any]:
    return _case(code, None, signature, **constants)


def right(expected: Any = lambda x, rank: x, signature: str = "M N -> M N", **constants: Any) -> Callable[[Any], Any]:
    return _case(None, expected, signature, **constants)


# ----------------------------------------------------------------------------------------------- nobody writes it
@refused("TL604", "M/R N -> M N")
def told_and_not_moved(shard: Any, rows: Any) -> None:
    m, n = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, (m, n))
    tl.producer_tile_notify(rows, (m, n))


@refused("TL604")
def loads_only(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    value += 1


@refused("TL604", "M N -> M N, M N")
def one_of_two(x: Any, out: Any, more: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


# --------------------------------------------------------------------------------------------------- in loops
@refused("TL604")
def no_turn(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in range(0):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604")
def backwards(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in range(5, 2):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@right()
def one_turn_down(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in range(3, 2, -1):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604", c=0)
def no_turn_by_a_constant(x: Any, out: Any, *, c: int) -> None:
    m, n = tl.tile_id(out)
    for _ in range(c):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604")
def no_turn_by_the_module(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in range(NOBODY):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604")
def turns_by_ranks(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in range(tl.num_ranks() - 3):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@right()
def one_turn_by_ranks(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in range(tl.num_ranks() - 1):  # the ranks are two
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604")
def no_static_turn(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for _ in tl.static_range(0):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL614")
def while_that_counts(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    k = 0
    while k < 0:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
        k += 1


@refused("TL604")
def while_never(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    c = 1
    while c < 0:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604")
def no_tiles(x: Any, out: Any) -> None:
    m, _ = tl.tile_id(out)
    for n in tl.tiles(out, axis=1, start=3, stop=3):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@refused("TL604")
def some_tiles(x: Any, out: Any) -> None:
    m, _ = tl.tile_id(out)
    for n in tl.tiles(out, axis=1, start=1):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@right(signature="m N -> m N", tiles="")
def positions_in_two_walks(x: Any, out: Any) -> None:
    m, _ = tl.tile_id(out)
    for n in tl.tiles(out, axis=1, stop=3):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    for k in tl.tiles(out, axis=1, start=3):
        tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)))


@refused("TL604")
def twice_in_a_loop(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for k in range(2):
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + k)


@refused("TL604")
def once_for_each_column(x: Any, out: Any) -> None:
    m, _ = tl.tile_id(x)
    tl.tile_store(out, (m,), tl.tile_load(x, (m,)))


# ------------------------------------------------------------------------------------------------ under conditions
@refused("TL604")
def on_the_first_rank(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    if tl.rank() == 0:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@right(lambda x, rank: x if rank == 0 else 2 * x)
def on_each_rank_its_own(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    if tl.rank() == 0:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    if tl.rank() > 0:
        tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@refused("TL604")
def under_a_mask(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=(tl.tile_range(out, m) < LIMIT)[:, None])


@right(lambda x, rank: torch.where(torch.arange(len(x))[:, None] < LIMIT, x, 2 * x))
def under_a_mask_and_its_opposite(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    first = tl.tile_range(out, m)[:, None] < LIMIT
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=first)
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=~first)


@refused("TL604")
def under_masks_that_meet(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    at = tl.tile_range(out, n)[None, :]
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=at <= LIMIT)
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=at >= LIMIT)


@right()
def under_a_mask_that_holds(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    inside = (tl.tile_range(out, m) < tl.size(x, 0))[:, None] & (tl.tile_range(out, n) < tl.size(x, 1))[None, :]
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=inside)


@right(lambda x, rank: torch.where(torch.arange(x.shape[1]) < LIMIT, x, 2 * x))
def up_to_a_position_and_from_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, stop=LIMIT))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, start=LIMIT))


@refused("TL604")
def up_to_a_position_and_behind_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, stop=LIMIT))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, start=LIMIT + 1))


@refused("TL604")
def past_a_position_and_from_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, stop=LIMIT + 1))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, start=LIMIT))


@right(lambda x, rank: torch.where(torch.ones_like(x).tril() > 0, x, 2 * x))
def up_to_the_diagonal_and_from_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    behind = tl.tile_range(out, m) + 1
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, stop=behind))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, start=behind))


@refused("TL604")
def up_to_the_diagonal_and_behind_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    rows = tl.tile_range(out, m)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, stop=rows))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.tile_mask(out, n, start=rows + 1))


@right(lambda x, rank: torch.where(torch.arange(len(x))[:, None] < LIMIT, x, 2 * x))
def up_to_a_row_and_from_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.trans(tl.tile_mask(out, m, stop=LIMIT)))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.trans(tl.tile_mask(out, m, start=LIMIT)))


@refused("TL604")
def up_to_a_row_and_behind_it(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.trans(tl.tile_mask(out, m, stop=LIMIT)))
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)), mask=tl.trans(tl.tile_mask(out, m, start=LIMIT + 1)))


@refused("TL614")
def by_dimensions_that_are_named(x: Any, out: Any) -> None:
    """`trans` with them may leave a block as it is: nothing is known of its elements."""
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.trans(tl.tile_mask(out, n), dims=(0, 1)))


@refused("TL614")
def by_data(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value, mask=value > 0)


@refused("TL614")
def if_data_says_so(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    if tl.tile_load(x, (0, 0)) > 0:
        tl.tile_store(out, (m, n), value)


@right()
def either_way(x: Any, out: Any) -> None:
    m, n = tl.tile_id(x)
    value = tl.tile_load(x, (m, n))
    if tl.tile_load(x, (0, 0)) > 0:
        tl.tile_store(out, (m, n), value)
    else:
        tl.tile_store(out, (m, n), 2 * value - value)


@right(lambda x, rank: torch.where(x > 0, x, 2 * x), "M N -> M N once")
def declared_once(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value, mask=value > 0)
    tl.tile_store(out, (m, n), 2 * value, mask=value <= 0)


@right(lambda x, rank: torch.where(x > 0, x, torch.nan), "M N -> M N partial")
def declared_partial(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value, mask=value > 0)


@refused("TL604", "M N -> M N partial")
def partial_and_never(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    value += 1


# --------------------------------------------------------------------------------------------- tests of constants
@right(kind="a")
def by_a_word(x: Any, out: Any, *, kind: str) -> None:
    m, n = tl.tile_id(out)
    if kind == "a":
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    if kind == "b":
        tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@right(lambda x, rank: 2 * x, kind="a")
def by_another_word(x: Any, out: Any, *, kind: str) -> None:
    m, n = tl.tile_id(out)
    if not kind != "b":  # noqa: SIM202
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    if kind != WORD:
        tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@right(flag=True)
def by_a_flag(x: Any, out: Any, *, flag: bool) -> None:
    m, n = tl.tile_id(out)
    if flag is True:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    if not flag:
        tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@refused("TL604", flag=False)
def by_no_flag(x: Any, out: Any, *, flag: bool) -> None:
    m, n = tl.tile_id(out)
    if flag is True:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


# -------------------------------------------------------------------------------------------------------- pushes
@refused("TL604", "M/R N -> M N", reps=0)
def pushed_in_no_turn(x: Any, rows: Any, *, reps: int) -> None:
    m, n = tl.tile_id(x)
    for _ in range(reps):
        tl.tile_push_data(rows, (m, n), tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(rows, (m, n))


@refused("TL604", "M/R N -> M N")
def pushed_by_the_first_rank(x: Any, rows: Any) -> None:
    m, n = tl.tile_id(x)
    if tl.rank_of(x, m) == 0:
        tl.tile_push_data(rows, (m, n), tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(rows, (m, n))


@refused("TL604", "M N -> M N")
def shifted(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    at = tl.tile_range(out, m) + 1
    tl.tile_store(out, (at, n), tl.tile_load(x, (m, n)))


@right(lambda x, rank: x.flip(0), "M N -> M N")
def turned_over(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    at = tl.size(out, 0) - 1 - tl.tile_range(out, m)
    tl.tile_store(out, (at, n), tl.tile_load(x, (m, n)))


@refused("TL604", "M N -> M N partial")
def partial_but_for_a_column(x: Any, out: Any) -> None:
    """What no data decides is not left out by data."""
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value, mask=(value > 0) & (tl.tile_range(out, n)[None, :] < tl.size(out, 1) - 1))


to_owners = tilelink.program("M/R N, M N", name="to_owners")(move)
back_from_owners = tilelink.program("M N, M/R N", name="back_from_owners")(move)


@tilelink.operator("M/R N -> M/R N")
def by_owners(x: Any) -> Any:
    there, back = (
        tilelink.symmetric("M N", like=x, owner="m, n -> (m // 4 + 1) % R"),
        tilelink.symmetric("M/R N", like=x),
    )
    to_owners(x, there)
    back_from_owners(there, back)
    return again(back)
