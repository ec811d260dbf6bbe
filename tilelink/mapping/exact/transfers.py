"""What streams run, written out: which bytes go where, after what, on one rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.formula import Formula
from tilelink.ir.host import Keep
from tilelink.ir.partition import holder, part
from tilelink.ir.plan import Plan, Signal, StepPlan
from tilelink.ir.program import Wait
from tilelink.ir.wiring import TensorDecl, ViewAxis
from tilelink.mapping.exact.library_calls import applied, strokes
from tilelink.mapping.exact.stream_ops import BellWait, Copy, SetWord, StreamOp, WordWait
from tilelink.mapping.exact.touched import Place, Span, touched

Tile: TypeAlias = "tuple[Span, ...]"
"""Begin and end per axis of a step's grid."""


def expand(
    plan: Plan, path: str, rank: int, *, own: bool = True, others: bool = True
) -> tuple[tuple[StreamOp, ...], ...]:
    """The steps of a program that streams run on rank `rank`, one tuple per side stream; `own`: with what stays there, to
    be read from where it has been moved to; `others`: with what comes or goes."""
    step = plan.step(path)
    if step.library is not None:
        return applied(plan, step, step.spans(plan.env(rank)), rank, in_place=not own)
    out: list[list[StreamOp]] = [[] for _ in range(step.streams)]
    for turn, (tile, targets) in enumerate(_moves(plan, step, rank, own, others)):
        if targets:
            out[turn % step.streams] += _tile(plan, step, rank, tile, targets)
    return tuple(tuple(ops) for ops in out)


def _moves(plan: Plan, step: StepPlan, rank: int, own: bool, others: bool) -> list[tuple[Tile, list[int]]]:
    """Each tile in turn with the ranks that get it; of what is not meant, none."""
    movement = step.step.program.movement
    assert movement is not None
    at = {pe: plan.topology.at(pe, step.axis) for pe in plan.topology.line(rank, step.axis)}

    def meant(tile: Tile, targets: list[int]) -> list[int]:
        mine = not step.own_rows or holder_of(plan, step, step.domain, tile, rank) == rank
        both = own and others
        return [pe for pe in targets if mine and (both or _leaves(plan, step, tile, rank, pe) == others)]

    moves = [(tile, _targets(plan, step, tile, rank)) for tile in step.spans(plan.env(rank))]
    if step.push and not any(s.path == step.path and s.action == "await" for s in plan.signals):
        # Everything is there on entry: one rank gets all its tiles before the next gets any.
        to_all = any(holder_of(plan, step, movement.destination, tile, rank) is None for tile, _ in moves)
        moves = [(tile, [pe]) for tile, targets in moves for pe in targets]
        first = 0 if own else len(at) - 1
        moves.sort(key=lambda move: (at[rank] - at[move[1][0]] + first) % len(at))
        if to_all:
            return [(tile, targets) for tile, targets in moves if meant(tile, targets)]
    return [(tile, meant(tile, targets)) for tile, targets in moves]


def _leaves(plan: Plan, step: StepPlan, tile: Tile, rank: int, pe: int) -> bool:
    """Whether a tile goes from one rank to another."""
    return (pe if step.push else _origin(plan, step, tile, rank)) != rank


def _origin(plan: Plan, step: StepPlan, tile: Tile, rank: int) -> int:
    """The rank that a tile is taken from: the one that holds it, or this one, if every rank has it."""
    movement = step.step.program.movement
    assert movement is not None
    holder = None if step.push else holder_of(plan, step, movement.source, tile, rank)
    return rank if holder is None else holder


def issued(plan: Plan, path: str, rank: int) -> tuple[tuple[StreamOp, ...], ...]:
    """`expand` without what stays on the rank, where everyone reads that in place, or it comes first (`kept`)."""
    if plan.step(path).library is not None:
        return expand(plan, path, rank, own=False)
    in_place = plan.step(path).step.moved_to in plan.read_in_place
    return expand(plan, path, rank, own=not in_place and Keep(path) not in plan.host)


