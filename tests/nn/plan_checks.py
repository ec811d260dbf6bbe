# pyright: reportPrivateUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
"""What `parallelize` does beside splitting, checked by two processes of `style_ranks`: parameters that it replaces, whose values
count, and plans that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import tilelink
from tests.nn.against_whole import drawn, refused
from tilelink.nn import SequenceParallel, parallelize

Tensor = torch.Tensor


class Scaled(nn.Module):
    """One that holds a parameter in a list, which no module knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.out = nn.Parameter(torch.ones(8)), nn.Linear(8, 8)
        self.gains = [self.gain]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * self.gains[0])


def check_replaced(mesh: DeviceMesh) -> None:
    """Attributes of parameters stay; hooks and gradients, which cannot, are refused; who holds an old one is told so."""
    model: Any = drawn(Scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.gain.weight_decay, model.out.weight.lr_scale = 0.0, 2.0
    parallelize(model, {"out": "colwise_rep"}, mesh)
    for each in (model, deepcopy(model.out), deepcopy(model.gain)):
        assert not isinstance(each, nn.Module) or all(isinstance(p, DTensor) for p in each.parameters())
    assert (model.gain.weight_decay, model.out.weight.lr_scale) == (0.0, 2.0)
    old = r"TL251: this is gain as it was before its model was split\n(.*\n)*.*a module reads self.gain$"
    uses: list[Callable[[], Any]] = [lambda: model(torch.ones(4, 8)), optimizer.step, optimizer.zero_grad]
    for use in uses:
        with pytest.raises(tilelink.TilelinkError, match=old):
            use()
    assert repr(model.gains) == "[Replaced('gain')]"
    model.gains = [model.gain]  # a DTensor among plain ones
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        model(torch.ones(4, 8))
    for name in ("0.weight", "1.weight"):  # outside of the plan, and inside
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
            hook = getattr(model.get_parameter(name), register)(lambda grad: None)
            assert f"TL241: {name} has a hook on its gradient" in refused(model, {"1": "colwise"}, mesh)
            hook.remove()
            parallelize(model, {"1": "colwise"}, mesh)
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
        model.get_parameter(name).sum().backward()
        assert f"TL241: {name} has a gradient" in refused(model, {"1": "colwise"}, mesh)


def check_source(rank: int, mesh: DeviceMesh) -> None:
    """What every rank has whole is what one rank has, inside of the plan and outside, parameters and buffers."""

    def made(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        model: Any = nn.Sequential(
            nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.BatchNorm1d(8)
        )
        for each in [*model[3].parameters(), *model[4].buffers()]:
            each.data.add_(seed)
        model[0].weight.data = model[0].weight.data.t()  # columns one after another
        return model

    plan = {"1": "colwise", "2": "rowwise", "3": SequenceParallel()}
    for source in (0, 1, None):
        split = parallelize(made(rank), plan, mesh, src_data_rank=source)
        whole = made(rank if source is None else source)
        for (name, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
            got = b.to_local()
            want = a if got.shape == a.shape else a.chunk(2, 1 if name == "2.weight" else 0)[rank]
            assert torch.equal(got, want), (name, source)
        for a, b in zip(whole.buffers(), split.buffers(), strict=True):
            assert torch.equal(a, b)


def check_plans(rank: int, mesh: DeviceMesh) -> None:
    check_replaced(mesh)
    check_source(rank, mesh)
