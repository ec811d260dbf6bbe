"""The whole file: imports, helpers, one function per tile program, kernels."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilelink.codegen.advice import advice_of
from tilelink.codegen.call_entry import (
    emit_await,
    emit_begin,
    emit_brief,
    emit_end,
    emit_enter,
    emit_leave,
    emit_ready,
)
from tilelink.codegen.function import Function
from tilelink.codegen.names import naming_of
from tilelink.codegen.reports import Reports, short
from tilelink.codegen.scope import File
from tilelink.codegen.step import emit_behind, emit_step
from tilelink.codegen.syntax import check_text
from tilelink.codegen.trace import Root, traced_kernel
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.host import Enter, Leave, Stage, Transfer
from tilelink.ir.kernel import Arg, Checks, KernelDecl, KernelSource, TraceLayout
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import KernelPlan, Plan, StepPlan

DEVICE_MODULE = {"simulated": "peer", "peer": "peer", "nvshmem": "nvshmem"}


def emit(plan: Plan, lowered: Lowered, checks: Checks = Checks(), *, traced: bool = False) -> KernelSource:
    """The emitted file of a plan: the same plan gives the same text. `checks`: what it looks after beside its work.
    `traced`: the variant that writes down when it does what.

    Raises:
        TilelinkError: TL406, something got into the text that is no kernel.
    """
    reports = Reports(checks)
    file = File(plan, lowered, reports)
    rows: list[tuple[str, Loc | None]] = []
    declared: list[KernelDecl] = []
    written: set[str] = set()
    traces: list[TraceLayout] | None = [] if traced else None
    if any(isinstance(h, Enter) and not h.kernels for h in plan.host):
        declared.append(_write_single(rows, emit_enter(file), traces))
    if any(isinstance(h, Stage) for h in plan.host):
        declared.append(_write_single(rows, emit_ready(file), traces))
    if any(isinstance(h, Leave) for h in plan.host):
        declared.append(_write_single(rows, emit_leave(file), traces))
    if any(isinstance(h, Transfer) for h in plan.host):
        declared.append(_write_single(rows, emit_await(file)))
    for kernel in plan.kernels:
        declared.append(_write_kernel(rows, file, kernel, written, traces))
    rows = [(line, None) for line in _head(plan, reports)] + rows
    if any("blocks." in line for line, _ in rows):
        at = next(i for i, (line, _) in enumerate(rows) if line.startswith("from tilelink.device import"))
        rows.insert(at, ("from tilelink.device import blocks", None))
    text = "\n".join(line for line, _ in rows) + "\n"
    check_text(text, plan.wiring.name)
    lines = tuple((i, loc) for i, (_, loc) in enumerate(rows, 1) if loc is not None)
    return KernelSource(
        name=plan.wiring.name,
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        kernels=tuple(declared),
        lines=lines,
        functions=_functions(plan),
        sites=tuple(reports.sites),
        traces=tuple(traces or ()),
        advice=advice_of(plan),
    )


def _functions(plan: Plan) -> tuple[tuple[str, str], ...]:
    """A kernel of several roles begins and ends as the last of them."""
    naming = naming_of(plan)
    kernels = {k.name: k.roles[-1][0] for k in plan.kernels}
    by_path = (*naming.functions.items(), *naming.drivers.items())
    return tuple((kernels | {name: path for path, name in by_path}).items())


def _head(plan: Plan, reports: Reports) -> list[str]:
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
    out.append(f"from tilelink.device import {DEVICE_MODULE[plan.topology.world]} as shmem")
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
    names = [f'"{a.name}"' for a in args if _is_place(a) or a.kind in ("number", "credits")]
    return f"@triton.jit(do_not_specialize=[{', '.join(names)}])" if names else "@triton.jit"


def _is_place(arg: Arg) -> bool:
    """Whether it is this rank's number, or its coordinate on an axis of ranks."""
    return arg.kind == "size" and arg.of == "rank"


