"""Operators written in the public DSL, one file each.

Takes: torch tensors. Gives: overlapped operators with their plain-torch `reference`.
Knows: `tilelink` and `tilelink.language`, as any user does.
Never knows: the compiler's rooms.
"""

from tilelink.ops.ag_attention import ag_attention
from tilelink.ops.ag_attention_varlen import ag_attention_varlen
from tilelink.ops.ag_attention_zigzag import ag_attention_zigzag
from tilelink.ops.ag_gemm import ag_gemm
from tilelink.ops.ag_moe import ag_moe
from tilelink.ops.ag_moe_outer import ag_moe_outer
from tilelink.ops.ag_outer import ag_outer, outer_ag
from tilelink.ops.all_gather import all_gather
from tilelink.ops.all_reduce import all_reduce
from tilelink.ops.all_reduce_one_shot import all_reduce_one_shot
from tilelink.ops.all_reduce_ring import all_reduce_ring
from tilelink.ops.all_reduce_two_shot import all_reduce_two_shot
from tilelink.ops.all_to_all import all_to_all
from tilelink.ops.ep_combine import ep_combine
from tilelink.ops.ep_dispatch import ep_dispatch
from tilelink.ops.ep_dispatch_fp8 import ep_dispatch_fp8
from tilelink.ops.flash_decode import flash_decode
from tilelink.ops.gemm_ar import gemm_ar
from tilelink.ops.gemm_ar_one_shot import gemm_ar_one_shot
from tilelink.ops.gemm_ar_two_shot import gemm_ar_two_shot
from tilelink.ops.gemm_rs import gemm_rs
from tilelink.ops.gemm_rs_ring import gemm_rs_ring
from tilelink.ops.moe_layer import moe_layer
from tilelink.ops.moe_rs import moe_rs
from tilelink.ops.reduce_scatter import reduce_scatter
from tilelink.ops.ring_attention import ring_attention
from tilelink.ops.ulysses import ulysses, ulysses_back

__all__ = [
    "ag_attention",
    "ag_attention_varlen",
    "ag_attention_zigzag",
    "ag_gemm",
    "ag_moe",
    "ag_moe_outer",
    "ag_outer",
    "all_gather",
    "all_reduce",
    "all_reduce_one_shot",
    "all_reduce_ring",
    "all_reduce_two_shot",
    "all_to_all",
    "ep_combine",
    "ep_dispatch",
    "ep_dispatch_fp8",
    "flash_decode",
    "gemm_ar",
    "gemm_ar_one_shot",
    "gemm_ar_two_shot",
    "gemm_rs",
    "gemm_rs_ring",
    "moe_layer",
    "moe_rs",
    "outer_ag",
    "reduce_scatter",
    "ring_attention",
    "ulysses",
    "ulysses_back",
]
