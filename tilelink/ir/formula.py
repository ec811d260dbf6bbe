"""Small integer expressions over sizes, the rank and tile indices.

One object serves plan, proof, text and picture: `evaluate` computes it on integers or numpy arrays, `text` prints it as
Triton code. `//` and `%` are Triton's: below zero they round towards it, as Python's and numpy's do not. The plan's own formulas
apply them to non-negative operands only; those of programs say what they say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilelink.errors import Loc

Number: TypeAlias = "int | np.ndarray[Any, np.dtype[np.int64]]"


def _operator(op: str, *, swapped: bool = False) -> Callable[[Like, Like], Formula]:
    return lambda a, b: binary(op, b, a) if swapped else binary(op, a, b)


class _Operators:
    """Builds formulas with Python's operators; constants are folded as they are built."""

    __slots__ = ()

    __add__ = _operator("+")
    __radd__ = _operator("+", swapped=True)
    __sub__ = _operator("-")
    __rsub__ = _operator("-", swapped=True)
    __mul__ = _operator("*")
    __rmul__ = _operator("*", swapped=True)
    __floordiv__ = _operator("//")
    __mod__ = _operator("%")


@dataclass(frozen=True, slots=True)
class Const(_Operators):
    """An integer; of programs also a string, which is compared and nothing else."""

    value: int | str

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Sym(_Operators):
    """A named integer: a size (`M`), `rank`, `RANKS`, a tile index."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary(_Operators):
    op: str
    left: Formula
    right: Formula

    def __str__(self) -> str:
        return text(self)


Formula: TypeAlias = Const | Sym | Binary
Like: TypeAlias = "Formula | _Operators | int | str"


def of(value: Like) -> Formula:
    """The formula of an integer, or the formula itself."""
    if isinstance(value, (Const, Sym, Binary)):
        return value
    if isinstance(value, _Operators):
        raise TypeError(f"not a formula: {value!r}")
    return Const(value if isinstance(value, str) else int(value))


def binary(op: str, left: Like, right: Like) -> Formula:
    a, b = of(left), of(right)
    if isinstance(b, Const):
        if isinstance(a, Const) and op != "arange":
            return Const(int(COMPUTE[op](a.value, b.value)))
        if (op, b.value) in _RIGHT_IDENTITY:
            return a
        if (op, b.value) in _RIGHT_ZERO:
            return Const(0)
    elif isinstance(a, Const):
        if (op, a.value) in _LEFT_IDENTITY:
            return b
        if op == "*" and a.value == 0:
            return Const(0)
        if op == "and" and is_truth(b):
            return b if a.value else Const(0)
    if op in ("min", "max") and a == b:
        return a
    if op == "+" and isinstance(b, Binary) and b.op == "-" and b.right == a:
        return b.left
    if (op, getattr(a, "op", "")) in (("-", "+"), ("//", "*")) and isinstance(a, Binary) and b in (a.left, a.right):
        return a.left if a.right == b else a.right
    return Binary(op, a, b)


_RIGHT_IDENTITY = {("+", 0), ("-", 0), ("*", 1), ("//", 1), ("cdiv", 1)}
_RIGHT_ZERO = {("*", 0), ("%", 1)}
_LEFT_IDENTITY = {("+", 0), ("*", 1)}


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_TRUTHS = frozenset({*_OPPOSITE, "and", "or", "not"})


def is_truth(formula: Formula | None) -> bool:
    """Whether it can be 0 or 1 only: of these `&` and `|` are `and` and `or`."""
    if isinstance(formula, Binary) and formula.op == "column":
        return is_truth(formula.left)
    return isinstance(formula, Binary) and formula.op in _TRUTHS


def as_asked(test: Formula) -> tuple[Formula, bool]:
    """A test and its opposite as one formula, and whether that has to hold for this one to."""
    if isinstance(test, Binary) and test.op == "not":
        asked, holds = as_asked(test.left)
        return asked, not holds
    if isinstance(test, Binary) and test.op in ("==", "<=", ">="):
        return Binary(_OPPOSITE[test.op], test.left, test.right), False
    return test, True


def truth(formula: Formula) -> Formula:
    return formula if is_truth(formula) else binary("!=", formula, 0)


def conjuncts(test: Formula) -> tuple[Formula, ...]:
    """What has to hold, each by itself, for the test to."""
    if isinstance(test, Binary) and test.op == "and":
        return (*conjuncts(test.left), *conjuncts(test.right))
    return (test,)


minimum = _operator("min")
maximum = _operator("max")
cdiv = _operator("cdiv")
"""Ceiling division of a non-negative number by a positive one."""


def at(table: Sym, index: Like) -> Formula:
    """Entry `index` of a table of integers that the evaluation knows by name."""
    return Binary("at", table, of(index))


def negate(a: Like) -> Formula:
    """`not a`; its right operand only makes it a `Binary`."""
    return binary("not", a, 0)


def column(a: Like) -> Formula:
    """`a[:, None]` of a vector: its positions go along the last axis but one; of a block its transpose. The right operand only
    makes it a `Binary`."""
    return Binary("column", of(a), Const(0))


def select(test: Like, a: Like, b: Like) -> Formula:
    """`a if test else b`."""
    if of(a) == of(b):
        return of(a)
    truths = is_truth(of(a)) and is_truth(of(b))
    either, both = ("or", "and") if truths else ("+", "*")
    return binary(either, binary(both, truth(of(test)), a), binary(both, negate(test), b))


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    if _natural(a, b):
        return a // b
    with np.errstate(divide="ignore"):  # what a program divides by may be 0 where it is not asked
        return np.sign(a) * np.sign(b) * (abs(a) // abs(b))


def _natural(a: Any, b: Any) -> bool:
    """Whether both ways of rounding are one, as for nearly all that is worked out."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= 0 and b > 0
    return bool(np.min(a, initial=0) >= 0 and np.min(b, initial=1) > 0)


