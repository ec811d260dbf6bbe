"""Rehearsals: a program is run on a few small sizes when it is captured, with what lies past an edge marked.

A block has as many lanes as its tile: past the edge of a tensor they hold 0, as loads fill them, or what has been made of that.
Where that would come into what is stored, a program is refused (TL143). How long tiles are is the schedule's matter, so a
rehearsal also finds where a program takes all of one tile together (`ir.program.Together`).

Takes: the source of a program, the names around it, its parameters and its signature.
Gives: `taken_together`.
Knows: `frontend.scope`, `frontend.source`, numpy. Never knows: ops, plans, Triton.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.frontend.rehearsal.functions import Findings
from tilelink.frontend.rehearsal.places import SIZES
from tilelink.frontend.rehearsal.run import Paths, Rehearsed, Run
from tilelink.ir.program import Together

__all__ = ["Rehearsed", "taken_together"]

MANY = 18
"""Rehearsals of a program in which only some data shows what lies past an edge."""
MORE = 12
"""Rehearsals, at most, for sides of branches that others do not take."""


def taken_together(program: Rehearsed) -> tuple[Together, ...]:
    """What the program takes together of tiles of its domain, once each; what is stored, as that.

    Raises:
        TilelinkError: TL143, what lies past an edge would come into what it stores.
    """
    found, paths = Findings(frozenset(n for n in program.domain if n)), Paths()
    with np.errstate(all="ignore"):
        for which in range(MANY):
            if which < len(SIZES) or found.doubtful:
                Run(program, which, paths, found)
        for which in range(MORE):
            if (side := paths.untaken()) is None:
                break
            paths.forced.append(side)
            Run(program, which, paths, found)
    stored = {t for t in found.notes if t.stored}
    return tuple(dict.fromkeys(t for t in found.notes if t.stored or replace(t, stored=True) not in stored))
