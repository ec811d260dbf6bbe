"""What a notebook shows: diagnostics, plans, proofs."""

import re
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tilelink.explore.notebook import load_ipython_extension

ROOT = Path(__file__).parents[2]


def test_a_diagnostic_comes_with_the_lines_of_the_user_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Between the cell and what raises lie a dozen frames of the package."""
    shell = InteractiveShell()
    load_ipython_extension(shell)
    shell.run_cell("import torch, tilelink\nfrom tilelink import ops")
    shell.run_cell(
        "x, w = [torch.zeros(4, 16)], [torch.zeros(16, 4)]\nops.ag_gemm.schedule(matmul=tilelink.sms(M=48)).plan(x, w)"
    )
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "TL314: a tile of 48 along `M` of `matmul` is not a power of two" in printed
    assert "matmul=tilelink.sms(M=48)).plan(x, w)" in printed
    assert not {line for line in printed.splitlines() if f"{ROOT}/tilelink" in line and "-->" not in line}
