"""One step as one function: a persistent loop over its tiles, or, fused, the tile its host has just made."""

from __future__ import annotations

from tilelink.codegen import copies, signals
from tilelink.codegen.body import emit_body
from tilelink.codegen.deferred_epilogue import signal_made
from tilelink.codegen.domain import open_tiles, order_lines, tile_lines
from tilelink.codegen.epilogue import call_fused
from tilelink.codegen.function import Function, close
from tilelink.codegen.scope import File, Scope, open_scope
from tilelink.codegen.text import Lines
from tilelink.ir.lowered import Await, Part, Signal
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Load, Loop, Tiles, walk


def emit_step(file: File, step: StepPlan) -> list[Function]:
    """The step's function, those fused into it first."""
    plan, scope = file.plan, open_scope(file, step)
    functions: list[Function] = []
    outer = scope.lines
    scope.lines = Lines()
    tiles = open_tiles(scope)
    if scope.part.copies:
        copies.emit_tile(scope)
    else:
        emit_body(scope, step.step.program.body)
        for fused in map(plan.step, step.fused):
            if fused.deferred:
                signal_made(scope, fused)
            else:
                functions.append(call_fused(scope, fused))
    inner, scope.lines = scope.lines, outer
    outer.extend(scope.carry)
    signals.notify_for_none(scope)
    # The positions that a worker takes; fused with the loop inside a tile, where that is worth it and right.
    flattens, span = _flattens(scope), f"worker, {scope.text(scope.step.total)}, workers"
    outer.add(f"for t in {f'tl.range({span}, flatten=True)' if flattens else f'range({span})'}:", scope.tile_loc)
    outer.depth = 1
    order_lines(scope)
    outer.extend(tile_lines(scope, tiles))
    scope.open_if(scope.part.tests)
    outer.extend(inner)
    # A notify may end in a branch of its own, inside the SHMEM function.
    branches = step.fused or outer.rows[-1][0] > 1 or _notifies(scope.part)
    if branches and flattens:
        outer.add("blocks.end_of_tile()")
    leading = ("worker", "workers", *(["epoch"] if file.lowered.by_epoch else []))
    functions.append(close(scope, scope.naming.functions[step.path], leading))
    return functions


def _flattens(scope: Scope) -> bool:
    """Whether the loads of the next tile may go out before this one is stored and signalled.

    With descriptor loads only, where it was measured. What waits before its loop and notifies after it may not: others
    may need this tile's signal before they signal the flag that the next tile waits for.
    """
    body = scope.step.step.program.body
    loops = [op for op in body if isinstance(op, (Tiles, Loop))]
    if len(loops) != 1:
        return False
    # One load by pointers, and none of a flattened loop's would be ahead of its use.
    read = {scope.declared(op.param).name for op in walk(loops[0].body) if isinstance(op, Load)}
    if not read or not read <= scope.async_tensors:
        return False
    waited = [statement for statement, ops in scope.part.said if any(isinstance(o, Await) for o in lowered_ops(ops))]
    if any(statement in walk(loops[0].body) for statement in waited):
        return False
    notifies = any(_notifies(scope.lowered.part(path)) for path in (scope.step.path, *scope.step.fused))
    return not (notifies and any(statement in body for statement in waited))


def _notifies(part: Part) -> bool:
    return any(isinstance(o, Signal) for ops in (part.body, *(ops for _, ops in part.said)) for o in lowered_ops(ops))
