"""What may come of bad input: a diagnostic, or what was asked for. Anything else goes through and fails the test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

from tilelink.errors import TilelinkError

T = TypeVar("T")
CODES = frozenset(re.findall(r"\| (TL\d+) \|", (Path(__file__).parents[2] / "docs" / "errors.md").read_text()))


def cases(of_a_hundred: int) -> Callable[[Any], Any]:
    """As many cases where the profile has a hundred; no limit on the time of one, which other tests of this machine share."""
    count = (
        max(1, of_a_hundred * settings.default.max_examples // 100) if settings.default is not None else of_a_hundred
    )
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
