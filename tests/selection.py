"""Few cases instead of all: what `make test` runs of a product of parameters. `make test-all` runs the whole product.

Parameters in several `parametrize` marks are thinned out by `conftest.py`: of three or more, every two values of two of
them meet in some case; of two, each value is in some case. A list in one mark is thinned out where it stands: `sampled`.
A table whose rows take no time is one test: `table`. What a run showed to be long and to repeat others: `repeats`.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import wraps
from itertools import combinations
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, settings

from tests.repeats import read

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


def thorough(*values: Any) -> ParameterSet:
    """Parameters, in a list, of a case that `make test` leaves out: others there run what it does."""
    return pytest.param(*values, marks=pytest.mark.thorough)


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
    repeats = read()
    return left_out | {item for item in items if item.nodeid in repeats}


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
    assert all(mark.name == "thorough" for row in given for mark in row.marks), "a row has no marks of its own"

    def name_of(n: int) -> str:
        if given[n].id or ids is None:
            return str(given[n].id or ", ".join(map(str, given[n].values)))
        return ", ".join(map(ids, given[n].values)) if callable(ids) else ids[n]

    def decorate(test: Test) -> Test:
        asked = [p for p in inspect.signature(test).parameters.values() if p.name not in parameters]

        @wraps(test)
        def each_row(pytestconfig: pytest.Config, **fixtures: Any) -> None:
            looked_at = [n for n, row in enumerate(given) if not row.marks or pytestconfig.getoption("--all")]
            failed: list[BaseException] = []
            for n in looked_at:
                own = dict(zip(parameters, given[n].values, strict=True))
                if any(p.name == "pytestconfig" for p in asked):
                    own["pytestconfig"] = pytestconfig
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

        passed = [p for p in asked if p.name != "pytestconfig"]
        config = inspect.Parameter("pytestconfig", inspect.Parameter.KEYWORD_ONLY)
        # What pytest is to pass.
        setattr(each_row, "__signature__", inspect.Signature([*passed, config]))  # noqa: B010
        return each_row

    return decorate