def _write(rows: list[tuple[str, Loc | None]], f: Function, head: list[str], decorator: str, first: list[str]) -> None:
    rows += [("", None), ("", None), (decorator, None)]
    rows += [(line, None) for line in head]
    rows += [("    " + line, None) for line in first]
    last: Loc | None = None
    for depth, text, loc in f.lines:
        if loc is not None and (last is None or (loc.file, loc.line) != (last.file, last.line)):
            rows.append(("    " * (depth + 1) + f"# {short(loc)}  {loc.source_line().strip()}".rstrip(), loc))
            last = loc
        rows.append(("    " * (depth + 1) + text if text else "", loc))


def _write_called(rows: list[tuple[str, Loc | None]], f: Function) -> None:
    """A function that a kernel calls."""
    _write(rows, f, _signature(f.name, [*f.leading, *map(_parameter, f.args)]), "@triton.jit", [])


def _write_single(
    rows: list[tuple[str, Loc | None]], f: Function, traces: list[TraceLayout] | None = None
) -> KernelDecl:
    """A one-block kernel."""
    if traces is not None:
        found, layout = traced_kernel(f.name, [Root(f.name, 1, F.of(1))], {f.name: f})
        f = found[f.name]
        traces.append(layout)
    _write(rows, f, _signature(f.name, [_parameter(a) for a in f.args]), _decorator(f.args), [])
    return KernelDecl(f.name, f.args, workers=1, tiles=None, extra=0, warps=1, stages=1)


def _write_kernel(
    rows: list[tuple[str, Loc | None]],
    file: File,
    kernel: KernelPlan,
    written: set[str],
    traces: list[TraceLayout] | None,
) -> KernelDecl:
    plan = file.plan
    functions: dict[str, Function] = {}
    for path, _ in kernel.roles:
        for f in emit_step(file, plan.step(path)):
            functions[f.name] = f
    frame = _frame(file, kernel, any(f.stores_async for f in functions.values()))
    naming = naming_of(plan)
    roots = [naming.functions[path] for path, _ in kernel.roles]
    if traces is not None:
        functions, frame, layout = _traced(file, kernel, functions, frame)
        traces.append(layout)
    args = _union([f for name, f in functions.items() if name in roots] + frame.called)
    functions |= frame.fused
    for f in (f for f in (frame.begin, frame.end) if f is not None):
        _write_called(rows, f)
    for name, f in functions.items():
        if name not in roots and name not in written:
            written.add(name)
            _write_called(rows, f)
    for f in frame.behind:
        _write_called(rows, f)
    if len(roots) == 1:
        f = functions[roots[0]]
        first = ["worker = tl.program_id(0)", "workers = tl.num_programs(0)", *_called(frame.begin)]
        last = [line for after in (*frame.behind, frame.end) for line in _called(after)]
        f = replace(f, lines=(*f.lines, *((0, line, None) for line in last)))
        _write(rows, f, _signature(kernel.name, [_parameter(a) for a in args]), _decorator(args), first)
    else:
        for name in roots:
            _write_called(rows, functions[name])
        parts = [(functions[n], w) for n, (_, w) in zip(roots, kernel.roles, strict=True)]
        _write_roles(rows, kernel, parts, args, frame)
    return _declare(file, kernel, args)


@dataclass(frozen=True, slots=True)
class Frame:
    """What a kernel does around its roles: begins the call, ends it, both, or neither; and the fused steps that come behind
    its tiles: `behind` takes them, `fused` does them."""

    begin: Function | None
    end: Function | None
    behind: tuple[Function, ...] = ()
    fused: Mapping[str, Function] = field(default_factory=dict[str, Function])

    @property
    def called(self) -> list[Function]:
        return [f for f in (self.begin, *self.behind, self.end) if f is not None]


def _frame(file: File, kernel: KernelPlan, stores_async: bool) -> Frame:
    plan = file.plan
    pairs = [emit_behind(file, s) for s in _behind(plan, kernel)]
    begin = emit_brief if file.lowered.by_epoch else emit_begin
    return Frame(
        begin(file) if file.lowered.entry == kernel.name else None,
        emit_end(file, stores_async=stores_async) if file.lowered.exit == kernel.name else None,
        tuple(driver for driver, _ in pairs),
        {does.name: does for _, does in pairs},
    )


def _called(f: Function | None) -> list[str]:
    if f is None:
        return []
    call = f"{f.name}({', '.join([*f.leading, *[a.name for a in f.args]])})"
    return [call if f.gives is None else f"{f.gives} = {call}"]


