"""Operators by name, as commands take them: of the library, or of a file of the user's."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

from tilelink import ops
from tilelink.errors import Note, TilelinkError, whole_line
from tilelink.pipeline.operator import Operator


def operator_named(name: str) -> Operator:
    """An operator of the library, or of a file of the user's. What its body raises is a diagnostic (TL711).

    Args:
        name: as of `tilelink.ops`, or `FILE.py:NAME`.

    Raises:
        TilelinkError: TL701, there is none; TL712, the file raises.
    """
    file, colon, attribute = name.rpartition(":")
    if colon:
        return _told(_operator_of(Path(file), attribute))
    if name.endswith(".py"):
        return _told(_operator_of(Path(name), ""))
    found = getattr(ops, name) if name in ops.__all__ else None
    if isinstance(found, Operator):
        return _told(found)
    raise TilelinkError(
        "TL701",
        f"there is no operator `{name}`",
        why=f"tilelink.ops has {', '.join(ops.__all__)}",
        hint="name one of them, or one of your own as FILE.py:NAME",
    )


def _operator_of(path: Path, name: str) -> Operator:
    known = {n: v for n, v in _variables(path).items() if isinstance(v, Operator)}
    if name not in known:
        raise TilelinkError(
            "TL701",
            f"`{path}` has no operator `{name}`" if name else f"`{path}` is a file, and no operator of it is named",
            why=f"it has {', '.join(known)}" if known else "it has none at all",
            hint=f"name a variable that holds what tilelink.operator made: {path}:NAME",
        )
    return known[name]


def _variables(path: Path) -> dict[str, Any]:
    """What a file defines."""
    spec = importlib.util.spec_from_file_location(f"tilelink_file_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TilelinkError(
            "TL701", f"there is no Python file `{path}`", hint="name an operator of your own as FILE.py:NAME"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE.py` has it
    with _Told("TL712", f"`{path}`", lambda f: f.f_code.co_filename == str(spec.origin)):
        spec.loader.exec_module(module)
    return vars(module)


def _told(operator: Operator) -> Operator:
    """The operator with a body that raises diagnostics only. In Python, what a body raises goes through as it is."""
    body = operator.fn
    code = inspect.unwrap(body).__code__

    @wraps(body)
    def told(*tensors: Any, **constants: Any) -> Any:
        with _Told("TL711", f"the body of `{operator.name}`", lambda f: f.f_code is code):
            return body(*tensors, **constants)

    return replace(operator, fn=told)


@dataclass(frozen=True, slots=True)
class _Told:
    """Whatever a user's Python raises inside becomes a diagnostic, which it is the cause of: on the innermost line of
    `of_user`, with the line that raised it as a note."""

    code: str
    what: str
    of_user: Callable[[FrameType], bool]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, tb: TracebackType | None) -> None:
        if not isinstance(error, Exception | SystemExit) or isinstance(error, TilelinkError):
            return
        frames = list(walk_tb(tb))
        at = [whole_line(frame.f_code.co_filename, line) for frame, line in frames if self.of_user(frame)]
        raised = whole_line(frames[-1][0].f_code.co_filename, frames[-1][1])
        if isinstance(error, SyntaxError) and error.filename is not None:  # raised by who reads the line
            at = [raised := whole_line(error.filename, error.lineno or 1)]
        loc = at[-1] if at else raised
        raise TilelinkError(
            self.code,
            f"{self.what} raises {type(error).__name__}" + (f": {error}" if str(error) else ""),
            loc=loc,
            hint="Python itself shows the whole traceback",
            notes=() if raised == loc else (Note("it was raised here", raised),),
        ) from error
