"""Order inside a tile: what is read was waited for, what is stored is announced afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.formula import as_asked, evaluate, symbols
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import (
    At,
    Bounds,
    Holder,
    If,
    Index,
    Let,
    Load,
    Loop,
    Move,
    Notify,
    OfTile,
    Op,
    Store,
    Tiles,
    Wait,
    Whole,
    walk,
)
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping.programs.facts import EMPTY, WHOSE, Fact, State, Token, When, after_loop, fact, merged


def check_flow(plan: Plan) -> str:
    """Every load of what a program makes is dominated by a wait that covers it; every store somebody waits for is
    followed by a notify that covers it, on every path.

    Raises:
        TilelinkError: TL602 (loads), TL603 (stores).
    """
    awaited = frozenset(
        s.step.binding(op.param).tensor for s in plan.steps for op in walk(s.step.program.body) if isinstance(op, Wait)
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


@dataclass(slots=True)
class _Flow:
    """One walk over a program."""

    wiring: Wiring
    plan: StepPlan
    awaited: frozenset[str]
    loads: int = 0
    stores: int = 0
    notifies: list[Fact] = field(default_factory=list[Fact])

    @property
    def step(self) -> Step:
        return self.plan.step

    def run(self, body: tuple[Op, ...], state: State, when: When) -> None:
        for op in body:
            self._op(op, state, when)

    def _op(self, op: Op, state: State, when: When) -> None:
        if isinstance(op, Wait):
            state.known.append(fact(self.step, op.param, op.index, when, op.loc))
        elif isinstance(op, Notify):
            told = fact(self.step, op.param, op.index, when, op.loc)
            self.notifies.append(told)
            state.tell(told)
        elif isinstance(op, Load):
            # A copy program that is written as a push may be scheduled as a pull.
            pulls = self.step.program.copy_program is not None and not self.plan.push
            self._read(op.param, fact(self.step, op.param, op.index, when, op.loc), state, remote=pulls)
            state.forget(frozenset({op.name}))
        elif isinstance(op, Move):
            self._read(op.source, fact(self.step, op.source, op.index, when, op.loc), state, remote=True)
            self._write(fact(self.step, op.param, op.index, when, op.loc), state, own=True)
        elif isinstance(op, Store):
            self._write(fact(self.step, op.param, op.index, when, op.loc), state, own=op.to == "own")
        elif isinstance(op, If):
            self._branch(op, state, when)
        elif isinstance(op, (Tiles, Loop)):
            self._loop(op, state, when)
        else:
            state.forget(_bound(op))

    def _read(self, param: str, load: Fact, state: State, *, remote: bool) -> None:
        tensor = self.wiring.tensor(load.tensor)
        crosses = remote and tensor.names_holders(self.step.binding(param).view)
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

    def _branch(self, op: If, state: State, when: When) -> None:
        known = _settled(op, self.step)
        if known is not None:
            return self.run(op.body if known else op.orelse, state, when)
        token, holds = _token(op)
        body, orelse = (op.body, op.orelse) if holds else (op.orelse, op.body)
        before, yes, no = state.copy(), state.copy(), state.copy()
        yes.open, no.open = ([f.within(token, branch) for f in state.open] for branch in (True, False))
        self.run(body, yes, when | {(token, True)})
        self.run(orelse, no, when | {(token, False)})
        found = merged(token, before, yes, no)
        state.known, state.open, state.told = found.known, found.open, found.told

    def _loop(self, op: Tiles | Loop, state: State, when: When) -> None:
        bound = frozenset(n for o in walk(op.body) for n in _bound(o)) | _target(op)
        state.forget(bound)
        inside = State(list(state.known), [], [])
        self.run(op.body, inside, when)
        new = [f for f in inside.known if f not in state.known]
        told = inside.told
        inside.forget(bound)
        state.open += inside.open
        if isinstance(op, Tiles):
            whole = partial(self._walks_all, op)
            state.known += after_loop(op, when, new, bound, whole)
            for notify in after_loop(op, when, told, bound, whole):
                state.tell(notify)

    def _walks_all(self, walk: Tiles, tensor: str, axis: int) -> bool:
        """Whether a walk over this rank's part of an axis is one over all that this rank has of another tensor's."""
        by_parts = self.step.binding(walk.param).view[walk.axis].by_parts
        return not by_parts or axis == WHOSE or self.wiring.tensor(tensor).axes[axis].over == self.plan.axis


def _token(op: If) -> tuple[Token, bool]:
    return as_asked(op.test.formula) if op.test.formula is not None else (id(op), True)


def _settled(op: If, step: Step) -> bool | None:
    """Which branch is taken where constants alone say so."""
    formula = op.test.formula
    if formula is None or not symbols(formula) <= step.compiled.keys():
        return None
    return bool(evaluate(formula, step.compiled))


def _target(op: Tiles | Loop) -> frozenset[str]:
    name = op.var if isinstance(op, Tiles) else op.target
    return frozenset({name}) if name is not None else frozenset()


def _bound(op: Op) -> frozenset[str]:
    """The names that an op binds."""
    if isinstance(op, Let):
        return frozenset(op.target)
    if isinstance(op, (Bounds, Holder, Load)):
        return frozenset({op.name})
    if isinstance(op, (Tiles, Loop)):
        return _target(op)
    return frozenset()


# ----------------------------------------------------------------------------------------------------------- diagnostics
def _unguarded(plan: StepPlan, param: str, load: Fact, state: State) -> TilelinkError:
    late = _later(plan, load)
    near = [f for f in state.known if f.tensor == load.tensor]
    hint = f"write `tl.consumer_tile_wait({param}{_written(plan, load.loc)})` before it"
    if late is not None:
        message, note = f"`{param}` is read before it is waited for", Note("the wait comes only here", late)
    elif any(f.reaches(load) for f in near):
        message, note = f"`{param}` is read on a path without the wait", Note("the wait", near[-1].loc)
        hint = "wait on every path, or read it under the wait's own test"
    elif near:
        message = f"`{param}` is read at another tile than the one waited for"
        note = Note(f"this wait does not cover {_axes(plan, load, near[-1])}", near[-1].loc)
    else:
        message, note = f"`{param}` is read and no wait covers it", None
    return TilelinkError(
        "TL602",
        message,
        loc=load.loc,
        why=f"tiles of `{load.tensor}` are made by {_makers(plan, load.tensor)}: they are there after a wait, not before",
        hint=hint,
        notes=(note,) if note is not None else (),
    )


def _makers(plan: StepPlan, tensor: str) -> str:
    own = any(
        isinstance(op, (Store, Move)) and plan.step.binding(op.param).tensor == tensor
        for op in walk(plan.step.program.body)
    )
    return "this program on other ranks" if own else "another program or rank"


def _later(plan: StepPlan, load: Fact) -> Loc | None:
    """A wait behind the load that would cover it."""
    for op in walk(plan.step.program.body):
        if isinstance(op, Wait) and (op.loc.line, op.loc.column) > (load.loc.line, load.loc.column):
            wait = fact(plan.step, op.param, op.index, EMPTY, op.loc)
            if wait.tensor == load.tensor and wait.reaches(load):
                return op.loc
    return None


def _axes(plan: StepPlan, load: Fact, wait: Fact) -> str:
    """The axes on which the wait falls short, by the program's own names."""
    mine = dict(wait.index)
    short = [a for a, e in load.index if a in mine and not mine[a].covers(e)]
    binding = next(b for b in plan.step.bindings if b.tensor == load.tensor)
    names = [v.dim for v in binding.view if (WHOSE if v.axis is None else v.axis) in short]
    return f"axis `{names[0]}`"


