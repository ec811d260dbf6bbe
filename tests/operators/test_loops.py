# pyright: reportArgumentType=false
"""Waits in loops: runs of tiles per flag, whatever the sizes of tiles, flags and parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.operators import loops
from tests.operators.problems import Problem, assert_solves, each, part, split
from tilelink import Operator, copy_engine, sms

RANKS = 3
SIZES = pytest.mark.parametrize("rows", [1, 7, 24, pytest.param(29, marks=pytest.mark.each_triton), 48])
SPANS = pytest.mark.parametrize(("moved", "walked"), [(8, 8), (8, 16), (16, 8), (5, 16), (3, 4), (64, 4), (4, 64)])


def assert_as_torch(
    operator: Operator, inputs: list[torch.Tensor], expected: Callable[[int], torch.Tensor], **given: int
) -> None:
    """Two calls, the second with the columns turned round; each input split by its rows."""
    size, wanted = len(inputs[0]), [expected(rank) for rank in range(RANKS)]
    turned = [want.flip(list(range(want.dim()))[-len(inputs) :]) for want in wanted]
    problems = [
        Problem(each(*(split(x, RANKS) for x in of)), each(results), {"M": size, **given})
        for of, results in ((inputs, wanted), ([x.flip(1) for x in inputs], turned))
    ]
    assert_solves(operator, problems, seed=size, straggler=size % RANKS)


def data(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


@SPANS
@SIZES
def test_a_sum_over_what_arrives(rows: int, moved: int, walked: int) -> None:
    x = data(rows, 10)
    operator = loops.sums.schedule(gather=sms(2, M=moved, order="ring+1"), column_sums=sms(M=walked, K=16))
    assert_as_torch(operator, [x], lambda _: x.sum(0))


@pytest.mark.parametrize("gathered", [True, False])
def test_a_loop_that_only_waits(gathered: bool) -> None:
    """Nothing is left of it but the waits, if there are any."""
    x = data(29, 10)
    operator = loops.sums_after_all.schedule(after_all=sms(M=8, K=16))
    assert_as_torch(operator, [x], lambda rank: (x if gathered else x[part(29, rank, RANKS)]).sum(0), gathered=gathered)


@SPANS
def test_a_wait_under_a_test(moved: int, walked: int) -> None:
    """Flags of a tile that is waited for where it is taken, also where it needs no mask."""
    x = data(29, 10)
    operator = loops.sums_of_first.schedule(gather=sms(2, M=moved, order="ring+1"), guarded=sms(M=walked, K=16))
    assert_as_torch(operator, [x], lambda _: x[:13].sum(0))


@SPANS
def test_operands_that_arrive_in_different_tiles(moved: int, walked: int) -> None:
    """Runs over the flags of the one, and within them over those of the other; 16 columns go through TMA."""
    for columns in (16, 10):
        x, y = data(29, columns), data(29, columns) + 1
        operator = loops.gradient.schedule(
            gather_x=sms(2, M=moved), gather_y=copy_engine(M=7), outer=sms(M=walked, K=16, N=16)
        )
        assert_as_torch(operator, [x, y], lambda _, x=x, y=y: x.T @ y)


@pytest.mark.parametrize("back", [0, 1, 9, 100])
@SPANS
def test_from_here_to_there(moved: int, walked: int, back: int) -> None:
    """A loop that begins and ends inside flags, and inside its own tiles."""
    rows, tile = 29, 4
    x = data(rows, 10)
    operator = loops.window.schedule(gather=sms(2, M=moved, order="ring"), between=sms(S=tile, M=walked, K=16))

    def expected(rank: int) -> torch.Tensor:
        mine = part(rows, rank, RANKS)
        out = x[mine].clone()
        for at in range(mine.start, mine.stop):
            begin = mine.start + (at - mine.start) // tile * tile
            out[at - mine.start] += x[max(begin - back, 0) : min(begin + tile, mine.stop)].sum(0)
        return out

    assert_as_torch(operator, [x], expected, back=back)


@pytest.mark.parametrize(("moved", "other"), [(8, 3), (3, 8), (8, 8), (5, 7)])
def test_what_one_worker_awaited_for_an_earlier_tile(moved: int, other: int) -> None:
    """Tiles that see more and more: flags of the one tensor are known before those of the other, where they are cut
    otherwise."""
    rows, tile = 29, 4
    x = data(rows, 10)
    operator = loops.window_of_two.schedule(
        gather_rows=sms(1, M=moved, order="ring+1"),
        gather_others=sms(1, M=other, order="ring+1"),
        between_both=sms(1, S=tile, M=4, K=16),
    )

    def expected(rank: int) -> torch.Tensor:
        mine = part(rows, rank, RANKS)
        ends = [min(mine.start + (at - mine.start) // tile * tile + tile, mine.stop) for at in range(rows)[mine]]
        return x[mine] + torch.stack([2 * x[:end].sum(0) for end in ends])

    assert_as_torch(operator, [x], expected)


@pytest.mark.parametrize(
    ("moved", "walked", "back", "ahead", "first"),
    [
        (8, 8, -1, 1, 0), (5, 4, -1, 40, 3), (16, 8, -1, 9, 0),
        pytest.param(3, 4, 9, 9, 2, marks=pytest.mark.each_triton),
        (64, 4, 12, 7, 0), (3, 4, 2, 1, 0), (3, 4, 0, 0, 0), (4, 64, 30, 30, 0), (8, 8, 30, 30, 5),
    ],
)  # fmt: skip
def test_whole_tiles_and_masked_ones(moved: int, walked: int, back: int, ahead: int, first: int) -> None:
    """Masks that are true for the first tiles, for some in the middle, for none and for all: each position counts once, and
    a mask has a row for each row, whether it is needed or not."""
    rows = 29
    x = data(rows, 10)
    operator = loops.bands.schedule(gather=sms(2, M=moved, order="ring"), banded=sms(S=4, M=walked, K=16))

    def expected(rank: int) -> torch.Tensor:
        out = []
        for at in range(rows)[part(rows, rank, RANKS)]:
            near = x[max(first, at - back if back >= 0 else 0) : max(at + ahead, 0)]
            out.append(near.sum(0) + len(near))
        return torch.stack(out)

    assert_as_torch(operator, [x], expected, back=back, ahead=ahead, first=first)


@pytest.mark.parametrize(("moved", "walked"), [(8, 8), (5, 4)])
def test_a_limit_that_moves_with_the_tile(moved: int, walked: int) -> None:
    """It says nothing about a tile before the loop is there: all tiles are masked."""
    x = data(29, 10)
    operator = loops.fewer.schedule(gather=sms(2, M=moved, order="ring"), ever_fewer=sms(S=4, M=walked, K=16))
    want = x[:17].sum(0)
    assert_as_torch(operator, [x], lambda rank: want.expand(len(range(29)[part(29, rank, RANKS)]), 10), ahead=17)


@pytest.mark.parametrize("pieces", [1, 3, 8])
@SPANS
def test_a_part_of_the_loop(moved: int, walked: int, pieces: int) -> None:
    x = data(29, 10)
    operator = loops.parts.schedule(gather=sms(2, M=moved), in_parts=sms(M=walked, K=16))
    length = -(-29 // pieces)
    want = torch.stack([x[c * length : (c + 1) * length].sum(0) for c in range(pieces)])
    assert_as_torch(operator, [x], lambda _: want, pieces=pieces)


@SPANS
def test_positions_of_the_own_part(moved: int, walked: int) -> None:
    """The flags are this rank's, and the loop begins at its first row; both programs share a kernel."""
    x = data(29, 10)
    operator = loops.own_sums.schedule(
        doubled=sms(2, M=1 << (moved.bit_length() - 1), K=16), column_sums=sms(M=walked, K=16)
    )
    assert_as_torch(operator, [x], lambda rank: 2 * x[part(29, rank, RANKS)].sum(0))
