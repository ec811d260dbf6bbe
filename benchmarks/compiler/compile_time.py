"""What the compiler half costs: planning, verifying, emitting, a first call, and simulating. No GPU.

    python -m benchmarks.compiler.compile_time    (make bench-compiler)

Everything is measured on one core, in seconds of its time, so that other work on the machine counts for little; the
best of several rounds, each from nothing. It ends with 1 if something exceeds its limit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import tilelink
from benchmarks.harness import RESULTS, about, parser, processor, save
from benchmarks.operator_cases import CASES, Draw
from tests.mapping.plans import emitted, verify
from tilelink import Operator, ops
from tilelink.frontend import trace
from tilelink.ir.plan import Plan
from tilelink.ir.topology import Device, Topology
from tilelink.mapping import make_plan
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring
from tilelink.pipeline.arguments import Bound, bind

RANKS = 64
H200 = Device("NVIDIA H200", 132, 227 * 1024, 3, 90)

M, N, K = 8192, 11008, 4096
SHAPES = {"ag_gemm": ((M // RANKS, K), (K, N // RANKS)), "gemm_rs": ((M, N // RANKS), (N // RANKS, K))}
"""One rank's arguments; the ring takes what gemm_rs takes."""
FOUR, OPERATORS = 4, {"ag_gemm": 0.05, "moe_layer": 0.1}
"""On four GPUs at the sizes of a model: operators, and seconds in which they are planned, lowered and emitted."""
FIRST = 0.2
"""Seconds from a call's arguments to kernels that Triton may compile."""


@dataclass(frozen=True, slots=True)
class Row:
    """`seconds` of one core, the least of all rounds, and what they may be."""

    stage: str
    subject: str
    seconds: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.seconds < self.limit


def seconds(run: Callable[[], Any], rounds: int) -> float:
    """The least CPU time of one call."""

    def once() -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    return min(once() for _ in range(rounds))


def planned(operator: Operator, bound: Bound, topology: Topology) -> Plan:
    """The plan, made from the operator's body on; what `Operator.stages` does but once."""
    o, sizes = operator, dict(bound.sizes)
    wiring = trace(
        o.name, o.fn, o.signature, sizes, bound.dtypes, dict(bound.constants), o.loc, axes={"R": topology.ranks}
    )
    layouts = dict(zip(wiring.arguments, bound.layouts, strict=True))
    return make_plan(wiring, topology, o.schedules, sizes, layouts)


def compiling(operator: Operator, rounds: int) -> Iterable[Row]:
    """Planning with verifying, and emitting, of one operator on 64 GPUs."""
    topology = Topology(RANKS, "peer", "peer", H200)
    shapes = SHAPES.get(operator.name, SHAPES["gemm_rs"])
    tensors = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    bound = bind(operator, tensors, {}, topology)
    plan = planned(operator, bound, topology)
    subject = f"{operator.name}, M={M} on {RANKS} ranks"
    yield Row("plan and verify", subject, seconds(lambda: verify(planned(operator, bound, topology)), rounds), 0.1)
    yield Row("emit", subject, seconds(lambda: emitted(plan), rounds), 0.1)


def on_four(name: str, limit: float, rounds: int) -> Iterable[Row]:
    """An operator's way from its arguments to the emitted module, with the proof and without."""
    operator, call = getattr(ops, name), CASES[name](Draw(0, FOUR, torch.device("cpu"), seed=1), False)
    topology = Topology(FOUR, "peer", "peer", H200)
    subject = f"{name} on {FOUR} ranks"

    def bound() -> Bound:
        return bind(operator, list(call.arguments), call.given, topology)

    found = bound()
    yield Row(
        "plan, lower and emit", subject, seconds(lambda: emitted(planned(operator, found, topology)), rounds), limit
    )
    # A schedule of its own makes an operator that has kept nothing.
    yield Row(
        "first call, without Triton",
        subject,
        seconds(lambda: operator.schedule().compiled(bound()).on(0), rounds),
        FIRST,
    )


def simulating(rounds: int) -> Iterable[Row]:
    """AG+GEMM of 512×512×512 in 64-tiles on four ranks, with all that a call does; the first call plans and emits too."""
    operator = ag_gemm.schedule(gather=tilelink.sms(2, M=64), matmul=tilelink.sms(4, M=64, N=64, K=64, order="ring"))
    x, weight = torch.randn(4, 128, 512).bfloat16(), torch.randn(4, 512, 512).bfloat16()

    def main() -> torch.Tensor:
        return operator(x[tilelink.rank()], weight[tilelink.rank()])

    def call(races: bool = False) -> None:
        tilelink.launch(main, ranks=4, races=races)

    subject = "ag_gemm 512×512×512, 4 ranks, 64-tiles"
    yield Row("simulate, first call", subject, seconds(call, 1), 2.0)
    # In turns, so that what else the machine does falls on both alike.
    both = [(seconds(call, 1), seconds(lambda: call(True), 1)) for _ in range(rounds)]
    plain, watched = (min(times) for times in zip(*both, strict=True))
    yield Row("simulate", subject, plain, 2.0)
    yield Row("simulate and look for races", subject, watched, 1.5 * plain)


PARTS: tuple[Callable[[int], Iterable[Row]], ...] = (
    *(partial(compiling, operator) for operator in (ag_gemm, gemm_rs, gemm_rs_ring)),
    *(partial(on_four, name, limit) for name, limit in OPERATORS.items()),
    simulating,
)
"""Each measures some rows in so many rounds."""


def show(rows: list[Row]) -> None:
    table = Table("stage", "of", "ms", "limit")
    for r in rows:
        table.add_row(r.stage, r.subject, f"{1e3 * r.seconds:.1f}", f"{1e3 * r.limit:.0f}", style="" if r.ok else "red")
    Console().print(table)


def main() -> int:
    given = parser(__doc__, RESULTS / "compile-time-cpu.json")
    given.add_argument("--rounds", type=int, default=10)
    options = given.parse_args()
    torch.set_num_threads(1)
    rows = [row for part in PARTS for row in part(options.rounds)]
    show(rows)
    save(options.out, about(cpu=processor()), {"rows": [asdict(r) for r in rows]})
    return 0 if all(r.ok for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
