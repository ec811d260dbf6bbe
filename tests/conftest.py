"""The same cases in every run, so that what lands does not hang on luck; `make fuzz` looks at others.

Without `--all`, what lists name is left out (`left_out.py`), products of parameters are thinned out, and less is drawn: see
`selection.py`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from hypothesis import HealthCheck, settings

from tests import two_processes
from tests.left_out import CHOSEN, MEASURED, idle
from tests.project.users import Users
from tests.selection import listable, thinned
from tests.two_processes import Problem

# How long it takes to make a case is the machine's matter.
for name, examples in (("the same cases", 40), ("more of them", 100)):
    settings.register_profile(
        name, max_examples=examples, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("the same cases")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="whole products of parameters, not a covering selection")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[gc_collect_iterations_key] = (
        1  # what nobody caught in a destructor is looked for once, which takes a second
    )
    if config.getoption("--all"):
        settings.load_profile("more of them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in name for name in config.args):
        for path in (CHOSEN, MEASURED):
            if gone := idle(path, listable(items)):
                raise pytest.UsageError(f"{path.name} names what is not there: {', '.join(gone)}")
    if config.getoption("--all") or any("[" in name for name in config.args):
        return
    left_out = thinned(items)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it for garbage again and again takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Libraries look at exit for what was not freed."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def _ranks() -> Iterator[Users]:
    environment = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(two_processes.ROOT), "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = (
        "1"  # or importing Inductor starts a process that imports torch again
    )
    ranks = Users(os.environ | environment, two_processes.LIBRARIES)
    yield ranks
    ranks.leave()


@pytest.fixture(scope="session")
def problem_of(_ranks: Users) -> Problem:
    """Runs a module that calls `two_processes.run` when it is the main one, with a folder for its files: what was printed where a
    rank fails, else nothing."""

    def run(module: str, folder: Path) -> str:
        status, printed = _ranks.run(["-m", module, str(folder)], folder, {})
        return f"status {status}: {printed}" if status else ""

    return run
