"""Styles of `torch.distributed.tensor.parallel` whose linear layers hide their communication behind their products.

Parameters become DTensors and keep their names, as by torch's own styles; a module stays what it is and gets another `forward`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import chain
from threading import RLock
from typing import Any, ClassVar, Self, TypeGuard

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import style as torchs
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.stateless import _reparametrize_module

from tilelink.errors import TilelinkError
from tilelink.nn import functional as F
from tilelink.nn import native, split_embedding, split_linear
from tilelink.nn.broadcast import from_source
from tilelink.nn.fitting import require_even
from tilelink.nn.groups import group_name
from tilelink.nn.local import local, own

LAST = Shard(-1)


@dataclass(frozen=True, slots=True)
class Split:
    """How a module lies over the ranks.

    Attributes:
        mesh: of one dimension; `group` is its name.
        given: the placement of an argument that is no DTensor.
        made: the placement of the result.
        local: whether the result is no DTensor.
        name: of the module in its model, for errors; "" where nobody said it.
    """

    mesh: DeviceMesh
    group: str
    given: Placement
    made: Placement
    local: bool = True
    name: str = ""

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def placement(self, x: torch.Tensor) -> Placement:
        """How an argument lies over the ranks. Raises TL249, over other ranks than the module."""
        if not isinstance(x, DTensor):
            return self.given
        if x.device_mesh != self.mesh:
            raise TilelinkError(
                "TL249",
                f"an argument lies over {x.device_mesh}, and the module over {self.mesh}",
                why="its placements say which of the module's ranks has what",
                hint='redistribute it over the other dimensions, and pass x.to_local(), or split it over mesh["tensor"] alone',
            )
        return x.placements[0]

    def of(self, x: torch.Tensor) -> DTensor:
        return x if isinstance(x, DTensor) else DTensor.from_local(x, self.mesh, (self.given,), run_check=False)

    def part(self, weight: torch.Tensor, axis: int, whole: int) -> torch.Tensor:
        """A weight that is split along an axis, of size `whole` over all ranks; what a parametrization made of it may lie
        otherwise. Raises TL250, not split."""
        if not isinstance(weight, DTensor):
            if weight.shape[axis] == whole and self.mesh.size() > 1:
                what = "bias" if weight.dim() == 1 else "weight"
                raise TilelinkError(
                    "TL250",
                    f"a {what} of {whole} by axis {axis} is whole, and the module takes 1/{self.mesh.size()} of it",
                    why="it was replaced after the model was split, as by load_state_dict(…, assign=True) of an unsplit model's",
                    hint="load by torch.distributed.checkpoint.state_dict.set_model_state_dict, with full_state_dict=True",
                )
            return weight
        placement = weight.placements[0]
        if type(placement) is Shard and placement.dim % 2 == axis:
            return weight
        return weight.redistribute(placements=(Shard(axis),))

    def result(self, y: torch.Tensor, placement: Placement, length: int | None = None) -> torch.Tensor:
        """A local tensor that lies as `placement` says, as this module's result; `length`: of the axis that is split, where ranks
        may have parts of different sizes."""
        if self.local and (_same(placement, self.made, y.dim()) or self.mesh.size() == 1):
            return y
        shape: dict[str, Any] = {}
        if length is not None and _is_shard(placement):
            whole = list(y.shape)
            whole[placement.dim] = length
            shape = {"shape": torch.Size(whole), "stride": torch.empty(whole, device="meta").stride()}
        found = DTensor.from_local(y, self.mesh, (placement,), run_check=False, **shape)
        found = found.redistribute(placements=(self.made,))
        return found.to_local() if self.local else found


class SplitModule(nn.Module, ABC):
    """A module of torch of which each rank has a part."""

    split: Split

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        try:
            return self.product(input)
        except TilelinkError as error:
            error.add_note(f"in module {self.split.name!r}; split the model anew if its group of ranks was destroyed")
            raise

    @abstractmethod
    def product(self, input: torch.Tensor) -> torch.Tensor:
        """Of the rank's part of the weight, as the style says."""


