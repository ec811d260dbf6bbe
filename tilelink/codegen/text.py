"""Lines and names of an emitted file."""

from __future__ import annotations

import keyword
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tilelink.errors import Loc
from tilelink.ir.kernel import PLANNED

COMMENT = "#"
Row: TypeAlias = "tuple[int, str, Loc | None]"
"""A line: its depth, its text, and the user's location that it comes from."""


def atom(text: str) -> str:
    """The text of a value as part of a larger one."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def words(rows: Iterable[Row]) -> set[str]:
    """Every name in these lines."""
    code = (text for _, text, _ in rows if not text.startswith(COMMENT))
    return set(re.findall(r"[A-Za-z_]\w*", "\n".join(code)))


@dataclass(slots=True)
class Lines:
    """Text under construction."""

    rows: list[Row] = field(default_factory=list[Row])
    depth: int = 0

    def add(self, text: str, loc: Loc | None = None) -> None:
        self.rows.append((self.depth, text, loc))

    @contextmanager
    def block(self, head: str, loc: Loc | None = None) -> Generator[None]:
        """What is added meanwhile stands under this line."""
        self.add(head, loc)
        self.depth += 1
        yield
        self.depth -= 1

    def say(self, words: str) -> None:
        """A comment, for whoever reads the file; a line has to follow."""
        self.rows.append((self.depth, f"{COMMENT} {words}", None))

    def extend(self, other: Lines) -> None:
        """Put the lines of `other` here, at this depth."""
        self.rows += [(self.depth + d, text, loc) for d, text, loc in other.rows]


@dataclass(slots=True)
class Names:
    """Identifiers of one scope: user's names are taken from the start, generated ones evade them."""

    taken: set[str]

    def fresh(self, base: str, suffix: str = "") -> str:
        """`suffix`: what tells it apart from those that are taken; else numbers do."""
        name = base if base.isidentifier() and not keyword.iskeyword(base) else "v_" + base
        candidate, n = name, 1
        while candidate in self.taken or PLANNED.fullmatch(candidate):
            n += 1
            candidate = candidate + suffix if suffix else f"{name}_{n}"
        self.taken.add(candidate)
        return candidate
