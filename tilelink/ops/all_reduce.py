"""All-reduce in the form that suits the size (arXiv:2503.20313, section 3.1: one interface, several mappings)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.all_reduce_one_shot import all_reduce_one_shot
from tilelink.ops.all_reduce_ring import all_reduce_ring
from tilelink.ops.all_reduce_two_shot import reference
from tilelink.ops.forms import in_form
from tilelink.ops.programs import keep, scatter


@tilelink.program("R M/R N, M/R N -> M N")
def spread(inbox: Any, part: Any, rows: Any) -> None:
    """One tile of this rank's part: the sum over everyone's, in fp32, to everyone."""
    m, n = tl.tile_id(part)
    acc = tl.zeros(tl.tile_shape(part), tl.acc_dtype(inbox))
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m, n))
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_push_data(rows, (m, n), acc)
    tl.producer_tile_notify(rows, (m, n))


@tilelink.operator("M N -> M N", name="all_reduce_pushed")
def pushed(x: Any) -> Any:
    """Two hops, and nobody waits for what he has to fetch: the links carry one part while another is added up and kept."""
    inbox = scatter(x, schedule=tilelink.moving(x, 0.25, push=True))
    rows = spread(inbox, tilelink.symmetric("M/R N", like=x), schedule=tilelink.adding(x, 16 * 1024, pushed=True))
    return keep(rows, schedule=tilelink.moving(x, 0.25))


FORMS = {"one_shot": all_reduce_one_shot, "two_shot": pushed, "ring": all_reduce_ring}


@tilelink.operator("M N -> M N")
def all_reduce(x: Any, *, form: str = "") -> Any:
    """The sum over the ranks of `x`.

    Args:
        x: `[M, N]`, of one size on all ranks.
        form: `one_shot`, `two_shot` or `ring`; default: one shot as far as a second hop would take longer than what it
            saves, which is up to 853 KiB on four ranks, and up to 8 MiB on two; two shots beyond. Steps are placed by path,
            `{"all_reduce_pushed.scatter": …}`.

    Returns:
        `[M, N]` in the dtype of `x`: the same bits everywhere.

    Raises:
        TilelinkError: TL248, no such form.
    """
    return in_form("all_reduce", form, "one_shot" if tilelink.one_hop(x) else "two_shot", FORMS)(x)


all_reduce.reference(reference)
