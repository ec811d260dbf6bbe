"""Copy-engine programs written out: which bytes go where, after what, on one rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.plan import BellWait, Channel, Copy, GridAxis, Plan, SetWord, StepPlan, StreamOp, WordWait
from tilelink.ir.wiring import TensorDecl, ViewAxis


def expand(plan: Plan, path: str, rank: int) -> tuple[tuple[StreamOp, ...], ...]:
    """The steps of a copy-engine program on rank `rank`, one tuple per side stream."""
    step = plan.step(path)
    out: list[list[StreamOp]] = [[] for _ in range(step.streams)]
    moves = [(tile, _targets(plan, step, tile, rank)) for tile in tiles_of(plan, step, rank)]
    if step.push and not any(s.path == path and s.action == "await" for s in plan.signals):
        # Everything is there on entry: one rank gets all its tiles before the next gets any.
        moves = [(tile, [pe]) for tile, targets in moves for pe in targets]
        moves.sort(key=lambda move: (rank - move[1][0]) % plan.topology.ranks)
    for turn, (tile, targets) in enumerate(moves):
        out[turn % step.streams] += _tile(plan, step, rank, tile, targets)
    return tuple(tuple(ops) for ops in out)


def _targets(plan: Plan, step: StepPlan, tile: tuple[tuple[int, int], ...], rank: int) -> list[int]:
    """The ranks that get a tile: its owner, or all of them, those first that take the ring's next rows from here."""
    movement = step.step.program.movement
    assert movement is not None
    owner = holder_of(plan, step, movement.destination, tile, rank) if step.push else rank
    ranks = plan.topology.ranks
    return [owner] if owner is not None else [(rank - k) % ranks for k in range(ranks)]


def tiles_of(plan: Plan, step: StepPlan, rank: int) -> list[tuple[tuple[int, int], ...]]:
    """The step's tiles on a rank, in order: `(begin, end)` per axis of its grid."""
    env: dict[str, Any] = dict(plan.env(rank))
    total = int(F.evaluate(step.total, env))
    env["t"] = np.arange(total)
    for name, value in step.order:
        env[name] = F.evaluate(value, env) if total else np.arange(0)
    columns: list[tuple[Any, Any]] = []
    for a, g in enumerate(step.grid):
        index = F.Sym(f"i{a}")
        lo, hi = (np.broadcast_to(F.evaluate(f, env), (total,)) for f in (g.begin(index), g.end(index)))
        columns.append((lo, hi))
    return [tuple((int(lo[t]), int(hi[t])) for lo, hi in columns) for t in range(total)]


def _tile(
    plan: Plan, step: StepPlan, rank: int, tile: tuple[tuple[int, int], ...], targets: list[int]
) -> list[StreamOp]:
    movement = step.step.program.movement
    assert movement is not None
    source, target = movement.source, movement.destination
    out: list[StreamOp] = []
    holder = holder_of(plan, step, source, tile, rank) if not step.push else rank
    assert holder is not None
    out += _waits(plan, step, source, tile, rank, holder)
    names = step.step.binding(source).tensor, step.step.binding(target).tensor
    for pe in targets:
        if step.skip_own and pe == rank:
            continue
        start, count = run_of(plan, step, source, tile, holder)
        there, _ = run_of(plan, step, target, tile, pe)
        at = ("target", pe) if step.push else ("source", holder)
        out.append(Copy(names[1], there, names[0], start, count, at[1], at[0]))
        channel = plan.channel_of(names[1])
        if channel is not None:
            word = _word(plan, channel, step, target, tile, rank, pe)
            out.append(SetWord(channel.name, word, pe if step.push else rank))
    return out


