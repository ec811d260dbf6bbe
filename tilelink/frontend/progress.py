"""The trace in progress: records, steps, and the operators that are being run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.frontend.binding import Dimensions, Ranks
from tilelink.frontend.grammar import parse_owner, parse_shape
from tilelink.frontend.outside import Found, alike
from tilelink.frontend.source import call_site
from tilelink.frontend.symbolic import Record, SymbolicTensor
from tilelink.frontend.wording import count, meant
from tilelink.ir.program import TileProgram
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import dims_of
from tilelink.ir.wiring import Step

NOWHERE = Loc("<operator>", 1)
"""Where an operator stands that no file has."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One operator in progress: its path prefix, and what its signature's names are, those of axes of ranks included."""

    prefix: str
    dimensions: Dimensions
    dtype: str


class Trace:
    """One run of an operator's body. `axes`: how many ranks there are along each axis, the outermost first. `found`: what it
    and its programs have read outside of themselves."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.ranks = Ranks({name: name for name in axes}, axes)
        self.frames: list[Frame] = []
        self.records: list[Record] = []
        self.steps: list[Step] = []
        self.paths: dict[str, Loc | None] = {}
        self.shipped: dict[str, Placement] = {}
        self.found: list[Found] = []
        self._outer_names: dict[str, tuple[object, str]] = {}

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @contextmanager
    def inside(self, frame: Frame) -> Generator[None]:
        """While an operator's body runs, this is the trace in progress."""
        self.frames.append(frame)
        token = _TRACE.set(self)
        try:
            yield
        finally:
            _TRACE.reset(token)
            self.frames.pop()

    def take_path(self, name: str, loc: Loc | None) -> str:
        """The path of a use; a second use of one name needs another."""
        path = self.frame.prefix + name
        if path in self.paths:
            first = self.paths[path]
            why = "schedules and plans tell steps apart by their names"
            hint = f'give this use a name: `{name}(..., name="{name}_2")`'
            notes = () if first is None else (Note("the first use is here", first),)
            raise TilelinkError("TL208", f"`{path}` is used twice", loc=loc, why=why, hint=hint, notes=notes)
        self.paths[path] = loc
        return path

    def share(self, program: TileProgram, loc: Loc | None) -> None:
        """Refuses programs that mean different things by one name: they are written into one file."""
        helpers = {h.name: h.source for h in program.helpers}
        for name, value in (*program.globals, *helpers.items()):
            old, user = self._outer_names.setdefault(name, (value, program.name))
            if not alike(old, value):
                what = "helper" if name in helpers else "constant"
                message = f"`{name}` is another {what} in `{program.name}` than in `{user}`"
                why = "the programs of an operator are written into one file"
                raise TilelinkError("TL126", message, loc=loc, why=why, hint="rename one of them")

    def record(self, record: Record) -> SymbolicTensor:
        record.key = f"#{len(self.records)}"
        self.records.append(record)
        return SymbolicTensor(record)


_TRACE: ContextVar[Trace | None] = ContextVar("tilelink_trace", default=None)


def in_progress(
    what: str, why: str, code: str = "TL211", then: str = "", loc: Loc | None = None
) -> tuple[Trace, Loc | None]:
    """The trace in progress, and the user's line in the operator's body; `loc`: if there is none.

    Raises:
        TilelinkError: TL201 or TL211, nothing is in progress for `what`.
    """
    run, loc = _TRACE.get(), call_site() or loc
    if run is None:
        hint = f"call it in a function decorated with `@tilelink.operator(...)`{then}"
        raise TilelinkError(code, f"{what} outside an operator", loc=loc, why=why, hint=hint)
    return run, loc


def called_in(name: str, loc: Loc | None = None) -> tuple[Trace, Loc | None]:
    """The same, for a call of a tile program or an operator; TL201."""
    why = "a tile program is one part of an operator: it runs when the operator does"
    return in_progress(f"`{name}` was called", why, "TL201", ", and call that", loc)


def ranks_here() -> int:
    """The ranks along the one axis that the operator in progress knows of.

    Raises:
        TilelinkError: TL211 outside an operator, TL213 its ranks have several axes.
    """
    run, loc = in_progress("ranks are counted", "there are none before an operator runs on some")
    ranks = run.frame.dimensions.ranks
    if len(ranks.names) > 1:
        why = f"the ranks of `{run.frame.dimensions.user}` have the axes {' and '.join(ranks.names)}"
        hint = "call it in an operator of one axis, and that one here with `over=`"
        raise TilelinkError("TL213", "along which axis ranks are counted", loc=loc, why=why, hint=hint)
    (axis,) = ranks.names.values()
    return ranks.sizes[axis]


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
        dtype: a dtype word; by default `like`'s, else that of the operator's first input without one in its signature.
        sizes: sizes by name.

    Raises:
        TilelinkError: TL101 to TL104, TL205, TL211, TL214 an owner map where the ranks have several axes.
    """
    run, loc = in_progress("`tilelink.symmetric`", "it declares a tensor of the operator that is being traced")
    ranks = tuple(run.frame.dimensions.ranks.names)
    parsed = parse_shape(shape, loc, ranks)
    if parsed.rest is not None:
        why = "a declared tensor has no other tensor to take them from"
        raise TilelinkError("TL205", f"`...` in `{shape}`", loc=loc, why=why, hint="write all axes")
    more = {} if like is None else {a.name: (a.size, "`like`") for a in like.axes}
    more |= {name: (size, f"`{name}={int(size)}`") for name, size in sizes.items()}
    dimensions = run.frame.dimensions.extended({n: given for n, given in more.items() if n not in ranks})
    known = [n for n in dimensions.seen if n not in ranks]
    for axis in parsed.axes:
        for name in dims_of(axis.size):
            if name not in dimensions.seen:
                hint = meant(name, known, f"pass it by name, `{name}=...`, or a tensor that has it, `like=`")
                why = f"known are {', '.join(f'`{n}`' for n in known)}"
                raise TilelinkError("TL205", f"the size `{name}` is not known", loc=loc, why=why, hint=hint)
        if axis.split is not None and axis.split not in ranks:
            why, hint = "a declared tensor is split over the ranks or not at all", f"write `{axis.size}`"
            raise TilelinkError("TL103", f"`{axis}` is split by a table", loc=loc, why=why, hint=hint)
    label = f'`symmetric("{shape}")`'
    axes = dimensions.allocate(parsed, {}, label)
    word = dtype or parsed.dtype or (like.dtype if like is not None else run.frame.dtype)
    term = None if owner is None else parse_owner(owner, loc)
    if term is not None and len(run.ranks.sizes) > 1:
        why = "the map gives one number, and a rank has one on each axis"
        message, hint = "an owner map where the ranks have several axes", "split the axes of the shape over them"
        raise TilelinkError("TL214", message, loc=loc, why=why, hint=hint)
    if term is not None and len(term.variables) > len(axes):
        message = f"the owner map has {len(term.variables)} variables"
        why, hint = (
            f"`{shape}` has {count(len(axes), 'axis', 'axes')}",
            "write one variable for each axis, from the first on",
        )
        raise TilelinkError("TL104", message, loc=loc, why=why, hint=hint)
    wish = f"symmetric_{sum(r.origin == 'declared' for r in run.records)}"
    return run.record(Record(axes, word, "declared", wish, wish, label, parsed.contract, term, loc))
