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
BLANKS = " \t\n"


@dataclass(frozen=True, slots=True)
class Text:
    """What is read, without the blanks around it (`before`: so many stand there), and where it stands in the user's file."""

    text: str
    whole: str
    before: int
    file: str
    line: int

    def loc(self, start: int, end: int) -> Loc:
        whole, start, end = self.whole, self.before + start, self.before + end
        first = whole.rfind("\n", 0, start) + 1
        last = whole.find("\n", first)
        shown = whole[first:] if last < 0 else whole[first:last]
        return Loc(self.file, self.line, start - first, max(end, start + 1) - first, shown)

    def fail(self, code: str, message: str, place: tuple[int, int], why: str, hint: str) -> NoReturn:
        raise TilelinkError(code, message, loc=self.loc(*place), why=why, hint=hint)

    @property
    def everything(self) -> tuple[int, int]:
        return 0, len(self.text)

    def shown(self, node: Tree[Token] | Token) -> str:
        start, end = span(node)
        return self.text[start:end]


def text_of(text: str, loc: Loc | None) -> Text:
    inner = text.strip(BLANKS)
    before = len(text) - len(text.lstrip(BLANKS)) if inner else 0
    return Text(inner, text, before, loc.file if loc else "<signature>", loc.line if loc else 1)


@cache
def _parser(start: str) -> Lark:
    grammar = resources.files("tilelink.frontend").joinpath("signatures.lark").read_text(encoding="utf-8")
    return Lark(grammar, start=start, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def parse(source: Text, start: str, code: str, rule: str) -> Tree[Token]:
    """The tree of a text; `code` and `rule` are for what does not read."""
    body = source.text
    if len(body) > LONGEST:
        source.fail(code, f"longer than {LONGEST} characters", (0, 1), "no signature needs that", "name fewer tensors")
    if not body:
        hint = "write the shapes of the tensors, such as `M K, K N -> M N`"
        source.fail(code, "nothing is written here", (0, 1), rule, hint)
    try:
        return _parser(start).parse(body)  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as problem:
        token, at = getattr(problem, "token", None), problem.pos_in_stream
        at_end = isinstance(token, Token) and token.type == "$END"
        _explain(source, code, rule, len(body) if at is None or at < 0 or at_end else at)


def _explain(source: Text, code: str, rule: str, at: int) -> NoReturn:
    """Says what stands at `at`, and what belongs there."""
    text, end = source.text, len(source.text)
    before = text[:at].rstrip(BLANKS)
    if before.endswith("/") and code == "TL101":
        slash, why = len(before) - 1, "what splits an axis follows the `/` without a blank"
        hint = f"write `{_word_before(text, slash)}/R`, or the name of the table after the slash"
        source.fail(code, "nothing splits this axis", (slash, slash + 1), why, hint)
    if at >= end:
        hint = f"go on after `{text.split()[-1]}`"
        source.fail(code, "it ends too early", (max(end - 1, 0), end), rule, hint)
    if text[at:].lstrip(BLANKS).startswith("/") and code == "TL101":
        slash = text.index("/", at)
        hint = f"write `{_word_before(text, slash)}{_word_from(text, slash)}` without the blank"
        source.fail(code, "a blank before `/`", (slash, slash + 1), "blanks separate axes", hint)
    at += len(text[at:]) - len(text[at:].lstrip(BLANKS))
    word = _word_from(text, at) or text[at]
    hint = "take it out, or write an axis in its place" if code == "TL101" else "take it out"
    if word.startswith("->"):
        hint = "write one `->`, with tensors on both sides"
    elif word.startswith(","):
        hint = "write one tensor between commas"
    source.fail(code, f"`{word}` does not belong here", (at, at + len(word)), rule, hint)


def _word_from(text: str, at: int) -> str:
    found = re.match(r"->|,|[^\s,]+", text[at:].lstrip(BLANKS))
    return found.group() if found else ""


def _word_before(text: str, at: int) -> str:
    found = re.search(r"[A-Za-z0-9_+*]*$", text[:at].rstrip(BLANKS))
    return found.group() if found and found.group() else "M"


def span(node: Tree[Token] | Token) -> tuple[int, int]:
    if isinstance(node, Token):
        return node.start_pos or 0, node.end_pos or 0
    return node.meta.start_pos or 0, node.meta.end_pos or 0
