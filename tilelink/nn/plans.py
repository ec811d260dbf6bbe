"""`parallelize`: a model that exists is split over ranks by a plan, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle

from tilelink.errors import TilelinkError
from tilelink.nn.between import summed_between
from tilelink.nn.broadcast import from_source
from tilelink.nn.groups import group_name
from tilelink.nn.plan_entries import STYLES, Entry, entries_of, require_apart, require_called, require_own
from tilelink.nn.plan_errors import misfit
from tilelink.nn.replaced import Kept, hand_over, require_bare, tie
from tilelink.nn.styles import READ


def parallelize(
    model: nn.Module,
    plan: Mapping[str, ParallelStyle | str] | None = None,
    mesh: DeviceMesh | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Split a model over the ranks of a mesh: all of the plan, or, with an error, nothing.

    Parameters become DTensors under the names they have: parts of those that the plan splits, and of all others, which every
    rank has, the whole. So `state_dict`, `torch.distributed.checkpoint`, `fully_shard`, torch's `clip_grad_norm_` and
    optimizers work as ever. Collective over the mesh.

    Args:
        model: the same on all ranks, changed in place.
        plan: names of modules, each part of which may be a pattern (`"layers.*.mlp.up_proj"`), and how each is split: a style of
            torch's or `tilelink.nn`'s, or a name that transformers has for one; None: the model's `tp_plan`.
        mesh: of one dimension; None: all ranks.
        src_data_rank: the rank of the mesh whose parameters and buffers count, and are sent to all others; None: each rank takes
            its part of its own, and what every rank has whole is taken to be alike.

    Returns:
        the model.

    Raises:
        TilelinkError: TL241 a plan that does not fit the model, TL232 features or heads that cannot be split evenly, TL242 a mesh
            that this job cannot use.
    """
    whole = plan is not None
    given: Mapping[str, ParallelStyle | str] | None = plan if whole else getattr(model, "tp_plan", None)
    if given and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise misfit(
            f"the plan is {given!r}",
            "a plan says how each of some modules is split",
            "pass one: {name of a module: style}",
        )
    if not given:
        raise misfit(
            f"{type(model).__name__} has no plan",
            "without `plan` it is the model's `tp_plan`, which models of transformers have",
            "pass one: {name of a module: style}",
        )
    mesh = _usable(mesh, model)
    entries = [*entries_of(model, given, whole)]
    require_apart(entries)
    require_called(entries)
    require_bare(model)
    entries += summed_between(model, entries, not whole, mesh.size())
    for entry in entries:
        entry.check(model, mesh)
    kept = [Kept.of(name, module) for name, module in model.named_modules()]
    with ExitStack() as undone:
        for each in kept:
            undone.callback(each.restore)
        for entry in entries:
            entry.apply(mesh, src_data_rank)
        _replicate_others(model, mesh, src_data_rank)
        tie(kept)
        from_source((b for b in model.buffers() if not isinstance(b, DTensor)), mesh, src_data_rank)
        undone.pop_all()
    hand_over(kept)
    return model


def _usable(mesh: DeviceMesh | None, model: nn.Module) -> DeviceMesh:
    """Raises TL242 where operators cannot run on the ranks of a mesh."""
    if mesh is None:
        kind = next((p.device.type for p in model.parameters()), "cpu")
        if not dist.is_initialized():
            raise _no_mesh("there is no process group", "initialize torch.distributed, or start with torchrun")
        return init_device_mesh("cpu" if kind == "meta" else kind, (dist.get_world_size(),))
    if not isinstance(mesh, DeviceMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _no_mesh(
            f"it is a {type(mesh).__name__}", 'make one of a process group: DeviceMesh.from_group(group, "cuda")'
        )
    if mesh.ndim != 1:
        raise _no_mesh(f"it has {mesh.ndim} dimensions", 'pass one of them: mesh["tensor"]')
    if mesh.get_coordinate() is None:
        raise _no_mesh("this rank is not in it", "pass the mesh that this rank is in")
    try:
        group_name(mesh)
    except (RuntimeError, ValueError, TilelinkError) as error:
        raise _no_mesh(f"its group is not there: {error}", "make the mesh anew, after init_process_group") from error
    return mesh


def _replicate_others(model: nn.Module, mesh: DeviceMesh, src_data_rank: int | None) -> None:
    """Parameters outside of the plan as DTensors too: torch's functions of all gradients take either kind, not both."""
    for name, module in list(model.named_modules()):
        own = list(module.parameters(recurse=False))
        inner = [p for each in module.children() if isinstance(each, READ) for p in each.parameters(recurse=False)]
        if any(isinstance(p, DTensor) for p in own):
            continue
        if own or any(not isinstance(p, DTensor) for p in inner):
            require_own(name, module)
            Entry(name, module, None, STYLES["replicate"], "replicate").apply(mesh, src_data_rank)


def _no_mesh(text: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL242",
        f"the mesh is not one that this job can split a model over: {text}",
        why="a model is split over the ranks of one process group, of which this process is one",
        hint=hint,
    )
