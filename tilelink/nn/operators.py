"""Operators as operators of torch: `torch.compile` and autograd know their shapes and their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import _C

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Topology
from tilelink.nn.groups import session_of
from tilelink.pipeline import Operator
from tilelink.pipeline.arguments import results_of
from tilelink.torch_ops.dispatch import Below, function_of, is_plain, kernel_of, plain_apply

LIBRARY = torch.library.Library("tilelink", "FRAGMENT")


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as its gradients need it.

    Attributes:
        tensors: its arguments, as autograd kept them: never a slot, which later calls write over.
        tables: those of its results that hold integers, kept too.
        group: the name of its group.
        given: its sizes by name and its constants.
        wanted: whether the gradient of each argument is asked for. On all ranks alike: gradients are collective too.
    """

    tensors: tuple[torch.Tensor, ...]
    tables: tuple[torch.Tensor, ...]
    group: str
    given: Mapping[str, Any]
    wanted: tuple[bool, ...]


Backward = Callable[..., Sequence[torch.Tensor | None]]
"""`backward(call, *gradients of the results)`: the gradient of each argument, None where it is not asked for."""


@dataclass(frozen=True, slots=True)
class TorchOperator:
    """What `register` gives: call it with this rank's tensors, inside a compiled function or not."""

    name: str
    operator: Operator
    overload: Any
    recorded: Callable[..., Any]
    """Runs it for autograd: takes `_run`, the group, what is given, and plain tensors."""
    defaults: Mapping[str, Any]
    """What follows the tensors and the group: sizes and constants."""
    constants: Mapping[str, Any]
    """Those that have a default."""
    cast: tuple[bool, ...]
    """Which tensors autocast casts."""

    def __call__(self, *tensors: torch.Tensor, group: str = "", **given: Any) -> Any:
        """Run on this rank.

        Args:
            tensors: this rank's part of each input; under autocast they are cast as for a matrix product.
            group: the name of the ranks that call it together (`tilelink.nn.group_name`); "" for all.
            given: sizes that shards leave open, and the operator's constants.

        Raises:
            TypeError: it takes no such size or constant; a group that is not named.
            TilelinkError: as of the operator.
        """
        for name in given:
            if name not in self.defaults:
                raise TypeError(f"{self.name} takes no {name}=; it takes {', '.join(('group', *self.defaults))}")
        if not isinstance(group, str):
            raise TypeError(f"{self.name} takes a group by its name: group=tilelink.nn.group_name(…), before the call")
        # What the dispatcher takes is more than a matrix product does: a call for which it would do nothing goes past it.
        if not is_plain(tensors):
            rest = {**self.defaults, **given}.values() if given else ()
            return self.overload(*autocast(tensors, self.cast), group, *rest)
        if given:
            given = {name: value for name, value in given.items() if value is not None}
        if _C._any_requires_grad(*tensors) and _C.is_grad_enabled():
            return self.recorded(self._run, group, {**self.constants, **given}, *tensors)
        return self._run(group, given, *tensors)

    def _run(self, group: str, given: Mapping[str, Any], *tensors: torch.Tensor) -> Any:
        return self.operator(*tensors, session=session_of(group), **given)


@dataclass(frozen=True, slots=True)
class _Form:
    """What torch's dispatcher passes: so many tensors, the group, then sizes and constants by `names`."""

    tensors: int
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    schema: str

    def parts(self, args: Sequence[Any]) -> tuple[tuple[torch.Tensor, ...], str, dict[str, Any]]:
        """Tensors, group and what is given; the dispatcher leaves trailing defaults out."""
        n = self.tensors
        given = zip(self.names, (*args[n + 1 :], *self.defaults[len(args) - n - 1 :]), strict=True)
        return tuple(args[:n]), args[n], {name: v for name, v in given if v is not None}


def _form_of(operator: Operator) -> _Form:
    """By the operator's signature and the parameters of its body."""
    signature = operator.signature
    tensors = _parameters(operator, (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY))
    constants = _parameters(operator, (inspect.Parameter.KEYWORD_ONLY,))
    split = (a for s in signature.inputs for a in s.axes if a.split in signature.axes and not a.own_slice)
    sizes = [*dict.fromkeys(a.name for a in split)]
    needed = [p for p in constants if p.default is inspect.Parameter.empty]
    others = [p for p in constants if p not in needed]
    taken = [
        *(f"Tensor {p.name}" for p in tensors),
        "str group",
        *(_typed(p) for p in needed),
        *(f"SymInt? {size}=None" for size in sizes),
        *(_typed(p) for p in others),
    ]
    returned = ", ".join("Tensor" for _ in signature.outputs)
    return _Form(
        tensors=len(tensors),
        names=(*(p.name for p in needed), *sizes, *(p.name for p in others)),
        defaults=(*(None for _ in (*needed, *sizes)), *(p.default for p in others)),
        schema=f"({', '.join(taken)}) -> {returned if len(signature.outputs) == 1 else f'({returned})'}",
    )


