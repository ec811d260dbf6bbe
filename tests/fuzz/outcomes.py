"""What may come of bad input: a diagnostic, or what was asked for. Anything else goes through and fails the test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tilelink.errors import TilelinkError

T = TypeVar("T")
CODES = frozenset(re.findall(r"\| (TL\d+) \|", (Path(__file__).parents[2] / "docs" / "errors.md").read_text()))


def outcome(call: Callable[[], T]) -> T | TilelinkError:
    """The result, or a diagnostic that says what a diagnostic has to say."""
    try:
        return call()
    except TilelinkError as error:
        found = error
    assert found.code in CODES, found.code
    assert found.message
    assert found.why or found.hint, str(found)
    return found
