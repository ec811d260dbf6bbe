"""All-reduce in the form that suits the size (arXiv:2503.20313, section 3.1: one interface, several mappings)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.all_reduce_one_shot import all_reduce_one_shot
from tilelink.ops.all_reduce_ring import all_reduce_ring
from tilelink.ops.all_reduce_two_shot import all_reduce_two_shot, reference
from tilelink.ops.tiling import adding, moving, nbytes

FORMS = {"one_shot": all_reduce_one_shot, "two_shot": all_reduce_two_shot, "ring": all_reduce_ring}
SMALL = 512 * 1024
"""Bytes up to which sending all to all beats a second hop: on four H200s, in graphs, the two are about level there."""


@tilelink.operator("M N -> M N")
def all_reduce(x: Any, *, form: str = "") -> Any:
    """The sum over the ranks of `x`.

    Args:
        x: `[M, N]`, of one size on all ranks.
        form: `one_shot`, `two_shot` or `ring`; default: one shot up to 512 KiB, two beyond. Steps are placed by path,
            `{"all_reduce_two_shot.scatter": …}`.

    Returns:
        `[M, N]` in the dtype of `x`: the same bits everywhere.

    Raises:
        ValueError: no such form.
    """
    if form not in ("", *FORMS):
        raise ValueError(f"all_reduce has no form {form!r}: it has {', '.join(FORMS)}")
    if form == "two_shot" or (not form and nbytes(x) > SMALL):
        return all_reduce_two_shot.schedule(scatter=moving(x, 128), reduce=adding(x, 128), gather=moving(x, 128))(x)
    return FORMS[form or "one_shot"](x)


all_reduce.reference(reference)
