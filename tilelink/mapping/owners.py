"""Owner maps: what they may say, and who may use a tensor that has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilelink.errors import Loc, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis, holder
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Load, Notify, OfTile, Op, Store, Wait, walk
from tilelink.ir.wiring import TensorDecl, Wiring, entry_on


def check_owners(plan: Plan) -> None:
    """A map gives every position one of the ranks; a tile lies with one of them; a rank reads what it holds.

    Raises:
        TilelinkError: TL306.
    """
    wiring, ranks = plan.wiring, plan.topology.ranks
    env: dict[str, Any] = {**dict(plan.sizes), "rank": 0, "RANKS": ranks}
    for tensor in wiring.tensors:
        if tensor.owned is None:
            continue
        held_by = _holders(tensor, tensor.owned, env, ranks)
        uses = [(s, b.param) for s in plan.steps for b in s.step.bindings if b.tensor == tensor.name]
        for s, param in uses:
            if s.step.moves is not None and s.step.moves[0].param == param and not s.push:
                raise _refused(tensor, s.step.loc, f"`{s.path}` pulls from it", "let it push (`push=True`)")
            for op, grid in _touched(tensor, s, param):
                if grid is None:
                    raise _refused(
                        tensor, op.loc, "more than one tile of the map's axis is named", "name one tile of it"
                    )
                if isinstance(op, (Load, Wait)) and not _runs_where_held(wiring, tensor, s, grid):
                    what = f"`{s.path}` also runs where this tile is not held"
                    raise _refused(tensor, op.loc, what, f"take the program's tiles from it: `tl.tile_id({param})`")
                _check_tiles(tensor, s, grid, held_by, env, ranks)


def _holders(tensor: TensorDecl, axis: int, env: dict[str, Any], ranks: int) -> Any:
    """The rank of each position on the map's axis."""
    assert tensor.owner_map is not None
    variables = dict(zip(tensor.owner_map.variables, range(len(tensor.axes)), strict=False))
    named = F.symbols(tensor.owner_map.formula)
    if len(named & variables.keys()) > 1:
        raise _refused(tensor, tensor.loc, "it looks at two axes", "let one axis say who holds what")
    if any(a.split is not None for a in tensor.axes):
        raise _refused(tensor, tensor.loc, "its shape splits it as well", "say it once: in the shape or by `owner=`")
    unknown = named - variables.keys() - env.keys()
    if unknown:
        raise _refused(
            tensor, tensor.loc, f"`{min(unknown)}` is not a size of the operator", "name sizes, numbers and `R`"
        )
    size = int(F.evaluate(tensor.axes[axis].size, env))
    found = np.broadcast_to(F.evaluate(holder(tensor, axis, F.Sym("_at")), {**env, "_at": np.arange(size)}), (size,))
    wrong = np.flatnonzero((found < 0) | (found >= ranks))
    if len(wrong):
        at = int(wrong[0])
        hint = "end it with `% R`" if found[at] > 0 else "add `R` before `% R`: of what is below 0 that is below 0, too"
        raise _refused(tensor, tensor.loc, f"position {at} would lie with rank {int(found[at])} of {ranks}", hint)
    return found


def _touched(tensor: TensorDecl, s: StepPlan, param: str) -> Iterator[tuple[Op, GridAxis | None]]:
    """Each op on the tensor, with the partition whose tile it names on the map's axis; of an axis that is walked singly that is
    a position."""
    ops = list(walk(s.step.program.body))
    if s.step.moves is not None:
        at = next(k for k, v in enumerate(s.step.binding(param).view) if v.axis == tensor.owned)
        kind = Wait if s.step.moves[0].param == param else Notify
        yield next(op for op in ops if isinstance(op, kind)), s.grid[at]
        return
    for op in ops:
        if isinstance(op, (Load, Store, Wait, Notify)) and op.param == param:
            entry = entry_on(s.step, param, op.index, tensor.owned)
            grids: list[GridAxis] = []
            if isinstance(entry, OfTile):
                grids = [g for g in s.grid if g.var == entry.var]
            elif isinstance(entry, At) and entry.ring is None:
                grids = [g for g in s.grid if g.var == entry.expr.text and g.kind == "unit"]
            yield op, next(iter(grids), None)


def _runs_where_held(wiring: Wiring, tensor: TensorDecl, s: StepPlan, grid: GridAxis) -> bool:
    """The program runs for the tiles that this rank holds of a tensor with the same map."""
    binding = s.step.binding(s.domain)
    domain = wiring.tensor(binding.tensor)
    if domain.owned is None or domain.owner_map is None or tensor.owner_map is None or tensor.owned is None:
        return False
    mine, theirs = (holder(t, t.owned or 0, F.Sym("_at")) for t in (domain, tensor))
    named = any(g is grid and v.axis == domain.owned for v, g in zip(binding.view, s.grid, strict=True))
    return named and mine == theirs


def _check_tiles(
    tensor: TensorDecl, s: StepPlan, grid: GridAxis, held_by: Any, env: dict[str, Any], ranks: int
) -> None:
    """A tile has one holder."""
    borders = np.flatnonzero(np.diff(held_by)) + 1
    for rank in range(ranks):
        here = {**env, "rank": rank}
        count = int(F.evaluate(grid.count, here))
        index = {**here, "_at": np.arange(count)}
        begin, end = (
            np.broadcast_to(F.evaluate(f, index), (count,)) for f in (grid.begin(F.Sym("_at")), grid.end(F.Sym("_at")))
        )
        across = np.searchsorted(borders, begin, side="right") < np.searchsorted(borders, end, side="left")
        if across.any():
            at = int(np.flatnonzero(across)[0])
            raise _refused(
                tensor,
                s.step.loc,
                f"the tile of `{s.path}` from {int(begin[at])} to {int(end[at])} lies with two ranks",
                f"tile `{grid.dim}` so that its tiles end where the map changes",
            )


def _refused(tensor: TensorDecl, loc: Loc | None, why: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL306",
        f"`{tensor.name}` cannot be held as its owner map `{tensor.owner_map}` says",
        loc=loc or tensor.loc,
        why=why,
        hint=hint,
    )
