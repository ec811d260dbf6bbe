"""Runs an operator's body once, on symbolic tensors, and writes down which tile programs it connects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter
from inspect import signature as parameters_of
from typing import Any, cast

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.binding import (
    Dimensions,
    Given,
    Ranks,
    Slot,
    check_keywords,
    evaluate_size,
    given_tensor,
    names_of,
    sizes_of,
    wrong_count,
)
from tilelink.frontend.outside import Found, found_by
from tilelink.frontend.running import NOWHERE, Frame, Trace, called_in, running
from tilelink.frontend.symbolic import Extent, LogicalAxis, Record, SymbolicTensor
from tilelink.frontend.wiring import assemble
from tilelink.frontend.wording import count
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.schedule import Placement, under
from tilelink.ir.shape import RANK_AXIS, Axis, Shape, Signature, dims_of, ranks_along
from tilelink.ir.wiring import Wiring


# ------------------------------------------------------------------------------------------------------------ whole operators
def trace(
    name: str,
    fn: Callable[..., Any],
    signature: Signature,
    sizes: Mapping[str, int],
    dtypes: Sequence[str],
    constants: Mapping[str, bool | int | float | str],
    loc: Loc | None = None,
    *,
    ranks: int,
    axes: Mapping[str, int] | None = None,
    found: list[Found] | None = None,
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
        axes: how many there are along each axis of ranks that the signature declares; None: along `R` alone.
        found: takes up what the body and its programs have read outside of themselves.

    Raises:
        TilelinkError: TL201 to TL213, and what `capture` raises for the programs that are called.
    """
    names = _argument_names(name, fn, signature, loc)
    run = Trace({RANK_AXIS: ranks} if axes is None else axes)
    rest = sum(f"_{i}" in sizes for i in range(len(sizes)))
    tensors = [
        run.record(_argument(run, name, n, s, sizes, d, rest, loc))
        for n, s, d in zip(names, signature.inputs, dtypes, strict=True)
    ]
    records = [t.record for t in tensors]
    _link_tables(name, records, loc, tuple(run.ranks.sizes))
    _check_contracts(name, signature, {*sizes, *constants}, loc)
    dimensions = Dimensions(name, signature, run.ranks, loc, operator=True)
    dimensions.take([Given(n, s, r) for n, s, r in zip(names, signature.inputs, records, strict=True)])
    with running(run), run.inside(Frame(name, "", dimensions, signature.dtype(dtypes) or "f32")):
        results = _results(dimensions, signature, fn(*tensors, **constants), loc)
    if found is not None:
        found += [*found_by(fn), *run.found]
    return assemble(
        name=name,
        signature=signature,
        sizes=(*sizes_of(signature), *(f"_{i}" for i in range(rest))),
        records=run.records,
        steps=run.steps,
        arguments=records,
        results=[t.record for t in results],
        loc=loc or NOWHERE,
        axes=run.ranks.sizes,
    )


def _argument_names(name: str, fn: Callable[..., Any], signature: Signature, loc: Loc | None) -> list[str]:
    """The names of an operator's tensor parameters; those that `*rest` takes are numbered.

    Raises:
        TilelinkError: TL202 if their number is not the signature's, TL209 a constant that is a size of the inputs.
    """
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = parameters_of(fn).parameters.values()
    names = [p.name for p in parameters if p.kind in kinds]
    rest = [p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL]
    names += [f"{rest[0]}{k}" for k in range(len(signature.inputs) - len(names))] if rest else []
    sizes = sizes_of(signature)
    for constant in (p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.name in sizes):
        message = f"`{constant}` is a constant of `{name}`, and a size of its inputs"
        why = "sizes of inputs are known from the tensors, and are not passed to the body"
        hint = f'leave it out of the parameters, and ask a tensor: `….size("{constant}")`'
        raise TilelinkError("TL209", message, loc=loc, why=why, hint=hint)
    if len(names) != len(signature.inputs):
        wanted = count(len(signature.inputs), "input")
        message = f"`{name}` has {count(len(names), 'tensor parameter')}, its signature {wanted}"
        why = f"the signature is `{signature}`; what follows `->` is returned"
        hint = "write one parameter for each input, and constants after a bare `*`"
        raise TilelinkError("TL202", message, loc=loc, why=why, hint=hint)
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
        behind = [f"_{i}" for i in range(rest)]
        axes[shape.rest : shape.rest] = [LogicalAxis(n, Sym(n), sizes[n], None, False) for n in behind]
    return Record(tuple(axes), dtype, "argument", name, name, f"`{name}`", shape.contract, None, loc)


