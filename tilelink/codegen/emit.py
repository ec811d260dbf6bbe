"""The whole file: imports, helpers, one function per tile program, kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilelink.codegen.call_entry import emit_begin, emit_end, emit_epoch_signalled, one_block_kernels
from tilelink.codegen.function import Function
from tilelink.codegen.names import naming_of
from tilelink.codegen.scope import File, short
from tilelink.codegen.step import emit_deferred, emit_step
from tilelink.codegen.syntax import check_text
from tilelink.codegen.text import Row
from tilelink.codegen.trace import traced_kernel
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.kernel import AWAIT_FLAG, Advice, Arg, Checks, KernelDecl, KernelSource, Site, TraceLayout, TraceRole
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import KernelPlan, Plan, StepPlan
from tilelink.ir.program import At, Load, Loop, Param, Store, walk
from tilelink.ir.schedule import ONE_BLOCK
from tilelink.ir.shape import Dim

DEVICE_MODULE = {"simulated": "peer", "peer": "peer", "nvshmem": "nvshmem"}
REPORTS = {
    "channel": "{path} waits for {of}",
    "words": "{path} waits for the words of {of}",
    "ready": "{path} waits until {of} is staged",
    "entered": "{path} waits until the peers have entered the call",
    "left": "{path} waits until the peers have left the call",
    "made": "{of} waits for a tile of {path}",
    "below": "{path}: {of} in range",
    "holds": "{path}: {of}",
}
"""What a report says of a place, by the kind of that."""


def emit(plan: Plan, lowered: Lowered, checks: Checks = Checks(), *, traced: bool = False) -> KernelSource:
    """The emitted file of a plan: the same plan gives the same text. `checks`: what it looks after beside its work.
    `traced`: the variant that writes down when it does what.

    Raises:
        TilelinkError: TL406, something got into the text that is no kernel.
    """
    file = File(plan, lowered, checks, naming_of(plan), [])
    out = _Text([], [], [] if traced else None)
    for f in one_block_kernels(file):
        out.one_block(f, timed=f.name != AWAIT_FLAG)
    for kernel in plan.kernels:
        _write_kernel(out, file, kernel)
    blocks = ["from tilelink.device import blocks"] if any("blocks." in line for line, _ in out.rows) else []
    rows = [(line, None) for line in _head(plan, file.sites, blocks)] + out.rows
    text = "\n".join(line for line, _ in rows) + "\n"
    check_text(text, plan.wiring.name)
    lines = tuple((i, loc) for i, (_, loc) in enumerate(rows, 1) if loc is not None)
    # A kernel of several roles begins and ends as the last of them.
    functions = {k.name: k.roles[-1][0] for k in plan.kernels}
    functions |= {name: path for of in (file.naming.functions, file.naming.drivers) for path, name in of.items()}
    return KernelSource(
        name=plan.wiring.name,
        text=text,
        kernels=tuple(out.kernels),
        lines=lines,
        functions=tuple(functions.items()),
        sites=tuple(file.sites),
        traces=tuple(out.traces or ()),
        advice=tuple(_advice(plan)),
    )


def _head(plan: Plan, sites: Sequence[Site], imports: list[str]) -> list[str]:
    out = [
        f'"""{plan.wiring.name}: {plan.wiring.signature}',
        "",
        "Emitted by tilelink; how each tile program runs:",
        "",
    ]
    width = max(len(s.path) for s in plan.steps)
    out += [f"    {s.path.ljust(width)}  {s}" for s in plan.steps]
    if sites:
        out += ["", "Reports (`watch_at`) name these places by number:", ""]
    for n, site in enumerate(sites):
        place = f" ({short(site.loc)})" if site.loc is not None else ""
        out.append(f"    {n}  {REPORTS[site.kind].format(path=site.path, of=site.of)}{place}")
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

    def function(self, f: Function) -> None:
        """A function that a kernel calls."""
        self._write(f.name, [*f.leading, *map(_parameter, f.args)], "@triton.jit", f.lines)

    def kernel(self, decl: KernelDecl, lines: Sequence[Row]) -> None:
        self._write(decl.name, [_parameter(a) for a in decl.args], _decorator(decl.args), lines)
        self.kernels.append(decl)

    def one_block(self, f: Function, *, timed: bool) -> None:
        """A kernel of one block."""
        if self.traces is not None and timed:
            found, layout = traced_kernel(f.name, {f.name: TraceRole(f.name, 1, F.of(1))}, {f.name: f})
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
def _write_kernel(text: _Text, file: File, kernel: KernelPlan) -> None:
    plan, lowered, names = file.plan, file.lowered, file.naming.functions
    found = {f.name: f for path, _ in kernel.roles for f in emit_step(file, plan.step(path))}
    stores_async = any(f.stores_async for f in found.values())
    fused = (plan.step(p) for path, _ in kernel.roles for p in plan.step(path).fused)
    deferred = [step for step in fused if step.deferred]
    tails = [emit_deferred(file, step) for step in deferred]
    found |= {f.name: f for of in zip(*tails, strict=True) for f in of}
    begins, ends = list[Function](), list[Function]()
    if lowered.entry == kernel.name:
        begins.append(emit_epoch_signalled(file) if lowered.by_epoch else emit_begin(file))
    if lowered.exit == kernel.name:
        ends.append(emit_end(file, stores_async=stores_async))
    if text.traces is not None:  # with clocks, but for what begins and ends the call
        found, layout = traced_kernel(kernel.name, _trace_roots(file, kernel, deferred), found)
        text.traces.append(layout)
    roots = [names[path] for path, _ in kernel.roles]
    roles, drivers = [found[n] for n in roots], [found[driver.name] for _, driver in tails]
    several = roles if len(roles) > 1 else []
    for f in (*begins, *ends, *(f for name, f in found.items() if name not in roots), *several):
        text.function(f)
    args: dict[str, Arg] = {}
    for arg in (a for f in (*roles, *begins, *drivers, *ends) for a in f.args):
        args.setdefault(arg.name, arg)
    totals = [_known_total(file, path) for path in kernel.in_turn]
    known = [t for t in totals if t is not None]
    decl = KernelDecl(
        name=kernel.name,
        args=tuple(sorted(args.values(), key=lambda a: (a.kind == "constant", a.kind == "size"))),
        workers=kernel.workers,
        tiles=functools.reduce(F.maximum, known) if len(known) == len(totals) else None,
        extra=sum(n or 0 for _, n in kernel.beside),
        options=kernel.options,
    )
    first = ["worker = tl.program_id(0)"]
    if len(roles) == 1 or not kernel.beside or any("workers" in f.leading for f in (*begins, *drivers, *ends)):
        first.append("workers = tl.num_programs(0)")
    head, tail = [*first, *map(Function.call, begins)], map(Function.call, (*drivers, *ends))
    body = _dispatch(kernel, roles) if several else roles[0].lines
    text.kernel(decl, [*((0, line, None) for line in head), *body, *((0, line, None) for line in tail)])


