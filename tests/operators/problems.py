# pyright: reportArgumentType=false
"""Inputs of operators for all ranks, what torch says of them in fp32, and one way to run and compare them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch

import tilelink
from tilelink import Operator, TilelinkError
from tilelink.frontend.program import Program
from tilelink.ir.topology import Device

T = torch.Tensor
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""Relative Frobenius error."""
FEW = Device(sms=6)
"""Workers are coroutines, and there is not much to do."""


def part(size: int, rank: int, ranks: int) -> slice:
    """What rank `rank` holds of a split axis: ceil each, the last ranks what is left."""
    length = max(1, -(-size // ranks))
    return slice(min(rank * length, size), min((rank + 1) * length, size))


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> T:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def split(x: T, ranks: int, axis: int = 0) -> list[T]:
    return [x.movedim(axis, 0)[part(x.shape[axis], r, ranks)].movedim(0, axis).contiguous() for r in range(ranks)]


def each(*tensors: Sequence[T]) -> list[tuple[T, ...]]:
    """Of tensors by rank, those of every rank."""
    return list(zip(*tensors, strict=True))


def assert_close(got: T, want: T) -> None:
    """As close as results of their dtype are; written so that a NaN fails."""
    assert got.shape == want.shape
    if want.numel():
        error, size = float((got.float() - want.float()).norm()), float(want.float().norm())
        assert error <= TOLERANCE[got.dtype] * size, f"relative error {error / size if size else error}"


@dataclass(frozen=True)
class Problem:
    """What each rank passes and gets, and the sizes that shards leave open and constants."""

    inputs: Sequence[Sequence[T]]
    wanted: Sequence[Sequence[T]]
    given: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def listed(self) -> list[list[T]]:
        """As one call takes the tensors of all ranks: a list for each argument."""
        return [list(tensors) for tensors in zip(*self.inputs, strict=True)]

    def assert_on(self, rank: int, got: T | tuple[T, ...]) -> None:
        for one, want in zip(got if isinstance(got, tuple) else (got,), self.wanted[rank], strict=True):
            assert one.dtype == self.inputs[0][0].dtype
            assert_close(one, want)

    def solve(self, operator: Operator, group: Any = None) -> None:
        """Calls it in this rank, and compares what it gives."""
        me = tilelink.rank(group)
        self.assert_on(me, operator(*self.inputs[me], **self.given, group=group))


def assert_solves(operator: Operator, problems: Sequence[Problem], **options: Any) -> None:
    """All problems back to back on every rank of a simulated run; `options` are of `tilelink.launch`. Results are looked at when
    it is over, so that a race is told before a wrong number."""

    def main() -> list[Any]:
        return [operator(*p.inputs[tilelink.rank()], **p.given) for p in problems]

    for rank, results in enumerate(tilelink.launch(main, len(problems[0].inputs), **options)):
        for problem, got in zip(problems, results, strict=True):
            problem.assert_on(rank, got)


def assert_as_torch(operator: Operator, problem: Problem, **options: Any) -> None:
    """Two calls on every rank: the second meets what the first left behind."""
    ranks = len(problem.inputs)
    usual = {"seed": ranks, "straggler": ranks - 1, "device": FEW}
    assert_solves(operator, [problem] * 2, **(usual | options))


def told(error: TilelinkError | None) -> tuple[str, str, str | None, str | None]:
    """All that a diagnostic says but for its place: code, message, why, and what to do."""
    assert error is not None
    return error.code, error.message, error.why, error.hint


def refusal(call: Callable[[], object]) -> tuple[str, str, str | None, str | None]:
    """What is told of a call that is refused."""
    with pytest.raises(TilelinkError) as caught:
        call()
    return told(caught.value)


def alone(program: Program) -> Operator:
    """The operator that is this program: its name and signature, its inputs and constants as they are called there."""

    def body(*tensors: Any, **constants: Any) -> Any:
        return program(*tensors, **constants)

    written, shapes = inspect.signature(program.function), program.signature
    parameters = list(written.parameters.values())
    del parameters[len(shapes.inputs) : len(shapes.shapes)]  # the results
    setattr(body, "__signature__", written.replace(parameters=parameters))  # noqa: B010
    return tilelink.operator(str(shapes), name=program.name)(body)


def products(rows: int, depth: int, columns: int, ranks: int, factor: int = 1) -> Problem:
    """GEMM+RS of a split depth."""
    x, weight = random(rows, depth), random(depth, columns)
    wanted = split(factor * (x @ weight), ranks)
    return Problem(each(split(x, ranks, 1), split(weight, ranks)), each(wanted), {"K": depth})


def moved_away(owner: Callable[[T, int], T | int], rows: int, columns: int, ranks: int) -> Problem:
    """Rows that come back from whoever `owner` says, twice their values and that rank's number."""
    x = random(rows, columns)
    wanted = 2 * x + (0 * torch.arange(rows) + owner(torch.arange(rows), ranks))[:, None]
    return Problem(each(split(x, ranks)), each(split(wanted, ranks)), {"M": rows})


def perceptron(rows: int, width: int, inner: int, ranks: int) -> Problem:
    x, gate, up, down = random(rows, width), random(width, inner), random(width, inner, seed=1), random(inner, width)
    wanted = (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down
    inputs = each(split(x, ranks), split(gate, ranks, 1), split(up, ranks, 1), split(down, ranks))
    return Problem(inputs, each(split(wanted, ranks)), {"M": rows, "I": inner})


# ------------------------------------------------------------------------------------------- products of several dtypes
@dataclass(frozen=True)
class Kind:
    """An operator's mathematics: `all_gather(x) @ w`, or `reduce_scatter(x @ w)`."""

    name: str

    def call(
        self, m: int, n: int, k: int, ranks: int, dtype: torch.dtype, *, salt: int = 0, turned: bool = False
    ) -> Problem:
        """Random data; that of rank r is scaled by r + 1. `turned`: the weight is a transposed view, as a `Linear`'s."""
        return _call(self.name, m, n, k, ranks, dtype, salt, turned)


AG = Kind("ag")
RS = Kind("rs")


@cache
def _call(name: str, m: int, n: int, k: int, ranks: int, dtype: torch.dtype, salt: int, turned: bool) -> Problem:
    generator = torch.Generator().manual_seed(hash((m, n, k, ranks, salt)) % 2**31)

    def random(rows: int, columns: int, rank: int) -> T:
        return ((rank + 1) * torch.randn(rows, columns, generator=generator)).to(dtype)

    def weight(rows: int, rank: int) -> T:
        return random(n, rows, rank).t() if turned else random(rows, n, rank)

    if name == "ag":
        shards = [random(_length(m, r, ranks), k, r) for r in range(ranks)]
        weights = [weight(k, r) for r in range(ranks)]
        whole = torch.cat(shards).float()
        wanted = [whole @ w.float() for w in weights]
    else:
        shards = [random(m, _length(k, r, ranks), r) for r in range(ranks)]
        weights = [weight(_length(k, r, ranks), r) for r in range(ranks)]
        summed = torch.stack([x.float() @ w.float() for x, w in zip(shards, weights, strict=True)]).sum(0)
        wanted = split(summed, ranks)
    return Problem(each(shards, weights), each(wanted), {"M": m} if name == "ag" else {"K": k})


def _length(size: int, rank: int, ranks: int) -> int:
    held = part(size, rank, ranks)
    return held.stop - held.start
