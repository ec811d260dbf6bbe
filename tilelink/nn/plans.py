"""`parallelize`: a model that exists is split over ranks by a plan, as a whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from tilelink.errors import TilelinkError
from tilelink.nn.groups import group_name
from tilelink.nn.linear import require_even
from tilelink.nn.styles import (
    READ,
    ColwiseParallel,
    Local,
    ReplicatedParallel,
    RowwiseParallel,
    SequenceParallel,
    SplitModule,
)

STYLES: dict[str, ParallelStyle] = {
    "colwise": ColwiseParallel(),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    "replicated_with_grad_allreduce": ReplicatedParallel(),
    "rowwise": RowwiseParallel(),
    "rowwise_rep": RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    "sequence_parallel": SequenceParallel(use_local_output=True),
}
"""What transformers' names for styles of modules mean here; all other names mean what they mean there."""


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
        src_data_rank: the rank whose parameters count; None: each rank takes its part of its own.

    Returns:
        the model.

    Raises:
        TilelinkError: TL241 a plan that does not fit the model, TL232 features or heads that cannot be split evenly, TL242 a mesh
            that this job cannot use.
    """
    whole = plan is not None
    given: Mapping[str, ParallelStyle | str] | None = plan if whole else getattr(model, "tp_plan", None)
    if given and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _misfit(
            f"the plan is {given!r}",
            "a plan says how each of some modules is split",
            "pass one: {name of a module: style}",
        )
    if not given:
        raise _misfit(
            f"{type(model).__name__} has no plan",
            "without `plan` it is the model's `tp_plan`, which models of transformers have",
            "pass one: {name of a module: style}",
        )
    mesh = _usable(mesh, model)
    entries = [*_entries(model, given, whole)]
    _require_apart(entries)
    for entry in entries:
        entry.check(model, mesh)
    kept = [_Kept.of(module) for module in model.modules()]
    with ExitStack() as undone:
        for each in kept:
            undone.callback(each.restore)
        for entry in entries:
            entry.apply(mesh, src_data_rank)
        _replicate_others(model, mesh)
        _tie(model, kept)
        undone.pop_all()
    return model


@dataclass(frozen=True, slots=True)
class _Entry:
    """A module, or one of its parameters, and how it is split."""

    name: str
    module: nn.Module
    parameter: str | None
    style: Any

    def check(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """Raises TL241, TL232 where it cannot be."""
        own = dict(self.module.named_parameters(recurse=False))
        if any(isinstance(p, DTensor) for p in own.values()):
            raise _misfit(f"{self.name} is split already", "its parameters are DTensors", "parallelize a model once")
        if self.parameter is not None or not isinstance(self.style, ColwiseParallel | RowwiseParallel):
            return
        if not isinstance(self.module, nn.Linear | nn.Embedding):
            raise _misfit(
                f"{self.name} is {type(self.module).__name__}, and {type(self.style).__name__} splits linear layers",
                "its output or input features are what each rank has a part of",
                "name the linear layers inside it",
            )
        if is_parametrized(self.module):
            raise _made_of(
                self.name, "split the model first, or call torch.nn.utils.parametrize.remove_parametrizations"
            )
        _require_own(self.name, self.module)
        if not isinstance(self.module, nn.Linear):
            return
        columns = isinstance(self.style, ColwiseParallel)
        which = "out_features" if columns else "in_features"
        features, ranks = getattr(self.module, which), mesh.size()
        require_even(f"{self.name}.{which}", features, ranks)
        width = getattr(model.get_submodule(self.name.rpartition(".")[0]), "head_dim", None)
        if isinstance(width, int) and features % width == 0:
            require_even(f"{self.name}: heads", features // width, ranks)

    def apply(self, mesh: DeviceMesh, src_data_rank: int | None) -> None:
        if isinstance(self.style, ParallelStyle):
            self.style.src_data_rank = src_data_rank
            self.style._apply(self.module, mesh)
            if isinstance(self.module, (SplitModule, Local)):
                self.module.split = replace(self.module.split, name=self.name)
        elif self.parameter is None:
            self.style.install_forward(self.module, mesh)
        else:
            self.style.shard_param(self.module, self.parameter, mesh)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A module as it was."""

    module: nn.Module
    kind: type[nn.Module]
    state: dict[str, Any]

    @staticmethod
    def of(module: nn.Module) -> _Kept:
        state = {name: dict(v) if isinstance(v, dict) else v for name, v in module.__dict__.items()}
        return _Kept(module, type(module), state)

    def restore(self) -> None:
        self.module.__class__ = self.kind
        now = self.module.__dict__
        for name in set(now) - set(self.state):
            del now[name]
        for name, was in self.state.items():
            if isinstance(was, dict) and isinstance(now.get(name), dict):
                now[name].clear()
                now[name].update(was)
            else:
                now[name] = was


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


