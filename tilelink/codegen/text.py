"""Lines, names and formulas of an emitted file."""

from __future__ import annotations

import keyword
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Binary, Formula, Sym
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


@dataclass(slots=True)
class Formulas:
    """Prints formulas, with named subformulas; those that were used become assignments at the head of a function.

    `renamed`: symbols that are printed under another name. `multiples`: named subformulas that are multiples of 16 in every
    call of the plan, of which a compiler sees nothing: it makes wide accesses of masks that end there.
    """

    renamed: dict[str, str] = field(default_factory=dict[str, str])
    names: dict[Formula, str] = field(default_factory=dict[Formula, str])
    used: list[Binary] = field(default_factory=list[Binary])
    multiples: set[Formula] = field(default_factory=set[Formula])

    def text(self, formula: F.Like, outer: int = 0) -> str:
        return F.text(self._printed(self._shorten(F.of(formula))), outer)

    def _printed(self, f: Formula) -> Formula:
        return F.substitute(f, {n: Sym(m) for n, m in self.renamed.items()}) if self.renamed else f

    def _shorten(self, f: Formula) -> Formula:
        if not isinstance(f, Binary):
            return f
        if f not in self.names:
            return self._of_parts(f)
        if f not in self.used:
            self._of_parts(f)  # what it is made of is defined before it
            self.used.append(f)
        return Sym(self.names[f])

    def _of_parts(self, f: Binary) -> Formula:
        return Binary(f.op, self._shorten(f.left), self._shorten(f.right))

    def definitions(self) -> list[tuple[str, str]]:
        """(name, text) of the named subformulas that were used, in an order in which each knows those before it."""
        out: list[tuple[str, str]] = []
        for f in self.used:
            text = F.text(self._printed(self._of_parts(f)))
            out.append((self.names[f], f"tl.multiple_of({text}, 16)" if f in self.multiples else text))
        return out
