"""Waits and notifies as calls of the SHMEM vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilelink.codegen.access import expression, position
from tilelink.codegen.scope import Scope, context_name
from tilelink.codegen.text import Lines
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.host import Enter
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import RANK
from tilelink.ir.plan import Signal
from tilelink.ir.program import At, Gather, IndexEntry, Notify, OfTile, Wait
from tilelink.ir.shape import RANK_AXIS
from tilelink.ir.wiring import entries


@dataclass(frozen=True, slots=True)
class Span:
    """Words along one channel axis: `[first, last]`, the same formula twice where it is one word."""

    first: Formula | str
    last: Formula | str

    @property
    def single(self) -> bool:
        return self.first == self.last


@dataclass(frozen=True, slots=True)
class Word:
    """A word that is waited for: `pointer + index`. `kind`, `of`: as in `Site`; `remote`: peers write it.

    `path`: of the one-block kernel that waits; None: the step that is emitted, at tile `t`.
    """

    pointer: str
    index: str
    kind: str
    of: str
    remote: bool = True
    path: str | None = None


def wait_until(scope: Scope, lines: Lines, word: Word, value: str, loc: Loc | None = None) -> None:
    """Wait until a word is at least `value`; with a time limit where the plan is emitted so."""
    name = "signal_wait" if word.remote else "local_wait"
    what = f"{word.pointer} + {word.index}, shmem.CMP_GE, {value}"
    if not scope.watch.checks.watchdog:
        lines.add(f"shmem.{name}_until({what})", loc)
        return
    report = scope.report(word.kind, word.of, loc, word.path)
    tile = "t" if word.path is None else "-1"
    lines.add(f"shmem.{name}_within({what}, {report}, {tile}, {word.index})", loc)


BITS = 32
"""Words that a worker can remember one by one."""


def words(channel: Channel) -> str:
    return f"{channel.tensor}_words"


def due(channel: Channel) -> str:
    return f"{channel.tensor}_due"


def declare_words(scope: Scope, channel: Channel) -> tuple[str, str]:
    return (
        scope.arg(Arg(words(channel), "words", channel.name)),
        scope.arg(Arg(due(channel), "due", channel.name)),
    )


def await_signal(
    scope: Scope,
    lines: Lines,
    op: Wait,
    signal: Signal,
    source: F.Like | None,
    known: Mapping[int | None, Formula] | None = None,
) -> None:
    """Wait for every word that the index intersects; `known`: the word's index along an axis of the tensor."""
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    given = {axis: Span(index, index) for axis, index in (known or {}).items()}
    spans = [given.get(a.axis) or _span(scope, lines, channel, a, op, source) for a in channel.axes]
    of_all = _first_of_all(scope, channel, spans)
    wait = _waiter(scope, lines, channel, op, of_all is not None)
    if of_all is not None:
        wait(_word(scope, lines, "c", of_all, op.loc))
        return
    _each_word(scope, lines, channel, spans, op.loc, wait)


def await_each(scope: Scope, lines: Lines, op: Wait, signal: Signal, each: str, inside: str) -> bool:
    """Wait for a block of words at once, where the index names one for each of its lanes; else False, and no line.

    Args:
        each: the lanes' numbers.
        inside: the lanes that there are.
    """
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    gathered = any(isinstance(e, Gather) for e in entries(scope.step.step, op.param, op.index))
    if gathered or channel.scope != "sys" or scope.watch.checks.watchdog:
        return False
    spans = [_span(scope, lines, channel, a, op, None) for a in channel.axes]
    if not all(s.single and not isinstance(s.first, str) for s in spans):
        return False
    formula = _flat(channel, spans, first=True)
    if each not in F.symbols(formula):
        return False
    flat = _word(scope, lines, "c_each", formula, op.loc)
    _await_block(scope, lines, channel, flat, inside, op.loc)
    return True


