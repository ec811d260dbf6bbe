"""A captured tile program: the closed set of core ops, device and stream alike.

Open primitives become closed ops here: a new primitive is a new entry in `frontend`, nothing behind it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilelink.errors import Loc
from tilelink.ir import Shown
from tilelink.ir.formula import Const, Formula, Like, Sym, cdiv, maximum, of, substitute, symbols
from tilelink.ir.shape import Shape, Signature, distance


@dataclass(frozen=True, slots=True)
class Expr:
    """A pure Triton expression without tensor handles: checked by capture, printed by codegen. `text` is Python source in which
    every free name is listed in `names`; Triton's language is spelled `tl.`. `vector`: it is a block of values rather than one.
    `positional`: it depends on constants, tile positions and rank coordinates alone, never on data. `formula`: the same value
    for `ir.formula.evaluate` where it is an integer made of positions; its symbols are names bound by `Tile`, `Tiles`, `Loop`,
    `Bounds`, `Holder`, int and bool constants, and `RANKS` (names bound by `Let` are put in). `only_if`: of a truth that has
    none, what positions say it takes to be true."""

    text: str
    names: tuple[str, ...] = ()
    vector: bool = False
    positional: bool = True
    formula: Formula | None = None
    only_if: Formula | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def named(self) -> Formula:
        """The value by the program's names, each behind a dot; so is the text of a vector, and of what has no formula."""
        if self.formula is None or self.vector:
            return Sym(f".{self.text}")
        return substitute(self.formula, {n: Sym(f".{n}") for n in symbols(self.formula) - {"RANKS"}})


# ---------------------------------------------------------------------------------------------- indices, one per axis
@dataclass(frozen=True, slots=True)
class Whole:
    """The whole axis (an index shorter than the shape leaves the last axes whole)."""


@dataclass(frozen=True, slots=True)
class OfTile:
    """A tile: a variable bound by `tile_id` or `tiles` on an upper-case axis."""

    var: str


@dataclass(frozen=True, slots=True)
class At:
    """One position. `coordinate`: it counts ranks, and wraps."""

    expr: Expr
    coordinate: bool = False

    @property
    def ring(self) -> tuple[str, int] | None:
        """On the axis of ranks, which variable it is how far from, where that is known."""
        return distance(self.expr.formula) if self.coordinate else None


@dataclass(frozen=True, slots=True)
class Gather:
    """A vector of positions; -1 means no element."""

    expr: Expr


IndexEntry: TypeAlias = Whole | OfTile | At | Gather
Index: TypeAlias = "tuple[IndexEntry, ...]"
"""One entry per axis of the parameter's shape, `...` already expanded away: entries for `...` are not listed."""


