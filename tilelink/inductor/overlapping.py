"""`overlap`: the pass itself, and what it says of every collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from tilelink.errors import Note, TilelinkError
from tilelink.inductor import factors, gathering, graphs, scattering
from tilelink.inductor.graphs import line_of, value
from tilelink.nn import functional
from tilelink.torch_ops.door import Collective, door
from tilelink.torch_ops.serving import DTYPES

assert functional  # which declares tilelink::gemm_ar
Fuse = Callable[[Node, int, str], tuple[str, str]]
FUSING: dict[str, Fuse] = {
    "all_gather_into_tensor": gathering.fuse_gathering,
    "reduce_scatter_tensor": scattering.fuse_scattering,
    "all_reduce": scattering.fuse_summing,
}
NO_COLLECTIVES = ("wait_tensor", "_wrap_tensor_autograd")


class Overlap(CustomGraphPass):
    """What `overlap` gives."""

    def __init__(self, strict: bool, before: tuple[Any, ...]) -> None:
        self.strict, self.before = strict, before

    def __call__(self, graph: Graph) -> None:
        for each in self.before:
            each(graph)
        rows = [_fused(node) for node in list(graph.nodes) if _is_collective(node)]
        if not rows:
            return
        here = door()
        here.collectives += rows
        left = [row for row in rows if not row.by]
        if self.strict and left:
            raise TilelinkError(
                "TL477",
                f"{len(left)} of {len(rows)} collectives of a compiled graph hide behind no product",
                loc=left[0].loc,
                why=f"{left[0].operator}: {left[0].why}",
                hint="change what stands between the collective and its product, or call overlap(strict=False)",
                notes=tuple(Note(f"{row.operator}: {row.why}", row.loc) for row in left[1:]),
            )

    def uuid(self) -> Any:
        """With what Inductor's cache tells graphs apart; None, no cache, if a pass before this one has none."""
        modules = (factors, gathering, graphs, scattering)
        own = get_hash_for_files((__file__, *(str(m.__file__) for m in modules)))
        ids = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in self.before]
        return None if None in ids else (own, self.strict, door().library is not None, tuple(ids))


def overlap(strict: bool = False) -> Overlap:
    """A pass that fuses the collectives of a compiled graph with the products beside them.

    `torch._inductor.config.post_grad_custom_pre_pass = tilelink.inductor.overlap()`, after `tilelink.install()`. Passes that
    are set already run before it.

    Args:
        strict: whether a collective that is fused with no product is an error.

    Returns:
        the pass. Compiling raises TilelinkError TL477 (which torch wraps in its own) under `strict`, with each collective's
        line and reason. `tilelink.report()` has them all, with and without `strict`.
    """
    there: Any = config.post_grad_custom_pre_pass
    before = tuple(there) if isinstance(there, list | tuple) else () if there is None else (there,)
    return Overlap(strict, tuple(p for each in before for p in (each.before if isinstance(each, Overlap) else (each,))))


def _is_collective(node: Node) -> bool:
    return getattr(node.target, "namespace", "") == "_c10d_functional" and _name(node) not in NO_COLLECTIVES


def _name(node: Node) -> str:
    target: Any = node.target
    return target._overloadpacket.__name__


def _fused(node: Node) -> Collective:
    name = _name(node)
    source: Any = node.args[0]
    loc = line_of(node, *node.users, *node.all_input_nodes)
    group = str(node.args[-1])
    with unset_fake_temporarily():  # a session makes tensors
        session = door().session(group)
    why = door().closed[group] if session is None else _unserved(name, source)
    if session is None or why:
        return Collective(name, loc, "", why)
    graph = node.graph
    by, why = FUSING[name](node, session.backend.ranks, group)
    stable_topological_sort(graph)  # a fused product stands behind what all of its factors need
    graph.lint()
    return Collective(name, loc, by, why)


def _unserved(name: str, source: Node) -> str:
    if name not in FUSING:
        return "tilelink fuses all-gathers, reduce-scatters and all-reduces of one tensor"
    if door().library is None:
        return "tilelink is not installed: call tilelink.install() before the graph is compiled"
    values = [n.meta.get("val") for n in source.graph.nodes]
    if any(isinstance(size, torch.SymInt) for v in values if isinstance(v, torch.Tensor) for size in v.shape):
        return "sizes are not known when the graph is compiled (dynamic shapes)"
    if not value(source).numel():
        return "it moves nothing"
    if value(source).dtype not in DTYPES:
        kind = str(value(source).dtype).removeprefix("torch.")
        return f"tilelink multiplies floats from 16 to 64 bits, and this is {kind}"
    return ""
