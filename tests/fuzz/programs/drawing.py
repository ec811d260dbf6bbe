"""One case for each seed: a program as somebody might write it, and a third of them spoilt in one place."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.fuzz.programs.judging import Case
from tests.fuzz.programs.mesh import meshed
from tests.fuzz.programs.spoiling import spoilt
from tests.fuzz.programs.writing import written


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    case = meshed(seed, rng) if rng.random() < 0.1 else written(seed, rng)
    changed = next(filter(None, (spoilt(case.text, rng) for _ in range(20))), None) if rng.random() < 0.36 else None
    return case if changed is None else replace(case, spoilt=changed[0], text=changed[1])