def _dispatch(kernel: KernelPlan, roles: Sequence[Function]) -> Iterator[Row]:
    """The first workers move, the others compute (co-residency: movers come first)."""
    base, beside = 0, kernel.beside
    for f, (_, workers) in zip(roles, beside, strict=False):
        assert workers is not None
        yield 0, f"{'elif' if base else 'if'} worker < {base + workers}:", None
        yield 1, f.call(f"worker - {base}" if base else "worker", str(workers)), None
        base += workers
    if base:
        yield 0, "else:", None
    mine = (f"worker - {base}", f"tl.num_programs(0) - {base}") if base else ("worker", "workers")
    for f in roles[len(beside) :]:
        yield int(base > 0), f.call(*mine), None


def _trace_roots(file: File, kernel: KernelPlan, deferred: Sequence[StepPlan]) -> dict[str, TraceRole]:
    names, drivers = file.naming.functions, file.naming.drivers
    roles = [(path, workers, 0) for path, workers in kernel.beside]
    roles += [(path, None, turn) for turn, path in enumerate(kernel.in_turn)]
    roots = {names[p]: TraceRole(names[p], workers, _known_total(file, p), turn=turn) for p, workers, turn in roles}
    for turn, step in enumerate(deferred, len(kernel.in_turn)):
        work_indices = file.lowered.loop(step.path).total * step.subtiles
        roots[drivers[step.path]] = TraceRole(names[step.path], None, work_indices, turn=turn, drawn=True)
    return roots


def _known_total(file: File, path: str) -> F.Formula | None:
    """How many tiles a step has, if data does not say."""
    loop = file.lowered.loop(path)
    return None if loop.by_data is not None else loop.total


# -------------------------------------------------------------------------------------------------------------- advice
def _advice(plan: Plan) -> Iterator[Advice]:
    """What is likely meant where Triton does not accept a line: for each `range` loop by whose variable an axis that has tiles is
    indexed."""
    for program in dict.fromkeys(s.step.program for s in plan.steps):
        for loop in (op for op in walk(program.body) if isinstance(op, Loop) and op.target is not None):
            inside = [*walk(loop.body)]
            found: list[tuple[int, Param]] = []
            for op in (op for op in inside if isinstance(op, (Load, Store))):
                param = program.param(op.param)
                for k, entry in enumerate(op.index):
                    if isinstance(entry, At) and loop.target in entry.expr.names:
                        size = param.shape.axes[k].size
                        found += [(k, param)] if isinstance(size, Dim) and not size.unit else []
            if found:
                k, param = min(found, key=lambda one: one[0])
                hint = (
                    f"for tiles of `{param.shape.axes[k].name}` write "
                    f"`for {loop.target} in tl.tiles({param.name}, axis={k})`: "
                    f"what `range` counts are single positions, along which a block has no axis"
                )
                yield Advice(loop.loc.file, loop.loc.line, max(op.loc.line for op in inside), hint)
