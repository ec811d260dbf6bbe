"""Waits as calls of the SHMEM vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilelink.codegen import words
from tilelink.codegen.access import power_of_two
from tilelink.codegen.scope import Scope
from tilelink.codegen.text import Lines
from tilelink.codegen.words import Span
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.host import Enter
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import RANK
from tilelink.ir.plan import Signal
from tilelink.ir.program import Gather, Wait
from tilelink.ir.shape import RANK_AXIS
from tilelink.ir.wiring import entries

BITS = 32
"""Words that a worker can remember one by one."""


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


def wait_until(scope: Scope, word: Word, value: str, loc: Loc | None = None) -> None:
    """Wait until a word is at least `value`; with a time limit where the plan is emitted so."""
    name = "signal_wait" if word.remote else "local_wait"
    what = f"{word.pointer} + {word.index}, shmem.CMP_GE, {value}"
    if not scope.watch.checks.watchdog:
        scope.lines.add(f"shmem.{name}_until({what})", loc)
        return
    report = scope.report(word.kind, word.of, loc, word.path)
    tile = "t" if word.path is None else "-1"
    scope.lines.add(f"shmem.{name}_within({what}, {report}, {tile}, {word.index})", loc)


def await_signal(
    scope: Scope,
    op: Wait,
    signal: Signal,
    source: F.Like | None,
    known: Mapping[int | None, Formula] | None = None,
) -> None:
    """Wait for every word that the index intersects; `known`: the word's index along an axis of the tensor."""
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    given = {axis: Span(index, index) for axis, index in (known or {}).items()}
    spans = [given.get(a.axis) or words.span(scope, a, op, source) for a in channel.axes]
    of_all = _first_of_all(scope, channel, spans)
    if of_all is not None:
        _wait_for_all(scope, channel, words.named(scope, "c", of_all, op.loc), op.loc)
        return
    words.each_word(scope, channel, spans, op.loc, lambda word: _wait_for_one(scope, channel, word, op.loc))


def await_each(scope: Scope, op: Wait, signal: Signal, each: str, inside: str) -> bool:
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
    spans = [words.span(scope, a, op, None) for a in channel.axes]
    if not all(s.single for s in spans):
        return False
    formula = words.flat_of(channel, spans, first=True)
    if each not in F.symbols(formula):
        return False
    flat = words.named(scope, "c_each", formula, op.loc)
    _await_block(scope, channel, flat, inside, op.loc)
    return True


def await_once(scope: Scope, op: Wait, signal: Signal, then: tuple[str, ...], only_if: str | None = None) -> None:
    """`await_signal` and the lines `then`, left out where this worker's last wait here was for the same words.

    `only_if`: a condition, by name, under which there is something to wait for at all.

    A worker's tiles mostly share a word with the one before, and a look at a word costs a trip to L2. Without a loop of
    its own this wait also lets Triton fuse the loop over tiles with the loop inside a tile.
    """
    lines = scope.lines
    assert signal.channel is not None
    channel = scope.plan.channel(signal.channel)
    vector = _of_few(scope, channel, op) if only_if is None else None
    if vector is not None:
        return _await_members(scope, channel, op, vector, then)
    spans = [words.span(scope, a, op, None) for a in channel.axes]
    of_all = _first_of_all(scope, channel, spans)
    depth = lines.depth
    kept: list[str] = []
    if of_all is not None:
        kept = _await_new(scope, channel, of_all, only_if, op.loc, _wait_for_all)
    elif all(s.single for s in spans[:-1]):
        first, last = (words.flat_of(channel, spans, begin) for begin in (True, False))
        if first == last:
            kept = _await_new(scope, channel, first, only_if, op.loc, _wait_for_one)
        else:
            kept = _await_new_run(scope, channel, op, (first, last), only_if)
    else:
        if only_if is not None:
            _open_if(lines, only_if, op.loc)
        words.each_word(scope, channel, spans, op.loc, lambda c: _wait_for_one(scope, channel, c, op.loc))
    for line in then:
        lines.add(line)
    lines.depth = depth
    # Outside the branch: what a branch makes and a later tile reads keeps Triton from pipelining a flattened loop.
    for line in kept:
        lines.add(line)


