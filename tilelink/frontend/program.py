"""`tilelink.program`: a tile program as users hold it. A call of it in an operator's body is one step of the operator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tilelink.errors import Loc, TilelinkError, with_article
from tilelink.frontend.binding import Dimensions, Given, Ranks, given_tensor, unknown_keyword, wrong_count
from tilelink.frontend.capture import capture
from tilelink.frontend.grammar import parse_signature
from tilelink.frontend.outside import Outside
from tilelink.frontend.progress import NOWHERE, Trace, called_in
from tilelink.frontend.rehearsal import Rehearsed, is_new, taken_together
from tilelink.frontend.source import call_site, plain_function
from tilelink.frontend.symbolic import Record, SymbolicTensor
from tilelink.ir import Shown
from tilelink.ir.program import Constant, TileProgram
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import RANK_AXIS, Signature
from tilelink.ir.wiring import Binding, Step

Plain = bool | int | float | str
LARGEST = int(sys.float_info.max)


class Program(Shown):
    """A tile program: a function with a signature. Called in an operator's body, it becomes a step of the operator.

    Attributes:
        name: what schedules call it.
        signature: shapes of its tensors.
        function: the function as written.
    """

    __slots__ = ("_captured", "_given", "_outside", "_rehearsed", "function", "name", "signature")

    def __init__(self, function: Callable[..., Any], signature: Signature, name: str) -> None:
        self.function = function
        self.signature = signature
        self.name = name
        self._captured: TileProgram | None = None
        self._outside = Outside(())
        self._rehearsed: Rehearsed | None = None
        self._given: dict[frozenset[tuple[str, Plain]], TileProgram] = {}

    @property
    def captured(self) -> TileProgram:
        """The program in the compiler's own form, read from its source at the first use, and when a number or a helper of its
        module, or of the function around it, is another one.

        Raises:
            TilelinkError: TL110 to TL164.
        """
        if self._captured is None or self._outside.changed():
            self._captured, self._rehearsed, found = capture(self.function, self.signature, self.name)
            self._outside = Outside(found)
            self._given.clear()
        return self._captured

    def _given_these(self, program: TileProgram, constants: Mapping[str, Plain]) -> TileProgram:
        """The program with what constants show of it that those did not with which it was rehearsed (TL143, TL147)."""
        given = {c.name: constants[c.name] for c in program.constants if is_new(c, constants[c.name])}
        if not given or self._rehearsed is None:
            return program
        key = frozenset(given.items())
        if key not in self._given:
            self._given[key] = replace(program, together=taken_together(replace(self._rehearsed, given=given)))
        return self._given[key]

    def __call__(
        self,
        *tensors: Any,
        name: str | None = None,
        over: str | None = None,
        schedule: Placement | None = None,
        **keywords: Any,
    ) -> Any:
        """Adds a step to the operator that is being traced.

        Args:
            tensors: one for each input, then results that are to be written instead of new ones.
            name: of this use, if the operator uses the program twice.
            over: the axis of ranks that `R` is here, where the operator has several and the tensors do not tell.
            schedule: the placement that the step comes with, where sizes decide it; the operator's own goes before.
            keywords: constants, sizes that no tensor gives, results by name.

        Returns:
            The program's result, or a tuple of them.

        Raises:
            TilelinkError: TL201 to TL209, TL213.
        """
        program, signature, placement = self.captured, self.signature, cast("object", schedule)
        run, loc = called_in(program.name)
        run.found += self._outside.found
        path = run.take_path(name or program.name, loc)
        run.share(program, loc)
        if not len(signature.inputs) <= len(tensors) <= len(signature.shapes):
            wrong_count(program.name, len(tensors), signature, loc)
        if placement is not None and not isinstance(placement, Placement):
            why, hint = "it says how one step runs", "give tilelink.sms(…), copy_engine(…), fused(…) or library(…)"
            raise TilelinkError("TL209", f"`schedule={placement!r}`", loc=loc, why=why, hint=hint)
        more = ("name", "over", "schedule") if len(run.frame.dimensions.ranks.names) > 1 else ("name", "schedule")
        sizes, constants, named = _keywords(program, keywords, more, loc)
        program = self._given_these(program, constants)
        given: dict[str, Given] = {}
        for param, value in (*((p.name, v) for p, v in zip(program.params, tensors, strict=False)), *named.items()):
            if param in given:
                message = f"`{param}` of `{program.name}` is given twice"
                raise TilelinkError("TL202", message, loc=loc, why="by position and by name", hint="give it once")
            given[param] = given_tensor(program.name, param, program.param(param).shape, value, loc)
        axis = _axis_of(run, program, list(given.values()), over, loc)
        ranks = run.ranks.along(axis) if axis is not None else Ranks({}, run.ranks.sizes)
        dimensions = Dimensions(program.name, signature, ranks, loc)
        dimensions.take(list(given.values()), sizes)
        _make_results(run, program, path, given, dimensions)
        bindings: list[Binding] = []
        for param in program.params:
            record = given[param.name].record
            record.uses += 1
            if record.origin != "argument" and record.uses == 1:
                # What a step makes, or `symmetric` declares, is called as its first user calls it.
                record.wish, record.long = param.name, f"{path.replace('.', '_')}_{param.name}"
            bindings.append(Binding(param.name, record.key, tuple(dimensions.view(given[param.name]))))
        shipped = run.shipped.get(path, placement)
        step = Step(path, program, tuple(bindings), tuple(constants.items()), loc or NOWHERE, shipped, axis or "")
        run.steps.append(step)
        outputs = [SymbolicTensor(given[p.name].record) for p in program.params if p.role == "out"]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def __repr__(self) -> str:
        return f"<tile program {self.name}: {self.signature}>"


def program(
    signature: str, *, name: str | None = None, axes: str | None = None
) -> Callable[[Callable[..., Any]], Program]:
    """Makes a function a tile program.

    Args:
        signature: shapes of its tensors, such as `"M/R ... -> M ..."`; what follows `->` it writes.
        name: what schedules call it; the function's name by default.
        axes: what the signature calls the axis of ranks, if not `R`: a program speaks of one. An operator that has an axis
            of this name means it by that.

    Raises:
        TilelinkError: TL101 to TL105 at once; what is wrong with the function, at its first use.
    """
    loc = call_site()
    parsed = parse_signature(signature, loc, axes)
    if len(parsed.axes) > 1:
        message = f"a tile program that speaks of {' and '.join(parsed.axes)}"
        why = "a step moves along one axis of ranks; those that differ along others do the same side by side"
        raise TilelinkError("TL105", message, loc=loc, why=why, hint="write a program for each")
    if name is not None and not name.isidentifier():
        message, why = f"a program called `{name}`", "schedules name it"
        raise TilelinkError("TL114", message, loc=loc, why=why, hint="use a Python name")

    def decorate(function: Callable[..., Any]) -> Program:
        return Program(function, parsed, name or plain_function(function).__name__)

    return decorate


# --------------------------------------------------------------------------------------------------------------------- calls
def _axis_of(run: Trace, program: TileProgram, given: Sequence[Given], over: str | None, loc: Loc | None) -> str | None:
    """The axis of ranks that `R` of the program is in this use: the only one, the one that is named, or the one over which
    the tensors are split that it takes as split. None: it speaks of no ranks. TL213: there is no telling."""
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
    along = {axis: Dimensions(program.name, signature, run.ranks.along(axis), loc) for axis in names.values()}
    fitting = [axis for axis, dimensions in along.items() if _split_along(dimensions, given)]
    if len(fitting) == 1:
        return fitting[0]
    split = " and ".join(fitting) or "none of them where the signature says `R`"
    why = f"the ranks have the axes {known} here, and the tensors that are passed are split over {split}"
    message = f"which axis of ranks `R` of `{program.name}` is"
    hint = f'say it: `{program.name}(..., over="{next(iter(names))}")`'
    raise TilelinkError("TL213", message, loc=loc, why=why, hint=hint)


def _split_along(dimensions: Dimensions, given: Sequence[Given]) -> bool:
    """Whether some axis that a signature splits over `R` is split so, or is a slice, in the tensor that is given."""
    for g in given:
        try:
            axes = dimensions.align(g)
        except TilelinkError:
            continue
        over = (g.record.axes[at].over for declared, at in axes if declared.split == RANK_AXIS and at is not None)
        if dimensions.ranks.names[RANK_AXIS] in over:
            return True
    return False


def _keywords(
    program: TileProgram, kwargs: Mapping[str, Any], more: tuple[str, ...], loc: Loc | None
) -> tuple[dict[str, int], dict[str, Plain], dict[str, object]]:
    """Keyword arguments: sizes, constants, and results that are given; `more`: others that the call takes."""
    dims = program.signature.dims
    outputs = [p.name for p in program.params if p.role == "out" and p.name not in dims]
    known = [*(c.name for c in program.constants), *dims, *outputs, *more]
    if unknown := [key for key in kwargs if key not in known]:
        why = "keywords are the constants of a program, and sizes and results of its signature"
        raise unknown_keyword(program.name, unknown[0], known, why, loc)
    constants = {c.name: _constant(program, c, kwargs, loc) for c in program.constants}
    sizes = {key: kwargs[key] for key in dims if key in kwargs}
    for key, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            why, hint = f"`{key}` is a size of `{program.signature}`", "pass a number of elements"
            raise TilelinkError("TL209", f"`{key}={value!r}`", loc=loc, why=why, hint=hint)
    return sizes, constants, {key: kwargs[key] for key in outputs if key in kwargs}


def _constant(program: TileProgram, constant: Constant, given: Mapping[str, object], loc: Loc | None) -> Plain:
    value = given.get(constant.name, constant.default)
    if value is None and constant.name not in given:
        message, hint = f"`{program.name}` needs `{constant.name}=`", f"pass {with_article(constant.kind)}"
        raise TilelinkError("TL209", message, loc=loc, why="it has no default", hint=hint)
    match constant.kind, value:
        case ("bool", bool()) | ("str", str()):
            return value
        case "int", int() if not isinstance(value, bool):
            return int(value)
        case "float", int() | float() if not isinstance(value, bool) and not (
            isinstance(value, int) and abs(value) > LARGEST
        ):
            return float(value)
        case _:
            pass
    why = f"`{constant.name}` of `{program.name}` is a constant of kind {constant.kind}"
    message, hint = f"`{constant.name}={value!r}`", f"pass {with_article(constant.kind)}"
    raise TilelinkError("TL209", message, loc=loc, why=why, hint=hint)


def _make_results(run: Trace, program: TileProgram, path: str, given: dict[str, Given], dimensions: Dimensions) -> None:
    """Makes the results that were not given, and adds them to what was."""
    inputs = [given[p.name].record.dtype for p in program.params if p.role == "in"]
    dtype = program.signature.dtype(inputs) or run.frame.dtype
    for param in program.params:
        if param.name not in given:
            shape, label = param.shape, f"`{path}.{param.name}`"
            axes = dimensions.allocate(shape, given, label)
            record = Record(axes, shape.dtype or dtype, "program", "", "", label, shape.contract, None, dimensions.loc)
            run.record(record)
            given[param.name] = Given(param.name, shape, record)
