"""The scope of one emitted function: its parameters, names, and where its tiles lie."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from tilelink.codegen.names import TABLE, Naming, names_of
from tilelink.codegen.text import Lines, Names, Row, atom, words
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Binary, Formula, Sym
from tilelink.ir.kernel import Arg, Checks, Site
from tilelink.ir.lowered import Lowered, Part
from tilelink.ir.partition import GridAxis, here, part
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Expr, Load, Op, Store, Tile, walk
from tilelink.ir.shape import RANK_AXIS, rank_along
from tilelink.ir.wiring import Entries, TensorDecl, indexed

_QUOTED = r"'[^']*'|" + r'"[^"]*"'
TRITON_DTYPES = {
    "bf16": "tl.bfloat16",
    "f16": "tl.float16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "f8e4m3": "tl.float8e4nv",
    "f8e5m2": "tl.float8e5",
}


def short(loc: Loc) -> str:
    """File and line, without the folder."""
    return f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}"


@dataclass(slots=True)
class TileNames:
    """The emitted names of one tile: `begin`, `end`, its lanes `at` and their mask `inside`, or `pairs`, of two positions each;
    `grid` is its partition. Lines define those that the body uses.

    `whole`: all of its lanes are positions of the loop, and all masks of the loop are true.
    """

    begin: str
    end: str
    grid: GridAxis
    extent: int
    at: str = ""
    inside: str = ""
    whole: bool = False
    pairs: str = ""
    pairs_inside: str = ""
    pairs_end: str = ""
    segment: str = ""
    """Of a run-time split: which part of it the tile is of."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's tile lies: `name` of a pointer or, with `tma`, a descriptor; its first axis is from `first` on."""

    name: str
    first: str
    tma: bool


@dataclass(slots=True)
class File:
    """What one emitted file is of, what it looks after, and the names in it; `sites`: in the order in which they are met."""

    plan: Plan
    lowered: Lowered
    checks: Checks
    naming: Naming
    sites: list[Site]

    def number(self, site: Site) -> int:
        """That of a place which can make a report."""
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)


