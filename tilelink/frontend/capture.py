"""`capture`: from a Python function and its signature to a `TileProgram`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.frontend import expressions
from tilelink.frontend.lowering import RESERVED, Lowering
from tilelink.frontend.outside import Found, alike
from tilelink.frontend.rehearsal import Rehearsed, taken_together
from tilelink.frontend.scope import Scope
from tilelink.frontend.source import FunctionSource, plain_function, read_source
from tilelink.frontend.statements import lower_block
from tilelink.frontend.values import Variable, constant_of, named, root
from tilelink.frontend.wording import count, meant
from tilelink.ir.program import (
    At,
    Constant,
    CopyProgram,
    If,
    Load,
    Loop,
    Move,
    Notify,
    OfTile,
    Op,
    Param,
    Store,
    Tile,
    TileProgram,
    Tiles,
    Wait,
    walk,
)
from tilelink.ir.shape import RANK_AXIS, Signature, dims_of

KINDS = ("bool", "int", "float", "str")
OF_A_USE = {"name": "the name of a use", "over": "the axis of ranks of a use", "schedule": "the placement of a use"}
"""Keywords that every call of a program takes."""


def capture(
    fn: Callable[..., Any], signature: Signature, name: str
) -> tuple[TileProgram, Rehearsed | None, tuple[Found, ...]]:
    """Reads a tile program from its source; with what was rehearsed of it, unless it copies, and what it was found to read
    outside of itself.

    Args:
        fn: the function as the user wrote it.
        signature: shapes of its parameters, in order.
        name: what schedules call it.

    Raises:
        TilelinkError: TL110 to TL164, each with the user's own line.
    """
    function = plain_function(fn)
    source = read_source(function)
    params, constants = _tensors(source, signature), _constants(source, signature, function.__kwdefaults__ or {})
    state = Lowering(source, Scope(function), params, expressions.lower)
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
    _check_signals(body)
    copy_program = _recognise(body)
    rehearsed = None
    if copy_program is None:
        names = state.domain.names
        rehearsed = Rehearsed(source, state.scope, state.locals, state.params, constants, signature, names)
    for known, value in state.helpers.globals.items():
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
        helpers=tuple(state.helpers.copied),
        globals=tuple(sorted(state.globals.items())),
        together=() if rehearsed is None else taken_together(rehearsed),
        loc=header,
    )
    return program, rehearsed, (*state.scope.found, *state.helpers.found)


def _bind_parameters(state: Lowering, constants: tuple[Constant, ...]) -> None:
    arguments = state.source.node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        _check_name(state, argument.arg, argument, f"a parameter called `{argument.arg}`")
    for node in ast.walk(state.source.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            _check_name(state, node.id, node, f"`{node.id}` is assigned")
    state.env |= state.params
    for constant, argument in zip(constants, arguments.kwonlyargs, strict=True):
        name, loc = constant.name, state.loc(argument)
        given = Variable(named(name), loc)
        if constant.kind != "float":
            given = root(name, loc, static=True, bit=constant.kind == "bool")
        state.env[name] = given
        if name not in state.once:
            state.assigned[name] = state.fresh(name)
            state.keep(name, loc)


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


def _constants(source: FunctionSource, signature: Signature, defaults: Mapping[str, object]) -> tuple[Constant, ...]:
    """The keyword-only parameters, with their kinds; `defaults` as Python evaluated them. TL113: a name that is taken, or no
    kind."""
    arguments = source.node.args
    dims = {d for s in signature.shapes for a in s.axes for d in dims_of(a.size)}
    made: list[Constant] = []
    for argument in arguments.kwonlyargs:
        name = argument.arg
        if name in dims or name in OF_A_USE:
            why = f"`{name}=` in a call of the program already is {OF_A_USE.get(name, 'a size of the signature')}"
            source.fail("TL113", argument, f"a constant called `{name}`", why, "use another name")
        value = defaults.get(name)
        kind = type(value).__name__ if name in defaults else None
        if argument.annotation is not None:
            word = constant_of(argument.annotation)
            kind = word if isinstance(word, str) else ast.unparse(argument.annotation)
        if kind is None or kind not in KINDS:
            why = "a constant is a bool, an int or a str, compiled in, or a float, given at every call"
            hint = f"annotate it, `{name}: int`, or give it a default"
            source.fail("TL113", argument, f"`{name}` has no kind", why, hint)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name in defaults and not (number if kind == "float" else type(value).__name__ == kind):
            message, why = f"the default of `{name}` is {value!r}", f"`{name}` is annotated as {kind}"
            source.fail("TL113", argument, message, why, "make both agree")
        if kind == "float" and isinstance(value, int):
            value = float(value)
        made.append(Constant(name, kind, value if isinstance(value, (bool, int, float, str)) else None))
    return tuple(made)


# -------------------------------------------------------------------------------------------- what a whole program says to others
# Every rank must be able to count the notifies of the others without seeing their data. A copy program waits for one tile, moves
# it and notifies: its engine and its direction are then the schedule's.
_COUNTED = "a waiter counts notifies, and it does not see the data that this rank sees"
_COUNTED_ALIKE = "a waiter counts notifies, and counts on as many from each rank"


def _check_signals(body: tuple[Op, ...]) -> None:
    """Refuses signals whose number depends on data: TL160 (branch), TL161 (while), TL162 (loop)."""
    for op in walk(body):
        if isinstance(op, If):
            _branch(op)
        elif isinstance(op, Loop) and op.target is None:
            _while(op)
        elif isinstance(op, (Loop, Tiles)):
            _loop(op)


def _branch(op: If) -> None:
    body, orelse = list(_notifies(op.body)), list(_notifies(op.orelse))
    if op.test.positional or Counter(map(_anywhere, body)) == Counter(map(_anywhere, orelse)):
        return
    known = {_anywhere(n) for n in orelse}
    odd = next((n for n in body if _anywhere(n) not in known), None) or (orelse or body)[0]
    hint = "notify outside the `if`, or on both paths alike"
    if op.test.formula is not None:  # of numbers of ranks, which `tl.rank()` and `tl.num_ranks()` give
        message, why = f"a notify of `{odd.param}` on one path only, chosen by the rank", _COUNTED_ALIKE
        note = Note("this is another on each rank", op.loc)
    else:
        message, why = f"a notify of `{odd.param}` on one path only, chosen by data", _COUNTED
        note = Note(f"`{op.test}` depends on loaded values", op.loc)
    raise TilelinkError("TL160", message, loc=odd.loc, why=why, hint=hint, notes=(note,))


def _anywhere(notify: Notify) -> Notify:
    """A notify without its place in the file."""
    return replace(notify, loc=Loc("", 0))


def _while(op: Loop) -> None:
    signal = next((o for o in walk(op.body) if isinstance(o, (Notify, Wait))), None)
    if signal is not None:
        word = "notify" if isinstance(signal, Notify) else "wait"
        why = "nobody can tell how often a `while` goes round, so nobody can count its signals"
        hint = "use `for ... in range(...)` or `tl.tiles(...)`, or signal outside the loop"
        raise TilelinkError("TL161", f"a {word} in a `while`", loc=signal.loc, why=why, hint=hint)


def _loop(op: Loop | Tiles) -> None:
    limits = (op.header,) if isinstance(op, Loop) else (op.start, op.stop, *(op.part or ()))
    data = next((e for e in limits if e is not None and not e.positional), None)
    notify = next(_notifies(op.body), None)
    if data is not None and notify is not None:
        message, hint = f"a notify of `{notify.param}` in a loop whose length is data", "notify once, after the loop"
        note = Note(f"`{data}` depends on loaded values", op.loc)
        raise TilelinkError("TL162", message, loc=notify.loc, why=_COUNTED, hint=hint, notes=(note,))


def _notifies(body: tuple[Op, ...]) -> Iterator[Notify]:
    return (op for op in walk(body) if isinstance(op, Notify))


# ------------------------------------------------------------------------------------------------------------- copy programs
def _recognise(body: tuple[Op, ...]) -> CopyProgram | None:
    """The copy program that a program is, or None if it computes. TL163: `rank_*` stands in one that is none; TL164: a pull."""
    copy_program = _copy_program(body)
    if copy_program is not None:
        return copy_program
    pinned = next((op for op in walk(body) if isinstance(op, (Wait, Notify, Move)) and op.by == "stream"), None)
    if pinned is not None:
        message = "`rank_*` in a program that is more than one copy of one tile"
        why = "a copy engine waits for a tile, copies it and notifies; it cannot compute"
        hint = (
            "write `tl.rank_wait(src, tile)`, `tl.rank_copy_data(dst, tile, source=src)`, `tl.rank_notify(dst, tile)`"
        )
        raise TilelinkError("TL163", message, loc=pinned.loc, why=why, hint=hint)
    pull = next((op for op in walk(body) if isinstance(op, Move)), None)
    if pull is not None:
        source, to = pull.source, pull.param
        wait, notify = f"`tl.consumer_tile_wait({source}, tile)`", f"`tl.producer_tile_notify({to}, tile)`"
        there = {(type(op), op.param) for op in walk(body) if isinstance(op, (Wait, Notify))}
        missing = [call for call, has in ((wait, (Wait, source)), (notify, (Notify, to))) if has not in there]
        message = "a pull in a program that is not the copy program of one tile"
        why = f"such a program runs for tiles of `{to}`: it waits for one, pulls it, notifies, and does nothing besides"
        if missing:
            why += f"; this one lacks {' and '.join(missing)}"
        hint = f"write {wait}, `tl.tile_pull_data({to}, tile, source={source})`, {notify}, and all else in a program of its own"
        raise TilelinkError("TL164", message, loc=pull.loc, why=why, hint=hint)
    return None


def _copy_program(body: tuple[Op, ...]) -> CopyProgram | None:
    match body:
        case Tile() as tile, Wait(peer=None) as wait, Move() as move, Notify(peer=None) as notify:
            source, to, moved, engine, pulled = move.source, move.param, (move.index,), move.by, True
        case (
            Tile() as tile,
            Wait(peer=None) as wait,
            Load(other=None) as load,
            Store(to="holders", mask=None) as store,
            Notify(peer=None) as notify,
        ) if store.value.text == load.name:
            source, to, moved, engine, pulled = load.param, store.param, (load.index, store.index), "worker", False
        case _:
            return None
    pull = tile.param == to
    if (wait.param, notify.param) != (source, to) or tile.param not in (source, to):
        return None
    for index in (wait.index, notify.index, *moved):
        said = [e.var if isinstance(e, OfTile) else e.expr.text if isinstance(e, At) else "" for e in index or ()]
        if said != list(tile.names):  # another tile than the program's own
            return None
    if not wait.by == notify.by == engine:
        return None
    if engine == "worker" and pull != pulled:
        # Pulling at the source's tiles, or pushing at the destination's: legal, but not the normal form.
        return None
    return CopyProgram(source, to, pull, pinned=engine == "stream")
