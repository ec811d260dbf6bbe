"""Runs an operator's body once, on symbolic tensors, and writes down which tile programs it connects."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter
from inspect import signature as parameters_of
from typing import Any, NoReturn, cast

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.frontend.binding import RANKS, Dimensions, Given, Slot, align, dims_of, names_of
from tilelink.frontend.callsite import call_site
from tilelink.frontend.grammar import parse_owner, parse_shape
from tilelink.frontend.symbolic import Extent, LogicalAxis, Record, SymbolicTensor
from tilelink.frontend.wiring import PendingStep, PendingView, assemble
from tilelink.ir.formula import Const, Formula, Sym
from tilelink.ir.program import Constant, TileProgram
from tilelink.ir.shape import RANK_AXIS, Axis, Dim, Product, Shape, Signature, Size, Sum
from tilelink.ir.wiring import Wiring

Plain = bool | int | float | str
NOWHERE = Loc("<operator>", 1)


# ------------------------------------------------------------------------------------------------------------ whole operators
def trace(
    name: str,
    fn: Callable[..., Any],
    signature: Signature,
    sizes: Mapping[str, int],
    dtypes: Sequence[str],
    constants: Mapping[str, Plain],
    loc: Loc | None = None,
    *,
    ranks: int,
) -> Wiring:
    """Runs an operator's body on symbolic tensors.

    Args:
        name: of the operator.
        fn: its body.
        signature: of the operator.
        sizes: global sizes of the dimensions of its inputs (`bind_sizes`); axes behind `...` are `_0`, `_1`, ...
        dtypes: one for each input.
        constants: its keyword-only arguments.
        loc: where the operator is defined.
        ranks: how many ranks; it is the size of axes `R`, and what the parts of split axes follow from.

    Raises:
        TilelinkError: TL201 to TL213, and what `capture` raises for the programs that are called.
    """
    names = _argument_names(name, fn, signature, loc)
    run = Trace(ranks)
    rest = sum(f"_{i}" in sizes for i in range(len(sizes)))
    tensors = [
        run.record(_argument(run, name, n, s, sizes, d, rest, loc))
        for n, s, d in zip(names, signature.inputs, dtypes, strict=True)
    ]
    extents = {n: Extent(sizes[n], Sym(n)) for n in _symbols(signature, rest) if n in sizes}
    frame = Frame(name, "", extents, dtypes[0] if dtypes else "f32")
    token = _TRACE.set(run)
    try:
        with run.inside(frame):
            results = _results(name, fn(*tensors, **constants), loc)
            _check_results(run, name, signature, extents, results, loc)
    finally:
        _TRACE.reset(token)
    return assemble(
        name=name,
        signature=signature,
        sizes=_symbols(signature, rest),
        records=run.records,
        steps=run.steps,
        arguments=[t.record for t in tensors],
        results=[t.record for t in results],
        loc=loc or NOWHERE,
    )


def _symbols(signature: Signature, rest: int) -> tuple[str, ...]:
    """Run-time sizes: the dimensions of the inputs, in order."""
    inputs = names_of(Signature(signature.inputs, (), signature.text))
    return (*inputs, *(f"_{i}" for i in range(rest)))


def _argument_names(name: str, fn: Callable[..., Any], signature: Signature, loc: Loc | None) -> list[str]:
    """The names of an operator's tensor parameters.

    Raises:
        TilelinkError: TL202 if their number is not the signature's.
    """
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters_of(fn).parameters.values() if p.kind in kinds]
    if len(names) != len(signature.inputs):
        raise TilelinkError(
            "TL202",
            f"`{name}` has {count(len(names), 'tensor parameter')}, its signature {count(len(signature.inputs), 'input')}",
            loc=loc,
            why=f"the signature is `{signature}`; what follows `->` is returned",
            hint="write one parameter for each input, and constants after a bare `*`",
        )
    return names


def _argument(
    run: Trace, user: str, name: str, shape: Shape, sizes: Mapping[str, int], dtype: str, rest: int, loc: Loc | None
) -> Record:
    if shape.dtype is not None and shape.dtype != dtype:
        why = f"the signature of `{user}` says `{shape}`"
        message = f"`{name}` is {dtype}, not {shape.dtype}"
        raise TilelinkError("TL206", message, loc=loc, why=why, hint=f"convert `{name}` before the call")
    axes = [_declared(run, user, a, sizes, loc) for a in shape.axes]
    if shape.rest is not None:
        axes[shape.rest : shape.rest] = [
            LogicalAxis(f"_{i}", Sym(f"_{i}"), sizes[f"_{i}"], None, False) for i in range(rest)
        ]
    return Record(tuple(axes), dtype, "argument", name, name, f"`{name}`", shape.contract, None, loc)


def _declared(run: Trace, user: str, axis: Axis, sizes: Mapping[str, int], loc: Loc | None) -> LogicalAxis:
    """An axis of an argument, in the operator's own sizes."""

    def known(name: str) -> tuple[Formula, int]:
        if name == RANK_AXIS:
            return RANKS, run.ranks
        if name in sizes:
            return Sym(name), int(sizes[name])
        why = f"`{axis}` of the signature needs it"
        raise TilelinkError(
            "TL205", f"the size `{name}` of `{user}` is not known", loc=loc, why=why, hint=f"pass `{name}=`"
        )

    size, extent = evaluate_size(axis.size, known)
    return LogicalAxis(axis.name, size, extent, axis.split, axis.unit)


