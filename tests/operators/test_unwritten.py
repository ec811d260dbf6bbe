"""What nobody writes is refused; what is written, whatever decides it, is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.operators.unwritten import CASES, Case, by_owners
from tests.selection import table
from tilelink import fused, sms

RANKS = 2
ROWS, COLUMNS = 6, 5


def arguments(case: Case) -> list[torch.Tensor]:
    whole = torch.randn(RANKS, ROWS, COLUMNS, generator=torch.Generator().manual_seed(ROWS))
    return [whole[rank] for rank in range(RANKS)]


@table("tile", [2, 4])
@table("name", CASES)
def test_all_is_written_or_it_is_refused(name: str, tile: int) -> None:
    case = CASES[name]
    tiles: dict[str, Any] = dict.fromkeys(case.tiles, tile)
    operator = case.operator.schedule({name: sms(**tiles)})
    xs = arguments(case)

    def main() -> torch.Tensor:
        return operator(xs[tilelink.rank()])

    if case.code is not None:
        with pytest.raises(tilelink.TilelinkError) as caught:
            tilelink.launch(main, RANKS)
        assert caught.value.code == case.code
        assert caught.value.loc is not None
        assert caught.value.loc.file.endswith("unwritten.py")
        return
    assert case.expected is not None
    for rank, got in enumerate(tilelink.launch(main, RANKS)):
        want = case.expected(xs[rank], rank)
        there = ~want.isnan()
        torch.testing.assert_close(got[there], want[there])


def test_a_program_runs_for_the_tiles_that_its_mainloop_step_has() -> None:
    """Behind what brings an owner map's tiles back; fused into that, it would have no tile to go on with."""

    def main() -> bool:
        x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
        mine = x[4 * tilelink.rank() : 4 * tilelink.rank() + 4]
        return torch.equal(by_owners.schedule(tiles)(mine.clone(), M=7), mine)

    tiles: dict[str, Any] = {"to_owners": sms(4, M=2), "back_from_owners": sms(M=4, N=4)}
    assert all(tilelink.launch(main, RANKS))
    tiles["again"] = fused("back_from_owners")
    with pytest.raises(tilelink.TilelinkError, match="`back_from_owners` only moves its tiles"):
        tilelink.launch(main, RANKS)
