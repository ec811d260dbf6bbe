# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false, reportIndexIssue=false, reportCallIssue=false
"""Operators as operators of torch: what torch asks of them, their gradients, and graphs that are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tilelink
from tests.operators.problems import TOLERANCE, part
from tilelink import ops
from tilelink.nn import TorchOperator, functional, group_name, register

RANKS = 3
COMPILERS = pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got: torch.Tensor | None, want: torch.Tensor | None) -> None:
    """Written so that a NaN fails."""
    assert got is not None
    assert want is not None
    assert got.shape == want.shape
    if want.numel():
        error = float((got.detach().double() - want.detach().double()).norm() / want.detach().double().norm())
        assert error <= TOLERANCE[got.dtype], error


class Problem:
    """`gemm_rs(relu(ag_gemm(x, a)), b)` on all ranks at once, in plain torch, with its gradients.

    `turned`: weights are transposed views, as a `Linear`'s.
    """

    def __init__(self, rows: int, ranks: int = RANKS, dtype: torch.dtype = torch.float32, turned: bool = True) -> None:
        self.rows, self.ranks = rows, ranks
        k, hidden = 16, 24
        shapes = ((hidden, k), (k, hidden)) if turned else ((k, hidden), (hidden, k))
        self.turn: Callable[[torch.Tensor], torch.Tensor] = torch.t if turned else lambda w: w
        self.x = random(rows, k, seed=1, dtype=dtype)
        self.a = [(r + 1) * random(*shapes[0], seed=10 + r, dtype=dtype) / 4 for r in range(ranks)]
        self.b = [random(*shapes[1], seed=20 + r, dtype=dtype) / 4 for r in range(ranks)]
        exact = [t.double().requires_grad_() for t in (self.x, *self.a, *self.b)]
        x, a, b = exact[0], exact[1 : 1 + ranks], exact[1 + ranks :]
        parts = [torch.relu(x @ self.turn(w)) @ self.turn(v) for w, v in zip(a, b, strict=True)]
        self.y = torch.stack(parts).sum(0)
        self.y.square().sum().backward()
        self.dx, *weights = [t.grad for t in exact]
        self.da, self.db = weights[:ranks], weights[ranks:]

    def layer(self, group: str, **given: int) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            inner = torch.relu(functional.ag_gemm(x, self.turn(a), group=group, **given))
            return functional.gemm_rs(inner, self.turn(b), group=group)

        return run

    def mine(self, rank: int) -> tuple[torch.Tensor, ...]:
        own = self.x[part(self.rows, rank, self.ranks)]
        return tuple(t.clone().requires_grad_() for t in (own, self.a[rank], self.b[rank]))

    def assert_on(self, rank: int, y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        own = part(self.rows, rank, self.ranks)
        for got, want in ((y, self.y[own]), (x.grad, self.dx[own]), (a.grad, self.da[rank]), (b.grad, self.db[rank])):
            assert_close(got, want)

    def assert_as_torch(
        self, wrap: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]], **given: int
    ) -> None:
        """Twice on every rank, so that the second call meets slots that the first has used."""

        def main() -> None:
            layer = wrap(self.layer(group_name(), **given))
            mine = self.mine(tilelink.rank())
            ys = [layer(*mine) for _ in range(2)]
            sum(y.square().sum() / 2 for y in ys).backward()
            for y in ys:
                self.assert_on(tilelink.rank(), y, *mine)

        tilelink.launch(main, self.ranks, seed=self.rows)


def compiled(backend: str | None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda f: f if backend is None else torch.compile(f, fullgraph=True, backend=backend, **options)


@COMPILERS
@pytest.mark.parametrize("ranks", [1, RANKS])
def test_gradients(backend: str | None, ranks: int) -> None:
    Problem(12, ranks).assert_as_torch(compiled(backend))


@COMPILERS
def test_uneven_rows(backend: str | None) -> None:
    """Ranks hold 4, 4 and 2 rows: a graph that was compiled for one rank does not fit another."""
    Problem(10).assert_as_torch(compiled(backend), M=10)


def test_a_graph_holds_for_one_rank() -> None:
    """Arguments of one shape, results of 4, 4 and 2 rows: the sizes that a graph has for a view are one rank's."""
    x, weight = random(10, 4, seed=0), random(4, 6, seed=1)

    def main() -> None:
        group = group_name()

        @torch.compile(fullgraph=True, backend="aot_eager")
        def flat(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            y = functional.gemm_rs(x, weight, group=group)
            return y.view(y.numel())

        assert_close(flat(x, weight), (RANKS * x @ weight)[part(10, tilelink.rank(), RANKS)].reshape(-1))

    tilelink.launch(main, RANKS)


def test_ranks_without_rows() -> None:
    Problem(2).assert_as_torch(compiled("aot_eager"), M=2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_sizes_that_change(backend: str) -> None:
    """The third size runs in the graph of the second, whose number of rows is a symbol, in its backward pass too."""
    behind: Any = torch._dynamo.lookup_backend(backend)
    problems = [Problem(rows, 2) for rows in (8, 12, 20)]
    graphs = 0

    def count(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return behind(module, inputs)

    def main() -> None:
        layer = torch.compile(problems[0].layer(group_name()), fullgraph=True, backend=count)
        for problem in problems:
            mine = problem.mine(tilelink.rank())
            y = layer(*mine)
            y.square().sum().backward()
            problem.assert_on(tilelink.rank(), y, *mine)

    tilelink.launch(main, 2)
    assert graphs == 2 * 2


@pytest.mark.parametrize("turned", [False, True])
def test_bf16_and_the_layout_of_gradients(turned: bool) -> None:
    problem = Problem(8, 2, torch.bfloat16, turned)
    seen: list[bool] = []

    def main() -> None:
        x, a, b = problem.mine(tilelink.rank())
        for weight in (a, b):
            weight.register_hook(lambda g: seen.append(g.is_contiguous()))
        problem.layer("")(x, a, b).square().sum().backward()
        for got, want in ((x.grad, problem.dx), (a.grad, problem.da), (b.grad, problem.db)):
            mine = want[part(8, tilelink.rank(), 2)] if torch.is_tensor(want) else want[tilelink.rank()]
            assert mine is not None
            assert_close(got, mine)

    tilelink.launch(main, 2)
    assert seen == [True] * 4


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_of_some_arguments(wanted: tuple[bool, ...]) -> None:
    problem = Problem(12)

    def main() -> None:
        rank = tilelink.rank()
        mine = [t.detach().requires_grad_(w) for t, w in zip(problem.mine(rank), wanted, strict=True)]
        problem.layer(group_name())(*mine).square().sum().backward()
        assert [t.grad is not None for t in mine] == list(wanted)
        wants = (problem.dx[part(12, rank, RANKS)], problem.da[rank], problem.db[rank])
        assert_close(mine[wanted.index(True)].grad, wants[wanted.index(True)])

    tilelink.launch(main, RANKS)


def test_without_gradients_first() -> None:
    """What an operator allocates in a call without gradients serves those with gradients too."""
    problem = Problem(12)

    def main() -> None:
        mine, layer = problem.mine(tilelink.rank()), problem.layer(group_name())
        with torch.inference_mode():
            assert layer(*mine).is_inference()
        with torch.no_grad():
            assert not layer(*mine).requires_grad
        y = layer(*mine)
        y.square().sum().backward()
        problem.assert_on(tilelink.rank(), y, *mine)

    tilelink.launch(main, RANKS)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    Problem(12).assert_as_torch(lambda layer: lambda *mine: checkpoint(layer, *mine, use_reentrant=reentrant))


def test_saved_tensors_pass_through_hooks() -> None:
    """What is kept is the rank's own rows and weight, and no gathered rows."""
    problem, kept = Problem(12), [[] for _ in range(RANKS)]

    def main() -> None:
        rank = tilelink.rank()
        mine = problem.mine(rank)

        def pack(t: torch.Tensor) -> torch.Tensor:
            kept[rank].append(tuple(t.shape))
            return t.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = problem.layer("")(*mine)
        y.square().sum().backward()
        problem.assert_on(rank, y, *mine)

    tilelink.launch(main, RANKS)
    assert kept == [[(4, 16), (16, 24), (12, 24), (12, 24), (24, 16)]] * RANKS


def test_an_argument_that_was_written_since() -> None:
    """Memory that peers read in place is the user's: torch notices that it changed before the backward pass."""

    def main() -> str:
        x = tilelink.empty(4, 16, dtype=torch.float32)
        x.copy_(random(4, 16, seed=1))
        weight = random(16, 8, seed=2).requires_grad_()
        y = functional.ag_gemm(x, weight)
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return "ok"

    assert tilelink.launch(main, 2) == ["ok"] * 2


def test_autocast() -> None:
    problem = Problem(12)

    def main() -> torch.dtype:
        x, a, b = problem.mine(tilelink.rank())
        with torch.autocast("cpu", torch.bfloat16):
            y = functional.gemm_rs(torch.relu(functional.ag_gemm(x, a.t())), b.t())
        y.float().square().sum().backward()
        assert x.grad is not None
        assert a.grad is not None
        assert x.grad.dtype == a.grad.dtype == torch.float32
        assert_close(a.grad.bfloat16(), problem.da[tilelink.rank()])
        return y.dtype

    assert tilelink.launch(main, RANKS) == [torch.bfloat16] * RANKS


@pytest.mark.parametrize("form", ["", "two_shot"])
def test_all_reduce(form: str) -> None:
    xs = [random(6, 8, seed=r) for r in range(2)]

    def main() -> None:
        x = xs[tilelink.rank()].clone().requires_grad_()
        y = functional.all_reduce(x, form=form)
        y.square().sum().backward()
        assert_close(y, xs[0] + xs[1])
        assert_close(x.grad, 2 * 2 * (xs[0] + xs[1]))

    tilelink.launch(main, 2)


def test_all_gather_and_reduce_scatter() -> None:
    """Each the other's gradient, with 3, 3 and 1 rows."""
    x = random(7, 4, seed=0)

    def main() -> None:
        own = part(7, tilelink.rank(), RANKS)
        mine = x[own].clone().requires_grad_()
        whole = functional.all_gather(mine, M=7)
        kept = functional.reduce_scatter((tilelink.rank() + 1) * whole)
        kept.square().sum().backward()
        assert_close(whole, x)
        assert_close(kept, 6 * x[own])
        assert_close(mine.grad, 2 * 6 * 6 * x[own])
        of_one_axis = x[own, 0].clone().requires_grad_()
        functional.all_gather(of_one_axis, M=7).square().sum().backward()
        assert_close(of_one_axis.grad, RANKS * 2 * x[own, 0])

    tilelink.launch(main, RANKS)


def test_a_result_that_all_ranks_go_on_with() -> None:
    """GEMM+AR: one loss, which every rank computes."""
    x, weight = [random(6, 8, seed=r) for r in range(2)], [random(8, 4, seed=5 + r) for r in range(2)]
    y = x[0] @ weight[0] + x[1] @ weight[1]

    def main() -> None:
        rank = tilelink.rank()
        mine, own = x[rank].clone().requires_grad_(), weight[rank].clone().requires_grad_()
        got = functional.gemm_ar(mine, own)
        got.square().sum().backward()
        assert_close(got, y)
        assert_close(mine.grad, 2 * y @ weight[rank].t())
        assert_close(own.grad, x[rank].t() @ (2 * y))

    tilelink.launch(main, 2)


ARGUMENTS: dict[str, tuple[TorchOperator, tuple[tuple[int, ...], ...], bool]] = {
    "ag_gemm": (functional.ag_gemm, ((4, 16), (16, 8)), True),
    "gemm_rs": (functional.gemm_rs, ((8, 16), (16, 8)), True),
    "ag_outer": (functional.ag_outer, ((4, 16), (8, 8)), False),
    "all_reduce": (functional.all_reduce, ((8, 16),), True),
    "ag_attention": (functional.ag_attention, ((4, 4, 8), (4, 2, 8), (4, 2, 8)), True),
    # Registered by the same function, of as many arguments.
    "outer_ag": (functional.outer_ag, ((8, 16), (4, 8)), False),
    "all_gather": (functional.all_gather, ((4, 2, 8),), True),
    "reduce_scatter": (functional.reduce_scatter, ((8, 16),), True),
    "gemm_ar": (functional.gemm_ar, ((8, 16), (16, 8)), True),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_torch_asks_of_operators(name: str) -> None:
    """Schema, shapes without data, registration with autograd, and tracing with symbols."""
    operator, shapes, differentiable = ARGUMENTS[name]

    def main() -> dict[str, str]:
        mine = [random(*s, seed=k).requires_grad_(differentiable) for k, s in enumerate(shapes)]
        return torch.library.opcheck(operator.overload, (*mine, group_name()))

    for results in tilelink.launch(main, 2):
        assert set(results.values()) == {"SUCCESS"}


def test_an_operator_more() -> None:
    """A schedule of one's own, and another gradient, in one line."""
    fast = register(
        ops.ag_gemm.schedule(gather=tilelink.sms(2, M=16), matmul=tilelink.sms(2, M=16, N=16, K=16)),
        name="ag_gemm_by_two",
        backward=lambda call, grad: (None, functional.ag_outer(call.tensors[0], grad, group=call.group)),
    )
    weight = random(16, 8, seed=2)

    def main() -> None:
        x, w = random(8, 16, seed=tilelink.rank()), weight.clone().requires_grad_()
        torch.compile(lambda x, w: fast(x, w), fullgraph=True, backend="aot_eager")(x, w).sum().backward()
        whole = torch.cat([random(8, 16, seed=r) for r in range(2)])
        assert_close(w.grad, whole.T @ torch.ones(16, 8))

    tilelink.launch(main, 2)


def test_without_ranks() -> None:
    """As other calls of operators: one rank, for this call."""
    x, weight = random(4, 16, seed=0), random(16, 8, seed=1).requires_grad_()
    assert group_name() == ""
    y = torch.compile(lambda x, w: functional.ag_gemm(x, w), fullgraph=True, backend="aot_eager")(x, weight)
    y.sum().backward()
    assert_close(y, x @ weight)
    assert_close(weight.grad, x.T @ torch.ones(4, 8))


@tilelink.operator("M/R K, K N -> M N, P")
def of_unknown_size(x: Any, weight: Any) -> Any:
    return ops.ag_gemm(x, weight), x


def test_refusals() -> None:
    unknown = register(of_unknown_size)
    x, weight = random(4, 16, seed=0), random(16, 8, seed=1)
    with pytest.raises(
        tilelink.TilelinkError, match=r"^TL230: the shapes of the inputs of `of_unknown_size` do not say"
    ):
        unknown(x.to("meta"), weight.to("meta"))
    with pytest.raises(tilelink.TilelinkError, match=r"^TL233: torch knows an operator `tilelink::ag_gemm` already"):
        register(ops.ag_gemm.schedule(matmul=tilelink.sms(2)))
    with pytest.raises(TypeError, match=r"^tilelink::ag_gemm takes no rows=; it takes group, M$"):
        functional.ag_gemm(x, weight, rows=4)
    with pytest.raises(
        TypeError, match=r"^tilelink::ag_gemm takes a group by its name: group=tilelink.nn.group_name\(…\)"
    ):
        functional.ag_gemm(x, weight, group=None)
    with pytest.raises(tilelink.TilelinkError, match="TL451"):
        functional.ag_gemm(x, weight, group="rank 0 of 0,1")
    with pytest.raises(tilelink.TilelinkError, match="TL227"):
        functional.ag_gemm(x, weight.bfloat16())


def test_attention_in_float64_has_its_gradient_in_float64() -> None:
    def main() -> bool:
        given = [torch.randn(4, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        functional.ag_attention(*given).sum().backward()
        got = [t.grad for t in given]
        want = [t.detach().clone().requires_grad_() for t in given]
        q, k, v = (t.transpose(0, 1) for t in want)
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
        return all(torch.allclose(a, b.grad, rtol=1e-12, atol=1e-12) for a, b in zip(got, want, strict=True))  # pyright: ignore[reportArgumentType]

    assert tilelink.launch(main, 1) == [True]