def await_once(
    scope: Scope, lines: Lines, op: Wait, signal: Signal, then: tuple[str, ...], only_if: str | None = None
) -> None:
    """`await_signal` and the lines `then`, left out where this worker's last wait here was for the same words.

    `only_if`: a condition, by name, under which there is something to wait for at all.

    A worker's tiles mostly share a word with the one before, and a look at a word costs a trip to L2. Without a loop of
    its own this wait also lets Triton fuse the loop over tiles with the loop inside a tile.
    """
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    if only_if is None and _few_by_vector(scope, channel, op):
        return _await_members(scope, lines, channel, op, then)
    spans = [_span(scope, lines, channel, a, op, None) for a in channel.axes]
    of_all = _first_of_all(scope, channel, spans)
    wait = _waiter(scope, lines, channel, op, of_all is not None)
    also = f"{only_if} & " if only_if is not None else ""
    depth = lines.depth
    if of_all is None and (any(not s.single for s in spans[:-1]) or any(isinstance(s.first, str) for s in spans)):
        if only_if is not None:
            lines.add(f"if {only_if}:", op.loc)
            lines.depth += 1
        _each_word(scope, lines, channel, spans, op.loc, wait)
        for line in then:
            lines.add(line)
        lines.depth = depth
        return
    ends = [_flat(channel, spans, first) for first in (True, False)] if of_all is None else [of_all, of_all]
    if ends[0] == ends[1]:
        word = _word(scope, lines, "c", ends[0], op.loc)
        waited = scope.carried(f"{channel.tensor}_waited", "-1")
        lines.add(f"if {also}({word} != {waited}):" if also else f"if {word} != {waited}:", op.loc)
        lines.depth += 1
        wait(word)
        kept = [f"{waited} = {word}"]
    else:
        first, last = (_word(scope, lines, n, f, op.loc) for n, f in zip(("first", "last"), ends, strict=True))
        low, high = remembered(scope, channel.tensor)
        new = f"({first} < {low}) | ({last} > {high})"
        lines.add(f"if {also}({new}):" if also else f"if {new}:", op.loc)
        lines.depth += 1
        word = scope.names.fresh("c")
        lines.add(f"for {word} in range({first}, {last} + 1):")
        lines.depth += 1
        kept = [f"{low} = {first}", f"{high} = {last}"]
        if _scattered(scope, op):
            lines.add(f"if ({word} < {low}) | ({word} > {high}):")
            lines.depth += 1
            kept = joined(scope, first, last, low, high)
        wait(word)
        lines.depth = depth + 1
    for line in then:
        lines.add(line)
    lines.depth = depth
    # Outside the branch: what a branch makes and a later tile reads keeps Triton from pipelining a flattened loop.
    for line in kept:
        lines.add(line)


def remembered(scope: Scope, tensor: str) -> tuple[str, str]:
    """Names for the first and the last word of a run of words that a worker has awaited; none before its first tile."""
    return scope.carried(f"{tensor}_low", "1"), scope.carried(f"{tensor}_high", "0")


def joined(scope: Scope, first: str, last: str, low: str, high: str) -> list[str]:
    """Lines that add the words from `first` to `last` to those remembered; of two runs apart the newer is kept."""
    apart = scope.names.fresh("apart")
    return [
        f"{apart} = ({first} > {high} + 1) | ({last} < {low} - 1)",
        f"{low} = tl.where({apart}, {first}, tl.minimum({low}, {first}))",
        f"{high} = tl.where({apart}, {last}, tl.maximum({high}, {last}))",
    ]


def _few_by_vector(scope: Scope, channel: Channel, op: Wait) -> bool:
    """Whether an index vector says which words are waited for, of so few that a bit can stand for each."""
    if len(channel.axes) != 1 or channel.axes[0].axis is None:
        return False
    entry = _entry_on(scope, op.param, op.index, channel.axes[0].axis)
    return isinstance(entry, Gather) and _most(scope, channel) <= BITS


def _most(scope: Scope, channel: Channel) -> int:
    ranks = range(scope.plan.topology.ranks)
    return max(int(F.evaluate(channel.axes[0].count, scope.plan.env(r))) for r in ranks)


def _await_members(scope: Scope, lines: Lines, channel: Channel, op: Wait, then: tuple[str, ...]) -> None:
    """Wait for the words that the vector's positions have, those left out that this worker has waited for before."""
    axis = channel.axes[0]
    entry = _entry_on(scope, op.param, op.index, axis.axis or 0)
    assert isinstance(entry, Gather)
    base: F.Like = axis.rank * axis.part if axis.kind == "cut" and _is_local(scope, op.param, axis.axis or 0) else 0
    vector = expression(scope, entry.expr)
    count = 1 << (_most(scope, channel) - 1).bit_length()
    names = [scope.names.fresh(n) for n in ("wanted", "missing", "c")]
    wanted, missing, word = names
    seen = scope.carried(f"{channel.tensor}_seen", "0")
    number = scope.text(axis.index(base + Sym(vector)))
    lines.add(f"{wanted} = blocks.members(tl.where({vector} >= 0, {number}, -1), {count})", op.loc)
    lines.add(f"{missing} = {wanted} & ~{seen}")
    lines.add(f"if {missing} != 0:")
    lines.add(f"    for {word} in range(0, {count}):")
    lines.add(f"        if ({missing} >> {word}) & 1 != 0:")
    depth = lines.depth
    lines.depth += 3
    _waiter(scope, lines, channel, op)(word)
    lines.depth = depth + 1
    for line in then:
        lines.add(line)
    lines.depth = depth
    # Outside the branch, as in `await_once`.
    lines.add(f"{seen} = {seen} | {wanted}")


