"""Who is called what in an emitted file.

A user's name stays as it is wherever it can. What the file itself needs is fixed per plan, so that the functions of one
kernel agree on it; tensors, then sizes, then a program's own names evade it.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Bounds, Holder, Let, Load, Loop, Op, Tile, TileProgram, Tiles, walk

MODULE = frozenset({"tl", "triton", "shmem", "enter", "ready", "leave", "await_word"})
"""Imports and one-block kernels."""

WORDS = frozenset({"worker", "workers", "rank", "RANKS", "t", "ctx", "epoch"})
"""Locals and parameters of emitted functions."""

_STATE = frozenset({"epoch_at", "last_at", "entered_at", "ready_at", "left_at", "word_at", "value_at"})
_PLANNED = re.compile(r"[ci]\d+|sorted_t|turned|part_top|group_top|group_rows")
"""Symbols of a plan's formulas; sizes are never called so."""

_SUFFIX = r"_(words|due|bells|stage|ctx|stride_\d+|\d+x\d+)"
_PYTHON = frozenset(keyword.kwlist) | {n for n in dir(builtins) if n.islower()}


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one file: step path -> function, tensor -> parameter, size -> parameter; `fixed`: what else it has."""

    functions: dict[str, str]
    tensors: dict[str, str]
    sizes: dict[str, str]
    fixed: frozenset[str]

    @property
    def parameters(self) -> set[str]:
        """Of tensors and sizes."""
        return {*self.tensors.values(), *self.sizes.values()}

    def argument(self, name: str) -> str:
        """The name of a kernel argument that is neither a tensor nor a size."""
        return _evading(name, self.parameters, "_")

    def evading(self, step: StepPlan, more: frozenset[str]) -> frozenset[str]:
        """The names of a step's program that something else in its function has; `more`: what its caller passes."""
        tables = {self.tensors[g.table] for g in (*step.grid, *step.loops) if g.table is not None}
        taken = {*self.fixed, *self.parameters, *more, *(f"{t}_{x}" for t in tables for x in TABLE)}
        derived = re.compile("(" + "|".join(map(re.escape, sorted(self.parameters))) + ")" + _SUFFIX)
        names = bound(step.step.program)
        return frozenset(n for n in names if n in taken or _PLANNED.fullmatch(n) or derived.fullmatch(n))


TABLE = ("lane", "pieces", "last", "tiles")
"""What is made of an offsets table at the head of a function."""


def naming_of(plan: Plan) -> Naming:
    functions = _functions(plan)
    fixed = MODULE | WORDS | _STATE | _globals(plan) | set(functions.values()) | {k.name for k in plan.kernels}
    tensors = {t.name: _evading(t.name, fixed, "_tensor") for t in plan.wiring.tensors}
    sizes = {n: _evading(n, {*fixed, *tensors.values()}, "_size") for n in plan.wiring.sizes}
    return Naming(functions, tensors, sizes, fixed)


def _globals(plan: Plan) -> frozenset[str]:
    """Constants and helpers of the users' modules, which keep their names."""
    programs = [s.step.program for s in plan.steps]
    return frozenset(n for p in programs for n in (*dict(p.globals), *[h.name for h in p.helpers]))


def _functions(plan: Plan) -> dict[str, str]:
    """Step path -> function. A kernel of one role is that role's function."""
    taken = {*MODULE, *WORDS, *_globals(plan), *plan.wiring.sizes, *[t.name for t in plan.wiring.tensors]}
    taken |= {k.name for k in plan.kernels}
    out = {k.roles[0][0]: k.name for k in plan.kernels if len(k.roles) == 1}
    for s in plan.steps:
        if s.path not in out:
            out[s.path] = _evading(s.path.replace(".", "_"), taken, "_step")
            taken.add(out[s.path])
    return out


def bound(program: TileProgram) -> set[str]:
    """Every name that a program binds."""
    return {c.name for c in program.constants} | {n for op in walk(program.body) for n in _names(op)}


def _names(op: Op) -> Iterator[str]:
    if isinstance(op, (Bounds, Holder, Load)):
        yield op.name
    elif isinstance(op, Let):
        yield from op.target
    elif isinstance(op, Tiles):
        yield op.var
    elif isinstance(op, Loop) and op.target:
        yield op.target
    elif isinstance(op, Tile):
        yield from (n for n in op.names if n)


def _evading(name: str, taken: set[str] | frozenset[str], suffix: str) -> str:
    while name in taken or name in _PYTHON:
        name += suffix
    return name
