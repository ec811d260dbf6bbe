"""One of two processes on the CPU: what the references of operators give, those that the file `of` in the folder names.

python reference_ranks.py FOLDER; it writes its results to a file there that is named by its rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests import two_processes
from tests.operators.test_references import CASES
from tilelink import ops


def turned(t: torch.Tensor) -> torch.Tensor:
    """The same, its last axis apart in memory and its first one together."""
    return t.mT.contiguous().mT if t.dim() == 2 else t.movedim(0, -1).contiguous().movedim(-1, 0)


def main(rank: int, folder: Path) -> None:
    found: dict[str, Any] = {}
    of = (folder / "of").read_text()
    for name, (tensors, given) in CASES[of]().items():
        operator = getattr(ops, name.split()[0])
        found[name] = operator(*tensors[rank], **given)
        if of == "dense":  # however one rank's arguments lie
            again = operator(*(t if rank else turned(t) for t in tensors[rank]), **given)
            torch.testing.assert_close(again, found[name], msg=lambda said, name=name: f"{name}, turned: {said}")
    torch.save(found, folder / str(rank))


if __name__ == "__main__":
    two_processes.run(main)
