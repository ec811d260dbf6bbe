"""The same cases in every run, so that what lands does not hang on luck; `make fuzz` looks at others."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

# How long it takes to make a case is the machine's matter.
settings.register_profile(
    "the same cases", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("the same cases")


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it for garbage again and again takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Libraries look at exit for what was not freed."""
    gc.unfreeze()
