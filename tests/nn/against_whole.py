# pyright: reportPrivateUsage=false
"""What tests of split models have in common: models drawn alike on all ranks, what is close, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import tilelink
from tilelink.nn import parallelize

Tensor = torch.Tensor


def drawn(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make()


def close(got: Tensor, want: Tensor, what: str = "") -> None:
    got = got.full_tensor() if isinstance(got, DTensor) else got
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda said: f"{what}: {said}")


def refused(model: nn.Module, plan: Any, mesh: DeviceMesh) -> str:
    """What is said; the model is as it was."""
    before = [(m, type(m), dict(m._parameters), [*m.__dict__]) for m in model.modules()]
    with pytest.raises(tilelink.TilelinkError) as caught:
        parallelize(model, plan, mesh)
    for module, kind, parameters, names in before:
        assert type(module) is kind
        assert all(module._parameters[n] is p for n, p in parameters.items())
        assert [*module.__dict__] == names
    return str(caught.value)
