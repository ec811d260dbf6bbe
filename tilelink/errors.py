"""The one error type of the compiler and its one renderer.

Takes: where something went wrong (`Loc`), what, why, and what to do about it.
Gives: `TilelinkError`, whose text shows the user's own line with a caret.
Knows: nothing else of the project. Never knows: tiles, ranks, Triton.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of the user's source: 1-based lines, 0-based columns, `end_column` exclusive."""

    file: str
    line: int
    column: int = 0
    end_column: int | None = None
    text: str | None = None
    """The source line when it cannot be read back from `file` (a notebook cell, a signature)."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def source_line(self) -> str:
        return self.text if self.text is not None else linecache.getline(self.file, self.line).rstrip("\n")


def whole_line(file: str, line: int) -> Loc:
    """What stands on a line, without its indentation."""
    text = linecache.getline(file, line)
    return Loc(file, line, len(text) - len(text.lstrip()))


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that belongs to the error, or a further sentence about it."""

    text: str
    loc: Loc | None = None


class TilelinkError(Exception):
    """A diagnostic: what is wrong, where, why, and what to do.

    Attributes:
        code: stable identifier such as ``TL101``; listed in docs/errors.md.
        message: one sentence, what is wrong.
        loc: the user's line, if the error has one.
        why: one sentence, the rule that was broken.
        hint: one sentence, what to do.
        notes: further places.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        loc: Loc | None = None,
        why: str | None = None,
        hint: str | None = None,
        notes: tuple[Note, ...] = (),
    ) -> None:
        self.code = code
        self.message = message
        self.loc = loc
        self.why = why
        self.hint = hint
        self.notes = notes
        super().__init__(render(self))


def _excerpt(loc: Loc) -> list[str]:
    line = loc.source_line()
    if not line.strip():
        return [f"  --> {loc}"]
    gutter = " " * len(str(loc.line))
    end = loc.end_column if loc.end_column is not None and loc.end_column > loc.column else len(line)
    width = max(1, min(end, len(line)) - loc.column)
    return [
        f"  --> {loc}",
        f"  {gutter} |",
        f"  {loc.line} | {line}",
        f"  {gutter} | {' ' * loc.column}{'^' * width}",
    ]


def with_article(noun: str) -> str:
    """`an int`, `a list`: a name that is looked up when something is wrong."""
    return f"{'an' if noun[0] in 'aeioAEIO' else 'a'} {noun}"


def is_whole(value: object) -> bool:
    """Whether it is a whole number; Python takes `True` for one."""
    return isinstance(value, int) and not isinstance(value, bool)


def render(error: TilelinkError) -> str:
    """The text of a diagnostic, as users see it and as tests pin it."""
    lines = [f"{error.code}: {error.message}"]
    if error.loc is not None:
        lines += _excerpt(error.loc)
    if error.why:
        lines.append(f"  why: {error.why}")
    if error.hint:
        lines.append(f"  do:  {error.hint}")
    for note in error.notes:
        lines.append(f"  note: {note.text}")
        if note.loc is not None:
            lines += _excerpt(note.loc)
    return "\n".join(lines)
