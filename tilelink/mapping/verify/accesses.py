"""Who writes and who reads each tensor, axis by axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.errors import Loc
from tilelink.ir.plan import Plan
from tilelink.ir.program import Index, Load, Move, Store
from tilelink.mapping.sites import Site, sites
from tilelink.mapping.verify.geometry import Bools, Ints
from tilelink.mapping.verify.reach import Key, Laid, Mask, Reach


@dataclass(frozen=True, slots=True)
class Access:
    """One store, load or move of a step. `axes`: by axis of the tensor, for the tiles that execute it.

    `remote`: it goes to, or comes from, whoever holds the tile; else the rank's own instance.
    """

    laid: Laid
    site: Site
    param: str
    tensor: str
    index: Index | None
    remote: bool
    mask: Mask
    axes: Mapping[int, Reach]

    @property
    def loc(self) -> Loc:
        return self.site.op.loc

    @property
    def path(self) -> str:
        return self.laid.step.path

    def idle(self) -> Bools:
        """Ranks that have no tile."""
        idle = self.laid.idle(self.site)
        for reach in self.axes.values():
            if reach.spans is not None:
                idle = idle | reach.spans.nowhere
        return idle

    def holder_axis(self) -> int | None:
        """The tensor axis that says which rank holds the tile; None: every rank has an instance of its own."""
        tensor = self.laid.tensor(self.param)
        for view, _ in self.laid.index(self.param, self.index):
            if tensor.names_holder(view):
                return view.axis
        return None

    def holder(self) -> tuple[Key | None, Ints] | None:
        """(axis, rank that holds each of its tiles); None: no one rank does, or data says."""
        axis = self.holder_axis()
        found = self.axes.get(axis) if axis is not None else None
        if axis is None or found is None or found.spans is None:
            return None
        world, tensor = self.laid.world, self.laid.tensor(self.param)
        return found.key, world.peers(self.laid.step.axis, world.holders(tensor, axis, found.spans.begin))


def writes(plan: Plan, laid: Mapping[str, Laid]) -> tuple[Access, ...]:
    return tuple(a for s in plan.steps for a in _accesses(laid[s.path], writing=True))


def reads(plan: Plan, laid: Mapping[str, Laid]) -> tuple[Access, ...]:
    return tuple(a for s in plan.steps for a in _accesses(laid[s.path], writing=False))


def _accesses(laid: Laid, *, writing: bool) -> list[Access]:
    step = laid.step
    movement = step.step.program.movement
    if movement is not None:
        # Its one transfer happens as the schedule says, not as it is written.
        site = next(s for s in sites(step.step.program) if isinstance(s.op, (Move, Store)))
        param = movement.destination if writing else movement.source
        away = (
            step.push if writing else not step.push and laid.tensor(param).names_holders(step.step.binding(param).view)
        )
        return [access(laid, site, param, None, remote=bool(away))]
    out: list[Access] = []
    for site in sites(step.step.program):
        op = site.op
        if writing and isinstance(op, Store):
            out.append(access(laid, site, op.param, op.index, remote=op.to == "holders"))
        elif not writing and isinstance(op, Load):
            out.append(access(laid, site, op.param, op.index, remote=False))
    return out


def access(laid: Laid, site: Site, param: str, index: Index | None, *, remote: bool) -> Access:
    mask = laid.mask(site)
    axes: dict[int, Reach] = {}
    for view, entry in laid.index(param, index):
        if view.axis is None:
            continue
        found = laid.reach(param, view, entry)
        if found.spans is not None:
            found = Reach(found.key, mask.on(found.spans, found.key).packed(), found.whole)
        axes[view.axis] = found
    tensor = laid.step.step.binding(param).tensor
    return Access(laid, site, param, tensor, index, remote, mask, axes)
