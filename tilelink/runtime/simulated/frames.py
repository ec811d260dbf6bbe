"""Where a coroutine is: the Triton functions among its Python frames, and their lines."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from types import CodeType, FrameType


@dataclass(frozen=True, slots=True)
class Step:
    """One frame of an agent: a function of an emitted file, or of a module that it calls."""

    function: str
    file: str
    line: int
    frame: FrameType


def chain(frame: FrameType | None, codes: Set[CodeType]) -> list[Step]:
    """The Triton functions that are running, innermost first; `codes` are those of all that ever ran."""
    steps = []
    while frame is not None:
        code = frame.f_code
        if code in codes:
            steps.append(Step(code.co_name, code.co_filename, frame.f_lineno, frame))
        frame = frame.f_back
    return steps


def innermost(frame: FrameType | None, codes: Set[CodeType], file: str) -> tuple[str, int] | None:
    """Function and line of the innermost Triton function of `file` that is running."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == file and code in codes:
            return code.co_name, frame.f_lineno
        frame = frame.f_back
    return None
