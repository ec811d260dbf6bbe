"""The parameters of a tile program: tensors by position, as the signature says, and keyword-only constants."""

from __future__ import annotations

import ast
from types import MappingProxyType
from typing import NoReturn

from tilelink.errors import TilelinkError
from tilelink.frontend.source import FunctionSource
from tilelink.frontend.values import constant_of
from tilelink.frontend.wording import count, nearest
from tilelink.ir.program import Constant, Param
from tilelink.ir.shape import RANK_AXIS, Signature, dims_of

KINDS = ("bool", "int", "float", "str")


def read_parameters(source: FunctionSource, signature: Signature) -> tuple[tuple[Param, ...], tuple[Constant, ...]]:
    """Tensor parameters with their shapes, and constants with their kinds.

    Raises:
        TilelinkError: TL112, TL113, TL103 (a split that no parameter gives).
    """
    arguments = source.node.args
    for starred, mark in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if starred is not None:
            hint = "name every tensor, and every constant after a bare `*`"
            _fail(
                source,
                "TL112",
                starred,
                f"`{mark}{starred.arg}` in a tile program",
                "tensors match the signature one by one",
                hint,
            )
    tensors = [*arguments.posonlyargs, *arguments.args]
    if arguments.defaults:
        first = tensors[len(tensors) - len(arguments.defaults)]
        hint = f"put `*` before `{first.arg}` if it is a constant"
        _fail(source, "TL112", first, f"a default for `{first.arg}`", "parameters by position are tensors", hint)
    shapes = signature.shapes
    if len(tensors) != len(shapes):
        why = f"`{signature}` has {len(signature.inputs)} in and {len(signature.outputs)} out"
        hint = "write one parameter for each tensor, results last"
        message = f"{count(len(tensors), 'parameter')} for {count(len(shapes), 'tensor')}"
        _fail(source, "TL112", tensors[-1] if tensors else source.node, message, why, hint)
    roles = ["in"] * len(signature.inputs) + ["out"] * len(signature.outputs)
    params = tuple(Param(a.arg, s, r) for a, s, r in zip(tensors, shapes, roles, strict=True))
    for param, argument in zip(params, tensors, strict=True):
        _tables(source, params, param, argument)
    return params, _constants(source, signature)


def _fail(source: FunctionSource, code: str, node: ast.AST, message: str, why: str, hint: str) -> NoReturn:
    raise TilelinkError(code, message, loc=source.loc(node), why=why, hint=hint)


def _tables(source: FunctionSource, params: tuple[Param, ...], param: Param, argument: ast.arg) -> None:
    names = [p.name for p in params]
    for axis in param.shape.axes:
        if axis.split in (None, RANK_AXIS):
            continue
        table = next((p for p in params if p.name == axis.split), None)
        if table is None:
            close = nearest(str(axis.split), names)
            hint = (
                f"did you mean `{axis.size}/{close}`?"
                if close
                else f"name the parameter that holds the offsets: {', '.join(names)}"
            )
            why = "an axis is split over the ranks, `/R`, or by an offsets table, a parameter of the program"
            _fail(source, "TL103", argument, f"`{axis}` is split by `{axis.split}`, which is no parameter", why, hint)
        if len(table.shape.axes) != 1 or table.shape.rest is not None or table.name == param.name:
            why = "the offsets of the segments are one row of numbers"
            hint = f"give `{table.name}` one axis, such as `e+1 i32`"
            _fail(
                source, "TL103", argument, f"`{axis}` is split by `{table.name}`, which is `{table.shape}`", why, hint
            )


def _constants(source: FunctionSource, signature: Signature) -> tuple[Constant, ...]:
    arguments = source.node.args
    dims = {d for s in signature.shapes for a in s.axes for d in dims_of(a.size)}
    return tuple(
        _one(source, argument, default, dims)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    )


OF_A_USE = MappingProxyType(
    {"name": "the name of a use", "over": "the axis of ranks of a use", "schedule": "the placement of a use"}
)
"""Keywords that every call of a program takes."""


def _one(source: FunctionSource, argument: ast.arg, default: ast.expr | None, dims: set[str]) -> Constant:
    name = argument.arg
    if name in dims or name in OF_A_USE:
        taken = OF_A_USE.get(name, "a size of the signature")
        why = f"`{name}=` in a call of the program already is {taken}"
        _fail(source, "TL113", argument, f"a constant called `{name}`", why, "use another name")
    value = None if default is None else _given(source, argument)
    kind = _kind(argument.annotation) or (type(value).__name__ if default is not None else None)
    if kind not in KINDS:
        why = "a constant is a bool, an int or a str, compiled in, or a float, given at every call"
        _fail(
            source, "TL113", argument, f"`{name}` has no kind", why, f"annotate it, `{name}: int`, or give it a default"
        )
    assert kind is not None
    if default is not None and not _suits(kind, value):
        why = f"`{name}` is annotated as {kind}"
        _fail(source, "TL113", argument, f"the default of `{name}` is {value!r}", why, "make both agree")
    return Constant(name, kind, float(value) if kind == "float" and isinstance(value, int) else _plain(value))


def _plain(value: object) -> bool | int | float | str | None:
    return value if isinstance(value, (bool, int, float, str)) else None


def _given(source: FunctionSource, argument: ast.arg) -> object:
    """The default as Python evaluated it."""
    return (source.function.__kwdefaults__ or {}).get(argument.arg)


def _kind(annotation: ast.expr | None) -> str | None:
    if annotation is None:
        return None
    word = constant_of(annotation)
    return word if isinstance(word, str) else ast.unparse(annotation)


def _suits(kind: str, value: object) -> bool:
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value).__name__ == kind
