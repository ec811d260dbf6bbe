"""The notebook of the examples runs, in a kernel, and shows what it is about."""

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient.exceptions import CellTimeoutError

from tilelink.explore.notebook import load_ipython_extension

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "exploring.ipynb"


def executed(tries: int) -> Any:
    """The notebook with its outputs. A cell takes seconds; now and then the client notices a reply when the time is over only."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    try:
        nbclient.NotebookClient(notebook, timeout=20, kernel_name="python3").execute()
    except CellTimeoutError:
        if tries == 1:
            raise
        return executed(tries - 1)
    return notebook


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each output of the notebook has, by kind."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))
        environment.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        environment.setenv("TILELINK_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("CUDA_VISIBLE_DEVICES", "")
        notebook = executed(3)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [dict(o.get("data", {"text/plain": o.get("text", "")})) for cell in cells for o in cell.outputs]


@pytest.mark.timeout(400)  # the first of them waits for the notebook, on a busy machine for long
def test_plans_and_proofs_are_tables(outputs: list[dict[str, Any]]) -> None:
    tables = [o["text/markdown"] for o in outputs if "text/markdown" in o]
    assert [t.split("\n")[0] for t in tables] == ["**Steps**", "**Proof**"]
    assert "| gather |" in tables[0]
    assert "| deadlock |" in tables[1]


def test_the_emitted_file_is_there(outputs: list[dict[str, Any]]) -> None:
    assert any("from tilelink.device import peer as shmem" in o["text/plain"] for o in outputs)


def test_there_are_a_chart_and_a_timeline_to_choose(outputs: list[dict[str, Any]]) -> None:
    assert any("image/png" in o for o in outputs)
    assert any("application/vnd.jupyter.widget-view+json" in o for o in outputs)


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


def test_a_plan_that_is_refused_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    load_ipython_extension(shell)
    shell.run_cell(
        "import torch, tilelink\nfrom tilelink import ops\nown_first = lambda tile, rank, ranks: (tile[0] - rank) % ranks"
    )
    placed = "scatter=tilelink.copy_engine(M=32), matmul=tilelink.sms(M=32, N=32, K=32, order=own_first)"
    refused = f"ops.gemm_rs.schedule(reduce=tilelink.fused('matmul'), {placed}).plan(x, w, ranks=2"
    shell.run_cell("x, w = torch.empty(64, 32), torch.empty(32, 32)\n" + refused + ")")
    assert "TL605" in capsys.readouterr().out
    shell.run_cell(refused + ", verify=False)")
    printed = capsys.readouterr().out
    assert "**Steps**" in printed
    assert "| its proof was left out: a call may be refused |" in printed


def test_it_is_committed_without_outputs() -> None:
    assert all(not cell.get("outputs") for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
