"""A call of a tile program in an operator's body: one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilelink.errors import Loc, TilelinkError, with_article
from tilelink.frontend.arguments import check_dtype, outside, record_of, unknown_keyword, wrong_count
from tilelink.frontend.binding import Dimensions, Given, Ranks, Slot, align, names_of
from tilelink.frontend.callsite import call_site
from tilelink.frontend.running import NOWHERE, Trace, tracing
from tilelink.frontend.symbolic import Record, SymbolicTensor
from tilelink.frontend.wiring import PendingStep, PendingView
from tilelink.ir.program import Constant, TileProgram
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import RANK_AXIS

Plain = bool | int | float | str


def call_program(
    program: TileProgram,
    args: Sequence[object],
    kwargs: Mapping[str, Any],
    use: str | None,
    over: str | None = None,
    placement: object = None,
) -> Any:
    """A use of a tile program in an operator's body: one step, and the tensors that it writes.

    Raises:
        TilelinkError: TL201 to TL209, TL213.
    """
    run, loc = tracing(), call_site()
    if run is None:
        raise outside(program.name, loc)
    path = run.take_path(use or program.name, loc)
    run.share(program, loc)
    signature = program.signature
    if not len(signature.inputs) <= len(args) <= len(signature.shapes):
        wrong_count(program.name, len(args), len(signature.inputs), f"`{signature}`", loc)
    if placement is not None and not isinstance(placement, Placement):
        why, hint = "it says how one step runs", "give tilelink.sms(…), copy_engine(…), fused(…) or library(…)"
        raise TilelinkError("TL209", f"`schedule={placement!r}`", loc=loc, why=why, hint=hint)
    more = ("name", "over", "schedule") if len(run.frame.dimensions.ranks.names) > 1 else ("name", "schedule")
    sizes, constants, named = _keywords(program, kwargs, more, loc)
    given = _given(program, args, named, loc)
    axis = _axis_of(run, program, given.values(), over, loc)
    ranks = run.ranks.along(axis) if axis is not None else Ranks({}, run.ranks.sizes)
    dimensions = Dimensions(program.name, signature, ranks, loc)
    slots = {g.param: align(g, program.name, loc, ranks) for g in given.values()}
    for g in given.values():
        check_dtype(g, program.name, loc)
        dimensions.add(g, slots[g.param])
    for name, value in sizes.items():
        dimensions.give(name, value)
    for g in given.values():
        dimensions.check_compound(g, slots[g.param])
    results = _allocate(run, program, path, given, dimensions, loc)
    for name in results:
        slots[name] = align(given[name], program.name, loc, ranks)
    _write_step(run, program, path, given, slots, dimensions, constants, axis, placement, loc)
    outputs = [SymbolicTensor(given[p.name].record) for p in program.params if p.role == "out"]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _axis_of(run: Trace, program: TileProgram, given: Iterable[Given], over: str | None, loc: Loc | None) -> str | None:
    """The axis of ranks that `R` of the program is in this use: the only one, the one that is named, or the one over which
    the tensors are split that it takes as split. None: it speaks of no ranks.

    Raises:
        TilelinkError: TL213.
    """
    signature, names = program.signature, run.frame.dimensions.ranks.names
    known = " and ".join(names)
    if over is not None:
        if over not in names:
            why, hint = f"the axes of ranks here are {known}", f'name one of them, `over="{next(iter(names))}"`'
            raise TilelinkError("TL213", f"`over={over!r}` is no axis of ranks", loc=loc, why=why, hint=hint)
        return names[over]
    if len(names) == 1:
        return next(iter(names.values()))
    if signature.along is not None and signature.along in names:
        return names[signature.along]
    if all(RANK_AXIS not in (a.split, a.name) for s in signature.shapes for a in s.axes):
        return None
    tensors = list(given)
    fitting = [axis for axis in names.values() if _split_along(program.name, tensors, run.ranks.along(axis), loc)]
    if len(fitting) == 1:
        return fitting[0]
    raise TilelinkError(
        "TL213",
        f"which axis of ranks `R` of `{program.name}` is",
        loc=loc,
        why=f"the ranks have the axes {known} here, and the tensors that are passed are split over "
        + ("none of them where the signature says `R`" if not fitting else f"{' and '.join(fitting)}"),
        hint=f'say it: `{program.name}(..., over="{next(iter(names))}")`',
    )


def _split_along(user: str, given: Sequence[Given], ranks: Ranks, loc: Loc | None) -> bool:
    """Whether some axis that a signature splits over `R` is split so, or is a slice, in the tensor that is given."""
    for g in given:
        try:
            slots = align(g, user, loc, ranks)
        except TilelinkError:
            continue
        for slot in slots:
            split = slot.declared.split if slot.declared is not None else None
            if split == RANK_AXIS and slot.at is not None and g.record.axes[slot.at].over == ranks.names[split]:
                return True
    return False


def _keywords(
    program: TileProgram, kwargs: Mapping[str, Any], more: tuple[str, ...], loc: Loc | None
) -> tuple[dict[str, int], dict[str, Plain], dict[str, object]]:
    """Keyword arguments: sizes, constants, and results that are given; `more`: others that the call takes."""
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
            why = "keywords are the constants of a program, and sizes and results of its signature"
            known = [*kinds, *names_of(program.signature), *outputs, *more]
            raise unknown_keyword(program.name, key, known, why, loc)
    for constant in program.constants:
        if constant.name not in constants:
            if constant.default is None:
                why = "it has no default"
                message = f"`{program.name}` needs `{constant.name}=`"
                raise TilelinkError("TL209", message, loc=loc, why=why, hint=f"pass {with_article(constant.kind)}")
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
    raise TilelinkError(
        "TL209", f"`{constant.name}={value!r}`", loc=loc, why=why, hint=f"pass {with_article(constant.kind)}"
    )


def _size(program: TileProgram, key: str, value: object, loc: Loc | None) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    why = f"`{key}` is a size of `{program.signature}`"
    raise TilelinkError("TL209", f"`{key}={value!r}`", loc=loc, why=why, hint="pass a number of elements")


def _given(
    program: TileProgram, args: Sequence[object], named: Mapping[str, object], loc: Loc | None
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for param, value in (*((p.name, v) for p, v in zip(program.params, args, strict=False)), *named.items()):
        if param in given:
            message = f"`{param}` of `{program.name}` is given twice"
            raise TilelinkError("TL202", message, loc=loc, why="by position and by name", hint="give it once")
        given[param] = Given(param, program.param(param).shape, record_of(program.name, param, value, loc))
    return given


def _allocate(
    run: Trace, program: TileProgram, path: str, given: dict[str, Given], dimensions: Dimensions, loc: Loc | None
) -> list[str]:
    """Makes the results that were not given; their parameters."""
    inputs = [given[p.name].record.dtype for p in program.params if p.role != "out" and p.name in given]
    first = program.signature.dtype(inputs) or run.frame.dtype
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
    axis: str | None,
    placement: Placement | None,
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
    shipped = run.shipped.get(path, placement)
    run.steps.append(PendingStep(path, program, tuple(views), tuple(constants.items()), loc or NOWHERE, shipped, axis))
