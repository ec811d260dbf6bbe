"""Groups of ranks by name: what a graph of torch can hold on to, as torch's functional collectives do."""

from __future__ import annotations

from typing import Any

from tilelink.runtime.session import Session, current, require


def group_name(group: Any = None) -> str:
    """The name of some ranks, for operators and modules in compiled functions.

    Collective over the group, the first time; call it outside of what is compiled.

    Args:
        group: a `torch.distributed` process group, a `DeviceMesh` of one dimension, what `tilelink.group` gave, a name
            already; None: all ranks, or one where no ranks are.

    Raises:
        TilelinkError: TL451 no rank is here, TL454 it is no group, TL455 this rank is not in it, TL456 there is no
            group of that name.
    """
    if isinstance(group, str):
        return group if group == "" else require().named(group).backend.name
    session = current() if group is None else require().of(group)
    return "" if session is None else session.backend.name


def session_of(name: str) -> Session | None:
    """The rank that calls with a group of this name; None: the only one, simulated for the call."""
    return require().named(name) if name else current()


def ranks_of(name: str) -> int:
    """How many ranks a group has."""
    session = session_of(name)
    return 1 if session is None else session.backend.ranks


def rank_of(name: str) -> int:
    """This rank's number in a group."""
    session = session_of(name)
    return 0 if session is None else session.backend.rank
