"""Signatures: the shapes of tensors in a tile program's or an operator's own words.

`M/R K, K N -> M N`: upper case is tiled, lower case is walked singly, `R` is the axis of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilelink.errors import Loc
from tilelink.ir.formula import Const, Formula, Sym, evaluate, substitute, symbols

RANK_AXIS = "R"
"""The axis of ranks, where there is one; in a tile program, the one that the step speaks of."""
ITEM_BYTES = {
    "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
"""Dtypes, and how many bytes an element has."""


def accumulator(dtype: str) -> str:
    """What sums of values are accumulated in: wide enough for many of them, and what Triton's own sums widen to."""
    if dtype in ("f64", "i64"):
        return dtype
    return "f32" if dtype.startswith(("f", "bf")) else "i32"


def rank_along(axis: str = RANK_AXIS) -> Sym:
    """What formulas call this rank's coordinate along an axis of ranks."""
    return Sym("rank" if axis == RANK_AXIS else f"{axis}_rank")


def ranks_along(axis: str = RANK_AXIS) -> Sym:
    """What formulas call the number of ranks along an axis."""
    return Sym("RANKS" if axis == RANK_AXIS else f"{axis}_RANKS")


@dataclass(frozen=True, slots=True)
class Dim:
    """A named size. `unit`: walked one at a time (a lower-case name, or an axis of ranks: `ranks`)."""

    name: str
    ranks: bool = False

    @property
    def unit(self) -> bool:
        return self.name[0].islower() or self.name == RANK_AXIS or self.ranks

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Computed:
    """`e+1`, `T*K`; `op`: `+` or `*`."""

    op: str
    left: Size
    right: Size

    def __str__(self) -> str:
        return f"{self.left}{self.op}{self.right}"


Size: TypeAlias = Dim | int | Computed


def dims_of(size: Size) -> tuple[str, ...]:
    if isinstance(size, Computed):
        return (*dims_of(size.left), *dims_of(size.right))
    return (size.name,) if isinstance(size, Dim) else ()


def evaluated(size: Size, of: Callable[[Dim], Any]) -> Any:
    """What a size comes to where its names stand for integers, symbolic ones of torch, or formulas."""
    if isinstance(size, int):
        return size
    if isinstance(size, Dim):
        return of(size)
    left, right = evaluated(size.left, of), evaluated(size.right, of)
    return left + right if size.op == "+" else left * right


