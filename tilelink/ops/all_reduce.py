"""All-reduce in the form that suits the size (arXiv:2503.20313, section 3.1: one interface, several mappings)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.all_reduce_one_shot import all_reduce_one_shot
from tilelink.ops.all_reduce_ring import all_reduce_ring
from tilelink.ops.all_reduce_two_shot import all_reduce_two_shot, reference

FORMS = {"one_shot": all_reduce_one_shot, "two_shot": all_reduce_two_shot, "ring": all_reduce_ring}
SMALL = 2 * 1024 * 1024
"""Bytes up to which sending all to all beats a second hop: two H200s take 31 µs for them, and 49 (`bench-all_reduce-2.json`)."""


@tilelink.operator("M N -> M N")
def all_reduce(x: Any, *, form: str = "") -> Any:
    """The sum over the ranks of `x`.

    Args:
        x: `[M, N]`, of one size on all ranks.
        form: `one_shot`, `two_shot` or `ring`; default: one shot up to 2 MiB, two beyond. Steps are placed by path,
            `{"all_reduce_two_shot.scatter": …}`.

    Returns:
        `[M, N]` in the dtype of `x`: the same bits everywhere.

    Raises:
        ValueError: no such form.
    """
    if form not in ("", *FORMS):
        raise ValueError(f"all_reduce has no form {form!r}: it has {', '.join(FORMS)}")
    small = x.size("M") * x.size("N") * (4 if x.dtype == "f32" else 2) <= SMALL
    return FORMS[form or ("one_shot" if small else "two_shot")](x)


all_reduce.reference(reference)
