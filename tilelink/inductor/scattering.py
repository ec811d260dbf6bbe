"""A product and the reduce-scatter or all-reduce of it, as one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from tilelink.inductor.factors import Axis, Layout, in_order, layout_of, size_of, taken
from tilelink.inductor.graphs import (
    Product,
    Writer,
    aten,
    erase,
    line_of,
    named,
    product_of,
    shape,
    step_of,
    value,
)

SCATTER, SUM = "symm_mem::fused_matmul_reduce_scatter", "tilelink::gemm_ar"
SUMMED = "it gets a sum of products"
"""Both ways of fusing it took longer on GPUs than NCCL behind torch's products: one product over all that is summed, its
factors copied side by side; and one product added to the rest (8B and 70B MLP with gradients, 8,192 positions on two
H100s: 1.08 to 1.14 of the time; benchmarks/results/sums-h100-2.json)."""
collectives = torch.ops._c10d_functional


@dataclass(frozen=True, slots=True)
class Origin:
    """What a collective gets: a product.

    Attributes:
        layout: how the product's axes lie in what the collective gets.
        between: what stands between the two.
    """

    product: Product
    layout: Layout | None
    between: frozenset[Node]


def fuse_scattering(node: Node, ranks: int, group: str) -> tuple[str, str]:
    """Rewrite a reduce-scatter. The operator it became, or "" and why it did not."""
    how: Any = node.args[1]
    if how not in ("sum", "avg"):
        return "", f"tilelink sums and averages, and this is {how!r}"
    origin = _origin(node)
    if isinstance(origin, str):
        return "", origin
    layout = origin.layout
    found = taken(layout[0], ranks) if layout else None
    if layout is None or found is None or len(found[0]) != 1:
        return "", "what is scattered is not one axis of the product"
    (scattered,), rest = found
    order = [*rest, *(f for axis in layout[1:] for f in axis)]
    product, last = origin.product, value(origin.product.node).dim() - 1
    rows, columns = _axes([scattered, *order], range(last)), in_order([scattered, *order], last)
    if scattered in columns and columns.index(scattered):
        return "", "what is scattered is interleaved along the columns of the product"
    write = Writer(node)
    left, right = product.left, write.matrix(product.right)
    size = shape(right)[0]
    dim, sizes = 1, [size_of(rows), size]
    if scattered in rows:
        at = rows.index(scattered)
        before, behind = rows[:at], rows[at:]
        dim, sizes = (1, [size_of(before), size_of(behind), size]) if before else (0, sizes)
    target = torch.ops.symm_mem.fused_matmul_reduce_scatter.default
    result = write(target, write.reshaped(left, sizes), right, how, dim, group)
    if product.bias is not None:
        result = write(aten.add.Tensor, result, _bias(write, product.bias, how, scattered in columns, ranks, group))
    lying = [f for f in (*rows, *columns) if f is not scattered]
    result = write.reshaped(result, [f.size for f in lying])
    result = write.permuted(result, [lying.index(f) for f in order])
    _replace(node, write.contiguous(write.reshaped(result, shape(node))), origin)
    return SCATTER, ""


def fuse_summing(node: Node, ranks: int, group: str) -> tuple[str, str]:
    """Rewrite an all-reduce. The operator it became, or "" and why it did not."""
    how: Any = node.args[1]
    if how != "sum":
        return "", f"tilelink::gemm_ar sums, and this is {how!r}"
    origin = _origin(node)
    if isinstance(origin, str):
        return "", origin
    product, write = origin.product, Writer(node)
    left = write.contiguous(write.reshaped(product.left, (-1, shape(product.left)[-1])))
    result = write(torch.ops.tilelink.gemm_ar.default, left, write.matrix(product.right), group)
    if product.bias is not None:
        result = write(aten.add.Tensor, result, _bias(write, product.bias, how, False, ranks, group))
    steps = [n for n in node.graph.nodes if n in origin.between]
    product.node.replace_all_uses_with(write.reshaped(result, shape(product.node)))
    for step in steps:  # what views the product stands before what replaces it
        node.prepend(step)
    source: Any = node.args[0]
    _replace(node, result if source is product.node else source, origin)
    return SUM, ""


def _axes(factors: Any, axes: Any) -> Axis:
    return tuple(f for axis in axes for f in in_order(factors, axis))


def _origin(node: Node) -> Origin | str:
    """What a collective gets; a string: why it is no product that it can be fused with."""
    source: Any = node.args[0]
    origin = _behind(source)
    if isinstance(origin, str):
        return origin
    inside = origin.between | {node}
    for each in (origin.product.node, *origin.between):
        other = next((user for user in each.users if user not in inside), None)
        if other is not None:
            where = line_of(other)
            return f"its product is used elsewhere, too, by {named(other)}{f' ({where})' if where else ''}"
    return origin


def _behind(node: Node) -> Origin | str:
    """Back from a node to the product it is, or has moved."""
    product, step = product_of(node), step_of(node)
    if isinstance(product, str):
        return product
    if product is not None:
        if product.bias is not None and value(product.bias).dim() != 1:
            return "the bias of its product is not one row"
        return Origin(product, layout_of(shape(node)), frozenset())
    if step is not None:
        behind = _behind(step.source)
        if isinstance(behind, str):
            return behind
        layout = None if behind.layout is None else step.layout(behind.layout)
        return Origin(behind.product, layout, behind.between | {node, *step.pieces})
    if node.target is aten.add.Tensor:
        terms = [_behind(term) for term in node.all_input_nodes]
        if all(term == SUMMED or isinstance(term, Origin) for term in terms):
            return SUMMED
    return f"it gets no product, but {'an argument' if node.op == 'placeholder' else named(node)}"


def _bias(write: Writer, bias: Node, how: str, scattered: bool, ranks: int, group: str) -> Node:
    """Every rank's bias, summed: a row only. Of scattered columns this rank's part."""
    if scattered:
        summed = write(collectives.reduce_scatter_tensor.default, bias, how, ranks, group)
    else:
        summed = write(collectives.all_reduce.default, bias, how, group)
    return write(collectives.wait_tensor.default, summed)


def _replace(node: Node, result: Node, origin: Origin) -> None:
    for user in [u for u in node.users if u.target is collectives.wait_tensor.default]:
        user.replace_all_uses_with(result)
        node.graph.erase_node(user)
    node.replace_all_uses_with(result)  # as saved for the backward pass
    node.graph.erase_node(node)
    erase(reversed([n for n in node.graph.nodes if n in origin.between]))
    erase((origin.product.node,))
