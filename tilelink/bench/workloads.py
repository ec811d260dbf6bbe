"""The shapes that benchmarks use: the six MLPs of the TileLink evaluation (arXiv:2503.20313, table 3), and ragged ones."""

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

RAGGED = ((997, 640, 512), (1, 256, 128), (131, 200, 72), (520, 264, 136), (128, 1000, 4096))
"""(rows per rank, N, K) that fit no tile."""
