"""What a mutant runs: the emitted text and what streams do; where memory order is taken away, that is done to the text."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.mutants.mutations import Mutation
from tilelink.codegen import emit
from tilelink.codegen.names import naming_of
from tilelink.errors import TilelinkError
from tilelink.ir.kernel import KernelSource
from tilelink.ir.plan import Keep, Plan, Signal, Stage, Transfer
from tilelink.ir.program import Notify
from tilelink.ir.streams import Actions, actions
from tilelink.mapping.lower import lower

Streams = Mapping[str, Actions]
WAITS = ("signal_wait_until", "signal_wait_each", "local_wait_until")
RAISES = ("signal_op", "signal_all", "local_add", "count", "ring_doorbell")
IMPORT = "from benchmarks.mutants import weak"


@dataclass(frozen=True, slots=True)
class Running:
    """What runs: the kernels' text, and what the streams of every rank do, by executor."""

    plan: Plan
    source: KernelSource
    streams: tuple[Streams, ...]

    @property
    def key(self) -> object:
        """The same for what runs the same."""
        frame = (self.plan.host, self.plan.takes_credits, self.plan.schedule.slots, self.plan.buffers)
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
        raise Unsayable(str(error)) from error
    if mutation.weakened is not None:
        found = _weakened(found, mutation.weakened)
    return found if found.key != original.key else None


def _weakened(found: Running, signal: Signal) -> Running:
    text = found.source.text
    tree = ast.parse(text)
    own = naming_of(found.plan).functions[signal.path]
    calls = [c for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == own for c in _calls(f, found, signal)]
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        call.func = ast.parse(f"weak.{call.func.attr}", mode="eval").body
    at = next(i for i, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef))
    tree.body.insert(at, ast.parse(IMPORT).body[0])
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return replace(found, source=replace(found.source, text=text))


def _calls(function: ast.FunctionDef, found: Running, signal: Signal) -> list[ast.Call]:
    """Those of one signal. A program may notify the same flags on several lines: then those of the signal's own line."""
    every = [n for n in ast.walk(function) if isinstance(n, ast.Call) and _is_signal(n, found.plan, signal)]
    line = (signal.op.loc.file, signal.op.loc.line)
    return [n for n in every if _said(found, n) == line] or every


def _said(found: Running, node: ast.Call) -> tuple[str, int] | None:
    """The line of the tile program that a call comes from."""
    loc = found.source.location(node.lineno)
    return (loc.file, loc.line) if loc is not None else None


def _is_signal(node: ast.Call, plan: Plan, signal: Signal) -> bool:
    """Whether a call is given the flags of the signal's channel, or those of who is ready."""
    kinds = RAISES if isinstance(signal.op, Notify) else WAITS
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in kinds:
        return False
    own = ("ready_at", "entered_at")
    given = own if signal.channel is None else (f"{signal.channel}_flags", f"{signal.channel}_doorbells")
    return any(isinstance(n, ast.Name) and n.id in given for n in ast.walk(node.args[0]))