def _open_if(lines: Lines, test: str, loc: Loc | None) -> None:
    lines.add(f"if {test}:", loc)
    lines.depth += 1


def _await_new(
    scope: Scope,
    channel: Channel,
    index: Formula,
    only_if: str | None,
    loc: Loc,
    wait: Callable[[Scope, Channel, str, Loc], None],
) -> list[str]:
    """Wait for one word, or one and its like of all ranks, if it is not the last one awaited here. Leaves a branch open;
    gives what is to be remembered behind it."""
    word = words.named(scope, "c", index, loc)
    waited = scope.carried(f"{channel.tensor}_waited", "-1")
    new = f"{word} != {waited}"
    _open_if(scope.lines, new if only_if is None else f"{only_if} & ({new})", loc)
    wait(scope, channel, word, loc)
    return [f"{waited} = {word}"]


def _await_new_run(
    scope: Scope, channel: Channel, op: Wait, ends: tuple[Formula, Formula], only_if: str | None
) -> list[str]:
    """The same of words that follow one another."""
    lines = scope.lines
    first, last = (words.named(scope, n, f, op.loc) for n, f in zip(("first", "last"), ends, strict=True))
    low, high = remembered(scope, channel.tensor)
    new = f"({first} < {low}) | ({last} > {high})"
    _open_if(lines, new if only_if is None else f"{only_if} & ({new})", op.loc)
    inside = lines.depth
    word = scope.names.fresh("c")
    lines.add(f"for {word} in range({first}, {last} + 1):")
    lines.depth += 1
    kept = [f"{low} = {first}", f"{high} = {last}"]
    if _scattered(scope, op):
        _open_if(lines, f"({word} < {low}) | ({word} > {high})", None)
        kept = joined(scope, first, last, low, high)
    _wait_for_one(scope, channel, word, op.loc)
    lines.depth = inside
    return kept


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


def _of_few(scope: Scope, channel: Channel, op: Wait) -> Gather | None:
    """The index vector that says which words are waited for, of so few that a bit can stand for each."""
    if len(channel.axes) != 1 or channel.axes[0].axis is None:
        return None
    entry = words.entry_on(scope, op.param, op.index, channel.axes[0].axis)
    return entry if isinstance(entry, Gather) and _most(scope, channel) <= BITS else None


def _most(scope: Scope, channel: Channel) -> int:
    ranks = range(scope.plan.topology.ranks)
    return max(int(F.evaluate(channel.axes[0].count, scope.plan.env(r))) for r in ranks)


def _await_members(scope: Scope, channel: Channel, op: Wait, entry: Gather, then: tuple[str, ...]) -> None:
    """Wait for the words that the vector's positions have, those left out that this worker has waited for before."""
    lines = scope.lines
    axis = channel.axes[0]
    vector, inside = words.elements(scope, axis, op, entry)
    count = power_of_two(_most(scope, channel))
    names = [scope.names.fresh(n) for n in ("wanted", "missing", "c")]
    wanted, missing, word = names
    seen = scope.carried(f"{channel.tensor}_seen", "0")
    number = scope.text(axis.index(words.base_of(scope, axis, op.param) + Sym(vector)))
    lines.add(f"{wanted} = blocks.members(tl.where({inside}, {number}, -1), {count})", op.loc)
    lines.add(f"{missing} = {wanted} & ~{seen}")
    lines.add(f"if {missing} != 0:")
    lines.add(f"    for {word} in range(0, {count}):")
    lines.add(f"        if ({missing} >> {word}) & 1 != 0:")
    depth = lines.depth
    lines.depth += 3
    _wait_for_one(scope, channel, word, op.loc)
    lines.depth = depth + 1
    for line in then:
        lines.add(line)
    lines.depth = depth
    # Outside the branch, as in `await_once`.
    lines.add(f"{seen} = {seen} | {wanted}")


