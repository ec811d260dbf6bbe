"""The source of a user's function as a syntax tree whose nodes know their place in the user's file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Protocol, cast

from tilelink.errors import Loc, TilelinkError


class Function(Protocol):
    """A `def`: what Python's FunctionType has (as a field that type would pass for a method)."""

    @property
    def __name__(self) -> str: ...
    @property
    def __code__(self) -> CodeType: ...
    @property
    def __globals__(self) -> dict[str, Any]: ...
    @property
    def __closure__(self) -> tuple[Any, ...] | None: ...
    @property
    def __kwdefaults__(self) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function's tree. `lines` are as in the file, from line `first` on; tree lines are `shift` behind file lines."""

    function: Function
    node: ast.FunctionDef
    file: str
    lines: tuple[str, ...]
    first: int
    shift: int

    def loc(self, node: ast.AST) -> Loc:
        """Where a node of this tree stands in the user's file."""
        line = getattr(node, "lineno", 1) + self.shift
        end_line = (getattr(node, "end_lineno", None) or line - self.shift) + self.shift
        text = self._line(line)
        end = self._characters(text, getattr(node, "end_col_offset", None)) if end_line == line else len(text)
        return Loc(self.file, line, self._characters(text, getattr(node, "col_offset", 0)) or 0, end, text)

    def _line(self, line: int) -> str:
        index = line - self.first
        return self.lines[index].rstrip("\n") if 0 <= index < len(self.lines) else ""

    def _characters(self, text: str, offset: int | None) -> int | None:
        # `ast` counts bytes of UTF-8; a caret counts characters.
        return None if offset is None else len(text.encode()[:offset].decode(errors="ignore"))

    @property
    def text(self) -> str:
        return "".join(self.lines)


def plain_function(fn: Callable[..., Any]) -> Function:
    """The `def` behind a decorated, bound or static function.

    Raises:
        TilelinkError: TL110 if there is none.
    """
    inner = inspect.unwrap(getattr(fn, "__func__", fn))
    if isinstance(inner, FunctionType) and inner.__name__ != "<lambda>":
        return inner
    raise TilelinkError(
        "TL110",
        f"{_describe(fn)} is not a function",
        why="a tile program is read from the source of a `def`",
        hint="write it as `def name(...):` and decorate that",
    )


def _describe(fn: object) -> str:
    return "a lambda" if getattr(fn, "__name__", "") == "<lambda>" else f"an object of type `{type(fn).__name__}`"


def read_source(fn: Function) -> FunctionSource:
    """The tree of `fn`, methods, nested functions and notebook cells included.

    Raises:
        TilelinkError: TL110 if Python does not know the source, or the file has changed since.
    """
    file = fn.__code__.co_filename
    try:
        lines, first = inspect.getsourcelines(cast(FunctionType, fn))
    except (OSError, TypeError):
        raise _unreadable(fn, "Python does not keep the text of what is typed at its prompt or run by `exec`") from None
    # Never dedented: continuation lines and strings may stand left of the margin. A nested function is put under an `if`.
    nested = lines[0][:1].isspace()
    try:
        tree = ast.parse(("if True:\n" if nested else "") + "".join(lines))
    except SyntaxError:
        raise _unreadable(fn, f"{file} has changed since it was imported") from None
    body = tree.body[0].body if nested and isinstance(tree.body[0], ast.If) else tree.body
    shift = first - 1 - (1 if nested else 0)
    node = body[0]
    if isinstance(node, ast.AsyncFunctionDef):
        loc = Loc(file, node.lineno + shift)
        hint = "write `def`: waiting is said by `tl.consumer_tile_wait`"
        raise TilelinkError("TL111", "`async def` in a tile program", loc=loc, why="it becomes a GPU kernel", hint=hint)
    if not isinstance(node, ast.FunctionDef) or node.name != fn.__code__.co_name:
        raise _unreadable(fn, f"{file} has changed since it was imported")
    return FunctionSource(fn, node, file, tuple(lines), first, shift)


def _unreadable(fn: Function, why: str) -> TilelinkError:
    return TilelinkError(
        "TL110",
        f"the source of `{fn.__name__}` cannot be read",
        why=why,
        hint="put it into a file or a notebook cell, and import or run that again",
    )