class ColumnLinear(SplitModule, nn.Linear):
    """What `ColwiseParallel` makes of a `torch.nn.Linear`."""

    features: ClassVar[str] = "out_features"

    def product(self, input: torch.Tensor) -> torch.Tensor:
        split, weight = self.split, self.split.part(self.weight, 0, self.out_features)
        bias = None if self.bias is None else split.part(self.bias, 0, self.out_features)
        placement = split.placement(input)
        if _is_shard(placement) and placement.dim % input.dim() != input.dim() - 1:
            ranks = split.mesh.size()
            uneven = isinstance(input, DTensor) and input.shape[placement.dim] % ranks
            length = input.shape[placement.dim] if uneven else None
            given: dict[str, Any] = {"group": split.group, "ranks": ranks, "length": length}
            y = split_linear.gathered(local(input), weight, bias, placement.dim, **given)
        else:
            x = input if type(placement) is Replicate else split.of(input).redistribute(placements=(Replicate(),))
            y = split_linear.replicated(local(x), weight, bias, group=split.group)
        return split.result(y, LAST)


class RowLinear(SplitModule, nn.Linear):
    """What `RowwiseParallel` makes of a `torch.nn.Linear`."""

    features: ClassVar[str] = "in_features"

    def product(self, input: torch.Tensor) -> torch.Tensor:
        split, weight, bias = self.split, self.split.part(self.weight, 1, self.in_features), self.bias
        placement = split.placement(input)
        apart = _same(placement, LAST, input.dim())
        x = local(input if apart else split.of(input).redistribute(placements=(LAST,)))
        if type(split.made) is Replicate:
            y = split_linear.summed(x, weight, bias, group=split.group)
        elif _is_shard(split.made) and split.made.dim % x.dim() != x.dim() - 1:
            shape: dict[str, Any] = {"group": split.group, "ranks": split.mesh.size()}
            y = split_linear.scattered(x, weight, bias, split.made.dim, **shape)
        else:
            y = split.result(nn.functional.linear(x, own(weight, fresh=True)), Partial())
            return y if bias is None else y + _as(split, own(bias).to(y.dtype))
        return split.result(y, split.made, x.shape[split.made.dim] if _is_shard(split.made) else None)


