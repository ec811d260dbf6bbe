"""What a name means inside a tile program, what lowering an expression gives, and what names mean where paths meet."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeGuard

from tilelink.errors import Loc
from tilelink.ir.formula import Binary, Const, Formula, Sym, binary, parts, select, symbols, text, truth
from tilelink.ir.program import Expr, Param
from tilelink.ir.shape import around, distance

UNKNOWN = -1
"""The rank of a block whose number of dimensions is not known; not 0."""


@dataclass(frozen=True, slots=True)
class Value:
    """A lowered expression. `rank`: dimensions of the block, 0 for one value. `length`: entries, if it is a tuple.
    `coordinate`: it counts ranks and wraps. `wrapped`: something was added to it. `only_if`: of a truth without a formula, what
    it takes to be true. `entries`: of a tuple that is written out, or a range. `bit`: a kernel has it as a truth value, and
    not as an integer, which a formula that is 0 or 1 does not tell; None: the path that is taken says so."""

    node: ast.expr = field(compare=False)  # a loop's body is lowered until names mean the same; nodes are new each time
    names: tuple[str, ...] = ()
    rank: int = 0
    positional: bool = True
    formula: Formula | None = None
    length: int | None = None
    coordinate: bool = False
    wrapped: bool = False
    only_if: Formula | None = None
    entries: tuple[Value, ...] = ()
    bit: bool | None = False

    @property
    def ring(self) -> tuple[str, int] | None:
        """Which variable a coordinate is how far from, where that is known."""
        return distance(self.formula) if self.coordinate else None

    @property
    def text(self) -> str:
        return ast.unparse(self.node)

    def expr(self) -> Expr:
        return Expr(self.text, self.names, self.rank != 0, self.positional, self.formula, self.only_if)

    def called(self, name: str) -> Value:
        """The same by the name that it has been given."""
        return replace(self, node=ast.Name(name, ast.Load()), names=(name,))


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
    """A value by its name. `dim`: it is an index made from that axis. `static`: it is known when a kernel is compiled, as an
    int, bool or str constant is."""

    value: Value
    loc: Loc
    dim: str | None = None
    static: bool = False

    @property
    def name(self) -> str:
        return self.value.names[0]


Binding: TypeAlias = Param | TileIndex | TileTuple | Variable
Environment: TypeAlias = dict[str, Binding]


def is_index(binding: Binding | None) -> TypeGuard[TileIndex | TileTuple | Variable]:
    """Bound by `tile_id` or `tiles`."""
    return isinstance(binding, (TileIndex, TileTuple)) or (isinstance(binding, Variable) and binding.dim is not None)


def named(name: str, **more: Any) -> Value:
    return Value(ast.Name(name, ast.Load()), (name,), **more)


def root(
    name: str, loc: Loc, *, dim: str | None = None, coordinate: bool = False, static: bool = False, bit: bool = False
) -> Variable:
    """A variable that the plan knows by its name: a position, a bound, a holder, a constant."""
    return Variable(named(name, formula=Sym(name), coordinate=coordinate, bit=bit), loc, dim, static)


def joined_names(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """All names, each once, in the order of their first use."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def common_rank(values: Iterable[Value]) -> int:
    """The rank of what is broadcast together."""
    ranks = [v.rank for v in values]
    return UNKNOWN if UNKNOWN in ranks else max(ranks, default=0)


def all_bits(values: Iterable[Value]) -> bool | None:
    """Whether a kernel has all of them as truth values: what it makes of them then is one."""
    bits = [v.bit for v in values]
    return False if False in bits else None if None in bits else True


