"""Tile programs that route: from the experts that tokens chose to tables that say which row is whose.

Everything here runs on the device. The tables are arguments of no call and sizes of no plan: a plan has room for every
routing, and programs read from the tables how much of it is used.
"""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl

# Choices are few: workers send them before a copy engine would have begun.
ROUTED = {"gather_choice": tilelink.sms(2, M=1024, push=True)}
"""Placements of an operator that routes the tokens of all ranks."""
BLOCKS, TOKENS, LANES = 32, 16, 4096
"""Blocks of a rank's tokens, tokens that are worth one, and elements of a tile of choices by experts."""


def tables(choices: Any, experts: int, *, ring: bool = False, name: str = "") -> tuple[Any, Any, Any]:
    """`order`, `start` and `slot` of all choices, as `place` has them, in steps `count` and `place`, with `_name` behind."""
    tokens, k = choices.shape
    # Without tokens, too, somebody has to say where no expert begins.
    blocks = max(1, min(BLOCKS, -(-tokens // TOKENS)))
    lanes = (1 << max(k - 1, 0).bit_length()) * (1 << max(experts - 1, 0).bit_length())
    by = tilelink.sms(T=max(1, LANES // lanes), num_warps=8)
    behind = f"_{name}" if name else ""
    counts = count(choices, E=experts, b=blocks, schedule=by, name=f"count{behind}")
    order, start, slot, _ = place(choices, counts, ring=ring, schedule=by, name=f"place{behind}")
    return order, start, slot


@tilelink.program("T k i32 <E -> R b E i32")
def count(choice: Any, counts: Any) -> None:
    """How many choices fall on each expert, by blocks of tokens, so many for each rank's. A choice of −1 falls on none."""
    s, b, e = tl.tile_id(counts)
    part = tl.cdiv(tl.size(choice, 0), tl.num_ranks())
    each = tl.cdiv(part, tl.size(counts, 1))
    n = 0 * tl.tile_range(counts, e, axis=2)
    for t in tl.tiles(choice, axis=0, start=s * part + b * each, stop=s * part + tl.minimum((b + 1) * each, part)):
        tl.consumer_tile_wait(choice, t)
        chosen = tl.ravel(tl.tile_load(choice, t, other=-1))
        n += tl.sum((chosen[:, None] == tl.tile_range(counts, e, axis=2)[None, :]).to(tl.int32), 0)
    tl.tile_store(counts, (s, b, e), n)
    tl.producer_tile_notify(counts, (s, b, e))


@tilelink.program("T k i32 <E, R b E i32 -> T*k i32 <T partial, E+1 i32 offsets, T k i32 permutation, R b i32")
def place(choice: Any, counts: Any, order: Any, start: Any, slot: Any, blocks: Any, *, ring: bool = False) -> None:
    """Sort the choices by expert, those of one expert by token, so that the tokens of a rank stay together.

    `order`: the token of each row. `start`: where each expert's rows begin. `slot`: the row of each choice, −1 where a
    choice is −1. `blocks`: nothing is in it; a block of tokens is a tile. `ring`: the tokens are of all ranks, and an expert's
    rows begin with this rank's, as they come in a ring.
    """
    s, b = tl.tile_id(blocks)
    tl.consumer_tile_wait(counts)
    part = tl.cdiv(tl.size(choice, 0), tl.num_ranks())
    each = tl.cdiv(part, tl.size(counts, 1))
    experts, first_rank = tl.tile_range(counts, axis=2), tl.rank() * ring
    its, before = 0 * experts, 0 * experts
    for q in tl.tiles(counts, axis=0):
        many, turn, now = tl.tile_load(counts, q), (q - first_rank) % tl.num_ranks(), (s - first_rank) % tl.num_ranks()
        sooner = (turn < now) | ((turn == now) & (tl.tile_range(counts, axis=1) < b))
        its += tl.sum(many, 0)
        before += tl.sum(tl.where(sooner[:, None], many, 0), 0)
    first = tl.cumsum(its) - its
    base = first + before
    for t in tl.tiles(choice, axis=0, start=s * part + b * each, stop=s * part + tl.minimum((b + 1) * each, part)):
        tl.consumer_tile_wait(choice, t)
        chosen = tl.tile_load(choice, t, other=-1)
        one = (tl.ravel(chosen)[:, None] == experts[None, :]).to(tl.int32)
        row = tl.sum(one * (base[None, :] + tl.cumsum(one, 0)), 1) - 1
        tl.tile_store(order, row, tl.ravel(tl.tile_range(choice, t)[:, None] + 0 * chosen))
        tl.tile_store(slot, t, tl.reshape(row, chosen.shape))
        base += tl.sum(one, 0)
    if (s == 0) & (b == 0):
        tl.tile_store(start, tl.where(experts < tl.size(counts, 2), experts + 1, -1), first + its)
        tl.tile_store(start, 0, 0)
    tl.producer_tile_notify(order)
    tl.producer_tile_notify(start)
    tl.producer_tile_notify(slot)


@tilelink.program("T k i32 <e -> e C i32 <T partial, e i32 <C+1, T k i32 <C once")
def assign(choice: Any, who: Any, many: Any, at: Any) -> None:
    """The tokens of each expert in their order, as many as there is room for; which row of its expert each choice has."""
    e, n = tl.tile_id(many), 0
    for t in tl.tiles(choice, axis=0):
        tl.consumer_tile_wait(choice, t)
        chosen = tl.tile_load(choice, t, other=-1)
        one = (chosen == e).to(tl.int32)
        row = tl.where(tl.ravel(one) > 0, n + tl.cumsum(tl.ravel(one)) - 1, -1)
        row = tl.where(row < tl.size(who, 1), row, -1)
        tl.tile_store(who, (e, row), tl.ravel(tl.tile_range(choice, t)[:, None] + 0 * one))
        # The first expert's tile answers for those of no expert.
        tl.tile_store(at, t, tl.reshape(row, one.shape), mask=chosen == tl.where((chosen < 0) & (e == 0), -1, e))
        n += tl.sum(one)
    tl.tile_store(many, e, tl.minimum(n, tl.size(who, 1)))
    tl.producer_tile_notify(who, e)
    tl.producer_tile_notify(many, e)
    tl.producer_tile_notify(at)
