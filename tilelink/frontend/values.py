"""What a name means inside a tile program, and what lowering an expression gives."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilelink.errors import Loc
from tilelink.ir.formula import Binary, Const, Formula, Sym, binary, text, truth
from tilelink.ir.program import Expr
from tilelink.ir.ring import around, distance

UNKNOWN = -1
"""The rank of a block whose number of dimensions is not known; not 0."""


@dataclass(frozen=True, slots=True)
class Value:
    """A lowered expression.

    `rank`: dimensions of the block, 0 for one value. `length`: entries, if it is a tuple. `coordinate`: it counts ranks
    and wraps. `wrapped`: something was added to it. `only_if`: of a truth without a formula, what it takes to be true.
    """

    node: ast.expr
    names: tuple[str, ...] = ()
    rank: int = 0
    positional: bool = True
    formula: Formula | None = None
    length: int | None = None
    coordinate: bool = False
    wrapped: bool = False
    only_if: Formula | None = None

    @property
    def ring(self) -> tuple[str, int] | None:
        """Which variable a coordinate is how far from, where that is known."""
        return distance(self.formula) if self.coordinate else None

    @property
    def text(self) -> str:
        return ast.unparse(self.node)

    def expr(self) -> Expr:
        return Expr(self.text, self.names, self.rank != 0, self.positional, self.formula, self.only_if)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor parameter."""

    param: str


@dataclass(frozen=True, slots=True)
class TileIndex:
    """A tile of an upper-case axis; `var` is the name that the core ops use."""

    var: str
    dim: str
    param: str
    axis: int
    loc: Loc


@dataclass(frozen=True, slots=True)
class TileTuple:
    """One name for all indices of `tile_id`; `vars` are bound by themselves."""

    vars: tuple[str, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class Variable:
    """A value by its name. `dim`: it is an index made from that axis."""

    name: str
    loc: Loc
    rank: int = 0
    positional: bool = True
    formula: Formula | None = None
    length: int | None = None
    coordinate: bool = False
    dim: str | None = None
    wrapped: bool = False
    static: bool = False
    """Known when a kernel is compiled: an int, bool or str constant."""
    only_if: Formula | None = None

    def value(self) -> Value:
        node = ast.Name(self.name, ast.Load())
        return Value(
            node,
            (self.name,),
            self.rank,
            self.positional,
            self.formula,
            self.length,
            self.coordinate,
            self.wrapped,
            self.only_if,
        )


Binding: TypeAlias = Tensor | TileIndex | TileTuple | Variable


def root(name: str, loc: Loc, *, dim: str | None = None, coordinate: bool = False, static: bool = False) -> Variable:
    """A variable that the plan knows by its name: a position, a bound, a holder, a constant."""
    return Variable(name, loc, formula=Sym(name), coordinate=coordinate, dim=dim, static=static)


def joined_names(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """All names, each once, in the order of their first use."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def common_rank(ranks: list[int]) -> int:
    """The rank of what is broadcast together."""
    return UNKNOWN if UNKNOWN in ranks else max(ranks, default=0)


def constant_of(node: ast.expr) -> object:
    """The value of a literal, signs included; `node` itself if it is none."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = constant_of(node.operand)
        if isinstance(inner, (int, float)):
            return -inner
    return node


# --------------------------------------------------------------------------------------------------- formulas of values
LARGEST = 200
"""Nodes in a formula. A longer one (a variable doubled again and again) is no longer followed."""


def bounded(formula: Formula | None) -> Formula | None:
    return formula if formula is not None and _nodes(formula) <= LARGEST else None


def _nodes(formula: Formula) -> int:
    return 1 if isinstance(formula, (Const, Sym)) else 1 + _nodes(formula.left) + _nodes(formula.right)


def combined(op: str, a: Formula | None, b: Formula | None) -> Formula | None:
    """The formula of `a op b`, if both have one and it has a value."""
    if a is None or b is None or (op in ("//", "%", "cdiv") and b == Const(0)):
        return None
    if op not in ("==", "!=") and any(isinstance(x, Const) and isinstance(x.value, str) for x in (a, b)):
        return None
    return bounded(binary(op, a, b))


def needed(parts: Sequence[Value]) -> Formula | None:
    """What it takes for all of some truths to be true, as far as positions say; None: they say nothing, or all of it."""
    known = [p.only_if if p.formula is None else truth(p.formula) for p in parts]
    if all(p.formula is not None for p in parts) or all(k is None for k in known):
        return None
    found: Formula | None = None
    for k in known:
        found = k if found is None else found if k is None else bounded(binary("and", found, k))
    return found


def rounded_down(op: str, a: Formula | None, b: Formula | None) -> Formula | None:
    """The formula of `a // b`, `a % b` or `cdiv` as Python has them, by those of Triton, which round towards 0."""
    if _counts(a) and _counts(b):
        return combined(op, a, b)
    if op == "cdiv":
        a = combined("+", a, combined("-", b, Const(1)))
    rest = combined("%", combined("+", combined("%", a, b), b), b)
    return rest if op == "%" else combined("//", combined("-", a, rest), b)


def _counts(formula: Formula | None) -> bool:
    """Whether it is plain that it is not negative."""
    if isinstance(formula, Const):
        return isinstance(formula.value, int) and formula.value >= 0
    if isinstance(formula, Binary):
        return formula.op in ("+", "*", "//", "%") and _counts(formula.left) and _counts(formula.right)
    return formula == Sym(RANKS)


# --------------------------------------------------------------------------------------------------------- the axis of ranks
RANKS = "RANKS"


def shifted(var: str, shift: int) -> Value:
    """`var + shift` on the axis of ranks."""
    formula = around(Sym(var), shift)
    names = (var, RANKS) if shift else (var,)
    return Value(
        ast.parse(text(formula), mode="eval").body, names, formula=formula, coordinate=True, wrapped=shift != 0
    )


def without_formula(value: Value) -> Value:
    return replace(value, formula=None)
