"""Waits for single positions of this rank's own part, counted from where the part begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import scatter

M, N = 11, 16


@tilelink.program("s M N -> s N")
def first_row(inbox: Any, out: Any) -> None:
    """The first row of what every rank has sent."""
    s, n = tl.tile_id(out)
    tl.consumer_tile_wait(inbox, (s, 0, n))
    tl.tile_store(out, (s, n), tl.tile_load(inbox, (s, 0, n)))


@tilelink.operator("M N -> R N")
def first_rows(x: Any) -> Any:
    return first_row(scatter(x))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("slow", [None, 0])
def test_the_first_row_of_ones_own_part(ranks: int, slow: int | None) -> None:
    """The word waited for is that of this rank's row; the word of the very first row is raised on rank 0 only."""
    x = [torch.randn(M, N, generator=torch.Generator().manual_seed(r)) for r in range(ranks)]
    placed = first_rows.schedule(scatter=tilelink.sms(2, M=2, push=True), first_row=tilelink.sms(N=16))
    part = -(-M // ranks)
    for rank, got in enumerate(tilelink.launch(lambda: placed(x[tilelink.rank()]), ranks, straggler=slow)):
        assert torch.equal(got, torch.stack([one[rank * part] for one in x]))
