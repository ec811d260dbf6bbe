# pyright: reportArgumentType=false, reportCallIssue=false
"""State dicts of whole models, against torch's own layers on one rank."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

import tilelink
from tests.nn.test_operators import assert_close
from tests.operators.problems import part
from tests.selection import table
from tilelink.nn import (
    ColumnParallelLinear,
    Layer,
    ParallelAttention,
    ParallelMLP,
    ParallelMoE,
    Replicated,
    RowParallelLinear,
    SequenceParallelAttention,
    group_name,
    load_whole_state_dict,
    whole_state_dict,
)

FEATURES, HEADS, GROUPS, HIDDEN = 32, 8, 4, 24
WIDTH = FEATURES // HEADS


class PlainAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.output = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.key, self.value = nn.Linear(FEATURES, GROUPS * WIDTH), nn.Linear(FEATURES, GROUPS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, WIDTH)).transpose(-2, -3) for p in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(-2, -3).flatten(-2))


class PlainMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(FEATURES, HIDDEN), nn.Linear(FEATURES, HIDDEN)
        self.down = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def plain() -> nn.Sequential:
    torch.manual_seed(7)
    ends = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, FEATURES, bias=False))
    return nn.Sequential(nn.LayerNorm(FEATURES), PlainAttention(), PlainMLP(), PlainAttention(), ends)


def split() -> nn.Sequential:
    torch.manual_seed(8)
    row = RowParallelLinear(HIDDEN, FEATURES, bias=False)
    return nn.Sequential(
        Replicated(nn.LayerNorm(FEATURES)),
        ParallelAttention(FEATURES, HEADS, GROUPS),
        ParallelMLP(FEATURES, HIDDEN, gated=True, activation=nn.functional.silu),
        SequenceParallelAttention(FEATURES, HEADS, GROUPS),
        nn.Sequential(ColumnParallelLinear(FEATURES, HIDDEN), nn.GELU(), row),
    )


def assert_same(state: dict[str, Any], want: dict[str, Any]) -> None:
    assert sorted(state) == sorted(want)
    for name, tensor in want.items():
        assert state[name].dtype == tensor.dtype, name
        assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_torchs_layers_to_split_ones_and_back(ranks: int) -> None:
    whole, x = plain(), torch.randn(8, FEATURES)
    wanted = whole(x)

    def main() -> dict[str, Any]:
        model, rank = split(), tilelink.rank()
        load_whole_state_dict(model, whole.state_dict())
        own = part(8, rank, ranks)
        assert_close(model(x[own]), wanted[own])
        saved = whole_state_dict(model, keep=rank != 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # what was saved is a copy
        return saved

    first, *others = tilelink.launch(main, ranks)
    assert_same(first, whole.state_dict())
    assert [len(found) for found in others] == [0, len(first), len(first)][: ranks - 1]
    plain().load_state_dict(first)


class Mixed(Layer):
    """A user's: parts along a middle axis, of a dtype that no operator takes; and what every rank has."""

    split_parameters = MappingProxyType({"mask": -2})

    def __init__(self) -> None:
        super().__init__()
        self.group = group_name()
        drawn = torch.randint(0, 2, (2, 4, 3)).bool().chunk(tilelink.ranks(), 1)[tilelink.rank()]
        self.mask = nn.Parameter(drawn.clone(), requires_grad=False)
        self.register_buffer("steps", torch.tensor(5))

    def get_extra_state(self) -> str:
        return "extra"

    def set_extra_state(self, state: Any) -> None:
        assert state == "extra"


def other_split(seed: int) -> nn.ModuleDict:
    torch.manual_seed(seed)
    moe = ParallelMoE(8, 12, 3, 2, dtype=torch.bfloat16)
    return nn.ModuleDict({"moe": moe, "mixed": Mixed(), "mlp": ParallelMLP(8, 12, gated=True, bias=False)})


def test_what_one_number_of_ranks_saves_another_loads() -> None:
    """Experts' parts lie along two axes. Ranks that draw with one seed hold parts of one model."""

    def saved() -> dict[str, Any]:
        return whole_state_dict(other_split(1))

    def main() -> dict[str, Any]:
        model = other_split(2)
        load_whole_state_dict(model, first)
        inner = whole_state_dict(model["mlp"].get_submodule("up"))  # by itself: what it holds by the same names
        assert list(inner) == ["gate.weight", "up.weight"]
        assert torch.equal(inner["gate.weight"], first["mlp.gate.weight"])
        return whole_state_dict(model)

    first, second = tilelink.launch(saved, 2)
    assert first.pop("mixed._extra_state") == second.pop("mixed._extra_state") == "extra"
    assert_same(first, second)
    assert {name: tuple(t.shape) for name, t in first.items()} == {
        "moe.gate": (3, 8, 12), "moe.up": (3, 8, 12), "moe.down": (3, 12, 8), "moe.router.weight": (3, 8),
        "mixed.mask": (2, 4, 3), "mixed.steps": (), "mlp.gate.weight": (12, 8), "mlp.up.weight": (12, 8),
        "mlp.down.weight": (8, 12),
    }  # fmt: skip
    first["mixed._extra_state"] = "extra"
    for found in tilelink.launch(main, 4):
        assert found.pop("mixed._extra_state") == "extra"
        assert_same(found, second)


Change = Callable[[dict[str, Any]], object]
REFUSALS: dict[str, tuple[Change, str]] = {
    "missing": (lambda s: s.pop("gate.bias"), "it lacks gate.bias"),
    "of another model": (
        lambda s: [s.pop(name) for name in [*s]] and s.update(scale=torch.ones(1)),
        "it lacks gate.weight, up.weight, gate.bias and 3 more; the model has no scale",
    ),
    "a rank's": (lambda s: s.update({"up.bias": torch.ones(6)}), "of other shapes: up.bias is (6,) and not (12,)"),
}


@table("case", REFUSALS)
def test_refusals(case: str) -> None:
    """Nothing is loaded then."""
    change, why = REFUSALS[case]

    def main() -> str:
        model = ParallelMLP(8, 12, gated=True)
        before = {name: t.clone() for name, t in model.state_dict().items()}
        state = {name: torch.zeros_like(t) for name, t in whole_state_dict(model).items()}
        change(state)
        with pytest.raises(tilelink.TilelinkError) as caught:
            load_whole_state_dict(model, state)
        assert_same(model.state_dict(), before)
        return str(caught.value)

    text = (
        "TL236: the state dict is not that of the whole model\n"
        f"  why: {why}\n"
        "  do:  name and shape tensors as `whole_state_dict` does; this rank's own parts load by `model.load_state_dict`"
    )
    assert tilelink.launch(main, 2) == [text] * 2