def _of_numbers(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same of truth values as the numbers 0 and 1, which numpy computes otherwise with."""

    def computed(a: Any, b: Any) -> Any:
        return compute(*map(number, (a, b)))

    def number(value: Any) -> Any:
        return value.astype(np.int64) if getattr(value, "dtype", None) == np.bool_ else value

    return computed


def _at(table: Any, index: Any) -> Any:
    """`table[index]`; a table of two axes has one row per rank, as then has the index."""
    if table.ndim == 1:
        return table[index]
    return np.take_along_axis(table, np.broadcast_to(index, (table.shape[0], np.shape(index)[-1])), axis=1)


COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "at": _at,
    "column": lambda a, _: np.swapaxes(a, -1, -2) if np.ndim(a) > 1 else a,
    "arange": lambda start, stop: np.arange(start, stop, dtype=np.int64)[None, :],
    "+": _of_numbers(operator.add),
    "-": _of_numbers(operator.sub),
    "*": operator.mul,
    "//": _of_numbers(_quotient),
    "%": _of_numbers(lambda a, b: a % b if _natural(a, b) else a - _quotient(a, b) * b),
    "cdiv": _of_numbers(lambda a, b: _quotient(a + b - 1, b)),
    "min": np.minimum,
    "max": np.maximum,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": lambda a, _: np.logical_not(a),
}
"""What an operator makes of its operands, numbers or arrays of them."""


BITS = 1 << 31
"""What a kernel's integers are below."""


class Beyond(ArithmeticError):
    """A formula that comes to more than a kernel's 32 bits hold. `loc`: whose it is, `said`: in which words."""

    loc: Loc | None = None
    said: str = ""

    def __init__(self, formula: Formula) -> None:
        super().__init__(formula)
        self.formula = formula


def _fits(value: Any) -> bool:
    """Whether a kernel's integers hold a number, or all of an array."""
    if isinstance(value, np.ndarray):
        return value.size == 0 or bool(value.min() >= -BITS and value.max() < BITS)
    return -BITS <= value < BITS


def evaluate(formula: Like, env: Mapping[str, Number], *, in_kernel: bool = False) -> Any:
    """The value with the symbols of `env` put in: an int if all of them are ints, else an array.

    Raises:
        KeyError: a symbol is missing from `env`.
        Beyond: `in_kernel`, and a kernel would get another number.
    """
    f = of(formula)
    if isinstance(f, Const):
        return f.value
    if isinstance(f, Sym):
        return env[f.name]
    left, right = evaluate(f.left, env, in_kernel=in_kernel), evaluate(f.right, env, in_kernel=in_kernel)
    value: Any = COMPUTE[f.op](left, right)
    if in_kernel and f.op in ("+", "-", "*") and not _fits(value):
        raise Beyond(f)
    return value if isinstance(value, np.ndarray) else int(value)  # pyright: ignore[reportUnknownVariableType]


def substitute(formula: Like, values: Mapping[str, Like]) -> Formula:
    """The formula with some symbols replaced by others or by constants."""
    f = of(formula)
    if isinstance(f, Sym):
        return of(values[f.name]) if f.name in values else f
    if isinstance(f, Binary):
        return binary(f.op, substitute(f.left, values), substitute(f.right, values))
    return f


def parts(formula: Like) -> Iterator[Formula]:
    """A formula and all that it is made of."""
    todo = [of(formula)]  # generators in generators take three times as long
    while todo:
        f = todo.pop()
        yield f
        if isinstance(f, Binary):
            todo += (f.right, f.left)


def symbols(formula: Like) -> frozenset[str]:
    found: set[str] = set()
    for f in parts(formula):
        if isinstance(f, Sym):
            found.add(f.name)
        elif isinstance(f, Binary) and f.op == "at":
            found.add("rank")  # every rank has rows of its own in a table
    return frozenset(found)


_NUMBERS = ("+", "-", "*", "//", "%", "min", "max", "cdiv")
"""What truth values are numbers for. A kernel has them as bits: of two, one is said as a number, so that the result is one."""
_PRECEDENCE = {**dict.fromkeys(_OPPOSITE, 1), "or": 2, "and": 3, "+": 5, "-": 5, "*": 6, "//": 6, "%": 6}
_SPELLED = {"and": "&", "or": "|"}
"""As Triton wants them of blocks: there `and` and `or` ask for one truth of all elements."""
SUMMAND, FACTOR, DIVISOR = 5, 6, 7
"""What `text` is to be an operand of, so that it gets parentheses where it needs them: of `+` or a comparison; of `*`, or
what is taken from something; what something is divided by."""
_CALL = {"cdiv": "tl.cdiv", "min": "tl.minimum", "max": "tl.maximum", "arange": "tl.arange"}


def text(formula: Like, outer: int = 0) -> str:
    """The formula as Triton code, without stray parentheses."""
    f = of(formula)
    if not isinstance(f, Binary):
        return str(f)
    if f.op == "at":
        return f"tl.load({text(f.left)} + {text(f.right, _PRECEDENCE['+'] + 1)})"
    if f.op in _NUMBERS and is_truth(f.left) and is_truth(f.right):
        f = Binary(f.op, Sym(f"tl.where({text(f.left)}, 1, 0)"), f.right)
    if f.op in _CALL:
        return f"{_CALL[f.op]}({text(f.left)}, {text(f.right)})"
    if f.op == "not":
        test = f.left if isinstance(f.left, Binary) and f.left.op in _OPPOSITE else Binary("!=", f.left, Const(0))
        return text(Binary(_OPPOSITE[test.op], test.left, test.right), outer)
    if f.op == "column":
        return f"column({text(f.left)})"  # in words: files print masks as the program says them
    level = _PRECEDENCE[f.op]
    left, right = (truth(f.left), truth(f.right)) if f.op in _SPELLED else (f.left, f.right)
    # Comparisons do not associate: `a < b < c` would mean something else.
    before = text(left, level + 1 if f.op in _OPPOSITE else level)
    # What else does associates to the left; `a + (b + c)` may do without parentheses.
    behind = text(right, level if f.op == "+" else level + 1)
    out = f"{before} {_SPELLED.get(f.op, f.op)} {behind}"
    return f"({out})" if level < outer else out
