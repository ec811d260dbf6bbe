"""The whole file: imports, helpers, one function per tile program, kernels."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilelink.codegen.call_entry import (
    emit_await,
    emit_begin,
    emit_call_entry,
    emit_call_exit,
    emit_end,
    emit_epoch_signalled,
    emit_ready,
)
from tilelink.codegen.function import Function
from tilelink.codegen.names import naming_of
from tilelink.codegen.scope import File, Reports, short
from tilelink.codegen.step import emit_deferred, emit_step
from tilelink.codegen.syntax import check_text
from tilelink.codegen.text import Row
from tilelink.codegen.trace import Root, traced_kernel
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.kernel import Advice, Arg, Checks, KernelDecl, KernelSource, TraceLayout
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import CallEntry, CallExit, KernelPlan, Plan, Stage, StepPlan, Transfer
from tilelink.ir.program import At, Load, Loop, Param, Store, TileProgram, walk
from tilelink.ir.schedule import ONE_BLOCK
from tilelink.ir.shape import Dim

DEVICE_MODULE = {"simulated": "peer", "peer": "peer", "nvshmem": "nvshmem"}


def emit(plan: Plan, lowered: Lowered, checks: Checks = Checks(), *, traced: bool = False) -> KernelSource:
    """The emitted file of a plan: the same plan gives the same text. `checks`: what it looks after beside its work.
    `traced`: the variant that writes down when it does what.

    Raises:
        TilelinkError: TL406, something got into the text that is no kernel.
    """
    reports = Reports(checks)
    file = File(plan, lowered, reports, naming_of(plan))
    out = _Text([], [], [] if traced else None)
    if any(isinstance(h, CallEntry) for h in plan.host) and not lowered.entry:
        out.one_block(emit_call_entry(file))
    if any(isinstance(h, Stage) for h in plan.host):
        out.one_block(emit_ready(file))
    if any(isinstance(h, CallExit) for h in plan.host):
        out.one_block(emit_call_exit(file))
    if any(isinstance(h, Transfer) for h in plan.host):
        out.one_block(emit_await(file), timed=False)
    for kernel in plan.kernels:
        _write_kernel(out, file, kernel)
    blocks = ["from tilelink.device import blocks"] if any("blocks." in line for line, _ in out.rows) else []
    rows = [(line, None) for line in _head(plan, reports, blocks)] + out.rows
    text = "\n".join(line for line, _ in rows) + "\n"
    check_text(text, plan.wiring.name)
    lines = tuple((i, loc) for i, (_, loc) in enumerate(rows, 1) if loc is not None)
    return KernelSource(
        name=plan.wiring.name,
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        kernels=tuple(out.kernels),
        lines=lines,
        functions=_functions(file),
        sites=tuple(reports.sites),
        traces=tuple(out.traces or ()),
        advice=advice_of(plan),
    )


def _functions(file: File) -> tuple[tuple[str, str], ...]:
    """A kernel of several roles begins and ends as the last of them."""
    kernels = {k.name: k.roles[-1][0] for k in file.plan.kernels}
    by_path = (*file.naming.functions.items(), *file.naming.drivers.items())
    return tuple((kernels | {name: path for path, name in by_path}).items())


def _head(plan: Plan, reports: Reports, imports: list[str]) -> list[str]:
    out = [
        f'"""{plan.wiring.name}: {plan.wiring.signature}',
        "",
        "Emitted by tilelink; how each tile program runs:",
        "",
    ]
    width = max(len(s.path) for s in plan.steps)
    out += [f"    {s.path.ljust(width)}  {s}" for s in plan.steps]
    out += reports.described()
    out += ['"""', "", "import triton", "import triton.language as tl", ""]
    out += imports
    out.append(f"from tilelink.device import {DEVICE_MODULE[plan.topology.backend]} as shmem")
    constants: dict[str, object] = {}
    helpers: dict[str, str] = {}
    for s in plan.steps:
        constants |= dict(s.step.program.globals)
        helpers |= {h.name: h.source for h in s.step.program.helpers}
    if constants:
        out.append("")
        out += [f"{n} = tl.constexpr({_literal(v)})" for n, v in sorted(constants.items())]
    for source in helpers.values():
        out += ["", "", *source.rstrip().splitlines()]
    return out


def _literal(value: object) -> str:
    """A constant as Python text; infinities and NaN have no literal of their own."""
    finite = not isinstance(value, float) or value - value == 0
    return repr(value) if finite else f'float("{value}")'


