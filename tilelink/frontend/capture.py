"""`capture`: from a Python function and its signature to a `TileProgram`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend import expressions
from tilelink.frontend.jit import Helpers
from tilelink.frontend.lowering import RESERVED, Lowering
from tilelink.frontend.outside import Found, alike
from tilelink.frontend.primitives import VOCABULARY
from tilelink.frontend.scope import Scope
from tilelink.frontend.signals import check_signals, recognise
from tilelink.frontend.source import FunctionSource, plain_function, read_source
from tilelink.frontend.statements import lower_block
from tilelink.frontend.values import Tensor, Variable, constant_of, named, root
from tilelink.frontend.wording import count, meant
from tilelink.ir.program import Constant, Param, TileProgram
from tilelink.ir.shape import RANK_AXIS, Signature, dims_of

KINDS = ("bool", "int", "float", "str")
OF_A_USE = {"name": "the name of a use", "over": "the axis of ranks of a use", "schedule": "the placement of a use"}
"""Keywords that every call of a program takes."""


def capture(fn: Callable[..., Any], signature: Signature, name: str) -> tuple[TileProgram, tuple[Found, ...]]:
    """Reads a tile program from its source; with what it was found to read outside of itself.

    Args:
        fn: the function as the user wrote it.
        signature: shapes of its parameters, in order.
        name: what schedules call it.

    Raises:
        TilelinkError: TL110 to TL164, each with the user's own line.
    """
    source = read_source(plain_function(fn))
    params, constants = _tensors(source, signature), _constants(source, signature)
    helpers = Helpers(VOCABULARY)
    state = Lowering(source, Scope(source.function, VOCABULARY), params, helpers, expressions.lower)
    _bind_parameters(state, constants)
    lower_block(state, source.node.body)
    header = source.loc(source.node)
    header = Loc(header.file, header.line, max(header.source_line().find("def"), 0), None, header.text)
    if state.domain is None:
        why = "a program runs once for every tile of the tensor that `tl.tile_id` names"
        last = next(reversed(state.params), "out")
        hint = f"begin with `tile = tl.tile_id({last})`, or with another tensor whose tiles it is for"
        raise TilelinkError("TL150", f"`{source.node.name}` has no `tl.tile_id`", loc=header, why=why, hint=hint)
    body = tuple(state.ops)
    check_signals(body)
    copy_program = recognise(body)
    for known, value in helpers.globals.items():
        if not alike(state.globals.setdefault(known, value), value):
            message = f"`{known}` is {state.globals[known]!r} in the program and {value!r} in a helper"
            why = "a program and its helpers are written into one file"
            raise TilelinkError("TL126", message, loc=header, why=why, hint="rename one of them")
    program = TileProgram(
        name=name,
        signature=signature,
        params=params,
        constants=constants,
        domain=state.domain.param,
        body=body,
        copy_program=copy_program,
        helpers=helpers.all(),
        globals=tuple(sorted(state.globals.items())),
        loc=header,
    )
    return program, (*state.scope.found, *helpers.found)


def _bind_parameters(state: Lowering, constants: tuple[Constant, ...]) -> None:
    arguments = state.source.node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        _check_name(state, argument.arg, argument, f"a parameter called `{argument.arg}`")
    for node in ast.walk(state.source.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            _check_name(state, node.id, node, f"`{node.id}` is assigned")
    for param in state.params:
        state.env[param] = Tensor(param)
    for constant, argument in zip(constants, arguments.kwonlyargs, strict=True):
        name, loc = constant.name, state.loc(argument)
        given = Variable(named(name), loc) if constant.kind == "float" else root(name, loc, static=True)
        state.env[name] = given
        if name not in state.once:
            state.assigned[name] = state.fresh(name)
            state.keep(name, loc)
    state.flags = frozenset(c.name for c in constants if c.kind == "bool")


def _check_name(state: Lowering, name: str, node: ast.AST, message: str) -> None:
    if name in RESERVED:
        why = f"`{name}` means something of its own in compiled programs"
        state.fail("TL114", node, message, why, "use another name")


# ---------------------------------------------------------------------------------------------------------------- parameters
def _tensors(source: FunctionSource, signature: Signature) -> tuple[Param, ...]:
    """The parameters by position, with their shapes. TL112: not those of the signature. TL103: a split by no parameter."""
    arguments = source.node.args
    for starred, mark in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if starred is not None:
            message, why = f"`{mark}{starred.arg}` in a tile program", "tensors match the signature one by one"
            source.fail("TL112", starred, message, why, "name every tensor, and every constant after a bare `*`")
    tensors = [*arguments.posonlyargs, *arguments.args]
    if arguments.defaults:
        first = tensors[len(tensors) - len(arguments.defaults)]
        hint = f"put `*` before `{first.arg}` if it is a constant"
        source.fail("TL112", first, f"a default for `{first.arg}`", "parameters by position are tensors", hint)
    shapes = signature.shapes
    if len(tensors) != len(shapes):
        why = f"`{signature}` has {len(signature.inputs)} in and {len(signature.outputs)} out"
        hint = "write one parameter for each tensor, results last"
        message = f"{count(len(tensors), 'parameter')} for {count(len(shapes), 'tensor')}"
        source.fail("TL112", tensors[-1] if tensors else source.node, message, why, hint)
    roles = ["in"] * len(signature.inputs) + ["out"] * len(signature.outputs)
    params = {a.arg: Param(a.arg, s, r) for a, s, r in zip(tensors, shapes, roles, strict=True)}
    for argument in tensors:
        for axis in params[argument.arg].shape.axes:
            if axis.split in (None, RANK_AXIS):
                continue
            message, table = f"`{axis}` is split by `{axis.split}`, which is", params.get(axis.split)
            if table is None:
                hint = f"name the parameter that holds the offsets: {', '.join(params)}"
                hint = meant(axis.split, params, hint, f"`{axis.size}/{{}}`")
                why = "an axis is split over the ranks, `/R`, or by an offsets table, a parameter of the program"
                source.fail("TL103", argument, f"{message} no parameter", why, hint)
            if len(table.shape.axes) != 1 or table.shape.rest is not None or table.name == argument.arg:
                why = "the offsets of the segments are one row of numbers"
                hint = f"give `{table.name}` one axis, such as `e+1 i32`"
                source.fail("TL103", argument, f"{message} `{table.shape}`", why, hint)
    return tuple(params.values())


def _constants(source: FunctionSource, signature: Signature) -> tuple[Constant, ...]:
    """The keyword-only parameters, with their kinds. TL113: a name that is taken, or no kind."""
    arguments = source.node.args
    dims = {d for s in signature.shapes for a in s.axes for d in dims_of(a.size)}
    made: list[Constant] = []
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        name = argument.arg
        if name in dims or name in OF_A_USE:
            why = f"`{name}=` in a call of the program already is {OF_A_USE.get(name, 'a size of the signature')}"
            source.fail("TL113", argument, f"a constant called `{name}`", why, "use another name")
        # The default as Python evaluated it.
        value = None if default is None else (source.function.__kwdefaults__ or {}).get(name)
        kind = type(value).__name__ if default is not None else None
        if argument.annotation is not None:
            word = constant_of(argument.annotation)
            kind = word if isinstance(word, str) else ast.unparse(argument.annotation)
        if kind is None or kind not in KINDS:
            why = "a constant is a bool, an int or a str, compiled in, or a float, given at every call"
            hint = f"annotate it, `{name}: int`, or give it a default"
            source.fail("TL113", argument, f"`{name}` has no kind", why, hint)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if default is not None and not (number if kind == "float" else type(value).__name__ == kind):
            message, why = f"the default of `{name}` is {value!r}", f"`{name}` is annotated as {kind}"
            source.fail("TL113", argument, message, why, "make both agree")
        if kind == "float" and isinstance(value, int):
            value = float(value)
        made.append(Constant(name, kind, value if isinstance(value, (bool, int, float, str)) else None))
    return tuple(made)
