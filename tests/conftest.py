"""The same cases in every run, so that what lands does not hang on luck; `make fuzz` looks at others."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("the same cases", derandomize=True)
settings.load_profile("the same cases")
