"""The one-block kernels around a call: `enter` begins it, `ready` says that arguments are staged, `leave` ends it where
peers read arguments in place, `await_word` is a stream's way to wait for another rank.

Slots, credits and totals: see docs/architecture.md. Everything lives in device memory, so calls may differ in size and
kernels replay.
"""

from __future__ import annotations

from tilelink.codegen import signalling
from tilelink.codegen.scope import Scope, open_scope
from tilelink.codegen.step import Function, arguments
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.plan import Channel, Plan

LANES = 1024


def emit_enter(plan: Plan) -> Function:
    """Advance the epoch, tell the peers, raise each word's total by this call's target, and take the credits."""
    scope = open_scope(plan, plan.steps[0])
    lines = scope.lines
    epoch = scope.epoch()
    last = scope.arg(Arg("last_at", "state", "last"))
    entered = scope.arg(Arg("entered_at", "state", "entered"))
    credits = scope.arg(Arg("take_credits", "credits"))
    scope.arg(Arg("ctx", "context", ""))
    lines.add(f"epoch = tl.load({epoch}) + 1")
    lines.add(f"tl.store({epoch}, epoch)")
    lines.add("for pe in range(RANKS):")
    lines.add(f"    shmem.signal_op({entered} + rank, epoch, shmem.SIGNAL_SET, pe, ctx)")
    for channel in plan.channels:
        if channel.writers != "stream":
            _totals(scope, lines, channel)
    lines.add(f"if {credits} != 0:")
    lines.add(f"    used = tl.load({last})")
    lines.add("    for pe in range(RANKS):")
    lines.add(f"        shmem.signal_wait_until({entered} + pe, shmem.CMP_GE, used + 1)")
    lines.add(f"tl.store({last}, epoch)")
    rows = tuple([(0, f"{n} = {text}", None) for n, text in scope.formulas.definitions()] + lines.rows)
    return Function("enter", (), arguments(scope, rows), rows)


def _totals(scope: Scope, lines: Lines, channel: Channel) -> None:
    due = scope.arg(Arg(signalling.due(channel), "due", channel.name))
    if not channel.axes:
        lines.add(f"tl.store({due}, tl.load({due}) + {scope.text(channel.target, 1)})")
        return
    total = scope.names.fresh(f"{channel.tensor}_count")
    lines.add(f"{total} = {scope.text(channel.words)}")
    lines.add(f"for start in range(0, {total}, {LANES}):")
    lines.depth += 1
    lines.add(f"word = start + tl.arange(0, {LANES})")
    values: dict[str, F.Like] = {}
    behind: Formula = F.of(1)
    for k in reversed(range(len(channel.axes))):
        index = Sym("word") // behind
        values[f"c{k}"] = index if k == 0 else index % channel.axes[k].count
        behind = behind * channel.axes[k].count
    for k in range(len(channel.axes)):
        lines.add(f"c{k} = {scope.text(values[f'c{k}'])}")
    target = scope.text(channel.target)
    if channel.guard is not None:
        target = f"tl.where({scope.text(channel.guard)}, {target}, 0)"
    lines.add(f"inside = word < {total}")
    lines.add(f"tl.store({due} + word, tl.load({due} + word, mask=inside, other=0) + {target}, mask=inside)")
    lines.depth -= 1


def emit_ready(plan: Plan) -> Function:
    scope = open_scope(plan, plan.steps[0])
    lines = scope.lines
    epoch = scope.epoch()
    flags = scope.arg(Arg("ready_at", "state", "ready"))
    scope.arg(Arg("ctx", "context", ""))
    lines.add("for pe in range(RANKS):")
    lines.add(f"    shmem.signal_op({flags} + rank, tl.load({epoch}), shmem.SIGNAL_SET, pe, ctx)")
    rows = tuple(lines.rows)
    return Function("ready", (), arguments(scope, rows), rows)


def emit_leave(plan: Plan) -> Function:
    scope = open_scope(plan, plan.steps[0])
    lines = scope.lines
    epoch = scope.epoch()
    flags = scope.arg(Arg("left_at", "state", "left"))
    scope.arg(Arg("ctx", "context", ""))
    lines.add("for pe in range(RANKS):")
    lines.add(f"    shmem.signal_op({flags} + rank, tl.load({epoch}), shmem.SIGNAL_SET, pe, ctx)")
    lines.add("for pe in range(RANKS):")
    lines.add(f"    shmem.signal_wait_until({flags} + pe, shmem.CMP_GE, tl.load({epoch}))")
    rows = tuple(lines.rows)
    return Function("leave", (), arguments(scope, rows), rows)


def emit_await(plan: Plan) -> Function:
    scope = open_scope(plan, plan.steps[0])
    scope.arg(Arg("word_at", "word"))
    scope.arg(Arg("value_at", "word"))
    scope.lines.add("shmem.signal_wait_until(word_at, shmem.CMP_GE, tl.load(value_at))")
    rows = tuple(scope.lines.rows)
    return Function("await_word", (), arguments(scope, rows), rows)
