"""Which schedules a search tries next: generators of batches that look at what the study has found by then.

All ranks run the same generator with the same seed on the same times, so all of them try the same without being told.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from tilelink.ir.schedule import Placement, Schedule
from tilelink.tuning.study import wanted

if TYPE_CHECKING:
    from tilelink.tuning.search import Search

Method = Literal["exhaustive", "random", "annealing", "descent", "model", "optuna"]
HOPELESS = 2.5
"""Candidates whose estimate is so many times the best estimate are not tried by `descent`."""
RANKED = 512
"""Spaces of so many schedules are estimated as a whole by `model`."""
ERROR, FIELDS, NOISE = 0.08, 4.0, 0.01
"""What the cost model errs by, how many fields have to differ for two errors to have little in common, and what a time does."""
STALE = 200
"""So many proposals in a row that were tried before end a search."""
HOT, COOLING = 0.1, 0.97
"""What `annealing` puts up with at first, as a part of the time, and what is left of that after each trial."""

Batches: TypeAlias = Iterator[Sequence[Schedule]]


def exhaustive(of: Search) -> Batches:
    """All, one after the other."""
    for at in range(0, of.count, of.batch):
        of.study.left = of.count - at
        yield [of.numbered(k) for k in range(at, min(at + of.batch, of.count))]
    of.study.left = 0


def at_random(of: Search) -> Batches:
    """All in a random order."""
    chosen = random.Random(of.limits.seed)
    seen: set[int] = set()
    while len(seen) < of.count:
        number = chosen.randrange(of.count)
        if number not in seen:
            seen.add(number)
            of.study.left = of.count - len(seen)
            yield [of.numbered(number)]


def annealing(of: Search) -> Batches:
    """From the schedule to begin with to one that differs in one step, which is kept if it is faster, and sometimes if not."""
    chosen, now, heat, stale = random.Random(of.limits.seed), of.start, HOT, 0
    while stale < STALE:
        found = [way for part in of.parts for way in of.around(now, part) if len(way) > 1]
        if not found:
            return
        other = chosen.choice(chosen.choice(found))
        stale = stale + 1 if other in of.study.tried else 0
        yield [other]
        us, before = of.study.tried[other].us, of.study.tried[now].us
        if us is not None and before is not None:
            worse = us / before - 1
            now = other if worse <= 0 or chosen.random() < math.exp(-worse / heat) else now
        heat *= COOLING


def descent(of: Search) -> Batches:
    """What `descended` comes across, those first that are estimated to be good."""
    for around in descended(of, lambda: of.study.best.schedule):
        best = of.study.best.schedule
        new = [s for s in dict.fromkeys(around) if s not in of.study.tried]
        own, *told = of.estimates([best, *new])
        limit = HOPELESS * min((us for us in (own, *told) if us), default=math.inf)
        good = sorted((us, k) for k, us in enumerate(told) if us <= limit)
        of.study.estimated_away += len(new) - len(good)
        yield from of.batches([new[k] for _, k in good])


def descended(of: Search, best: Callable[[], Schedule]) -> Batches:
    """Schedules around the best so far, one part of it after the other, until none improves."""
    before: Schedule | None = None
    while best() != before:
        before = best()
        for part in of.parts:
            for k in itertools.count():
                around = of.around(best(), part)
                if k >= len(around):
                    break
                yield around[k]


def by_model(of: Search) -> Batches:
    """Where the cost model promises the most, corrected by what was found of schedules like it. Of a large space it looks at
    what a descent comes across.

    Its errors are taken for a Gaussian process over the fields of schedules. Next is what may be the fastest: the estimate less
    what is not known about it, so that schedules that the model cannot tell apart are not tried one after the other.
    """
    pool = [s for s, us in _looked_at(of).items() if us]
    if not pool:
        return
    estimates = np.log(of.estimates(pool))
    near = _alike(pool)
    at = {schedule: k for k, schedule in enumerate(pool)}
    while True:
        tried = {at[s]: t.us for s, t in of.study.tried.items() if s in at}
        todo = [k for k in range(len(pool)) if k not in tried]
        of.study.left = len(todo)
        if not todo:
            return
        known = {k: math.log(us) - float(estimates[k]) for k, us in tried.items() if us is not None}
        chosen: list[int] = []
        while todo and len(chosen) < of.batch:
            error, unknown = _errors(near, known)
            best = min(todo, key=lambda k: estimates[k] + error[k] - unknown[k])
            todo.remove(best)
            known[best] = float(error[best])  # as if it were so, until it is known
            chosen.append(best)
        yield [pool[k] for k in chosen]


def _looked_at(of: Search) -> dict[Schedule, float]:
    """Schedules that a descent on the cost model comes across, of small spaces all, with their estimates."""
    costs: dict[Schedule, float] = {}

    def look(schedules: Sequence[Schedule]) -> None:
        costs.update(zip(schedules, of.estimates(schedules), strict=True))

    if of.count <= RANKED:
        look([of.numbered(k) for k in range(of.count)])
        return costs
    look([of.start])
    for around in descended(of, lambda: min((s for s in costs if costs[s]), key=lambda s: costs[s], default=of.start)):
        look(around)
    return costs


def _alike(schedules: Sequence[Schedule]) -> Any:
    """Covariances of what the cost model errs by: the fewer fields of two schedules differ, the more of that they share."""
    said = [{("slots", s.slots), *((p, f, v) for p, place in s.entries for f, v in _fields(place))} for s in schedules]
    number = {field: k for k, field in enumerate(dict.fromkeys(field for each in said for field in each))}
    has = np.zeros((len(said), len(number)))
    for k, each in enumerate(said):
        has[k, [number[field] for field in each]] = 1
    count = has.sum(axis=1)
    return ERROR**2 * np.exp(-(count[:, None] + count[None, :] - 2 * has @ has.T) / (2 * FIELDS))


def _fields(placement: Placement) -> list[tuple[str, object]]:
    return [("on", type(placement)), *((f.name, getattr(placement, f.name)) for f in fields(placement))]


def _errors(near: Any, known: dict[int, float]) -> tuple[Any, Any]:
    """By how much the model is expected to err on each schedule, as a logarithm, and by how much that may be wrong."""
    if not known:
        return np.zeros(len(near)), np.sqrt(np.diag(near))
    rows, found = list(known), np.array(list(known.values()))
    gain = cast("Any", np.linalg).solve(near[np.ix_(rows, rows)] + NOISE**2 * np.eye(len(rows)), near[rows])
    spread = cast("Any", np).diag(near) - (near[rows] * gain).sum(axis=0)
    return found.mean() + (found - found.mean()) @ gain, np.sqrt(np.maximum(spread, 0.0))


def by_optuna(of: Search) -> Batches:
    """Optuna's tree-structured Parzen estimator."""
    optuna = wanted("optuna", "this method")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    asked = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=of.limits.seed))
    names = {path: {repr(o): o for o in options} for path, options in of.space.items()}
    stale = 0
    while stale < STALE:
        trial = asked.ask()
        chosen = {path: options[trial.suggest_categorical(path, list(options))] for path, options in names.items()}
        slots = trial.suggest_categorical("slots", list(of.slot_counts))
        schedule = replace(of.start.merged(chosen), slots=slots)
        stale = stale + 1 if schedule in of.study.tried else 0
        yield [schedule]
        us = of.study.tried[schedule].us
        if us is None:
            asked.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            asked.tell(trial, us)


METHODS: dict[str, Callable[[Search], Batches]] = {
    "exhaustive": exhaustive,
    "random": at_random,
    "annealing": annealing,
    "descent": descent,
    "model": by_model,
    "optuna": by_optuna,
}