def solved(size: Size, total: int) -> tuple[Dim, int] | None:
    """Of a size such as `e+1` or `2*I` that comes to `total`, the name and what that is, rounded down; None: nobody knows."""
    if isinstance(size, Dim):
        return size, total
    if isinstance(size, Computed):
        for number, rest in ((size.left, size.right), (size.right, size.left)):
            if isinstance(number, int) and (size.op == "+" or number > 0):
                return solved(rest, total - number if size.op == "+" else total // number)
    return None


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a signature. `split` is `"R"` or another axis of ranks, the name of an offsets table, or None."""

    size: Size
    split: str | None = None

    @property
    def name(self) -> str:
        return str(self.size)

    @property
    def own_slice(self) -> bool:
        """`R/R`: of this axis each rank has its own."""
        return self.name == self.split

    @property
    def by_table(self) -> bool:
        """Of a tile program: split at run time, so that where its tiles lie is data."""
        return self.split not in (None, RANK_AXIS)

    @property
    def unit(self) -> bool:
        """Walked singly: `e`, `R`, `e+1`; sums and products follow their first name."""
        size = self.size
        while isinstance(size, Computed):
            size = size.left
        return isinstance(size, Dim) and size.unit

    def __str__(self) -> str:
        return f"{self.size}/{self.split}" if self.split else str(self.size)


@dataclass(frozen=True, slots=True)
class Contract:
    """What the values of a table promise: `offsets` (sorted, from 0), `permutation`, or `below` a size."""

    kind: str
    of: Size | None = None

    def __str__(self) -> str:
        return f"<{self.of}" if self.kind == "below" else self.kind


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of one tensor. `rest`: position at which `...` stands, or None. `written`: what is promised of an output where
    data decides what is stored: `once`, each element by exactly one store; `partial`, by one or by none."""

    axes: tuple[Axis, ...]
    rest: int | None = None
    dtype: str | None = None
    contract: Contract | None = None
    written: str | None = None

    def spread(self, count: int) -> tuple[Axis, ...]:
        """The axes of a tensor that has so many; those that `...` stands for are `_0`, `_1`, ..."""
        at = len(self.axes) if self.rest is None else self.rest
        rest = (Axis(Dim(f"_{k}")) for k in range(count - len(self.axes)))
        return (*self.axes[:at], *rest, *self.axes[at:])

    def __str__(self) -> str:
        words = [str(a) for a in self.axes]
        if self.rest is not None:
            words.insert(self.rest, "...")
        words += [w for w in (self.dtype, str(self.contract) if self.contract else None, self.written) if w]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Signature:
    """`axes`: the axes of ranks that it may name, the outermost first. `along`: what a signature of one axis of another name
    calls it; its shapes say `R`."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    loc: Loc | None = None
    axes: tuple[str, ...] = (RANK_AXIS,)
    along: str | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.inputs + self.outputs

    @property
    def dims(self) -> tuple[str, ...]:
        """Every dimension, once, in order; axes of ranks left out."""
        found = (d for s in self.shapes for a in s.axes for d in dims_of(a.size))
        return tuple(dict.fromkeys(d for d in found if d not in self.axes))

    def dtype(self, given: Sequence[str]) -> str | None:
        """Of what names no dtype, by the dtypes of the inputs: that of the first that names none either, else of the first."""
        free = (d for shape, d in zip(self.inputs, given, strict=False) if shape.dtype is None)
        return next(free, given[0] if given else None)

    def global_dims(self) -> frozenset[str]:
        """Dimensions that carry `/R` somewhere here: positions on them are global in this program."""
        return frozenset(
            a.name for s in self.shapes for a in s.axes if a.split in self.axes and a.name not in self.axes
        )

    def __str__(self) -> str:
        left = ", ".join(str(s) for s in self.inputs)
        return f"{left} -> {', '.join(str(s) for s in self.outputs)}" if self.outputs else left


@dataclass(frozen=True, slots=True)
class MapTerm:
    """An owner map such as `m -> m // 2048 % R`: variables, and the rank as a formula in these, sizes and `RANKS`."""

    variables: tuple[str, ...]
    formula: Formula

    @property
    def axis(self) -> int:
        """The axis that it looks at."""
        used = symbols(self.formula)
        return next((a for a, name in enumerate(self.variables) if name in used), 0)

    def __str__(self) -> str:
        return f"{', '.join(self.variables)} -> {substitute(self.formula, {ranks_along().name: Sym(RANK_AXIS)})}"


# ------------------------------------------------------------------------------------------------ the axis of ranks, a ring
RANKS = ranks_along()


def distance(formula: Formula | None, ranks: int | None = None) -> tuple[str, int] | None:
    """Which variable a place is how far from, as `(s + 1) % RANKS` is one from `s`; None: that is not known. `ranks`: how
    many there are, where half of them may be a distance."""
    terms = None if formula is None else _terms(formula, ranks)
    if terms is None:
        return None
    shift = terms.pop(ONE, 0)
    places = {name: times for name, times in terms.items() if times != 0}
    return (next(iter(places)), shift) if list(places.values()) == [1] else None


def around(at: Formula, shift: int, ranks: Formula = RANKS) -> Formula:
    """The place so far from `at`, in operands that are never negative, of which Triton's `%` is Python's."""
    if shift == 0:
        return at
    if shift > 0:
        return (at + shift) % ranks
    return (at + ranks - (Const(1) if shift == -1 else Const(-shift) % ranks)) % ranks


ONE = ""


def _terms(formula: Formula, ranks: int | None) -> dict[str, int] | None:
    """How often each variable, and one, is added, but for whole rounds. None: it is no such sum."""
    if isinstance(formula, Const):
        return {ONE: formula.value} if isinstance(formula.value, int) else None
    if isinstance(formula, Sym):
        return {} if formula == RANKS else {formula.name: 1}
    if formula.op == "%" and formula.right == RANKS:
        return _terms(formula.left, ranks)
    if formula.op in ("+", "-"):
        left, right = _terms(formula.left, ranks), _terms(formula.right, ranks)
        if left is None or right is None:
            return None
        sign = 1 if formula.op == "+" else -1
        return {name: left.get(name, 0) + sign * right.get(name, 0) for name in (*left, *right)}
    if ranks is None or symbols(formula) != frozenset({RANKS.name}):
        return None
    return {ONE: evaluate(formula, {RANKS.name: ranks})}
