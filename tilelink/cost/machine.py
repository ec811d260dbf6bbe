"""One description of the machine: every figure that a prediction is made of, and where it comes from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Device


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
FEW_WARPS = 4
"""Workers with so many warps or fewer keep fewer bytes in flight."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Microseconds, and flops and bytes per microsecond, of GPUs with 16-bit operands and of their links.

    The figures are in `tilelink/cost/machines/*.toml`, or in a user's own such file, each with its source: a data sheet, a
    measurement, or *fitted*, so that `predict` agrees with measured calls (docs/cost-model.md says which).

    Attributes:
        name: of the machine, as `8xH200`; `gpu`: of its GPUs; `capability`: as 90; `copy_engines`: of a GPU.
        gpus: of a node, which reach one another over `link`; `nodes`: that reach one another over `network`.
        sms: multiprocessors of a GPU.
        tile_fixed, tile_small: of an emitted matmul's tile whatever its depth, for the large tile and for others.
        tile_depth: of the large tile for each element of depth, and of others by their area; `tall`: a tile with more rows than
            columns takes so much more.
        library_fixed, library_depth: the same of the vendor's matmul; `library_call`: what a library's call costs a stream.
        flops: what the vendor's matmul sustains; `tile_flops`: what emitted ones do; `flops_limit`: what none exceeds.
        memory: bandwidth of a GPU's memory that kernels reach; `memory_limit`: what none exceeds; `worker_memory`: of one SM.
        tile_latency: of a tile that computes no product, whatever its bytes.
        link: of a copy engine, in one direction; `peer_link`: to one peer; `link_limit`: of all links of a GPU together;
            `network`, `network_signal`: between nodes, of one GPU: bandwidth and latency.
        push, pull: of one SM that stores to peers, or loads from them; `few_warps`: the share of these that workers of few warps
            reach.
        copy: the fixed cost of a copy engine's copy; `doorbell`: what waiting for workers costs it besides.
        nccl, nccl_call: rate and latency of NCCL; `few`, `few_call`: the same up to `little` bytes; `behind`: what a library's
            call behind another one saves.
        launch: of a kernel; `signal`, `remote_signal`: from when a flag is written until who waits for it, on the same rank or on
            another, knows.
        sources: by figure, where it comes from.
    """

    name: str
    gpu: str
    capability: int
    copy_engines: int
    gpus: int
    nodes: int
    sms: int
    tile_fixed: float
    tile_small: float
    tile_depth: float
    tall: float
    library_fixed: float
    library_depth: float
    library_call: float
    flops: float
    tile_flops: float
    flops_limit: float
    memory: float
    memory_limit: float
    worker_memory: float
    tile_latency: float
    link: float
    peer_link: float
    link_limit: float
    network: float
    network_signal: float
    push: float
    pull: float
    few_warps: float
    copy: float
    doorbell: float
    nccl: float
    nccl_call: float
    few: float
    few_call: float
    little: float
    behind: float
    launch: float
    signal: float
    remote_signal: float
    sources: tuple[tuple[str, str], ...] = ()

    @staticmethod
    @cache
    def load(name_or_path: str | Path) -> Machine:
        """The machine of a name in `MACHINES`, or of a TOML file.

        Raises:
            TilelinkError: TL731 there is no such machine, TL732 the file says something else than a machine.
        """
        path = Path(name_or_path)
        if path.suffix != ".toml":
            path = FOLDER / f"{name_or_path}.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise TilelinkError(
                "TL731",
                f"there is no machine {str(name_or_path)!r}",
                why=f"the machines that come with the package are {', '.join(MACHINES)}",
                hint="name one of these, or a file that ends in .toml; `tilelink calibrate --out FILE.toml` writes one",
            ) from error
        return parse(text, str(path))

    def device(self) -> Device:
        """What plans for it have to know."""
        return Device(self.gpu, self.sms, capability=self.capability, copy_engines=self.copy_engines)

    # ----------------------------------------------------------------------------------------------------------- products
    def fixed(self, rows: float, columns: float) -> float:
        """Of a tile of a matmul, whatever its depth."""
        return self.tile_fixed if rows * columns >= LARGE.rows * LARGE.columns else self.tile_small

    def per_depth(self, rows: float, columns: float) -> float:
        """Of it, for each element of depth."""
        return self.tile_depth * rows * columns / (LARGE.rows * LARGE.columns) * (self.tall if rows > columns else 1.0)

    def sustained(self, depth: float, busy: float) -> float:
        """By what products of a depth take longer where so much of all SMs is busy all the time: power lets no kernel multiply as
        fast for long as one tile alone."""
        large = 2 * LARGE.rows * LARGE.columns * depth / self.tile_flops * self.sms
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
    def same_node(self, rank: Any, peer: Any) -> Any:
        """Whether two ranks reach one another over links; of numbers or arrays."""
        return rank // self.gpus == peer // self.gpus

    def split(self, moved: Any) -> tuple[Any, Any]:
        """What of (rank, rank) goes over links, and what between nodes."""
        rank = np.arange(len(moved))
        near = self.same_node(rank[:, None], rank)
        return moved * near, moved * ~near

    def remote_rate(self, *, pull: bool = False, warps: int = 8, near: bool = True) -> float:
        """Of a worker that reaches into another rank's memory, while no other one does."""
        alone = (self.pull if pull else self.push) * (self.few_warps if warps <= FEW_WARPS else 1.0)
        return min(alone, self.peer_link if near else self.network)

    def copied(self, nbytes: float, remote: bool) -> float:
        """A copy by a stream: between GPUs by a copy engine, within one by its SMs."""
        return self.copy + nbytes / (min(self.link, self.peer_link) if remote else self.memory / 2)

    def exchanged(self, nbytes: float) -> float:
        """In which NCCL brings so many bytes to a rank."""
        if nbytes < self.little:
            return self.few_call + nbytes / self.few
        return self.nccl_call + nbytes / self.nccl

    def accessed(self, nbytes: float, remote: bool) -> float:
        """A worker's load or store, by itself."""
        return nbytes / (self.push if remote else self.worker_memory)

    def function(self, flops: float, nbytes: float, sms: int) -> float:
        """A library's function on so many SMs."""
        return self.library_call + max(flops / self.flops * self.sms / sms, nbytes / (self.worker_memory * sms))

    def flight(self, remote: bool) -> float:
        """From when a flag is written until whoever waits for it knows."""
        return self.remote_signal if remote else self.signal

    def latency(self, rank: Any, peer: Any) -> Any:
        """The same between two ranks, or arrays of ranks."""
        near = np.where(rank == peer, self.signal, self.remote_signal)
        return np.where(self.same_node(rank, peer), near, self.network_signal)


