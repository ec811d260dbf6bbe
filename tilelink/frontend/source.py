"""The source of a user's function as a syntax tree whose nodes know their place in the user's file, and the line that calls."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from itertools import islice
from os.path import exists
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn

from tilelink.errors import Loc, Note, TilelinkError, whole_line
from tilelink.frontend.outside import codes


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function's tree, as it stands in its file. `lines` are all lines of the file."""

    node: ast.FunctionDef
    file: str
    lines: tuple[str, ...]

    def loc(self, node: ast.AST) -> Loc:
        """Where a node of this tree stands in the user's file."""
        line = getattr(node, "lineno", 1)
        text = self.lines[line - 1].rstrip("\n") if 0 < line <= len(self.lines) else ""
        ends_here = getattr(node, "end_lineno", None) == line
        last = getattr(node, "end_col_offset", 0) if ends_here else None
        return _span(self.file, line, text, getattr(node, "col_offset", 0), last)

    def fail(
        self, code: str, node: ast.AST | Loc, message: str, why: str, hint: str, notes: tuple[Note, ...] = ()
    ) -> NoReturn:
        loc = node if isinstance(node, Loc) else self.loc(node)
        raise TilelinkError(code, message, loc=loc, why=why, hint=hint, notes=notes)

    @property
    def text(self) -> str:
        """The function, decorators included."""
        return "".join(self.lines[_first_line(self.node) - 1 : self.node.end_lineno])


def _span(file: str, line: int, text: str, first: int, last: int | None) -> Loc:
    """Part of a line, to its end if `last` is None; in characters, as a caret counts them. (Python counts bytes of UTF-8.)"""
    begin, end = (len(text.encode()[:offset].decode(errors="ignore")) for offset in (first, last))
    return Loc(file, line, begin, end, text)


def bound_names(of: ast.stmt) -> Iterator[str]:
    """What a function or a statement binds: parameters, and names each time that they are assigned."""
    for node in ast.walk(of):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def plain_function(fn: Callable[..., Any]) -> FunctionType:
    """The `def` behind a decorated, bound or static function.

    Raises:
        TilelinkError: TL110 if there is none.
    """
    inner = inspect.unwrap(getattr(fn, "__func__", fn))
    if isinstance(inner, FunctionType) and inner.__name__ != "<lambda>":
        return inner
    what = "a lambda" if getattr(fn, "__name__", "") == "<lambda>" else f"an object of type `{type(fn).__name__}`"
    why, hint = "a tile program is read from the source of a `def`", "write it as `def name(...):` and decorate that"
    raise TilelinkError("TL110", f"{what} is not a function", why=why, hint=hint)


def read_source(fn: FunctionType) -> FunctionSource:
    """The tree of `fn`, methods, nested functions and notebook cells included.

    Raises:
        TilelinkError: TL110 if Python does not know the source, or the file has changed since.
    """
    file = fn.__code__.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, fn.__globals__)
    if not lines:
        raise _unreadable(fn, "Python does not keep the text of what is typed at its prompt or run by `exec`")
    # The whole file is parsed and nothing is dedented: continuation lines and strings may stand left of the margin.
    found = _functions("".join(lines)).get((fn.__code__.co_firstlineno, fn.__code__.co_name))
    if found is None or not _is_imported(fn, "".join(lines)):
        raise _unreadable(fn, f"{file} has changed since it was imported")
    if isinstance(found, ast.AsyncFunctionDef):
        hint, loc = "write `def`: waiting is said by `tl.consumer_tile_wait`", whole_line(file, found.lineno)
        raise TilelinkError("TL111", "`async def` in a tile program", loc=loc, why="it becomes a GPU kernel", hint=hint)
    return FunctionSource(found, file, tuple(lines))


def _is_imported(fn: FunctionType, text: str) -> bool:
    """Whether the text is what Python made the function of. Of code that something else than Python has made of its file (as
    pytest does), or that lies in no file, nobody can tell."""
    if type(fn.__globals__.get("__loader__")) is not SourceFileLoader or not exists(fn.__code__.co_filename):
        return True
    return _placeless(fn.__code__) in _compiled(text, fn.__code__.co_filename)


@lru_cache(maxsize=64)
def _compiled(text: str, file: str) -> tuple[CodeType, ...]:
    return tuple(map(_placeless, codes(compile(text, file, "exec", dont_inherit=True))))


def _placeless(code: CodeType) -> CodeType:
    """The same without its places in lines: two of these are equal where they do the same by the same names."""
    inner = (_placeless(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=tuple(inner))


@lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[int, str], ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every `def` of a file by the line it begins in and its name; nothing if the text is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {(_first_line(n), n.name): n for n in ast.walk(tree) if isinstance(n, kinds)}


def _unreadable(fn: FunctionType, why: str) -> TilelinkError:
    hint = "put it into a file or a notebook cell, and import or run that again"
    return TilelinkError("TL110", f"the source of `{fn.__name__}` cannot be read", why=why, hint=hint)


_LAYERS = ("tilelink.frontend", "tilelink.pipeline")


def call_site() -> Loc | None:
    """The line of the user's file from which something was called: where the innermost frame outside of the compiler stands."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_LAYERS):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    positions = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    line, end_line, column, end_column = positions
    if line is None or column is None:
        return Loc(code.co_filename, frame.f_lineno)
    text = linecache.getline(code.co_filename, line, frame.f_globals).rstrip("\n")
    return _span(code.co_filename, line, text, column, end_column if end_line == line else None)
