"""Schedules as JSON: what tables of measured schedules hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tilelink.ir.schedule import CopyEngine, Fused, Library, Placement, Schedule, Sms

KINDS: dict[str, type[Any]] = {"sms": Sms, "copy_engine": CopyEngine, "fused": Fused, "library": Library}


def record_of(schedule: Schedule) -> dict[str, Any] | None:
    """None where a user's function orders tiles, or computes them: a function is no data."""
    placements = {path: _placement(p) for path, p in schedule.entries}
    if any(p is None for p in placements.values()):
        return None
    found: dict[str, Any] = {"placements": placements}
    if schedule.slots != Schedule().slots:
        found["slots"] = schedule.slots
    if schedule.channels:
        found["channels"] = dict(schedule.channels)
    if schedule.sequential:
        found["sequential"] = True
    if not schedule.low_latency:
        found["low_latency"] = False
    return found


def form_of(schedule: Schedule) -> str:
    """What computes: `sequential` (one library after the other), `library` (one behind waits) or `Triton`."""
    if schedule.sequential:
        return "sequential"
    return "library" if any(isinstance(p, Library) for _, p in schedule.entries) else "Triton"


def schedule_of(record: Mapping[str, Any]) -> Schedule:
    """Raises KeyError, TypeError or ValueError where the record is none of this version's."""
    return Schedule(
        entries=tuple(sorted((path, _made(p)) for path, p in record["placements"].items())),
        slots=record.get("slots", Schedule().slots),
        channels=tuple(sorted(record.get("channels", {}).items())),
        sequential=record.get("sequential", False),
        low_latency=record.get("low_latency", True),
    )


def _placement(placement: Placement) -> dict[str, Any] | None:
    """Only what differs from the defaults."""
    kind = next(name for name, cls in KINDS.items() if isinstance(placement, cls))
    found: dict[str, Any] = {"on": kind}
    for f in fields(placement):
        value: Any = getattr(placement, f.name)
        if f.name == "function" and callable(value):
            return None
        if isinstance(value, tuple(KINDS.values())):
            value = _placement(value)
            if value is None:
                return None
        if f.name == "tile":
            found |= {"tile": dict(value)} if value else {}
        elif f.name == "order":
            if not all(isinstance(o, str) for o in value):
                return None
            found |= {"order": list(value)} if value != f.default else {}
        elif value != f.default:
            found[f.name] = value
    return found


def _made(record: Mapping[str, Any]) -> Placement:
    values = {k: v for k, v in record.items() if k != "on"}
    if "tile" in values:
        values["tile"] = tuple(values["tile"].items())
    if "order" in values:
        values["order"] = tuple(values["order"])
    if "otherwise" in values:
        values["otherwise"] = _made(values["otherwise"])
    return KINDS[record["on"]](**values)
