"""The one-block kernels around a call: `call_entry` begins it, `ready` says that arguments are staged, `call_exit` ends it where
peers read arguments in place, `await_flag` is a stream's way to wait for another rank.

Slots, credits and totals: see docs/architecture.md. Everything lives in device memory, so calls may differ in size and
kernels replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.codegen import signals
from tilelink.codegen.access import power_of_two
from tilelink.codegen.function import Function, arguments
from tilelink.codegen.scope import File, Scope, open_scope
from tilelink.codegen.text import Names
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import AWAIT_FLAG, Arg, Site
from tilelink.ir.lowered import STATES, Await, walk
from tilelink.ir.plan import COPIES, CallEntry, CallExit, Stage, Transfer

LANES = 1024
AWAITED = {"watch_at": "watch", "site": "number", "flag": "number"}
"""What a report on a stream's wait takes: where it goes, and the numbers of the place and of the flag."""


def one_block_kernels(file: File) -> Iterator[Function]:
    """Those that the plan's host starts."""
    started = {type(step) for step in file.plan.host}
    if CallEntry in started and not file.lowered.entry:
        yield _call_entry(file)
    if Stage in started:
        yield _told(file, "ready", "ready")
    if CallExit in started:
        yield _told(file, "call_exit", "left", heard=True)
    if Transfer in started:
        yield _await(file)


def _call_entry(file: File) -> Function:
    """Advance the epoch, tell the peers, signal each flag's total by this call's target, and take the credits."""
    scope = _single(file)
    scope.lines.say("a call begins, and the peers hear of it")
    copy, last = _advance(scope), scope.state("last")
    _tell(scope, "entered", "epoch")
    _all_totals(scope)
    _credits(scope)
    scope.lines.add(f"tl.store({last} + {copy}, epoch)")
    return _function("call_entry", scope)


def emit_begin(file: File) -> Function:
    """The begin of a call in its first kernel: one worker tells the peers, all take the credits."""
    scope = _single(file)
    scope.lines.say("a call begins, and the peers hear of it")
    with scope.lines.block("if worker == 0:"):
        _tell(scope, "entered", f"tl.load({scope.state('epoch')}) + 1")
    _credits(scope)
    return _function("call_entry", scope, "worker")


def emit_epoch_signalled(file: File) -> Function:
    """The begin of a call that needs no end: each worker counts it for itself, and for workers that other calls have."""
    scope = _single(file)
    lines, epoch, last, heard = scope.lines, *map(scope.state, ("epoch", "last", "heard"))
    credits = scope.arg(Arg("take_credits", "credits"))
    used, copy = scope.names.fresh("used"), scope.names.fresh("copy")
    lines.say("each worker counts the calls for itself")
    lines.add(f"epoch = tl.load({epoch} + worker) + 1")
    lines.say("whoever was heard in a later call has left the one that had these buffers last: they are free")
    with lines.block(f"if {credits} != 0:"):
        lines.add(f"{used} = tl.load({last} + worker)")
        with lines.block(f"if {used} >= tl.load({heard} + worker):"):
            with lines.block("if worker == 0:"):
                _tell(scope, "entered", "epoch")
            _hear_all(scope, "entered", f"{used} + 1", "call_entry")
    lines.say(
        "all threads have read what some of them write, also for those who take part in calls of other sizes only"
    )
    lines.add("shmem.block_barrier()")
    lines.add(f"{copy} = worker + workers * tl.arange(0, {COPIES})")
    for counts in (epoch, heard, last):
        lines.add(f"tl.store({counts} + {copy}, epoch, mask={copy} < {COPIES})")
    lines.add("return epoch")
    return replace(_function("call_entry", scope, "worker", "workers"), gives="epoch")


def _advance(scope: Scope) -> str:
    """Count the call, in every worker's copy of the epoch; the name of all workers' numbers."""
    lines, epoch, copy = scope.lines, scope.state("epoch"), scope.names.fresh("copy")
    lines.add(f"epoch = tl.load({epoch}) + 1")
    lines.add(f"{copy} = tl.arange(0, {COPIES})")
    lines.add(f"tl.store({epoch} + {copy}, epoch)")
    return copy


def emit_end(file: File, *, stores_async: bool) -> Function:
    """The end of a call in its last kernel: whoever is through last advances the epoch and raises the totals, which
    nobody looks at any more. `stores_async`: the kernel stores through descriptors, which it has to see done first."""
    scope = _single(file)
    lines, through = scope.lines, scope.state("through")
    if stores_async:
        lines.add("shmem.async_store_quiet()")
    lines.say("the call is over when the last worker is through")
    with lines.block(f"if shmem.is_last({through}, workers):"):
        copy = _advance(scope)
        lines.add(f"tl.store({scope.state('last')} + {copy}, epoch)")
        _all_totals(scope)
    return _function("finish", scope, "workers")