def _written(plan: StepPlan, loc: Loc) -> str:
    """The index as it could be written, `, (m, k)`; nothing for a whole tensor."""
    op = next(o for o in walk(plan.step.program.body) if isinstance(o, (Load, Move)) and o.loc == loc)
    said = {o.var: o.said for o in walk(plan.step.program.body) if isinstance(o, Tiles) and o.said is not None}
    parts = [re.sub(r"\w+", lambda found: said.get(found[0], found[0]), text) for text in _texts(op.index)]
    if not parts:
        return ""
    return f", {parts[0]}" if len(parts) == 1 else f", ({', '.join(parts)})"


def _texts(index: Index) -> Iterator[str]:
    for e in index:
        if isinstance(e, Whole):
            return
        if isinstance(e, OfTile):
            yield e.var
        elif isinstance(e, At) and e.ring is not None:
            var, shift = e.ring
            yield f"{var} {'+' if shift > 0 else '-'} {abs(shift)}" if shift else var
        else:
            yield e.expr.text


def _unannounced(plan: StepPlan, store: Fact, flow: _Flow) -> TilelinkError:
    param = next(b.param for b in plan.step.bindings if b.tensor == store.tensor)
    about = [n for n in flow.notifies if n.tensor == store.tensor]
    before = [n for n in about if n.reaches(store) and (n.loc.line, n.loc.column) < (store.loc.line, store.loc.column)]
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
