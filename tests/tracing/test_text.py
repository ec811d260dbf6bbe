"""The traced variant's text: the untraced one with lines in between."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import pytest
import torch

from tests.mapping.plans import emitted
from tests.operators.placements import Placed, placements
from tests.operators.problems import AG
from tests.selection import table
from tilelink.codegen.function import Function
from tilelink.codegen.trace import traced_kernel
from tilelink.ir.kernel import TraceRole
from tilelink.ir.topology import Device, Topology
from tilelink.pipeline.arguments import bind
from tilelink.pipeline.compiled import Compiled

H200 = Device("H200", 132, capability=90)


@cache
def stages(placed: Placed) -> Compiled:
    shapes = [(64, 64), (64, 64)] if placed.kind is AG else [(256, 64), (64, 64)]
    op = placed.operator
    tensors = [torch.empty(s, dtype=torch.bfloat16) for s in shapes]
    return op.compiled(bind(op, tensors, {}, Topology(4, "peer", device=H200)))


TRACE = {"trace", "trace_tiles", "trace_tile"}


class Without(ast.NodeTransformer):
    """All that tracing puts into a file taken out again."""

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        node.args = [a for a in node.args if a.arg not in TRACE]
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.args = [a for a in node.args if ast.unparse(a).split(" ")[0] not in TRACE]
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        return None if ast.unparse(node.targets[0]).startswith("trace_") else self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | None:
        return None if ast.unparse(node.target).startswith("trace_") else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        return None if ast.unparse(node).startswith("tl.store(trace_") else self.generic_visit(node)


@pytest.mark.parametrize("placed", placements(tile=32), ids=str)
def test_nothing_but_clocks_is_added(placed: Placed) -> None:
    made = stages(placed)
    plain = emitted(made.plan)
    traced = emitted(made.plan, traced=True)
    assert plain == made.source
    assert plain.traces == ()
    assert traced.text != plain.text
    assert ast.unparse(Without().visit(ast.parse(traced.text))) == ast.unparse(ast.parse(plain.text))
    assert [t.kernel for t in traced.traces] == [k.name for k in traced.kernels if k.name != "await_flag"]


@table("placed", placements(tile=32), ids=str)
def test_every_wait_and_every_fused_function_has_its_slots(placed: Placed) -> None:
    traced = emitted(stages(placed).plan, traced=True)
    for layout in traced.traces:
        for role in layout.roles:
            slots = [s.slot for s in role.sites]
            assert slots == list(range(2, 2 + 2 * len(slots), 2))
            assert 2 + 2 * len(slots) <= layout.slots
    sites = [s for layout in traced.traces for role in layout.roles for s in role.sites]
    fused = [s for s in stages(placed).plan.steps if s.into is not None]
    silent = {"call_entry", "finish"} - {k.name for k in traced.kernels}
    assert sum(s.what != "part" for s in sites) == sum(n for f, n in _waits(traced.text).items() if f not in silent)
    assert sum(s.what == "part" for s in sites) == sum(s.subtiles for s in fused if not s.deferred)


def _waits(text: str) -> dict[str, int]:
    """Waits of each emitted function, as often as it is called; the one of `await_flag` is a stream's."""
    bodies = dict(re.findall(r"(?ms)^def (\w+)\((.*?)(?=^@|\Z)", text))
    calls = {name: len(re.findall(rf"(?m)^ +{name}\(", text)) for name in bodies}
    return {
        n: len(re.findall(r"_wait_(until|each)\(", body)) * max(calls[n], 1)
        for n, body in bodies.items()
        if n != "await_flag"
    }


def function(name: str, *lines: str, leading: tuple[str, ...] = ()) -> Function:
    rows = tuple(((len(t) - len(t.lstrip())) // 4, t.lstrip(), None) for t in lines)
    return Function(name, leading, (), rows)


WAIT = "shmem.signal_wait_until(words + c, shmem.CMP_GE, 1)"
EACH = "shmem.signal_wait_each(words + c, shmem.CMP_GE, 1, inside)"
TILES = "for t in tl.range(worker, n, workers, flatten=True):"


def test_a_function_that_is_called_twice_writes_to_two_places() -> None:
    inner = function("add", WAIT, leading=("tile",))
    outer = function("work", TILES, "    add(left)", "    add(right)", "    blocks.end_of_tile()")
    found, layout = traced_kernel("work", {"work": TraceRole("work", None, None)}, {"work": outer, "add": inner})
    texts = [t for _, t, _ in found["work"].lines]
    assert "add(trace_tile, left)" in texts
    assert "add(trace_tile + 4, right)" in texts
    assert texts[-2:] == ["tl.store(trace_tile + 1, shmem.clock())", "blocks.end_of_tile()"]
    assert [(s.slot, s.what) for s in layout.roles[0].sites] == [(2, "part"), (4, "wait"), (6, "part"), (8, "wait")]
    assert layout.slots == 10
    assert next(t for _, t, _ in found["add"].lines) == "tl.store(trace_tile + 4, shmem.clock())"


@table(
    "lines, what, timed",
    [
        (["for s in range(0, n):", "    if s != rank:", "        c = s", f"        {WAIT}"], "wait", 0),
        (["for s in range(0, n):", f"    {WAIT}", "    acc += s"], "waits", 1),
        (["if away:", f"    {WAIT}"], "wait", 1),
        (["if c != waited:", f"    {EACH}"], "wait", 1),
    ],
    ids=["a loop of waits", "a wait in a loop of work", "under a condition", "for all ranks"],
)
def test_where_a_wait_begins_and_ends(lines: list[str], what: str, timed: int) -> None:
    work = function("work", TILES, *(f"    {line}" for line in lines), "    acc = 0")
    found, layout = traced_kernel("work", {"work": TraceRole("work", None, None)}, {"work": work})
    (site,) = layout.roles[0].sites
    assert site.what == what
    texts = [t for _, t, _ in found["work"].lines]
    reads = [k for k, t in enumerate(texts) if "shmem.clock()" in t]
    first = next(k for k in reads[1:])
    assert texts[first + 1] == [t.strip() for t in lines][timed]