def register(
    operator: Operator, *, backward: Backward | None = None, name: str | None = None, autocast: bool = True
) -> TorchOperator:
    """Make an operator known to torch, as `tilelink::<name>`. Once per name and process.

    The schema, and the shapes that `torch.compile` asks for, follow from the operator's signature.

    Args:
        operator: as it is to run; one with another schedule needs another name.
        backward: its gradients, in operators that are registered too; None: it has none.
        name: instead of the operator's own.
        autocast: whether it multiplies matrices, which autocast has a dtype for.

    Raises:
        TilelinkError: TL233 the name is taken; TL230, when shapes are asked for that the inputs do not tell.
    """
    name = name or operator.name
    if hasattr(torch.ops.tilelink, name):
        raise TilelinkError(
            "TL233",
            f"torch knows an operator `tilelink::{name}` already",
            loc=operator.loc,
            why="graphs and gradients find it by that name",
            hint="register it once, at the top of a module; give another schedule another name: name=…",
        )
    form = _form_of(operator)
    several = len(operator.signature.outputs) > 1

    def run(*args: Any) -> Any:
        mine, group, given = form.parts(args)
        return operator(*mine, session=session_of(group), **given)

    def fake(*args: Any) -> Any:
        mine, group, given = form.parts(args)
        session = session_of(group)
        at = (Topology(1), 0) if session is None else (session.backend.topology, session.backend.rank)
        made = [mine[0].new_empty(shape, dtype=dtype) for shape, dtype in results_of(operator, mine, given, *at)]
        return tuple(made) if several else made[0]

    LIBRARY.define(f"{name}{form.schema}", tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tilelink::{name}", fake, lib=LIBRARY)
    overload = getattr(torch.ops.tilelink, name).default
    function = _differentiable(name, backward)

    def recorded(below: Below, *args: Any) -> Any:
        mine, group, given = form.parts(args)
        return function.apply(lambda _group, _given, *mine: below(*mine, *args[form.tensors :]), group, given, *mine)

    LIBRARY.impl(name, kernel_of(overload.redispatch, recorded), "Autograd", with_keyset=True)
    defaults = dict(zip(form.names, form.defaults, strict=True))
    constants = {name: value for name, value in defaults.items() if value is not None}
    cast = tuple(autocast and shape.dtype is None for shape in operator.signature.inputs)
    return TorchOperator(f"tilelink::{name}", operator, overload, plain_apply(function), defaults, constants, cast)


def _differentiable(name: str, backward: Backward | None) -> type[torch.autograd.Function]:
    """Of the group, what is given, and tensors."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.group, ctx.given, *tensors = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*tensors, *[t for t in results if not t.is_floating_point()])
        ctx.count = len(tensors)

    def differentiate(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        if backward is None:
            raise RuntimeError(f"tilelink.{name}.default has no gradient: it was registered without `backward`")
        saved, count = ctx.saved_tensors, ctx.count
        call = Call(saved[:count], saved[count:], ctx.group, ctx.given, ctx.wanted[2:])
        return None, None, *backward(call, *(None if g is None else g.contiguous() for g in gradients))

    return function_of(keep, differentiate)


def _parameters(operator: Operator, kinds: tuple[Any, ...]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(operator.fn).parameters.values() if p.kind in kinds]


def _typed(constant: inspect.Parameter) -> str:
    """A constant of the operator's body, in the words of torch's schemas."""
    said = (
        constant.annotation if isinstance(constant.annotation, str) else inspect.formatannotation(constant.annotation)
    )
    kind = said.replace(" | None", "?")
    if constant.default is inspect.Parameter.empty:
        return f"{kind} {constant.name}"
    default = f'"{constant.default}"' if isinstance(constant.default, str) else constant.default
    return f"{kind} {constant.name}={default}"


def autocast(tensors: Sequence[torch.Tensor], cast: Sequence[bool]) -> Sequence[torch.Tensor]:
    """Under autocast the floating tensors among those that are `cast`, as autocast would have them for a matrix product."""
    kind = tensors[0].device.type
    # Asking whether it is available for a kind is something that torch.compile of 2.11 cannot trace.
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    floats = (torch.float32, torch.float16, torch.bfloat16)
    return [t.to(dtype) if wanted and t.dtype in floats else t for t, wanted in zip(tensors, cast, strict=True)]
