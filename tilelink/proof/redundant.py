"""What a lowered plan could do without: awaits, and kinds of flags, without which its proof holds all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilelink.errors import Loc
from tilelink.ir.lowered import Await, Executor, For, If, Lowered, Op, Signal, walk
from tilelink.proof.check import check


@dataclass(frozen=True, slots=True)
class Redundant:
    """`path`: of the loop whose tiles need not wait; None: no signal and no await of these flags is needed."""

    flags: str
    path: str | None
    loc: Loc | None

    def __str__(self) -> str:
        return f"flags `{self.flags}`" if self.path is None else f"`{self.path}` waits for `{self.flags}`"


def redundant(lowered: Lowered) -> Iterator[Redundant]:
    """Each of them, and it alone, could be left out. An await of another tile, or under another test, is another one.

    Of a lowered plan that is proved. It is asked for each await and each kind of flags: for small plans.
    """
    for executor in lowered.executors:
        for loop in executor.loops:
            for op in dict.fromkeys(o for o in walk(loop.body) if isinstance(o, Await)):
                if check(_without(lowered, lambda e, o, one=(executor.name, op): (e.name, o) == one)).ok:
                    yield Redundant(op.flags, loop.path, op.loc)
    for flags in lowered.flags:
        without = _without(lowered, lambda _, o, name=flags.name: isinstance(o, Await | Signal) and o.flags == name)
        without = replace(without, flags=tuple(f for f in lowered.flags if f is not flags))
        if check(without).ok:
            yield Redundant(flags.name, None, None)


def _without(lowered: Lowered, gone: Callable[[Executor, Op], bool]) -> Lowered:
    """The plan without some ops."""

    def kept(e: Executor, body: tuple[Op, ...]) -> tuple[Op, ...]:
        found = (replace(o, body=kept(e, o.body)) if isinstance(o, For | If) else o for o in body)
        return tuple(o for o in found if not gone(e, o))

    executors = (replace(e, loops=tuple(replace(x, body=kept(e, x.body)) for x in e.loops)) for e in lowered.executors)
    return replace(lowered, executors=tuple(executors))
