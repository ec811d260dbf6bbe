"""Diagnostics in a notebook, after `%load_ext tilelink.explore.notebook`. Plans, proofs and traces show themselves without it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import IPython

import tilelink
from tilelink.errors import TilelinkError


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls: from now on a diagnostic comes with the frames of the user's own code only.

    Args:
        shell: the running `InteractiveShell`.
    """
    shell.set_custom_exc((TilelinkError,), _told)


def _told(
    shell: Any, kind: type[TilelinkError], error: TilelinkError, tb: TracebackType, tb_offset: Any = None
) -> None:
    """A diagnostic says where and why by itself; the pages of frames between the user's line and its raise do not."""
    shell.showtraceback((kind, error, _outside(tb)), tb_offset=0)


def _outside(tb: TracebackType | None) -> TracebackType | None:
    """The frames that are not this package's, nor the shell's that runs the cell."""
    if tb is None:
        return None
    inner, file = _outside(tb.tb_next), tb.tb_frame.f_code.co_filename
    if any(Path(file).is_relative_to(folder) for package in (tilelink, IPython) for folder in package.__path__):
        return inner
    return TracebackType(inner, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
