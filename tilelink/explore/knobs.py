"""The fields of a schedule as knobs: each has a name and a list of values, and a setting is one number into that list.

Whoever turns them, a page for instance, says numbers only: what they stand for is made here, and nothing is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.schedule import CopyEngine, Fused, Placement, Schedule, Sms
from tilelink.mapping import placement_of
from tilelink.pipeline.operator import Operator
from tilelink.tuning.space import makers

TILES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
ORDERS = ("row", "column", "group 4", "group 8", "group 16")
COUNTS = (1, 2, 4, 8, 16, 20, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Knob:
    """`name`: as `matmul.M`; `at`: which of the values it has now."""

    name: str
    values: tuple[Any, ...]
    at: int

    def said(self, k: int) -> str:
        """One of its values, as one writes it in a schedule."""
        value = self.values[k]
        return ", ".join(value) if isinstance(value, tuple) else "as written" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """A schedule, and the knobs that make it; of these, those of a step's placement depend on the step's `on`."""

    schedule: Schedule
    knobs: tuple[Knob, ...]


def setting(plan: Plan, turned: Mapping[str, int]) -> Setting:
    """What knobs make of a plan's schedule.

    Args:
        plan: of the operator by default.
        turned: by name of a knob, the number of its value; others stay. What is no knob is passed over.

    Raises:
        ValueError: a knob has no such value.
    """
    knobs: list[Knob] = []

    def turn(name: str, values: Sequence[Any], now: Any) -> Any:
        values = tuple(dict.fromkeys([*values, *([] if now in values else [now])]))
        at = turned.get(name, values.index(now))
        if not 0 <= at < len(values):
            raise ValueError(f"`{name}` has {len(values)} values, and no number {at}")
        knobs.append(Knob(name, values, at))
        return values[at]

    entries: dict[str, Placement] = {}
    for step in plan.steps:
        now = placement_of(step.step, plan)
        kinds = _kinds(plan, step, now)
        if not kinds:
            continue
        on = turn(f"{step.path}.on", [*kinds], next(word for word, p in kinds.items() if p == now))
        entries[step.path] = _turned(plan, step, kinds[on], turn)
    slots = turn("slots", (1, 2, 3, 4), plan.schedule.slots)
    return Setting(replace(plan.schedule.merged(entries), slots=slots), tuple(knobs))


def schedule_text(operator: Operator, schedule: Schedule) -> str:
    """What one writes to have it."""
    said = {path: f"tilelink.{placement!r}" for path, placement in schedule.entries}
    nested = [f"{path!r}: {p}" for path, p in said.items() if "." in path]
    plain = [f"{path}={p}" for path, p in said.items() if "." not in path]
    entries = [f"{{{', '.join(nested)}}}"] if nested else []
    lines = ",\n    ".join([*entries, *plain, *schedule.besides])
    return f"{operator.name}.schedule(\n    {lines},\n)" if lines else f"{operator.name}.schedule()"


def _kinds(plan: Plan, step: StepPlan, now: Placement) -> dict[str, Placement]:
    """By the flag for it, what a step may run on; nothing of what has no knobs."""
    dim = next((g.dim for g in step.grid if not g.unit and g.dim.isidentifier()), "")
    found: dict[str, Placement] = {}
    if step.copies:
        rows = ((dim, 128),) if dim else ()
        found = {"sms": Sms(count=2, tile=rows, order=("ring",)), "copy_engine": CopyEngine()}
    elif isinstance(now, Fused):
        found = {"sms": Sms()}
    for host in makers(plan, step, through=not step.copies):
        found[f"fused into {host}"] = Fused(host)
    if isinstance(now, Fused):
        found[f"fused into {now.into}"] = now
    elif isinstance(now, Sms):
        found["sms"] = now
    elif isinstance(now, CopyEngine):
        found["copy_engine"] = now
    else:
        return {}
    return found


def _turned(plan: Plan, step: StepPlan, p: Placement, turn: Any) -> Placement:
    """A placement whose fields are those that the knobs say."""
    path, sms = step.path, plan.topology.device.sms
    tile = dict(p.tile)
    if not isinstance(p, Fused):
        sizes = {g.dim: int(F.evaluate(g.size, plan.env(0))) for g in (*step.grid, *step.loops)}
        first = [g.dim for g in step.grid if not g.unit and g.dim.isidentifier()][:1]
        for dim in [*tile] or ([] if isinstance(p, Sms) else first):
            choices = [t for t in TILES if t <= max(16, sizes.get(dim, 256))]
            found = turn(f"{path}.{dim}", choices if isinstance(p, Sms) else [None, *choices], tile.get(dim))
            tile = {**tile, dim: found} if found is not None else {d: n for d, n in tile.items() if d != dim}
    if isinstance(p, Sms):
        if step.copies:
            p = replace(p, count=turn(f"{path}.count", [c for c in COUNTS if c < sms], p.count))
        ring = [word for word in p.order if isinstance(word, str) and word.startswith("ring")]
        orders: list[Any] = [(word,) for word in ORDERS] + [("ring",), ("ring", "group 8")]
        orders += [(*ring, word) for word in ORDERS] if ring else []
        p = replace(p, order=turn(f"{path}.order", orders, p.order))
        if step.copies:
            p = replace(p, push=turn(f"{path}.push", (None, False, True), p.push))
        else:
            p = replace(p, warps=turn(f"{path}.num_warps", (2, 4, 8), p.warps))
            p = replace(p, stages=turn(f"{path}.num_stages", (1, 2, 3, 4, 5), p.stages))
    elif isinstance(p, CopyEngine):
        p = replace(p, push=turn(f"{path}.push", (None, False, True), p.push))
        p = replace(p, streams=turn(f"{path}.streams", (1, 2, 3, 4), p.streams))
    elif isinstance(p, Fused):
        p = replace(p, deferred=turn(f"{path}.deferred", (False, True, None), p.deferred))
    return replace(p, tile=tuple(tile.items()))