# --------------------------------------------------------------------------------------------------------------- files
FOLDER = Path(__file__).parent / "machines"
MACHINES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
"""Names of those that come with the package."""
SAID = ("name", "gpu", "capability", "copy_engines", "gpus", "nodes")
"""What a file says outside of its figures."""
FIGURES = tuple(f.name for f in fields(Machine) if f.name not in (*SAID, "sources"))


def parse(text: str, path: str = "FILE.toml") -> Machine:
    """The machine that a TOML file describes: of figures that it leaves out, those of the machine that it is `like`."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(path, f"is no TOML: {error}") from error
    like, figures = said.pop("like", None), said.pop("figures", {})
    if unknown := sorted({*said} - {*SAID}) or sorted({*figures} - {*FIGURES}):
        raise _wrong(path, f"says `{unknown[0]}`, which no machine has")
    found: dict[str, float | int] = {}
    sources: dict[str, str] = {}
    for name, pair in figures.items():
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str) and pair[1]):
            raise _wrong(path, f"has `{name}` without a source")
        if isinstance(pair[0], bool) or not isinstance(pair[0], int | float) or not 0 <= pair[0] < float("inf"):
            raise _wrong(path, f"has {pair[0]!r} for `{name}`, which is no figure")
        found[name] = int(pair[0]) if name == "sms" else float(pair[0])
        sources[name] = pair[1]
    if like is not None:
        other = Machine.load(like)
        inherited = {n: f"assumed, as of {other.name}: {s}" for n, s in other.sources if n not in sources}
        return replace(other, **said, **found, sources=tuple(sorted({**inherited, **sources}.items())))
    if missing := [n for n in (*SAID, *FIGURES) if n not in said and n not in found]:
        raise _wrong(path, f"says nothing of `{missing[0]}`, and not what machine it is `like`")
    return Machine(**said, **found, sources=tuple(sorted(sources.items())))  # pyright: ignore[reportArgumentType]


def _wrong(path: str, what: str) -> TilelinkError:
    return TilelinkError(
        "TL732",
        f"{path} {what}",
        why='a machine has a name and, under [figures], lines as `link = [3.6e5, "where the figure comes from"]`',
        hint='say `like = "8xH200"` to take the figures that are left out from there; docs/cost-model.md lists all',
    )


H200 = Machine.load("8xH200")
"""What calls are chosen for."""