class RowEmbedding(SplitModule, nn.Embedding):
    """What `RowwiseParallel` makes of a `torch.nn.Embedding` whose ids and results are on every rank."""

    @staticmethod
    def takes(module: nn.Module, split: Split) -> TypeGuard[nn.Embedding]:
        """Whether it is such a one, each rank has a row, and nothing counts or changes rows as they are looked up."""
        if type(module) is not nn.Embedding or type(split.given) is not Replicate or type(split.made) is not Replicate:
            return False
        last = (split.mesh.size() - 1) * -(-module.num_embeddings // split.mesh.size())
        return last < module.num_embeddings and not (module.max_norm or module.sparse or module.scale_grad_by_freq)

    def product(self, input: torch.Tensor) -> torch.Tensor:
        split, total = self.split, self.num_embeddings
        first = split.mesh.get_local_rank() * -(-total // split.mesh.size())
        given: dict[str, Any] = {"first": first, "total": total, "padding": self.padding_idx, "group": split.group}
        apart = type(split.placement(input)) is not Replicate
        ids = split.of(input).redistribute(placements=(Replicate(),)) if apart else input
        return split.result(
            split_embedding.embedding(local(ids), split.part(self.weight, 0, total), **given), split.made
        )


def _as(split: Split, bias: torch.Tensor) -> torch.Tensor:
    """Of a bias that all ranks have, what is added to a module's result, which is split by features if by any axis."""
    made = LAST if _is_shard(split.made) else split.made
    mine = DTensor.from_local(bias, split.mesh, (Replicate(),), run_check=False).redistribute(placements=(made,))
    return mine.to_local() if split.local else mine


class Turn:
    """One call of a module at a time, whose copies have one of their own."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = RLock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()


class Local:
    """A module whose parameters are DTensors that all ranks hold alike: its own `forward` gets plain tensors."""

    split: Split
    summed: bool
    """Whether ranks apply it to different activations: then the gradients of its parameters are summed."""
    recurse: ClassVar[bool] = False
    """Whether parameters of the modules inside count as its own."""
    turn: Turn
    """While a module has this rank's tensors for parameters, another thread would take them for its own."""

    def forward(self, *args: Any, **given: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._forward(*args, **given)
        with self.turn.lock:
            return self._forward(*args, **given)

    def _forward(self, *args: Any, **given: Any) -> Any:
        module: Any = self
        # Norms, the most, have no modules inside: they are not looked through in each call.
        inner = [*self._read()] if module.__dict__["_modules"] and not self.recurse else ()
        named = module.named_parameters() if self.recurse else chain(module.__dict__["_parameters"].items(), inner)
        plain = {name: own(p) for name, p in named if p is not None}
        if self.summed:
            plain = dict(zip(plain, F.replicated_all([*plain.values()], group=self.split.group), strict=True))
        if torch.compiler.is_compiling():
            with _reparametrize_module(module, plain, tie_weights=True):
                return super().forward(*args, **given)  # pyright: ignore[reportAttributeAccessIssue]
        before = [_mark(t) for t in plain.values()]
        if self.recurse or inner:
            with _reparametrize_module(module, plain, tie_weights=True):
                found = super().forward(*args, **given)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            held = module.__dict__["_parameters"]
            # torch's way for whole modules takes longer than a norm.
            module.__dict__["_parameters"] = now = {**held, **plain}
            try:
                found = super().forward(*args, **given)  # pyright: ignore[reportAttributeAccessIssue]
            finally:
                module.__dict__["_parameters"] = held
            changed = now.keys() - held.keys() or [name for name in plain if now.get(name) is not plain[name]]
            if changed:
                raise _sets(self.split.name, min(changed))
        after = [_mark(t) for t in plain.values()]
        # What is summed is a copy, which writes are lost in as well.
        if after != before and (self.summed or [at for at, _ in after] != [at for at, _ in before]):
            raise _sets(self.split.name, next(n for n, a, b in zip(plain, after, before, strict=True) if a != b))
        return found

    def _read(self) -> Iterator[tuple[str, nn.Parameter | None]]:
        """Parameters of modules inside that nobody calls."""
        module: Any = self
        for name, inner in module.__dict__["_modules"].items():
            if isinstance(inner, READ) and isinstance(inner, Local) and inner.summed == self.summed:
                yield from ((f"{name}.{own}", p) for own, p in inner.__dict__["_parameters"].items())


READ = (nn.ParameterList, nn.ParameterDict, NonDynamicallyQuantizableLinear)
"""Modules that are not called: the module around them reads their parameters. The last is in `torch.nn.MultiheadAttention`."""


def _mark(t: torch.Tensor) -> tuple[int, int]:
    """In which memory a tensor lies, also one that has none, and how often it was written to."""
    return t.untyped_storage()._cdata, 0 if t.is_inference() else t._version


def _sets(module: str, name: str) -> TilelinkError:
    return TilelinkError(
        "TL243",
        f"{module or 'a module'} sets its parameter {name} when it is called",
        why="a call sees this rank's tensors, and the parameters are DTensors: what it puts in their place would be lost",
        hint=f"write into it, `with torch.no_grad(): self.{name}.copy_(…)`, or do it before the call",
    )


class LocalRows(Local):
    """`Local`, of activations that are split along an axis, and may be DTensors."""

    recurse = True

    def forward(self, *args: Any, **given: Any) -> Any:
        name = "" if args else next(iter(signature(super(Local, self).forward).parameters))  # pyright: ignore[reportAttributeAccessIssue]
        x, *others = args or (given.pop(name),)
        length = None
        if isinstance(x, DTensor):
            self.split.placement(x)
            length = x.shape[self.split.given.dim] if _is_shard(self.split.given) else None
            x = x.redistribute(placements=(self.split.given,)).to_local()
        found = super().forward(*others, **{name: x}, **given) if name else super().forward(x, *others, **given)
        if isinstance(found, (tuple, list)):
            # each of them of these positions
            made = (self._result(each, length) for each in found)  # pyright: ignore[reportUnknownVariableType]
            return tuple(made) if isinstance(found, tuple) else [*made]
        return self._result(found, length)

    def _result(self, found: Any, length: int | None) -> Any:
        return self.split.result(found, self.split.made, length) if isinstance(found, torch.Tensor) else found


class ColwiseParallel(torchs.ColwiseParallel):
    """torch's `ColwiseParallel`: each rank has some output features of a linear layer.

    An argument that is `Shard` along another axis than the last is gathered while it is multiplied (AG+GEMM). One that is
    `Replicate` needs no communication; its gradient is summed over the ranks (GEMM+AR). Other layouts are brought there as torch
    does it, behind no product, and so are modules that are no `torch.nn.Linear`.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) is not nn.Linear:
            return _awaited(super()._apply(module, device_mesh))
        become_linear(module, ColumnLinear, self, device_mesh)
        self._partition_linear_fn("", module, device_mesh)
        return module


class RowwiseParallel(torchs.RowwiseParallel):
    """torch's `RowwiseParallel`: each rank has some input features of a linear layer.

    A result that is `Shard` along another axis than the last is reduced and scattered while it is computed (GEMM+RS), one that
    is `Replicate` is reduced (GEMM+AR). Of an embedding each rank has some rows, and results are summed. All else is torch's,
    behind no product: other layouts, and other modules.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        split = split_over(self, device_mesh)
        if RowEmbedding.takes(module, split):
            self._partition_embedding_fn("", module, device_mesh)
            return become(module, RowEmbedding, split)
        if type(module) is not nn.Linear:
            return _awaited(super()._apply(module, device_mesh))
        become_linear(module, RowLinear, self, device_mesh)
        self._partition_linear_fn("", module, device_mesh)
        return module


class SequenceParallel(torchs.SequenceParallel):
    """torch's `SequenceParallel`: a norm, or another module that every rank applies to its positions.

    The module runs on plain tensors, with no DTensor in between; gradients of its parameters are summed in one all-reduce.
    A dropout is torch's: of DTensors on GPUs each rank draws its part of the whole's numbers, where ranks with one seed would
    draw the same.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, _DropoutNd):
            return super()._apply(module, device_mesh)
        placement = self.sequence_sharding[0]
        split = Split(device_mesh, group_name(device_mesh), placement, placement, self.use_local_output)
        return _hold_alike(module, LocalRows, split, self.src_data_rank, summed=True)


class ReplicatedParallel(torchs.ParallelStyle):
    """A module that every rank holds alike and applies to plain tensors, with its parameters as DTensors.

    Args:
        summed: whether the ranks' tensors differ, as a norm's of this rank's heads do: then gradients of parameters are summed.
    """

    def __init__(self, *, summed: bool = True) -> None:
        super().__init__()
        self.summed = summed

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        split = Split(device_mesh, group_name(device_mesh), Replicate(), Replicate())
        return _hold_alike(module, Local, split, self.src_data_rank, summed=self.summed)


class _Waited(torch.autograd.Function):
    """The tensor that an `AsyncCollectiveTensor` stands for."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> torch.Tensor:
        found = x.wait()
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad


def _awaited(module: nn.Module) -> nn.Module:
    """Of a module that torch splits: its result is waited for. Compiled functions of DTensors that are given one on its way
    leave its gradient out (torch 2.13)."""

    def hook(module: nn.Module, args: Any, result: Any) -> Any:
        return _Waited.apply(result) if isinstance(result, AsyncCollectiveTensor) else result

    module.register_forward_hook(hook)
    return module


def become_linear(module: nn.Linear, kind: type[ColumnLinear | RowLinear], style: Any, mesh: DeviceMesh) -> nn.Module:
    """Let a layer run as a style says, once each rank has its part. Raises TL232, the ranks' parts would differ."""
    require_even(kind.features, getattr(module, kind.features), mesh.size())
    return become(module, kind, split_over(style, mesh))


def split_over(style: Any, mesh: DeviceMesh) -> Split:
    """By a style's layouts, which transformers has without tuples."""
    given, made = (each[0] if isinstance(each, tuple) else each for each in (style.input_layouts, style.output_layouts))
    return Split(mesh, group_name(mesh), given, made, style.use_local_output)


def become(module: nn.Module, kind: type[nn.Module], split: Split) -> nn.Module:
    """Give a module another `forward`, that of its class `kind`."""
    native.steps()  # compiled here, while no rank waits for another
    changed: Any = module
    changed.__class__, changed.split = kind, split
    return module


def _hold_alike(module: nn.Module, kind: type[Local], split: Split, source: int | None, *, summed: bool) -> nn.Module:
    """Every rank holds the parameters that `source` has; None: those that it has itself."""
    alike: dict[nn.Parameter, nn.Parameter] = {}
    for each in module.modules() if kind.recurse else (module,):
        for name, parameter in list(each.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter not in alike:
                from_source([parameter], split.mesh, source)
                whole = DTensor.from_local(parameter.detach(), split.mesh, (Replicate(),), run_check=False)
                alike[parameter] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            each.register_parameter(name, alike[parameter])
    changed: Any = become(module, _mixed(kind, type(module)), split)
    changed.summed, changed.turn = summed, Turn()
    return module


@cache
def _mixed(kind: type[Local], of: type[nn.Module]) -> type[nn.Module]:
    return type(of.__name__, (kind, of), {"__module__": of.__module__, "__qualname__": of.__qualname__})


def _is_shard(placement: Placement) -> TypeGuard[Shard]:
    return type(placement) is Shard


def _same(a: Placement, b: Placement, dims: int) -> bool:
    if a is b:
        return True
    if _is_shard(a) and _is_shard(b):
        return a.dim % dims == b.dim % dims
    return a == b
