"""Operators written in the public DSL, one file each.

Takes: torch tensors. Gives: overlapped operators with their plain-torch `reference`.
Knows: `tilelink` and `tilelink.language`, as any user does.
Never knows: the compiler's rooms.
"""

from tilelink.ops.ag_gemm import ag_gemm
from tilelink.ops.ag_outer import ag_outer, outer_ag
from tilelink.ops.all_reduce import all_reduce
from tilelink.ops.all_reduce_one_shot import all_reduce_one_shot
from tilelink.ops.all_reduce_ring import all_reduce_ring
from tilelink.ops.all_reduce_two_shot import all_reduce_two_shot
from tilelink.ops.gemm_rs import gemm_rs
from tilelink.ops.gemm_rs_ring import gemm_rs_ring

__all__ = [
    "ag_gemm",
    "ag_outer",
    "all_reduce",
    "all_reduce_one_shot",
    "all_reduce_ring",
    "all_reduce_two_shot",
    "gemm_rs",
    "gemm_rs_ring",
    "outer_ag",
]
