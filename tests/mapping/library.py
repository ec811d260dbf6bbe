"""Operators of the library with every way to place them, which takes time to find: `make test` takes some."""

from __future__ import annotations

from benchmarks.mutants.mappings import operators
from tests.selection import sampled, thorough

MANY = "moe_layer"
"""Has hundreds of placements, of steps that other operators have, too."""

OF_THE_LIBRARY = [*sampled(name for name in operators() if name != MANY), thorough(MANY)]
"""Names."""
