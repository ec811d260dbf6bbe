"""Waits and notifies as calls of the SHMEM vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

from tilelink.codegen import memory, ops
from tilelink.codegen.access import power_of_two
from tilelink.codegen.scope import Place, Scope
from tilelink.codegen.text import Lines, atom
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
    if not scope.checks.watchdog:
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


def of_flags(scope: Scope, flags: Flags, what: str) -> str:
    """The parameter that points to what is kept for each of them: `expected`, what it comes to, `doorbells`, or `counts`."""
    return scope.arg(Arg(f"{flags.name}_{what}", what, flags.name))


def call_number(scope: Scope) -> str:
    """That of this call: each worker counts it for itself, or a kernel before has."""
    return "epoch" if scope.lowered.by_epoch else f"tl.load({scope.state('epoch')})"


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
        return call_number(scope)
    total = f"tl.load({of_flags(scope, flags, 'expected')} + {flat}{mask})"
    if not scope.lowered.entry:
        return total
    if "flag" in F.symbols(flags.arrivals or 1) and not flat.isidentifier():
        flag = scope.names.fresh("c")
        scope.lines.add(f"{flag} = {flat}")
        flat = flag
    return f"{total} + {arrivals(scope, flags, Sym(flat))}"


# ---------------------------------------------------------------------------------------------------------- statements
def wait(scope: Scope, op: Wait) -> None:
    """A wait of a program."""
    if not scope.part.of(op):
        return
    tensor = scope.declared(op.param).name
    own = next((i for i in scope.step.in_place if i.tensor == tensor), None)
    # Whether a worker is to remember what it has waited for.
    kept = awaited(scope, op) not in STATES and scope.step.into is None and op in _unrolled(scope.body)
    once = kept and own is None and tensor not in scope.forwarded
    with scope.keeping_names():
        if once and _await_members(scope, op):
            return
        body = ops.body_of(scope, op)
        if own is not None:
            _await_others(scope, op, body, own)
        elif once:
            await_once(scope, op, body)
        else:
            await_all(scope, op, body)
            fence(scope, op)


def awaited(scope: Scope, op: Wait) -> str:
    """The name of the flags that a wait is for."""
    return next(o.flags for o in walk(scope.part.of(op)) if isinstance(o, Await))


def _unrolled(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """What runs once for each tile, or as often as a loop is unrolled."""
    for op in body:
        yield op
        if isinstance(op, Loop) and op.unrolled:
            yield from _unrolled(op.body)


def await_all(scope: Scope, op: Wait, body: tuple[Op, ...], known: tuple[str, str] | None = None) -> None:
    """Wait for every flag that the index intersects. `known`: names of the first and the last of those that need no look."""
    if (loop := of_ranks(scope, body)) is not None:
        every = scope.names.fresh("every")
        scope.lines.add(f"{every} = tl.arange(0, {power_of_two(scope.lowered.topology.size(scope.step.axis))})", op.loc)
        _await_ranks(scope, loop, every)
        return

    def leaf(o: Op) -> None:
        assert isinstance(o, Await)
        flag, new = scope.text(o.index), nullcontext()
        if known is not None:
            new = scope.lines.block(f"if ({flag} < {known[0]}) | ({flag} > {known[1]}):")
        with new:
            await_one(scope, o, scope.declared(op.param).name)

    ops.each(scope, body, leaf)


def await_one(scope: Scope, op: Await, tensor: str) -> None:
    """Wait for one flag, which stands for a tile of `tensor`."""
    flags = scope.lowered.flag(op.flags)
    own = flags.name in STATES
    flag = scope.text(op.index, F.SUMMAND) if own else ops.name(scope, "c", op.index, op.loc)
    _wait_for(scope, flags, flag, op.loc, tensor)


def _wait_for(scope: Scope, flags: Flags, flag: str, loc: Loc | None, tensor: str = "") -> None:
    kind, of = (STATES[flags.name], tensor) if flags.name in STATES else ("channel", flags.name)
    start, value = pointer(scope, flags), _value(scope, flags, flag)
    wait_until(scope, (start, flag), value, kind, of, loc, remote=flags.scope == "sys")


def of_ranks(scope: Scope, body: tuple[Op, ...]) -> For | None:
    """The loop over one flag of each rank, which one wait can look at together. With a time limit each has its own, since a
    report names the flag."""
    (loop,) = body
    if not isinstance(loop, For) or loop.count != scope.step.ranks or scope.checks.watchdog:
        return None
    (op,) = loop.body[0].body if isinstance(loop.body[0], If) else loop.body
    return loop if isinstance(op, Await) and scope.lowered.flag(op.flags).scope == "sys" else None


def _await_ranks(scope: Scope, loop: For, lanes: str) -> None:
    """Wait at once for the flags of all ranks, which a block by the name of `lanes` has."""
    (op,), inside = loop.body, f"{lanes} < {scope.ranks}"
    scope.known[Sym(loop.var)] = Sym(lanes)
    if isinstance(op, If):
        assert op.test is not None
        inside, (op,) = f"({inside}) & ({scope.text(op.test)})", op.body
    assert isinstance(op, Await)
    flags, flag = scope.lowered.flag(op.flags), ops.name(scope, "c_each", op.index, op.loc)
    start, value = pointer(scope, flags), _value(scope, flags, flag, f", mask={inside}, other=0")
    scope.lines.add(f"shmem.signal_wait_each({start} + {flag}, shmem.CMP_GE, {value}, {inside})", op.loc)


def await_each(scope: Scope, op: Wait, lanes: str) -> bool:
    """Wait at once for what a loop over all ranks waits for, `lanes` by the name of its variable; False, and no line, where
    that is done turn by turn."""
    if not scope.part.of(op):
        return True
    loop = of_ranks(scope, (For(lanes, scope.step.ranks, scope.part.of(op)),))
    own = any(i.tensor == scope.declared(op.param).name for i in scope.step.in_place)
    if loop is None or own or awaited(scope, op) in STATES:
        return False
    if any(isinstance(o, Await) and lanes not in F.symbols(scope.here(o.index)) for o in walk(loop.body)):
        return False
    with scope.keeping_names():
        _await_ranks(scope, loop, lanes)
    fence(scope, op)
    return True


# ------------------------------------------------------------------------------------------------ waits that are remembered
def await_once(scope: Scope, op: Wait, body: tuple[Op, ...], only_if: str | None = None) -> None:
    """`await_all`, left out where this worker's last wait here was for the same flags.

    `only_if`: a condition, by name, under which there is something to wait for at all.

    A worker's tiles mostly share a flag with the one before, and a look at one costs a trip to L2. Without a loop of
    its own this wait also lets Triton fuse the loop over tiles with the loop inside a tile.
    """
    lines, flags, known = scope.lines, awaited(scope, op), None
    tests, kept = [] if only_if is None else [only_if], list[str]()
    loop, run = of_ranks(scope, body), ops.run_of(body[0])
    if isinstance(body[0], Await) or loop is not None:
        # The first of them tells which they are.
        index = next(o.index for o in walk(body) if isinstance(o, Await))
        flag = ops.name(scope, "c", index if loop is None else F.substitute(index, {loop.var: 0}), op.loc)
        waited = scope.carried(f"{flags}_waited", "-1")
        tests.append(f"{flag} != {waited}")
        kept.append(f"{waited} = {flag}")
    elif run is not None:
        first, last = (ops.name(scope, n, f, op.loc) for n, f in zip(("first", "last"), run, strict=True))
        low, high = remembered(scope, flags)
        tests.append(f"({first} < {low}) | ({last} > {high})")
        kept += [f"{low} = {first}", f"{high} = {last}"]
        if any(isinstance(e, Gather) for e in op.index or ()):
            # A vector's flags are anywhere, and those of the next tile elsewhere: all that touch one another are remembered.
            known, kept = (low, high), joined(scope, first, last, low, high)
    test = " & ".join(tests if len(tests) == 1 else map(atom, tests))
    with lines.block(f"if {test}:", op.loc) if test else nullcontext():
        await_all(scope, op, body, known)
        fence(scope, op)
    # Outside the branch: what a branch makes and a later tile reads keeps Triton from pipelining a flattened loop.
    for line in kept:
        lines.add(line)


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


def _await_members(scope: Scope, op: Wait) -> bool:
    """Wait for the flags that a vector's positions have, those left out that this worker has waited for before; False, and
    nothing emitted: no vector alone says which, or there are more than have a bit each."""
    entry = next((e for e in op.index or () if isinstance(e, Gather)), None)
    test, body = ops.elements(scope, op)
    if entry is None or test is None:
        return False
    lines, flags, run = scope.lines, scope.lowered.flag(awaited(scope, op)), ops.run_of(body[0])
    most = max(scope.on_ranks(flags.count))
    if run is None or most > BITS or f".{entry.expr.text}.low" not in F.symbols(run[0]):
        return False
    vector = ops.name(scope, "index", entry.expr.named, scope.loc)
    inside, count = scope.text(test), power_of_two(most)
    wanted, missing, flag = (scope.names.fresh(n) for n in ("wanted", "missing", "c"))
    seen = scope.carried(f"{flags.name}_seen", "0")
    number = scope.text(F.substitute(run[0], {f".{entry.expr.text}.low": Sym(vector)}))
    lines.add(f"{wanted} = blocks.members(tl.where({inside}, {number}, -1), {count})", op.loc)
    lines.add(f"{missing} = {wanted} & ~{seen}")
    with lines.block(f"if {missing} != 0:"):
        with lines.block(f"for {flag} in range(0, {count}):"), lines.block(f"if ({missing} >> {flag}) & 1 != 0:"):
            _wait_for(scope, flags, flag, op.loc)
        fence(scope, op)
    # Outside the branch, as in `await_once`.
    lines.add(f"{seen} = {seen} | {wanted}")
    return True


# ------------------------------------------------------------------------------------------------------ own part in place
def _await_others(scope: Scope, op: Wait, body: tuple[Op, ...], own: InPlace) -> None:
    """Wait for the tile unless this rank has brought it along, and say where it lies."""
    lines, wiring, test = scope.lines, scope.plan.wiring, body[0]
    assert isinstance(test, If) and test.test is not None
    away = scope.named(f"{own.tensor}_away", scope.text(test.test))
    await_once(scope, op, test.body, only_if=away)
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


def fence(scope: Scope, op: Wait) -> None:
    """Behind a wait: the program may read the awaited tensor through a descriptor (generic writes, asynchronous reads)."""
    if memory.could_be_tma(scope, scope.declared(op.param), op.param) is not None:
        scope.lines.add("shmem.async_load_fence()")


# ---------------------------------------------------------------------------------------------------------------- notifies
def notify(scope: Scope, op: Notify) -> None:
    """Signal the flag of a completed tile at everyone who waits for it."""
    if not scope.part.of(op):
        return
    with scope.keeping_names():
        body = ops.body_of(scope, op)
        first = next(o for o in walk(body) if isinstance(o, Signal))
        if first.rank is not None:
            ops.name(scope, "owner", first.rank, op.loc)
        if not any(isinstance(o, For) for o in walk(body)):
            ops.name(scope, "c", first.index, op.loc)
        ops.each(scope, body, lambda o: signal(scope, o))


def signal(scope: Scope, op: Op) -> None:
    """Raise one flag."""
    if not isinstance(op, Signal) or scope.lowered.flag(op.flags).style == "data":
        return
    flags, lines = scope.lowered.flag(op.flags), scope.lines
    flat = ops.name(scope, "c", op.index, op.loc)
    flag, here = f"{pointer(scope, flags)} + {flat}", flags.scope == "gpu" and op.rank == scope.step.rank
    rings, expected = flags.rings if here and op.amount is not None else None, ""
    if rings is not None:
        expected = scope.names.fresh(f"{flags.name}_expected")
        # What is stored may still be on its way while the flag's total is fetched.
        lines.add(f"{expected} = tl.load({of_flags(scope, flags, 'expected')} + {flat})", op.loc)
    if scope.stored_async:
        lines.add("shmem.async_store_quiet()")
    if flags.style == "doorbell":
        lines.add(f"shmem.count({of_flags(scope, flags, 'doorbells')} + {flat})", op.loc)
    elif rings is not None:
        # Whoever completes the flag rings, once.
        last = f"shmem.local_add({flag}, 1) + 1 == {expected}"
        rings = F.substitute(rings, {"flag": Sym(flat)})
        with lines.block(f"if {last}:" if rings == F.of(1) else f"if ({last}) & ({scope.text(rings)}):", op.loc):
            lines.add(f"shmem.ring_doorbell({of_flags(scope, flags, 'doorbells')} + {flat})")
    elif here and op.amount is None:
        # The last tile of a run-time split adds for all of them.
        counts, often = of_flags(scope, flags, "counts"), _often(flags, Sym(flat))
        tiles = scope.text(_split_tiles(scope) * often)
        with lines.block(f"if shmem.is_last({counts} + {flat}, {tiles}):", op.loc):
            lines.add(f"shmem.local_add({flag}, {scope.text(often)})")
    elif here:
        lines.add(f"shmem.local_add({flag}, 1)", op.loc)
    else:
        how = "1, shmem.SIGNAL_ADD" if flags.style == "count" else "epoch, shmem.SIGNAL_SET"
        context = scope.context(flags.name)
        if op.rank is None:
            _tell_all(lines, flag, f"{how}, {scope.ranks}, {context}", op.loc, flat)
        else:
            lines.add(f"shmem.signal_op({flag}, {how}, {scope.text(op.rank)}, {context})", op.loc)


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


def _split_tiles(scope: Scope) -> Formula:
    """How many tiles a step's run-time split makes, over all segments."""
    data = scope.lowered.loop(scope.step.path).by_data
    assert data is not None
    return Sym(f"{data.table}_tiles")


def notify_for_none(scope: Scope) -> None:
    """A run-time split that makes no tile at all has no last one: the first worker notifies."""
    signals = (o for _, body in scope.part.said for o in walk(body) if isinstance(o, Signal) and o.amount is None)
    for op in signals:
        flags, flag = scope.lowered.flag(op.flags), scope.names.fresh("c")
        with (
            scope.lines.block(f"if (worker == 0) & ({scope.text(_split_tiles(scope))} == 0):", op.loc),
            scope.lines.block(f"for {flag} in range({scope.text(flags.count)}):"),
        ):
            often = scope.text(_often(flags, Sym(flag)))
            scope.lines.add(f"shmem.local_add({pointer(scope, flags)} + {flag}, {often})")