def _declared(run: Trace, user: str, axis: Axis, sizes: Mapping[str, int], loc: Loc | None) -> LogicalAxis:
    """An axis of an argument, in the operator's own sizes."""

    def known(name: str) -> tuple[Formula, int]:
        if name in run.ranks.sizes:
            return ranks_along(name), run.ranks.sizes[name]
        if name in sizes:
            return Sym(name), int(sizes[name])
        message, why = f"the size `{name}` of `{user}` is not known", f"`{axis}` of the signature needs it"
        raise TilelinkError("TL205", message, loc=loc, why=why, hint=f"pass `{name}=`")

    size, extent = evaluate_size(axis.size, known)
    return LogicalAxis(axis.name, size, extent, axis.split, axis.unit)


def _link_tables(user: str, records: list[Record], loc: Loc | None, ranks: tuple[str, ...]) -> None:
    """Puts the table itself in place of its name, in axes such as `P/start`."""
    tables = {r.wish: r for r in records}
    for record in records:
        for axis in record.axes:
            if isinstance(axis.split, str) and axis.split not in ranks and axis.split not in tables:
                over = " or ".join(f"`/{r}`" for r in ranks)
                why = f"an axis is split over the ranks, {over}, or by an offsets table, a parameter"
                hint = f"name the parameter that holds the offsets: {', '.join(tables)}"
                message = f"`{axis}` of `{user}` is split by `{axis.split}`, which is no parameter"
                raise TilelinkError("TL103", message, loc=loc, why=why, hint=hint)
        record.axes = tuple(
            replace(a, split=tables.get(a.split, a.split)) if isinstance(a.split, str) else a for a in record.axes
        )


def _check_contracts(user: str, signature: Signature, known: set[str], loc: Loc | None) -> None:
    """What tables promise to stay below is a size of the inputs, or a constant."""
    for shape in signature.inputs:
        of = None if shape.contract is None else shape.contract.of
        for name in () if of is None else dims_of(of):
            if name not in known | {*signature.axes}:
                why = f"`{shape}` of the signature needs it"
                hint = "name a size of the inputs, or a constant of the operator"
                raise TilelinkError("TL205", f"the size `{name}` of `{user}` is not known", loc=loc, why=why, hint=hint)


# -------------------------------------------------------------------------------------------------------------------- results
def _results(dimensions: Dimensions, signature: Signature, returned: object, loc: Loc | None) -> list[SymbolicTensor]:
    """What an operator's body has returned, compared with what the signature promises, if it promises anything."""
    user, results = dimensions.user, list[SymbolicTensor]()
    for one in cast("Sequence[object]", returned) if isinstance(returned, (tuple, list)) else [returned]:
        if not isinstance(one, SymbolicTensor):
            why = "an operator returns what its programs and operators returned"
            message = f"`{user}` returns an object of type `{type(one).__name__}`"
            raise TilelinkError("TL210", message, loc=loc, why=why, hint="return tensors")
        results.append(one)
    if not signature.outputs:
        return results
    why = f"the signature is `{signature}`"
    if len(results) != len(signature.outputs):
        message = f"`{user}` returns {count(len(results), 'tensor')}, its signature {len(signature.outputs)}"
        hint = "make the signature and the `return` agree"
        raise TilelinkError("TL210", message, loc=loc, why=why, hint=hint)
    for number, (shape, result) in enumerate(zip(signature.outputs, results, strict=True)):
        if shape.dtype is not None and shape.dtype != result.dtype:
            message = f"result {number + 1} of `{user}` is {result.dtype}, not {shape.dtype}"
            raise TilelinkError("TL206", message, loc=loc, why=why, hint="make them agree")
    promised = zip(signature.outputs, results, strict=True)
    dimensions.take([Given(f"result {k + 1}", s, r.record) for k, (s, r) in enumerate(promised)])
    return results


