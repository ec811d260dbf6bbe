"""Sheets as tables of a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tilelink.explore.report_tables import Sheet


def tables(sheets: Iterable[Sheet]) -> Group:
    """One table per sheet; what a sheet says is never taken for markup."""
    return Group(*(part for s in sheets for part in (_table(s), Text())))


def _table(sheet: Sheet) -> Table:
    table = Table(
        title=sheet.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=any(sheet.columns),
        header_style="dim",
        show_edge=False,
        pad_edge=False,
    )
    for k, column in enumerate(sheet.columns):
        named = k == 0 and len(sheet.columns) > 1
        table.add_column(
            Text(column), justify="right" if sheet.numbers(k) else "left", style="cyan" if named else "", no_wrap=named
        )
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
