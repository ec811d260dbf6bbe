"""Schedules as JSON, and what else is written down and read back: nothing is taken that its dataclass does not declare."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from tilelink.ir.schedule import (
    ELEMENTS,
    PART,
    ByRuns,
    CopyEngine,
    Fused,
    Library,
    Placement,
    Schedule,
    Sms,
    holds,
)
from tilelink.ir.wiring import Wiring
from tilelink.runtime.functions import function_of
from tilelink.tuning.space import FUNCTIONS

T = TypeVar("T")
KINDS: dict[str, type[Any]] = {"sms": Sms, "copy_engine": CopyEngine, "fused": Fused, "library": Library}


# ------------------------------------------------------------------------------------------------------------- reading
def taken(text: str | bytes, of: Callable[[Any], T]) -> T:
    """What JSON holds.

    Raises:
        ValueError: it is no JSON, or none of this version's.
    """
    try:
        return of(json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def made(kind: type[T], record: Any) -> T:
    """A dataclass whose fields an object of JSON names, each of its type: lists are tuples, and objects tuples of pairs, or
    dataclasses.

    Raises:
        ValueError: a field that it does not have, or does not get; a value of another type.
    """
    known, given = _hints(kind), object_of(record, kind.__name__)
    for name in given:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field {_said(name)}")
    for f in fields(cast("type[Any]", kind)):
        if f.name not in given and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} has no value for `{f.name}`")
    return kind(**{name: _value(known[name], value, f"{kind.__name__}.{name}") for name, value in given.items()})


_hints = cache(get_type_hints)


def _value(hint: Any, value: Any, where: str) -> Any:
    for option in get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        if option is type(value) or (option is float and type(value) is int):
            return value
        of = get_args(option)[0] if get_origin(option) is tuple else None
        if get_origin(of) is tuple:
            return tuple([(name, _value(get_args(of)[1], v, where)) for name, v in object_of(value, where).items()])
        if of is not None and isinstance(value, list):
            return tuple([_value(of, each, where) for each in cast("list[Any]", value)])
        if option is Schedule:
            return schedule_of(value)
        if option in KINDS.values() and isinstance(value, dict):
            return _placed(object_of(value, where), where)
        if is_dataclass(option) and option not in KINDS.values():
            return made(option, value)
    raise ValueError(f"`{where}` is {_said(value)}")


def object_of(value: Any, where: str) -> dict[str, Any]:
    """
    Raises:
        ValueError: it is no object of JSON.
    """
    if not isinstance(value, dict):
        raise ValueError(f"`{where}` is {_said(value)}")
    return cast("dict[str, Any]", value)


def _said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _placed(record: dict[str, Any], where: str) -> Placement:
    kind = KINDS.get(str(record.get("on")))
    if kind is None:
        raise ValueError(f"`{where}` is on {_said(record.get('on'))}")
    placement: Placement = made(kind, {name: value for name, value in record.items() if name != "on"})
    for f in fields(kind):
        value, where = getattr(placement, f.name), f"{kind.__name__}.{f.name}"
        if f.name == "tile":
            for size in dict(value).values():
                _fit(where, size, ELEMENTS[1](size) or (kind is Library and size == PART))
        else:
            _fit(where, value, holds(f.name, value))
    return placement


def _fit(where: str, value: Any, good: bool) -> None:
    if not good:
        raise ValueError(f"`{where}` is {_said(value)}")


def schedule_of(record: Any) -> Schedule:
    """
    Raises:
        ValueError: the record is none of this version's.
    """
    given = object_of(record, Schedule.__name__)
    if "entries" in given or "placements" not in given:
        raise ValueError("Schedule has no field `placements`, or `entries`")
    found = made(Schedule, {"entries" if name == "placements" else name: value for name, value in given.items()})
    _fit("Schedule.slots", found.slots, holds("slots", found.slots))
    for elements in dict(found.channels).values():
        _fit("Schedule.channels", elements, ELEMENTS[1](elements))
    return replace(found, entries=tuple(sorted(found.entries)), channels=tuple(sorted(found.channels)))


# ------------------------------------------------------------------------------------------------------------- writing
def record_of(value: Any) -> dict[str, Any] | None:
    """A schedule, or a dataclass that may have one, as an object of JSON; None where a user's function orders tiles, or computes
    them: a function is no data."""
    try:
        return _data(value)
    except TypeError:
        return None


def _differing(record: Any) -> dict[str, Any]:
    """Only what differs from the defaults."""
    given = {f.name: getattr(record, f.name) for f in fields(record) if getattr(record, f.name) != f.default}
    return {name: _data(value) for name, value in given.items()}


def _data(value: Any) -> Any:
    """
    Raises:
        TypeError: it is a function.
    """
    if callable(value):
        raise TypeError
    kind = next((name for name, cls in KINDS.items() if isinstance(value, cls)), None)
    if kind is not None:
        return {"on": kind, **_differing(value)}
    if isinstance(value, Schedule):
        found = _differing(value)
        return {"placements": found.pop("entries", {}), **found}
    if is_dataclass(value):
        return {f.name: _data(getattr(value, f.name)) for f in fields(value)}
    if not isinstance(value, tuple):
        return value
    several = cast("tuple[Any, ...]", value)
    if several and isinstance(several[0], tuple):
        return {name: _data(each) for name, each in several}
    return [_data(each) for each in several]


def form_of(schedule: Schedule) -> str:
    """What computes: `unfused` (one library after the other), `library` (one behind waits) or `Triton`."""
    if schedule.unfused:
        return "unfused"
    return "library" if any(isinstance(p, Library) for _, p in schedule.entries) else "Triton"


# ----------------------------------------------------------------------------------------------------------- functions
# Which functions of libraries text from outside may name: a tuned schedule on disk, a token. No other is looked up.


def known(schedule: Schedule, wiring: Wiring, further: Iterable[Placement] = ()) -> frozenset[str]:
    """The functions that a search proposes by itself, and those that people have named in Python.

    Args:
        schedule: of the operator, by its author or its user.
        wiring: of the operator; has what operators inside it bring along.
        further: other placements that the caller has written.
    """
    brought = [s.shipped for s in wiring.steps if s.shipped is not None]
    placed = (*(p for _, p in schedule.entries), *brought, *further)
    return FUNCTIONS | {p.function for p in libraries(placed) if isinstance(p.function, str)}


def libraries(placements: Iterable[Placement]) -> Iterator[Library]:
    """Those that are of library functions, and what takes their place."""
    for placement in placements:
        if isinstance(placement, Library):
            yield placement
            yield from libraries(() if placement.fallback is None else (placement.fallback,))


def unknown(schedule: Schedule, functions: frozenset[str]) -> str:
    """Which function of a schedule nobody has named, in words, or is not what the schedule takes it for; empty: none."""
    for placed in libraries(p for _, p in schedule.entries):
        if placed.function not in functions:
            return (
                f"it names the function `{placed.function}`, which neither the library nor the operator's author names"
            )
        if placed.runs != isinstance(function_of(placed.function), ByRuns):
            return f"it takes `{placed.function}` for a function by panels, or for none, and is wrong"
    return ""
