"""How many ranks there are, for what runs in an operator's body and goes by sizes."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.frontend.running import in_progress


def ranks_here() -> int:
    """The ranks along the one axis that the operator in progress knows of.

    Raises:
        TilelinkError: TL211 outside an operator, TL213 its ranks have several axes.
    """
    run, loc = in_progress("ranks are counted", "there are none before an operator runs on some")
    ranks = run.frame.dimensions.ranks
    if len(ranks.names) > 1:
        raise TilelinkError(
            "TL213",
            "along which axis ranks are counted",
            loc=loc,
            why=f"the ranks of `{run.frame.name}` have the axes {' and '.join(ranks.names)}",
            hint="call it in an operator of one axis, and that one here with `over=`",
        )
    (name,) = ranks.names
    return ranks.count(name)
