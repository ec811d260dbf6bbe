"""Few cases instead of all: what `make test` runs of a product of parameters. `make test-all` runs the whole product.

Of what `left_out.txt` leaves, parameters in several `parametrize` marks are thinned out by `conftest.py`: of three or more,
every two values of two of them meet in some case; of two, each value is in some case. Of these go those of `repeats.txt`.
A table whose rows take no time is one test: `table`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import wraps
from itertools import combinations
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, settings

from tests.left_out import CHOSEN, MEASURED, function, listed

Test = Callable[..., None]
Decorator = Callable[[Test], Test]


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


def thinned(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Of the tests that were collected, those that `make test` leaves out."""
    left_out = {item for item in items if listed(CHOSEN, item.nodeid)}
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item not in left_out and isinstance(item, pytest.Function) and len(_axes(item)) > 1:
            products.setdefault(function(item.nodeid), []).append(item)
    for product in products.values():
        strength = min(2, len(_values(product[0])) - 1)
        kept = covering([set(combinations(enumerate(_values(item)), strength)) for item in product])
        left_out |= {item for n, item in enumerate(product) if n not in kept}
    return left_out | {item for item in items if listed(MEASURED, item.nodeid)}


def listable(items: Iterable[pytest.Item]) -> list[str]:
    """What a list may name: cases, and rows of tables."""
    rows = [(item, row) for item in items for row in getattr(getattr(item, "obj", None), "rows", ())]
    return [*(item.nodeid for item in items), *(f"{item.nodeid}[{row}]" for item, row in rows)]


def _axes(item: pytest.Function) -> list[list[str]]:
    """The parameters of each `parametrize` mark."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return [name.replace(",", " ").split() if isinstance(name, str) else list(name) for name in names]


def _values(item: pytest.Function) -> list[tuple[int, ...]]:
    """What the case has of each mark: values need not be hashable, and are the same objects in all cases."""
    return [tuple(id(item.callspec.params[name]) for name in names) for names in _axes(item)]


def cases(of_a_hundred: int) -> Callable[[Any], Any]:
    """As many cases where the profile has a hundred; no limit on the time of one, which other tests of this machine share."""
    count = (
        max(1, of_a_hundred * settings.default.max_examples // 100) if settings.default is not None else of_a_hundred
    )
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def table(names: str, rows: Iterable[Any], ids: Sequence[str] | Callable[[Any], str] | None = None) -> Decorator:
    """In place of `parametrize`: the rows of a table as one test, where none takes time that would be worth a test.

    Each row has a folder and patches of its own. All are looked at, and those that fail are raised together, named.
    """
    parameters = [name.strip() for name in names.split(",")]
    given = [ParameterSet.extract_from(row, force_tuple=len(parameters) == 1) for row in rows]
    assert not any(row.marks for row in given), "a row has no marks of its own"

    def name_of(n: int) -> str:
        if given[n].id or ids is None:
            return str(given[n].id or ", ".join(map(str, given[n].values)))
        return ", ".join(map(ids, given[n].values)) if callable(ids) else ids[n]

    def decorate(test: Test) -> Test:
        asked = [p for p in inspect.signature(test).parameters.values() if p.name not in parameters]

        @wraps(test)
        def each_row(request: pytest.FixtureRequest, **fixtures: Any) -> None:
            case, every = request.node.nodeid, request.config.getoption("--all")
            looked_at = [n for n in range(len(given)) if every or not listed(CHOSEN, f"{case}[{name_of(n)}]")]
            failed: list[BaseException] = []
            for n in looked_at:
                own = dict(zip(parameters, given[n].values, strict=True))
                if any(p.name == "request" for p in asked):
                    own["request"] = request
                if "tmp_path" in fixtures:
                    own["tmp_path"] = fixtures["tmp_path"] / f"row{n}"
                    own["tmp_path"].mkdir()
                try:
                    with pytest.MonkeyPatch.context() as patches:
                        if "monkeypatch" in fixtures:
                            own["monkeypatch"] = patches
                        test(**(fixtures | own))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # of any kind: it is raised below
                    error.add_note(f"row {n + 1}: {name_of(n)}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(looked_at)} rows", failed)

        passed = [p for p in asked if p.name != "request"]
        request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY)
        # What pytest is to pass.
        setattr(each_row, "__signature__", inspect.Signature([*passed, request]))  # noqa: B010
        setattr(each_row, "rows", [*getattr(test, "rows", ()), *map(name_of, range(len(given)))])  # noqa: B010
        return each_row

    return decorate
