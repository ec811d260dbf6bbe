# pyright: reportArgumentType=false
"""Inputs of the operators, what torch says in fp32, and one way to run and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

import tilelink

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 1e-4}
"""Relative Frobenius error."""


def part(size: int, rank: int, ranks: int) -> slice:
    """What rank `rank` holds of a split axis: ceil each, the last ranks what is left."""
    length = max(1, -(-size // ranks))
    return slice(min(rank * length, size), min((rank + 1) * length, size))


@dataclass(frozen=True)
class Call:
    """One call: the tensors of every rank, what every rank must get, and the sizes that ragged shards leave open."""

    tensors: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    expected: tuple[torch.Tensor, ...]
    sizes: tuple[tuple[str, int], ...]

    def assert_on(self, rank: int, got: torch.Tensor) -> None:
        want = self.expected[rank]
        assert got.shape == want.shape
        assert got.dtype == self.tensors[0][0].dtype
        if want.numel():
            # Written so that a NaN fails.
            error = float((got.float() - want).norm() / want.norm())
            assert error <= TOLERANCE[got.dtype], f"rank {rank}: relative error {error}"


@dataclass(frozen=True)
class Kind:
    """An operator's mathematics: `all_gather(x) @ w`, or `reduce_scatter(x @ w)`."""

    name: str

    def call(
        self, m: int, n: int, k: int, ranks: int, dtype: torch.dtype, *, salt: int = 0, turned: bool = False
    ) -> Call:
        """Random data; that of rank r is scaled by r + 1. `turned`: the weight is a transposed view, as a `Linear`'s."""
        return _call(self.name, m, n, k, ranks, dtype, salt, turned)


AG = Kind("ag")
RS = Kind("rs")


@cache
def _call(name: str, m: int, n: int, k: int, ranks: int, dtype: torch.dtype, salt: int, turned: bool) -> Call:
    generator = torch.Generator().manual_seed(hash((m, n, k, ranks, salt)) % 2**31)

    def random(rows: int, columns: int, rank: int) -> torch.Tensor:
        return ((rank + 1) * torch.randn(rows, columns, generator=generator)).to(dtype)

    def weight(rows: int, rank: int) -> torch.Tensor:
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
        wanted = [summed[part(m, r, ranks)] for r in range(ranks)]
    sizes = (("M", m),) if name == "ag" else (("K", k),)
    return Call(tuple(zip(shards, weights, strict=True)), tuple(wanted), sizes)


def _length(size: int, rank: int, ranks: int) -> int:
    held = part(size, rank, ranks)
    return held.stop - held.start


def assert_calls(
    operator: tilelink.Operator,
    calls: Sequence[Call],
    *,
    seed: int = 0,
    straggler: int | None = None,
    races: bool = True,
) -> None:
    """All calls back to back on every rank of a simulated run, each result compared."""
    ranks = len(calls[0].tensors)

    def main() -> list[torch.Tensor]:
        me = tilelink.rank()
        return [operator(*c.tensors[me], **dict(c.sizes)) for c in calls]

    assert_results(tilelink.launch(main, ranks, seed=seed, straggler=straggler, races=races), calls)


def assert_results(results: Sequence[Sequence[torch.Tensor]], calls: Sequence[Call]) -> None:
    for rank, outs in enumerate(results):
        for call, out in zip(calls, outs, strict=True):
            call.assert_on(rank, out)
