"""The shapes that benchmarks use: the six MLPs and six mixtures of experts of the TileLink evaluation (arXiv:2503.20313,
tables 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mlp:
    """`tokens` S, `hidden` H, `intermediate` I; AG+GEMM is M=S, K=H, N=2I/R, GEMM+RS is M=S, K=I/R, N=H."""

    name: str
    tokens: int
    hidden: int
    intermediate: int

    def ag_gemm(self, ranks: int) -> tuple[int, int, int]:
        """(M, N, K): N is one rank's columns, gate and up in one."""
        return self.tokens, 2 * self.intermediate // ranks, self.hidden

    def gemm_rs(self, ranks: int) -> tuple[int, int, int]:
        """(M, N, K): K is one rank's."""
        return self.tokens, self.hidden, self.intermediate // ranks


MLPS = (
    Mlp("MLP-1", 8192, 4096, 11008),
    Mlp("MLP-2", 8192, 4096, 14336),
    Mlp("MLP-3", 8192, 3584, 14336),
    Mlp("MLP-4", 8192, 4608, 36864),
    Mlp("MLP-5", 8192, 8192, 28672),
    Mlp("MLP-6", 8192, 8192, 29568),
)


@dataclass(frozen=True, slots=True)
class Moe:
    """`tokens` S, `hidden` H, `intermediate` I of each of `experts`, of which a token takes `top`."""

    name: str
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top: int


MOES = (
    Moe("MoE-1", 8192, 2048, 1536, 8, 2),
    Moe("MoE-2", 8192, 2048, 1536, 32, 2),
    Moe("MoE-3", 8192, 2048, 1536, 32, 5),
    Moe("MoE-4", 8192, 4096, 2048, 8, 2),
    Moe("MoE-5", 8192, 4096, 2048, 32, 2),
    Moe("MoE-6", 8192, 4096, 2048, 32, 5),
)
