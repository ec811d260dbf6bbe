"""Looking at operators: cases to run them on, tables of plans, pictures of runs.

Takes: operators, plans, verdicts, traces of simulated runs. Gives: tables, pictures, trace files, measured errors.
Knows: every room below; rich, and matplotlib, which takes a second to import: only `tiles` and `interleaving` do.
Never knows: how to rewrite a program or a plan.
"""

from tilelink.explore.cases import Case, parse_sizes
from tilelink.explore.placements import parse_placement, parse_placements
from tilelink.explore.running import Outcome, run_case
from tilelink.explore.sheets import Sheet, as_markdown, plan_sheets, verdict_sheet
from tilelink.explore.tables import plan_table, tables, verdict_table

__all__ = [
    "Case",
    "Outcome",
    "Sheet",
    "as_markdown",
    "parse_placement",
    "parse_placements",
    "parse_sizes",
    "plan_sheets",
    "plan_table",
    "run_case",
    "tables",
    "verdict_sheet",
    "verdict_table",
]
