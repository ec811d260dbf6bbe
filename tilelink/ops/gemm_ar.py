"""Matmul and all-reduce, overlapped, in the form that suits the size (arXiv:2503.20313, section 3.1)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.forms import in_form
from tilelink.ops.gemm_ar_one_shot import gemm_ar_one_shot
from tilelink.ops.gemm_ar_two_shot import gemm_ar_two_shot, reference

FORMS = {"one_shot": gemm_ar_one_shot, "two_shot": gemm_ar_two_shot}


@tilelink.operator("M K/R, K/R N -> M N")
def gemm_ar(x: Any, weight: Any, *, form: str = "") -> Any:
    """`all_reduce(x @ weight)`.

    Args:
        x: this rank's columns of the activation, `[M, K/R]`.
        weight: this rank's rows of the weight, `[K/R, N]`, any strides.
        form: `one_shot` or `two_shot`; default: one shot as far as a second hop would take longer than what it saves, which
            is up to 853 KiB of result on four ranks, and up to 8 MiB on two.

    Returns:
        `[M, N]` in the dtype of `x`, in which partial sums travel; added in fp32.

    Raises:
        TilelinkError: TL248, no such form.
    """
    small = tilelink.one_hop(x.size("M") * weight.size("N") * x.itemsize)
    return in_form("gemm_ar", form, "one_shot" if small else "two_shot", FORMS)(x, weight)


gemm_ar.reference(reference)
