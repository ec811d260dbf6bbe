"""Order inside a tile: what is read was waited for, what is stored is announced afterwards. What is known to have happened at a
point of a program: which tiles are there, which are yet to be announced."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, as_asked, evaluate, symbols
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Expr, Gather, Index, IndexEntry, OfTile, Op, Tiles, bound, walk
from tilelink.ir.wiring import Step, Wiring, entries


def check_flow(plan: Plan) -> str:
    """Every load of what a program makes is dominated by a wait that covers it; every store somebody waits for is
    followed by a notify that covers it, on every path.

    Raises:
        TilelinkError: TL602 (loads), TL603 (stores).
    """
    awaited = frozenset(
        s.step.binding(op.param).tensor
        for s in plan.steps
        for op in walk(s.step.program.body)
        if isinstance(op, P.Wait)
    )
    loads = stores = 0
    for step in plan.steps:
        flow = _Flow(plan.wiring, step, awaited)
        state = State()
        flow.run(step.step.program.body, state, EMPTY)
        if state.open:
            raise _unannounced(step, state.open[0], flow)
        loads, stores = loads + flow.loads, stores + flow.stores
    return f"{loads} loads after their waits, {stores} stores before their notifies"


# ------------------------------------------------------------------------------------------------- what has happened
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


def _entry(e: IndexEntry, *, local: bool) -> Entry:
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


def _fact(step: Step, param: str, index: Index | None, when: When, loc: Loc) -> Fact:
    """An axis that the parameter's view does not name is this rank's own slice: there is nothing to tell apart. One that
    the tensor does not have says whose instance it is."""
    placed = tuple(
        (v.axis if v.axis is not None else WHOSE, _entry(e, local=v.local))
        for v, e in zip(step.binding(param).view, entries(step, param, index), strict=True)
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


def _joined(token: Token, before: list[Fact], yes: list[Fact], no: list[Fact]) -> list[Fact]:
    """What is known behind an `if`, by what was known before it and behind each branch."""
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


# ------------------------------------------------------------------------------------------------- a walk over a program
@dataclass(slots=True)
class _Flow:
    """One walk over a program."""

    wiring: Wiring
    plan: StepPlan
    awaited: frozenset[str]
    loads: int = 0
    stores: int = 0
    notifies: list[Fact] = field(default_factory=list[Fact])

    def run(self, body: tuple[Op, ...], state: State, when: When) -> None:
        for op in body:
            self._op(op, state, when)

    def _op(self, op: Op, state: State, when: When) -> None:
        if isinstance(op, P.If):
            self._branch(op, state, when)
        elif isinstance(op, (Tiles, P.Loop)):
            self._loop(op, state, when)
        elif isinstance(op, (P.Wait, P.Notify, P.Load, P.Store, P.Move)):
            found = _fact(self.plan.step, op.param, op.index, when, op.loc)
            if isinstance(op, P.Wait):
                state.known.append(found)
            elif isinstance(op, P.Notify):
                self.notifies.append(found)
                state.tell(found)
            elif isinstance(op, P.Load):
                # A copy program that is written as a push may be scheduled as a pull.
                self._read(op.param, found, state, remote=self.plan.copies and not self.plan.push)
                state.forget(frozenset({op.name}))
            elif isinstance(op, P.Move):
                self._read(op.source, _fact(self.plan.step, op.source, op.index, when, op.loc), state, remote=True)
                self._write(found, state, own=True)
            else:
                self._write(found, state, own=op.to == "own")
        else:
            state.forget(_bound(op))

    def _read(self, param: str, load: Fact, state: State, *, remote: bool) -> None:
        tensor = self.wiring.tensor(load.tensor)
        crosses = remote and self.plan.step.binding(param).names_holders
        if tensor.origin == "argument" and not crosses:
            return
        self.loads += 1
        if not any(known.covers(load) for known in state.known):
            raise _unguarded(self.plan, param, load, state)

    def _write(self, store: Fact, state: State, *, own: bool) -> None:
        if own:
            state.known.append(store)
        if store.tensor in self.awaited:
            self.stores += 1
            state.open.append(store)

    def _branch(self, op: P.If, state: State, when: When) -> None:
        test = op.test.formula
        if test is not None and symbols(test) <= self.plan.step.compiled.keys():
            # Constants alone say which branch is taken.
            return self.run(op.body if evaluate(test, self.plan.step.compiled) else op.orelse, state, when)
        token, holds = as_asked(test) if test is not None else (id(op), True)
        body, orelse = (op.body, op.orelse) if holds else (op.orelse, op.body)
        yes, no = state.copy(), state.copy()
        yes.open, no.open = ([f.within(token, branch) for f in state.open] for branch in (True, False))
        self.run(body, yes, when | {(token, True)})
        self.run(orelse, no, when | {(token, False)})
        state.known = _joined(token, state.known, yes.known, no.known)
        state.told = _joined(token, state.told, yes.told, no.told)
        state.open = _still_open(token, yes.open, no.open)

    def _loop(self, op: Tiles | P.Loop, state: State, when: When) -> None:
        names = frozenset(n for o in walk((op,)) for n in _bound(o))
        state.forget(names)
        inside = State(list(state.known), [], [])
        self.run(op.body, inside, when)
        new = [f for f in inside.known if f not in state.known]
        told = inside.told
        inside.forget(names)
        state.open += inside.open
        if isinstance(op, Tiles):
            state.known += self._behind(op, when, new, names)
            for notify in self._behind(op, when, told, names):
                state.tell(notify)

    def _behind(self, loop: Tiles, when: When, new: list[Fact], bound: frozenset[str]) -> list[Fact]:
        """What a walk over a whole axis leaves behind: each tile in turn makes the whole axis."""
        out: list[Fact] = []
        for f in new if not loop.limited else ():
            walked = [a for a, e in f.index if e.kind in ("tile", "at") and e.text == loop.var]
            whole = [a for a in walked if self._walks_all(loop, f.tensor, a)]
            widened = replace(f, index=tuple((a, WHOLE if a in whole else e) for a, e in f.index))
            if f.when == when and whole and not widened.mentions(bound):
                out.append(widened)
        return out

    def _walks_all(self, walk: Tiles, tensor: str, axis: int) -> bool:
        """Whether a walk over this rank's part of an axis is one over all that this rank has of another tensor's."""
        by_parts = self.plan.step.binding(walk.param).view[walk.axis].by_parts
        return not by_parts or axis == WHOSE or self.wiring.tensor(tensor).axes[axis].over == self.plan.axis


def _bound(op: Op) -> frozenset[str]:
    """The names that an op binds anew: the number of a rank is what it was."""
    return frozenset() if isinstance(op, P.Raw) else frozenset(bound(op))


# ----------------------------------------------------------------------------------------------------------- diagnostics
def _unguarded(plan: StepPlan, param: str, load: Fact, state: State) -> TilelinkError:
    step, ops = plan.step, list(walk(plan.step.program.body))
    after = [op for op in ops if isinstance(op, P.Wait) and _place(op.loc) > _place(load.loc)]
    waits = [_fact(step, op.param, op.index, EMPTY, op.loc) for op in after]
    late = next((w.loc for w in waits if w.tensor == load.tensor and w.reaches(load)), None)
    near = [f for f in state.known if f.tensor == load.tensor]
    hint = f"write `tl.consumer_tile_wait({param}{_written(plan, load.loc)})` before it"
    if late is not None:
        message, note = f"`{param}` is read before it is waited for", Note("the wait comes only here", late)
    elif any(f.reaches(load) for f in near):
        message, note = f"`{param}` is read on a path without the wait", Note("the wait", near[-1].loc)
        hint = "wait on every path, or read it under the wait's own test"
    elif near:
        # The axes on which the wait falls short, by the program's own names.
        mine = dict(near[-1].index)
        short = [a for a, e in load.index if a in mine and not mine[a].covers(e)]
        view = next(b for b in step.bindings if b.tensor == load.tensor).view
        axis = next(v.dim for v in view if (WHOSE if v.axis is None else v.axis) in short)
        message = f"`{param}` is read at another tile than the one waited for"
        note = Note(f"this wait does not cover axis `{axis}`", near[-1].loc)
    else:
        message, note = f"`{param}` is read and no wait covers it", None
    own = any(isinstance(op, (P.Store, P.Move)) and step.binding(op.param).tensor == load.tensor for op in ops)
    makers = "this program on other ranks" if own else "another program or rank"
    return TilelinkError(
        "TL602",
        message,
        loc=load.loc,
        why=f"tiles of `{load.tensor}` are made by {makers}: they are there after a wait, not before",
        hint=hint,
        notes=(note,) if note is not None else (),
    )


def _place(loc: Loc) -> tuple[int, int]:
    return loc.line, loc.column


def _written(plan: StepPlan, loc: Loc) -> str:
    """The index as it could be written, `, (m, k)`; nothing for a whole tensor."""
    ops = list(walk(plan.step.program.body))
    op = next(o for o in ops if isinstance(o, (P.Load, P.Move)) and o.loc == loc)
    said = {o.var: o.said for o in ops if isinstance(o, Tiles) and o.said is not None}
    parts: list[str] = []
    for e in takewhile(lambda e: not isinstance(e, P.Whole), op.index):
        if isinstance(e, At) and e.ring is not None:
            var, shift = e.ring
            text = f"{var} {'+' if shift > 0 else '-'} {abs(shift)}" if shift else var
        else:
            text = e.var if isinstance(e, OfTile) else e.expr.text if isinstance(e, (At, Gather)) else ""
        parts.append(re.sub(r"\w+", lambda found: said.get(found[0], found[0]), text))
    if not parts:
        return ""
    return f", {parts[0]}" if len(parts) == 1 else f", ({', '.join(parts)})"


def _unannounced(plan: StepPlan, store: Fact, flow: _Flow) -> TilelinkError:
    param = next(b.param for b in plan.step.bindings if b.tensor == store.tensor)
    about = [n for n in flow.notifies if n.tensor == store.tensor]
    before = [n for n in about if n.reaches(store) and _place(n.loc) < _place(store.loc)]
    if before:
        message, note = f"`{param}` is stored after the notify", Note("the notify", before[-1].loc)
    elif any(n.reaches(store) for n in about):
        message, note = f"`{param}` is stored on a path without a notify", Note("the notify", about[-1].loc)
    elif about:
        message, note = f"no notify covers this tile of `{param}`", Note("this one is for another tile", about[-1].loc)
    else:
        message, note = f"`{param}` is stored and nobody is told", None
    return TilelinkError(
        "TL603",
        message,
        loc=store.loc,
        why=f"others wait for `{store.tensor}`, and a notify says that what was stored before it is there",
        hint=f"call `tl.producer_tile_notify({param}, …)` for the same tile, behind the last store",
        notes=(note,) if note is not None else (),
    )
