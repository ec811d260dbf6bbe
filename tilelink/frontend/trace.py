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
_NOWHERE = Loc("<operator>", 1)


@dataclass(frozen=True, slots=True)
class Frame:
    """One operator in progress: its path prefix, and what its signature's names are."""

    name: str
    prefix: str
    sizes: Mapping[str, Extent]
    dtype: str


class Trace:
    """One run of an operator's body."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.frames: list[Frame] = []
        self.records: list[Record] = []
        self.steps: list[PendingStep] = []
        self.paths: dict[str, Loc | None] = {}

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @contextmanager
    def inside(self, frame: Frame) -> Generator[None]:
        self.frames.append(frame)
        try:
            yield
        finally:
            self.frames.pop()

    def take_path(self, name: str, loc: Loc | None) -> str:
        """The path of a use; a second use of one name needs another."""
        path = self.frame.prefix + name
        if path in self.paths:
            first = self.paths[path]
            raise TilelinkError(
                "TL208",
                f"`{path}` is used twice",
                loc=loc,
                why="schedules and plans tell steps apart by their names",
                hint=f'give this use a name: `{name}(..., name="{name}_2")`',
                notes=() if first is None else (Note("the first use is here", first),),
            )
        self.paths[path] = loc
        return path

    def record(self, record: Record) -> SymbolicTensor:
        self.records.append(record)
        return SymbolicTensor(record)


_TRACE: ContextVar[Trace | None] = ContextVar("tilelink_trace", default=None)


def tracing() -> Trace | None:
    """The trace in progress, if an operator's body is running."""
    return _TRACE.get()


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
        loc=loc or _NOWHERE,
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
            f"`{name}` has {_count(len(names), 'tensor parameter')}, its signature {_count(len(signature.inputs), 'input')}",
            loc=loc,
            why=f"the signature is `{signature}`; what follows `->` is returned",
            hint="write one parameter for each input, and constants after a bare `*`",
        )
    return names


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


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


def evaluate_size(size: Size, known: Callable[[str], tuple[Formula, int]]) -> tuple[Formula, int]:
    """A size as a formula and as a number."""
    if isinstance(size, Dim):
        return known(size.name)
    if isinstance(size, (Sum, Product)):
        (f, a), (g, b) = evaluate_size(size.left, known), evaluate_size(size.right, known)
        return (f + g, a + b) if isinstance(size, Sum) else (f * g, a * b)
    return Const(size), size


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
        message = f"`{user}` returns {_count(len(results), 'tensor')}, its signature {len(signature.outputs)}"
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
        raise _outside(name, site)
    names = _argument_names(name, fn, signature, loc)
    if len(args) != len(names):
        _wrong_count(name, len(args), len(names), f"`{signature}`", site)
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
        given = Given(param, shape, _record_of(user, param, tensor, loc))
        _check_dtype(given, user, loc)
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


def _record_of(user: str, param: str, tensor: object, loc: Loc | None) -> Record:
    if isinstance(tensor, SymbolicTensor):
        return tensor.record
    raise TilelinkError(
        "TL202",
        f"`{param}` of `{user}` is an object of type `{type(tensor).__name__}`",
        loc=loc,
        why="in an operator's body tile programs connect its arguments, results of programs, and `tilelink.symmetric`",
        hint="pass one of those",
    )


def _check_dtype(given: Given, user: str, loc: Loc | None) -> None:
    wanted, have = given.shape.dtype, given.record.dtype
    if wanted is not None and wanted != have:
        raise TilelinkError(
            "TL206",
            f"{given.record.label} is {have}; `{given.param}` of `{user}` is {wanted}",
            loc=loc,
            why=f"the signature says `{given.shape}`",
            hint="pass a tensor of that type, or change the signature",
        )


def _outside(name: str, loc: Loc | None) -> TilelinkError:
    return TilelinkError(
        "TL201",
        f"`{name}` was called outside an operator",
        loc=loc,
        why="a tile program is one part of an operator: it runs when the operator does",
        hint="call it in a function decorated with `@tilelink.operator(...)`, and call that",
    )


def _wrong_count(user: str, given: int, wanted: int, what: str, loc: Loc | None) -> NoReturn:
    why = f"it is {what}"
    message = f"`{user}` takes {_count(wanted, 'tensor')}, not {given}"
    raise TilelinkError("TL202", message, loc=loc, why=why, hint="pass one tensor for each input")