def constant_of(node: ast.expr) -> object:
    """The value of a literal, signs included; `node` itself if it is none."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = constant_of(node.operand)
        if isinstance(inner, (int, float)):
            return -inner
    return node


def integer_of(node: ast.expr) -> int | None:
    value = constant_of(node)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number_of(value: Value) -> int | None:
    """The integer that a value is, by whatever name; None: it is none, or not known yet."""
    found = integer_of(value.node)
    known = value.formula.value if isinstance(value.formula, Const) and value.rank == 0 else None
    return found if found is not None else known if isinstance(known, int) else None


# --------------------------------------------------------------------------------------------------- formulas of values
LARGEST = 200
"""Nodes in a formula. A longer one (a variable doubled again and again) is no longer followed."""


def bounded(formula: Formula | None) -> Formula | None:
    return formula if formula is not None and sum(1 for _ in parts(formula)) <= LARGEST else None


def combined(op: str, a: Formula | None, b: Formula | None) -> Formula | None:
    """The formula of `a op b`, if both have one and it has a value."""
    if a is None or b is None or (op in ("//", "%", "cdiv") and b == Const(0)):
        return None
    if op not in ("==", "!=") and any(isinstance(x, Const) and isinstance(x.value, str) for x in (a, b)):
        return None
    return bounded(binary(op, a, b))


def needed(truths: Sequence[Value]) -> Formula | None:
    """What it takes for all of some truths to be true, as far as positions say; None: they say nothing, or all of it."""
    if all(p.formula is not None for p in truths):
        return None
    known = [p.only_if if p.formula is None else truth(p.formula) for p in truths]
    found: Formula | None = None
    for k in known:
        found = k if found is None else found if k is None else bounded(binary("and", found, k))
    return found


def either(test: Formula | None, a: Formula | None, b: Formula | None) -> Formula | None:
    """The formula of `a if test else b`, if all have one."""
    return None if test is None or a is None or b is None else bounded(select(test, a, b))


def rounded_down(op: str, a: Formula | None, b: Formula | None) -> Formula | None:
    """The formula of `a // b`, `a % b` or `cdiv` as Python has them, by those of Triton, which round towards 0."""
    if never_negative(a) and never_negative(b):
        return combined(op, a, b)
    if op == "cdiv":
        a = combined("+", a, combined("-", b, Const(1)))
    rest = combined("%", combined("+", combined("%", a, b), b), b)
    return rest if op == "%" else combined("//", combined("-", a, rest), b)


def never_negative(formula: Formula | None) -> bool:
    """Whether that is plain."""
    if isinstance(formula, Const):
        return isinstance(formula.value, int) and formula.value >= 0
    if isinstance(formula, Binary):
        kept = formula.op in ("+", "*", "//", "%")
        return kept and never_negative(formula.left) and never_negative(formula.right)
    return formula == Sym(RANKS)


# --------------------------------------------------------------------------------------------------------- the axis of ranks
RANKS = "RANKS"


def shifted(var: str, shift: int) -> Value:
    """`var + shift` on the axis of ranks."""
    formula = around(Sym(var), shift)
    names = (var, RANKS) if shift else (var,)
    node = ast.parse(text(formula), mode="eval").body
    return Value(node, names, formula=formula, coordinate=True, wrapped=shift != 0)


# ---------------------------------------------------------------------------------------------------------- where paths meet
Said = Callable[[str], str]
"""What the ops call the variable that lines assign by a name."""


def joined(
    a: Variable,
    b: Variable,
    name: str,
    *,
    positional: bool,
    formula: Formula | None = None,
) -> Variable:
    """A variable that is one or the other; no index, which keeps its name. `name`, `formula`: if theirs differ."""
    x, y = a.value, b.value
    value = named(
        a.name if a.name == b.name else name,
        rank=x.rank if x.rank == y.rank else (x.rank or y.rank if 0 in (x.rank, y.rank) else UNKNOWN),
        positional=positional and x.positional and y.positional,
        formula=x.formula if x.formula == y.formula else formula,
        length=x.length if x.length == y.length else None,
        coordinate=x.coordinate and y.coordinate,
        wrapped=x.wrapped or y.wrapped,
        bit=x.bit if x.bit == y.bit else None,
    )
    return Variable(value, a.loc)


def after_branches(
    body: Environment, orelse: Environment, said: Said, inner: frozenset[str], test: Value, *, static: bool
) -> tuple[Environment, set[str]]:
    """The environment after an `if`, and the names that one path leaves unbound. `inner`: what ops of one path alone bind.
    `static`: the test is known when a kernel is compiled, so a name of the path taken stays."""
    merged: Environment = {}
    lost: set[str] = set()
    never = (orelse if test.formula.value else body) if isinstance(test.formula, Const) else {}
    for name in (*body, *(n for n in orelse if n not in body)):
        a, b = body.get(name), orelse.get(name)
        one = a or b
        if one is not None and a == b:
            merged[name] = one
        elif isinstance(a, Variable) and isinstance(b, Variable):
            chosen = either(test.formula, a.value.formula, b.value.formula)
            if chosen is not None and symbols(chosen) & inner:
                chosen = None
            merged[name] = joined(a, b, said(name), positional=test.positional, formula=chosen)
        elif one is not None and (a is None or b is None) and static and name not in never:
            merged[name] = replace(one, value=replace(one.value, formula=None)) if isinstance(one, Variable) else one
        else:
            lost.add(name)
    return merged, lost


def at_loop_head(before: Environment, after: Environment, said: Said, *, positional: bool) -> Environment:
    """What names mean at the head of a loop whose body leaves `after`; equal to `before` once nothing changes."""
    merged: Environment = {}
    for name, a in before.items():
        b = after.get(name)
        if a == b:
            merged[name] = a
        elif isinstance(a, Variable) and isinstance(b, Variable):
            merged[name] = joined(a, b, said(name), positional=positional)
    return merged