def kept(plan: Plan, path: str, rank: int) -> tuple[StreamOp, ...]:
    """What stays on the rank, one after the other: of a step that the host's sequence lets come first (`Keep`).

    Nothing is waited for: what the rank has put where peers take it, the same stream has put there.
    """
    step = plan.step(path)
    moves = _moves(plan, step, rank, own=True, others=False)
    found = [op for tile, targets in moves if targets for op in _tile(plan, step, rank, tile, targets)]
    return tuple(op for op in found if not isinstance(op, WordWait))


def _targets(plan: Plan, step: StepPlan, tile: Tile, rank: int) -> list[int]:
    """The ranks that get a tile: its owner, or all of them, those first that take the ring's next rows from here."""
    movement = step.step.program.movement
    assert movement is not None
    owner = holder_of(plan, step, movement.destination, tile, rank) if step.push else rank
    if owner is not None:
        return [owner]
    line, at = plan.topology.line(rank, step.axis), plan.topology.at(rank, step.axis)
    return [line[(at - k) % len(line)] for k in range(len(line))]


def _tile(plan: Plan, step: StepPlan, rank: int, tile: Tile, targets: list[int]) -> list[StreamOp]:
    movement = step.step.program.movement
    assert movement is not None
    source, target = movement.source, movement.destination
    out: list[StreamOp] = []
    holder = _origin(plan, step, tile, rank)
    out += _waits(plan, step, source, tile, rank, holder)
    names = step.step.binding(source).tensor, step.step.binding(target).tensor
    signal = next((s for s in plan.signals if s.path == step.path and s.action == "notify"), None)
    alone = not step.push or holder_of(plan, step, target, tile, rank) is not None
    for pe in targets:
        if step.skip_own and pe == rank:
            continue
        here, there = block_of(plan, step, source, tile, holder), block_of(plan, step, target, tile, pe)
        count, outer = contiguous(there, here)
        at = ("target", pe) if step.push else ("source", holder)
        out.append(Copy(names[1], there.offset, names[0], here.offset, count, at[1], at[0], outer))
        hears = pe if step.push else _waiter(plan, step, signal, tile, rank)
        for told in _told(plan, step, signal, rank, hears, alone=alone):
            assert signal is not None and signal.channel is not None
            channel = plan.channel(signal.channel)
            out.append(SetWord(channel.name, _word(plan, channel, step, target, tile, rank, hears), told))
    return out


def _waiter(plan: Plan, step: StepPlan, signal: Signal | None, tile: Tile, rank: int) -> int:
    """The rank that waits for a tile which has been pulled: this one, or of those that pull it on, the one whose part it is."""
    if signal is None or signal.to != "owner":
        return rank
    axis = plan.channel(signal.channel or "").whose(step.axis)
    found = _on_axis(step, signal.op.param, tile, axis.axis) if axis is not None and axis.axis is not None else None
    if axis is None or found is None:
        return rank  # of what has no parts nobody else waits for one
    part_of = found[1][0] // int(F.evaluate(axis.part, plan.env(rank)))
    return plan.topology.peer(rank, part_of, step.axis)


def _told(plan: Plan, step: StepPlan, signal: Signal | None, rank: int, holder: int, *, alone: bool) -> list[int]:
    """The ranks that hear of one copy; none: nobody waits for it. `alone`: no further copy of the tile goes to others."""
    if signal is None or signal.channel is None:
        return []
    if signal.to == "self":
        return [rank]
    return [*plan.topology.line(rank, step.axis)] if signal.to == "all" and alone else [holder]


def _waits(plan: Plan, step: StepPlan, source: str, tile: Tile, rank: int, holder: int) -> list[StreamOp]:
    signal = next(s for s in plan.signals if s.path == step.path and isinstance(s.op, Wait))
    tensor = step.step.binding(source).tensor
    if signal.action == "elided":
        return []
    if signal.action == "ready":
        kind = "ready" if plan.buffer(tensor).staged else "entered"
        return [WordWait("", kind, holder)] if holder != rank or kind == "ready" else []
    assert signal.channel is not None
    channel = plan.channel(signal.channel)
    every, env = any(a.every for a in channel.axes), plan.env(rank)
    whose = None if every else holder
    words = touched(plan, channel, lambda a: _on_axis(step, source, tile, a), rank=rank, pe=rank, source=whose)
    if channel.bells:
        return [BellWait(channel.name, w, strokes(channel, w, env)) for w in words if channel.rung(w, env)]
    return [WordWait(channel.name, "channel", w) for w in words]


