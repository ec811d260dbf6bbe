"""`capture`: from a Python function and its signature to a `TileProgram`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NoReturn

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend import expressions
from tilelink.frontend.jitted import Helpers
from tilelink.frontend.lowering import RESERVED, Lowering
from tilelink.frontend.movement import recognise
from tilelink.frontend.outside import Found, alike
from tilelink.frontend.parameters import read_parameters
from tilelink.frontend.primitives import VOCABULARY
from tilelink.frontend.scope import Scope
from tilelink.frontend.signals import check_signals
from tilelink.frontend.source import FunctionSource, plain_function, read_source
from tilelink.frontend.statements import lower_block
from tilelink.frontend.values import Tensor, Variable, root
from tilelink.ir.program import Constant, TileProgram
from tilelink.ir.shape import Signature


def capture(fn: Callable[..., Any], signature: Signature, name: str | None = None) -> TileProgram:
    """Reads a tile program from its source.

    Args:
        fn: the function as the user wrote it.
        signature: shapes of its parameters, in order.
        name: what schedules call it; the function's name by default.

    Raises:
        TilelinkError: TL110 to TL164, each with the user's own line.
    """
    return captured(fn, signature, name)[0]


def captured(
    fn: Callable[..., Any], signature: Signature, name: str | None = None
) -> tuple[TileProgram, tuple[Found, ...]]:
    """The same, and what it was found to read outside of itself."""
    source = read_source(plain_function(fn))
    params, constants = read_parameters(source, signature)
    helpers = Helpers(VOCABULARY)
    state = Lowering(source, Scope.around(source.function, VOCABULARY), params, helpers, expressions.lower)
    _bind_parameters(state, constants)
    lower_block(state, source.node.body)
    if state.domain is None:
        _no_domain(state, source)
    body = tuple(state.ops)
    check_signals(body)
    program = TileProgram(
        name=name or source.node.name,
        signature=signature,
        params=params,
        constants=constants,
        domain=state.domain.param,
        body=body,
        movement=recognise(body),
        helpers=helpers.all(),
        globals=_globals(state, helpers, source),
        loc=_of_header(source),
    )
    return program, (*state.scope.found, *helpers.found)


def _bind_parameters(state: Lowering, constants: tuple[Constant, ...]) -> None:
    arguments = state.source.node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg in RESERVED:
            why = f"`{argument.arg}` means something of its own in compiled programs"
            state.fail("TL114", argument, f"a parameter called `{argument.arg}`", why, "use another name")
    for node in ast.walk(state.source.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in RESERVED:
            why = f"`{node.id}` means something of its own in compiled programs"
            state.fail("TL114", node, f"`{node.id}` is assigned", why, "use another name")
    for param in state.params:
        state.env[param] = Tensor(param)
    places = {a.arg: state.loc(a) for a in arguments.kwonlyargs}
    for constant in constants:
        name, loc = constant.name, places[constant.name]
        state.env[name] = _constant(constant, loc)
        if not state.bound_once(name):
            state.assigned[name] = state.fresh(name)
            state.keep(name, loc)
    state.flags = frozenset(c.name for c in constants if c.kind == "bool")


def _constant(constant: Constant, loc: Loc) -> Variable:
    if constant.kind == "float":
        return Variable(constant.name, loc)
    return root(constant.name, loc, static=True)


def _of_header(source: FunctionSource) -> Loc:
    """The line of the `def`."""
    loc = source.loc(source.node)
    column = loc.source_line().find("def")
    return Loc(loc.file, loc.line, max(column, 0), None, loc.text)


def _no_domain(state: Lowering, source: FunctionSource) -> NoReturn:
    last = next(reversed(state.params), "out")
    raise TilelinkError(
        "TL150",
        f"`{source.node.name}` has no `tl.tile_id`",
        loc=_of_header(source),
        why="a program runs once for every tile of the tensor that `tl.tile_id` names",
        hint=f"begin with `tile = tl.tile_id({last})`, or with another tensor whose tiles it is for",
    )


def _globals(
    state: Lowering, helpers: Helpers, source: FunctionSource
) -> tuple[tuple[str, bool | int | float | str], ...]:
    for name, value in helpers.globals.items():
        if not alike(state.globals.setdefault(name, value), value):
            message = f"`{name}` is {state.globals[name]!r} in the program and {value!r} in a helper"
            why = "a program and its helpers are written into one file"
            raise TilelinkError("TL126", message, loc=_of_header(source), why=why, hint="rename one of them")
    return tuple(sorted(state.globals.items()))
