"""What a plan does not say of its signals, changed where it is said: in the emitted text, and in what streams do."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.mutants.mutations import Edit, Mutation
from tilelink.codegen import emit
from tilelink.codegen.names import naming_of
from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.host import Keep, Stage, Transfer
from tilelink.ir.kernel import KernelSource
from tilelink.ir.plan import Plan
from tilelink.ir.program import Notify
from tilelink.ir.streams import Action, Actions, Compute, Copy, Set, Wait, actions
from tilelink.mapping.lower import lower

Streams = Mapping[str, Actions]
WAITS = ("signal_wait_until", "signal_wait_each", "local_wait_until")
RAISES = ("signal_op", "signal_all", "local_add", "count")
IMPORT = "from benchmarks.mutants import weak"


@dataclass(frozen=True, slots=True)
class Running:
    """What runs: the kernels' text, and what the streams of every rank do, by executor. `edited`: other than the plan has it."""

    plan: Plan
    source: KernelSource
    streams: tuple[Streams, ...]
    edited: bool = False

    @property
    def key(self) -> object:
        """The same for what runs the same."""
        frame = (self.plan.host, self.plan.credits, self.plan.schedule.slots, self.plan.buffers)
        scopes = tuple(c.scope for c in self.plan.channels)
        return self.source.digest, repr(self.streams), repr(frame), scopes


def running(plan: Plan) -> Running:
    moving = [h.executor for h in plan.host if isinstance(h, (Transfer, Keep, Stage))]
    lowered = lower(plan)
    ranks = range(plan.topology.ranks)
    return Running(
        plan, emit(plan, lowered), tuple({name: actions(lowered, name, r) for name in moving} for r in ranks)
    )


class Unsayable(Exception):
    """No plan of the compiler's own is like this one, and codegen has no words for what it would mean."""


def mutant(original: Running, mutation: Mutation) -> Running | None:
    """What the mutation runs; None: the same as the plan.

    Raises:
        Unsayable: nothing that could run.
    """
    try:
        found = running(mutation.plan)
    except (AssertionError, LookupError, StopIteration, TilelinkError) as error:
        if mutation.edit is None:
            raise Unsayable(str(error)) from error
        found = original
    if mutation.edit is not None and (mutation.always or found.key == original.key):
        found = _edited(found, mutation.edit)
    return found if found.key != original.key else None


def _edited(found: Running, edit: Edit) -> Running:
    tree = ast.parse(found.source.text)
    names = naming_of(found.plan).functions
    own = names[edit.path] if edit.path else None
    for function in [f for f in tree.body if isinstance(f, ast.FunctionDef) and own in (None, f.name)]:
        calls = _calls(function, found, edit)
        if edit.what == "turn":
            _turn(function, calls, edit)
        else:
            for call in calls:
                _change(call, found.plan, edit)
    if edit.what == "weaken":
        at = next(i for i, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef))
        tree.body.insert(at, ast.parse(IMPORT).body[0])
    text = found.source.text
    if ast.dump(tree) != ast.dump(ast.parse(text)):
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    paths = {h.executor: h.path for h in found.plan.host if isinstance(h, (Transfer, Keep))}
    done = tuple(
        {
            name: tuple(_stream(found.plan, edit, paths[name], one) for one in each) if name in paths else each
            for name, each in of_rank.items()
        }
        for of_rank in found.streams
    )
    return replace(found, source=replace(found.source, text=text, digest=digest), streams=done, edited=True)


# ---------------------------------------------------------------------------------------------------------------- text
def _pointer(plan: Plan, edit: Edit) -> tuple[str, ...]:
    """What the signal's calls are given: the words of its channel, or the flags of who is ready."""
    if edit.channel == "ready":
        return ("ready_at", "entered_at")
    return (f"{plan.channel(edit.channel).tensor}_words", f"{plan.channel(edit.channel).tensor}_bells")


def _kinds(edit: Edit) -> tuple[str, ...]:
    if edit.op is None:
        return WAITS
    return (*RAISES, "ring_bell") if isinstance(edit.op, Notify) else WAITS


def _calls(function: ast.FunctionDef, found: Running, edit: Edit) -> list[ast.Call]:
    """Those of one signal. A program may raise the same words on several lines: then those of the signal's own line."""
    every = [n for n in ast.walk(function) if isinstance(n, ast.Call) and _is_signal(n, found.plan, edit)]
    return [
        n for n in every if edit.op is not None and _said(found, n) == (edit.op.loc.file, edit.op.loc.line)
    ] or every


