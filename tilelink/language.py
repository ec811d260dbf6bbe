"""Triton's language, plus tiles and the nine tile-centric primitives: `import tilelink.language as tl`.

Takes: nothing; a tile program is read from its source and never run as Python.
Gives: names, types and documentation for editors; whatever is not here is `triton.language`'s own.
Knows: the shape of each call. Never knows: what becomes of it.
"""

from __future__ import annotations

import importlib
from typing import Any, NoReturn, TypeAlias

from tilelink.errors import TilelinkError

Tensor: TypeAlias = Any
"""A parameter of a tile program or an operator, for those who annotate: what it is, its signature says."""

__all__ = [
    "Tensor",
    "acc_dtype",
    "consume_token",
    "consumer_tile_wait",
    "notify",
    "num_ranks",
    "peer_tile_notify",
    "peer_tile_wait",
    "pointer",
    "producer_tile_notify",
    "rank",
    "rank_copy_data",
    "rank_notify",
    "rank_of",
    "rank_wait",
    "segment",
    "size",
    "symm_at",
    "tile_begin",
    "tile_end",
    "tile_id",
    "tile_load",
    "tile_mask",
    "tile_pull_data",
    "tile_push_data",
    "tile_range",
    "tile_shape",
    "tile_store",
    "tiles",
    "wait",
]


def __getattr__(name: str) -> Any:
    # By name, so that a file with tile programs can be imported, and planned, where Triton is not installed.
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("triton.language"), name)


def _outside(name: str) -> NoReturn:
    raise TilelinkError(
        "TL100",
        f"`tl.{name}` was called outside a tile program",
        why="tile programs are read from their source and compiled; their primitives do not run as Python",
        hint="use it inside a function decorated with `@tilelink.program(...)`, and call that from an operator",
    )


# --------------------------------------------------------------------------------------------------- the nine primitives
def producer_tile_notify(t: Any, tile: Any = None, mode: str | None = None) -> None:
    """This program is through with its part of `tile` of `t` (paper section 3.1).

    Release: whatever the program stored, pushed or pulled into the tile before is visible to whoever waits for it. The
    ranks that hear it are those that wait.

    Args:
        t: a tensor parameter.
        tile: an index into `t`; without one, the whole tensor.
        mode: an assertion that exactly one rank (`"p2p"`) or every rank (`"broadcast"`) hears it.

    Raises:
        TilelinkError: TL160 (under a condition on data), TL161 (in a `while`), TL162 (in a loop whose length is data).
    """
    _outside("producer_tile_notify")


def consumer_tile_wait(t: Any, tile: Any = None) -> None:
    """Block until every producer tile that intersects `tile` of `t` is complete (paper section 3.1).

    Acquire: loads after it see what the producers stored before their notify. Of an argument of the operator it waits
    until the owner has begun this call.

    Args:
        t: a tensor parameter.
        tile: an index into `t`; without one, the whole tensor.

    Raises:
        TilelinkError: TL161 (in a `while`).
    """
    _outside("consumer_tile_wait")


def peer_tile_notify(t: Any, tile: Any, rank: Any) -> None:
    """`producer_tile_notify` to one named rank (paper section 3.1).

    Args:
        t: a tensor parameter.
        tile: an index into `t`.
        rank: an R coordinate: an index of an axis `R`, `tl.rank_of(...)`, or one of them plus or minus a number: a constant, or
            what `tl.num_ranks()` makes.

    Raises:
        TilelinkError: TL144 (`rank` is no R coordinate), TL160, TL161, TL162.
    """
    _outside("peer_tile_notify")


def peer_tile_wait(t: Any, tile: Any, rank: Any) -> None:
    """`consumer_tile_wait` for one named rank (paper section 3.1).

    Args:
        t: a tensor parameter.
        tile: an index into `t`.
        rank: an R coordinate, as for `peer_tile_notify`.

    Raises:
        TilelinkError: TL144 (`rank` is no R coordinate), TL161.
    """
    _outside("peer_tile_wait")