# ------------------------------------------------------------------------------------------------- operators inside operators
def inline(
    name: str,
    fn: Callable[..., Any],
    signature: Signature,
    args: Sequence[SymbolicTensor],
    kwargs: Mapping[str, Any],
    loc: Loc | None = None,
    shipped: Sequence[tuple[str, Placement]] = (),
) -> Any:
    """Runs an operator's body inside the trace in progress; its steps get paths that begin with `name.`.

    Args:
        name: of the operator.
        fn: the body of the operator that is called.
        signature: its signature.
        args: its tensors.
        kwargs: its keyword-only arguments, sizes by name, `name` of this use if it is not the operator's, and `over`: the
            axis of ranks that its only one is here.
        loc: where the operator is defined; errors about the call point at the call.
        shipped: placements that it comes with, by path within it; those of an operator around it go before.

    Raises:
        TilelinkError: TL201 to TL213.
    """
    run, site = called_in(name, loc)
    use = str(kwargs.get("name") or name)
    names = _argument_names(name, fn, signature, loc)
    check_keywords(name, fn, signature, kwargs, "name", "over", loc=site)
    if len(args) != len(names):
        wrong_count(name, len(args), signature, site)
    prefix = run.take_path(use, site) + "."
    run.shipped = under(prefix, shipped) | run.shipped
    given = [given_tensor(name, n, s, a, site) for n, s, a in zip(names, signature.inputs, args, strict=True)]
    constants = {k: v for k, v in kwargs.items() if k not in ("name", "over")}
    sizes = {k: constants.pop(k) for k in [*constants] if k in names_of(signature)}
    dimensions = Dimensions(name, signature, _ranks_of(run, name, signature, kwargs.get("over"), site), site)
    slots = dimensions.take(given, sizes)
    tensors = [_relabelled(dimensions, one, slots[one.param]) for one in given]
    with run.inside(Frame(name, prefix, dimensions, signature.dtype([a.dtype for a in args]) or "f32")):
        returned = fn(*tensors, **constants)
        run.found += found_by(fn)
        results = _results(dimensions, signature, returned, loc)
    outer = [SymbolicTensor(r.record) for r in results]
    return tuple(outer) if isinstance(returned, (tuple, list)) else outer[0]


def _ranks_of(run: Trace, name: str, signature: Signature, over: object, loc: Loc | None) -> Ranks:
    """What an operator that is called in another calls the axes of ranks: its own names, or `R` the one that is named.

    Raises:
        TilelinkError: TL213.
    """
    outer = run.frame.dimensions.ranks.names
    if over is not None and over in outer and signature.axes == (RANK_AXIS,):
        return run.ranks.along(outer[str(over)])
    if signature.axes == (RANK_AXIS,) and (signature.along in outer or len(outer) == 1):
        return run.ranks.along(outer.get(signature.along or "", next(iter(outer.values()))))
    if over is None and set(signature.axes) <= outer.keys():
        return Ranks({axis: outer[axis] for axis in signature.axes}, run.ranks.sizes)
    why = f"its own are {' and '.join(signature.axes)}, those here are {' and '.join(outer)}"
    hint = f'say it: `{name}(..., over="{next(iter(outer))}")`, or give the axes the same names'
    raise TilelinkError("TL213", f"which axes of ranks those of `{name}` are", loc=loc, why=why, hint=hint)


def _relabelled(dimensions: Dimensions, given: Given, slots: tuple[Slot, ...]) -> SymbolicTensor:
    """The same tensor with the names and sizes that the inlined operator sees: of a split axis that it takes as whole,
    this rank's part."""
    axes = given.record.axes
    names = [a.name for a in axes]
    sizes = [Extent(a.extent, a.size) for a in axes]
    for slot in slots:
        if slot.at is not None:
            names[slot.at] = slot.dim
            if dimensions.is_local(slot.declared, axes[slot.at]):
                sizes[slot.at] = dimensions.part(axes[slot.at])
    return SymbolicTensor(given.record, tuple(names), tuple(sizes))
