"""Python's operators on arrays, as Triton has them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import numpy as np

from tilelink.frontend.rehearsal.blocks import Array, Block, elementwise


def _numbers(value: Array) -> Array:
    """Truth values as numbers: numpy does not subtract them."""
    return value.astype(int) if value.dtype == bool else value


def _integers(value: Array) -> Array:
    return value if value.dtype == bool else np.nan_to_num(value.astype(float)).astype(int)


def _numeric(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(_numbers(a), _numbers(b))


def _bits(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(_integers(a), _integers(b))


def _quotient(a: Array, b: Array) -> Array:
    """As Triton has it: it rounds towards 0."""
    return np.trunc(a / np.where(b == 0, 1, b))


def _negative(value: Array) -> Array:
    return -_numbers(value)


def _inverted(value: Array) -> Array:
    return ~_integers(value)


def _shift(value: Array) -> Array:
    return np.clip(value, 0, 62).astype(int)


BINARY: Mapping[type[ast.operator], Callable[[Array, Array], Array]] = {
    ast.Add: _numeric(np.add), ast.Sub: _numeric(np.subtract), ast.Mult: _numeric(np.multiply), ast.Div: _numeric(np.divide),
    ast.FloorDiv: _numeric(_quotient), ast.Mod: _numeric(lambda a, b: a - b * _quotient(a, b)),
    ast.Pow: _numeric(np.float_power),
    ast.BitAnd: _bits(np.bitwise_and), ast.BitOr: _bits(np.bitwise_or), ast.BitXor: _bits(np.bitwise_xor),
    ast.LShift: _bits(lambda a, b: _numbers(a) << _shift(b)),
    ast.RShift: _bits(lambda a, b: _numbers(a) >> _shift(b)),
}  # fmt: skip
COMPARED: Mapping[type[ast.cmpop], Callable[[Array, Array], Array]] = {
    ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater,
    ast.GtE: np.greater_equal, ast.Is: np.equal, ast.IsNot: np.not_equal,
}  # fmt: skip
CEILED: Callable[[Array, Array], Array] = _numeric(lambda a, b: -np.floor(-a / np.where(b == 0, 1, b)))
"""Python's quotient, rounded up."""
ROUNDED: Mapping[type[ast.operator], Callable[[Array, Array], Array]] = {
    ast.FloorDiv: _numeric(lambda a, b: np.floor(a / np.where(b == 0, 1, b))),
    ast.Mod: _numeric(lambda a, b: np.where(b == 0, a, np.mod(a, np.where(b == 0, 1, b)))),
}
"""Those that are others in Python, of what is negative."""
UNARY: Mapping[type[ast.unaryop], Callable[[Block], Block]] = {
    ast.USub: lambda a: elementwise(_negative, a),
    ast.Invert: lambda a: elementwise(_inverted, a),
    ast.Not: lambda a: elementwise(np.logical_not, a),
    ast.UAdd: lambda a: a,
}