def rank_wait(t: Any, tile: Any = None) -> None:
    """Hold a copy engine's stream until `tile` of `t` is complete (paper section 3.1).

    A program with `rank_*` primitives is one step of a stream per tile, and runs nowhere else.

    Raises:
        TilelinkError: TL163 (the program does something else besides).
    """
    _outside("rank_wait")


def rank_copy_data(t: Any, tile: Any, source: Any) -> None:
    """Copy `tile` from whoever holds it in `source` to whoever holds it in `t`, by a copy engine (paper section 3.1).

    Raises:
        TilelinkError: TL163 (the program does something else besides).
    """
    _outside("rank_copy_data")


def rank_notify(t: Any, tile: Any = None) -> None:
    """Signal from a copy engine's stream that `tile` of `t` is complete (paper section 3.1).

    Raises:
        TilelinkError: TL163 (the program does something else besides).
    """
    _outside("rank_notify")


def tile_push_data(t: Any, tile: Any, data: Any, mask: Any = None) -> None:
    """Write `data` to `tile` of `t` on every rank that holds it (paper section 3.1).

    Args:
        t: a tensor parameter; its shape says which ranks hold the tile.
        tile: an index into `t`; positions past the edge and -1 write nothing.
        data: a block of the index's shape, or one value.
        mask: where to write.
    """
    _outside("tile_push_data")


def tile_pull_data(t: Any, tile: Any, source: Any) -> None:
    """Read `tile` from a rank that holds it in `source` into one's own `t` (paper section 3.1).

    Args:
        t: the tensor parameter that receives.
        tile: an index that is valid in both tensors.
        source: the tensor parameter to read; of several holders, the reader itself or else the nearest.

    A program with it waits for its tile, pulls it and notifies, and does nothing else.

    Raises:
        TilelinkError: TL164 (it does not, or does something else besides).
    """
    _outside("tile_pull_data")


# ------------------------------------------------------------------------------------------------------------- vocabulary
def tile_id(t: Any) -> Any:
    """The tile this run of the program is for: the program runs once for every tile of `t` that its rank holds.

    One index per axis of `t`, bare if there is one axis: `m, n = tl.tile_id(out)`. Axes behind `...` have none. One name
    may stand for all of them: `tile = tl.tile_id(src)`.

    Raises:
        TilelinkError: TL150 (missing, twice or not at the top), TL151 (another number of names than axes).
    """
    _outside("tile_id")


def tile_shape(t: Any) -> Any:
    """The block shape of the tile of `tile_id`, upper-case axes only: `tl.zeros(tl.tile_shape(out), tl.float32)`."""
    _outside("tile_shape")


def acc_dtype(t: Any) -> Any:
    """What sums of values of `t` are accumulated in: fp32 for floats of up to 32 bits, int32 for integers of up to 32 bits,
    otherwise its own dtype: `tl.zeros(tl.tile_shape(out), tl.acc_dtype(inbox))`."""
    _outside("acc_dtype")


def tiles(t: Any, axis: int = 0, start: Any = None, stop: Any = None, part: Any = None) -> Any:
    """Walk the tiles of one axis of `t`: `for k in tl.tiles(weight, axis=0)`. The schedule may change the order.

    Args:
        t: a tensor parameter.
        axis: which of its axes; a lower-case one is walked position by position.
        start: first position (default 0); the walk stays inside the axis, whatever it says.
        stop: the position to end before (default: the size).
        part: `(c, parts)` walks the c-th of `parts` equal parts.
    """
    _outside("tiles")


def tile_load(t: Any, tile: Any = None, other: Any = None) -> Any:
    """The block of `t` at `tile`; what lies past an edge, or at -1, is `other` (0).

    Args:
        t: a tensor parameter.
        tile: one entry per axis: a tile, a position, or a vector of positions. Missing entries are whole axes.
        other: the value for what is not there.
    """
    _outside("tile_load")


def tile_store(t: Any, tile: Any, value: Any, mask: Any = None) -> None:
    """Write `value` to `tile` of this rank's own instance of `t`; past an edge, and at -1, nothing is written."""
    _outside("tile_store")


def tile_range(t: Any, tile: Any = None, axis: int = 0) -> Any:
    """The positions of `tile` as a vector; without a tile, of the whole `axis`."""
    _outside("tile_range")