def _entries(model: nn.Module, plan: Mapping[str, Any], whole: bool) -> Iterator[_Entry]:
    """What each name of a plan stands for; `whole`: each stands for something."""
    modules = dict(model.named_modules())
    named: dict[str, tuple[nn.Module, str | None]] = {name: (module, None) for name, module in modules.items()}
    for name, _ in model.named_parameters():
        holder, _, own = name.rpartition(".")
        named[name] = (modules[holder], own)
    stands = {pattern: [name for name in named if _matches(name, pattern)] for pattern in plan}
    explicit = {name for names in stands.values() for name in names}
    for pattern, style in plan.items():
        found = stands[pattern]
        if not found and whole:
            near = get_close_matches(pattern, [name for name in modules if name], 1, 0.4)
            raise _misfit(
                f"the plan names {pattern!r}, and {type(model).__name__} has no such module",
                "a name is a module's path, each part of which may be a pattern",
                f"it has {near[0]}" if near else "look at model.named_modules()",
            )
        for name in found:
            module, parameter = named[name]
            chosen = _style(pattern, style, parameter)
            if parameter is None and not isinstance(chosen, ParallelStyle):
                # transformers' are applied to each parameter, then to the module
                own = [each for each, _ in module.named_parameters(recurse=False)]
                yield from (_Entry(f"{name}.{p}", module, p, chosen) for p in own if f"{name}.{p}" not in explicit)
            yield _Entry(name, module, parameter, chosen)


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _style(pattern: str, style: Any, parameter: str | None) -> Any:
    if isinstance(style, ParallelStyle) and parameter is None:
        return style
    if isinstance(style, str) and style in STYLES and parameter is None:
        return STYLES[style]
    theirs: Any = None
    if "transformers" in sys.modules:
        from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

        theirs = ALL_PARALLEL_STYLES
    if isinstance(style, str) and theirs is not None and style in theirs:
        return theirs[style]
    raise _misfit(
        f"the plan splits {pattern!r} by {style!r}, which is no style of a {'module' if parameter is None else 'parameter'}",
        "styles are those of torch.distributed.tensor.parallel and tilelink.nn, or transformers' names",
        f"of modules these are {', '.join(STYLES)}",
    )


def _require_apart(entries: list[_Entry]) -> None:
    seen: set[tuple[nn.Module, str | None]] = set()
    for entry in entries:
        if (entry.module, entry.parameter) in seen:
            raise _misfit(f"two names of the plan stand for {entry.name}", "a module is split once", "remove one")
        seen.add((entry.module, entry.parameter))


def _require_own(name: str, module: nn.Module) -> None:
    """Raises TL241 where a hook in front of each call makes a parameter of DTensors and plain tensors."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod):
            raise _made_of(
                name, "remove it by torch.nn.utils.prune.remove, remove_weight_norm or remove_spectral_norm before"
            )


def _made_of(name: str, hint: str) -> TilelinkError:
    return _misfit(
        f"{name} has a weight that is made of other parameters",
        "each rank has a part of a parameter, and of none from which a parametrization makes another",
        hint,
    )


def _tie(model: nn.Module, kept: list[_Kept]) -> None:
    """What was one parameter of several modules is one again.

    Raises:
        TilelinkError: TL241, the plan splits it in two ways.
    """
    names = {module: name for name, module in model.named_modules()}
    first: dict[int, tuple[str, nn.Module, str]] = {}
    for was in kept:
        for own, parameter in was.state["_parameters"].items():
            if parameter is None:
                continue
            name = f"{names[was.module]}.{own}"
            if id(parameter) not in first:
                first[id(parameter)] = (name, was.module, own)
                continue
            other, holder, theirs = first[id(parameter)]
            a, b = getattr(was.module, own), getattr(holder, theirs)
            if a is b:
                continue
            lie = [p.placements if isinstance(p, DTensor) else None for p in (a, b)]
            if lie[0] != lie[1]:
                raise _misfit(
                    f"{other} and {name} are one parameter, and the plan splits them in two ways",
                    "tied weights are the same part on each rank",
                    "split both by the same axis, or untie them before",
                )
            was.module.register_parameter(own, b)


def _replicate_others(model: nn.Module, mesh: DeviceMesh) -> None:
    """Parameters outside of the plan as DTensors too: torch's functions of all gradients take either kind, not both."""
    for name, module in list(model.named_modules()):
        own = list(module.parameters(recurse=False))
        inner = [p for each in module.children() if isinstance(each, READ) for p in each.parameters(recurse=False)]
        if any(isinstance(p, DTensor) for p in own):
            continue
        if own or any(not isinstance(p, DTensor) for p in inner):
            _require_own(name, module)
            _Entry(name, module, None, ReplicatedParallel(summed=False)).apply(mesh, None)


def _no_mesh(text: str, hint: str) -> TilelinkError:
    return TilelinkError(
        "TL242",
        f"the mesh is not one that this job can split a model over: {text}",
        why="a model is split over the ranks of one process group, of which this process is one",
        hint=hint,
    )


def _misfit(text: str, why: str, hint: str) -> TilelinkError:
    return TilelinkError("TL241", text, why=why, hint=hint)
