"""Who is called what in an emitted file.

A user's name stays as it is wherever it can. What the file itself needs is fixed per plan, so that the functions of one
kernel agree on it; tensors, then sizes, then a program's own names evade it.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

from tilelink.codegen.text import Names
from tilelink.ir.kernel import OF_EVERY_FILE, OF_EVERY_FUNCTION, PLANNED
from tilelink.ir.plan import Plan, StepPlan, order_of
from tilelink.ir.program import Expr, Op, TileProgram, bound, walk
from tilelink.ir.shape import rank_along, ranks_along

_OF_TENSOR = r"_(flags|expected|doorbells|counts|stage|ctx|stride_\d+|\d+(x\d+)+)"
_OF_STEP = r"_(made|work_indices)"
_PYTHON = frozenset(keyword.kwlist) | {n for n in dir(builtins) if n.islower()}


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one file: step path -> function, tensor -> parameter, size -> parameter; `drivers`: path -> the function that
    takes tiles for a step behind its host's; `given`: parameters for a step's run-time constants, by its path and their names
    joined by a dot, and for its order by a key, by the symbol of that; `fixed`: all other names of the file; `own`: those of
    them that are locals or parameters of every function."""

    functions: dict[str, str]
    drivers: dict[str, str]
    tensors: dict[str, str]
    sizes: dict[str, str]
    given: dict[str, str]
    fixed: frozenset[str]
    own: frozenset[str]

    @property
    def parameters(self) -> set[str]:
        """Of tensors and sizes."""
        return {*self.tensors.values(), *self.sizes.values()}

    @property
    def taken(self) -> set[str]:
        """All that no function may call anything else."""
        return {*self.fixed, *self.parameters, *self.given.values()}

    def argument(self, name: str) -> str:
        """The name of a kernel argument that is neither a tensor nor a size."""
        return Names(self.parameters | (self.fixed - self.own)).fresh(name, "_")

    def evading(self, step: StepPlan, more: frozenset[str]) -> frozenset[str]:
        """The names of a step's program that something else in its function has; `more`: what its caller passes."""
        tables = {self.tensors[g.table] for g in (*step.grid, *step.loops) if g.table is not None}
        taken = self.taken | more
        taken |= {f"{t}_{x}" for t in tables for x in TABLE}
        patterns = (PLANNED, _derived(self.parameters, _OF_TENSOR), _derived({*self.functions.values()}, _OF_STEP))
        names = names_of(step.step.program)
        return frozenset(n for n in names if n in taken or any(p.fullmatch(n) for p in patterns))


def _derived(names: set[str], suffix: str) -> re.Pattern[str]:
    return re.compile("(" + "|".join(map(re.escape, sorted(names))) + ")" + suffix)


TABLE = ("lane", "pieces", "last", "tiles", "fine")
"""What is made of an offsets table at the head of a function."""


def naming_of(plan: Plan) -> Naming:
    # Where there are several axes of ranks, functions have for each this rank's coordinate, how many there are, and where.
    axes = plan.wiring.axes if len(plan.wiring.axes) > 1 else ()
    own = OF_EVERY_FUNCTION | {n for a in axes for n in (rank_along(a).name, ranks_along(a).name, f"{a}_ctx")}
    # Constants and helpers of the users' modules keep their names.
    programs = [s.step.program for s in plan.steps]
    users = {n for p in programs for n in (*dict(p.globals), *[h.name for h in p.helpers])}
    fixed = OF_EVERY_FILE | own | users | {k.name for k in plan.kernels}
    names = Names({*fixed, *_PYTHON})
    tensors = {t.name: names.fresh(t.name, "_tensor") for t in plan.wiring.tensors}
    sizes = {name: names.fresh(name, "_size") for name in plan.wiring.sizes}
    # A kernel of one role is that role's function.
    functions = {k.roles[0][0]: k.name for k in plan.kernels if len(k.roles) == 1}
    drivers, given = dict[str, str](), dict[str, str]()
    for s in plan.steps:
        called = s.path.replace(".", "_")
        if s.path not in functions:
            functions[s.path] = names.fresh(called, "_step")
        if s.deferred:
            drivers[s.path] = names.fresh(f"{called}_behind", "_step")
    for s in plan.steps:
        # Steps of one kernel share its parameters, so that none of these has the name of another.
        for name in (name for name, value in s.step.constants if isinstance(value, float)):
            given[f"{s.path}.{name}"] = names.fresh(f"{functions[s.path]}_{name}", "_")
        if s.sort_key is not None:
            given[order_of(s.path)] = names.fresh(f"{functions[s.path]}_order", "_")
    fixed |= {*functions.values(), *drivers.values()}
    return Naming(functions, drivers, tensors, sizes, given, fixed, own)


def names_of(program: TileProgram) -> set[str]:
    """Every name that a program binds."""
    return {c.name for c in program.constants} | bound_in(program.body)


def bound_in(body: tuple[Op, ...]) -> set[str]:
    """Every name that these ops bind."""
    return {n for op in walk(body) for n in bound(op)}


def expressions(op: Op) -> Iterator[Expr]:
    """Those of an op, of its body none."""
    for value in (getattr(op, f.name) for f in fields(op)):
        several = cast("tuple[Any, ...]", value if isinstance(value, tuple) else (value,))
        found = (getattr(one, "expr", one) for one in several)
        yield from (expr for expr in found if isinstance(expr, Expr))
