"""An all-gather and the products of what it gathers, as one operator."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from tilelink.inductor.factors import RANKS, Axis, Factor, Layout, in_order, layout_of, reshaped, size_of
from tilelink.inductor.graphs import (
    Product,
    Step,
    Writer,
    aten,
    depends,
    erase,
    named,
    product_of,
    shape,
    step_of,
    value,
)

NAME = "symm_mem::fused_all_gather_matmul"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What each rank passes: `[before, behind, summed]` along whose second axis the ranks lie; `last`: along the third."""

    before: Axis
    behind: Axis
    summed: Axis
    last: bool

    @property
    def local(self) -> Axis:
        return (*self.before, *self.behind, *self.summed)

    def whole(self, ranks: Factor) -> Axis:
        if self.last:
            return (*self.before, ranks, *self.summed)
        return (*self.before, ranks, *self.behind, *self.summed)

    def shape(self) -> list[int]:
        rows = [size_of(self.before)] if self.before or self.last else []
        return [*rows, *([] if self.last else [size_of(self.behind)]), size_of(self.summed)]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A product; `turned`: what was gathered is its right factor."""

    product: Product
    turned: bool
    arrangement: Arrangement


def fuse_gathering(node: Node, ranks: int, group: str) -> tuple[str, str]:
    """Rewrite an all-gather. The operator it became, or "" and why it did not."""
    shard: Any = node.args[0]
    waits = [user for user in node.users if user.target is torch.ops._c10d_functional.wait_tensor.default]
    if not waits:
        return "", "nothing waits for it"
    start = reshaped(((Factor(RANKS, 1, ranks),), *layout_of(shape(shard))), shape(waits[0]))
    assert start is not None
    layouts: dict[Node, Layout] = dict.fromkeys(waits, start)
    steps: list[Step] = []
    consumers: list[Consumer] = []
    whys: list[str] = []
    for each in node.graph.nodes:
        step = step_of(each)
        if step is not None and step.source in layouts:
            layout = step.layout(layouts[step.source])
            if layout is not None:
                layouts[each] = layout
                steps.append(step)
            continue
        if not any(n in layouts for n in each.all_input_nodes):
            continue
        product = product_of(each)
        found = _consumer(product, layouts, node) if isinstance(product, Product) else product
        if isinstance(found, Consumer):
            consumers.append(found)
        elif found is not None:
            whys.append(found)
    if not consumers:
        moving = {n for step in steps for n in step.pieces}
        users = [u for n in layouts for u in n.users if u not in layouts and u not in moving]
        others = dict.fromkeys(named(u) for u in users)
        return "", whys[0] if whys else f"no product takes what is gathered, but {', '.join(others) or 'nothing'}"
    by = [c.arrangement for c in consumers]
    # Of a gradient that is gathered: the product for the layer's argument, which takes rows as they lie, rather than the
    # weight's, which sums over them.
    chosen = max(by, key=lambda each: (not each.last, by.count(each)))
    fused = _rewrite(node, [c for c in consumers if c.arrangement == chosen], group)
    erase(reversed([n for n in node.graph.nodes if n in layouts or any(n in s.pieces for s in steps)]))
    erase((node,))
    left = [n for n in (*waits, node) if n in node.graph.nodes]
    if not left:
        fused.kwargs = {"return_A": False}
        return NAME, ""
    kept = _keep_gathered(Writer(node), fused, chosen, waits[0], ranks)
    for old in left:
        old.replace_all_uses_with(kept)
    erase(left)
    return NAME, ""


def _consumer(product: Product, layouts: dict[Node, Layout], node: Node) -> Consumer | str:
    turned = product.left not in layouts
    gathered, other = (product.right, product.left) if turned else (product.left, product.right)
    if gathered not in layouts:
        return "what is gathered is the bias of a product"
    if depends(other, node) or (product.bias is not None and depends(product.bias, node)):
        return "both factors of its product depend on what is gathered"
    layout = layouts[gathered]
    if turned and len(layout) == 3 and shape(product.left)[0] != 1:
        return "every matrix of the batch has another left factor"
    rows, summed = (layout[-1], layout[-2]) if turned else (sum(layout[:-1], ()), layout[-1])
    where = [f for f in (*rows, *summed) if f.axis == RANKS]
    if len(where) != 1:
        return "the ranks' parts are spread over several axes"
    if where[0] in rows:
        at = rows.index(where[0])
        return Consumer(product, turned, Arrangement(rows[:at], rows[at + 1 :], summed, False))
    if summed.index(where[0]):
        return "the ranks' parts are interleaved along the axis that is summed"
    return Consumer(product, turned, Arrangement(rows, (), summed[1:], True))


def _rewrite(node: Node, consumers: list[Consumer], group: str) -> Node:
    shard: Any = node.args[0]
    arrangement = consumers[0].arrangement
    write = Writer(node)
    axes = range(value(shard).dim())
    lying = [f for axis in axes for f in in_order(arrangement.local, axis)]
    passed = write.reshaped(shard, [f.size for f in lying])
    passed = write.permuted(passed, [lying.index(f) for f in arrangement.local])
    passed = write.reshaped(passed, arrangement.shape())
    dim = value(passed).dim() - 1 if arrangement.last else value(passed).dim() - 2
    others: list[Node] = []
    for each in consumers:
        other = write.matrix(each.product.left if each.turned else each.product.right)
        others.append(write.permuted(other, [1, 0]) if each.turned else other)
    target = torch.ops.symm_mem.fused_all_gather_matmul.default
    fused = write(target, passed, others, dim, group, return_A=True)
    products = write(operator.getitem, fused, 1)
    for k, each in enumerate(consumers):
        old = each.product.node
        result = write(operator.getitem, products, k)
        result = write.reshaped(result, (-1, shape(others[k])[1]) if value(result).dim() > 2 else shape(result))
        result = write.reshaped(write.permuted(result, [1, 0]) if each.turned else result, shape(old))
        if each.product.bias is not None:
            result = write(aten.add.Tensor, result, each.product.bias)
        old.replace_all_uses_with(write.contiguous(result))
        node.graph.erase_node(old)
    return fused


def _keep_gathered(write: Writer, fused: Node, arrangement: Arrangement, wait: Node, ranks: int) -> Node:
    """What was gathered, as `wait` had it, from the first result of the fused operator."""
    whole = arrangement.whole(Factor(RANKS, 1, ranks))
    first = [f for f in whole if f.axis == RANKS]
    lying = first + [f for axis in range(value(wait).dim()) for f in in_order(arrangement.local, axis)]
    gathered = write.reshaped(write(operator.getitem, fused, 0), [f.size for f in whole])
    gathered = write.permuted(gathered, [whole.index(f) for f in lying])
    return write.contiguous(write.reshaped(gathered, shape(wait)))
