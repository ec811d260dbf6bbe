"""One of two processes on the CPU: what the references of the dense operators give.

python reference_ranks.py FOLDER; it writes its results to a file there that is named by its rank.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from tests import two_processes
from tests.operators.test_references import cases
from tilelink import ops


def main(rank: int, folder: Path) -> None:
    found = {n: getattr(ops, n.split()[0])(*tensors[rank], **given) for n, (tensors, given) in cases().items()}
    (folder / str(rank)).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    two_processes.run(main)
