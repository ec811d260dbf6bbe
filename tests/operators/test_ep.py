# pyright: reportArgumentType=false
"""Expert parallelism: tokens to their experts and back, all against torch; what has no room is dropped as documented."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import FEW, assert_close, part
from tests.operators.routings import EACH_ROUTING, ROUTINGS, E, H, Mixture
from tilelink import Operator, sms
from tilelink.ops import ep_combine, ep_dispatch, ep_dispatch_fp8

TABLES = {"assign": sms(T=8)}
DISPATCH = ep_dispatch.schedule({**TABLES, "dispatch": sms(C=4, H=16), "arrive": sms(C=4, H=16)})
FP8 = ep_dispatch_fp8.schedule({**TABLES, "dispatch_fp8": sms(C=4, H=16), "arrive_fp8": sms(C=4, H=16)})
COMBINE = ep_combine.schedule(send_back=sms(C=4, H=16), collect=sms(T=8, H=16))


def numbered(choice: torch.Tensor, capacity: int) -> torch.Tensor:
    """The row that each of one rank's choices has with its expert, -1 where there is none."""
    at, taken = torch.full_like(choice, -1), [0] * E
    for t, chosen in enumerate(choice.tolist()):
        for k, e in enumerate(chosen):
            if e >= 0:
                at[t, k] = taken[e] if taken[e] < capacity else -1
                taken[e] += 1
    return at


def arrived(m: Mixture, capacity: int, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the experts of `rank` get: rows, NaN where there is none, and counts."""
    mine = range(E)[part(E, rank, ranks)]
    rows = torch.full((len(mine), ranks, capacity, H), torch.nan)
    for s in range(ranks):
        held = m.tokens_of(s, ranks)
        choice, x = m.choice[held], m.tokens[held].float()
        at = numbered(choice, capacity)
        for i, e in enumerate(mine):
            t, k = torch.nonzero((choice == e) & (at >= 0), as_tuple=True)
            rows[i, s, at[t, k].long()] = x[t]
    return rows, (~rows[..., 0].isnan()).sum(-1).int()


def assert_there_and_back(
    m: Mixture, capacity: int, dispatch: Operator = DISPATCH, combine: Operator = COMBINE
) -> None:
    """Expert e multiplies by e + 1."""
    rank, ranks = tilelink.rank(), tilelink.ranks()
    held, size = m.tokens_of(rank, ranks), {"T": len(m.tokens)}
    rows, counts, at = dispatch(m.tokens[held], m.choice[held], experts=E, capacity=capacity, **size)
    want, many = arrived(m, capacity, rank, ranks)
    here = ~want.isnan()
    assert torch.equal(counts, many)
    assert torch.equal(rows.float()[here], want[here])
    assert torch.equal(at, numbered(m.choice[held], capacity))
    mine = torch.arange(E)[part(E, rank, ranks)]
    out = combine(
        (mine + 1)[:, None, None, None].to(rows.dtype) * rows,
        counts,
        m.choice[held],
        at,
        m.score[held],
        experts=E,
        **size,
    )
    score = torch.where(at < 0, 0, m.score[held])
    assert_close(out, (score * (m.choice[held] + 1)).sum(1, keepdim=True) * m.tokens[held].float())


def assert_mixtures(
    mixtures: list[Mixture], ranks: int, seed: int = 0, capacity: int | None = None, **options: Any
) -> None:
    """All calls back to back, one rank slower than all others; without a capacity there is room for all."""

    def main() -> None:
        for m in mixtures:
            assert_there_and_back(m, m.choice.numel() if capacity is None else capacity)

    tilelink.launch(main, ranks, seed=seed, straggler=seed % ranks, device=FEW, **options)


@pytest.mark.parametrize("ranks", [1, 6, 8])
def test_rank_counts(ranks: int) -> None:
    """Alone, and many; the tests below have two to four ranks. There are five experts, so that ranks hold two, one or none."""
    assert_mixtures([Mixture.of(13), Mixture.of(9, salt=1)], ranks, seed=ranks)


@EACH_ROUTING
def test_routings(routing: str) -> None:
    assert_mixtures([Mixture.of(13, routing)], 3, seed=1)


def test_another_routing_each_call() -> None:
    mixtures = [Mixture.of(13, routing, torch.bfloat16, salt) for salt, routing in enumerate(ROUTINGS)]
    assert_mixtures(
        [*mixtures, Mixture.of(1, dtype=torch.bfloat16), Mixture.of(16, dtype=torch.bfloat16)], 2, seed=1, capacity=32
    )


def test_one_token_and_ranks_without_any() -> None:
    assert_mixtures([Mixture.of(2), Mixture.of(1)], 4, seed=3)


@pytest.mark.parametrize(("capacity", "routing"), [(1, "random"), (3, "random"), (3, "all tokens to the first")])
def test_what_has_no_room_is_dropped(capacity: int, routing: str) -> None:
    """The first tokens of a rank stay, and nothing but the room decides."""
    m = Mixture.of(13, routing)
    assert bool((numbered(m.choice[:5], capacity) < 0).any())
    assert_mixtures([m, Mixture.of(12, "random", salt=1)], 3, seed=capacity, capacity=capacity)


@pytest.mark.parametrize("less", [0, 1])
def test_the_capacity_exactly_reached(less: int) -> None:
    """All choices of a rank's five tokens go to one expert: with 15 rows nothing is dropped, with 14 the last one."""
    m = Mixture.of(10, "all tokens to the last")
    at = numbered(m.choice[:5], 15 - less)
    assert at.flatten().tolist() == [*range(15 - less), *([-1] * less)]
    assert_mixtures([m, m], 2, capacity=15 - less)


@pytest.mark.each_triton
def test_as_they_come() -> None:
    def main() -> None:
        for routing in ("random", "experts without tokens"):
            assert_there_and_back(Mixture.of(13, routing), 16, ep_dispatch, ep_combine)

    tilelink.launch(main, 2)


# --------------------------------------------------------------------------------------------------------------------- fp8
def assert_fp8(m: Mixture, capacity: int) -> None:
    rank, ranks = tilelink.rank(), tilelink.ranks()
    held = m.tokens_of(rank, ranks)
    rows, scale, counts, at = FP8(m.tokens[held], m.choice[held], experts=E, capacity=capacity, T=len(m.tokens))
    want, many = arrived(m, capacity, rank, ranks)
    assert torch.equal(counts, many)
    assert torch.equal(at, numbered(m.choice[held], capacity))
    assert rows.dtype == torch.float8_e4m3fn
    there = ~want[..., 0].isnan()
    most = want[there].abs().amax(-1)
    torch.testing.assert_close(scale[there], torch.where(most > 0, most / 448, 1))
    got, want = rows.float()[there], want[there] / scale[there][:, None]
    assert torch.equal(got, want.to(torch.float8_e4m3fn).float())


@pytest.mark.each_triton
@pytest.mark.parametrize(("ranks", "dtype"), [(1, torch.bfloat16), (3, torch.float32)])
def test_a_payload_of_fp8(dtype: torch.dtype, ranks: int) -> None:
    """Each row has a scale of its own, and is what torch rounds it to."""
    one, other = Mixture.of(13, dtype=dtype), Mixture.of(9, "all tokens to the first", dtype)
    one.tokens[3] *= 1e6
    one.tokens[4] = 0

    def main() -> None:
        for m in (one, other):
            assert_fp8(m, 7)

    tilelink.launch(main, ranks, seed=ranks, straggler=0, device=FEW)
