"""Modules outside of a plan that stand between a layer whose result is split and one whose argument is.

Each rank applies such a module to its part of the activations, so that each has a part of the gradient of its parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tilelink.nn.plan_entries import STYLES, Entry
from tilelink.nn.plan_errors import misfit
from tilelink.nn.styles import READ


def summed_between(model: nn.Module, entries: list[Entry], own_plan: bool, ranks: int) -> list[Entry]:
    """Entries for such modules, where the plan is the model's own.

    Args:
        own_plan: the plan is the model's own, which its user did not write. In those of transformers such modules are norms of
            heads and activations with parameters, beside the layers, and what they get is split: their gradients are summed.

    Raises:
        TilelinkError: TL241, there is one, and the plan is the user's, who can say on what it is applied.
    """
    found = _between(model, entries, own_plan, ranks)
    if found and not own_plan:
        module, name = next(iter(found.items()))
        own = next(own for own, _ in module.named_parameters(recurse=False))
        more = f"; and so for {len(found) - 1} more, such as {[*found.values()][1]!r}" if len(found) > 1 else ""
        raise misfit(
            f"{f'{name}.' if name else ''}{own} is outside of the plan, beside layers that split activations for one another",
            "what a rank applies it to may be a part of the activations, and then the gradient that it has is a part as well",
            f'add {name!r}: "replicated_with_grad_allreduce" if it is applied to split activations, else "replicate"{more}',
        )
    summed = "replicated_with_grad_allreduce"
    return [Entry(name, module, None, STYLES[summed], summed) for module, name in found.items()]


def _between(model: nn.Module, entries: list[Entry], direct: bool, ranks: int) -> dict[nn.Module, str]:
    """Modules that a split layer's result may go through on its way to another, with their names, by their parameters' shapes;
    `direct`: only those beside both layers, in one module."""
    styles = {entry.module: entry.style for entry in entries if entry.parameter is None}
    planned = {entry.module for entry in entries}
    # One module may be in several places, of which any can be between such layers.
    named = [*model.named_modules(remove_duplicate=False)]
    called = {""} | {name for name, module in named if type(module).forward is not nn.Module.forward}
    layers = {name: _ends(module, styles.get(module)) for name, module in named if isinstance(module, LAYERS)}
    takes = [name for name, (given, _) in layers.items() if given.split]
    arounds = (_around(name, called, takes, direct) for name, (_, made) in layers.items() if made.split)
    found: dict[nn.Module, str] = {}
    for around in dict.fromkeys(a for a in arounds if a is not None):
        inside = {name: module for name, module in named if _is_inside(name, around, called, direct)}
        ends = [pair for name, pair in layers.items() if name in inside]
        parts = {end.width // ranks for pair in ends for end in pair if end.split}
        # Of activations that every rank has whole, and those that split layers take or give; one number is applied to any.
        widths, beside = (
            {end.width for pair in some for end in pair if not end.split and end.width > 1}
            for some in (ends, [pair for pair in ends if any(end.split for end in pair)])
        )
        for name, module in inside.items():
            own = list(module.parameters(recurse=False))
            if not own or module in planned or isinstance(module, READ):
                continue
            last = {(p.shape[-1], p.dim() > 1) for p in own if p.dim()}
            # A vector that a whole number of times makes up a part may be that of a norm of heads: only a matrix tells then.
            if not any(
                n in widths and (direct or (matrix and n in beside) or all(part % n for part in parts))
                for n, matrix in last
            ):
                found.setdefault(module, name)
    return found


LAYERS = (nn.Linear, nn.Embedding)


class _End(NamedTuple):
    """What goes into a layer, or comes out: how long its last axis is, and whether each rank has a part of that."""

    width: int
    split: bool


def _ends(module: nn.Linear | nn.Embedding, style: object) -> tuple[_End, _End]:
    """Of an embedding that is not split nothing: what it gives may be added to a part as well as to the whole."""
    takes = makes = False
    if isinstance(style, ColwiseParallel | RowwiseParallel):
        takes = style.input_layouts[0] == Shard(-1)
        makes = style.use_local_output and style.output_layouts[0] == Shard(-1)
    if isinstance(module, nn.Embedding):
        return _End(0, False), _End(module.embedding_dim if makes else 0, makes)
    return _End(module.in_features, takes), _End(module.out_features, makes)


def _around(name: str, called: set[str], takes: list[str], direct: bool) -> str | None:
    """The innermost module around a layer that has one of others inside, `direct`ly; None: there is none."""
    while name:
        name = _holder(name, called)
        if any(_is_inside(other, name, called, direct) for other in takes):
            return name
        if direct:
            break
    return None


def _holder(name: str, called: set[str]) -> str:
    """The innermost module around another that is `called`: a list of modules is not, and what is beside it may be between."""
    name = name.rpartition(".")[0]
    return name if name in called else _holder(name, called)


def _is_inside(name: str, around: str, called: set[str], direct: bool) -> bool:
    if direct:
        return bool(name) and _holder(name, called) == around
    return not around or name == around or name.startswith(f"{around}.")
