# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false, reportIndexIssue=false, reportCallIssue=false
"""Layers that are split over the ranks, against the whole layers of torch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
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
    ParallelAttention,
    ParallelMLP,
    ParallelMoE,
    Replicated,
    RowParallelLinear,
    SequenceParallelAttention,
)

Make = Callable[..., nn.Module]
"""This rank's part of the whole layer, of which it takes what `of` takes."""


class Whole(nn.Module):
    """`Linear`, activation, `Linear`; gated, if there is a gate."""

    def __init__(self, gated: bool = False, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = nn.Linear(16, 24, bias), nn.Linear(24, 16, bias)
        self.gate = nn.Linear(16, 24, bias) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(nn.functional.gelu(self.up(x)))
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def differentiated(layer: nn.Module, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the argument, whose gradients are there; the loss weighs positions differently."""
    x = x.clone().requires_grad_()
    y = layer(x, *args)
    y.square().sum().backward()
    return y, x


def assert_as_whole(whole: nn.Module, x: torch.Tensor, dim: int, ranks: int, make: Make, check: Callable[[nn.Module, int], None],
           *, backend: str | None = None, given: bool = False) -> None:  # fmt: skip
    """Compare the layer of each rank with the whole one: results, the argument's gradient, and what `check` compares."""
    wanted, wanted_x = differentiated(whole, x)
    length = x.shape[dim]

    def main() -> None:
        rank = tilelink.rank()
        index = [slice(None)] * x.dim()
        index[dim] = part(length, rank, ranks)
        layer = make(whole)
        run: Any = layer if backend is None else torch.compile(layer, fullgraph=True, backend=backend)
        y, mine = differentiated(run, x[tuple(index)], *([length] if given else []))
        assert_close(y, wanted[tuple(index)])
        assert wanted_x.grad is not None
        assert_close(mine.grad, wanted_x.grad[tuple(index)])
        check(layer, rank)

    tilelink.launch(main, ranks)


@pytest.mark.parametrize(
    ("shape", "dim", "ranks", "backend"),
    [((12, 16), -2, 3, None), ((12, 16), -2, 3, "aot_eager"), ((2, 8, 16), -2, 2, "aot_eager"),
     ((8, 2, 16), 0, 2, None), ((3, 2, 4, 16), 2, 2, None)],
)  # fmt: skip
def test_mlp(shape: tuple[int, ...], dim: int, ranks: int, backend: str | None) -> None:
    whole = Whole()

    def check(layer: nn.Module, rank: int) -> None:
        own = slice(24 // ranks * rank, 24 // ranks * (rank + 1))
        for name, want in (("up.weight", whole.up.weight.grad[own]), ("up.bias", whole.up.bias.grad[own]),
                           ("down.weight", whole.down.weight.grad[:, own]), ("down.bias", whole.down.bias.grad)):  # fmt: skip
            assert_close(layer.get_parameter(name).grad, want)

    assert_as_whole(
        whole, torch.randn(shape), dim, ranks, lambda w: ParallelMLP.of(w.up, w.down, dim=dim), check, backend=backend
    )


def test_gated_mlp() -> None:
    whole = Whole(gated=True, bias=False)

    def check(layer: nn.Module, rank: int) -> None:
        grad = layer.get_parameter("up.weight").grad
        assert grad is not None
        assert whole.gate is not None
        for got, linear in zip(grad.chunk(2), (whole.gate, whole.up), strict=True):
            assert linear.weight.grad is not None
            assert_close(got, linear.weight.grad.chunk(2)[rank])

    make = lambda w: ParallelMLP.of(w.up, w.down, w.gate, activation=nn.functional.silu)  # noqa: E731
    assert_as_whole(whole, torch.randn(8, 16), 0, 2, make, check)


def test_activations_that_every_rank_has() -> None:
    """One loss, which every rank computes: an all-reduce there, and one of the gradient back."""
    whole, x = Whole(), torch.randn(2, 5, 16)
    wanted, wanted_x = differentiated(whole, x)

    def main() -> None:
        layer = ParallelMLP.of(whole.up, whole.down, sequence_parallel=False)
        y, mine = differentiated(torch.compile(layer, fullgraph=True, backend="aot_eager"), x)
        assert_close(y, wanted)
        assert_close(mine.grad, wanted_x.grad)
        assert_close(layer.up.weight.grad, whole.up.weight.grad.chunk(2)[tilelink.rank()])
        assert_close(layer.down.weight.grad, whole.down.weight.grad.chunk(2, 1)[tilelink.rank()])
        assert_close(layer.down.bias.grad, whole.down.bias.grad)

    tilelink.launch(main, 2)


def test_an_activation_with_parameters() -> None:
    """Each rank applies it to some features; one that is summed already is left as it is."""
    whole, x = nn.Sequential(nn.Linear(16, 24), nn.PReLU(), nn.Linear(24, 16)), torch.randn(2, 4, 16)
    differentiated(whole, x)
    wanted = whole[1].weight.grad

    def main() -> None:
        for rows in (False, True):
            for activation in (nn.PReLU(), Replicated(nn.PReLU())):
                layer = ParallelMLP.of(whole[0], whole[2], activation=activation, sequence_parallel=rows)
                differentiated(layer, x[:, part(4, tilelink.rank(), 2)] if rows else x)
                assert_close(next(activation.parameters()).grad, wanted)

    tilelink.launch(main, 2)


@pytest.mark.parametrize("shape", [(7, 16), (1, 7, 16)])
def test_an_uneven_sequence(shape: tuple[int, ...]) -> None:
    assert_as_whole(
        Whole(), torch.randn(shape), -2, 2, lambda w: ParallelMLP.of(w.up, w.down), lambda *_: None, given=True
    )


def placed(t: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Larger from position to position."""
    return t * (1 + (first + torch.arange(t.shape[-2])) / 5)[:, None]


class WholeAttention(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.query, self.output = nn.Linear(16, 16), nn.Linear(16, 16)
        self.key, self.value = nn.Linear(16, 4 * groups), nn.Linear(16, 4 * groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, 4)).transpose(-2, -3) for p in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(placed(q), placed(k), v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(-2, -3).flatten(-2))


@pytest.mark.parametrize(("groups", "backend"), [(4, None), (2, "aot_eager")])
def test_attention(groups: int, backend: str | None) -> None:
    whole = WholeAttention(groups)

    def make(w: Any) -> nn.Module:
        return ParallelAttention.of(w.query, w.key, w.value, w.output, 4, rotate=placed)

    def check(layer: nn.Module, rank: int) -> None:
        want = torch.cat([p.weight.grad.chunk(2)[rank] for p in (whole.query, whole.key, whole.value)])
        assert_close(layer.get_parameter("inputs.weight").grad, want)
        assert_close(layer.get_parameter("output.bias").grad, whole.output.bias.grad)

    assert_as_whole(whole, torch.randn(3, 8, 16), -2, 2, make, check, backend=backend)


@pytest.mark.parametrize(
    ("shape", "groups", "backend"), [((3, 8, 16), 2, "aot_eager"), ((7, 16), 4, None), ((2, 5, 16), 1, None)]
)
def test_attention_of_positions(shape: tuple[int, ...], groups: int, backend: str | None) -> None:
    whole = WholeAttention(groups)

    def make(w: Any) -> nn.Module:
        layer = SequenceParallelAttention(16, 4, groups, rotate=placed)
        projections = (w.query, w.key, w.value)
        with torch.no_grad():
            layer.inputs.module.weight.copy_(torch.cat([p.weight for p in projections]))
            layer.inputs.module.bias.copy_(torch.cat([p.bias for p in projections]))
            layer.output.module.load_state_dict(w.output.state_dict())
        return layer

    def check(layer: nn.Module, rank: int) -> None:
        del rank
        want = torch.cat([p.weight.grad for p in (whole.query, whole.key, whole.value)])
        assert_close(layer.get_parameter("inputs.module.weight").grad, want)
        assert_close(layer.get_parameter("output.module.bias").grad, whole.output.bias.grad)

    assert_as_whole(whole, torch.randn(shape), -2, 2, make, check, backend=backend, given=True)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_a_norm_that_every_rank_has(backend: str | None) -> None:
    whole = nn.LayerNorm(16)

    def make(w: Any) -> nn.Module:
        mine = nn.LayerNorm(16)
        mine.load_state_dict(w.state_dict())
        return Replicated(mine)

    def check(layer: nn.Module, rank: int) -> None:
        assert_close(layer.get_parameter("module.weight").grad, whole.weight.grad)
        assert_close(layer.get_parameter("module.bias").grad, whole.bias.grad)

    assert_as_whole(whole, torch.randn(12, 16) + 1, 0, 3, make, check, backend=backend)


class Odd(nn.Module):
    """Parameters of two dtypes and of uneven sizes, one that is frozen and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 7))
        self.shift = nn.Parameter(torch.linspace(0, 1, 7, dtype=torch.bfloat16))
        self.mixed = nn.Parameter(torch.linspace(-1, 1, 49).view(7, 7))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale) @ self.mixed + self.shift.float() + self.frozen


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_parameters_of_all_kinds_in_a_module_that_every_rank_has(backend: str | None) -> None:
    whole = Odd()

    def check(layer: nn.Module, rank: int) -> None:
        for name in ("scale", "shift", "mixed"):
            assert_close(layer.get_parameter(f"module.{name}").grad, whole.get_parameter(name).grad)
        assert layer.get_parameter("module.frozen").grad is None
        unused = layer.get_parameter("module.unused").grad
        assert unused is None or not unused.any()

    assert_as_whole(whole, torch.randn(6, 7), 0, 3, lambda w: Replicated(deepcopy(w)), check, backend=backend)


class Experts(nn.Module):
    """Of which a call uses some, one of them of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (torch.float32, torch.float32, torch.bfloat16, torch.float32)
        self.experts = nn.ModuleList(nn.Linear(4, 4, dtype=kind) for kind in kinds)

    def forward(self, x: torch.Tensor, which: tuple[int, ...]) -> torch.Tensor:
        return sum((self.experts[e](x.to(self.experts[e].weight.dtype)).float() for e in which), x)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_ranks_that_use_different_parameters(backend: str | None) -> None:
    """What one rank has used has its gradient on all, what none has used no gradient, also where it is differentiated again."""
    whole, x, used = Experts(), torch.randn(2, 3, 4), ((0,), (1, 2))
    for mine, which in zip(x, used, strict=True):
        whole(mine, which).square().sum().backward()
    wanted = [*whole.parameters()]
    twice = Experts()
    twice.load_state_dict(whole.state_dict())
    chosen = [p for e in (0, 1) for p in twice.experts[e].parameters()]
    loss = sum(twice(mine, which).pow(3).sum() for mine, which in zip(x, ((0,), (1,)), strict=True))
    sum(g.square().sum() for g in torch.autograd.grad(loss, chosen, create_graph=True)).backward()

    def main() -> None:
        rank = tilelink.rank()
        layer: Any = Replicated(deepcopy(whole).requires_grad_())
        layer.zero_grad()
        run = layer if backend is None else torch.compile(layer, fullgraph=True, backend=backend)
        run(x[rank], used[rank]).square().sum().backward()
        for got, want in zip(layer.parameters(), wanted, strict=True):
            if want.grad is None:
                assert got.grad is None or (backend is not None and not got.grad.any())
            else:
                assert_close(got.grad, want.grad)
        if backend is None:
            layer.zero_grad()
            mine = [p for e in (0, 1) for p in layer.module.experts[e].parameters()]
            first = torch.autograd.grad(run(x[rank], (rank,)).pow(3).sum(), mine, create_graph=True)
            (sum(g.square().sum() for g in first) / 2).backward()
            for got, want in zip(mine, chosen, strict=True):
                assert_close(got.grad, want.grad)

    tilelink.launch(main, 2)


def test_two_replicas_of_two_ranks() -> None:
    """Data and tensor parallel at once: each replica has data of its own, and weights are summed over the replicas."""
    whole, x = Whole(), torch.randn(2, 8, 16)
    wanted, _ = differentiated(whole, x)

    def main() -> None:
        rank = tilelink.rank()
        tensor, data = tilelink.group([rank // 2 * 2, rank // 2 * 2 + 1]), tilelink.group([rank % 2, rank % 2 + 2])
        layer = torch.compile(ParallelMLP.of(whole.up, whole.down, group=tensor), fullgraph=True, backend="aot_eager")
        y, _ = differentiated(layer, x[rank // 2].chunk(2)[rank % 2])
        assert_close(y, wanted[rank // 2].chunk(2)[rank % 2])
        for name, want in (("up.weight", whole.up.weight.grad), ("down.weight", whole.down.weight.grad)):
            mine = layer.get_parameter(name).grad
            assert_close(tilelink.ops.all_reduce(mine, group=data), want.chunk(2, int(name == "down.weight"))[rank % 2])

    tilelink.launch(main, 4, seed=2)


def test_what_users_of_a_linear_expect() -> None:
    """Names, shapes, the numbers that a seed draws, and loading what was saved."""

    def main() -> None:
        rank = tilelink.rank()
        torch.manual_seed(0)
        linear = nn.Linear(8, 6)
        torch.manual_seed(0)
        column = ColumnParallelLinear(8, 6, dtype=torch.float32)
        assert list(column.state_dict()) == ["weight", "bias"]
        assert torch.equal(column.weight, linear.weight.chunk(2)[rank])
        assert column.bias is not None
        assert torch.equal(column.bias, linear.bias.chunk(2)[rank])
        torch.manual_seed(0)
        row = RowParallelLinear(8, 6, bias=False, group=tilelink.group([0, 1]))
        assert list(row.state_dict()) == ["weight"]
        assert torch.equal(row.weight, linear.weight.chunk(2, 1)[rank])
        other = RowParallelLinear(8, 6, bias=False)
        other.load_state_dict(row.state_dict())
        x = torch.randn(4, 4)
        assert torch.equal(row(x), other(x))
        assert repr(row) == "RowParallelLinear(in_features=8, out_features=6, bias=False, ranks=2, dim=-2)"
        assert ColumnParallelLinear(8, 6, device="meta").weight.is_meta
        up, down, gate = (nn.Linear(8, 8).requires_grad_(False) for _ in range(3))
        for frozen in (ParallelMLP.of(up, down, gate), ParallelAttention.of(up, gate, up, down, 2)):
            assert not any(p.requires_grad for p in frozen.parameters())
        with torch.autocast("cpu", torch.bfloat16):
            assert column(torch.randn(4, 8)).dtype == torch.bfloat16

    tilelink.launch(main, 2)


def test_an_empty_batch_and_rows_that_lie_apart() -> None:
    """As of a `Linear`: nothing gives nothing of the right shape, and a transposed argument needs no copy by hand."""

    def main() -> None:
        whole, x = Whole(), torch.randn(16, 4).t()
        layer = ParallelMLP.of(whole.up, whole.down)
        y, mine = differentiated(layer, x.new_zeros(0, 4, 16))
        assert y.shape == (0, 4, 16)
        assert mine.grad.shape == (0, 4, 16)
        assert torch.equal(layer(x), layer(x.contiguous()))
        column = ColumnParallelLinear.of(whole.up)
        assert column(x.new_zeros(3, 0, 4, 16)).shape == (3, 0, 8, 12)
        alike = ParallelMLP.of(whole.up, whole.down, sequence_parallel=False)
        for shape in ((0, 4, 16), (0, 16), (16,)):
            y, mine = differentiated(alike, x.new_ones(shape))
            assert torch.allclose(y, whole(x.new_ones(shape)), atol=1e-5)
            assert mine.grad.shape == shape
        y, mine = differentiated(SequenceParallelAttention(16, 4), x.new_zeros(0, 4, 16))
        assert y.shape == mine.grad.shape == (0, 4, 16)

    tilelink.launch(main, 2)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, *, by: float) -> torch.Tensor:
        return x * self.weight * by


def test_a_replicated_module_takes_keywords() -> None:
    def main() -> None:
        layer = Replicated(Scaled())
        layer(torch.ones(2, 3), by=0.5).sum().backward()
        assert_close(layer.module.weight.grad, torch.full((3,), 2.0))

    tilelink.launch(main, 2)


UNEVEN = (
    "cannot be split evenly over 2 ranks\n"
    "  why: every rank multiplies by a weight of the same shape\n"
    "  do:  choose a multiple of 2"
)
NO_ROWS = (
    "  why: its last axis holds the features, and one of those before is split over the ranks\n"
    "  do:  name that axis: dim=-2 for [batch, sequence, features], dim=0 for [sequence, batch, features]"
)
JOINED = "  why: layers that share a gathering are one layer here, with one weight and one bias\n"
REFUSALS: dict[str, tuple[Callable[[], object], str]] = {
    "features": (
        lambda: ColumnParallelLinear(8, 7),
        f"TL232: out_features=7 {UNEVEN}",
    ),
    "heads": (
        lambda: ParallelAttention(12, 3),
        f"TL232: heads=3 {UNEVEN}",
    ),
    "uneven": (
        lambda: RowParallelLinear(8, 6)(torch.zeros(2, 3, 4)),
        "TL231: 3 positions of an activation of shape (2, 3, 4) are not split evenly over 2 ranks\n"
        "  why: a matrix is split by its rows, ceil(rows / ranks) each, which would cut through a position\n"
        "  do:  pad that axis to a multiple of the ranks; a single sequence may be uneven",
    ),
    "dim": (
        lambda: ColumnParallelLinear(8, 6, dim=1)(torch.zeros(2, 8)),
        f"TL231: an activation of shape (2, 8) has no rows along dim=1\n{NO_ROWS}",
    ),
    "one axis": (
        lambda: ColumnParallelLinear(8, 6)(torch.zeros(8)),
        f"TL231: an activation of shape (8,) has no rows along dim=-2\n{NO_ROWS}",
    ),
    "no such axis": (
        lambda: RowParallelLinear(8, 6, dim=2)(torch.zeros(2, 4)),
        f"TL231: an activation of shape (2, 4) has no rows along dim=2\n{NO_ROWS}",
    ),
    "groups": (
        lambda: ParallelAttention(12, 6, 3),
        f"TL232: groups=3 {UNEVEN}",
    ),
    "width": (
        lambda: ParallelAttention(30, 4),
        "TL235: features=30 is no multiple of heads=4\n"
        "  why: heads have equally many features, and as many of them share each head of keys and values\n"
        "  do:  choose a multiple of 4",
    ),
    "sharing": (
        lambda: SequenceParallelAttention(32, 4, 3),
        "TL235: heads=4 is no multiple of groups=3\n"
        "  why: heads have equally many features, and as many of them share each head of keys and values\n"
        "  do:  choose a multiple of 3",
    ),
    "other features": (
        lambda: RowParallelLinear(8, 6)(torch.zeros(2, 8)),
        "TL235: an activation of shape (2, 8) has 8 features, and the layer takes 4\n"
        "  why: in_features=8, of which each of 2 ranks has 4\n"
        "  do:  look at what the layer before it gives",
    ),
    "choices": (
        lambda: ParallelMoE(8, 6, 4, 5),
        "TL235: choices=5 of experts=4\n  why: the router chooses different experts for a token\n  do:  choose 1 to 4",
    ),
    "one bias of two": (
        lambda: ParallelMLP.of(nn.Linear(8, 4, bias=False), nn.Linear(4, 8), nn.Linear(8, 4)),
        f"TL235: gate has a bias, and up has none\n{JOINED}  do:  give the others one of zeros, or remove it",
    ),
    "one bias of three": (
        lambda: ParallelAttention.of(nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 8), 2),
        f"TL235: query has a bias, and key has none\n{JOINED}  do:  give the others one of zeros, or remove it",
    ),
    "one of two is frozen": (
        lambda: ParallelMLP.of(nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 4).requires_grad_(False)),
        f"TL235: the weight of up is trained, and that of gate is not\n{JOINED}  do:  set requires_grad alike",
    ),
    "a list": (
        lambda: ColumnParallelLinear(8, 6, group=[0, 1]),
        "TL454: a list is no group of simulated ranks\n"
        "  why: ranks of this process are not those of torch.distributed\n"
        "  do:  name them: tilelink.group([0, 1])",
    ),
}


@table("case", REFUSALS)
def test_refusals(case: str) -> None:
    refused, text = REFUSALS[case]

    def main() -> str:
        with pytest.raises(tilelink.TilelinkError) as caught:
            refused()
        return str(caught.value)

    assert tilelink.launch(main, 2) == [text] * 2
