"""Plans, proofs and traces show themselves in a notebook, after `%load_ext tilelink.explore.notebook`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import IPython
import IPython.display

import tilelink
from tilelink.errors import TilelinkError
from tilelink.explore.report_tables import as_markdown, totals_sheet
from tilelink.explore.tiles import mapping_picture
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Verdict
from tilelink.tracing import Trace


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls: from now on plans and verdicts are tables, a trace is its timeline, and a diagnostic comes with the
    frames of the user's own code only.

    Args:
        shell: the running `InteractiveShell`.
    """
    shell.set_custom_exc((TilelinkError,), _told)
    formatters = shell.display_formatter.formatters
    for shown in (Plan, Verdict):
        formatters["text/markdown"].for_type(shown, as_markdown)
        formatters["text/plain"].for_type(shown, _plain)
    formatters["image/png"].for_type(Trace, _png)
    formatters["text/plain"].for_type(
        Trace, lambda trace, printer, cycle: printer.text(as_markdown(totals_sheet(trace)))
    )


def picture(plan: Plan) -> Any:
    """Which tile each rank takes when (`tilelink.explore.tiles.mapping_picture`), as an image that a cell shows."""
    with tempfile.TemporaryDirectory() as folder:
        return IPython.display.Image(mapping_picture(plan, Path(folder) / "tiles.png").read_bytes(), width=760)


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


def _plain(shown: Plan | Verdict, printer: Any, cycle: bool) -> None:
    """Where no Markdown is shown; the fields of a plan fill pages."""
    printer.text(as_markdown(shown))


def _png(trace: Trace) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return trace.picture(Path(folder) / "trace.png").read_bytes()
