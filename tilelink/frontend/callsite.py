"""The line of the user's file from which something was called."""

from __future__ import annotations

import linecache
import sys
from itertools import islice
from types import FrameType

from tilelink.errors import Loc
from tilelink.frontend.source import characters

_ROOMS = ("tilelink.frontend", "tilelink.pipeline")


def call_site() -> Loc | None:
    """Where the innermost frame outside of the compiler stands."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_ROOMS):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    positions = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    line, end_line, column, end_column = positions
    if line is None or column is None:
        return Loc(code.co_filename, frame.f_lineno)
    text = linecache.getline(code.co_filename, line, frame.f_globals).rstrip("\n")
    start = characters(text, column)
    end = characters(text, end_column) if end_column is not None and end_line == line else len(text)
    return Loc(code.co_filename, line, start, end, text)