# ------------------------------------------------------------------------------------------------------------- core ops
@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """`a, b = tl.tile_id(param)`: the domain; one name per axis of the shape (None: not named)."""

    names: tuple[str | None, ...]
    param: str
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """`for var in tl.tiles(param, axis, start=, stop=, part=(c, parts))`: iterations commute. `said`: what the program calls
    `var`, if not so."""

    var: str
    param: str
    axis: int
    body: tuple[Op, ...]
    start: Expr | None = None
    stop: Expr | None = None
    part: tuple[Expr, Expr] | None = None
    said: str | None = None
    loc: Loc

    @property
    def limited(self) -> bool:
        """Whether the program says where it begins or ends."""
        return self.start is not None or self.stop is not None or self.part is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A Python loop that Triton knows: `header` is `for x in range(...)`, `for x in tl.static_range(...)` or `while c`.
    `limits`: where a range begins, where it stops, and its step; None: a `while`, or data says."""

    header: Expr
    target: str | None
    body: tuple[Op, ...]
    limits: tuple[Formula, Formula, int] | None = None
    loc: Loc

    @property
    def unrolled(self) -> bool:
        return "tl.static_range(" in self.header.text

    @property
    def turns(self) -> Formula | None:
        """How often it goes round; None: data says."""
        if self.limits is None:
            # A test that the loop's body does not change: a loop that is entered does not end.
            return Const(0) if self.target is None and self.header.formula == Const(0) else None
        start, stop, step = self.limits
        return maximum(cdiv(stop - start, step) if step > 0 else cdiv(start - stop, -step), 0)

    def at(self, turn: Like) -> Formula:
        """The value of `target` in a turn."""
        assert self.limits is not None
        return self.limits[0] + of(turn) * self.limits[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class If:
    test: Expr
    body: tuple[Op, ...]
    orelse: tuple[Op, ...] = ()
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where a tile lies: `what` is range | begin | end | size | shape | acc_dtype | segment | mask. `range`, `begin`, `end`,
    `segment`, `mask` take a tile variable (`range` without one: the whole axis); `size` an axis; `shape` the domain's block
    shape; `acc_dtype` what values are summed up in. `mask`: which positions of the tile are from `start` on and before `stop`,
    each one position or a vector, one per row: a block of rows by positions."""

    name: str
    what: str
    param: str
    axis: int | None = None
    var: str | None = None
    start: Expr | None = None
    stop: Expr | None = None
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """`name = tl.rank_of(param, index)`: f_R as a value."""

    name: str
    param: str
    index: Index
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    name: str
    param: str
    index: Index
    other: Expr | None = None
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """`to`: `own` instance (`tile_store`) or every rank that holds the tile (`tile_push_data`)."""

    param: str
    index: Index
    value: Expr
    mask: Expr | None = None
    to: str = "own"
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """`tile_pull_data` and `rank_copy_data`: one tile from whoever holds it in `source`; `by` is worker | stream."""

    param: str
    source: str
    index: Index
    by: str = "worker"
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Release. `index` None: the whole tensor. `peer`: the R coordinate named by `peer_tile_notify`."""

    param: str
    index: Index | None
    mode: str | None = None
    peer: At | None = None
    by: str = "worker"
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Acquire."""

    param: str
    index: Index | None
    peer: At | None = None
    by: str = "worker"
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Let:
    """`target = value`; `target` may be a tuple of names, and is empty where the value is a call that prints. An augmented
    assignment arrives written out."""

    target: tuple[str, ...]
    value: Expr
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition that must hold on the device (`tl.device_assert`, table contracts in debug mode)."""

    condition: Expr
    text: str
    loc: Loc


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """The escape hatch: what the plan does not see through, and so cannot prove. `what`: pointer (of parameter `param`, this
    rank's own instance) | rank | symm_at | wait | consume_token | notify | effect (any expression that writes). `name`: of its
    value, None where there is none."""

    what: str
    name: str | None = None
    param: str | None = None
    args: tuple[Expr, ...] = ()
    loc: Loc


Op: TypeAlias = Tile | Tiles | Loop | If | Bounds | Holder | Load | Store | Move | Notify | Wait | Let | Check | Raw


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    shape: Shape
    role: str
    """`in` or `out` (after the arrow)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A keyword-only parameter: `kind` is bool | int | str (compiled in) or float (a run-time scalar)."""

    name: str
    kind: str
    default: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class CopyProgram:
    """The program only waits for one tile, moves it and notifies: engine and direction are the schedule's."""

    source: str
    destination: str
    pull: bool
    """As written; the schedule may turn it."""
    pinned: bool = False
    """Written with `rank_*`: it runs on a copy engine and nowhere else."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A `@triton.jit` function that the program calls, copied as source (a file cannot import `__main__`)."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Together:
    """Values along tile `var` of the domain that a call of `what` takes together, as a sum does, or may; `stored`: what comes of
    it is stored. Of no call: on how long tile `var` is, of the domain or of a walk, hangs what is stored at `loc`."""

    var: str
    what: str
    loc: Loc
    stored: bool = False


@dataclass(frozen=True, slots=True)
class TileProgram(Shown):
    name: str
    signature: Signature
    params: tuple[Param, ...]
    constants: tuple[Constant, ...]
    domain: str
    body: tuple[Op, ...]
    copy_program: CopyProgram | None
    helpers: tuple[Helper, ...]
    globals: tuple[tuple[str, bool | int | float | str], ...]
    """Module-level numbers and strings that the body uses, by name."""
    together: tuple[Together, ...]
    loc: Loc

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)


def walk(body: tuple[Op, ...]) -> Iterator[Op]:
    """Every op, in program order, those of nested bodies after the op that holds them."""
    for op in body:
        yield op
        for inner in _inside(op):
            yield from walk(inner)


def blocks(body: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    """The body, and every body nested in it."""
    yield body
    for op in walk(body):
        yield from _inside(op)


def _inside(op: Op) -> tuple[tuple[Op, ...], ...]:
    if isinstance(op, If):
        return op.body, op.orelse
    return (op.body,) if isinstance(op, (Tiles, Loop)) else ()


def tests_above(body: tuple[Op, ...], op: Op) -> tuple[tuple[Expr, bool], ...]:
    """The tests that an op of the body stands under, the outermost first, each with the branch taken."""
    holder = next(o for o in body if op in walk((o,)))
    if isinstance(holder, If) and holder != op:
        taken = op in walk(holder.body)
        return ((holder.test, taken), *tests_above(holder.body if taken else holder.orelse, op))
    return tests_above(holder.body, op) if isinstance(holder, (Tiles, Loop)) and holder != op else ()


def bound(op: Op) -> tuple[str, ...]:
    """The names that an op binds, but for those that its body does."""
    if isinstance(op, (Bounds, Holder, Load, Raw)):
        return () if op.name is None else (op.name,)
    if isinstance(op, Tiles):
        return (op.var,)
    if isinstance(op, Loop):
        return () if op.target is None else (op.target,)
    if isinstance(op, Tile):
        return tuple(n for n in op.names if n is not None)
    return op.target if isinstance(op, Let) else ()


def rewritten(body: tuple[Op, ...], change: Callable[[Op], Op]) -> tuple[Op, ...]:
    """The body with every op changed, those of nested bodies before the op that holds them."""

    def one(op: Op) -> Op:
        if isinstance(op, (Tiles, Loop)):
            op = replace(op, body=rewritten(op.body, change))
        elif isinstance(op, If):
            op = replace(op, body=rewritten(op.body, change), orelse=rewritten(op.orelse, change))
        return change(op)

    return tuple(one(op) for op in body)


def pointed(program: TileProgram) -> frozenset[str]:
    """The parameters that the program has raw pointers of."""
    return frozenset(op.param for op in walk(program.body) if isinstance(op, Raw) and op.param is not None)


def is_raw(program: TileProgram) -> bool:
    """Whether the program uses the escape hatch. A rank's number alone is a number like any other."""
    return any(isinstance(op, Raw) and op.what != "rank" for op in walk(program.body))


def has_dot(program: TileProgram) -> bool:
    """Whether it multiplies matrices, as matmuls and attention do."""
    return any(isinstance(op, Let) and "tl.dot(" in op.value.text for op in walk(program.body))


def tile_names(program: TileProgram) -> tuple[str | None, ...]:
    """The names that `tile_id` binds, one per listed axis of the domain."""
    return next(op.names for op in walk(program.body) if isinstance(op, Tile))
