"""Few cases instead of all: what `make test` runs of a product of parameters. `make test-all` runs the whole product.

Parameters in several `parametrize` marks are thinned out by `conftest.py`: of three or more, every two values of two of
them meet in some case; of two, each value is in some case. A list in one mark is thinned out where it stands: `sampled`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def covering(cases: Sequence[AbstractSet[Hashable]]) -> list[int]:
    """Numbers of cases that have, among them, whatever any case has.

    The next one is that with most that is new, then that with least that has been seen, then the first.
    """
    missing: set[Hashable] = set().union(*cases)
    seen: Counter[Hashable] = Counter()
    chosen: list[int] = []
    while missing:
        best = max(range(len(cases)), key=lambda n: (len(cases[n] & missing), -sum(seen[v] for v in cases[n]), -n))
        chosen.append(best)
        missing -= cases[best]
        seen.update(cases[best])
    return sorted(chosen)


def words(values: Sequence[Any]) -> set[str]:
    """Of the names of a case's values: "gemm_rs fused" is of `gemm`, of `rs`, and fused."""
    return set(re.findall("[^\\W_]+", " ".join(map(str, values))))


def sampled(values: Iterable[Any]) -> list[ParameterSet]:
    """Parameters of which `make test` takes so many that each word of their names is there."""
    given = [ParameterSet.extract_from(value, force_tuple=not isinstance(value, tuple)) for value in values]
    kept = covering([words(parameters.values) for parameters in given])
    return [p if n in kept else _thorough(p) for n, p in enumerate(given)]


def first(count: int, values: Iterable[Any]) -> list[ParameterSet]:
    """Parameters of which `make test` takes the first: one is as good as another."""
    given = [ParameterSet.extract_from(value, force_tuple=not isinstance(value, tuple)) for value in values]
    return [p if n < count else _thorough(p) for n, p in enumerate(given)]


def _thorough(parameters: ParameterSet) -> ParameterSet:
    return parameters._replace(marks=(*parameters.marks, pytest.mark.thorough))


def thinned(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Of the tests that were collected, those that `make test` leaves out."""
    left_out = {item for item in items if item.get_closest_marker("thorough")}
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item not in left_out and isinstance(item, pytest.Function) and len(_axes(item)) > 1:
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for product in products.values():
        strength = min(2, len(_values(product[0])) - 1)
        kept = covering([set(combinations(enumerate(_values(item)), strength)) for item in product])
        left_out |= {item for n, item in enumerate(product) if n not in kept}
    return left_out


def _axes(item: pytest.Function) -> list[list[str]]:
    """The parameters of each `parametrize` mark."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return [name.replace(",", " ").split() if isinstance(name, str) else list(name) for name in names]


def _values(item: pytest.Function) -> list[tuple[int, ...]]:
    """What the case has of each mark: values need not be hashable, and are the same objects in all cases."""
    return [tuple(id(item.callspec.params[name]) for name in names) for names in _axes(item)]
