"""What nodes of a graph mean here: views, products, lines of the model; and adding nodes with their values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node

from tilelink.errors import Loc, whole_line
from tilelink.inductor.factors import Layout, moved, reshaped

aten = torch.ops.aten
VIEWS = {
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.flatten.using_ints,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
}
TURNS = {aten.permute.default, aten.t.default, aten.transpose.int}
SPLITS = {aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default}
SCALED = {aten._scaled_mm.default}
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def shape(node: Any) -> tuple[int, ...]:
    return tuple(value(node).shape)


@dataclass(frozen=True, slots=True)
class Step:
    """A node that only moves what `source` has; `pieces`: nodes between the two."""

    source: Node
    layout: Callable[[Layout], Layout | None]
    pieces: tuple[Node, ...] = ()


def step_of(node: Node) -> Step | None:
    """None: this node does something else than moving elements."""
    args: Any = node.args
    if node.target in VIEWS:
        return Step(node.all_input_nodes[0], lambda layout: reshaped(layout, shape(node)))
    if node.target in TURNS:
        count = value(args[0]).dim()
        if node.target is aten.permute.default:
            order: list[int] = [d % count for d in args[1]]
        else:
            order = list(range(count))
            a, b = args[1:] if len(args) > 1 else (0, count - 1)
            order[a], order[b] = order[b], order[a]
        return Step(args[0], lambda layout: tuple(layout[d] for d in order))
    return _concatenated(node) if node.target is aten.cat.default else None


def _concatenated(node: Node) -> Step | None:
    """Equal chunks of one tensor, all of them in order."""
    args: Any = node.args
    inputs: list[Node] = args[0]
    found = [piece_of(each) for each in inputs]
    first = found[0] if found else None
    if first is None or any(shape(each) != shape(inputs[0]) for each in inputs):
        return None
    source, along, _ = first
    length, chunks = shape(inputs[0])[along], len(inputs)
    if length * chunks != shape(source)[along]:
        return None
    if any(each != (source, along, n * length) for n, each in enumerate(found)):
        return None
    kwargs: Any = node.kwargs
    onto: int = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % value(node).dim()
    between = dict.fromkeys(inputs)
    between.update(dict.fromkeys(n for each in inputs for n in each.all_input_nodes if n is not source))
    return Step(source, lambda layout: moved(layout, along, chunks, onto), tuple(between))


def piece_of(node: Node) -> tuple[Node, int, int] | None:
    """What a slice is cut from, along which axis, and where it starts."""
    args: Any = node.args
    if node.target is aten.slice.Tensor:
        source: Node = args[0]
        along: int = args[1] if len(args) > 1 else 0
        start, _, by = (*args[2:], *(0, None, 1)[max(len(args) - 2, 0) :])
        axis = along % value(source).dim()
        start = start or 0
        whole = shape(source)[axis]
        return (source, axis, start % whole if whole else 0) if by == 1 and isinstance(start, int) else None
    if node.target is operator.getitem and getattr(args[0], "target", None) in SPLITS:
        split: Any = args[0]
        source = split.args[0]
        axis = (split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)) % value(source).dim()
        lengths = [each.shape[axis] for each in split.meta["val"]]
        return source, axis, sum(lengths[: args[1]])
    return None


@dataclass(frozen=True, slots=True)
class Product:
    """`left @ right`, plus `bias`. Of a batched one either factor may have an axis of batches, which is all rows or one."""

    node: Node
    left: Node
    right: Node
    bias: Node | None = None


def product_of(node: Node) -> Product | str | None:
    """A product of matrices; a string: why not; None: it is no product at all."""
    args: Any = node.args
    if node.target in SCALED:
        return "tilelink has no scaled product"
    if node.target is aten.mm.default:
        return Product(node, *args)
    if node.target is aten.addmm.default:
        if any(each != 1 for each in node.kwargs.values()):
            return "a factor stands before its product or its bias (alpha, beta)"
        return Product(node, args[1], args[2], args[0])
    if node.target is aten.bmm.default:
        right = value(args[1])
        if right.shape[0] != 1 and right.stride(0) != 0:
            return "every matrix of the batch has another right factor"
        return Product(node, *args)
    return None


class Writer:
    """Adds nodes with their values, before some node and with what that says of its origin."""

    def __init__(self, before: Node) -> None:
        self.before, self.mode = before, detect_fake_mode([value(before)])

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        graph = self.before.graph
        with graph.inserting_before(self.before):
            node = graph.call_function(target, args, kwargs)
        plain: Any = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        assert self.mode is not None
        with self.mode:
            node.meta["val"] = target(*plain[0], **plain[1])
        for key in ("stack_trace", "original_aten", "from_node", "custom"):
            if key in self.before.meta:
                node.meta[key] = self.before.meta[key]
        return node

    def reshaped(self, node: Node, sizes: Any) -> Node:
        return node if shape(node) == tuple(sizes) else self(aten.reshape.default, node, list(sizes))

    def permuted(self, node: Node, order: list[int]) -> Node:
        return node if order == sorted(order) else self(aten.permute.default, node, order)

    def contiguous(self, node: Node) -> Node:
        if value(node).is_contiguous():
            return node
        return self(aten.clone.default, node, memory_format=torch.contiguous_format)

    def matrix(self, node: Node) -> Node:
        """Of matrices that are all alike, one."""
        return self(aten.select.int, node, 0, 0) if value(node).dim() == 3 else node


def erase(nodes: Any) -> None:
    """Those that nobody uses any more; later ones first."""
    for node in nodes:
        if not node.users:
            node.graph.erase_node(node)


def depends(node: Node, on: Node) -> bool:
    seen: set[Node] = set()
    rest = [node]
    while rest:
        here = rest.pop()
        if here is on:
            return True
        if here not in seen:
            seen.add(here)
            rest += here.all_input_nodes
    return False


def line_of(*nodes: Node) -> Loc | None:
    """The innermost line of the model that stands behind the first node that has one."""
    for node in nodes:
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        own = [frame for frame in frames if "/torch/" not in frame[0].replace("\\", "/")]
        if own or frames:
            file, line = (own or frames)[-1]
            return whole_line(file, int(line))
    return None


def named(node: Node) -> str:
    return "the graph's results" if node.op == "output" else str(node.target).removesuffix(".default")
