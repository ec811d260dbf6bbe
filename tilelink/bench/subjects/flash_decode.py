"""Decoding over a cache that is split over the ranks, against one rank with the whole cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from tilelink.bench.contest import Contest, Place, Roles, Sizes, Variants
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import flash_decode

LONE = "one rank"
SDPA = "sdpa on one rank"
SPLITS = (0, 8, 16)


def shapes(_: int) -> list[BenchCase]:
    heads = {"g": 8, "Q": 4, "D": 128, "S": 131072}
    return [BenchCase(f"128k, batch {b}", {"b": b, **heads}) for b in (1, 8)]


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """b sequences with Q queries for each of g groups of heads, of D elements, over S positions, all of them there."""
    b, g, heads, d, s = (sizes[n] for n in ("b", "g", "Q", "D", "S"))
    each, mine = place.part(s)
    q, lengths = place.empty(b, g, heads, d), place.empty(b, dtype=torch.int32).fill_(s)
    parts = [place.random(b, mine, g, d) for _ in range(2)]
    whole = [place.random(b, s, g, d) for _ in range(2)]
    generator, lib, ranks = place.alike(), place.libraries, place.backend.ranks

    def redraw() -> None:
        q.normal_(generator=generator)

    redraw()
    tried = SPLITS[:1] if place.simulated else SPLITS
    roles = Roles(gemm="", comm="", unfused="", baseline=tuple(_named(LONE, n) for n in SPLITS))
    found = Contest(inputs=[*parts, *whole], redraws=[redraw], roles=roles, graphed=4)
    for name, op in ours.items():
        for splits in tried:
            found.enter(_named(name, splits), op, (q, *parts, lengths), S=s, splits=splits)

    def everyones() -> None:
        """What all ranks have, on each."""
        for all_of_it, part in zip(whole, parts, strict=True):
            padded = place.empty(each, b, g, d)
            padded[:mine] = part.transpose(0, 1)
            gathered = place.empty(ranks * each, b, g, d)
            lib.all_gather_into_tensor(gathered, padded)
            all_of_it.copy_(gathered[:s].transpose(0, 1))

    alone, me = flash_decode.schedule(unfused=False), place.backend.among([place.backend.rank])
    found.used.append(alone)

    def one_rank(splits: int) -> Any:
        return alone(q, *whole, lengths, splits=splits, group=me)

    def sdpa() -> torch.Tensor:
        keys, values = (t.transpose(1, 2) for t in whole)
        return attend(q, keys, values)

    for splits in tried:
        run = partial(one_rank, splits)
        found.add(_named(LONE, splits), run, lambda run=run: (everyones(), run())[1])
    found.add(SDPA, sdpa, lambda: (everyones(), sdpa())[1], library=True)
    return found


def _named(who: str, splits: int) -> str:
    """The first is what the operator chooses by itself."""
    return who if splits == SPLITS[0] else f"{who}, {splits} splits"


SUBJECT = Subject(
    "flash_decode", flash_decode, shapes, contest, {"b": 1, "g": 1, "Q": 2, "D": 16, "S": 128},
    "one rank that has the whole cache, and torch's attention there",
)  # fmt: skip
