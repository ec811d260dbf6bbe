"""`python -m benchmarks.compiler.lines`: how many lines of code a user writes for each operator of the library."""

from __future__ import annotations

import ast
import inspect
import tokenize
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from tilelink import Operator, ops
from tilelink.frontend.program import Program

BY_HAND = {"ag_gemm": 598, "gemm_rs": 572, "ag_moe": 818, "moe_rs": 730, "all_reduce": 846}
"""Lines of code of the same operators in kernels that a well-known library has by hand."""
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of(operator: Operator) -> int:
    """Lines of the operator, of what it calls and of their tile programs: decorators and schedules counted, docstrings,
    comments, blank lines and imports not."""
    return sum(_own_lines(f) for f in _functions(operator.fn))


def _functions(fn: Callable[..., Any]) -> list[FunctionType]:
    """The function and all of the project that it names, through operators, programs, helpers and tables of them."""
    found: list[FunctionType] = []
    waiting: list[Any] = [fn]
    while waiting:
        one = inspect.unwrap(waiting.pop())
        if one in found or not isinstance(one, FunctionType):
            continue
        found.append(one)
        named = [one.__globals__.get(n) for n in one.__code__.co_names]
        waiting += [f for value in named for f in _behind(value)]
    return found


def _behind(value: object) -> Iterable[Any]:
    if isinstance(value, Operator):
        return [value.fn]
    if isinstance(value, Program):
        return [value.function]
    if isinstance(value, dict):
        return [f for one in value.values() for f in _behind(one)]
    helper = getattr(value, "fn", value)  # Triton's, or a plain function
    return [helper] if isinstance(helper, FunctionType) and helper.__module__.startswith("tilelink.ops") else []


def _own_lines(fn: FunctionType) -> int:
    source = inspect.getsource(fn)
    lines = source.splitlines(keepends=True)
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    first = node.body[0]
    docstring = range(first.lineno, (first.end_lineno or first.lineno) + 1) if ast.get_docstring(node) else range(0)
    code: set[int] = set()
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    # A program that is made by a call instead of a decorator has that call elsewhere.
    return len(code - set(docstring)) + (0 if node.decorator_list else 1)


def table() -> list[tuple[str, int, int | None]]:
    """Operator, lines here, lines by hand where they are known."""
    exported = [getattr(ops, name) for name in sorted(ops.__all__)]
    return [(op.name, lines_of(op), BY_HAND.get(op.name)) for op in exported if isinstance(op, Operator)]


if __name__ == "__main__":
    for name, ours, by_hand in table():
        print(f"| `{name}` | {ours} | {'–' if by_hand is None else by_hand} |")
