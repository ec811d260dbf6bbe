"""Conditions under which a signal stands: over rank coordinates, holders and tile positions."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import ChannelAxis
from tilelink.ir.formula import Formula
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Holder, Notify, OfTile, Wait, walk
from tilelink.ir.ring import RANKS
from tilelink.ir.wiring import indexed
from tilelink.mapping.sites import site_of
from tilelink.mapping.matching import own_names


def guard(s: StepPlan, op: Wait | Notify, values: dict[str, F.Like]) -> Formula | None:
    """The conjunction of the tests above `op` with the program's names replaced by `values`; None where there is none."""
    values = {**s.step.compiled, RANKS.name: s.ranks, **values}
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


def holder_values(s: StepPlan, segments: dict[str, F.Like]) -> dict[str, F.Like]:
    """Name of each `rank_of` result -> the rank, given the part in which each tile variable lies."""
    out: dict[str, F.Like] = {}
    for op in walk(s.step.program.body):
        if isinstance(op, Holder):
            for v, e in indexed(s.step, op.param, op.index):
                if isinstance(e, OfTile) and v.split == "R" and e.var in segments:
                    out[op.name] = segments[e.var]
    return out


def notify_guard(s: StepPlan, op: Notify, source: Formula | None, axes: list[ChannelAxis]) -> Formula | None:
    """Which words (`c0`, …) of a rank are raised at all."""
    if s.skip_own:
        return F.binary("!=", source if source is not None else s.rank, s.rank)
    values: dict[str, F.Like] = {}
    segments: dict[str, F.Like] = {}
    for k, c in enumerate(axes):
        index = F.Sym(f"c{k}")
        for v, e in indexed(s.step, op.param, op.index):
            if isinstance(e, OfTile) and v.axis == c.axis and c.kind in ("cut", "part"):
                segments[e.var] = index // c.per if c.kind == "cut" else c.rank
    for g in s.grid:
        if g.var is not None and g.kind == "own":
            values[g.var] = source if source is not None else s.rank
    values |= dict.fromkeys(own_names(s), source if source is not None else s.rank)
    return guard(s, op, values | holder_values(s, segments))