def _first_of_all(scope: Scope, channel: Channel, spans: list[Span]) -> Formula | None:
    """The first of the words that one wait can look at together: one of each source rank. With a time limit each has its own,
    since a report names the word."""
    several = [k for k, span in enumerate(spans) if not span.single or isinstance(span.first, str)]
    every = [k for k, axis in enumerate(channel.axes) if axis.every]
    if not every or several != every or scope.watch.checks.watchdog or channel.writers == "stream":
        return None
    return _flat(channel, spans, True)


def _scattered(scope: Scope, op: Wait) -> bool:
    """Whether an index vector says what is waited for: its words are anywhere, and those of the next tile are elsewhere, so
    that it pays to remember all that touch one another."""
    return any(isinstance(e, Gather) for e in entries(scope.step.step, op.param, op.index))


def _flat(channel: Channel, spans: list[Span], first: bool) -> Formula:
    indices: list[Formula] = []
    for span in spans:
        index = span.first if first else span.last
        assert not isinstance(index, str)
        indices.append(index)
    return channel.flat(tuple(indices))


def _word(scope: Scope, lines: Lines, name: str, flat: Formula, loc: Loc) -> str:
    """The word's number under a name."""
    text = scope.text(flat)
    if text.isidentifier():
        return text
    name = scope.names.fresh(name)
    lines.add(f"{name} = {text}", loc)
    return name


def _waiter(scope: Scope, lines: Lines, channel: Channel, op: Wait, of_all: bool = False) -> Callable[[str], None]:
    """Emits the wait for one word, given its number; `of_all`: and for those of all further source ranks."""
    pointer = scope.arg(Arg(words(channel), "words", channel.name))

    def each(flat: str) -> None:
        if of_all:
            _wait_for_all(scope, lines, channel, flat, op.loc)
            return
        value = _due(scope, lines, channel, flat)
        wait_until(scope, lines, Word(pointer, flat, "channel", channel.name, channel.scope == "sys"), value, op.loc)

    return each


def _wait_for_all(scope: Scope, lines: Lines, channel: Channel, first: str, loc: Loc) -> None:
    """Wait for the words of all source ranks, of which that of rank 0 is the first."""
    source = next(k for k, axis in enumerate(channel.axes) if axis.every)
    apart: Formula = F.of(1)
    for axis in channel.axes[source + 1 :]:
        apart = apart * axis.count
    ranks = scope.plan.topology.size(channel.axes[source].over)
    every, word = scope.names.fresh("every"), scope.names.fresh("c_each")
    lines.add(f"{every} = tl.arange(0, {1 << (ranks - 1).bit_length()})", loc)
    lines.add(f"{word} = {scope.text(Sym(first) + Sym(every) * apart)}")
    _await_block(scope, lines, channel, word, f"{every} < {scope.text(channel.axes[source].count)}", loc)


def _await_block(scope: Scope, lines: Lines, channel: Channel, word: str, inside: str, loc: Loc) -> None:
    """Wait for a block of words, by name, as far as `inside` says."""
    pointer = scope.arg(Arg(words(channel), "words", channel.name))
    value = _due(scope, lines, channel, word, f", mask={inside}, other=0")
    lines.add(f"shmem.signal_wait_each({pointer} + {word}, shmem.CMP_GE, {value}, {inside})", loc)


def _due(scope: Scope, lines: Lines, channel: Channel, flat: str, mask: str = "") -> str:
    """What a word comes to in this call. Where the call's own kernels begin it, they raise the totals behind the waits."""
    if channel.writers == "stream":
        return f"tl.load({scope.epoch()})"
    total = f"tl.load({scope.arg(Arg(due(channel), 'due', channel.name))} + {flat}{mask})"
    if not any(isinstance(h, Enter) and h.kernels for h in scope.plan.host):
        return total
    counted = channel.target if channel.guard is None else F.select(channel.guard, channel.target, 0)
    names = [f"c{k}" for k in range(len(channel.axes))]
    if F.symbols(counted) & {*names} and not flat.isidentifier():
        word = scope.names.fresh("c")
        lines.add(f"{word} = {flat}")
        flat = word
    told = dict(zip(names, channel.indices(Sym(flat)), strict=True))
    return f"{total} + {scope.text(F.substitute(counted, told), 2)}"


