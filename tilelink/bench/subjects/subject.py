"""What can be benchmarked: an operator's cases and its contest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilelink.bench.contest import Contest, Place, Sizes, Variants
from tilelink.pipeline.operator import Operator


@dataclass(frozen=True, slots=True)
class BenchCase:
    """Global sizes of the operator's signature, and its constants, by name."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Subject:
    """`name`: what `tilelink bench` takes. `operator`: None for what is made of several. `shapes`: the cases on some ranks.
    `against`: what it is compared with, in words."""

    name: str
    operator: Operator | None
    shapes: Callable[[int], Sequence[BenchCase]]
    contest: Callable[[Place, Sizes, Variants], Contest]
    small: dict[str, int]
    """A case that the simulated backend gets through in seconds."""
    against: str
    rows: str = ""
    """The size that is a number of tokens; "": none."""

    def cases(self, ranks: int, tokens: tuple[int, ...] = ()) -> list[BenchCase]:
        """All cases, with their own number of tokens or with each of `tokens`, where cases have one."""
        found = list(self.shapes(ranks))
        if not tokens:
            return found
        return [BenchCase(f"{c.name} {self.rows}={t}", c.sizes | {self.rows: t}) for c in found for t in tokens]
