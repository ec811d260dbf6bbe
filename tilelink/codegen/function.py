"""An emitted function, and what closes one: definitions at its head, and the kernel arguments that it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilelink.codegen import access, segments
from tilelink.codegen.scope import Scope
from tilelink.codegen.text import COMMENT, Lines
from tilelink.errors import Loc
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along


@dataclass(frozen=True, slots=True)
class Function:
    """An emitted function: `leading` parameters are passed by its caller, `args` are the kernel's. `stores_async`: some of
    what it stores goes through descriptors. `gives`: what its caller calls the value that it returns, if it does."""

    name: str
    leading: tuple[str, ...]
    args: tuple[Arg, ...]
    lines: tuple[tuple[int, str, Loc | None], ...]
    stores_async: bool = False
    gives: str | None = None


def close(scope: Scope, name: str, leading: tuple[str, ...]) -> Function:
    """The function with its definitions at the head and every kernel argument it needs."""
    step = scope.step
    head = Lines()
    table = segments.head(scope)
    definitions = scope.formulas.definitions()
    head.rows += [(0, f"{n} = {text}", None) for n, text in definitions]
    head.extend(table)
    for tile in scope.wholes.values():
        access.lane_lines(head, tile)
    for const, value in step.step.constants:
        if not isinstance(value, float):
            head.add(f"{scope.local(const)}: tl.constexpr = {value!r}")
    rows = tuple(head.rows + scope.lines.rows)
    return Function(name, leading, arguments(scope, rows), rows, scope.stored_async)


def arguments(scope: Scope, rows: tuple[tuple[int, str, Loc | None], ...]) -> tuple[Arg, ...]:
    code = (text for _, text, _ in rows if not text.startswith(COMMENT))
    words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(code)))
    # Sizes that a fused function needs are among the host's own.
    args = [a for a in scope.args.values() if a.name in words and a.kind not in ("size", "constant")]
    named = {n: scope.naming.sizes[n] for n in scope.plan.wiring.sizes}
    sizes = [Arg(m, "size", formula=Sym(n)) for n, m in named.items() if m in words]
    axes = dict.fromkeys((RANK_AXIS, *scope.plan.axes))
    rank = [Arg(s.name, "size", "rank", formula=s) for s in map(rank_along, axes) if s.name in words]
    size = scope.lowered.topology.size
    ranks = [Arg(s.name, "constant", value=size(a)) for a in axes if (s := ranks_along(a)).name in words]
    order = {
        "tensor": 0,
        "ll": 0,
        "stage": 0,
        "descriptor": 1,
        "flags": 2,
        "epoch_flags": 2,
        "expected": 2,
        "doorbells": 2,
        "counts": 2,
        "made": 2,
        "work_indices": 2,
        "state": 3,
        "watch": 3,
        "context": 4,
    }
    args.sort(key=lambda a: order.get(a.kind, 5))
    return (*args, *sizes, *rank, *ranks)
