"""What plans, proofs, programs, emitted files and traces look like, as HTML and SVG that needs nothing besides.

Takes: values of `ir`, `tracing` and `tuning`. Gives: text.
Knows: HTML, SVG; `page.css` and `page.js`, which every view brings along.
Never knows: how to make what it shows.
"""

from __future__ import annotations

from tilelink.explore.report_tables import plan_sheets, study_sheet, totals_sheet, verdict_sheets
from tilelink.explore.views.interleaving import counterexample_svg
from tilelink.explore.views.page import diagnostic, document, fragment, sheet_table, written
from tilelink.explore.views.source import program_view, source_view
from tilelink.explore.views.studies import study_svg
from tilelink.explore.views.tiles import tiles_svg
from tilelink.frontend.program import Program
from tilelink.ir.kernel import EmittedText, KernelSource
from tilelink.ir.plan import Plan
from tilelink.ir.program import TileProgram
from tilelink.ir.verdict import Verdict
from tilelink.tracing import Trace
from tilelink.tracing.markup import Markup, tag, text
from tilelink.tuning.study import Study

__all__ = [
    "counterexample_svg",
    "diagnostic",
    "document",
    "fragment",
    "html_of",
    "parts_of",
    "sheet_table",
    "source_view",
    "study_svg",
    "tiles_svg",
    "written",
]


def html_of(shown: object) -> Markup:
    """What a notebook shows."""
    return fragment(parts_of(shown))


def parts_of(shown: object) -> Markup:
    """The same, to be put among others on a page.

    Raises:
        TypeError: it has no view.
    """
    match shown:
        case Plan():
            return text(*map(sheet_table, plan_sheets(shown)), tiles_svg(shown))
        case Verdict():
            return verdict_view(shown)
        case KernelSource():
            return source_view(shown)
        case EmittedText():
            return source_view(shown.source)
        case TileProgram():
            return program_view(shown)
        case Program():
            return program_view(shown.captured)
        case Study():
            return text(study_svg(shown), sheet_table(study_sheet(shown.problem.operator, shown)))
        case Trace():
            return text(Markup(shown.svg()), sheet_table(totals_sheet(shown)))
        case _:
            raise TypeError(f"there is no view of {type(shown).__name__}")


def verdict_view(verdict: Verdict) -> Markup:
    """What was shown; of what is refused the diagnostic, and a drawing of what can go wrong."""
    head = tag("p", verdict.said, class_=f"verdict {verdict.said.split()[0]}")
    wrong = None if verdict.error is None else diagnostic(verdict.error)
    drawn = None if verdict.counterexample is None else counterexample_svg(verdict.counterexample)
    return text(head, wrong, drawn, *(sheet_table(sheet) for sheet in verdict_sheets(verdict) if sheet.rows))
