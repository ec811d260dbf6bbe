"""`tl.device_print` in tile programs: emitted as it stands, and printed by the worker that comes there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather


@tilelink.program("M N -> M N")
def doubled(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tile = tl.tile_load(rows, (m, n))
    at = tl.tile_begin(out, m)
    tl.device_print("row", at)
    if at == 16:
        tl.device_print("bits", at + 10, hex=True)
    tl.device_print("tile", tile)
    tl.device_print("here")
    tl.tile_store(out, (m, n), tile * 2)


@tilelink.operator("M/R N -> M N", schedule={"doubled": tilelink.sms(1, M=16, N=16)})
def double(x: Any) -> Any:
    return doubled(gather(x))


@pytest.mark.each_triton
def test_a_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.full((16, 16), 1.5, dtype=torch.bfloat16)
    for result in tilelink.launch(lambda: double(x), ranks=2):
        assert bool((result == 3).all())
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rank 1")]
    who = said[0].partition(" row: ")[0]
    assert re.fullmatch(r"rank 1, worker \d+ of double_doubled", who)
    assert [line for line in said if " row: " in line] == [f"{who} row: 0", f"{who} row: 16"]
    assert [line for line in said if " bits: " in line] == [f"{who} bits: 0x1a"]
    assert [line for line in said if " tile: " in line] == [f"{who} tile: [[{' '.join(['1.5'] * 16)}]"] * 2
    assert [line for line in said if " here" in line] == [f"{who} here"] * 2


def test_it_is_emitted_as_it_stands() -> None:
    text = double.source(torch.empty(16, 16, dtype=torch.bfloat16), ranks=2)
    lines = [line.strip() for line in text.splitlines() if line.lstrip().startswith("tl.device_print")]
    assert [line.partition(",")[0] for line in lines] == [
        "tl.device_print('row'",
        "tl.device_print('bits'",
        "tl.device_print('tile'",
        "tl.device_print('here')",
    ]
