"""Waits and notifies as calls of the SHMEM vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from tilelink.codegen import memory, ops
from tilelink.codegen.access import power_of_two
from tilelink.codegen.scope import Place, Scope
from tilelink.codegen.text import Lines
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import STATES, Await, Flags, For, If, Op, Signal, walk
from tilelink.ir.partition import part
from tilelink.ir.plan import InPlace
from tilelink.ir.program import Gather, Loop, Notify, Wait
from tilelink.ir.program import Op as Statement

BITS = 32
"""Flags that a worker can remember one by one."""


def wait_until(
    scope: Scope, flag: tuple[str, str], value: str, kind: str, of: str, loc: Loc | None = None, *, remote: bool = True,
    path: str | None = None,
) -> None:  # fmt: skip
    """Wait until a flag, by pointer and index, is at least `value`; with a time limit where the plan is emitted so.

    `kind`, `of`: as in `Site`; `remote`: peers write it. `path`: of the one-block kernel that waits; None: the step that is
    emitted, at tile `t`.
    """
    name = "signal_wait" if remote else "local_wait"
    what = f"{flag[0]} + {flag[1]}, shmem.CMP_GE, {value}"
    if not scope.reports.checks.watchdog:
        scope.lines.add(f"shmem.{name}_until({what})", loc)
        return
    report = scope.report(kind, of, loc, path)
    scope.lines.add(f"shmem.{name}_within({what}, {report}, {'t' if path is None else '-1'}, {flag[1]})", loc)


# --------------------------------------------------------------------------------------------------------------- flags
def pointer(scope: Scope, flags: Flags) -> str:
    """The parameter that points to them: counts of notifies, or numbers of calls."""
    if flags.name in STATES:
        return scope.state(STATES[flags.name])
    return scope.arg(Arg(f"{flags.name}_flags", "epoch_flags" if scope.lowered.by_epoch else "flags", flags.name))


def expected_at(scope: Scope, flags: Flags) -> str:
    """The parameter that points to what they come to."""
    return scope.arg(Arg(f"{flags.name}_expected", "expected", flags.name))


def _doorbells(scope: Scope, flags: Flags) -> str:
    return scope.arg(Arg(f"{flags.name}_doorbells", "doorbells", flags.name))


def _often(flags: Flags, flag: Formula) -> Formula:
    """How often a flag is raised in a call."""
    return F.substitute(flags.arrivals or 1, {"flag": flag})


def arrivals(scope: Scope, flags: Flags, flag: Formula) -> str:
    """The same as an operand of a sum."""
    found = _often(flags, flag)
    if isinstance(found, F.Binary) and found.op == "*" and F.is_truth(found.left):
        return f"tl.where({scope.text(found.left)}, {scope.text(found.right)}, 0)"
    return f"tl.where({scope.text(found)}, 1, 0)" if F.is_truth(found) else scope.text(found, F.SUMMAND)


def _value(scope: Scope, flags: Flags, flat: str, mask: str = "") -> str:
    """What a flag comes to in this call. Where the call's own kernels begin it, they raise the totals behind the waits."""
    if flags.style == "epoch":
        return "epoch" if scope.lowered.by_epoch else f"tl.load({scope.state('epoch')})"
    total = f"tl.load({expected_at(scope, flags)} + {flat}{mask})"
    if not scope.lowered.entry:
        return total
    if "flag" in F.symbols(flags.arrivals or 1) and not flat.isidentifier():
        flag = scope.names.fresh("c")
        scope.lines.add(f"{flag} = {flat}")
        flat = flag
    return f"{total} + {arrivals(scope, flags, Sym(flat))}"


# ---------------------------------------------------------------------------------------------------------- statements
@dataclass(frozen=True, slots=True)
class Span:
    """The flags that a statement waits for: one, or those of loops around it."""

    flags: Flags
    index: Formula
    loops: tuple[For, ...]

    @staticmethod
    def of(scope: Scope, body: tuple[Op, ...]) -> Span:
        (op,), loops = body, list[For]()
        while isinstance(op, For):
            loops.append(op)
            (op,) = op.body
        assert isinstance(op, Await)
        return Span(scope.lowered.flag(op.flags), op.index, tuple(loops))

    @property
    def run(self) -> tuple[Formula, Formula] | None:
        """The first and the last of flags that follow one another."""
        if not self.loops:
            return self.index, self.index
        return ops.run_of(self.loops[0])

    def of_ranks(self, scope: Scope) -> For | None:
        """The loop over one flag of each rank, which one wait can look at together. With a time limit each has its own, since a
        report names the flag."""
        if len(self.loops) != 1 or scope.reports.checks.watchdog or self.flags.scope != "sys":
            return None
        return self.loops[0] if self.loops[0].count == scope.step.ranks else None


