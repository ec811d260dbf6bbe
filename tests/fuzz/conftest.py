"""`--hypothesis-profile long`, which `make fuzz` uses: twenty-five times as many cases, and others each time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("long", max_examples=2500, derandomize=False)
