"""What is known to have happened at a point of a program: which tiles are there, which are yet to be announced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tilelink.errors import Loc
from tilelink.ir.formula import Formula, symbols
from tilelink.ir.program import At, Expr, Gather, Index, IndexEntry, OfTile, Tiles
from tilelink.ir.wiring import Step, indexed

Token: TypeAlias = "Formula | int"
"""A test: what it computes, where positions alone decide it; else the one `if` it stands in."""
When = frozenset[tuple[Token, bool]]
EMPTY: When = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One axis of an index. `kind`: whole | tile | at | gather | lost (named by something that has changed since). `local`: of
    positions, they count from this rank's part."""

    kind: str
    text: str = ""
    names: frozenset[str] = frozenset()
    local: bool = False

    def covers(self, other: Entry) -> bool:
        return self.kind == "whole" or (self.kind != "lost" and self == other)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something happened to a tile of a tensor, on paths on which all of `when` hold."""

    tensor: str
    index: tuple[tuple[int, Entry], ...]
    """By axis of the tensor, or `WHOSE`."""
    when: When
    loc: Loc

    def covers(self, other: Fact) -> bool:
        """The other's tile lies inside this one's, and this happened wherever the other does."""
        return self.tensor == other.tensor and self.when <= other.when and self.reaches(other)

    def reaches(self, other: Fact) -> bool:
        mine = dict(self.index)
        return all(mine.get(axis, WHOLE).covers(entry) for axis, entry in other.index)

    def mentions(self, names: frozenset[str]) -> bool:
        return any(e.names & names for _, e in self.index) or any(_of_token(t) & names for t, _ in self.when)

    def within(self, token: Token, branch: bool, inside: bool = True) -> Fact:
        """The same as one branch of a test sees it, or, not `inside`, without regard to that."""
        half = frozenset({(token, branch)})
        return replace(self, when=self.when | half if inside else self.when - half)


WHOLE = Entry("whole")
WHOSE = -1
"""In the place of an axis: the coordinate of the rank whose instance is meant."""
LOST = Entry("lost")


def entry(e: IndexEntry, *, local: bool) -> Entry:
    if isinstance(e, OfTile):
        return Entry("tile", e.var, frozenset({e.var}))
    if isinstance(e, At):
        var, shift = e.ring or (e.expr.text, 0)
        return Entry("at", f"{var}{shift:+d}" if shift else var, _names(e.expr), local)
    if isinstance(e, Gather):
        return Entry("gather", e.expr.text, _names(e.expr), local)
    return WHOLE


def _names(expr: Expr) -> frozenset[str]:
    """Names that the value depends on, through what was put in for them as well."""
    through: frozenset[str] = symbols(expr.formula) if expr.formula is not None else frozenset()
    return frozenset(expr.names) | through


def fact(step: Step, param: str, index: Index | None, when: When, loc: Loc) -> Fact:
    """An axis that the parameter's view does not name is this rank's own slice: there is nothing to tell apart. One that
    the tensor does not have says whose instance it is."""
    placed = tuple(
        (v.axis if v.axis is not None else WHOSE, entry(e, local=v.local)) for v, e in indexed(step, param, index)
    )
    return Fact(step.binding(param).tensor, placed, when, loc)


@dataclass(slots=True)
class State:
    """`known`: tiles that may be read. `open`: stores that no notify has covered yet. `told`: notifies given."""

    known: list[Fact] = field(default_factory=list[Fact])
    open: list[Fact] = field(default_factory=list[Fact])
    told: list[Fact] = field(default_factory=list[Fact])

    def copy(self) -> State:
        return State(list(self.known), list(self.open), list(self.told))

    def tell(self, notify: Fact) -> None:
        self.told.append(notify)
        self.open = [s for s in self.open if not notify.covers(s)]

    def forget(self, names: frozenset[str]) -> None:
        """Names are bound anew: what was known by them is known no longer."""
        if not names:
            return
        self.known = [f for f in self.known if not f.mentions(names)]
        self.told = [f for f in self.told if not f.mentions(names)]
        self.open = [
            replace(
                f,
                index=tuple((a, LOST if e.names & names else e) for a, e in f.index),
                when=frozenset(w for w in f.when if not _of_token(w[0]) & names),
            )
            for f in self.open
        ]


def _of_token(token: Token) -> frozenset[str]:
    return frozenset() if isinstance(token, int) else symbols(token)


def merged(token: Token, before: State, yes: State, no: State) -> State:
    """The state behind an `if`."""
    return State(
        _joined(token, before.known, yes.known, no.known),
        _still_open(token, yes.open, no.open),
        _joined(token, before.told, yes.told, no.told),
    )


def _joined(token: Token, before: list[Fact], yes: list[Fact], no: list[Fact]) -> list[Fact]:
    kept = [f for f in before if f in yes and f in no]
    new_yes, new_no = [f for f in yes if f not in before], [f for f in no if f not in before]
    both: list[Fact] = []
    for f in new_yes:
        base = f.when - {(token, True)}
        for g in new_no:
            if g.tensor == f.tensor and g.when - {(token, False)} == base:
                # What either branch has done, as far as both go.
                narrow = g if f.reaches(g) else f if g.reaches(f) else None
                both += [replace(narrow, when=base)] if narrow is not None else []
    return kept + new_yes + new_no + both


def _still_open(token: Token, yes: list[Fact], no: list[Fact]) -> list[Fact]:
    """Each branch's own; what neither has announced is one store again."""
    bare_yes, bare_no = ([f.within(token, branch, False) for f in fs] for fs, branch in ((yes, True), (no, False)))
    out = [bare if bare in bare_no else f for f, bare in zip(yes, bare_yes, strict=True)]
    return out + [f for f, bare in zip(no, bare_no, strict=True) if bare not in bare_yes]


def after_loop(
    loop: Tiles, when: When, new: list[Fact], bound: frozenset[str], whole: Callable[[str, int], bool]
) -> list[Fact]:
    """What a walk over a whole axis leaves behind: each tile in turn makes the whole axis.

    `whole`: whether that is so of an axis of a tensor, which may go on where the axis that is walked ends.
    """
    out: list[Fact] = []
    for f in new if not loop.limited else ():
        index = tuple(
            (a, WHOLE if e.kind in ("tile", "at") and e.text == loop.var and whole(f.tensor, a) else e)
            for a, e in f.index
        )
        widened = replace(f, index=index)
        if f.when == when and index != f.index and not widened.mentions(bound):
            out.append(widened)
    return out