def _function(name: str, scope: Scope, *leading: str) -> Function:
    rows = (*scope.definitions(), *scope.lines.rows)
    return Function(name, leading, arguments(scope, rows), rows)


def _tell(scope: Scope, what: str, epoch: str) -> None:
    """All ranks, that this one has `entered`, is `ready`, or has `left`."""
    flags = scope.state(what)
    scope.arg(Arg("ctx", "context", ""))
    scope.lines.add(f"shmem.signal_all({flags} + rank, {epoch}, shmem.SIGNAL_SET, RANKS, ctx)")


def _credits(scope: Scope) -> None:
    """Wait until every rank has left the call that used this slot last, if this call takes its credits."""
    lines, used = scope.lines, scope.names.fresh("used")
    credits, last = scope.arg(Arg("take_credits", "credits")), scope.state("last")
    lines.say("who has entered a later call has left the one that had these buffers last: they are free")
    with lines.block(f"if {credits} != 0:"):
        lines.add(f"{used} = tl.load({last})")
        _hear_all(scope, "entered", f"{used} + 1", "call_entry")


def _hear_all(scope: Scope, what: str, value: str, path: str) -> None:
    """Wait until every rank has said that it has `entered` call `value`, or `left` it."""
    lines, pe = scope.lines, scope.names.fresh("pe")
    flags = scope.state(what)
    if scope.checks.watchdog:
        with lines.block(f"for {pe} in range(RANKS):"):
            signals.wait_until(scope, (flags, pe), value, what, "", path=path)
    else:
        lines.add(f"{pe} = tl.arange(0, {power_of_two(scope.lowered.topology.ranks)})")
        lines.add(f"shmem.signal_wait_each({flags} + {pe}, shmem.CMP_GE, {value}, {pe} < RANKS)")


def _all_totals(scope: Scope) -> None:
    """Each flag's total, raised by what a call adds to it."""
    lines = scope.lines
    start, flag, inside = (scope.names.fresh(name) for name in ("start", "flag", "inside"))
    for flags in (f for f in scope.lowered.flags if f.style == "count"):
        expected = signals.of_flags(scope, flags, "expected")
        lines.say(f"what the flags of `{flags.name}` will have counted up to after this call")
        if flags.count == F.of(1):
            lines.add(f"tl.store({expected}, tl.load({expected}) + {signals.arrivals(scope, flags, F.of(0))})")
            continue
        total = scope.names.fresh(f"{flags.name}_count")
        lines.add(f"{total} = {scope.text(flags.count)}")
        with lines.block(f"for {start} in range(0, {total}, {LANES}):"):
            lines.add(f"{flag} = {start} + tl.arange(0, {LANES})")
            lines.add(f"{inside} = {flag} < {total}")
            at, mask = f"{expected} + {flag}", f"mask={inside}"
            more = signals.arrivals(scope, flags, Sym(flag))
            lines.add(f"tl.store({at}, tl.load({at}, {mask}, other=0) + {more}, {mask})")


def _single(file: File) -> Scope:
    """A scope of no step: tensors and sizes have their names, and no program is in the way."""
    scope = open_scope(file, file.plan.steps[0])
    scope.names = Names({*scope.naming.taken, *scope.shared.values()})
    return scope


def _told(file: File, name: str, what: str, *, heard: bool = False) -> Function:
    """This rank has staged its arguments (`ready`), or `left` the call; `heard`: and waits until every other has."""
    scope = _single(file)
    _tell(scope, what, signals.call_number(scope))
    if heard:
        _hear_all(scope, what, signals.call_number(scope), name)
    return _function(name, scope)


def _await(file: File) -> Function:
    """One kernel for all waits of streams for other ranks: each passes what it waits for."""
    scope = _single(file)
    flag, value = (scope.arg(Arg(name, "flag", name)) for name in ("flag_at", "value_at"))
    if not file.checks.watchdog:
        scope.lines.add(f"shmem.signal_wait_until({flag}, shmem.CMP_GE, tl.load({value}))")
        return _function(AWAIT_FLAG, scope)
    # What streams wait for has numbers.
    for loop in (loop for e in file.lowered.executors if e.engine.by == "stream" for loop in e.loops):
        for op in (o for o in walk(loop.body) if isinstance(o, Await)):
            own, moved = STATES.get(op.flags), file.plan.step(loop.path).step.moved_from
            site = ("channel", op.flags) if own is None else (own, moved or "")
            file.number(Site(loop.path, *site, op.loc))
    watch, site, at = (scope.arg(Arg(name, kind, name)) for name, kind in AWAITED.items())
    scope.lines.add(f"shmem.signal_wait_within({flag}, shmem.CMP_GE, tl.load({value}), {watch}, {site}, -1, {at})")
    return _function(AWAIT_FLAG, scope)
