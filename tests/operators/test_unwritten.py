"""What nobody writes is refused; what is written, whatever decides it, is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.operators.unwritten import CASES, Case
from tilelink import sms

RANKS = 2
ROWS, COLUMNS = 6, 5


def arguments(case: Case) -> list[torch.Tensor]:
    whole = torch.randn(RANKS, ROWS, COLUMNS, generator=torch.Generator().manual_seed(ROWS))
    return [whole[rank] for rank in range(RANKS)]


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("name", CASES)
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
