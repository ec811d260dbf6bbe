"""The whole file: imports, helpers, one function per tile program, kernels."""

from __future__ import annotations

import hashlib

from tilelink.codegen.enter import emit_await, emit_enter, emit_leave, emit_ready
from tilelink.codegen.naming import naming_of
from tilelink.codegen.step import Function, emit_step
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.kernel import Arg, KernelDecl, KernelSource
from tilelink.ir.plan import Enter, KernelPlan, Leave, Plan, Stage, StepPlan, Transfer

DEVICE_MODULE = {"simulated": "peer", "peer": "peer", "nvshmem": "nvshmem"}


def emit(plan: Plan) -> KernelSource:
    """The emitted file of a plan: the same plan gives the same text."""
    rows: list[tuple[str, Loc | None]] = [(line, None) for line in _head(plan)]
    declared: list[KernelDecl] = []
    written: set[str] = set()
    if any(isinstance(h, Enter) for h in plan.host):
        declared.append(_write_single(rows, emit_enter(plan)))
    if any(isinstance(h, Stage) for h in plan.host):
        declared.append(_write_single(rows, emit_ready(plan)))
    if any(isinstance(h, Leave) for h in plan.host):
        declared.append(_write_single(rows, emit_leave(plan)))
    if any(isinstance(h, Transfer) for h in plan.host):
        declared.append(_write_single(rows, emit_await(plan)))
    for kernel in plan.kernels:
        declared.append(_write_kernel(rows, plan, kernel, written))
    text = "\n".join(line for line, _ in rows) + "\n"
    lines = tuple((i, loc) for i, (_, loc) in enumerate(rows, 1) if loc is not None)
    return KernelSource(
        name=plan.wiring.name,
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        kernels=tuple(declared),
        lines=lines,
    )


def _head(plan: Plan) -> list[str]:
    out = [
        f'"""{plan.wiring.name}: {plan.wiring.signature}',
        "",
        "Emitted by tilelink; how each tile program runs:",
        "",
    ]
    width = max(len(s.path) for s in plan.steps)
    out += [f"    {s.path.ljust(width)}  {describe(s)}" for s in plan.steps]
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


def describe(s: StepPlan) -> str:
    """One line on how a step runs."""
    tiles = " ".join(f"{g.dim}={g.tile}" for g in (*s.grid, *s.loops) if g.tile and g.kind not in ("unit", "own"))
    direction = {True: "push, ", False: "pull, ", None: ""}[s.push]
    if s.engine == "fused":
        return f"{direction}fused into {s.into}"
    order = f", order {' '.join(s.order_names)}"
    if s.engine == "stream":
        return f"{direction}copy engine{', tiles ' + tiles if tiles else ''}{order}"
    return f"{direction}{s.workers} workers{', tiles ' + tiles if tiles else ''}{order}"


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
    """The rank differs between processes that share a compiled kernel: it must not be specialised on."""
    return '@triton.jit(do_not_specialize=["rank"])' if any(a.name == "rank" for a in args) else "@triton.jit"


def _write(rows: list[tuple[str, Loc | None]], f: Function, head: list[str], decorator: str, first: list[str]) -> None:
    rows += [("", None), ("", None), (decorator, None)]
    rows += [(line, None) for line in head]
    rows += [("    " + line, None) for line in first]
    last: Loc | None = None
    for depth, text, loc in f.lines:
        if loc is not None and (last is None or (loc.file, loc.line) != (last.file, last.line)):
            rows.append(("    " * (depth + 1) + f"# {_short(loc)}  {loc.source_line().strip()}".rstrip(), loc))
            last = loc
        rows.append(("    " * (depth + 1) + text if text else "", loc))


def _short(loc: Loc) -> str:
    return f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}"


def _write_single(rows: list[tuple[str, Loc | None]], f: Function) -> KernelDecl:
    """A one-block kernel."""
    _write(rows, f, _signature(f.name, [_parameter(a) for a in f.args]), _decorator(f.args), [])
    return KernelDecl(f.name, f.args, workers=1, tiles=None, extra=0, warps=1, stages=1)


def _write_kernel(rows: list[tuple[str, Loc | None]], plan: Plan, kernel: KernelPlan, written: set[str]) -> KernelDecl:
    functions: dict[str, Function] = {}
    for path, _ in kernel.roles:
        for f in emit_step(plan, plan.step(path)):
            functions[f.name] = f
    naming = naming_of(plan)
    roots = [naming.functions[path] for path, _ in kernel.roles]
    args = _union([f for name, f in functions.items() if name in roots])
    for name, f in functions.items():
        if name not in roots and name not in written:
            written.add(name)
            _write(rows, f, _signature(name, [*f.leading, *[_parameter(a) for a in f.args]]), "@triton.jit", [])
    if len(roots) == 1:
        f = functions[roots[0]]
        first = ["worker = tl.program_id(0)", "workers = tl.num_programs(0)"]
        _write(rows, f, _signature(kernel.name, [_parameter(a) for a in args]), _decorator(args), first)
    else:
        for name in roots:
            f = functions[name]
            _write(rows, f, _signature(name, [*f.leading, *[_parameter(a) for a in f.args]]), "@triton.jit", [])
        _write_roles(rows, kernel, [(functions[n], w) for n, (_, w) in zip(roots, kernel.roles, strict=True)], args)
    return _declare(plan, kernel, args)


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
) -> None:
    """The kernel of several roles: the first workers move, the others compute (co-residency: movers come first)."""
    rows += [("", None), ("", None), (_decorator(args), None)]
    rows += [(line, None) for line in _signature(kernel.name, [_parameter(a) for a in args])]
    rows.append(("    worker = tl.program_id(0)", None))
    base = 0
    for k, (f, workers) in enumerate(roles):
        assert workers is not None
        last = k == len(roles) - 1
        if not last:
            rows.append((f"    {'if' if k == 0 else 'elif'} worker < {base + workers}:", None))
        else:
            rows.append(("    else:", None))
        mine = f"worker - {base}" if base else "worker"
        count = str(workers) if not last else f"tl.num_programs(0) - {base}"
        rows.append((f"        {f.name}({', '.join([mine, count, *[a.name for a in f.args]])})", None))
        base += workers


def _declare(plan: Plan, kernel: KernelPlan, args: tuple[Arg, ...]) -> KernelDecl:
    extra = sum(n or 0 for _, n in kernel.roles[:-1])
    lead = plan.step(kernel.roles[-1][0])
    dynamic = any(g.kind == "table" for g in lead.grid)
    return KernelDecl(
        name=kernel.name,
        args=args,
        workers=sum(n or 0 for _, n in kernel.roles),
        tiles=None if dynamic else F.of(lead.total),
        extra=extra,
        warps=kernel.warps,
        stages=kernel.stages,
    )
