"""What operators share: collectives of libraries, which know parts of one length, for unfused forms that have others,
too; and what is said of a form that there is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import tilelink


def no_form(name: str, form: str, forms: Iterable[str]) -> tilelink.TilelinkError:
    """TL248, of an operator that comes in several forms."""
    return tilelink.TilelinkError("TL248", f"`{name}` has no form {form!r}", hint=f"it has {', '.join(forms)}")


@lru_cache(maxsize=8)
def of_one_rank(group: Any) -> bool:
    """Whether a group has no other ranks: a library's collective costs its host more than a product, the question a tenth."""
    return group is not None and group.size() == 1


def gathered(x: Any, group: Any, rows: int | None = None) -> Any:
    """Every rank's `x`, one after the other along the first axis; of one rank `x` itself.

    Args:
        rows: of all ranks together, `ceil(rows / ranks)` each, the last get what is left; None: as many each as this one.
    """
    if of_one_rank(group):
        return x
    import torch.distributed as dist

    ranks = dist.get_world_size(group)
    each = x.shape[0] if rows is None else -(-rows // ranks)
    part = x
    if x.shape[0] < each:  # libraries gather equal parts; whatever fills them up comes behind all rows
        (part := x.new_empty((each, *x.shape[1:])))[: x.shape[0]] = x
    out = x.new_empty((each * ranks, *x.shape[1:]))
    dist.all_gather_into_tensor(out, part.contiguous(), group=group)
    return out[:rows]


def scattered(make: Callable[[Any], object], like: Any, rows: int, columns: int, group: Any) -> Any:
    """This rank's rows, of `ceil(rows / ranks)` each, of the sum of what every rank makes.

    Args:
        make: writes this rank's `[rows, columns]` into what it is given, which has the dtype and device of `like`.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    each = -(-rows // ranks)
    own = like.new_empty((each, columns))
    partial = own if ranks == 1 else like.new_empty((each * ranks, columns))
    make(partial[:rows])  # what lies behind is nobody's: the last ranks get it and give it away
    if ranks > 1:
        dist.reduce_scatter_tensor(own, partial, group=group)
    mine = max(0, min(each, rows - rank * each))
    return own if mine == each else own[:mine]  # torch lets nobody write to a view