def _said(found: Running, node: ast.Call) -> tuple[str, int] | None:
    """The line of the tile program that a call comes from."""
    loc = found.source.location(node.lineno)
    return (loc.file, loc.line) if loc is not None else None


def _is_signal(node: ast.Call, plan: Plan, edit: Edit) -> bool:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _kinds(edit):
        return False
    return any(isinstance(n, ast.Name) and n.id in _pointer(plan, edit) for n in ast.walk(node.args[0]))


def _to_all(node: ast.Call) -> bool:
    """Whether there is no rank to mistake for another."""
    return isinstance(node.func, ast.Attribute) and node.func.attr == "signal_all"


def _change(node: ast.Call, plan: Plan, edit: Edit) -> None:
    if edit.what == "weaken":
        assert isinstance(node.func, ast.Attribute)
        node.func = _expression(f"weak.{node.func.attr}")
    elif edit.what == "word" and isinstance(node.args[0], ast.BinOp):
        node.args[0].right = _next(node.args[0].right, _count(plan, edit))
    elif edit.what == "rank" and len(node.args) == 5 and not _to_all(node):
        node.args[3] = _next(node.args[3], plan.topology.ranks)
    elif edit.what == "count" and len(node.args) in (3, 4):
        node.args[2] = ast.BinOp(node.args[2], ast.Add(), ast.Constant(edit.by))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _next(value: ast.expr, count: int) -> ast.expr:
    return ast.BinOp(ast.BinOp(value, ast.Add(), ast.Constant(1)), ast.Mod(), ast.Constant(count))


def _count(plan: Plan, edit: Edit) -> int:
    if edit.channel == "ready":
        return plan.topology.ranks
    return int(F.evaluate(plan.channel(edit.channel).words, plan.env(0)))


def _turn(function: ast.FunctionDef, calls: list[ast.Call], edit: Edit) -> None:
    """Let the access and the signal change places, in the block that has both."""
    for block in _blocks(function):
        signals = [i for i, s in enumerate(block) if any(n in calls for n in ast.walk(s))]
        accesses = [i for i, s in enumerate(block) if i not in signals and _accesses(s, edit)]
        if not signals or not accesses:
            continue
        if isinstance(edit.op, Notify):
            store = max((i for i in accesses if i < signals[0]), default=None)
            if store is not None:
                block.insert(signals[-1], block.pop(store))
        else:
            load = min((i for i in accesses if i > signals[-1]), default=None)
            if load is not None:
                block.insert(load, block.pop(signals[-1]))
        return


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for inner in ast.walk(node):
        for field in ("body", "orelse"):
            block = getattr(inner, field, None)
            if isinstance(block, list):
                yield block


MOVES = ("getmem_nbi_block", "putmem_nbi_block")


def _accesses(statement: ast.stmt, edit: Edit) -> bool:
    """Whether the statement moves or stores a tile, of whatever tensor: emitted movements have one of each."""
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    named = {c.func.attr for c in calls if isinstance(c.func, ast.Attribute)}
    if isinstance(edit.op, Notify):
        return bool(named & {*MOVES, "store"})
    return bool(named & {*MOVES, "load"})


# ------------------------------------------------------------------------------------------------------------- streams
def _stream(plan: Plan, edit: Edit, path: str, done: tuple[Action, ...]) -> tuple[Action, ...]:
    if edit.path not in ("", path):
        return done
    if edit.what == "turn":
        return tuple(_turned(list(done), edit))
    if edit.what == "word":
        return tuple(_word(plan, edit, action) for action in done)
    return tuple(_rank(plan, action) for action in done) if edit.what == "rank" else done


def _word(plan: Plan, edit: Edit, action: Action) -> Action:
    # The next word is set, and the one before is waited for: a stream will have waited for that already.
    if isinstance(edit.op, Notify) and isinstance(action, Set):
        return replace(action, index=(action.index + 1) % _count(plan, edit))
    if not isinstance(edit.op, Notify) and isinstance(action, Wait):
        return replace(action, index=(action.index - 1) % _count(plan, edit))
    return action


def _rank(plan: Plan, action: Action) -> Action:
    return replace(action, rank=(action.rank + 1) % plan.topology.ranks) if isinstance(action, Set) else action


def _turned(done: list[Action], edit: Edit) -> list[Action]:
    """Every copy, or call of a library, with the word that is set behind it, or every wait with what it is for."""
    made = (Copy, Compute)
    first, then = (made, Set) if isinstance(edit.op, Notify) else (Wait, made)
    at = 0
    while at + 1 < len(done):
        if isinstance(done[at], first) and isinstance(done[at + 1], then):
            done[at], done[at + 1] = done[at + 1], done[at]
            at += 1
        at += 1
    return done
