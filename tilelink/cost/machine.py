"""One description of the machine: every figure that a prediction is made of, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of a matmul's tile, and how many warps and stages make it."""

    rows: int
    columns: int
    warps: int
    stages: int


LARGE = Tile(128, 256, 8, 3)
TILES = (LARGE, Tile(64, 256, 4, 4))
"""Of emitted matmuls; by default the first of those that are equally fast."""
DEPTH = 64
"""Elements along what is summed that a step of the loop takes."""
LIBRARY_TILES = ((128, 256), (128, 192), (128, 128), (64, 128), (64, 64))
"""Rows and columns, of cuBLAS, as its times suggest (`sweep-*.json`, `ms_gemm`)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Microseconds, and flops and bytes per microsecond, of a GPU with 16-bit operands and its links.

    Files are those of `benchmarks/results`. Where one measures a figure alone, a test compares them. *Fitted*: so that
    `model.call` agrees with the times of `schedules-2.json` and of `sweep-*.json`, which measure it among others.

    Matmuls: `tile_fixed`, `tile_small`: of an emitted tile whatever its depth, for the large tile and for others; `tile_depth`:
    of the large tile for each element of depth, and of others by their area (`sweep-*.json`, `ms_gemm_triton`). `tall`: of a tile
    with more rows than columns so much more; fitted.
    `library_fixed`, `library_depth`: the same of cuBLAS (`ms_gemm`), and `flops` what it reaches over six MLPs
    (`bench-*-4.json`, `ms_gemm`). `library_call`: what a library's call costs a stream; guessed.

    Memory: `memory`: five sixths of the data sheet's 4.8 TB/s. `worker_memory`: of one SM; guessed. `tile_latency`: of a tile
    that computes no product, whatever its bytes; fitted.

    Links: `link`: of a copy engine over NVLink, which no file has by itself. `copy`: the fixed cost of its copy; `doorbell`: what
    waiting for workers costs it besides; `worker_link`: of one SM that stores to peers or loads from them; all fitted.
    `nccl`, `nccl_call`: rate and latency of NCCL, the line through `ms_comm` of `bench-ag_gemm-4.json`; `few`, `few_call`: the
    same up to `little` bytes (`sweep-*.json`); `behind`: what a library's call behind another one saves.

    Starting and telling: `launch`: of a kernel, fitted; `signal`, `remote_signal`: from when a flag is written until who waits
    for it on the same rank, or on another, knows; guessed.
    """

    name: str = "NVIDIA H200"
    sms: int = 132
    tile_fixed: float = 6.5
    tile_small: float = 8.0
    tile_depth: float = 0.0094
    tall: float = 1.08
    library_fixed: float = 8.0
    library_depth: float = 0.0089
    library_call: float = 3.0
    flops: float = 7.7e8
    memory: float = 4.0e6
    worker_memory: float = 1.2e5
    tile_latency: float = 1.0
    link: float = 3.6e5
    worker_link: float = 2.0e4
    copy: float = 5.5
    doorbell: float = 3.0
    nccl: float = 3.13e5
    nccl_call: float = 29.0
    few: float = 1.7e5
    few_call: float = 13.3
    little: float = 2e6
    behind: float = 3.0
    launch: float = 6.0
    signal: float = 0.7
    remote_signal: float = 1.5

    # ----------------------------------------------------------------------------------------------------------- products
    def fixed(self, rows: float, columns: float) -> float:
        """Of a tile of a matmul, whatever its depth."""
        return self.tile_fixed if rows * columns >= LARGE.rows * LARGE.columns else self.tile_small

    def per_depth(self, rows: float, columns: float) -> float:
        """Of it, for each element of depth."""
        return self.tile_depth * rows * columns / (LARGE.rows * LARGE.columns) * (self.tall if rows > columns else 1.0)

    def sustained(self, depth: float, busy: float) -> float:
        """By what products of a depth take longer where so much of all SMs is busy all the time: no kernel multiplies faster for
        long than a library does."""
        large = 2 * LARGE.rows * LARGE.columns * depth / self.flops * self.sms
        return max(1.0, busy * large / self.tile(LARGE, depth))

    def tile(self, tile: Tile, depth: float) -> float:
        """A tile of a matmul on an SM."""
        return self.fixed(tile.rows, tile.columns) + self.per_depth(tile.rows, tile.columns) * depth

    def library(self, rows: float, columns: float, depth: float, sms: int) -> float:
        """A matmul by a library on so many SMs: by the tiles that suit it best, and no faster than it computes."""
        tiled = min(self._library(rows, columns, depth, sms, *tile) for tile in LIBRARY_TILES)
        return max(tiled, 2 * rows * columns * depth / self.flops * self.sms / sms)

    def _library(self, rows: float, columns: float, depth: float, sms: int, high: int, wide: int) -> float:
        waves = -(-(-(-rows // high) * -(-columns // wide)) // sms)
        return waves * (self.library_fixed + self.library_depth * high * wide / (LARGE.rows * LARGE.columns) * depth)

    # ---------------------------------------------------------------------------------------------------------- transfers
    def local_rate(self, workers: int) -> float:
        """Of one of so many workers that read and write their own rank's memory."""
        return min(self.worker_memory, self.memory / workers)

    def remote_rate(self, workers: int) -> float:
        """Of one of so many that reach into another rank's."""
        return min(self.worker_link, self.link / workers)

    def copied(self, nbytes: float, remote: bool, streams: int = 1) -> float:
        """A copy by one of so many streams: between GPUs by a copy engine, within one by its SMs."""
        return self.copy + nbytes / (self.link / streams if remote else self.memory / 2)

    def exchanged(self, nbytes: float) -> float:
        """In which NCCL brings so many bytes to a rank."""
        if nbytes < self.little:
            return self.few_call + nbytes / self.few
        return self.nccl_call + nbytes / self.nccl

    def accessed(self, nbytes: float, remote: bool) -> float:
        """A worker's load or store, by itself."""
        return nbytes / (self.worker_link if remote else self.worker_memory)

    def function(self, flops: float, nbytes: float, sms: int) -> float:
        """A library's function on so many SMs."""
        return self.library_call + max(flops / self.flops * self.sms / sms, nbytes / (self.worker_memory * sms))

    def flight(self, remote: bool) -> float:
        """From when a flag is written until whoever waits for it knows."""
        return self.remote_signal if remote else self.signal

    def arrivals(self, nbytes: float, parts: int) -> Iterator[float]:
        """When parts of so many bytes are there, which a copy engine brings one after the other; the first is there on entry."""
        return (at * self.copied(nbytes, remote=True) for at in range(parts))


H200 = Machine()
