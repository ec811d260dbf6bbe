"""Runs an operator's body once, on symbolic tensors, and writes down which tile programs it connects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter
from inspect import signature as parameters_of
from typing import Any, cast

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.binding import Dimensions, Given, Ranks, check_keywords, given_tensor, sizes_of, wrong_count
from tilelink.frontend.outside import Found, found_by
from tilelink.frontend.progress import NOWHERE, Frame, Trace, called_in
from tilelink.frontend.symbolic import Extent, LogicalAxis, Record, SymbolicTensor
from tilelink.frontend.wording import count, numbered
from tilelink.ir.formula import Sym, substitute, symbols
from tilelink.ir.program import At, Holder, Load, Move, Notify, Op, Store, TileProgram, Wait, rewritten
from tilelink.ir.schedule import Placement, under
from tilelink.ir.shape import RANK_AXIS, Signature, around, dims_of, distance
from tilelink.ir.wiring import Binding, Step, TensorAxis, TensorDecl, ViewAxis, Wiring

# ------------------------------------------------------------------------------------------------------------ whole operators
DEEPEST = 32
"""Operators inside one another."""


def trace(
    name: str,
    fn: Callable[..., Any],
    signature: Signature,
    sizes: Mapping[str, int],
    dtypes: Sequence[str],
    constants: Mapping[str, bool | int | float | str],
    loc: Loc | None = None,
    *,
    axes: Mapping[str, int],
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
        axes: how many ranks there are along each axis of them that the signature declares, from which the parts of split axes
            follow.
        found: takes up what the body and its programs have read outside of themselves.

    Raises:
        TilelinkError: TL201 to TL213, and what `capture` raises for the programs that are called.
    """
    names = _argument_names(name, fn, signature, loc)
    run = Trace(axes)
    dimensions = Dimensions(name, signature, run.ranks, loc, operator=True)
    given = _arguments(dimensions, signature, names, sizes, dtypes, constants)
    arguments = [run.record(one.record) for one in given]
    dimensions.take(given)
    with run.inside(Frame("", dimensions, signature.dtype(dtypes) or "f32")):
        results = _results(dimensions, signature, fn(*arguments, **constants), loc)
    if found is not None:
        found += [*found_by(fn), *run.found]
    # Declared tensors that nobody uses or returns are left out; names are given last, when all tensors are known.
    returned = [t.record for t in results]
    kept = [r for r in run.records if r.origin != "declared" or r.uses or r in returned]
    known = (*sizes_of(signature), *(n for n in sizes if n.startswith("_")))
    called = _names(kept, set(known))
    declared = {r.key: _declared(r, called) for r in kept}
    tensors = tuple(declared.values())
    used = {s for t in tensors for a in t.axes for s in symbols(a.size)}
    along = zip(run.steps, _axes_of(run.steps, tuple(run.ranks.sizes)), strict=True)
    return Wiring(
        name=name,
        signature=signature,
        sizes=tuple(s for s in known if s in used),
        tensors=tensors,
        steps=tuple(_step(s, declared, a, run.ranks.sizes[a]) for s, a in along),
        arguments=tuple(called[one.record.key] for one in given),
        results=tuple(called[r.key] for r in returned),
        loc=loc or NOWHERE,
        axes=tuple(run.ranks.sizes),
    )


def _argument_names(name: str, fn: Callable[..., Any], signature: Signature, loc: Loc | None) -> list[str]:
    """The names of an operator's tensor parameters; those that `*rest` takes are numbered. TL202: their number is not the
    signature's. TL209: a constant is a size of the inputs."""
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


