"""A lowered plan does what the exact graph of the plan does: the same flags, as often, and the same elements, step by step."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from benchmarks.mutants.mappings import mappings, operators
from tests.lowering.expanding import DataDecides, Expansion, differences, tally_of
from tests.mapping.oracle import off_any_shelf, verdict_on
from tilelink.ir.plan import Plan
from tilelink.mapping.exact import NotExact
from tilelink.mapping.exact.calls import call_of
from tilelink.mapping.exact.tiles import Sizes
from tilelink.mapping.lower import lower

EACH = 40


def outcome(plan: Plan) -> str:
    """same | data decides"""
    lowered = lower(plan)
    try:
        exact = tally_of(plan, call_of(Sizes(plan)))
    except NotExact:
        with pytest.raises(DataDecides):
            Expansion(lowered, plan).run()
        return "data decides"
    assert differences(plan, Expansion(lowered, plan).run(), exact) == []
    return "same"


@pytest.mark.parametrize("name", operators())
def test_operators_of_the_library(name: str) -> None:
    """Every fifth placement of each, on three ranks and ragged sizes."""
    found = Counter(outcome(m.plan) for m in islice(mappings(operators()[name]), 0, None, 5))
    assert found.total() > 0


@pytest.mark.parametrize("block", range(4))
def test_random_plans(block: int) -> None:
    """Graphs of up to four programs, with one or two mesh dimensions."""
    found: Counter[str] = Counter()
    for seed in range(block * EACH, block * EACH + EACH):
        made = off_any_shelf(random.Random(seed))
        if made is not None and verdict_on(made[1]).ok:
            found[outcome(made[1])] += 1
    assert found["same"] > EACH // 3
