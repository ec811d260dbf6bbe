"""All-reduce in the form that suits the size (arXiv:2503.20313, section 3.1: one interface, several mappings)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.all_reduce_one_shot import all_reduce_one_shot
from tilelink.ops.all_reduce_ring import all_reduce_ring
from tilelink.ops.all_reduce_two_shot import all_reduce_two_shot, reference
from tilelink.ops.tiling import adding, moving, nbytes, ranks

FORMS = {"one_shot": all_reduce_one_shot, "two_shot": all_reduce_two_shot, "ring": all_reduce_ring}
HOP = 1280 * 1024
"""Bytes that go over a rank's links in the time that a second hop takes: 3.3 µs on two H200s and on four, in graphs."""
AT_ONCE = 8 * 1024 * 1024
"""Bytes up to which two ranks do without a second hop, which saves them none."""


@tilelink.operator("M N -> M N")
def all_reduce(x: Any, *, form: str = "") -> Any:
    """The sum over the ranks of `x`.

    Args:
        x: `[M, N]`, of one size on all ranks.
        form: `one_shot`, `two_shot` or `ring`; default: one shot as far as a second hop would take longer than what it
            saves, which is up to 853 KiB on four ranks, and up to 8 MiB on two; two shots beyond. Steps are placed by path,
            `{"all_reduce_two_shot.scatter": …}`.

    Returns:
        `[M, N]` in the dtype of `x`: the same bits everywhere.

    Raises:
        ValueError: no such form.
    """
    if form not in ("", *FORMS):
        raise ValueError(f"all_reduce has no form {form!r}: it has {', '.join(FORMS)}")
    if form == "two_shot" or (not form and nbytes(x) > small(ranks())):
        return all_reduce_two_shot.schedule(scatter=moving(x, 128), reduce=adding(x, 128), gather=moving(x, 128))(x)
    return FORMS[form or "one_shot"](x)


def small(ranks: int) -> int:
    """Bytes up to which one shot is the faster one: it sends (R - 1) N, two shots send 2 (R - 1) N / R."""
    return HOP * ranks // ((ranks - 1) * (ranks - 2)) if ranks > 2 else AT_ONCE


all_reduce.reference(reference)
