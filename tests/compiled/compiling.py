"""Compiles emitted kernels for a target that need not be there."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilelink.ir import formula as F
from tilelink.ir.kernel import Arg, KernelDecl, KernelSource
from tilelink.ir.plan import Plan
from tilelink.runtime.kernels import load

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
EACH_TARGET = [pytest.param(t, marks=pytest.mark.each_triton) if t in ("sm_90", "gfx942") else t for t in TARGETS]
"""For tests with all targets: one of either vendor with each version of Triton, the others with one."""

CAPABILITIES = {"sm_80": 80, "sm_90": 90, "sm_100": 100, "gfx942": 94}
"""What a device of each target says of itself, and plans are made for."""

POINTERS = {
    "bf16": "bf16", "f16": "fp16", "f32": "fp32", "f64": "fp64", "i8": "i8", "i32": "i32", "i64": "i64",
    "f8e4m3": "fp8e4nv",
}  # fmt: skip


def type_of(plan: Plan, arg: Arg) -> str:
    if arg.kind == "constant":
        return "constexpr"
    if arg.kind in ("size", "credits", "stride", "number", "trace_tiles"):
        return "i32"
    if arg.kind == "scalar":
        return "fp32"
    if arg.kind in ("tensor", "stage"):
        return "*" + POINTERS[plan.buffer(arg.of).dtype]
    if arg.kind == "descriptor":
        dtype = POINTERS[plan.buffer(arg.of).dtype]
        return f"tensordesc<{dtype}{list(arg.block)}>"
    return "*i32" if arg.kind == "order" else "*i64"


def aligned(plan: Plan, arg: Arg) -> bool:
    """Whether Triton would find the argument divisible by 16 at a launch."""
    if arg.kind == "size":
        assert arg.formula is not None
        return arg.of != "rank" and int(F.evaluate(arg.formula, plan.env(0))) % 16 == 0
    if arg.kind == "stride":
        return plan.layout(arg.of).aligned
    return arg.kind in ("tensor", "stage", "ll", "flags", "epoch_flags", "expected", "doorbells", "context")


def compile_kernel(plan: Plan, source: KernelSource, decl: KernelDecl, target: str, **more: Any) -> Any:
    """The compiled kernel, by options of the declaration and `more`; its `asm` has the intermediate texts."""
    signature = {a.name: type_of(plan, a) for a in decl.args}
    constants = {(i,): a.value for i, a in enumerate(decl.args) if a.kind == "constant"}
    attrs = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(decl.args) if aligned(plan, a)}
    options = {**decl.options.given(), **more}
    made = ASTSource(kernel_of(source, decl), signature, constants, attrs)
    return triton.compile(made, target=TARGETS[target], options=options)


def kernel_of(source: KernelSource, decl: KernelDecl) -> Any:
    return getattr(load(source), decl.name)


def functions(source: KernelSource, name: str) -> str:
    """The text of a kernel and of all that it calls, without comments: what its machine code depends on."""
    module = ast.parse(source.text)
    known = {n.name: n for n in module.body if isinstance(n, ast.FunctionDef)}
    wanted, found = [name], dict[str, str]()
    while wanted:
        at = wanted.pop()
        if at not in found:
            found[at] = ast.unparse(known[at])
            wanted += [n.id for n in ast.walk(known[at]) if isinstance(n, ast.Name) and n.id in known]
    rest = [ast.unparse(n) for n in module.body if isinstance(n, (ast.Import, ast.ImportFrom, ast.Assign))]
    return "\n".join([*rest, *(found[n] for n in sorted(found))])


def texts(plan: Plan, source: KernelSource, decl: KernelDecl, target: str) -> dict[str, str]:
    """The intermediate texts of a kernel. Placements have many kernels in common; those are compiled once, for all of
    the session's processes.
    """
    kinds = tuple((a.name, type_of(plan, a), a.value, aligned(plan, a)) for a in decl.args)
    key = (target, plan.topology.backend, decl.name, decl.options, kinds, functions(source, decl.name))
    kept = Path(knobs.cache.dir) / f"texts-{hashlib.sha256(repr(key).encode()).hexdigest()}.json"
    if not kept.exists():
        made = compile_kernel(plan, source, decl, target).asm
        part = kept.with_suffix(f".{os.getpid()}")
        part.parent.mkdir(exist_ok=True)
        part.write_text(json.dumps({name: text for name, text in made.items() if isinstance(text, str)}))
        part.replace(kept)  # at once: another process may be reading
    return json.loads(kept.read_text())


def unlinked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation ends with PTX: a name that nothing defines is the linker's affair."""

    def stop_before_assembling(*args: Any) -> tuple[str, str] | None:
        if not args:
            return "unlinked", "unlinked"
        args[1]["cubin"] = lambda source, metadata: b""
        return None

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", stop_before_assembling)
