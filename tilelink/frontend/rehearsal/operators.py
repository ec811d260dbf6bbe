"""What Triton makes of values one by one: by operators, and by functions of its language."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tilelink.frontend.rehearsal.blocks import PAST, Array, Block, elementwise, number

Function: TypeAlias = "Callable[..., Any]"
One: TypeAlias = "Callable[[Array], Any]"
Two: TypeAlias = "Callable[[Array, Array], Any]"
Three: TypeAlias = "Callable[[Array, Array, Array], Any]"


def _numbers(value: Array) -> Array:
    """Truth values as numbers: numpy does not subtract them."""
    return value.astype(int) if value.dtype == bool else value


def _integers(value: Array) -> Array:
    return value if value.dtype == bool else np.nan_to_num(value.astype(float)).astype(int)


def _of(prepared: One, function: One | Two) -> Function:
    return lambda *sides: function(*map(prepared, sides))


def _quotient(a: Array, b: Array) -> Array:
    """As Triton has it: it rounds towards 0."""
    return np.trunc(a / np.where(b == 0, 1, b))


def _shift(value: Array) -> Array:
    return np.clip(_numbers(value), 0, 62).astype(int)


def _all_of(function: np.ufunc) -> Function:
    return lambda *sides: function.reduce(np.broadcast_arrays(*sides))


_ARITHMETIC: Mapping[type[ast.AST], Two] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.float_power,
    ast.FloorDiv: _quotient, ast.Mod: lambda a, b: a - b * _quotient(a, b),
}  # fmt: skip
_BITS: Mapping[type[ast.AST], Two] = {
    ast.BitAnd: np.bitwise_and, ast.BitOr: np.bitwise_or, ast.BitXor: np.bitwise_xor,
    ast.LShift: lambda a, b: _numbers(a) << _shift(b), ast.RShift: lambda a, b: _numbers(a) >> _shift(b),
}  # fmt: skip
OPERATORS: Mapping[type[ast.AST], Function] = {
    **{op: _of(_numbers, function) for op, function in _ARITHMETIC.items()},
    **{op: _of(_integers, function) for op, function in _BITS.items()},
    ast.USub: _of(_numbers, np.negative), ast.UAdd: _numbers, ast.Invert: _of(_integers, np.invert),
    ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Is: np.equal, ast.IsNot: np.not_equal, ast.Lt: np.less,
    ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Not: np.logical_not,
    ast.And: _all_of(np.logical_and), ast.Or: _all_of(np.logical_or),
}  # fmt: skip
CEILED: Two = _of(_numbers, lambda a, b: -np.floor(-a / np.where(b == 0, 1, b)))
"""Python's quotient, rounded up."""
ROUNDED: Mapping[type[ast.AST], Function] = {
    ast.FloorDiv: _of(_numbers, lambda a, b: np.floor(a / np.where(b == 0, 1, b))),
    ast.Mod: _of(_numbers, lambda a, b: np.where(b == 0, a, np.mod(a, np.where(b == 0, 1, b)))),
}
"""Those that are others in Python, of what is negative."""


_NUMPY = ("exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "floor", "ceil",
          "trunc", "rint", "abs", "isnan", "isinf", "isfinite")  # fmt: skip
_OF_ONE: Mapping[str, One] = {
    **{n: getattr(np, n) for n in _NUMPY},
    "sqrt_rn": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": lambda x: np.tanh(2 / np.sqrt(np.pi) * (x + 0.0894 * x**3)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
_OF_TWO: Mapping[str, Two] = {
    "fdiv": np.divide, "div_rn": np.divide, "pow": np.float_power, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "maximum": np.fmax, "minimum": np.fmin, "cdiv": lambda x, y: np.trunc((x + y - 1) / np.where(y == 0, 1, y)),
}  # fmt: skip
"""What is no number is neither the greater nor the less of two, as on a GPU."""
_OF_THREE: Mapping[str, Three] = {
    "fma": lambda x, y, z: x * y + z,
    "clamp": lambda x, low, high: np.fmin(np.fmax(x, low), high),
    "where": lambda test, x, y: np.where(test.astype(bool), x, y),
}
ELEMENTWISE: Mapping[str, tuple[int, Function]] = {
    **{name: (1, function) for name, function in _OF_ONE.items()},
    **{name: (2, function) for name, function in _OF_TWO.items()},
    **{name: (3, function) for name, function in _OF_THREE.items()},
}
"""With how many operands they have."""
OPERANDS = ("condition", "x", "y", "z", "min", "max")
"""What those are called, where a call names them."""
OPAQUE = frozenset({
    "rand", "randn", "randint", "rand4x", "randn4x", "randint4x", "philox", "uint_to_uniform_float", "umulhi", "map_elementwise",
    "inline_asm_elementwise", "load",
})  # fmt: skip
"""Functions of each value for which a rehearsal has others that are as good: nobody looks at its results."""


def opaque(name: str, values: Sequence[Block]) -> Block:
    """A function of each value of which no more is known."""
    seed = zlib.crc32(name.encode()) % 97

    def mixed(*arrays: Array) -> Array:
        mixture = np.asarray(0.37)
        for k, a in enumerate(arrays):
            mixture = mixture + np.sin(np.nan_to_num(a.astype(float)) * (k + 1.7) + seed + k)
        return mixture

    return replace(elementwise(mixed, *values) if values else number(0.37), data=True)


def spoilt(name: str, values: Sequence[Block]) -> Block:
    """What nothing is known of: whatever lies past an edge may have come into all of it."""
    found = opaque(name, values)
    return replace(found, mark=np.full(found.lengths, PAST)) if any(b.past for b in values) else found
