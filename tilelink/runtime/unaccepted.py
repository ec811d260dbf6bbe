"""Lines of tile programs that Triton does not accept: what it says, at the user's line, in either kind of world.

A tile program's values are Triton's, and so is what may be done with them: shapes, dtypes, operators. Where kernels are
compiled, Triton says so by a `CompilationError`; where they are interpreted, by whatever its own functions raise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from types import CodeType, TracebackType
from typing import Any

from triton.compiler.errors import CompilationError
from triton.language.semantic import IncompatibleTypeErrorImpl
from triton.runtime.jit import JITFunction

from tilelink.errors import Note, TilelinkError, whole_line
from tilelink.ir.kernel import advised, origin
from tilelink.runtime.kernels import ADVICE, LINES

RAISED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError,
    IncompatibleTypeErrorImpl,
)  # fmt: skip
"""Classes of what Triton's functions raise."""


@contextmanager
def compiling(kernel: Any) -> Iterator[None]:
    """What the compiler does not accept becomes TL412."""
    try:
        yield
    except CompilationError as error:
        raise _refusal(kernel, *_compiled(error, kernel.fn.__globals__)) from error


@contextmanager
def interpreting(kernel: Any, codes: Set[CodeType]) -> Iterator[None]:
    """What Triton's functions do not accept becomes TL412; what anybody else raises goes through.

    Args:
        kernel: the `triton.jit` function that is interpreted inside.
        codes: those of all Triton functions that are interpreted.
    """
    try:
        yield
    except RAISED as error:
        line = _interpreted(error.__traceback__, codes, kernel.fn.__code__.co_filename)
        if line is None:
            raise
        raise _refusal(kernel, repr(error), line) from error


CALLS = "look up in Triton's documentation what the line calls, or convert the arguments"
CONSTANTS = (
    "make shapes of `tl.tile_shape(out)`, of a block's own `.shape`, or of `tl.tile_range(t, axis=0).shape` for a whole axis: "
    "they are constants, which `tl.size` is not"
)


def _refusal(kernel: Any, said: str, line: int) -> TilelinkError:
    names: Mapping[str, Any] = kernel.fn.__globals__
    emitted = whole_line(kernel.fn.__code__.co_filename, line)
    loc = origin(names.get(LINES, ()), line)
    return TilelinkError(
        "TL412",
        f"Triton does not accept a line of kernel {kernel.fn.__name__}: {said}",
        loc=loc or emitted,
        why="what a tile program computes is Triton's: it decides which shapes and dtypes go together",
        hint=CONSTANTS if "constexpr" in said else advised(names.get(ADVICE, ()), loc) or CALLS,
        notes=(Note("the line that is compiled", emitted),) if loc is not None else (),
    )


def _compiled(error: CompilationError, names: Mapping[str, Any]) -> tuple[str, int]:
    """What is said, and the innermost line of the emitted file that it is said of; each call on the way is an error."""
    functions = {f.src: f for f in names.values() if isinstance(f, JITFunction)}
    said, line, at = str(error), 0, error
    while isinstance(at, CompilationError):
        function = functions.get(at.src or "")
        if function is not None and isinstance(at.node, ast.expr | ast.stmt):
            line = _first_line(function) + at.node.lineno - 1
        said = at.error_message or said
        at = at.__cause__
    return said if at is None else repr(at), line


def _first_line(function: JITFunction[Any]) -> int:
    """Of `def`, which is where the compiler begins to count."""
    ahead = next(n for n, text in enumerate(function.raw_src) if text.lstrip().startswith("def "))
    return function.starting_line_number + ahead


def _interpreted(trace: TracebackType | None, codes: Set[CodeType], file: str) -> int | None:
    """The innermost line of the emitted file, if Triton's functions or the line itself raised."""
    line, ours = None, False
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        if code in codes and code.co_filename == file:
            line = trace.tb_lineno
        if code in codes or module.partition(".")[0] in ("triton", "tilelink"):
            ours = code not in codes and module.startswith("tilelink.")
        trace = trace.tb_next
    return None if ours else line
