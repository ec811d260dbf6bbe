"""Plans, proofs and traces show themselves in a notebook, after `%load_ext tilelink.explore.notebook`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tilelink.explore.sheets import as_markdown, totals_sheet
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Verdict
from tilelink.tracing import Trace


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls: from now on plans and verdicts are tables, and a trace is its timeline.

    Args:
        shell: the running `InteractiveShell`.
    """
    formatters = shell.display_formatter.formatters
    for shown in (Plan, Verdict):
        formatters["text/markdown"].for_type(shown, as_markdown)
        formatters["text/plain"].for_type(shown, _plain)
    formatters["image/png"].for_type(Trace, _png)
    formatters["text/plain"].for_type(
        Trace, lambda trace, printer, cycle: printer.text(as_markdown(totals_sheet(trace)))
    )


def _plain(shown: Plan | Verdict, printer: Any, cycle: bool) -> None:
    """Where no Markdown is shown; the fields of a plan fill pages."""
    printer.text(as_markdown(shown))


def _png(trace: Trace) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return trace.picture(Path(folder) / "trace.png").read_bytes()
