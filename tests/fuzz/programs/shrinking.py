"""A failing case made smaller, as long as the same becomes of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.programs.judging import Call, Case


def shrunk(case: Case, same: Callable[[Case], bool]) -> Case:
    """`same`: whether a smaller case still shows it."""
    moved = True
    while moved:
        moved = False
        for smaller in _smaller(case):
            if same(smaller):
                case, moved = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    for k in range(len(case.calls)) if len(case.calls) > 1 else ():
        yield replace(case, calls=case.calls[:k] + case.calls[k + 1 :])
    if case.late:
        yield replace(case, late=False)
    for text in _texts(case.text):
        yield replace(case, text=text)
    for name in ("M", "N"):
        if all(c.sizes[name] > 1 for c in case.calls):
            yield replace(case, calls=tuple(_less(c, name) for c in case.calls))
    for axis, n in case.axes.items():
        if n > 1:
            yield replace(case, axes={**case.axes, axis: n - 1})


def _less(call: Call, name: str) -> Call:
    return replace(call, sizes={**call.sizes, name: call.sizes[name] - 1}, fed={}, shared=frozenset())


def _texts(text: str) -> Iterator[str]:
    """Without one statement, one branch's test, or one placement."""
    for number, node in enumerate(ast.walk(ast.parse(text))):
        for field in ("body", "orelse"):
            for at in range(len(_block(node, field))):
                yield from _changed(text, number, field, at)
        if isinstance(node, ast.Dict):
            for at in range(len(node.keys)):
                yield _edited(text, number, lambda d, at=at: (d.keys.pop(at), d.values.pop(at)))  # type: ignore[attr-defined]
        for at in range(len(node.keywords)) if isinstance(node, ast.Call) else ():
            yield _edited(text, number, lambda c, at=at: c.keywords.pop(at))  # type: ignore[attr-defined]


def _block(node: ast.AST, field: str) -> list[ast.stmt]:
    found = getattr(node, field, [])
    return found if isinstance(found, list) else []


def _changed(text: str, number: int, field: str, at: int) -> Iterator[str]:
    alone = len(_block(_nth(ast.parse(text), number), field)) == 1 and field == "body"
    if not alone:
        yield _edited(text, number, lambda node: _block(node, field).pop(at))
    inner = _block(_nth(ast.parse(text), number), field)[at]
    if isinstance(inner, (ast.If, ast.For, ast.While)):

        def unwrap(node: ast.AST) -> None:
            here = _block(node, field)
            here[at : at + 1] = getattr(here[at], "body", [])

        yield _edited(text, number, unwrap)


def _nth(tree: ast.Module, number: int) -> ast.AST:
    return next(node for k, node in enumerate(ast.walk(tree)) if k == number)


def _edited(text: str, number: int, edit: Callable[[ast.AST], object]) -> str:
    tree = ast.parse(text)
    edit(_nth(tree, number))
    return ast.unparse(tree) + "\n"