def _on_axis(step: StepPlan, param: str, tile: Tile, axis: int) -> Place | None:
    found = zip(step.step.binding(param).view, tile, strict=True)
    return next(((v, bounds) for v, bounds in found if v.axis == axis), None)


def _word(plan: Plan, channel: Channel, step: StepPlan, param: str, tile: Tile, rank: int, pe: int) -> int:
    """The word that the completed tile sets; with the tile as the channel's span there is exactly one."""
    found = touched(plan, channel, lambda a: _on_axis(step, param, tile, a), rank=rank, pe=pe, source=rank)
    assert len(found) == 1, (channel.name, found)
    return found[0]


def holder_of(plan: Plan, step: StepPlan, param: str, tile: Tile, rank: int) -> int | None:
    """The rank that holds the tile in a parameter's tensor; None: every rank has its own whole instance."""
    binding = step.step.binding(param)
    at = tile_holder(plan.wiring.tensor(binding.tensor), binding.view, (begin for begin, _ in tile))
    return None if at is None else plan.topology.peer(rank, int(F.evaluate(at, plan.env(rank))), step.axis)


def _part(plan: Plan, tensor: TensorDecl, v: ViewAxis) -> int:
    assert v.axis is not None
    axis = tensor.axes[v.axis]
    return int(F.evaluate(part(axis.size, axis.over), plan.env(0)))


@dataclass(frozen=True, slots=True)
class Block:
    """A tile in an instance: where it begins, and per view axis its length and the elements from one position on."""

    offset: int
    axes: tuple[tuple[int, int], ...]


def block_of(plan: Plan, step: StepPlan, param: str, tile: Tile, holder: int) -> Block:
    """The tile in the instance of rank `holder`."""
    tensor = plan.wiring.tensor(step.step.binding(param).tensor)
    movement = step.step.program.movement
    pulled = movement is not None and param == movement.source and not step.push
    seen = plan.buffer(tensor.name).seen(by_peers=pulled)
    extents = [int(F.evaluate(e, plan.env(holder))) for e in seen]
    offset, behind = 0, 1
    axes: list[tuple[int, int]] = []
    for v, (begin, end) in reversed(list(zip(step.step.binding(param).view, tile, strict=True))):
        if v.axis is None or tensor.axes[v.axis].own_slice:
            axes.append((1, 0))
            continue
        over = tensor.axes[v.axis].over if not v.local else None
        first = begin if over is None else begin - plan.topology.at(holder, over) * _part(plan, tensor, v)
        offset += first * behind
        axes.append((end - begin, behind))
        behind *= extents.pop()
    return Block(offset, tuple(reversed(axes)))


def contiguous(target: Block, source: Block) -> tuple[int, tuple[tuple[int, int, int], ...]]:
    """(elements of a run, how the runs lie) of a copy: axes that are one axis in both instances are joined."""
    axes: list[tuple[int, int, int]] = []
    for (n, there), (_, here) in zip(target.axes, source.axes, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1:] == (n * there, n * here):
            axes[-1] = (axes[-1][0] * n, there, here)
        else:
            axes.append((n, there, here))
    if axes and axes[-1][1:] == (1, 1):
        return axes[-1][0], tuple(axes[:-1])
    return 1, tuple(axes)


def tile_holder(tensor: TensorDecl, view: tuple[ViewAxis, ...], begins: Iterable[F.Like | None]) -> Formula | None:
    """The rank that holds a tile, by its coordinate along the step's axis of ranks; None: every rank has its own.

    Args:
        begins: where the tile begins on each axis of the view; None: on this one it names no position.
    """
    for v, begin in zip(view, begins, strict=True):
        if begin is not None and v.axis is None:
            return F.of(begin)
        if begin is not None and v.axis is not None and tensor.names_holder(v):
            return holder(tensor, v.axis, begin)
    return None
