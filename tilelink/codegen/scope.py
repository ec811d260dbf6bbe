"""The scope of one emitted function: its parameters, names, and where its tiles lie."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink.codegen.text import RESERVED, Formulas, Lines, Names
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.plan import GridAxis, Plan, StepPlan, here, part
from tilelink.ir.program import Bounds, Holder, Let, Load, Loop, Tile, Tiles, walk

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


@dataclass(slots=True)
class TileNames:
    """The emitted names of one tile: `begin`, `end`, its lanes `at` and their mask `inside`; `grid` is its partition."""

    begin: str
    end: str
    at: str
    inside: str
    grid: GridAxis
    extent: int
    used: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Scope:
    """What is known while one function is being emitted."""

    plan: Plan
    step: StepPlan
    args: dict[str, Arg] = field(default_factory=dict[str, Arg])
    tiles: dict[str, TileNames] = field(default_factory=dict[str, TileNames])
    wholes: dict[str, TileNames] = field(default_factory=dict[str, TileNames])
    replaced: dict[str, str] = field(default_factory=dict[str, str])
    forwarded: dict[str, str] = field(default_factory=dict[str, str])
    formulas: Formulas = field(default_factory=Formulas)
    lines: Lines = field(default_factory=Lines)
    names: Names = field(default_factory=lambda: Names(set()))
    uses_rank: bool = False
    async_tensors: set[str] = field(default_factory=set[str])
    stored_async: bool = False

    def arg(self, arg: Arg) -> str:
        """Declare a parameter (once) and give its name."""
        self.args.setdefault(arg.name, arg)
        return arg.name

    def tensor(self, name: str) -> str:
        return self.arg(Arg(name, "tensor", name))

    def context(self, tensor: str) -> str:
        return self.arg(Arg(context_name(self.plan, tensor), "context", tensor))

    def epoch(self) -> str:
        return self.arg(Arg("epoch_at", "state", "epoch"))

    def text(self, formula: F.Like, outer: int = 0) -> str:
        return self.formulas.text(formula, outer)

    def stride(self, tensor: str, axis: int, extents: tuple[Formula, ...]) -> Formula:
        """Elements from one position to the next along stored axis `axis`."""
        buffer = self.plan.buffer(tensor)
        if buffer.space == "argument":
            if self.plan.layout(tensor).unit_axis == axis:
                return F.of(1)
            name = f"{tensor}_stride_{axis}"
            self.arg(Arg(name, "stride", tensor, axis=axis))
            return Sym(name)
        out: Formula = F.of(1)
        for extent in extents[axis + 1 :]:
            out = out * extent
        return out


def context_name(plan: Plan, tensor: str) -> str:
    """Tensors of the workspace share one context; an argument of `tilelink.empty` brings its own."""
    own = plan.buffer(tensor).space == "argument" and not plan.buffer(tensor).staged
    return f"{tensor}_ctx" if own else "ctx"


def open_scope(plan: Plan, step: StepPlan) -> Scope:
    """A scope in which the user's names, the tensors' and the sizes' are taken."""
    taken = set(RESERVED) | {t.name for t in plan.wiring.tensors} | set(plan.wiring.sizes)
    for op in walk(step.step.program.body):
        if isinstance(op, (Bounds, Holder, Load)):
            taken.add(op.name)
        elif isinstance(op, Let):
            taken |= set(op.target)
        elif isinstance(op, Tiles):
            taken.add(op.var)
        elif isinstance(op, Loop) and op.target:
            taken.add(op.target)
        elif isinstance(op, Tile):
            taken |= {n for n in op.names if n}
    scope = Scope(plan, step, names=Names(taken))
    _name_sizes(scope)
    return scope


def _name_sizes(scope: Scope) -> None:
    """Names for what formulas repeat: parts, local lengths, tiles per part."""
    formulas = scope.formulas
    for tensor in scope.plan.wiring.tensors:
        for axis in tensor.axes:
            if axis.name == "R" or isinstance(axis.size, F.Const):
                continue
            label = _label(axis.size, axis.name)
            formulas.define(part(axis.size), f"{label}_part")
            if axis.split == "R":
                formulas.define(here(axis.size), f"{label}_here")
                formulas.define(F.Sym("rank") * part(axis.size), f"{label}_first")
    for grid in (*scope.step.grid, *scope.step.loops):
        if isinstance(grid.size, F.Const) or grid.kind == "own":
            continue
        label = _label(grid.size, grid.dim)
        if grid.kind == "cut":
            formulas.define(grid.per, f"{label}_per_part")
        formulas.define(grid.count, f"{grid.dim}_tiles" if grid.dim.isidentifier() and grid.dim[0] != "_" else "tiles")
    for channel in scope.plan.channels:
        for axis in channel.axes:
            if axis.kind in ("cut", "part"):
                formulas.define(axis.per, f"{channel.tensor}_per_part")


def _label(size: Formula, dim: str) -> str:
    return size.name if isinstance(size, Sym) else dim.strip("_") or "n"