# -------------------------------------------------------------------------------------------------------------------- results
def _results(user: str, returned: object, loc: Loc | None) -> list[SymbolicTensor]:
    everything = cast("Sequence[object]", returned) if isinstance(returned, (tuple, list)) else [returned]
    tensors = [one for one in everything if isinstance(one, SymbolicTensor)]
    for one in everything:
        if not isinstance(one, SymbolicTensor):
            why = "an operator returns what its programs and operators returned"
            message = f"`{user}` returns an object of type `{type(one).__name__}`"
            raise TilelinkError("TL210", message, loc=loc, why=why, hint="return tensors")
    return tensors


def _check_results(
    run: Trace,
    user: str,
    signature: Signature,
    sizes: Mapping[str, Extent],
    results: list[SymbolicTensor],
    loc: Loc | None,
) -> None:
    """Compares what was returned with what the signature promises, if it promises anything."""
    if not signature.outputs:
        return
    if len(results) != len(signature.outputs):
        message = f"`{user}` returns {count(len(results), 'tensor')}, its signature {len(signature.outputs)}"
        hint = "make the signature and the `return` agree"
        raise TilelinkError("TL210", message, loc=loc, why=f"the signature is `{signature}`", hint=hint)
    dimensions = Dimensions(user, signature, run.ranks, loc, operator=True)
    for name, extent in sizes.items():
        dimensions.give(name, extent)
    pairs: list[tuple[Given, tuple[Slot, ...]]] = []
    for number, (shape, result) in enumerate(zip(signature.outputs, results, strict=True)):
        given = Given(f"result {number + 1}", shape, result.record)
        pairs.append((given, align(given, user, loc)))
        if shape.dtype is not None and shape.dtype != result.dtype:
            why = f"the signature is `{signature}`"
            message = f"result {number + 1} of `{user}` is {result.dtype}, not {shape.dtype}"
            raise TilelinkError("TL206", message, loc=loc, why=why, hint="make them agree")
    for given, slots in pairs:
        dimensions.add(given, slots)
    for given, slots in pairs:
        dimensions.check_compound(given, slots)


# ------------------------------------------------------------------------------------------------- operators inside operators
def inline(
    name: str,
    fn: Callable[..., Any],
    signature: Signature,
    args: Sequence[SymbolicTensor],
    kwargs: Mapping[str, Any],
    loc: Loc | None = None,
) -> Any:
    """Runs an operator's body inside the trace in progress; its steps get paths that begin with `name.`.

    Args:
        name: of this use.
        fn: the body of the operator that is called.
        signature: its signature.
        args: its tensors.
        kwargs: its keyword-only arguments, and sizes by name.
        loc: where the operator is defined; errors about the call point at the call.

    Raises:
        TilelinkError: TL201 to TL213.
    """
    run, site = tracing(), call_site() or loc
    if run is None:
        raise outside(name, site)
    names = _argument_names(name, fn, signature, loc)
    if len(args) != len(names):
        wrong_count(name, len(args), len(names), f"`{signature}`", site)
    prefix = run.take_path(name, site) + "."
    dimensions = Dimensions(name, signature, run.ranks, site, operator=True)
    tensors = _relabelled(dimensions, name, names, signature, args, site)
    constants: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in names_of(signature) and isinstance(value, int):
            dimensions.give(key, value)
        else:
            constants[key] = value
    sizes = {n: Extent(s.extent, s.size) for n, s in dimensions.seen.items() if n != RANK_AXIS}
    with run.inside(Frame(name, prefix, sizes, args[0].dtype if args else "f32")):
        returned = fn(*tensors, **constants)
        results = _results(name, returned, loc)
        _check_results(run, name, signature, sizes, results, loc)
    return returned


def _relabelled(
    dimensions: Dimensions,
    user: str,
    names: list[str],
    signature: Signature,
    args: Sequence[SymbolicTensor],
    loc: Loc | None,
) -> list[SymbolicTensor]:
    """The same tensors, with axes called as the inlined operator calls them."""
    tensors: list[SymbolicTensor] = []
    pairs: list[tuple[Given, tuple[Slot, ...]]] = []
    for param, shape, tensor in zip(names, signature.inputs, args, strict=True):
        given = Given(param, shape, record_of(user, param, tensor, loc))
        check_dtype(given, user, loc)
        slots = align(given, user, loc)
        pairs.append((given, slots))
        axes = [a.name for a in tensor.axes]
        for slot in slots:
            if slot.at is not None:
                axes[slot.at] = slot.dim
        tensors.append(SymbolicTensor(tensor.record, tuple(axes)))
    for given, slots in pairs:
        dimensions.add(given, slots)
    for given, slots in pairs:
        dimensions.check_compound(given, slots)
    return tensors