def _each_word(
    scope: Scope, lines: Lines, channel: Channel, spans: list[Span], loc: Loc, emit: Callable[[str], None]
) -> None:
    """Loops over the axes that need one; `emit` gets the text of the word's number."""
    depth = lines.depth
    indices: list[Formula] = []
    for k, span in enumerate(spans):
        first = span.first
        if span.single and not isinstance(first, str):
            indices.append(first)
            continue
        name = scope.names.fresh("c" if len(spans) == 1 else f"c{k}")
        low = first if isinstance(first, str) else scope.text(first)
        high = f"{span.last} + 1" if isinstance(span.last, str) else scope.text(span.last + 1)
        lines.add(f"for {name} in range({low}, {high}):", loc)
        lines.depth += 1
        indices.append(Sym(name))
    flat = scope.text(channel.flat(tuple(indices)), 1)
    if any(isinstance(i, F.Binary) for i in indices) and not flat.isidentifier():
        name = scope.names.fresh("c")
        lines.add(f"{name} = {flat}", loc)
        flat = name
    emit(flat)
    lines.depth = depth


def _span(
    scope: Scope,
    lines: Lines,
    channel: Channel,
    axis: ChannelAxis,
    op: Wait | Notify,
    source: F.Like | None,
) -> Span:
    """The words along `axis` that a wait or a notify touches."""
    if axis.axis is None:
        if axis.every and isinstance(op, Wait) and op.peer is None:
            return Span(F.of(0), axis.count - 1)
        rank = F.of(source if source is not None else axis.rank)
        return Span(rank, rank)
    entry = _entry_on(scope, op.param, op.index, axis.axis)
    base: F.Like = axis.rank * axis.part if axis.kind == "cut" and _is_local(scope, op.param, axis.axis) else 0
    if isinstance(entry, OfTile):
        tile = scope.tiles[entry.var]
        if axis.kind == "unit":
            return Span(Sym(tile.begin), Sym(tile.begin))
        first = axis.index(base + Sym(tile.begin))
        return Span(first, first) if axis.holds(tile.grid) else Span(first, axis.index(base + Sym(tile.end) - 1))
    if isinstance(entry, At):
        at = base + position(scope, entry)
        return Span(axis.index(at), axis.index(at))
    if isinstance(entry, Gather):
        vector = expression(scope, entry.expr)
        low, high = scope.names.fresh("low"), scope.names.fresh("high")
        lines.add(f"{high} = tl.max({vector}, 0)", scope.loc)
        lines.add(f"{low} = tl.min(tl.where({vector} >= 0, {vector}, tl.maximum({high}, 0)), 0)", scope.loc)
        return Span(axis.index(base + Sym(low)), axis.index(base + F.maximum(Sym(high), 0)))
    return Span(F.of(0), axis.count - 1)


def _is_local(scope: Scope, param: str, axis: int) -> bool:
    """Whether the program counts positions on this axis from its rank's part."""
    return any(v.axis == axis and v.local for v in scope.step.step.binding(param).view)


def _entry_on(scope: Scope, param: str, index: tuple[IndexEntry, ...] | None, axis: int) -> IndexEntry | None:
    step = scope.step.step
    if step.program.movement is not None:
        # The tiles of a movement are known by their position.
        return next((OfTile(str(k)) for k, v in enumerate(step.binding(param).view) if v.axis == axis), None)
    for v, e in zip(step.binding(param).view, entries(step, param, index), strict=True):
        if v.axis == axis:
            return e
    return None


def notify(scope: Scope, lines: Lines, op: Notify, signal: Signal, owner: str | None) -> None:
    """Raise the word of a completed tile at everyone who waits for it."""
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    # What is stored for one word may still be on its way while the word's total is fetched.
    late = scope.stored_async and channel.bells and signal.to == "self" and channel.scope == "gpu"
    if scope.stored_async and not late:
        lines.add("shmem.async_store_quiet()")
    spans = [_span(scope, lines, channel, a, op, None) for a in channel.axes]
    pointer = scope.arg(Arg(words(channel), "words", channel.name))
    raise_ = _raiser(scope, lines, channel, pointer, op, signal, owner, late=late)
    _each_word(scope, lines, channel, spans, op.loc, raise_)