@dataclass(slots=True)
class _Text:
    """The lines of the file, each with the user's line that it comes from; the kernels in it, and what functions of the traced
    variant write (None: it is another one)."""

    rows: list[tuple[str, Loc | None]]
    kernels: list[KernelDecl]
    traces: list[TraceLayout] | None
    written: set[str] = field(default_factory=set[str])

    def function(self, f: Function) -> None:
        """A function that a kernel calls; once, however many do."""
        if f.name not in self.written:
            self.written.add(f.name)
            self._write(f.name, [*f.leading, *map(_parameter, f.args)], "@triton.jit", f.lines)

    def kernel(self, decl: KernelDecl, lines: Sequence[Row]) -> None:
        self._write(decl.name, [_parameter(a) for a in decl.args], _decorator(decl.args), lines)
        self.kernels.append(decl)

    def one_block(self, f: Function, *, timed: bool = True) -> None:
        """A kernel of one block."""
        if self.traces is not None and timed:
            found, layout = traced_kernel(f.name, [Root(f.name, 1, F.of(1))], {f.name: f})
            f = found[f.name]
            self.traces.append(layout)
        self.kernel(KernelDecl(f.name, f.args, workers=1, tiles=None, extra=0, options=ONE_BLOCK), f.lines)

    def _write(self, name: str, parameters: list[str], decorator: str, lines: Sequence[Row]) -> None:
        self.rows += [(line, None) for line in ("", "", decorator, *_signature(name, parameters))]
        last: Loc | None = None
        for depth, text, loc in lines:
            indent = "    " * (depth + 1)
            if loc is not None and (last is None or (loc.file, loc.line) != (last.file, last.line)):
                self.rows.append((f"{indent}# {short(loc)}  {loc.source_line().strip()}".rstrip(), loc))
                last = loc
            self.rows.append((indent + text if text else "", loc))


def _signature(name: str, parameters: list[str]) -> list[str]:
    one = f"def {name}({', '.join(parameters)}):"
    if len(one) <= 110:
        return [one]
    lines, row = [f"def {name}("], "   "
    for p in parameters:
        if len(row) + len(p) + 2 > 108:
            lines.append(row)
            row = "   "
        row += f" {p},"
    return [*lines, row, "):"]


def _parameter(arg: Arg) -> str:
    return f"{arg.name}: tl.constexpr" if arg.kind == "constant" else arg.name


def _decorator(args: tuple[Arg, ...]) -> str:
    """The rank differs between processes that share a compiled kernel: it must not be specialised on. Nor what differs
    between the transfers that start one kernel, or between calls."""
    varies = (a for a in args if a.kind in ("number", "credits") or (a.kind == "size" and a.of == "rank"))
    names = [f'"{a.name}"' for a in varies]
    return f"@triton.jit(do_not_specialize=[{', '.join(names)}])" if names else "@triton.jit"


# ------------------------------------------------------------------------------------------------------------- kernels
@dataclass(frozen=True, slots=True)
class _Kernel:
    """The functions of a kernel: those of its `roles`, and what they call; `begin`, `end`: of the call, if it does that;
    `deferred`: those that take the tiles of deferred epilogues, and what these call."""

    plan: KernelPlan
    roles: tuple[Function, ...]
    called: tuple[Function, ...]
    begin: Function | None
    end: Function | None
    deferred: tuple[tuple[Function, Function], ...]

    @staticmethod
    def of(file: File, kernel: KernelPlan) -> _Kernel:
        plan, lowered, naming = file.plan, file.lowered, file.naming
        functions = {f.name: f for path, _ in kernel.roles for f in emit_step(file, plan.step(path))}
        roots = [naming.functions[path] for path, _ in kernel.roles]
        deferred = tuple(emit_deferred(file, s) for s in _deferred(plan, kernel))
        begin, end = None, None
        if lowered.entry == kernel.name:
            begin = emit_epoch_signalled(file) if lowered.by_epoch else emit_begin(file)
        if lowered.exit == kernel.name:
            end = emit_end(file, stores_async=any(f.stores_async for f in functions.values()))
        called = tuple(f for name, f in functions.items() if name not in roots)
        return _Kernel(kernel, tuple(functions[n] for n in roots), called, begin, end, deferred)

    @property
    def around(self) -> tuple[Function, ...]:
        """What its own lines call beside its roles."""
        found = (self.begin, *(driver for driver, _ in self.deferred), self.end)
        return tuple(f for f in found if f is not None)

    @property
    def args(self) -> tuple[Arg, ...]:
        found: dict[str, Arg] = {}
        for arg in (a for f in (*self.roles, *self.around) for a in f.args):
            found.setdefault(arg.name, arg)
        return tuple(sorted(found.values(), key=lambda a: (a.kind == "constant", a.kind == "size")))

    def timed(self, file: File) -> tuple[_Kernel, TraceLayout]:
        """The same with clocks, but for what begins and ends the call."""
        functions = (*self.roles, *self.called, *(f for pair in self.deferred for f in pair))
        found, layout = traced_kernel(self.plan.name, _trace_roots(file, self.plan), {f.name: f for f in functions})
        roles, called = (tuple(found[f.name] for f in some) for some in (self.roles, self.called))
        deferred = tuple((found[driver.name], found[does.name]) for driver, does in self.deferred)
        return replace(self, roles=roles, called=called, deferred=deferred), layout

    def lines(self) -> tuple[Row, ...]:
        """Of a kernel of several roles the first workers move, the others compute (co-residency: movers come first)."""
        last = [_call(f) for f in self.around if f is not self.begin]
        first = ["worker = tl.program_id(0)"]
        if len(self.roles) == 1 or not self.plan.beside or any("workers" in f.leading for f in self.around):
            first.append("workers = tl.num_programs(0)")
        first += [_call(self.begin)] if self.begin is not None else []
        body = self.roles[0].lines if len(self.roles) == 1 else tuple(self._dispatch())
        return (*((0, line, None) for line in first), *body, *((0, line, None) for line in last))

    def _dispatch(self) -> Iterator[Row]:
        base, beside = 0, self.plan.beside
        for f, (_, workers) in zip(self.roles, beside, strict=False):
            assert workers is not None
            yield 0, f"{'elif' if base else 'if'} worker < {base + workers}:", None
            yield 1, _call(f, f"worker - {base}" if base else "worker", str(workers)), None
            base += workers
        if base:
            yield 0, "else:", None
        mine = (f"worker - {base}", f"tl.num_programs(0) - {base}") if base else ("worker", "workers")
        for f in self.roles[len(beside) :]:
            yield int(base > 0), _call(f, *mine), None


