"""Parameters that `parallelize` puts DTensors in place of: what new ones take over, and what becomes of old ones.

A DTensor has another layout in memory than a parameter, so that no parameter can become one: `torch.utils.swap_tensors` refuses
the two. Each gets another object instead, and the old one says so to whoever goes on using it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from tilelink.errors import TilelinkError
from tilelink.nn.plan_errors import misfit


class Replaced(nn.Parameter):
    """A parameter in whose place there is a DTensor: whatever torch is asked to do with it is an error, TL251."""

    replaced: str
    """The name of the parameter in its model."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = next(each.replaced for each in tree_leaves((args, kwargs)) if isinstance(each, Replaced))
        raise TilelinkError(
            "TL251",
            f"this is {name} as it was before its model was split",
            why="the model has a DTensor in its place: what is done with this one reaches neither the model nor its gradients",
            hint="make optimizers, and whatever else holds parameters, after `parallelize`; "
            f"a module reads self.{name.rpartition('.')[2]}",
        )

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"Replaced({self.replaced!r})"


def require_bare(model: nn.Module) -> None:
    """Raises TL241 where a parameter has what no other can take over from it."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise misfit(
                f"{name} has no size yet",
                "each rank takes a part of a parameter",
                "call the model once before, unsplit",
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise misfit(
                f"{name} has a hook on its gradient",
                "it gets replaced by a DTensor, which the hook would not be called for",
                "register hooks after `parallelize`",
            )
        if parameter.grad is not None:
            raise misfit(
                f"{name} has a gradient",
                "it gets replaced by a DTensor, which has none",
                "compute gradients after `parallelize`, or drop them before: model.zero_grad()",
            )


@dataclass(frozen=True, slots=True)
class Kept:
    """A module as it was, under its name in the model."""

    name: str
    module: nn.Module
    kind: type[nn.Module]
    state: dict[str, Any]

    @staticmethod
    def of(name: str, module: nn.Module) -> Kept:
        state = {name: dict(v) if isinstance(v, dict) else v for name, v in module.__dict__.items()}
        return Kept(name, module, type(module), state)

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

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Those that it had, by their names in the module."""
        return [(own, p) for own, p in self.state["_parameters"].items() if p is not None]

    def full_name(self, own: str) -> str:
        return f"{self.name}.{own}" if self.name else own


def tie(kept: list[Kept]) -> None:
    """What was one parameter of several modules is one again.

    Raises:
        TilelinkError: TL241, the plan splits it in two ways.
    """
    first: dict[int, tuple[str, nn.Module, str]] = {}
    for was in kept:
        for own, parameter in was.parameters():
            name = was.full_name(own)
            if id(parameter) not in first:
                first[id(parameter)] = (name, was.module, own)
                continue
            other, holder, theirs = first[id(parameter)]
            a, b = getattr(was.module, own), getattr(holder, theirs)
            if a is b:
                continue
            lie = [p.placements if isinstance(p, DTensor) else None for p in (a, b)]
            if lie[0] != lie[1]:
                raise misfit(
                    f"{other} and {name} are one parameter, and the plan splits them in two ways",
                    "tied weights are the same part on each rank",
                    "split both by the same axis, or untie them before",
                )
            was.module.register_parameter(own, b)


def hand_over(kept: list[Kept]) -> None:
    """New parameters get the attributes of old ones, which are no parameters from now on."""
    held = {id(p) for was in kept for p in was.module.parameters(recurse=False)}
    for was in kept:
        for own, old in was.parameters():
            new = was.module._parameters.get(own)
            if id(old) in held or new is None:
                continue
            for name, value in vars(old).items():
                vars(new).setdefault(name, value)
            # Some, as torch's RNNs, keep what is set in a list of their own.
            setattr(was.module, own, new)
    for was in kept:
        for own, old in was.parameters():
            if id(old) not in held and type(old) is nn.Parameter:
                old.__class__ = Replaced
                vars(old)["replaced"] = was.full_name(own)