def _raiser(
    scope: Scope,
    lines: Lines,
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

    def local(flat: str) -> None:
        if channel.joined is not None:
            counts = scope.arg(Arg(f"{channel.tensor}_counts", "counts", channel.name))
            often = _at_once(channel, Sym(flat))
            tiles = scope.text(Sym(f"{channel.joined}_tiles") * often)
            lines.add(f"if shmem.is_last({counts} + {flat}, {tiles}):", loc)
            lines.add(f"    shmem.local_add({pointer} + {flat}, {scope.text(often)})")
            return
        if not channel.bells:
            lines.add(f"shmem.local_add({pointer} + {flat}, 1)", loc)
            return
        total = scope.arg(Arg(due(channel), "due", channel.name))
        bells = scope.arg(Arg(f"{channel.tensor}_bells", "bells", channel.name))
        expected = scope.names.fresh(f"{channel.tensor}_expected")
        lines.add(f"{expected} = tl.load({total} + {flat})", loc)
        if late:
            lines.add("shmem.async_store_quiet()")
        last = f"shmem.local_add({pointer} + {flat}, 1) + 1 == {expected}"
        if channel.rings is not None:
            told = {f"c{k}": index for k, index in enumerate(channel.indices(Sym(flat)))}
            last = f"({last}) & ({scope.text(F.substitute(channel.rings, told))})"
        lines.add(f"if {last}:", loc)
        lines.add(f"    shmem.ring_bell({bells} + {flat})")

    def remote(flat: str) -> None:
        ctx = scope.context(channel.tensor)
        if signal.to == "all":
            lines.add(f"shmem.signal_all({pointer} + {flat}, 1, shmem.SIGNAL_ADD, {scope.ranks}, {ctx})", loc)
            return
        lines.add(f"shmem.signal_op({pointer} + {flat}, 1, shmem.SIGNAL_ADD, {target}, {ctx})", loc)

    if signal.to == "self" and channel.scope == "gpu":
        return local
    target = owner if owner is not None else scope.rank
    if signal.to == "peer":
        assert op.peer is not None
        target = expression(scope, op.peer.expr)
    elif signal.to == "self":
        target = scope.rank
    return remote


def _at_once(channel: Channel, word: Formula) -> Formula:
    """What is added to a word when the last tile of a run-time split is there."""
    return F.substitute(channel.target, {f"c{k}": index for k, index in enumerate(channel.indices(word))})


def notify_for_none(scope: Scope, lines: Lines) -> None:
    """A run-time split that makes no tile at all has no last one: the first worker notifies."""
    notifies = [s for s in scope.plan.signals if s.path == scope.step.path and s.action == "notify"]
    for signal in notifies:
        channel = scope.plan.channel(signal.channel or "")
        if channel.joined is None:
            continue
        pointer = scope.arg(Arg(words(channel), "words", channel.name))
        word = scope.names.fresh("c")
        lines.add(f"if (worker == 0) & ({scope.text(Sym(f'{channel.joined}_tiles'))} == 0):", signal.op.loc)
        lines.add(f"    for {word} in range({scope.text(channel.words)}):")
        lines.add(f"        shmem.local_add({pointer} + {word}, {scope.text(_at_once(channel, Sym(word)))})")


def ready(scope: Scope, lines: Lines, op: Wait, tensor: str, source: str) -> None:
    """Wait until the rank that holds an argument has it ready for this call."""
    staged = scope.plan.buffer(tensor).staged
    kind = "ready" if staged else "entered"
    flags = scope.arg(Arg(f"{kind}_at", "state", kind))
    at = scope.text(global_rank(scope, Sym(source)), 5)
    wait_until(scope, lines, Word(flags, at, kind, tensor), f"tl.load({scope.epoch()})", op.loc)


def global_rank(scope: Scope, at: Formula) -> Formula:
    """The number among all ranks of the one with coordinate `at` on the step's axis of ranks; what differs along the others
    is this rank's."""
    if scope.step.axis == RANK_AXIS:
        return at
    return RANK + (at - scope.step.rank) * scope.plan.topology.stride(scope.step.axis)


__all__ = [
    "Word",
    "await_each",
    "await_once",
    "await_signal",
    "context_name",
    "declare_words",
    "notify",
    "notify_for_none",
    "ready",
    "wait_until",
]