def tile_mask(t: Any, tile: Any, start: Any = None, stop: Any = None) -> Any:
    """Which positions of `tile` are there, from `start` on and before `stop`: a block of rows by positions.

    Say with it, once, which elements count. Where its limits stay the same in a loop of `tl.tiles`, tiles of which all
    positions count for all rows take a loop of their own, in which the mask is true and loads need none.

    Args:
        t: a tensor parameter.
        tile: a tile of one of its axes.
        start: first position, or a vector of them, one for each row (default: the tile's first).
        stop: the position to end before, or a vector of them (default: the tile's end).

    Returns:
        `[rows, positions]` of booleans; one row where neither limit is a vector. Given to `tl.where`.

    Raises:
        TilelinkError: TL142 (`tile` is no tile, or a limit has more than one dimension).
    """
    _outside("tile_mask")


def tile_begin(t: Any, tile: Any) -> Any:
    """The first position of `tile`."""
    _outside("tile_begin")


def tile_end(t: Any, tile: Any) -> Any:
    """The position after the last of `tile`."""
    _outside("tile_end")


def segment(t: Any, tile: Any) -> Any:
    """Which segment of a run-time split (`P/start`) `tile` lies in.

    Raises:
        TilelinkError: TL152 (the axis is not split by a table).
    """
    _outside("segment")


def size(t: Any, axis: int) -> Any:
    """The size of one axis of `t`, as this program sees it: a number of the call. A block of a whole axis has the shape of
    `tl.tile_range(t, axis=axis)`, a constant of at least so many elements."""
    _outside("size")


def rank_of(t: Any, tile: Any) -> Any:
    """The R coordinate of the rank that holds `tile` of `t` (the paper's f_R)."""
    _outside("rank_of")


# ------------------------------------------------------------------------------------------------------- the escape hatch
def pointer(t: Any) -> Any:
    """A raw pointer to the first element of this rank's own instance of `t`, in this call's slot.

    The way out: from here on the program may use `tl.load`, `tl.store` and atomics as any Triton kernel, and the words
    below, which have the names of Triton-distributed's low-level primitives (arXiv:2504.19442, section 3), so that its
    kernels can be ported by hand. A plan with such a program is *not verified*: `Operator.verify` says so. The simulated
    backend runs it, with its race detector. Memory that peers reach through `symm_at` is the workspace's: what
    `tilelink.symmetric` declares, or what a program makes; a slot comes back after as many calls as there are slots,
    with whatever was left in it, and all ranks have left the call that used it.
    """
    _outside("pointer")


def rank(axis: int = -1) -> Any:
    """This rank's number in the group of the call; along the axis of ranks that the program is used along, of several."""
    _outside("rank")


def num_ranks(axis: int = -1) -> Any:
    """How many ranks the group of the call has; along the axis of ranks that the program is used along, of several."""
    _outside("num_ranks")


def symm_at(ptr: Any, rank: Any) -> Any:
    """What `ptr`, into memory of the workspace, is on rank `rank`: a pointer to load from and store to."""
    _outside("symm_at")


def wait(ptrs: Any, count: Any, scope: str, semantic: str, waitValue: Any = 1) -> Any:
    """Wait until the `count` integers from `ptrs` on, of this rank, all are `waitValue`.

    Args:
        scope: `gpu` or `sys`, within which they are written.
        semantic: `acquire` or `acq_rel`.

    Returns:
        A token for `consume_token`.
    """
    _outside("wait")


def consume_token(value: Any, token: Any) -> Any:
    """`value`, from a point behind the wait that gave `token`: what is loaded through it is loaded after the wait."""
    _outside("consume_token")


def notify(ptr: Any, rank: Any, signal: Any = 1, sig_op: str = "set", comm_scope: str = "inter_node") -> None:
    """Set the integer at `ptr` of rank `rank` to `signal`, or `add` it, after everything that this program has written.

    Args:
        ptr: of this rank's own instance; a pointer to int32 or int64 (int64 in the nvshmem backend).
        sig_op: `set` or `add`.
        comm_scope: `gpu`, `intra_node` or `inter_node`; all are signalled for the whole system here.
    """
    _outside("notify")