def wait(scope: Scope, op: Wait) -> None:
    """A wait of a program."""
    if not ops.printed(scope, op):
        return
    tensor = scope.declared(op.param).name
    fence = ("shmem.async_load_fence()",) if read_by_tma(scope, op) else ()
    own = next((i for i in scope.step.in_place if i.tensor == tensor), None)
    # Whether a worker is to remember what it has waited for.
    kept = awaited(scope, op) not in STATES and scope.step.into is None and op in _unrolled(scope.body)
    once = kept and own is None and tensor not in scope.forwarded
    with scope.keeping_names():
        if once and _await_members(scope, op, fence):
            return
        body = ops.body_of(scope, op)
        if own is not None:
            _await_others(scope, op, body, own, fence)
        elif once:
            await_once(scope, op, body, fence)
        else:
            await_all(scope, op, body)
            for line in fence:
                scope.lines.add(line)


def awaited(scope: Scope, op: Wait) -> str:
    """The name of the flags that a wait is for."""
    return next(o.flags for o in walk(scope.part.of(op)) if isinstance(o, Await))


def _unrolled(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """What runs once for each tile, or as often as a loop is unrolled."""
    for op in body:
        yield op
        if isinstance(op, Loop) and op.unrolled:
            yield from _unrolled(op.body)


def await_all(scope: Scope, op: Wait, body: tuple[Op, ...]) -> None:
    """Wait for every flag that the index intersects."""
    span = None if isinstance(body[0], If) else Span.of(scope, body)
    loop = None if span is None else span.of_ranks(scope)
    if span is not None and loop is not None:
        _wait_for_all(scope, span, loop, op.loc)
    else:
        tensor = scope.declared(op.param).name
        ops.each(scope, body, lambda o: await_one(scope, o, tensor))


def await_one(scope: Scope, op: Op, tensor: str) -> None:
    """Wait for one flag, which stands for a tile of `tensor`."""
    assert isinstance(op, Await)
    flags = scope.lowered.flag(op.flags)
    wish = scope.text(op.index, F.SUMMAND)
    if flags.name not in STATES and not (wish.isidentifier() or wish.isdigit()):
        wish = ops.name(scope, "c", op.index, op.loc)
    _wait_for(scope, flags, wish, op.loc, tensor)


def _wait_for(scope: Scope, flags: Flags, flag: str, loc: Loc | None, tensor: str = "") -> None:
    kind, of = (STATES[flags.name], tensor) if flags.name in STATES else ("channel", flags.name)
    start, value = pointer(scope, flags), _value(scope, flags, flag)
    wait_until(scope, (start, flag), value, kind, of, loc, remote=flags.scope == "sys")


def _wait_for_all(scope: Scope, span: Span, loop: For, loc: Loc | None) -> None:
    """Wait for the flags of all ranks."""
    every, flag = scope.names.fresh("every"), scope.names.fresh("c_each")
    scope.lines.add(f"{every} = tl.arange(0, {power_of_two(scope.lowered.topology.size(scope.step.axis))})", loc)
    scope.lines.add(f"{flag} = {scope.text(F.substitute(span.index, {loop.var: Sym(every)}))}")
    await_block(scope, span.flags, flag, f"{every} < {scope.text(loop.count)}", loc)


def await_block(scope: Scope, flags: Flags, flag: str, inside: str, loc: Loc | None) -> None:
    """Wait for a block of flags, by name, as far as `inside` says."""
    start = pointer(scope, flags)
    value = _value(scope, flags, flag, f", mask={inside}, other=0")
    scope.lines.add(f"shmem.signal_wait_each({start} + {flag}, shmem.CMP_GE, {value}, {inside})", loc)


def await_each(scope: Scope, op: Wait, lanes: str) -> bool:
    """Wait at once for the flags of a block of ranks, `lanes` by name; False, and no line, where they are polled one by one."""
    if not ops.printed(scope, op):
        return True
    if any(isinstance(e, Gather) for e in op.index or ()) or scope.reports.checks.watchdog:
        return False
    if any(i.tensor == scope.declared(op.param).name for i in scope.step.in_place):
        return False
    body, inside = scope.part.of(op), f"{lanes} < {scope.ranks}"
    if isinstance(body[0], If):
        inside, body = f"({inside}) & ({scope.text(body[0].test or 1)})", body[0].body
    span = Span.of(scope, body)
    if span.loops or span.flags.scope != "sys" or span.flags.name in STATES:
        return False
    if lanes not in F.symbols(scope.here(span.index)):
        return False
    with scope.keeping_names():
        await_block(scope, span.flags, ops.name(scope, "c_each", span.index, op.loc), inside, op.loc)
    if read_by_tma(scope, op):
        scope.lines.add("shmem.async_load_fence()")
    return True


# ------------------------------------------------------------------------------------------------ waits that are remembered
def await_once(scope: Scope, op: Wait, body: tuple[Op, ...], then: tuple[str, ...], only_if: str | None = None) -> None:
    """`await_all` and the lines `then`, left out where this worker's last wait here was for the same flags.

    `only_if`: a condition, by name, under which there is something to wait for at all.

    A worker's tiles mostly share a flag with the one before, and a look at one costs a trip to L2. Without a loop of
    its own this wait also lets Triton fuse the loop over tiles with the loop inside a tile.
    """
    span, lines = Span.of(scope, body), scope.lines
    new, kept, wait = _not_awaited(scope, op, span, body)
    test = new if only_if is None else only_if if new is None else f"{only_if} & ({new})"
    with nullcontext() if test is None else lines.block(f"if {test}:", op.loc):
        wait()
        for line in then:
            lines.add(line)
    # Outside the branch: what a branch makes and a later tile reads keeps Triton from pipelining a flattened loop.
    for line in kept:
        lines.add(line)


def _not_awaited(
    scope: Scope, op: Wait, span: Span, body: tuple[Op, ...]
) -> tuple[str | None, list[str], Callable[[], None]]:
    """The test of flags that this worker has not awaited here last (None: it remembers none), the lines by which it remembers
    them, and what adds the wait itself."""
    flags, run, loop = span.flags, span.run, span.of_ranks(scope)
    if run is None and loop is None:
        return None, [], lambda: await_all(scope, op, body)
    if run is None or loop is not None or not span.loops:
        first = span.index if loop is None else F.substitute(span.index, {loop.var: 0})
        flag = ops.name(scope, "c", first, op.loc)
        waited = scope.carried(f"{flags.name}_waited", "-1")
        test, kept = f"{flag} != {waited}", [f"{waited} = {flag}"]
        if loop is not None:
            return test, kept, lambda: _wait_for_all(scope, span, loop, op.loc)
        return test, kept, lambda: _wait_for(scope, flags, flag, op.loc)
    first, last = (ops.name(scope, n, f, op.loc) for n, f in zip(("first", "last"), run, strict=True))
    low, high = remembered(scope, flags.name)
    # The flags of a vector are anywhere, and those of the next tile elsewhere: all that touch one another are remembered.
    anywhere = any(isinstance(e, Gather) for e in op.index or ())
    kept = joined(scope, first, last, low, high) if anywhere else [f"{low} = {first}", f"{high} = {last}"]

    def each() -> None:
        flag = scope.names.fresh("c")
        with scope.lines.block(f"for {flag} in range({first}, {last} + 1):"):
            known = scope.lines.block(f"if ({flag} < {low}) | ({flag} > {high}):") if anywhere else nullcontext()
            with known:
                _wait_for(scope, flags, flag, op.loc)

    return f"({first} < {low}) | ({last} > {high})", kept, each


def remembered(scope: Scope, tensor: str) -> tuple[str, str]:
    """Names for the first and the last flag of a run that a worker has awaited; none before its first tile."""
    return scope.carried(f"{tensor}_low", "1"), scope.carried(f"{tensor}_high", "0")


def joined(scope: Scope, first: str, last: str, low: str, high: str) -> list[str]:
    """Lines that add the flags from `first` to `last` to those remembered; of two runs apart the newer is kept."""
    apart = scope.names.fresh("apart")
    return [
        f"{apart} = ({first} > {high} + 1) | ({last} < {low} - 1)",
        f"{low} = tl.where({apart}, {first}, tl.minimum({low}, {first}))",
        f"{high} = tl.where({apart}, {last}, tl.maximum({high}, {last}))",
    ]


def _await_members(scope: Scope, op: Wait, then: tuple[str, ...]) -> bool:
    """Wait for the flags that a vector's positions have, those left out that this worker has waited for before; False, and
    nothing emitted: no vector alone says which, or there are more than have a bit each."""
    entry = next((e for e in op.index or () if isinstance(e, Gather)), None)
    test, body = ops.elements(scope, op)
    if entry is None or test is None:
        return False
    span, lines = Span.of(scope, body), scope.lines
    run, most = span.run, max(scope.on_ranks(span.flags.count))
    if run is None or most > BITS or f".{entry.expr.text}.low" not in F.symbols(run[0]):
        return False
    vector = ops.name(scope, "index", entry.expr.named, scope.loc)
    inside, count = scope.text(test), power_of_two(most)
    wanted, missing, flag = (scope.names.fresh(n) for n in ("wanted", "missing", "c"))
    seen = scope.carried(f"{span.flags.name}_seen", "0")
    number = scope.text(F.substitute(run[0], {f".{entry.expr.text}.low": Sym(vector)}))
    lines.add(f"{wanted} = blocks.members(tl.where({inside}, {number}, -1), {count})", op.loc)
    lines.add(f"{missing} = {wanted} & ~{seen}")
    with lines.block(f"if {missing} != 0:"):
        with lines.block(f"for {flag} in range(0, {count}):"), lines.block(f"if ({missing} >> {flag}) & 1 != 0:"):
            _wait_for(scope, span.flags, flag, op.loc)
        for line in then:
            lines.add(line)
    # Outside the branch, as in `await_once`.
    lines.add(f"{seen} = {seen} | {wanted}")
    return True


# ------------------------------------------------------------------------------------------------------ own part in place
def _await_others(scope: Scope, op: Wait, body: tuple[Op, ...], own: InPlace, fence: tuple[str, ...]) -> None:
    """Wait for the tile unless this rank has brought it along, and say where it lies."""
    lines, wiring, test = scope.lines, scope.plan.wiring, body[0]
    assert isinstance(test, If) and test.test is not None
    away = scope.named(f"{own.tensor}_away", scope.text(test.test))
    await_once(scope, op, test.body, fence, only_if=away)
    tensors = [wiring.tensor(name) for name in (own.tensor, own.source)]
    found = [memory.could_be_tma(scope, t, op.param, always=True) for t in tensors]
    names = [
        scope.arg(f) if f is not None and all(found) else scope.tensor(t.name)
        for f, t in zip(found, tensors, strict=True)
    ]
    place, first = scope.names.fresh(f"{own.tensor}_place"), scope.names.fresh(f"{own.tensor}_first")
    for test_of, name, begin in (
        (f"if {away}:", names[0], "0"),
        ("else:", names[1], scope.text(scope.step.rank * part(tensors[0].axes[0].size))),
    ):
        with lines.block(test_of, op.loc):
            lines.add(f"{place} = {name}")
            lines.add(f"{first} = {begin}")
    scope.places[own.tensor] = Place(place, first, all(found))


def read_by_tma(scope: Scope, op: Wait) -> bool:
    """Whether the program reads the awaited tensor through a descriptor (generic writes, asynchronous reads)."""
    return memory.could_be_tma(scope, scope.declared(op.param), op.param) is not None


# ---------------------------------------------------------------------------------------------------------------- notifies
def notify(scope: Scope, op: Notify) -> None:
    """Signal the flag of a completed tile at everyone who waits for it."""
    if not ops.printed(scope, op):
        return
    with scope.keeping_names():
        body = ops.body_of(scope, op)
        first = next(o for o in walk(body) if isinstance(o, Signal))
        if first.rank is not None:
            ops.name(scope, "owner", first.rank, op.loc)
        # What is stored for one flag may still be on its way while the flag's total is fetched.
        if scope.stored_async and not _late(scope, first) and scope.lowered.flag(first.flags).style != "doorbell":
            scope.lines.add("shmem.async_store_quiet()")
        if not any(isinstance(o, For) for o in walk(body)):
            ops.name(scope, "c", first.index, op.loc)
        ops.each(scope, body, lambda o: signal(scope, o))


def _late(scope: Scope, op: Signal) -> bool:
    """Whether descriptor stores are waited for between the fetch of a flag's total and its raise."""
    flags = scope.lowered.flag(op.flags)
    return scope.stored_async and flags.rings is not None and op.rank == scope.step.rank


def signal(scope: Scope, op: Op) -> None:
    """Raise one flag."""
    if not isinstance(op, Signal) or scope.lowered.flag(op.flags).style == "data":
        return
    flags, lines = scope.lowered.flag(op.flags), scope.lines
    flat = ops.name(scope, "c", op.index, op.loc)
    if flags.style == "doorbell":
        if scope.stored_async:
            lines.add("shmem.async_store_quiet()")
        lines.add(f"shmem.count({_doorbells(scope, flags)} + {flat})", op.loc)
        return
    flag = f"{pointer(scope, flags)} + {flat}"
    if flags.scope == "gpu" and op.rank == scope.step.rank:
        if op.amount is None:
            # The last tile of a run-time split adds for all of them.
            counts, often = scope.arg(Arg(f"{flags.name}_counts", "counts", flags.name)), _often(flags, Sym(flat))
            tiles = scope.text(Sym(f"{flags.table}_tiles") * often)
            with lines.block(f"if shmem.is_last({counts} + {flat}, {tiles}):", op.loc):
                lines.add(f"shmem.local_add({flag}, {scope.text(often)})")
        elif flags.rings is not None:
            _add_and_ring(scope, op, flags, flat, flag)
        else:
            lines.add(f"shmem.local_add({flag}, 1)", op.loc)
        return
    how = "1, shmem.SIGNAL_ADD" if flags.style == "count" else "epoch, shmem.SIGNAL_SET"
    context = scope.context(flags.name)
    if op.rank is None:
        _tell_all(lines, flag, f"{how}, {scope.ranks}, {context}", op.loc, flat)
    else:
        lines.add(f"shmem.signal_op({flag}, {how}, {scope.text(op.rank)}, {context})", op.loc)


def _add_and_ring(scope: Scope, op: Signal, flags: Flags, flat: str, flag: str) -> None:
    """Whoever completes a flag rings its doorbell, once."""
    lines, total = scope.lines, expected_at(scope, flags)
    expected = scope.names.fresh(f"{flags.name}_expected")
    lines.add(f"{expected} = tl.load({total} + {flat})", op.loc)
    if _late(scope, op):
        lines.add("shmem.async_store_quiet()")
    last = f"shmem.local_add({flag}, 1) + 1 == {expected}"
    rings = F.substitute(flags.rings or 1, {"flag": Sym(flat)})
    if rings != F.of(1):
        last = f"({last}) & ({scope.text(rings)})"
    with lines.block(f"if {last}:", op.loc):
        lines.add(f"shmem.ring_doorbell({_doorbells(scope, flags)} + {flat})")


def _tell_all(lines: Lines, flag: str, how: str, loc: Loc | None, flat: str) -> None:
    """Signal a flag at everyone; with the line before, where that raises another one so: a release takes a round trip. The line
    that names the flag's number `flat` may stand between."""
    named = lines.rows[-1:] if lines.rows and lines.rows[-1][1].startswith(f"{flat} = ") else []
    at = len(lines.rows) - len(named) - 1
    depth, before, line = lines.rows[at] if at >= 0 else (-1, "", None)
    if depth == lines.depth and before.startswith("shmem.signal_all(") and before.endswith(f", {how})"):
        lines.rows[at:] = [*named, (depth, f"{before[:-1]}, {flag})", line)]
        return
    lines.add(f"shmem.signal_all({flag}, {how})", loc)


def notify_for_none(scope: Scope) -> None:
    """A run-time split that makes no tile at all has no last one: the first worker notifies."""
    signals = (o for _, body in scope.part.said for o in walk(body) if isinstance(o, Signal) and o.amount is None)
    for op in signals:
        flags, flag = scope.lowered.flag(op.flags), scope.names.fresh("c")
        with (
            scope.lines.block(f"if (worker == 0) & ({scope.text(Sym(f'{flags.table}_tiles'))} == 0):", op.loc),
            scope.lines.block(f"for {flag} in range({scope.text(flags.count)}):"),
        ):
            often = scope.text(_often(flags, Sym(flag)))
            scope.lines.add(f"shmem.local_add({pointer(scope, flags)} + {flag}, {often})")
