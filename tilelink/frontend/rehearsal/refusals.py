"""What is refused of what lies past an edge (TL143), in words."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeAlias

from tilelink.frontend.rehearsal.blocks import IN, Block, Edge
from tilelink.frontend.rehearsal.functions import Called

Fail: TypeAlias = "Callable[..., NoReturn]"
LANES = "a block has as many lanes as the tile"
FILLED = f"{LANES}: past an edge they hold 0, or what the load says by `other=`, and what is made of that"
NOTHING: Mapping[str, str] = {
    **dict.fromkeys(("sum", "xor_sum", "dot", "cumsum", "reduce_or"), "0"), "cumprod": "1",
    **dict.fromkeys(("min", "argmin", "sort"), 'float("inf")'),
}  # fmt: skip
"""What counts for nothing there; of others what is below all numbers."""


def taken(called: Called, block: Block, axes: Sequence[int]) -> NoReturn:
    """A call takes what lies past the end of one of these axes."""
    marks, name, fail = block.marks, called.name, called.fail
    odd = [k for k in axes if (marks.max(axis=tuple(j for j in range(marks.ndim) if j != k)) != IN).any()]
    edge = next((block.edges[k] for k in (*odd, *axes) if block.edges[k]), next((e for e in block.edges if e), None))
    nothing = NOTHING.get(name, 'float("-inf")')
    if name == "sort" and called.asked("descending"):
        nothing = 'float("-inf")'
    if edge is None:
        fail(
            called.node,
            f"`{name}` takes what lies past an edge",
            FILLED,
            f"choose what counts: `tl.where(…, …, {nothing})`",
        )
    hint = f"say what counts for nothing there: `tl.tile_load({edge.param}, …, other={nothing})`"
    if not edge.loaded:
        by = "by `tl.tile_range(…) < tl.size(…)`"
        if edge.var:
            by = "by `tl.tile_mask`, or by `tl.tile_range(…) < tl.tile_end(…)`"
        hint = f"choose what counts: `tl.where(…, …, {nothing})`, {by}"
    fail(called.node, f"`{name}` takes what lies past the end of axis `{edge.dim}` of `{edge.param}`", FILLED, hint)


def positions(fail: Fail, node: ast.expr, at: Block) -> NoReturn:
    """Something is stored at positions that lie past an edge themselves."""
    edge = at.edges[0] or Edge("…", "…", "")
    message = f"`{ast.unparse(node)}` has positions past the end of axis `{edge.dim}` of `{edge.param}`"
    why = f"{LANES}: past an edge they hold 0 unless the load says `other=`, which is a position like any other"
    hint = f"say that they are no elements: `tl.tile_load({edge.param}, …, other=-1)`"
    if not edge.loaded:
        hint = "choose the others, `tl.where(…, …, -1)`, or store under a mask"
    fail(node, message, why, hint)


def stored(fail: Fail, node: ast.expr, value: Block, param: str) -> NoReturn:
    """What lies past an edge is stored where there are elements."""
    edge = next((e for e in value.edges if e), None)
    where = f"the end of axis `{edge.dim}` of `{edge.param}`" if edge else "an edge"
    message = f"`{ast.unparse(node)}` has what lies past {where} where there are elements of `{param}`"
    why = f"{LANES}, and these were moved, or are those of another tile"
    fail(node, message, why, "load the elements that are meant, or choose what counts with `tl.where`")


def length(fail: Fail, node: ast.AST, what: str, do: str) -> NoReturn:
    """The length of a block is no number of elements to compute with."""
    why = f"{LANES}, whatever there is of the tensor"
    fail(node, f"{what}, which counts what lies past an edge", why, f"{do} the length of the axis, `tl.size(…)`")


def rounded(fail: Fail, node: ast.AST) -> NoReturn:
    """What is stored hangs on which way a quotient of a negative number is rounded."""
    why = "Triton rounds a quotient towards 0, so that its rest is negative; Python rounds it down"
    hint = "add a multiple of the divisor first, and take that off behind: `(i - 3 + 2 * n) // n - 2`"
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mod):
        hint = "write `((i - 3) % n + n) % n`, or `(i - 3 + n) % n` where that is never negative"
    fail(node, f"`{ast.unparse(node)}` is of a negative number", why, hint, "TL147")