@dataclass(slots=True)
class Scope(File):
    """What is known while one function of a file is being emitted.

    `renamed`: names of the program that something else has here; `replaced`: names that stand for a bound, with its text;
    `inside`: those of them that are in range wherever they index; `limits`: by mask and `start` or `stop`, those of a loop's
    masks that were named before it; `known`: what formulas of the lowered plan are called here; `shared`: formulas that get
    names at the head of the function once they are `used`; `multiples`: those of them that are multiples of 16 in every call of
    the plan, of which a compiler sees nothing: it makes wide accesses of masks that end there.
    """

    step: StepPlan
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    inside: set[str] = field(default_factory=set[str])
    args: dict[str, Arg] = field(default_factory=dict[str, Arg])
    tiles: dict[str, TileNames] = field(default_factory=dict[str, TileNames])
    wholes: dict[tuple[str, Formula], TileNames] = field(default_factory=dict[tuple[str, Formula], TileNames])
    replaced: dict[str, str] = field(default_factory=dict[str, str])
    known: dict[Formula, Formula] = field(default_factory=dict[Formula, Formula])
    limits: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    forwarded: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    shared: dict[Formula, str] = field(default_factory=dict[Formula, str])
    used: list[Binary] = field(default_factory=list[Binary])
    multiples: set[Formula] = field(default_factory=set[Formula])
    lines: Lines = field(default_factory=Lines)
    names: Names = field(default_factory=lambda: Names(set()))
    offered: set[str] = field(default_factory=set[str])
    async_tensors: set[str] = field(default_factory=set[str])
    stored_async: bool = False
    loc: Loc | None = None
    """Of the op that is being emitted."""
    carry: Lines = field(default_factory=Lines)
    """What the loop over tiles carries from one to the next: its values before the first."""

    @property
    def body(self) -> tuple[Op, ...]:
        """The statements of the step's program."""
        return self.step.step.program.body

    @property
    def part(self) -> Part:
        """What the step does for a tile."""
        return self.lowered.part(self.step.path)

    def arg(self, arg: Arg) -> str:
        """Declare a parameter (once) and give its name."""
        settled = arg.kind in ("tensor", "ll", "scalar", "order")
        name = arg.name if settled else self.naming.argument(arg.name)
        self.args.setdefault(name, replace(arg, name=name))
        return name

    def local(self, name: str) -> str:
        """What a name of the program is called here."""
        return self.renamed.get(name, name)

    @contextmanager
    def under(self, tests: tuple[Formula, ...], loc: Loc | None = None) -> Generator[None]:
        """What is added meanwhile stands under these tests."""
        depth = self.lines.depth
        for test in tests:
            self.lines.add(f"if {self.text(test)}:", loc)
            self.lines.depth += 1
        yield
        self.lines.depth = depth

    @contextmanager
    def apart(self) -> Generator[Lines]:
        """What is added meanwhile goes to lines of its own, which are put in later."""
        outer, self.lines = self.lines, Lines()
        yield self.lines
        self.lines = outer

    @contextmanager
    def keeping_names(self) -> Generator[None]:
        """What formulas get names for meanwhile has none afterwards, here and in scopes that know the same."""
        known, self.known = self.known, dict(self.known)
        yield
        self.known = known

    def offer(self, name: str, text: str) -> None:
        """Give a value this name, if a line behind reads it."""
        self.offered.add(f"{name} = {text}")
        self.lines.add(f"{name} = {text}")

    def needed(self, rows: list[Row]) -> tuple[Row, ...]:
        """The lines of a function without those of names that are offered and not read."""
        found, read = list[Row](), set[str]()
        for row in reversed(rows):
            name, _, value = row[1].partition(" = ")
            if row[1] not in self.offered:
                read |= words([row])
            elif name in read:
                read = (read - {name}) | words([(0, value, None)])
            else:
                continue
            found.append(row)
        return tuple(reversed(found))

    def named(self, wish: str, text: str) -> str:
        """Give a value a name of its own, here."""
        name = self.names.fresh(wish)
        self.lines.add(f"{name} = {text}", self.loc)
        return name

    def define(self, formula: Formula, wish: str, *, row: bool = False) -> None:
        """Let formulas say `wish` for this one, from now on; one that has a name, or needs none, stays as it is. `row`: rows of
        a memory are so long."""
        called = self.here(formula)
        if isinstance(called, Binary) and called not in self.shared:
            self.shared[called] = self.names.fresh(wish)
        # Where the last ranks hold nothing, another may hold less than a part.
        if row and all(n % 16 == 0 for n in self.on_ranks(formula)):
            self.multiples.add(called)

    def on_ranks(self, size: Formula) -> set[int]:
        """What a size comes to on any rank."""
        return {*np.ravel(F.evaluate(size, self.plan.on_all)).tolist()}

    def carried(self, wish: str, text: str) -> str:
        """A name that keeps its value from tile to tile, `text` before the first."""
        name = self.names.fresh(wish)
        self.carry.add(f"{name} = {text}")
        return name

    def tensor(self, name: str) -> str:
        kind = "ll" if self.is_ll(name) else "tensor"
        return self.arg(Arg(self.naming.tensors[name], kind, name))

    def is_ll(self, tensor: str) -> bool:
        """Whether each flag of a tensor holds data and the number of the call (the LL protocol)."""
        return any(f.name == tensor and f.style == "data" for f in self.lowered.flags)

    def indexed(self, op: Load | Store) -> Entries:
        """The axes of the tensor that is accessed, and the index of each."""
        return indexed(self.step.step, op.param, op.index)

    def declared(self, param: str) -> TensorDecl:
        """The tensor that a parameter of the program is bound to."""
        return self.plan.wiring.tensor(self.step.step.binding(param).tensor)

    @property
    def rank(self) -> str:
        """This rank's coordinate along the step's axis of ranks, in emitted text."""
        return self.text(self.step.rank)

    @property
    def ranks(self) -> str:
        """How many ranks there are along it."""
        return self.text(self.step.ranks)

    @property
    def tile_loc(self) -> Loc:
        """The line of the program that names the domain."""
        return next(op.loc for op in walk(self.body) if isinstance(op, Tile))

    def context(self, tensor: str = "") -> str:
        """That of the arena that holds a tensor, for the ranks along the step's axis: tensors of the workspace share one, an
        argument of `tilelink.empty` brings its own."""
        along, buffer = self.step.axis, self.plan.buffer_or_none(tensor)  # of what nobody reads there are signals alone
        own = buffer is not None and buffer.space == "argument" and not buffer.staged
        name = ("" if along == RANK_AXIS else f"{along}_") + (f"{tensor}_ctx" if own else "ctx")
        return self.arg(Arg(name, "context", tensor, along=along))

    def state(self, what: str) -> str:
        """The parameter that points to what the workspace calls so."""
        return self.arg(Arg(f"{what}_at", "state", what))

    def report(self, kind: str, of: str, loc: Loc | None, path: str | None = None) -> str:
        """The arguments of a device function that can make a report: where it goes, and the number of this place."""
        site = Site(path or self.step.path, kind, of, loc)
        return f"{self.arg(Arg('watch_at', 'watch'))}, {self.number(site)}"

    def text(self, formula: F.Like, outer: int = 0) -> str:
        return F.text(self._short(self.here(F.of(formula))), outer)

    def _short(self, f: Formula) -> Formula:
        """With the names of shared formulas; those that they are made of are defined before them."""
        if not isinstance(f, Binary):
            return f
        parts = Binary(f.op, self._short(f.left), self._short(f.right))
        if f not in self.shared:
            return parts
        if f not in self.used:
            self.used.append(f)
        return Sym(self.shared[f])

    def definitions(self) -> Iterator[Row]:
        """The lines that define the shared formulas that were used."""
        for f in self.used:
            text = F.text(Binary(f.op, self._short(f.left), self._short(f.right)))
            yield 0, f"{self.shared[f]} = {f'tl.multiple_of({text}, 16)' if f in self.multiples else text}", None

    def here(self, f: Formula) -> Formula:
        """A formula of the lowered plan with what its symbols are called here (`tilelink.ir.lowered.Part`)."""
        if f in self.known:
            return self.known[f]
        if isinstance(f, Binary):
            return F.binary(f.op, self.here(f.left), self.here(f.right))
        if not isinstance(f, Sym) or "." not in f.name:
            return f
        if f.name[0] == ".":
            return Sym(atom(self.spelled(f.name[1:])))
        var, _, side = f.name.partition(".")
        if var not in self.tiles:
            return f  # a step inside another operator has a dot in its path, and so has its order
        found = self.tiles[var].begin if side == "begin" else self.tiles[var].end
        return F.of(int(found)) if found.isdigit() else Sym(found)

    def expression(self, expr: Expr) -> str:
        """The text of a user's expression, with the results of bounds put in."""
        return self.spelled(expr.text)

    def spelled(self, text: str) -> str:
        """A user's expression with what its names are called here."""
        known = {**self.renamed, **self.replaced}
        if "RANKS" in text and self.ranks != "RANKS":
            known["RANKS"] = self.ranks
        if not known:
            return text
        names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        pattern = rf"{_QUOTED}|(?<![\w.])({names})\b(?!\s*=[^=])"
        return re.sub(pattern, lambda m: known[m[1]] if m[1] else m[0], text)

    def stride(self, tensor: str, axis: int, extents: tuple[Formula, ...]) -> Formula:
        """Elements from one position to the next along stored axis `axis`."""
        buffer = self.plan.buffer(tensor)
        if buffer.space == "argument":
            if self.plan.layout(tensor).unit_axis == axis:
                return F.of(1)
            return Sym(self.arg(Arg(f"{tensor}_stride_{axis}", "stride", tensor, axis=axis)))
        return math.prod(extents[axis + 1 :], start=F.of(1))


