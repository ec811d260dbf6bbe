# pyright: reportOptionalMemberAccess=false, reportArgumentType=false
"""Gradients clipped by the norm over all ranks, against torch's on the whole model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import chain
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_whole

import tilelink
import tilelink.nn as tnn
from tests.nn.test_operators import assert_close
from tests.operators.problems import part
from tilelink.nn import Layer, ParallelMLP, ParallelMoE, Replicated, clip_grad_norm_


class Whole(nn.Module):
    """A norm, two layers with biases, and a scale at the end."""

    def __init__(self, norm: nn.Module, mlp: nn.Module, scale: nn.Parameter) -> None:
        super().__init__()
        self.norm, self.mlp, self.scale = norm, mlp, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.norm(x)) * self.scale


def whole_model() -> tuple[Whole, nn.Linear, nn.Linear]:
    torch.manual_seed(3)
    up, down = nn.Linear(16, 24), nn.Linear(24, 16)
    return Whole(nn.LayerNorm(16), nn.Sequential(up, nn.GELU(), down), nn.Parameter(torch.tensor(1.5))), up, down


@pytest.mark.parametrize(("ranks", "norm_type"), [(2, 2.0), (4, 2.0), (2, float("inf")), (2, 1.0), (1, 2.0)])
@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_as_torch_clips_the_whole_model(ranks: int, norm_type: float, max_norm: float) -> None:
    (whole, up, down), x = whole_model(), torch.randn(8, 16)
    start = deepcopy(whole)
    whole(x).square().mean().backward()
    scale_grad = whole.scale.grad.clone()
    wanted = clip_whole(whole.parameters(), max_norm, norm_type)

    def main() -> torch.Tensor:
        rank = tilelink.rank()
        mine = Whole(Replicated(deepcopy(start.norm)), ParallelMLP.of(up, down), deepcopy(start.scale))
        (mine(x[part(8, rank, ranks)]).square().sum() / x.numel()).backward()
        mine.scale.grad = scale_grad * (1 + 1e-6 * rank)  # summed by the user, and rounded as it came
        total = clip_grad_norm_(mine, max_norm, norm_type)
        for name, want in (
            ("scale", whole.scale.grad),
            ("norm.module.weight", whole.norm.get_parameter("weight").grad),
            ("mlp.up.weight", up.weight.grad.chunk(ranks)[rank]),
            ("mlp.up.bias", up.bias.grad.chunk(ranks)[rank]),
            ("mlp.down.weight", down.weight.grad.chunk(ranks, 1)[rank]),
            ("mlp.down.bias", down.bias.grad),
        ):
            assert_close(mine.get_parameter(name).grad, want)
        return total

    totals = tilelink.launch(main, ranks)
    assert {float(t) for t in totals} == {float(totals[0])}
    assert totals[0].shape == ()
    torch.testing.assert_close(totals[0], wanted)


class Scaled(Layer):
    """A user's: `weight` is split, `shift` is not."""

    split_parameters = MappingProxyType({"weight": 0})

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.weight, self.shift = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3, dtype=torch.float64))


def test_layers_of_two_groups_one_of_which_is_a_users() -> None:
    """Over pairs of four ranks a part is one of two, and over all one of four; ranks may lack a gradient of all kinds."""

    def main() -> list[float]:
        rank = tilelink.rank()
        pair = tnn.group_name(tilelink.group([rank // 2 * 2, rank // 2 * 2 + 1]))
        model = nn.ModuleList([Scaled(pair), Scaled(tnn.group_name()), nn.Linear(2, 1, bias=False)])
        for p in model.parameters():
            p.grad = torch.full_like(p, 2.0)
        before = clip_grad_norm_(model, 1.0)
        assert before.dtype == torch.float64
        after = clip_grad_norm_(model, 1.0)
        model.zero_grad()
        return [float(before) ** 2, float(after), float(clip_grad_norm_(model, 1.0))]

    for found in tilelink.launch(main, 4):
        assert found == pytest.approx([4 * (2 * 2 + 3 + 4 * 2 + 3 + 2), 1, 0], rel=1e-5)


def test_without_layers_it_is_torchs() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    for p in chain(model.parameters(), other.parameters()):
        p.grad = torch.full_like(p, 2.0)
    assert torch.equal(clip_grad_norm_(model, 1.0), clip_whole(other.parameters(), 1.0))
    assert torch.equal(model.weight.grad, other.weight.grad)


def test_a_norm_that_is_no_number_on_one_rank_is_an_error_on_all() -> None:
    def main() -> float:
        layer = tnn.ColumnParallelLinear(4, 4)
        layer.weight.grad = torch.full_like(layer.weight, float("nan") if tilelink.rank() == 1 else 1.0)
        with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
            clip_grad_norm_(layer, 1.0, error_if_nonfinite=True)
        return float(clip_grad_norm_(layer, 1.0))

    assert all(total != total for total in tilelink.launch(main, 2))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "ColumnParallelLinear": partial(tnn.ColumnParallelLinear, 8, 12),
    "RowParallelLinear": partial(tnn.RowParallelLinear, 8, 12),
    "ParallelMLP": partial(ParallelMLP, 8, 12, gated=True),
    "ParallelAttention": partial(tnn.ParallelAttention, 8, 4, 2),
    "ParallelMoE": partial(ParallelMoE, 8, 12, 4, 2),
    "SequenceParallelAttention": partial(tnn.SequenceParallelAttention, 8, 4),
    "Replicated": lambda: Replicated(nn.LayerNorm(8)),
}


def test_the_parameters_that_are_smaller_on_two_ranks_are_those_that_layers_call_split() -> None:
    exported = {
        name for name in tnn.__all__ if isinstance(made := getattr(tnn, name), type) and issubclass(made, nn.Module)
    }
    assert exported == {*LAYERS, "Layer"}
    whole = {name: dict(make().named_parameters()) for name, make in LAYERS.items()}

    def main() -> None:
        for name, make in LAYERS.items():
            layer = make()
            smaller = {n for n, p in layer.named_parameters() if p.shape != whole[name][n].shape}
            said = {
                f"{path}.{own}".lstrip(".")
                for path, module in layer.named_modules()
                if isinstance(module, Layer)
                for own in module.split_parameters
            }
            assert said == smaller, name

    tilelink.launch(main, 2)
