"""`Lowered` as JSON text and back, exactly: the certificate of a plan, for a checker that knows nothing of this package.

An integer is itself, a symbol its name, a string `["str", text]`, anything else `[operator, left, right]`. An op, and whatever
else has fields, is an object of these fields, an op with its name as `op`; a line of the user is `[file, line, column,
end column, text]`. The same `Lowered` gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar, cast

from tilelink.errors import Loc
from tilelink.ir.formula import Binary, Const, Formula, Sym
from tilelink.ir.lowered import (
    Await,
    Buffer,
    Check,
    Compute,
    Copy,
    Executor,
    Flags,
    For,
    If,
    Lowered,
    Op,
    Read,
    Signal,
    Tiles,
    Write,
)

Json: TypeAlias = Any
T = TypeVar("T")
VERSION = 1
"""Of the form, and of what its ops mean."""
_OPS: dict[str, type[Op]] = {o.__name__.lower(): o for o in (Await, Signal, Read, Write, Copy, Compute, Check, For, If)}


def certificate(lowered: Lowered) -> str:
    """The text of a lowered plan."""
    return _text({"tilelink certificate": VERSION, **_object(lowered)}) + "\n"


def lowered_of(text: str) -> Lowered:
    """The lowered plan of a certificate.

    Raises:
        ValueError: it is none, or one of another version.
    """
    try:
        found: dict[str, Json] = json.loads(text)
        if found.pop("tilelink certificate", None) != VERSION:
            raise ValueError(f"no certificate of version {VERSION}")
        return _lowered(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no certificate of version {VERSION}: {error!r}") from error


# ------------------------------------------------------------------------------------------------------------- writing
def _object(value: Any) -> dict[str, Json]:
    return {f.name: _json(getattr(value, f.name)) for f in fields(value)}


def _json(value: Any) -> Json:
    if isinstance(value, Const):
        return ["str", value.value] if isinstance(value.value, str) else value.value
    if isinstance(value, Sym):
        return value.name
    if isinstance(value, Binary):
        return [value.op, _json(value.left), _json(value.right)]
    if isinstance(value, Loc):
        return [value.file, value.line, value.column, value.end_column, value.text]
    if isinstance(value, tuple):
        return [_json(v) for v in cast("tuple[Any, ...]", value)]
    if type(value) in _OPS.values():
        return {"op": type(value).__name__.lower(), **_object(value)}
    if isinstance(value, Buffer | Flags | Tiles | Executor):
        return _object(value)
    return value


def _text(value: Json, indent: str = "") -> str:
    """A field or an entry a line, and a formula or whatever else holds no object on one."""
    inner = indent + " "
    if not any(_deep(v) for v in _parts(value)) and (isinstance(value, dict) or not _deep(value)):
        return json.dumps(value)
    if isinstance(value, dict):
        entries = [f"{json.dumps(n)}: {_text(v, inner)}" for n, v in cast("dict[str, Json]", value).items()]
        opening, closing = "{}"
    else:
        entries = [_text(v, inner) for v in cast("list[Json]", value)]
        opening, closing = "[]"
    return f"{opening}\n" + ",\n".join(inner + e for e in entries) + f"\n{indent}{closing}"


def _parts(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(cast("dict[str, Json]", value).values())
    return cast("list[Json]", value) if isinstance(value, list) else []


def _deep(value: Json) -> bool:
    """Whether it is an object, or a list of some."""
    return isinstance(value, dict) or any(isinstance(v, dict) for v in _parts(value))


# ------------------------------------------------------------------------------------------------------------- reading
def _formula(value: Json) -> Formula:
    if isinstance(value, int):
        return Const(value)
    if isinstance(value, str):
        return Sym(value)
    if value[0] == "str":
        return Const(value[1])
    op, left, right = value
    return Binary(op, _formula(left), _formula(right))


def _each(read: Callable[[Json], T]) -> Callable[[list[Json]], tuple[T, ...]]:
    return lambda values: tuple(read(v) for v in values)


def _or_none(read: Callable[[Json], T]) -> Callable[[Json], T | None]:
    return lambda value: None if value is None else read(value)


def _as(kind: Callable[..., T]) -> Callable[[dict[str, Json]], T]:
    return lambda value: kind(**_fields(value))


def _let(value: Json) -> tuple[str, Formula]:
    return value[0], _formula(value[1])


def _edges(value: Json) -> tuple[Formula, Formula]:
    return _formula(value[0]), _formula(value[1])


def _size(value: Json) -> tuple[str, int]:
    return value[0], value[1]


def _table(value: Json) -> tuple[str, tuple[tuple[int, ...], ...]]:
    return value[0], tuple(tuple(row) for row in value[1])


def _loc(value: Json) -> Loc:
    return Loc(*value)


def _op(value: dict[str, Json]) -> Op:
    return _OPS[value["op"]](**_fields({n: v for n, v in value.items() if n != "op"}))


_READ: dict[str, Callable[[Any], Any]] = {
    "index": _formula, "rank": _or_none(_formula), "amount": _or_none(_formula), "test": _or_none(_formula),
    "count": _formula, "total": _formula, "arrivals": _or_none(_formula), "box": _each(_edges), "extents": _each(_formula),
    "lets": _each(_let), "axes": _each(_let), "order": _each(_let), "loc": _or_none(_loc),
    "body": _each(_op), "source": _op, "target": _op, "loops": _each(_as(Tiles)), "after": tuple, "ends": tuple,
    "ranks": _each(_size), "sizes": _each(_size), "tables": _each(_table), "buffers": _each(_as(Buffer)),
    "executors": _each(_as(Executor)),
}  # fmt: skip
"""By the name of a field: it means the same wherever it stands. Of the others JSON has the value itself."""


def _fields(value: dict[str, Json]) -> dict[str, Any]:
    return {name: _READ[name](v) if name in _READ else v for name, v in value.items()}


def _lowered(value: dict[str, Json]) -> Lowered:
    """`flags` is the name of some elsewhere, and all of them here."""
    flags = tuple(Flags(**_fields(f)) for f in value.pop("flags"))
    return Lowered(flags=flags, **_fields(value))
