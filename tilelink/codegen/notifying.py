"""Notifies as calls of the SHMEM vocabulary."""

from __future__ import annotations

from collections.abc import Callable

from tilelink.codegen import words
from tilelink.codegen.access import expression
from tilelink.codegen.scope import Scope
from tilelink.codegen.text import Lines
from tilelink.errors import Loc
from tilelink.ir.channel import Channel
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.plan import Signal
from tilelink.ir.program import Notify


def notify(scope: Scope, op: Notify, signal: Signal, owner: str | None) -> None:
    """Raise the word of a completed tile at everyone who waits for it."""
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    if channel.counted:
        _count(scope, op, channel)
        return
    # What is stored for one word may still be on its way while the word's total is fetched.
    late = scope.stored_async and channel.bells and signal.to == "self"
    if scope.stored_async and not late:
        scope.lines.add("shmem.async_store_quiet()")
    spans = [words.span(scope, a, op, None) for a in channel.axes]
    pointer = words.pointer(scope, channel)
    raise_ = _raiser(scope, channel, pointer, op, signal, owner, late=late)
    words.each_word(scope, channel, spans, op.loc, raise_)


def _count(scope: Scope, op: Notify, channel: Channel) -> None:
    """Ring the bells of a tile, of which a stream counts the strokes; what stays has none."""
    lines = scope.lines
    spans = [words.span(scope, a, op, None) for a in channel.axes]
    bells = scope.arg(Arg(f"{channel.tensor}_bells", "bells", channel.name))

    def ring(flat: str) -> None:
        depth = lines.depth
        if channel.rings is not None:
            lines.add(f"if {scope.text(words.of_word(channel, channel.rings, Sym(flat)))}:", op.loc)
            lines.depth += 1
        if scope.stored_async:
            lines.add("shmem.async_store_quiet()")
        lines.add(f"shmem.count({bells} + {flat})", op.loc)
        lines.depth = depth

    words.each_word(scope, channel, spans, op.loc, ring)


def _raiser(
    scope: Scope,
    channel: Channel,
    pointer: str,
    op: Notify,
    signal: Signal,
    owner: str | None,
    *,
    late: bool,
) -> Callable[[str], None]:
    """Emits what raises one word, given its number; `late`: descriptor stores have yet to be waited for."""
    loc: Loc = op.loc
    if signal.to == "self" and channel.scope == "gpu":
        if channel.joined is not None:
            return lambda flat: _add_last(scope, channel, pointer, flat, loc)
        if channel.bells:
            return lambda flat: _add_and_ring(scope, channel, pointer, flat, loc, late=late)
        return lambda flat: scope.lines.add(f"shmem.local_add({pointer} + {flat}, 1)", loc)
    target = owner if owner is not None else scope.rank
    if signal.to == "peer":
        assert op.peer is not None
        target = expression(scope, op.peer.expr)
    elif signal.to == "self":
        target = scope.rank

    def remote(flat: str) -> None:
        ctx = scope.context(channel.tensor)
        how = "epoch, shmem.SIGNAL_SET" if scope.plan.brief else "1, shmem.SIGNAL_ADD"
        if signal.to == "all":
            _tell_all(scope.lines, f"{pointer} + {flat}", f"{how}, {scope.ranks}, {ctx}", loc)
            return
        scope.lines.add(f"shmem.signal_op({pointer} + {flat}, {how}, {target}, {ctx})", loc)

    return remote


def _add_last(scope: Scope, channel: Channel, pointer: str, flat: str, loc: Loc) -> None:
    """The last tile of a run-time split adds for all of them."""
    counts = scope.arg(Arg(f"{channel.tensor}_counts", "counts", channel.name))
    often = words.of_word(channel, channel.target, Sym(flat))
    tiles = scope.text(Sym(f"{channel.joined}_tiles") * often)
    scope.lines.add(f"if shmem.is_last({counts} + {flat}, {tiles}):", loc)
    scope.lines.add(f"    shmem.local_add({pointer} + {flat}, {scope.text(often)})")


def _add_and_ring(scope: Scope, channel: Channel, pointer: str, flat: str, loc: Loc, *, late: bool) -> None:
    """Whoever completes a word rings its bell, once."""
    lines = scope.lines
    total = scope.arg(Arg(words.due(channel), "due", channel.name))
    bells = scope.arg(Arg(f"{channel.tensor}_bells", "bells", channel.name))
    expected = scope.names.fresh(f"{channel.tensor}_expected")
    lines.add(f"{expected} = tl.load({total} + {flat})", loc)
    if late:
        lines.add("shmem.async_store_quiet()")
    last = f"shmem.local_add({pointer} + {flat}, 1) + 1 == {expected}"
    if channel.rings is not None:
        last = f"({last}) & ({scope.text(words.of_word(channel, channel.rings, Sym(flat)))})"
    lines.add(f"if {last}:", loc)
    lines.add(f"    shmem.ring_bell({bells} + {flat})")


def _tell_all(lines: Lines, word: str, how: str, loc: Loc) -> None:
    """Raise a word at everyone; with the line before, where that raises another one so: a release takes a round trip."""
    depth, before, at = lines.rows[-1] if lines.rows else (-1, "", None)
    if depth == lines.depth and before.startswith("shmem.signal_all(") and before.endswith(f", {how})"):
        lines.rows[-1] = (depth, f"{before[:-1]}, {word})", at)
        return
    lines.add(f"shmem.signal_all({word}, {how})", loc)


def notify_for_none(scope: Scope) -> None:
    """A run-time split that makes no tile at all has no last one: the first worker notifies."""
    notifies = [s for s in scope.plan.signals if s.path == scope.step.path and s.action == "notify"]
    for signal in notifies:
        channel = scope.plan.channel(signal.channel or "")
        if channel.joined is None:
            continue
        pointer = words.pointer(scope, channel)
        word = scope.names.fresh("c")
        scope.lines.add(f"if (worker == 0) & ({scope.text(Sym(f'{channel.joined}_tiles'))} == 0):", signal.op.loc)
        scope.lines.add(f"    for {word} in range({scope.text(channel.words)}):")
        scope.lines.add(
            f"        shmem.local_add({pointer} + {word}, {scope.text(words.of_word(channel, channel.target, Sym(word)))})"
        )
