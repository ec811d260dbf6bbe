"""The stops of a call that docs/architecture.md lists, traced: on the first call all of them, in that order; then the last."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import tilelink
from tilelink import ops

ROOT = Path(__file__).parents[2]
STOP = re.compile(r"^\| \d \| \w+ \| `([\w/]+\.py)`, `(\w+)`", re.MULTILINE)
PACKAGE = ROOT / "tilelink"
COMPILER = ("frontend/", "mapping/", "proof/", "codegen/", "cost/", "pipeline/arguments.py", "runtime/kernels.py")


def entered(call: Any) -> list[tuple[str, str]]:
    """The functions of the package that a call of this thread's enters, in turn: file and name."""
    found: list[CodeType] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.append(frame.f_code)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    named = {c: (c.co_filename.removeprefix(f"{PACKAGE}/"), c.co_name) for c in {*found}}
    return [named[c] for c in found if c.co_filename.startswith(f"{PACKAGE}/")]


def test_the_stops_of_a_first_and_of_a_cached_call() -> None:
    stops = STOP.findall((ROOT / "docs" / "architecture.md").read_text())
    assert len(stops) == 8
    operator = ops.ag_gemm.schedule(matmul=tilelink.sms(M=16, N=16, K=16))  # nothing is kept of it yet

    def main() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        x, w = torch.ones(8, 16), torch.ones(16, 8)
        return entered(lambda: operator(x, w)), entered(lambda: operator(x, w))

    ((first, cached),) = tilelink.launch(main, 1)
    rest = iter(first)
    assert [stop for stop in stops if stop in rest] == stops
    assert stops[-1] in cached
    assert [at for at in cached if at[0].startswith(COMPILER)] == []
    assert cached[0] == ("pipeline/operator.py", "__call__")
    assert ("pipeline/calls.py", "__call__") in cached
