"""The emitted text of one operator, as tests and the golden file know it.

python -m tests.codegen.emitting    # rewrites the golden file; read the difference before committing it
"""

from __future__ import annotations

from pathlib import Path

import torch

from tilelink import sms
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm

GOLDEN = Path(__file__).with_name("ag_gemm_pull.txt")


def text() -> str:
    """AG+GEMM by pull, two workers of their own, at sizes that take pointers (no TMA)."""
    op = ag_gemm.schedule(gather=sms(2, M=32, order="ring"), matmul=sms(M=64, N=64, K=64, order=("ring", "group 4")))
    return op.source(torch.empty(37, 75), torch.empty(75, 131), topology=Topology(4))


if __name__ == "__main__":
    GOLDEN.write_text(text())
