"""A pass of Inductor: collectives of a compiled graph are fused with the products beside them, or a reason is given.

Takes: graphs after autograd, as Inductor's passes get them. Gives: `overlap`.
Knows: torch's functional collectives and products, what `tilelink.install` serves, `tilelink::gemm_ar`.
Never knows: how an operator runs.
"""

from tilelink.inductor.overlapping import Overlap, overlap

__all__ = ["Overlap", "overlap"]