def _first_of_all(scope: Scope, channel: Channel, spans: list[Span]) -> Formula | None:
    """The first of the words that one wait can look at together: one of each source rank. With a time limit each has its own,
    since a report names the word."""
    several = [k for k, span in enumerate(spans) if not span.single]
    every = [k for k, axis in enumerate(channel.axes) if axis.every]
    if not every or several != every or scope.watch.checks.watchdog or channel.writers == "stream":
        return None
    return words.flat_of(channel, spans, True)


def _scattered(scope: Scope, op: Wait) -> bool:
    """Whether an index vector says what is waited for: its words are anywhere, and those of the next tile are elsewhere, so
    that it pays to remember all that touch one another."""
    return any(isinstance(e, Gather) for e in entries(scope.step.step, op.param, op.index))


def _wait_for_one(scope: Scope, channel: Channel, word: str, loc: Loc) -> None:
    """Wait for a word, given its number."""
    pointer = words.pointer(scope, channel)
    value = _due(scope, channel, word)
    wait_until(scope, Word(pointer, word, "channel", channel.name, channel.scope == "sys"), value, loc)


def _wait_for_all(scope: Scope, channel: Channel, first: str, loc: Loc) -> None:
    """Wait for the words of all source ranks, of which that of rank 0 is the first."""
    source = next(k for k, axis in enumerate(channel.axes) if axis.every)
    apart: Formula = F.of(1)
    for axis in channel.axes[source + 1 :]:
        apart = apart * axis.count
    ranks = scope.plan.topology.size(channel.axes[source].over)
    every, word = scope.names.fresh("every"), scope.names.fresh("c_each")
    scope.lines.add(f"{every} = tl.arange(0, {power_of_two(ranks)})", loc)
    scope.lines.add(f"{word} = {scope.text(Sym(first) + Sym(every) * apart)}")
    _await_block(scope, channel, word, f"{every} < {scope.text(channel.axes[source].count)}", loc)


def _await_block(scope: Scope, channel: Channel, word: str, inside: str, loc: Loc) -> None:
    """Wait for a block of words, by name, as far as `inside` says."""
    pointer = words.pointer(scope, channel)
    value = _due(scope, channel, word, f", mask={inside}, other=0")
    scope.lines.add(f"shmem.signal_wait_each({pointer} + {word}, shmem.CMP_GE, {value}, {inside})", loc)


def _due(scope: Scope, channel: Channel, flat: str, mask: str = "") -> str:
    """What a word comes to in this call. Where the call's own kernels begin it, they raise the totals behind the waits."""
    if scope.plan.brief:
        return "epoch"
    if channel.writers == "stream":
        return f"tl.load({scope.epoch()})"
    total = f"tl.load({scope.arg(Arg(words.due(channel), 'due', channel.name))} + {flat}{mask})"
    if not any(isinstance(h, Enter) and h.kernels for h in scope.plan.host):
        return total
    used = F.symbols(channel.target) | F.symbols(0 if channel.guard is None else channel.guard)
    if used & {f"c{k}" for k in range(len(channel.axes))} and not flat.isidentifier():
        word = scope.names.fresh("c")
        scope.lines.add(f"{word} = {flat}")
        flat = word
    return f"{total} + {words.raised(scope, channel, Sym(flat))}"


def ready(scope: Scope, op: Wait, tensor: str, source: str) -> None:
    """Wait until the rank that holds an argument has it ready for this call."""
    staged = scope.plan.buffer(tensor).staged
    kind = "ready" if staged else "entered"
    flags = scope.arg(Arg(f"{kind}_at", "state", kind))
    at = scope.text(global_rank(scope, Sym(source)), F.SUMMAND)
    wait_until(scope, Word(flags, at, kind, tensor), f"tl.load({scope.epoch()})", op.loc)


def global_rank(scope: Scope, at: Formula) -> Formula:
    """The number among all ranks of the one with coordinate `at` on the step's axis of ranks; what differs along the others
    is this rank's."""
    if scope.step.axis == RANK_AXIS:
        return at
    return RANK + (at - scope.step.rank) * scope.plan.topology.stride(scope.step.axis)
