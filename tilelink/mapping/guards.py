"""Conditions under which a notify stands: over rank coordinates, holders and tile positions."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Holder, Notify, OfTile, walk
from tilelink.ir.ring import RANKS
from tilelink.ir.wiring import indexed
from tilelink.mapping.matching import own_names
from tilelink.mapping.sites import site_of


def notify_guard(s: StepPlan, op: Notify, source: Formula, axes: Sequence[ChannelAxis]) -> Formula | None:
    """Which flags (`c0`, …) of a rank are signalled at all, by the rank `source`: where the tests above the notify hold; None:
    all of them.

    Raises:
        TilelinkError: TL304, a test that is no formula.
    """
    if s.skip_own:
        return F.binary("!=", source, s.rank)
    values: dict[str, F.Like] = {**s.step.compiled, RANKS.name: s.ranks}
    values |= {g.var: source for g in s.grid if g.var is not None and g.kind == "own"}
    values |= dict.fromkeys(own_names(s), source)
    values |= _holders(s, op, axes)
    out: Formula | None = None
    for test, branch in site_of(s.step.program, op).tests:
        if test.formula is None or not F.symbols(test.formula) <= values.keys():
            raise TilelinkError(
                "TL304",
                f"a signal stands under `{test.text}`, which the plan cannot evaluate",
                loc=op.loc,
                why="the number of signals must be known without data: from constants, the number of ranks, rank coordinates and "
                "rank_of",
                hint="take the signal out of the branch",
            )
        value = F.substitute(test.formula, values)
        value = value if branch else F.binary("==", value, 0)
        out = value if out is None else F.binary("and", out, value)
    return out


def _holders(s: StepPlan, notify: Notify, axes: Sequence[ChannelAxis]) -> dict[str, F.Like]:
    """Name of each `rank_of` result -> the rank, by the part that the tile lies in whose flag it is."""
    of: dict[str, F.Like] = {}
    for k, c in enumerate(axes):
        for v, e in indexed(s.step, notify.param, notify.index):
            if isinstance(e, OfTile) and v.axis == c.axis and c.kind in ("cut", "part"):
                of[e.var] = Sym(f"c{k}") // c.per if c.kind == "cut" else c.rank
    return {
        op.name: of[e.var]
        for op in walk(s.step.program.body)
        if isinstance(op, Holder)
        for v, e in indexed(s.step, op.param, op.index)
        if isinstance(e, OfTile) and v.split == "R" and e.var in of
    }
