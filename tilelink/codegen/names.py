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

    def argument(self, name: str) -> str:
        """The name of a kernel argument that is neither a tensor nor a size."""
        return _evading(name, self.parameters | (self.fixed - self.own), "_")

    def evading(self, step: StepPlan, more: frozenset[str]) -> frozenset[str]:
        """The names of a step's program that something else in its function has; `more`: what its caller passes."""
        tables = {self.tensors[g.table] for g in (*step.grid, *step.loops) if g.table is not None}
        taken = {*self.fixed, *self.parameters, *self.given.values(), *more}
        taken |= {f"{t}_{x}" for t in tables for x in TABLE}
        patterns = (PLANNED, _derived(self.parameters, _OF_TENSOR), _derived({*self.functions.values()}, _OF_STEP))
        names = names_of(step.step.program)
        return frozenset(n for n in names if n in taken or any(p.fullmatch(n) for p in patterns))


def _derived(names: set[str], suffix: str) -> re.Pattern[str]:
    return re.compile("(" + "|".join(map(re.escape, sorted(names))) + ")" + suffix)


TABLE = ("lane", "pieces", "last", "tiles", "fine")
"""What is made of an offsets table at the head of a function."""


def naming_of(plan: Plan) -> Naming:
    tensors, sizes, kernels = (
        [t.name for t in plan.wiring.tensors],
        [*plan.wiring.sizes],
        {k.name for k in plan.kernels},
    )
    # Constants and helpers of the users' modules keep their names.
    programs = [s.step.program for s in plan.steps]
    users = {n for p in programs for n in (*dict(p.globals), *[h.name for h in p.helpers])}
    functions = _functions(plan, {*OF_EVERY_FILE, *OF_EVERY_FUNCTION, *users, *kernels, *sizes, *tensors})
    # Where there are several axes of ranks, functions have for each this rank's coordinate, how many there are, and where.
    axes = plan.wiring.axes if len(plan.wiring.axes) > 1 else ()
    own = OF_EVERY_FUNCTION | {n for a in axes for n in (rank_along(a).name, ranks_along(a).name, f"{a}_ctx")}
    fixed = OF_EVERY_FILE | own | users | kernels | {*functions.values()}
    drivers: dict[str, str] = {}
    for s in (s for s in plan.steps if s.deferred):
        taken = {*fixed, *sizes, *tensors, *drivers.values()}
        drivers[s.path] = _evading(f"{s.path.replace('.', '_')}_behind", taken, "_step")
    fixed |= {*drivers.values()}
    named = _distinct(tensors, fixed, "_tensor")
    sized = _distinct(sizes, {*fixed, *named.values()}, "_size")
    given = _given(plan, functions, {*fixed, *named.values(), *sized.values()})
    return Naming(functions, drivers, named, sized, given, fixed, own)


def _functions(plan: Plan, taken: set[str]) -> dict[str, str]:
    """Step path -> function. A kernel of one role is that role's function."""
    out = {k.roles[0][0]: k.name for k in plan.kernels if len(k.roles) == 1}
    for s in plan.steps:
        if s.path not in out:
            out[s.path] = _evading(s.path.replace(".", "_"), taken, "_step")
            taken.add(out[s.path])
    return out


def _given(plan: Plan, functions: dict[str, str], taken: set[str]) -> dict[str, str]:
    """As of `Naming`. Steps of one kernel share its parameters, so that none of these has the name of another."""
    out: dict[str, str] = {}
    for s in plan.steps:
        wishes = {f"{s.path}.{n}": f"{functions[s.path]}_{n}" for n, v in s.step.constants if isinstance(v, float)}
        if s.sort_key is not None:
            wishes[order_of(s.path)] = f"{functions[s.path]}_order"
        for key, wish in wishes.items():
            out[key] = _evading(wish, taken | {*out.values()}, "_")
    return out


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


def _distinct(names: list[str], taken: set[str] | frozenset[str], suffix: str) -> dict[str, str]:
    """Each name as it is or, where it is taken, with suffixes that give none of the others."""
    out: dict[str, str] = {}
    for name in names:
        others = {n for n in names if n != name} | set(out.values())
        out[name] = name if name == _evading(name, taken, suffix) else _evading(name + suffix, others | taken, suffix)
    return out


def _evading(name: str, taken: set[str] | frozenset[str], suffix: str) -> str:
    while name in taken or name in _PYTHON or PLANNED.fullmatch(name):
        name += suffix
    return name
