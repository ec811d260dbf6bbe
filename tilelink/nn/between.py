"""Modules outside of a plan that stand between a layer whose result is split and one whose argument is.

Each rank applies such a module to its part of the activations, so that each has a part of the gradient of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tilelink.nn.plan_entries import STYLES, Entry
from tilelink.nn.plan_errors import misfit
from tilelink.nn.styles import READ


def summed_between(model: nn.Module, entries: list[Entry], own_plan: bool) -> list[Entry]:
    """Entries for such modules, where the plan is the model's own.

    Args:
        own_plan: the plan is the model's own, which its user did not write. In those of transformers such modules are norms of
            heads and activations with parameters, beside the layers, and what they get is split: their gradients are summed.

    Raises:
        TilelinkError: TL241, there is one, and the plan is the user's, who can say on what it is applied.
    """
    found = [*_between(model, entries, direct=own_plan)]
    if found and not own_plan:
        name, module = found[0]
        own = next(own for own, _ in module.named_parameters(recurse=False))
        raise misfit(
            f"{f'{name}.' if name else ''}{own} is outside of the plan, beside layers that split activations for one another",
            "what a rank applies it to may be a part of the activations, and then the gradient that it has is a part as well",
            f'add {name!r}: "replicated_with_grad_allreduce" if it is applied to split activations, else "replicate"',
        )
    summed = "replicated_with_grad_allreduce"
    return [Entry(name, module, None, STYLES[summed], summed) for name, module in found]


def _between(model: nn.Module, entries: list[Entry], direct: bool) -> Iterator[tuple[str, nn.Module]]:
    """Modules that a split layer's result may go through on its way to another, by their parameters' shapes; `direct`: only
    those beside both layers, in one module."""
    styles = {entry.module: entry.style for entry in entries if entry.parameter is None}
    planned = {entry.module for entry in entries}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    splits = [name for name, module in linear.items() if _splits(styles.get(module))]
    takes = [name for name, module in linear.items() if _takes_split(styles.get(module))]
    for around in dict.fromkeys(a for name in splits if (a := _around(name, takes, direct)) is not None):
        inside = {name: module for name, module in model.named_modules() if _is_inside(name, around, direct)}
        layers = [(module, styles.get(module)) for name, module in linear.items() if name in inside]
        # Of activations that every rank has whole.
        widths = {module.in_features for module, style in layers if not _takes_split(style)}
        widths |= {module.out_features for module, style in layers if not _splits(style)}
        for name, module in inside.items():
            own = list(module.parameters(recurse=False))
            if module in planned or isinstance(module, READ):
                continue
            if own and not any(p.dim() and p.shape[-1] in widths for p in own):
                yield name, module


def _around(name: str, takes: list[str], direct: bool) -> str | None:
    """The innermost module around a layer that has one of others inside, `direct`ly; None: there is none."""
    while name:
        name = name.rpartition(".")[0]
        if any(_is_inside(other, name, direct) for other in takes):
            return name
        if direct:
            break
    return None


def _is_inside(name: str, around: str, direct: bool) -> bool:
    if direct:
        return bool(name) and name.rpartition(".")[0] == around
    return not around or name == around or name.startswith(f"{around}.")


def _splits(style: object) -> bool:
    """Whether results of a linear layer are local parts along their last axis."""
    return isinstance(style, ColwiseParallel) and style.use_local_output and style.output_layouts[0] == Shard(-1)


def _takes_split(style: object) -> bool:
    return isinstance(style, RowwiseParallel) and style.input_layouts[0] == Shard(-1)