def open_scope(file: File, step: StepPlan, passed: frozenset[str] = frozenset()) -> Scope:
    """A scope in which the program's names, the tensors' and the sizes' are taken; `passed`: what the caller hands over."""
    naming = file.naming
    names = Names(naming.taken | passed | names_of(step.step.program))
    scope = Scope(file.plan, file.lowered, file.checks, naming, file.sites, step, names=names)
    scope.known |= {Sym(name): Sym(called) for name, called in (*naming.sizes.items(), *naming.given.items())}
    for name in sorted(naming.evading(step, passed)):
        scope.renamed[name] = names.fresh(f"this_{name}")
    for name, value in step.step.constants:
        if isinstance(value, float):
            # A kernel's argument: two of its steps may have a scalar of that name.
            of = f"{step.path}.{name}"
            scope.renamed[name] = scope.arg(Arg(naming.given[of], "scalar", of))
    for table in sorted({g.table for g in (*step.grid, *step.loops) if g.table is not None}):
        names.taken |= {f"{naming.tensors[table]}_{x}" for x in TABLE}
        scope.known[Sym(f"{table}_tiles")] = Sym(f"{naming.tensors[table]}_tiles")
    _name_sizes(scope)
    return scope


def _name_sizes(scope: Scope) -> None:
    """Names for what formulas repeat: parts, local lengths, tiles per part."""
    for tensor in scope.plan.wiring.tensors:
        for axis in tensor.axes:
            if axis.name in scope.plan.wiring.axes or isinstance(axis.size, F.Const):
                continue
            label, over = _label(axis.size, axis.name), axis.over or scope.step.axis
            last = axis.over is not None and axis is tensor.axes[-1]
            scope.define(part(axis.size, over), f"{label}_part", row=last)
            if axis.over is not None:
                scope.define(here(axis.size, over=over), f"{label}_here", row=last)
                scope.define(rank_along(over) * part(axis.size, over), f"{label}_first")
    for grid in (*scope.step.grid, *scope.step.loops):
        if isinstance(grid.size, F.Const):
            continue
        label = _label(grid.size, grid.dim)
        if grid.ends == "part" and grid.span[0] == F.of(0):
            scope.define(grid.per, f"{label}_per_part")
        scope.define(grid.count, f"{grid.dim}_tiles" if grid.dim.isidentifier() and grid.dim[0] != "_" else "tiles")
    for channel in scope.plan.channels:
        for axis in channel.axes:
            if axis.filled != axis.count:
                scope.define(axis.per, f"{channel.tensor}_per_part")


def _label(size: Formula, dim: str) -> str:
    return size.name if isinstance(size, Sym) else dim.strip("_") or "n"
