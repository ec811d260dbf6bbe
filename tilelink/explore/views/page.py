"""Views as parts of a page: each brings its style and its script along, so that it shows itself wherever it is put."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from tilelink.errors import TilelinkError
from tilelink.explore.report_tables import Sheet
from tilelink.tracing.markup import FONT, Child, Markup, tag, text


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """What a cell of a notebook shows when it is its last value; `parts`: as of `fragment`."""

    parts: Markup

    def __repr__(self) -> str:
        return "<a view, in HTML>"

    def _repr_html_(self) -> str:
        return fragment(self.parts)


@cache
def asset(name: str) -> Markup:
    """`page.css` or `page.js`."""
    return Markup(files("tilelink.explore.views").joinpath(name).read_text(encoding="utf-8"))


def fragment(*children: Child) -> Markup:
    """A view for a notebook's cell."""
    style, script = tag("style", asset("page.css")), tag("script", asset("page.js"))
    return tag("div", style, *children, script, class_="tilelink")


def document(title: str, *children: Child) -> str:
    """A whole page that needs nothing besides, to be kept as a file."""
    head = tag("head", Markup('<meta charset="utf-8">'), tag("title", title))
    body = tag("body", fragment(tag("h1", title), *children), style="margin:24px auto;max-width:1180px;padding:0 16px")
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def picture(kind: str, width: float, height: float, *parts: Markup, size: float = 11) -> Markup:
    """Parts of a drawing, on white, with letters of one size."""
    box, ground = f"0 0 {width} {height}", tag("rect", width=width, height=height, fill="white")
    return tag(
        "svg", ground, *parts, xmlns="http://www.w3.org/2000/svg", class_=kind, viewBox=box, width=width, font_family=FONT,
        font_size=size,
    )  # fmt: skip


def written(path: Path, title: str, svg: str) -> Path:
    """A picture as a file, its folder made if need be: SVG, or by the path's suffix a page of HTML, with zoom."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = document(title, Markup(svg)) if path.suffix.lower() == ".html" else svg
    path.write_text(shown, encoding="utf-8")
    return path


def sheet_table(sheet: Sheet) -> Markup:
    """A sheet; columns of numbers stand at the right."""
    kinds = ["number" if sheet.numbers(k) else None for k in range(len(sheet.columns))]

    def line(name: str, cells: tuple[str, ...]) -> Markup:
        return tag("tr", *(tag(name, cell, class_=kind) for cell, kind in zip(cells, kinds, strict=True)))

    head = line("th", sheet.columns) if any(sheet.columns) else None
    return tag("table", tag("caption", sheet.title), head, *(line("td", row) for row in sheet.rows))


def folded(title: str, *children: Child, open_: bool = False) -> Markup:
    """What is there for those who open it."""
    return tag("details", tag("summary", title), *children, open_="" if open_ else None)


def diagnostic(error: TilelinkError, around: int = 6) -> Markup:
    """The text of a diagnostic, and the lines around it with the one that is meant marked."""
    said = tag("pre", str(error), *(f"\n{n}" for n in getattr(error, "__notes__", ())), class_="diagnostic")
    if error.loc is None or not error.loc.source_line().strip():
        return said
    lines = tuple(lines_of(error.loc.file, max(1, error.loc.line - around), error.loc.line + around))
    if len(lines) < 2:
        return said
    rows = (
        tag("div", tag("b", str(n)), line or " ", class_="at" if n == error.loc.line else None) for n, line in lines
    )
    return text(said, tag("div", *rows, class_="code"))


def lines_of(file: str, first: int, last: int) -> list[tuple[int, str]]:
    """Lines of a file, or of a notebook's cell, as far as they can be read."""
    linecache.checkcache(file)
    found = linecache.getlines(file)
    return [(n, found[n - 1].rstrip("\n")) for n in range(first, min(last, len(found)) + 1)]