def _traced(
    file: File, kernel: KernelPlan, functions: dict[str, Function], frame: Frame
) -> tuple[dict[str, Function], Frame, TraceLayout]:
    """The same with clocks, but for what begins and ends the call."""
    behind = {f.name: f for f in frame.behind}
    found, layout = traced_kernel(kernel.name, _trace_roots(file, kernel), {**functions, **behind, **frame.fused})
    timed = replace(frame, behind=tuple(found[n] for n in behind), fused={n: found[n] for n in frame.fused})
    return {n: found[n] for n in functions}, timed, layout


def _trace_roots(file: File, kernel: KernelPlan) -> list[Root]:
    plan, naming = file.plan, naming_of(file.plan)
    names = naming.functions
    roots = [Root(names[path], workers, _known_total(file, path)) for path, workers in kernel.beside]
    roots += [Root(names[path], None, _known_total(file, path), turn) for turn, path in enumerate(kernel.in_turn)]
    for turn, step in enumerate(_behind(plan, kernel), len(kernel.in_turn)):
        tickets = step.own_tiles(plan.step(step.executor)) * step.pieces
        roots.append(Root(naming.drivers[step.path], None, tickets, turn, names[step.path]))
    return roots


def _behind(plan: Plan, kernel: KernelPlan) -> list[StepPlan]:
    """The steps whose tiles come behind those of the kernel's roles."""
    return [plan.step(p) for path, _ in kernel.roles for p in plan.step(path).fused if plan.step(p).behind]


def _known_total(file: File, path: str) -> F.Formula | None:
    """How many tiles a step has, if data does not say."""
    loop = file.lowered.loop(path)
    return None if loop.by_data is not None else loop.total


def _union(functions: list[Function]) -> tuple[Arg, ...]:
    found: dict[str, Arg] = {}
    for f in functions:
        for a in f.args:
            found.setdefault(a.name, a)
    return tuple(sorted(found.values(), key=lambda a: (a.kind == "constant", a.kind == "size")))


def _write_roles(
    rows: list[tuple[str, Loc | None]],
    kernel: KernelPlan,
    roles: list[tuple[Function, int | None]],
    args: tuple[Arg, ...],
    frame: Frame,
) -> None:
    """The kernel of several roles: the first workers move, the others compute (co-residency: movers come first)."""
    rows += [("", None), ("", None), (_decorator(args), None)]
    rows += [(line, None) for line in _signature(kernel.name, [_parameter(a) for a in args])]
    rows.append(("    worker = tl.program_id(0)", None))
    if any("workers" in f.leading for f in frame.called) or not kernel.beside:
        rows.append(("    workers = tl.num_programs(0)", None))
    rows += [(f"    {line}", None) for line in _called(frame.begin)]
    base = 0
    for k, (f, workers) in enumerate(roles[: len(kernel.beside)]):
        assert workers is not None
        rows.append((f"    {'if' if k == 0 else 'elif'} worker < {base + workers}:", None))
        mine = f"worker - {base}" if base else "worker"
        rows.append(
            (f"        {f.name}({', '.join([mine, str(workers), *f.leading[2:], *[a.name for a in f.args]])})", None)
        )
        base += workers
    if base:
        rows.append(("    else:", None))
    indent = "        " if base else "    "
    for f, _ in roles[len(kernel.beside) :]:
        mine = [f"worker - {base}", f"tl.num_programs(0) - {base}"] if base else ["worker", "workers"]
        rows.append((f"{indent}{f.name}({', '.join([*mine, *f.leading[2:], *[a.name for a in f.args]])})", None))
    rows += [(f"    {line}", None) for after in (*frame.behind, frame.end) for line in _called(after)]


def _declare(file: File, kernel: KernelPlan, args: tuple[Arg, ...]) -> KernelDecl:
    totals = [_known_total(file, path) for path in kernel.in_turn]
    known = [t for t in totals if t is not None]
    return KernelDecl(
        name=kernel.name,
        args=args,
        workers=kernel.workers,
        tiles=functools.reduce(F.maximum, known) if len(known) == len(totals) else None,
        extra=sum(n or 0 for _, n in kernel.beside),
        warps=kernel.warps,
        stages=kernel.stages,
    )
