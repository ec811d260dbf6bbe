"""What the names of a plan stand for, and whether each module can be split as the plan says: before anything is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.parallel import SequenceParallel as WholeModules
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from tilelink.nn.broadcast import from_source
from tilelink.nn.fitting import require_even
from tilelink.nn.plan_errors import made_of, misfit
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
    "replicate": ReplicatedParallel(summed=False),
    "replicated_with_grad_allreduce": ReplicatedParallel(),
    "rowwise": RowwiseParallel(),
    "rowwise_rep": RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    "sequence_parallel": SequenceParallel(use_local_output=True),
}
"""What transformers' names for styles of modules mean here; all other names mean what they mean there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A module, or one of its parameters, and how it is split."""

    name: str
    module: nn.Module
    parameter: str | None
    style: Any
    said: str
    """The style as the plan has it, for errors and to tell transformers' apart."""

    def check(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """Raises TL241, TL232 where it cannot be."""
        own = dict(self.module.named_parameters(recurse=False))
        if any(isinstance(p, DTensor) for p in own.values()):
            raise misfit(f"{self.name} is split already", "its parameters are DTensors", "parallelize a model once")
        if self.parameter is not None or not isinstance(self.style, ColwiseParallel | RowwiseParallel):
            return
        if not isinstance(self.module, nn.Linear | nn.Embedding):
            raise misfit(
                f"{self.name} is {type(self.module).__name__}, and {type(self.style).__name__} splits linear layers",
                "its output or input features are what each rank has a part of",
                "name the linear layers inside it",
            )
        if isinstance(self.module, READ):
            raise misfit(
                f"{self.name} is not called: the module around reads its weight",
                "it would find a part where it takes the whole, as torch.nn.MultiheadAttention does of out_proj",
                "leave it out of the plan, or write attention with linear layers that are called",
            )
        if is_parametrized(self.module):
            raise made_of(
                self.name, "split the model first, or call torch.nn.utils.parametrize.remove_parametrizations"
            )
        require_own(self.name, self.module)
        inner = next((name for name, p in self.module.named_parameters() if name not in own), None)
        if inner is not None:
            raise misfit(
                f"{self.name} has {inner} inside, and {type(self.style).__name__} splits its own weight",
                "what a rank makes of its part is no activation that modules inside can be applied to",
                "leave it out of the plan",
            )
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
            # transformers' take each rank's part of its own
            from_source([self.module.get_parameter(self.parameter)], mesh, src_data_rank)
            self.style.shard_param(self.module, self.parameter, mesh)


def entries_of(model: nn.Module, plan: Mapping[str, Any], whole: bool) -> Iterator[Entry]:
    """What each name of a plan stands for; `whole`: each stands for something."""
    modules = dict(model.named_modules())
    named: dict[str, tuple[nn.Module, str | None]] = {name: (module, None) for name, module in modules.items()}
    for name, _ in model.named_parameters():
        holder, _, own = name.rpartition(".")
        named[name] = (modules[holder], own)
    # A module that is in several places is known by the first.
    first = {module: name for name, module in modules.items()}
    places = {name: first[module] for name, module in model.named_modules(remove_duplicate=False)}
    places |= {name: name for name in named}
    stands = {p: list(dict.fromkeys(first for name, first in places.items() if _matches(name, p))) for p in plan}
    explicit = {name for names in stands.values() for name in names}
    for pattern, style in plan.items():
        found = stands[pattern]
        if not found and whole:
            near = get_close_matches(pattern, [name for name in modules if name], 1, 0.4)
            raise misfit(
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
                own = [each for each in own if f"{name}.{each}" not in explicit]
                _require_kind(name, module, str(style), own)
                yield from (Entry(f"{name}.{each}", module, each, chosen, str(style)) for each in own)
            yield Entry(name, module, parameter, chosen, str(style))


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
    raise misfit(
        f"the plan splits {pattern!r} by {style!r}, which is no style of a {'module' if parameter is None else 'parameter'}",
        "styles are those of torch.distributed.tensor.parallel and tilelink.nn, or transformers' names",
        f"of modules these are {', '.join(STYLES)}",
    )


KINDS: dict[str, type[nn.Module]] = {"embedding_colwise": nn.Embedding, "packed_colwise": nn.Linear}
"""Of transformers' styles, which kind of module each splits."""
WITHOUT = ("all_reduce", "mla_kv_a_proj", "moe_identity_expert", "packed_rowwise")
"""Those that call a module with its own parameters as they are: here these are DTensors, and arguments are not."""


def _require_kind(name: str, module: nn.Module, style: str, own: list[str]) -> None:
    """Raises TL241 where one of transformers' styles is not for such a module, of which it would split `own`."""
    kind = KINDS.get(style)
    if kind is not None and not isinstance(module, kind):
        raise misfit(
            f"{name} is {type(module).__name__}, and {style!r} splits {kind.__name__}",
            "each rank has a part of its weight, by an axis that other modules do not have",
            "name the layers inside it, or choose another style",
        )
    if style in WITHOUT and own:
        raise misfit(
            f"the plan splits {name} by {style!r}, and it has parameters of its own: {own[0]}",
            "they become DTensors, and the style calls the module with plain tensors",
            f"of modules styles are {', '.join(STYLES)}",
        )


def require_called(entries: list[Entry]) -> None:
    """Raises TL241 where a parameter is split, and nothing says how its module is called, or a module inside another that is
    split as a whole."""
    called = {
        entry.module for entry in entries if entry.parameter is None and not isinstance(entry.style, ParallelStyle)
    }
    for entry in entries:
        if entry.parameter is not None and entry.module not in called and entry.said != "replicate":
            raise misfit(
                f"the plan splits the parameter {entry.name}, and not the module that has it",
                "a module with a part of a parameter is called in another way, which its style says",
                f"name the module: {entry.name.rpartition('.')[0]!r}",
            )
    for outer in entries:
        if not isinstance(outer.style, WholeModules):
            continue
        inside = {module for module in outer.module.modules() if module is not outer.module}
        for entry in entries:
            if entry.module in inside:
                raise misfit(
                    f"{entry.name} is inside of {outer.name or 'the model'}, and the plan names both",
                    f"{type(outer.style).__name__} holds all parameters inside of a module alike",
                    f"leave out {entry.name}, or name the other modules inside of {outer.name or 'the model'} one by one",
                )


def require_apart(entries: list[Entry]) -> None:
    """Raises TL241 where a module, or a parameter, would be split twice."""
    seen: set[tuple[nn.Module, str | None]] = set()
    for entry in entries:
        if (entry.module, entry.parameter) in seen:
            raise misfit(f"two names of the plan stand for {entry.name}", "a module is split once", "remove one")
        seen.add((entry.module, entry.parameter))


def require_own(name: str, module: nn.Module) -> None:
    """Raises TL241 where a hook in front of each call makes a parameter of DTensors and plain tensors."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod):
            raise made_of(
                name, "remove it by torch.nn.utils.prune.remove, remove_weight_norm or remove_spectral_norm before"
            )