# ---------------------------------------------------------------------------------------------------------- calls of programs
def call_program(program: TileProgram, args: Sequence[object], kwargs: Mapping[str, Any], use: str | None) -> Any:
    """A use of a tile program in an operator's body: one step, and the tensors that it writes.

    Raises:
        TilelinkError: TL201 to TL209.
    """
    run, loc = tracing(), call_site()
    if run is None:
        raise _outside(program.name, loc)
    path = run.take_path(use or program.name, loc)
    signature = program.signature
    if not len(signature.inputs) <= len(args) <= len(signature.shapes):
        _wrong_count(program.name, len(args), len(signature.inputs), f"`{signature}`", loc)
    sizes, constants, named = _keywords(program, kwargs, loc)
    given = _given(program, args, named, loc)
    dimensions = Dimensions(program.name, signature, run.ranks, loc)
    slots = {g.param: align(g, program.name, loc) for g in given.values()}
    for g in given.values():
        _check_dtype(g, program.name, loc)
        dimensions.add(g, slots[g.param])
    for name, value in sizes.items():
        dimensions.give(name, value)
    for g in given.values():
        dimensions.check_compound(g, slots[g.param])
    results = _allocate(run, program, path, given, dimensions, loc)
    for name in results:
        slots[name] = align(given[name], program.name, loc)
    _write_step(run, program, path, given, slots, dimensions, constants, loc)
    outputs = [SymbolicTensor(given[p.name].record) for p in program.params if p.role == "out"]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _keywords(
    program: TileProgram, kwargs: Mapping[str, Any], loc: Loc | None
) -> tuple[dict[str, int], dict[str, Plain], dict[str, object]]:
    """Keyword arguments: sizes, constants, and results that are given."""
    sizes: dict[str, int] = {}
    constants: dict[str, Plain] = {}
    named: dict[str, object] = {}
    kinds = {c.name: c for c in program.constants}
    outputs = [p.name for p in program.params if p.role == "out"]
    for key, value in kwargs.items():
        if key in kinds:
            constants[key] = _constant(program, kinds[key], value, loc)
        elif key in names_of(program.signature):
            sizes[key] = _size(program, key, value, loc)
        elif key in outputs:
            named[key] = value
        else:
            _unknown_keyword(program, key, [*kinds, *names_of(program.signature), *outputs, "name"], loc)
    for constant in program.constants:
        if constant.name not in constants:
            if constant.default is None:
                why = "it has no default"
                message = f"`{program.name}` needs `{constant.name}=`"
                raise TilelinkError("TL209", message, loc=loc, why=why, hint=f"pass a {constant.kind}")
            constants[constant.name] = constant.default
    return sizes, {c.name: constants[c.name] for c in program.constants}, named


def _constant(program: TileProgram, constant: Constant, value: object, loc: Loc | None) -> Plain:
    if constant.kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if constant.kind == "int" and isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if constant.kind == "bool" and isinstance(value, bool):
        return value
    if constant.kind == "str" and isinstance(value, str):
        return value
    why = f"`{constant.name}` of `{program.name}` is a constant of kind {constant.kind}"
    raise TilelinkError("TL209", f"`{constant.name}={value!r}`", loc=loc, why=why, hint=f"pass a {constant.kind}")


def _size(program: TileProgram, key: str, value: object, loc: Loc | None) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    why = f"`{key}` is a size of `{program.signature}`"
    raise TilelinkError("TL209", f"`{key}={value!r}`", loc=loc, why=why, hint="pass a number of elements")


