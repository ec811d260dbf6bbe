"""Shapes for which a schedule is far off what the machine allows: a walk over sizes, uphill in the gap to the bound."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilelink.cost import H200, Machine, bound
from tilelink.errors import TilelinkError
from tilelink.explore.cases import SHAPE_OPTION, Case, Ranks, unread
from tilelink.explore.running import explore_case
from tilelink.pipeline.compiled import planned, proved
from tilelink.pipeline.operator import Operator
from tilelink.tuning.progress import bar
from tilelink.tuning.search import Limits
from tilelink.tuning.study import TIE, Trial
from tilelink.tuning.tables import Sizes, octaves

FAR = 0.5
"""A call that takes half as long again as its bound is far off it."""
NEAR = 1.0
"""Octaves, summed over all sizes, within which shapes have one anomaly, the worst of them."""
WALKS = 8
"""Shapes from which a walk goes on, the worst that chance has found."""
STEPS = (0.5, 0.75, 1.25, 2.0)
"""By which a size changes in one step of a walk; by one element, too."""

MOST = 10
"""Anomalies that are listed, and for which other schedules are looked at."""
TRIALS = 24
"""Of them, for each."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A shape at which a call is far off its bound.

    Attributes:
        sizes: the shape.
        us: what a call is predicted to take.
        bound_us: the least that any schedule takes by the model; `binds`: what that is a limit of.
        better: the best of some other schedules, by the model; None where none is better, so that the gap is the shape's.
    """

    sizes: Sizes
    us: float
    bound_us: float
    binds: str
    better: Trial | None = None

    @property
    def gap(self) -> float:
        """By what share of the bound the call takes longer."""
        return self.us / self.bound_us - 1


@dataclass(frozen=True, slots=True)
class Walk:
    """`anomalies`: the worst first, one for each neighbourhood, `MOST` of them. `looked`: at how many shapes; `refused`: for how
    many of them there is no plan. `median`: the gap of a shape in the middle."""

    anomalies: tuple[Anomaly, ...]
    looked: int
    refused: int
    median: float


def anomalies(
    operator: Operator,
    ranges: Mapping[str, int | tuple[int, int]],
    ranks: Ranks = 4,
    dtype: str = "bf16",
    *,
    machine: Machine = H200,
    shapes: int = 200,
    budget: float = 60.0,
    far: float = FAR,
    seed: int = 0,
) -> Walk:
    """Look for shapes at which the operator, as it is scheduled, is far off its bound.

    Args:
        ranges: of each size the smallest and the largest, or the one that it has.
        ranks: as of a `Case`.
        dtype: of the inputs.
        machine: that times and bounds are those of.
        shapes: to look at, half of them drawn at random, at most.
        budget: seconds, half of them for other schedules of what was found.
        far: the gap from which a shape is an anomaly.
        seed: of the random ones.

    Raises:
        TilelinkError: TL704, a size is missing or unknown.
    """
    limits = {n: (r, r) if isinstance(r, int) else r for n, r in ranges.items()}
    first = Case(operator, tuple((n, high) for n, (_, high) in limits.items()), ranks, dtype)
    seen: dict[Sizes, Anomaly | None] = {}
    begun = time.monotonic()
    with bar(f"shapes of {operator.name}", shapes) as advance:
        for sizes in _walk(limits, seen, shapes, random.Random(seed)):
            if len(seen) >= shapes or time.monotonic() - begun > budget / 2:
                break
            seen[sizes] = _gap(replace(first, sizes=sizes), machine)
            advance(len(seen), f"{len(seen)} of {shapes}")
    found = sorted((a for a in seen.values() if a is not None), key=lambda a: -a.gap)
    listed: list[Anomaly] = []
    for each in found:
        if each.gap >= far and all(octaves(each.sizes, other.sizes) > NEAR for other in listed):
            listed.append(each)
    seconds = (budget - (time.monotonic() - begun)) / max(1, len(listed[:MOST]))
    better = [_improved(replace(first, sizes=a.sizes), a, machine, seconds) for a in listed[:MOST]]
    median = found[len(found) // 2].gap if found else 0.0
    return Walk(tuple(better), len(seen), len(seen) - len(found), median)


def _improved(case: Case, found: Anomaly, machine: Machine, seconds: float) -> Anomaly:
    """With the best of some other schedules."""
    study = explore_case(case, limits=Limits("annealing", seconds, TRIALS, progress=lambda _: None), machine=machine)
    best = study.best
    return replace(found, better=best if best.us is not None and best.us < found.us * (1 - TIE) else None)


def _walk(
    limits: Mapping[str, tuple[int, int]], seen: Mapping[Sizes, Anomaly | None], shapes: int, chosen: random.Random
) -> Iterator[Sizes]:
    """Shapes that have not been seen: the corners of the range first, then some by chance, then around the worst ones."""
    free = [name for name, (low, high) in limits.items() if low < high]
    for corner in range(min(1 << len(free), shapes // 4)):
        at = {name: limits[name][corner >> k & 1] for k, name in enumerate(free)}
        yield tuple((name, at.get(name, low)) for name, (low, _) in limits.items())
    for _ in range(shapes * 10):
        if len(seen) >= shapes // 2:
            break
        sizes = tuple((name, _drawn(low, high, chosen)) for name, (low, high) in limits.items())
        if sizes not in seen:
            yield sizes
    gone: set[Sizes] = set()
    while True:
        worst = sorted((a for a in seen.values() if a is not None), key=lambda a: -a.gap)[:WALKS]
        start = next((a.sizes for a in worst if a.sizes not in gone), None)
        if start is None:
            return
        gone.add(start)
        for k, (name, size) in enumerate(start):
            low, high = limits[name]
            for other in (*(round(size * step) for step in STEPS), size - 1, size + 1):
                sizes = (*start[:k], (name, other), *start[k + 1 :])
                if low <= other <= high and sizes not in seen:
                    yield sizes


def _drawn(low: int, high: int, chosen: random.Random) -> int:
    """By chance, all octaves alike; every other one a multiple of 64, as the sizes of models are."""
    size = round(math.exp(chosen.uniform(math.log(low), math.log(high))))
    even = max(64, size // 64 * 64)
    return even if chosen.random() < 0.5 and low <= even <= high else min(max(size, low), high)


def _gap(case: Case, machine: Machine) -> Anomaly | None:
    """None where there is no plan for such sizes."""
    try:
        lowered, _ = proved(planned(case.operator, case.bound(case.topology_on(machine))))
    except TilelinkError:
        return None
    found = bound(lowered, machine)
    return Anomaly(case.sizes, found.prediction.us, found.us, f"{found.binds.resource} of rank {found.binds.rank}")


def parse_ranges(text: str) -> dict[str, int | tuple[int, int]]:
    """`M=256:16384,N=4096` as ranges of sizes.

    Raises:
        TilelinkError: TL718, it reads otherwise.
    """
    found: dict[str, int | tuple[int, int]] = {}
    for part in text.split(","):
        read = re.fullmatch(r"([A-Za-z]\w*)=([1-9]\d{0,9})(?::([1-9]\d{0,9}))?", part)
        if read is None or read[1] in found or (read[3] and int(read[3]) < int(read[2])):
            hint = "write each size once, with the smallest and the largest, or one: M=256:16384,N=4096,K=4096"
            raise unread("TL718", "ranges of sizes that do not read", SHAPE_OPTION, text, hint)
        found[read[1]] = (int(read[2]), int(read[3])) if read[3] else int(read[2])
    return found