def _call(f: Function, *mine: str) -> str:
    """A call of a function; `mine`: what is passed for the first of what it takes."""
    call = f"{f.name}({', '.join([*mine, *f.leading[len(mine) :], *[a.name for a in f.args]])})"
    return call if f.gives is None else f"{f.gives} = {call}"


def _write_kernel(text: _Text, file: File, kernel: KernelPlan) -> None:
    found = _Kernel.of(file, kernel)
    if text.traces is not None:
        found, layout = found.timed(file)
        text.traces.append(layout)
    several = found.roles if len(found.roles) > 1 else ()
    begins, ends = ([f] if f is not None else [] for f in (found.begin, found.end))
    drivers, does = [driver for driver, _ in found.deferred], [does for _, does in found.deferred]
    for f in (*begins, *ends, *found.called, *does, *drivers, *several):
        text.function(f)
    totals = [_known_total(file, path) for path in kernel.in_turn]
    known = [t for t in totals if t is not None]
    decl = KernelDecl(
        name=kernel.name,
        args=found.args,
        workers=kernel.workers,
        tiles=functools.reduce(F.maximum, known) if len(known) == len(totals) else None,
        extra=sum(n or 0 for _, n in kernel.beside),
        options=kernel.options,
    )
    text.kernel(decl, found.lines())


def _trace_roots(file: File, kernel: KernelPlan) -> list[Root]:
    names = file.naming.functions
    roots = [Root(names[path], workers, _known_total(file, path)) for path, workers in kernel.beside]
    roots += [Root(names[path], None, _known_total(file, path), turn) for turn, path in enumerate(kernel.in_turn)]
    for turn, step in enumerate(_deferred(file.plan, kernel), len(kernel.in_turn)):
        work_indices = file.lowered.loop(step.path).total * step.subtiles
        roots.append(Root(file.naming.drivers[step.path], None, work_indices, turn, names[step.path]))
    return roots


def _deferred(plan: Plan, kernel: KernelPlan) -> list[StepPlan]:
    """The deferred epilogues of a kernel's roles."""
    return [plan.step(p) for path, _ in kernel.roles for p in plan.step(path).fused if plan.step(p).deferred]


def _known_total(file: File, path: str) -> F.Formula | None:
    """How many tiles a step has, if data does not say."""
    loop = file.lowered.loop(path)
    return None if loop.by_data is not None else loop.total


# -------------------------------------------------------------------------------------------------------------- advice
def advice_of(plan: Plan) -> tuple[Advice, ...]:
    """For each `range` loop of the plan's programs by whose variable a tiled axis is indexed."""
    programs = dict.fromkeys(s.step.program for s in plan.steps)
    return tuple(a for p in programs for op in walk(p.body) if isinstance(op, Loop) for a in _of_loop(p, op))


def _of_loop(program: TileProgram, loop: Loop) -> tuple[Advice, ...]:
    if loop.target is None:
        return ()
    inside = [*walk(loop.body)]
    found = [
        (k, param)
        for op in inside
        if isinstance(op, (Load, Store))
        for param in (program.param(op.param),)
        for k, entry in enumerate(op.index)
        if isinstance(entry, At) and loop.target in entry.expr.names and _tiled(param, k)
    ]
    if not found:
        return ()
    k, param = min(found, key=lambda one: one[0])
    hint = (
        f"for tiles of `{param.shape.axes[k].name}` write `for {loop.target} in tl.tiles({param.name}, axis={k})`: "
        f"what `range` counts are single positions, along which a block has no axis"
    )
    return (Advice(loop.loc.file, loop.loc.line, max(op.loc.line for op in inside), hint),)


def _tiled(param: Param, k: int) -> bool:
    size = param.shape.axes[k].size
    return isinstance(size, Dim) and not size.unit
