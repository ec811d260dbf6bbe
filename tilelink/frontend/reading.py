"""Reads signature text with the lark grammar, and says what is wrong where it does not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from tilelink.errors import Loc, TilelinkError

LONGEST = 1000
"""Characters in a signature; a bound, so that what is nested in it stays shallow."""


@dataclass(frozen=True, slots=True)
class Text:
    """What is read, and where it stands in the user's file."""

    text: str
    file: str
    line: int

    def loc(self, start: int, end: int) -> Loc:
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", first)
        shown = self.text[first:] if last < 0 else self.text[first:last]
        return Loc(self.file, self.line, start - first, max(end, start + 1) - first, shown)

    def fail(self, code: str, message: str, start: int, end: int, why: str, hint: str) -> NoReturn:
        raise TilelinkError(code, message, loc=self.loc(start, end), why=why, hint=hint)


def text_of(text: str, loc: Loc | None) -> Text:
    return Text(text, loc.file if loc else "<signature>", loc.line if loc else 1)


@cache
def _parser(start: str) -> Lark:
    grammar = resources.files("tilelink.frontend").joinpath("signatures.lark").read_text(encoding="utf-8")
    return Lark(grammar, start=start, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def parse(source: Text, start: str, code: str, rule: str) -> tuple[Tree[Token], int]:
    """The tree, and by how many characters its positions are shifted."""
    body = source.text.strip(" \t\n")
    shift = len(source.text) - len(source.text.lstrip(" \t\n"))
    if len(body) > LONGEST:
        source.fail(code, f"longer than {LONGEST} characters", 0, 1, "no signature needs that", "name fewer tensors")
    if not body:
        source.fail(
            code, "nothing is written here", 0, 1, rule, "write the shapes of the tensors, such as `M K, K N -> M N`"
        )
    try:
        return _parser(start).parse(body), shift  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as problem:
        at = problem.pos_in_stream
        position = len(body) if at is None or at < 0 or _at_end(problem) else at
        _explain(source, code, rule, position + shift, body)


def _at_end(problem: UnexpectedInput) -> bool:
    token = getattr(problem, "token", None)
    return isinstance(token, Token) and token.type == "$END"


def _explain(source: Text, code: str, rule: str, at: int, body: str) -> NoReturn:
    """Says what stands at `at`, and what belongs there."""
    text, end = source.text, len(source.text.rstrip(" \t\n"))
    before = text[:at].rstrip(" \t\n")
    if before.endswith("/") and code == "TL101":
        slash = len(before) - 1
        hint = f"write `{_word_before(text, slash)}/R`, or the name of the table after the slash"
        source.fail(
            code,
            "nothing splits this axis",
            slash,
            slash + 1,
            "what splits an axis follows the `/` without a blank",
            hint,
        )
    if at >= end:
        source.fail(code, "it ends too early", max(end - 1, 0), end, rule, f"go on after `{_last_word(body)}`")
    if text[at:].lstrip(" \t\n").startswith("/") and code == "TL101":
        slash = text.index("/", at)
        hint = f"write `{_word_before(text, slash)}{_word_from(text, slash)}` without the blank"
        source.fail(code, "a blank before `/`", slash, slash + 1, "blanks separate axes", hint)
    at += len(text[at:]) - len(text[at:].lstrip(" \t\n"))
    word = _word_from(text, at) or text[at]
    source.fail(code, f"`{word}` does not belong here", at, at + len(word), rule, _hint_for(word, code))


def _hint_for(word: str, code: str) -> str:
    if word.startswith("->"):
        return "write one `->`, with tensors on both sides"
    if word.startswith(","):
        return "write one tensor between commas"
    return "take it out, or write an axis in its place" if code == "TL101" else "take it out"


def _word_from(text: str, at: int) -> str:
    found = re.match(r"->|,|[^\s,]+", text[at:].lstrip(" \t\n"))
    return found.group() if found else ""


def _word_before(text: str, at: int) -> str:
    found = re.search(r"[A-Za-z0-9_+*]*$", text[:at].rstrip(" \t\n"))
    return found.group() if found and found.group() else "M"


def _last_word(body: str) -> str:
    return re.split(r"\s+", body)[-1]


def trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [c for c in tree.children if isinstance(c, Tree)]


def span(node: Tree[Token] | Token, shift: int) -> tuple[int, int]:
    if isinstance(node, Token):
        start, end = node.start_pos, node.end_pos
    else:
        start, end = node.meta.start_pos, node.meta.end_pos
    return (start or 0) + shift, (end or 0) + shift
