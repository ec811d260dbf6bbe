"""The notebooks of the examples run, teach in short cells, and are committed with what they show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from tests.selection import table

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
LINES = 15
"""Of a cell, at the most."""


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def kinds(cell: Any) -> set[str]:
    """What a cell was committed with: how its value shows itself, or, where it has none, text that it prints."""
    shown = {kind for o in cell.outputs if o.output_type != "stream" for kind in o.data}
    return shown or {o.output_type for o in cell.outputs}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_it_is_committed_with(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "cache"))
    shell = InteractiveShell()
    for cell in cells(path):
        with capture_output(display=False) as printed:
            done = shell.run_cell(cell.source)
        assert done.success, done.error_in_exec or done.error_before_exec
        found = {"stream"} if printed.stdout and done.result is None else set[str]()
        if done.result is not None:
            found |= {"text/plain"} | ({"text/html"} if hasattr(done.result, "_repr_html_") else set())
        assert found == kinds(cell), cell.source


@table("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_are_short_and_its_outputs_name_no_folder(path: Path) -> None:
    for cell in cells(path):
        assert len(cell.source.splitlines()) <= LINES, cell.source
        assert cell.outputs or not re.search(r"^(\w+|\w+\.\w+\(.*\))$", cell.source.splitlines()[-1]), cell.source
        assert not re.search(r"/(?:tmp|home|root|work)/", str(cell.outputs))
