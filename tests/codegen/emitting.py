"""The emitted text of one operator, as tests and the golden file know it.

python -m tests.codegen.emitting    # rewrites the golden file; read the difference before committing it
"""

from __future__ import annotations

from pathlib import Path

from tilelink import sms
from tilelink.ir.plan import Layout
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm
from tilelink.pipeline.arguments import Bound

GOLDEN = Path(__file__).with_name("ag_gemm_pull.txt")


def text() -> str:
    """AG+GEMM by pull, two workers of their own, at sizes that take pointers (no TMA). No torch is imported for it."""
    op = ag_gemm.schedule(gather=sms(2, M=32, order="ring"), matmul=sms(M=64, N=64, K=64, order=("ring", "group 4")))
    sizes = (("M", 148), ("K", 75), ("N", 131))
    return op.compiled(Bound(sizes, ("f32", "f32"), (Layout(1, False),) * 2, (), Topology(4))).source.text


if __name__ == "__main__":
    GOLDEN.write_text(text())
