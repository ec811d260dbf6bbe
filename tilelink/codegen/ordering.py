"""What waits and notifies of a program become: nothing, where something else implies them, or calls."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.codegen import access, descriptors, notifying, waiting, words
from tilelink.codegen.access import expression
from tilelink.codegen.scope import Place, Scope
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import part
from tilelink.ir.plan import InPlace
from tilelink.ir.program import At, Load, Loop, Notify, OfTile, Op, Wait, walk
from tilelink.ir.wiring import indexed


def silent(scope: Scope, op: Wait | Notify) -> bool:
    """Whether nothing is emitted: something else implies it, each word of the tensor says itself that it has come, or there is
    nothing of the tensor to wait for, whatever position the program names."""
    if scope.declared(op.param).name in scope.plan.low_latency:
        return True
    signal = scope.plan.signal(scope.step.path, op)
    return signal.action == "elided" or (signal.action == "await" and not _has_words(scope, signal.channel))


def _has_words(scope: Scope, name: str | None) -> bool:
    """Whether some rank has words of the channel: a tensor without elements has none."""
    assert name is not None
    axes, ranks = scope.plan.channel(name).axes, range(scope.plan.topology.ranks)
    return any(all(F.evaluate(a.count, scope.plan.env(rank)) for a in axes) for rank in ranks)


def wait(scope: Scope, op: Wait) -> None:
    if silent(scope, op):
        return
    signal = scope.plan.signal(scope.step.path, op)
    tensor = scope.declared(op.param)
    if tensor.name in scope.forwarded:
        found = indexed(scope.step.step, op.param, op.index)
        at = next(e for v, e in found if isinstance(e, At) and v.unit)
        scope.lines.add(f"if {expression(scope, at.expr)} != {scope.rank}:")
        scope.lines.depth += 1
        waiting.await_signal(scope, op, signal, None)
        scope.lines.depth -= 1
        return
    fence = ("shmem.async_load_fence()",) if read_by_tma(scope, op) else ()
    own = next((i for i in scope.step.in_place if i.tensor == tensor.name), None)
    if own is not None:
        _await_others(scope, op, own, fence)
        return
    if signal.action == "await" and scope.step.engine == "workers" and op in _unrolled(scope.step.step.program.body):
        waiting.await_once(scope, op, signal, fence)
        return
    waiting.await_signal(scope, op, signal, None)
    for line in fence:
        scope.lines.add(line)


def wait_each(scope: Scope, op: Wait, each: str) -> bool:
    """Wait for the words of a block of ranks `each` at once; False, and nothing emitted, where they are polled one by one."""
    if silent(scope, op):
        return True
    signal = scope.plan.signal(scope.step.path, op)
    tensor = scope.declared(op.param).name
    if signal.action != "await" or any(i.tensor == tensor for i in scope.step.in_place):
        return False
    inside = f"{each} < {scope.ranks}"
    if tensor in scope.forwarded:
        inside = f"({inside}) & ({each} != {scope.rank})"
    if not waiting.await_each(scope, op, signal, each, inside):
        return False
    if read_by_tma(scope, op):
        scope.lines.add("shmem.async_load_fence()")
    return True


def _unrolled(body: tuple[Op, ...]) -> Iterator[Op]:
    """What runs once for each tile, or as often as a loop is unrolled."""
    for op in body:
        yield op
        if isinstance(op, Loop) and "tl.static_range(" in op.header.text:
            yield from _unrolled(op.body)


def _await_others(scope: Scope, op: Wait, own: InPlace, fence: tuple[str, ...]) -> None:
    """Wait for the tile unless this rank has brought it along, and say where it lies."""
    lines, wiring = scope.lines, scope.plan.wiring
    tensors = [wiring.tensor(name) for name in (own.tensor, own.source)]
    size = tensors[0].axes[own.axis].size
    holder = scope.text(Sym(scope.tiles[own.var].begin) // part(size), F.SUMMAND)
    away = scope.named(f"{own.tensor}_away", f"{holder} != {scope.rank}")
    waiting.await_once(scope, op, scope.plan.signal(scope.step.path, op), fence, only_if=away)
    loads = [o for o in walk(scope.step.step.program.body) if isinstance(o, Load) and o.param == op.param]
    found = [descriptors.could_be_tma(scope, t, op.param, loads, always=True) for t in tensors]
    names = [
        scope.arg(f) if f is not None and all(found) else scope.tensor(t.name)
        for f, t in zip(found, tensors, strict=True)
    ]
    place, first = scope.names.fresh(f"{own.tensor}_place"), scope.names.fresh(f"{own.tensor}_first")
    for test, name, begin in (
        (f"if {away}:", names[0], "0"),
        ("else:", names[1], scope.text(scope.step.rank * part(size))),
    ):
        lines.add(test, op.loc)
        lines.add(f"    {place} = {name}")
        lines.add(f"    {first} = {begin}")
    scope.places[own.tensor] = Place(place, first, own.axis, all(found))


def read_by_tma(scope: Scope, op: Wait) -> bool:
    """Whether the program reads the awaited tensor through a descriptor (generic writes, asynchronous reads)."""
    loads = [o for o in walk(scope.step.step.program.body) if isinstance(o, Load) and o.param == op.param]
    return descriptors.could_be_tma(scope, scope.declared(op.param), op.param, loads) is not None


def notify(scope: Scope, op: Notify) -> None:
    if silent(scope, op):
        return
    signal = scope.plan.signal(scope.step.path, op)
    owner = None
    if signal.to == "owner":
        found = access.holder_of(scope, op.param, op.index)
        owner = words.named(scope, "owner", found if found is not None else waiter(scope, op), op.loc)
    notifying.notify(scope, op, signal, owner)


def waiter(scope: Scope, op: Notify) -> Formula:
    """Of a tensor that others pull: the rank whose part of the destination the tile belongs to."""
    channel = scope.plan.channel_of(scope.step.step.binding(op.param).tensor)
    assert channel is not None
    axis = channel.whose(scope.step.axis)
    assert axis is not None and axis.axis is not None
    entry = words.entry_on(scope, op.param, op.index, axis.axis)
    assert isinstance(entry, OfTile)
    return Sym(scope.tiles[entry.var].begin) // axis.part