def _waits(
    plan: Plan, step: StepPlan, source: str, tile: tuple[tuple[int, int], ...], rank: int, holder: int
) -> list[StreamOp]:
    signal = next(s for s in plan.signals if s.path == step.path and s.action in ("await", "ready", "elided"))
    tensor = step.step.binding(source).tensor
    if signal.action == "elided":
        return []
    if signal.action == "ready":
        kind = "ready" if plan.buffer(tensor).staged else "entered"
        return [WordWait("", kind, holder)] if holder != rank or kind == "ready" else []
    assert signal.channel is not None
    channel = plan.channel(signal.channel)
    words = words_of(plan, channel, step, source, tile, rank, holder)
    if channel.bells:
        return (
            [BellWait(channel.name, w) for w in words]
            if channel.scope == "gpu"
            else [WordWait(channel.name, "channel", w) for w in words]
        )
    return [WordWait(channel.name, "channel", w) for w in words]


def words_of(
    plan: Plan, channel: Channel, step: StepPlan, param: str, tile: tuple[tuple[int, int], ...], rank: int, source: int
) -> list[int]:
    """Every word that a tile of the step touches."""
    env = plan.env(rank)
    spans: list[range] = []
    for axis in channel.axes:
        if axis.axis is None:
            spans.append(range(source, source + 1))
            continue
        lo, hi = _bounds(step, param, axis.axis, tile)
        spans.append(range(int(F.evaluate(axis.index(lo), env)), int(F.evaluate(axis.index(hi - 1), env)) + 1))
    out: list[int] = []
    for indices in itertools.product(*spans):
        out.append(int(F.evaluate(channel.flat(indices), env)))
    return out


def _bounds(step: StepPlan, param: str, axis: int, tile: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    for v, bounds in zip(step.step.binding(param).view, tile, strict=True):
        if v.axis == axis:
            return bounds
    raise AssertionError(f"{step.path} has no axis {axis}")


def _word(
    plan: Plan, channel: Channel, step: StepPlan, param: str, tile: tuple[tuple[int, int], ...], rank: int, pe: int
) -> int:
    """The word that the completed tile sets; with the tile as the channel's span there is exactly one."""
    found = words_of(plan, channel, step, param, tile, pe, rank)
    assert len(found) == 1, (channel.name, found)
    return found[0]


def holder_of(plan: Plan, step: StepPlan, param: str, tile: tuple[tuple[int, int], ...], rank: int) -> int | None:
    """The rank that holds the tile in a parameter's tensor; None: every rank has its own whole instance."""
    tensor = plan.wiring.tensor(step.step.binding(param).tensor)
    for v, (begin, _) in zip(step.step.binding(param).view, tile, strict=True):
        if v.axis is None or tensor.axes[v.axis].own_slice:
            return begin
        if tensor.axes[v.axis].split == "R" and not v.local:
            return begin // _part(plan, tensor, v)
    return None


def _part(plan: Plan, tensor: TensorDecl, v: ViewAxis) -> int:
    assert v.axis is not None
    return max(1, -(-int(F.evaluate(tensor.axes[v.axis].size, plan.env(0))) // plan.topology.ranks))


def run_of(plan: Plan, step: StepPlan, param: str, tile: tuple[tuple[int, int], ...], holder: int) -> tuple[int, int]:
    """(offset, elements) of the tile in the instance of rank `holder`, which must be one contiguous run."""
    tensor = plan.wiring.tensor(step.step.binding(param).tensor)
    extents = [int(F.evaluate(e, plan.env(holder))) for e in plan.buffer(tensor.name).extents]
    offset, behind, place, count = 0, 1, len(extents), 1
    cut = False
    for v, g, (begin, end) in reversed(list(zip(step.step.binding(param).view, step.grid, tile, strict=True))):
        if v.axis is None or tensor.axes[v.axis].own_slice:
            continue
        place -= 1
        assert not cut or _single(g)
        cut = cut or g.tile is not None or g.kind != "plain"
        first = begin - holder * _part(plan, tensor, v) if tensor.axes[v.axis].split == "R" and not v.local else begin
        offset += first * behind
        count *= end - begin
        behind *= extents[place]
    return offset, count


def _single(g: GridAxis) -> bool:
    return g.kind in ("unit", "own")