def _arguments(
    dimensions: Dimensions,
    signature: Signature,
    names: Sequence[str],
    sizes: Mapping[str, int],
    dtypes: Sequence[str],
    constants: Mapping[str, object],
) -> list[Given]:
    """An operator's arguments, in its own sizes."""
    user, loc, ranks = dimensions.user, dimensions.loc, dimensions.ranks.sizes
    extents = {n: Extent(int(size), Sym(n)) for n, size in sizes.items()}
    own = dimensions.extended({n: (size, "") for n, size in extents.items()})
    own.rest = tuple(LogicalAxis(n, size, None, False) for n, size in extents.items() if n.startswith("_"))
    given = [
        Given(n, s, Record((), d, "argument", n, n, f"`{n}`", s.contract, None, loc))
        for n, s, d in zip(names, signature.inputs, dtypes, strict=True)
    ]
    tables = {one.param: one for one in given}
    for name, shape, record in ((one.param, one.shape, one.record) for one in given):
        if shape.dtype is not None and shape.dtype != record.dtype:
            message, why = f"`{name}` is {record.dtype}, not {shape.dtype}", f"the signature of `{user}` says `{shape}`"
            raise TilelinkError("TL206", message, loc=loc, why=why, hint=f"convert `{name}` before the call")
        for axis in shape.axes:
            if axis.split is not None and axis.split not in {*ranks, *tables}:
                over = " or ".join(f"`/{r}`" for r in ranks)
                why = f"an axis is split over the ranks, {over}, or by an offsets table, a parameter"
                hint = f"name the parameter that holds the offsets: {', '.join(tables)}"
                message = f"`{axis}` of `{user}` is split by `{axis.split}`, which is no parameter"
                raise TilelinkError("TL103", message, loc=loc, why=why, hint=hint)
        promised = None if shape.contract is None else shape.contract.of
        for size in () if promised is None else dims_of(promised):
            if size not in {*sizes, *constants, *signature.axes}:
                message, why = f"the size `{size}` of `{user}` is not known", f"`{shape}` of the signature needs it"
                hint = "name a size of the inputs, or a constant of the operator"
                raise TilelinkError("TL205", message, loc=loc, why=why, hint=hint)
        record.axes = own.allocate(shape, tables, record.label)
    return given


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
        TilelinkError: TL201 to TL213, TL215.
    """
    run, site = called_in(name, loc)
    use = str(kwargs.get("name") or name)
    names = _argument_names(name, fn, signature, loc)
    check_keywords(name, fn, signature, kwargs, "name", "over", loc=site)
    if len(args) != len(names):
        wrong_count(name, len(args), signature, site)
    if len(run.frames) > DEEPEST:
        message = f"`{name}` is called {DEEPEST} operators deep"
        why = "an operator that calls itself, or one that calls it, never ends"
        hint = "let the call depend on a constant that changes, or write the step as a tile program"
        raise TilelinkError("TL215", message, loc=site, why=why, hint=hint)
    prefix = run.take_path(use, site) + "."
    run.shipped = under(prefix, shipped) | run.shipped
    given = [given_tensor(name, n, s, a, site) for n, s, a in zip(names, signature.inputs, args, strict=True)]
    constants = {k: v for k, v in kwargs.items() if k not in ("name", "over")}
    sizes = {k: constants.pop(k) for k in [*constants] if k in signature.dims}
    dimensions = Dimensions(name, signature, _ranks_of(run, name, signature, kwargs.get("over"), site), site)
    dimensions.take(given, sizes)
    tensors = [dimensions.relabelled(one) for one in given]
    with run.inside(Frame(prefix, dimensions, signature.dtype([a.dtype for a in args]) or "f32")):
        returned = fn(*tensors, **constants)
        run.found += found_by(fn)
        results = _results(dimensions, signature, returned, loc)
    outer = [SymbolicTensor(r.record) for r in results]
    return tuple(outer) if isinstance(returned, (tuple, list)) else outer[0]


def _ranks_of(run: Trace, name: str, signature: Signature, over: object, loc: Loc | None) -> Ranks:
    """What an operator that is called in another calls the axes of ranks: its own names, or `R` the one that is
    named. TL213: there is no telling."""
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


# ----------------------------------------------------------------------------------------------- the frozen form of a trace
def _axes_of(steps: Sequence[Step], axes: Sequence[str]) -> list[str]:
    """The axis of ranks of each step. One that speaks of none goes with who takes what it makes, for they share its tiles;
    else with who makes what it takes, of its first tensor if they differ."""
    found = [s.axis for s in steps]
    tensors = [{"in": s.takes, "out": s.makes} for s in steps]

    def beside(k: int, mine: str, theirs: str) -> Iterator[str]:
        for tensor in tensors[k][mine]:
            yield from (a for other, a in zip(tensors, found, strict=True) if a and tensor in other[theirs])

    while "" in found:
        left = [k for k, axis in enumerate(found) if not axis]
        for mine, theirs, order in (("out", "in", reversed(left)), ("in", "out", iter(left))):
            for k in order:
                found[k] = found[k] or next(beside(k, mine, theirs), "")
        if [k for k, axis in enumerate(found) if not axis] == left:
            found = [axis or axes[0] for axis in found]
    return found


def _names(records: Sequence[Record], taken: set[str]) -> dict[str, str]:
    """The name that each record wishes for, where nobody else does; else the longer one, numbered if need be."""
    wishes = Counter(r.wish for r in records)
    names: dict[str, str] = {}
    for record in sorted(records, key=lambda r: r.origin != "argument"):
        used = taken | {*names.values()}
        alone = wishes[record.wish] == 1 or record.origin == "argument"
        names[record.key] = numbered(record.wish if alone and record.wish not in used else record.long, used)
    return names


def _declared(record: Record, names: Mapping[str, str]) -> TensorDecl:
    splits = [names[a.split.key] if isinstance(a.split, Record) else a.split for a in record.axes]
    owner = record.owner_map
    return TensorDecl(
        name=names[record.key],
        axes=tuple(
            TensorAxis(a.name, a.size.formula, split, a.unit, a.over, owner if owner and k == owner.axis else None)
            for k, (a, split) in enumerate(zip(record.axes, splits, strict=True))
        ),
        dtype=record.dtype,
        origin=record.origin,
        contract=record.contract,
        loc=record.loc,
    )


def _step(step: Step, declared: Mapping[str, TensorDecl], axis: str, ranks: int) -> Step:
    """`declared`: tensors by the keys of their records."""

    def over(tensor: TensorDecl, view: tuple[ViewAxis, ...]) -> tuple[ViewAxis, ...]:
        return tuple(replace(v, of=None if v.axis is None else tensor.axes[v.axis]) for v in view)

    bound = [(b, declared[b.tensor]) for b in step.bindings]
    bindings = tuple(Binding(b.param, tensor.name, over(tensor, b.view)) for b, tensor in bound)
    program = with_distances(step.program, {n: v for n, v in step.constants if isinstance(v, int)}, ranks)
    return replace(step, program=program, bindings=bindings, axis=axis)


def with_distances(program: TileProgram, constants: Mapping[str, int], ranks: int) -> TileProgram:
    """The program in which the coordinates of ranks are as far from this rank's as the step's constants and the number of
    ranks say."""

    def known(at: At) -> At:
        if not at.coordinate or at.expr.formula is None:
            return at
        formula = substitute(at.expr.formula, constants)
        found = distance(formula, ranks)
        return replace(at, expr=replace(at.expr, formula=formula if found is None else around(Sym(found[0]), found[1])))

    def change(op: Op) -> Op:
        if not isinstance(op, (Holder, Load, Store, Move, Notify, Wait)):
            return op
        op = replace(op, index=op.index and tuple(known(e) if isinstance(e, At) else e for e in op.index))
        if isinstance(op, (Notify, Wait)) and op.peer is not None:
            op = replace(op, peer=known(op.peer))
        return op

    body = rewritten(program.body, change)
    return program if body == program.body else replace(program, body=body)
