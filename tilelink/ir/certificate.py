"""`Lowered` as JSON text and back, exactly: the certificate of a plan, for a checker that knows nothing of this package.

An integer is itself, a symbol its name, a string `["str", text]`, anything else `[operator, left, right]`. Whatever has fields
is an object of these fields, with the kind as `op` where it is an op; a line of the user is `[file, line, column, end column,
text]`. Equal plans have equal texts. `Lowered.parts` are left out, and how a buffer comes to be reached: that is for text, and
says nothing that the executors do not.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, cast

from tilelink.errors import Loc
from tilelink.ir.formula import Binary, Const, Sym
from tilelink.ir.lowered import OPS, Lowered

Json: TypeAlias = Any
VERSION = 2
"""Of the form, and of what its ops mean."""
HEAD = "tilelink certificate"
_LEFT_OUT = ("parts", "warps", "stage", "reached")


def certificate(lowered: Lowered) -> str:
    """The text of a lowered plan."""
    return _text({HEAD: VERSION, **_json(lowered)}) + "\n"


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
    if is_dataclass(value):
        op = {"op": type(value).__name__.lower()} if isinstance(value, OPS) else {}
        return {**op, **{f.name: _json(getattr(value, f.name)) for f in fields(value) if f.name not in _LEFT_OUT}}
    return value


def _text(value: Json, indent: str = "") -> str:
    """A field or an entry a line, and a formula or whatever else holds no object on one."""
    inner = indent + " "
    if not any(_deep(v) for v in _parts(value)):
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
