"""The operators that can be benchmarked, each with its cases and its contenders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilelink.bench.contest import Contest, Place, Sizes, Variants
from tilelink.bench.gemms import ag_contest, rs_contest
from tilelink.bench.layer import layer_contest
from tilelink.bench.workloads import MLPS, Mlp
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring
from tilelink.pipeline.operator import Operator


@dataclass(frozen=True, slots=True)
class BenchCase:
    """Global sizes of the operator's signature, by name."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Subject:
    """`operator`: None for what is made of several. `sizes`: of one of the MLPs, with `tokens` rows, on some ranks."""

    operator: Operator | None
    sizes: Callable[[Mlp, int, int], dict[str, int]]
    contest: Callable[[Place, Sizes, Variants], Contest]
    small: dict[str, int]
    """A case that the simulated world gets through in seconds."""

    def cases(self, ranks: int, tokens: tuple[int, ...] = ()) -> list[BenchCase]:
        """The six MLPs, with their own number of tokens or with each of `tokens`."""
        return [
            BenchCase(mlp.name if not tokens else f"{mlp.name} M={t}", self.sizes(mlp, t, ranks))
            for mlp in MLPS
            for t in (tokens or (mlp.tokens,))
        ]


def _ag_sizes(mlp: Mlp, tokens: int, ranks: int) -> dict[str, int]:
    return {"M": tokens, "N": 2 * mlp.intermediate // ranks, "K": mlp.hidden}


def _rs_sizes(mlp: Mlp, tokens: int, ranks: int) -> dict[str, int]:
    del ranks
    return {"M": tokens, "N": mlp.hidden, "K": mlp.intermediate}


def _layer_sizes(mlp: Mlp, tokens: int, ranks: int) -> dict[str, int]:
    del ranks
    return {"M": tokens, "H": mlp.hidden, "I": mlp.intermediate}


_GEMM = {"M": 512, "N": 256, "K": 256}

SUBJECTS: dict[str, Subject] = {
    "ag_gemm": Subject(ag_gemm, _ag_sizes, ag_contest, _GEMM),
    "gemm_rs": Subject(gemm_rs, _rs_sizes, rs_contest, _GEMM),
    "gemm_rs_ring": Subject(gemm_rs_ring, _rs_sizes, rs_contest, _GEMM),
    "mlp": Subject(None, _layer_sizes, layer_contest, {"M": 256, "H": 128, "I": 256}),
}
"""By the name that `tilelink bench` takes."""


def sweep(ranks: int) -> tuple[int, ...]:
    """Rows from 1 to 16384: the powers of two, and 997 on each rank."""
    return tuple(sorted([2**i for i in range(15)] + [997 * ranks]))
