"""Elements of HTML and SVG as text: what is said in them is escaped, and numbers are short."""

from __future__ import annotations

from html import escape
from typing import TypeAlias

INK, FAINT, LINE = "#1f2933", "#6b7785", "#e4e8ed"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
"""Of all pictures."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | None"


def tag(name: str, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. Attributes that are None are left out; `_` in their names stands for `-`, and one behind a name for nothing."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>{text(*children)}</{name}>")


def text(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c, quote=False) for c in children if c is not None))


def words(
    x: float,
    y: float,
    said: str,
    *,
    size: float | None = None,
    fill: str = INK,
    weight: str | None = None,
    anchor: str | None = None,
) -> Markup:
    """A line of text in a picture."""
    return tag("text", said, x=x, y=y, font_size=size, fill=fill, font_weight=weight, text_anchor=anchor)


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """With three places at most."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
