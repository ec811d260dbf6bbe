"""Runs the notebooks of the examples and keeps what they show: `python tools/notebooks.py [NAME…]`.

Addresses of this machine are taken out of the outputs, and what is said on stderr.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "notebooks"


def kept(outputs: list[Any]) -> list[Any]:
    """Outputs as they are committed."""
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if output.output_type == "stream" and found and found[-1].output_type == "stream":
            found[-1].text += output.text
            continue
        for kind, said in output.get("data", {}).items():
            output.data[kind] = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "cell.py", said.replace(f"{ROOT}/", ""))
        found.append(output)
    return found


def main() -> None:
    os.environ["PYTHONPATH"] = str(ROOT)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = kept(cell.outputs)
        nbformat.write(notebook, path)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