def _unknown_keyword(program: TileProgram, key: str, known: list[str], loc: Loc | None) -> NoReturn:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}=`?" if close else f"it takes {', '.join(f'`{k}=`' for k in known)}"
    why = "keywords are the constants of a program, and sizes and results of its signature"
    raise TilelinkError("TL209", f"`{program.name}` has no `{key}=`", loc=loc, why=why, hint=hint)


def _given(
    program: TileProgram, args: Sequence[object], named: Mapping[str, object], loc: Loc | None
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for param, value in (*((p.name, v) for p, v in zip(program.params, args, strict=False)), *named.items()):
        if param in given:
            message = f"`{param}` of `{program.name}` is given twice"
            raise TilelinkError("TL202", message, loc=loc, why="by position and by name", hint="give it once")
        given[param] = Given(param, program.param(param).shape, _record_of(program.name, param, value, loc))
    return given


def _allocate(
    run: Trace, program: TileProgram, path: str, given: dict[str, Given], dimensions: Dimensions, loc: Loc | None
) -> list[str]:
    """Makes the results that were not given; their parameters."""
    first = next(iter(given.values())).record.dtype if given else run.frame.dtype
    made: list[str] = []
    for param in program.params:
        if param.role != "out" or param.name in given:
            continue
        label = f"`{path}.{param.name}`"
        tables = {name: g.record for name, g in given.items()}
        axes = dimensions.allocate(param.shape, tables, label)
        long = f"{path.replace('.', '_')}_{param.name}"
        record = Record(
            axes, param.shape.dtype or first, "program", param.name, long, label, param.shape.contract, None, loc
        )
        run.record(record)
        given[param.name] = Given(param.name, param.shape, record)
        made.append(param.name)
    return made


def _write_step(
    run: Trace,
    program: TileProgram,
    path: str,
    given: dict[str, Given],
    slots: dict[str, tuple[Slot, ...]],
    dimensions: Dimensions,
    constants: dict[str, Plain],
    loc: Loc | None,
) -> None:
    views: list[PendingView] = []
    for param in program.params:
        g = given[param.name]
        g.record.uses += 1
        if g.record.origin == "declared" and g.record.uses == 1:
            # What `symmetric` declares is called as its first user calls it.
            g.record.wish, g.record.long = param.name, f"{path.replace('.', '_')}_{param.name}"
        tables = {name: other.record for name, other in given.items()}
        views.append(PendingView(param.name, g.record, slots[param.name], tables, dimensions.is_local))
    run.steps.append(PendingStep(path, program, tuple(views), tuple(constants.items()), loc or _NOWHERE))


# ------------------------------------------------------------------------------------------------------------------ declaring
def symmetric(
    shape: str,
    *,
    like: SymbolicTensor | None = None,
    owner: str | None = None,
    dtype: str | None = None,
    **sizes: int,
) -> SymbolicTensor:
    """Declares a tensor that no program returns: an inbox, a ring's buffer. Only inside an operator's body.

    Args:
        shape: its axes, such as `"R M/R N"`; names are sizes of `like`, then of the operator.
        like: a tensor to take sizes and dtype from.
        owner: which rank holds what, such as `"m -> m // 2048 % R"`, instead of what the shape says.
        dtype: a dtype word; `like`'s, or else that of the operator's first argument, by default.
        sizes: sizes by name.

    Raises:
        TilelinkError: TL101 to TL104, TL205, TL211.
    """
    run, loc = tracing(), call_site()
    if run is None:
        raise TilelinkError(
            "TL211",
            "`tilelink.symmetric` outside an operator",
            loc=loc,
            why="it declares a tensor of the operator that is being traced",
            hint="call it in a function decorated with `@tilelink.operator(...)`",
        )
    parsed = parse_shape(shape, loc)
    known: dict[str, Extent] = dict(run.frame.sizes)
    if like is not None:
        known.update({a.name: a.size for a in like.axes})
    known.update({n: v if isinstance(v, Extent) else Extent(v) for n, v in sizes.items()})
    known[RANK_AXIS] = Extent(run.ranks, RANKS)
    axes = tuple(_symmetric_axis(a, known, loc) for a in parsed.axes)
    if parsed.rest is not None:
        why = "a declared tensor has no other tensor to take them from"
        raise TilelinkError("TL205", f"`...` in `{shape}`", loc=loc, why=why, hint="write all axes")
    word = dtype or parsed.dtype or (like.dtype if like is not None else run.frame.dtype)
    term = None if owner is None else parse_owner(owner, loc)
    if term is not None and len(term.variables) > len(axes):
        why = f"`{shape}` has {_count(len(axes), 'axis') if len(axes) == 1 else f'{len(axes)} axes'}"
        message = f"the owner map has {len(term.variables)} variables"
        raise TilelinkError(
            "TL104", message, loc=loc, why=why, hint="write one variable for each axis, from the first on"
        )
    wish = f"symmetric_{sum(r.origin == 'declared' for r in run.records)}"
    label = f'`symmetric("{shape}")`'
    return run.record(Record(axes, word, "declared", wish, wish, label, parsed.contract, term, loc))


def _symmetric_axis(axis: Axis, known: Mapping[str, Extent], loc: Loc | None) -> LogicalAxis:
    for name in dims_of(axis.size):
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = (
                f"did you mean `{close[0]}`?"
                if close
                else f"pass it by name, `{name}=...`, or a tensor that has it, `like=`"
            )
            why = f"known are {', '.join(f'`{n}`' for n in known)}"
            raise TilelinkError("TL205", f"the size `{name}` is not known", loc=loc, why=why, hint=hint)
    if axis.split not in (None, RANK_AXIS):
        why = "a declared tensor is split over the ranks or not at all"
        raise TilelinkError("TL103", f"`{axis}` is split by a table", loc=loc, why=why, hint=f"write `{axis.size}`")
    size, extent = evaluate_size(axis.size, lambda n: (known[n].formula, int(known[n])))
    return LogicalAxis(axis.name, size, extent, axis.split, axis.unit)
