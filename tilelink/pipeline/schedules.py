"""How a step runs: the values of `Operator.schedule` (the design space of the paper, section 3.1); and for bodies of collectives,
which see sizes, those that suit the bytes that there are. Numbers are those of H200s (`docs/performance.md`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilelink.errors import TilelinkError, is_whole
from tilelink.frontend import ranks_here
from tilelink.ir.plan import LL_MOST
from tilelink.ir.schedule import (
    ELEMENTS,
    FIELDS,
    LENGTH,
    PART,
    PLACED,
    ByRuns,
    CopyEngine,
    Field,
    Fused,
    Library,
    Placement,
    Schedule,
    Sms,
    SortKey,
)
from tilelink.runtime.functions import function_of

Order = str | SortKey | tuple[str | SortKey, ...]


def refuse(what: str, value: Any, wanted: str) -> TilelinkError:
    return TilelinkError(
        "TL329",
        f"{what} is {value!r}",
        why=f"it is {wanted}",
        hint="schedules are made of tilelink.sms(…), copy_engine(…), fused(…) and library(…)",
    )


def checked(schedule: Schedule) -> Schedule:
    """A schedule whose parts are what they are called.

    Raises:
        TilelinkError: TL329.
    """
    for path, placement in schedule.entries:
        _fit(PLACED, f"the placement of `{path}`", placement)
    _require(slots=schedule.slots, ll=schedule.ll)
    for tensor, elements in schedule.channels:
        _fit(ELEMENTS, f"the channel of `{tensor}`", elements)
    return schedule


TILE: Field = ('a number of elements; of a library function also, along a dimension `M`, "M/R"', is_whole)


def _fit(field: Field, what: str, value: Any) -> None:
    wanted, good = field
    if not good(value):
        raise refuse(what, value, wanted)


def _require(**given: Any) -> None:
    for name, value in given.items():
        _fit(FIELDS[name], f"`{name}`", value)


def _order(order: Order) -> tuple[str | SortKey, ...]:
    return order if isinstance(order, tuple) else (order,)


def _tile(tile: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    for dim, size in tile.items():
        _fit(TILE, f"the tile along `{dim}`", size)
        if size < 1:
            raise TilelinkError("TL318", f"a tile of {size} along `{dim}`", hint="tiles have at least one element")
        if size > LENGTH:
            raise refuse(f"the tile along `{dim}`", size, f"a number of elements, at most {LENGTH:,}")
    return tuple(tile.items())


def sms(
    count: int | float | None = None,
    /,
    *,
    order: Order = "row",
    push: bool | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
    maxnreg: int | None = None,
    own_kernel: bool = False,
    joins: str | None = None,
    **tile: int,
) -> Sms:
    """Run on streaming multiprocessors.

    Args:
        count: SMs of its own, or, below 1, their part of the device's (default: all that other steps leave; steps of one
            kernel that have no number take turns, each worker being through with one step before it begins the next).
        order: `row`, `column`, `group N`, `ring`, `ring+N`, `across N`, or several, the first outermost; and a function
            `key(tile, rank, ranks)` of the tile's index per axis, by which tiles are sorted, stably, after that. `across N`
            is for axes split at run time: the first N tiles of all segments come before all later ones; `across`: N is 1,
            and the first tiles of all ranks' parts come before all second ones, too.
        push: of a copy program, run it at the rank that has the data (True) or that wants it (False); default: as written.
        num_warps: Triton's.
        num_stages: Triton's; fewer where a GPU's shared memory does not hold them, two at most on AMD's.
        maxnreg: Triton's: at most so many registers for a thread, from 24 to 255 (default: what the compiler takes). Fewer
            than a kernel needs are made up for with memory. AMD's compiler has no such limit, and is given none.
        own_kernel: a kernel of its own on a side stream, rather than a role in its neighbour's kernel.
        joins: of a computing step, an earlier one: no kernel of its own, but its turn in that one's, on the same workers
            with the same warps and stages, when each is through with its tiles of that step.
        tile: elements per dimension of the program, `M=128`; a dimension that is not named is whole.

    Raises:
        TilelinkError: TL318, a tile below one element; TL329, something of the wrong kind.
    """
    _require(count=count, order=order, push=push, num_warps=num_warps, num_stages=num_stages, maxnreg=maxnreg)
    _require(own_kernel=own_kernel, joins=joins)
    part = count if isinstance(count, float) else None
    return Sms(
        count=None if isinstance(count, float) else count,
        part=part,
        tile=_tile(tile),
        order=_order(order),
        push=push,
        warps=num_warps,
        stages=num_stages,
        maxnreg=maxnreg,
        own_kernel=own_kernel,
        joins=joins,
    )


def copy_engine(*, order: Order = (), push: bool | None = None, streams: int = 1, **tile: int) -> CopyEngine:
    """Run a copy program on copy engines: one stream step per tile.

    Args:
        order: as for `sms`; default: `ring` for an argument, `ring+1` for what a step of the operator makes.
        push: as for `sms`.
        tile: as for `sms`.
        streams: side streams that take the tiles in turn.

    Raises:
        TilelinkError: TL318, a tile below one element; TL329, something of the wrong kind.
    """
    _require(order=order, push=push, streams=streams)
    return CopyEngine(tile=_tile(tile), order=_order(order), push=push, streams=streams)


def fused(into: str, *, deferred: bool | None = False, **tile: int) -> Fused:
    """Run right after the tile that it depends on, in the same worker, the tile handed over in registers.

    Args:
        into: the step whose tile it takes.
        deferred: not right after the tile, but behind all tiles of that step, from memory, each by the next worker that is
            free: where it waits for other ranks, nobody is held up who has another tile to make. For programs that run for
            this rank's own rows, which that step makes last (order="ring+1"), and whose result nobody waits for. None:
            so where that can be, else right after the tile.
        tile: elements of the last dimension to take at a time, `N=64`: a program that reads more of the same shape then
            needs fewer registers. Default: 64 where the program notifies nobody (behind the tiles 128), else the whole tile.

    Raises:
        TilelinkError: TL318, a tile below one element; TL329, something of the wrong kind.
    """
    _require(into=into, deferred=deferred)
    return Fused(into, _tile(tile), deferred)


def library(
    function: str | Callable[..., Any],
    *,
    order: Order = (),
    streams: int = 1,
    fallback: Placement | None = None,
    **tile: int | str,
) -> Library:
    """Let a library function compute each tile, on a stream of its own behind the waits: cuBLAS as `"torch.mm"`.

    A program qualifies that makes one tensor, stores each of its tiles once, as a whole and at home, and loads whole axes
    or the same tile of others: then a tile reads and writes plain slices of tensors. The function replaces what the
    program computes; its waits, loads, stores and notifies stay what others go by. It must

    - take views of the program's inputs in the program's order, `out=` a view of its result (none of them need be
      contiguous), and the program's constants by name;
    - compute what the program computes, from these views alone: it is told no positions and no rank;
    - write all of `out`, read none of it, and write nothing else;
    - run on torch's current stream, neither waiting for it nor looking at values, so that CUDA graphs can hold it.

    It is called without gradients, once per tile that is not empty; in the simulated backend with tensors of the CPU. What is
    made by `tilelink.by_panels` may also be given parts of an axis that the program walks and the result does not have,
    `T="T/R"`, and is called once for each.

    Args:
        function: a dotted name, or the function itself (which no table of tuned schedules can hold).
        order: as for `sms`; default: `ring` where it reads what a program makes, else `ring+1`.
        streams: side streams that take the tiles in turn.
        fallback: a placement where the function refuses what it would be given (`tilelink.by_panels`), and in the simulated
            backend, which looks at what is emitted.
        tile: elements per dimension of what it makes, of any size; `M="M/R"`: the part of one rank. A dimension that is
            not named is whole. Where ranks hold parts, tiles end at their borders.

    Raises:
        TilelinkError: TL318, TL329, as `sms`; TL408, there is no function of this name.
    """
    _require(function=function, order=order, streams=streams, fallback=fallback)
    found = function_of(function)
    sizes = {dim: size for dim, size in tile.items() if size != f"{dim}/R"}
    cut = dict(_tile(sizes)) | {dim: PART for dim, size in tile.items() if size == f"{dim}/R"}
    runs = isinstance(found, ByRuns)
    return Library(function, tuple((dim, cut[dim]) for dim in tile), _order(order), streams, runs, fallback)


def by_panels(
    *, merge: Callable[..., None], refuses: Callable[..., str] | None = None
) -> Callable[[Callable[..., Any]], ByRuns]:
    """Decorator: a library function that computes a tile from runs of an axis that its result does not have.

    Such an axis is one that the program walks with `tl.tiles`: the keys of attention, the depth of a product. The function
    is called once per run, as soon as the run is there, and gives what the run contributes, in whatever form; `merge`
    makes the tile of that. Iterations of `tl.tiles` commute, so runs come in the order in which they arrive.

    The function must, as said of `tilelink.library`, compute from views of the program's inputs, in their order, and the
    constants by name; there is no `out=`. It is told positions: `at={"S": (0, 64), "T": (64, 128)}`, begin and end by
    dimension, of the tile and of the run, as the program counts them. Runs are what the program walks, cut as the schedule
    says: of a causal program none that it does not walk. Axes that the program walks one at a time, such as heads, come
    whole, and so does what it reads at positions that come of those.

    Args:
        merge: `merge(parts, out=…)` writes all of `out`; `parts`: what the function gave, a list with an entry per run,
            empty where there was none.
        refuses: called like the function, when a plan for GPUs is made, with shapes in the place of rank 0's first run: each
            has `shape`, `dtype` as in signatures (`"bf16"`), and `device` (`name`, `capability` as 90, `amd`). Why the
            function cannot take such tensors, which is TL411; empty where it can.
    """
    return lambda function: ByRuns(function, merge, refuses)


# ---------------------------------------------------------------------------------------------------------------------
# Of collectives: tiles enough for all SMs, and few enough to be worth their signals.

LEAST, MOST = 4 * 1024, 256 * 1024
"""Bytes of a tile."""
UNDER_WAY = 128 * 1024
"""Bytes that a worker of 16 warps may have on their way to its registers."""
HELD = 200 * 1024
"""Bytes of operands that an SM holds in shared memory."""
A_WARP = 1024
"""Bytes that a warp copies to words at once: 16 of each thread, twice."""
SMS = 132
IN_TURN = 16 * 1024 * 1024
"""Bytes up to which all workers take one step after the other; beyond, links and memory are busy at once instead."""
HOP = 1280 * 1024
"""Bytes that go over a rank's links in the time that a second hop takes: 3.3 µs on two H200s and on four, in graphs."""
AT_ONCE = 8 * 1024 * 1024
"""Bytes up to which two ranks do without a second hop, which saves them none."""


def one_hop(x: Any) -> bool:
    """Whether sending all of `x`, a tensor or so many bytes, to everyone takes less time than a second hop, by which every byte
    is sent to one or two.

    Up to 853 KiB on four ranks, 243 on eight, and 8 MiB on two.
    """
    ranks = ranks_here()
    most = HOP * ranks // ((ranks - 1) * (ranks - 2)) if ranks > 2 else AT_ONCE
    return (x if isinstance(x, int) else _nbytes(x)) <= most


def moving(x: Any, part: float | None = None, *, tiles: tuple[int, int] = (128, 512), push: bool | None = None) -> Sms:
    """A copy program of all of `x`, as `tilelink.sms` has it: up to 16 MiB by workers that take turns with other steps, beyond on
    SMs of its own, through all ranks' parts side by side. Where words tell that they have come, a worker has as many warps as
    a tile keeps busy.

    Args:
        part: of the device's SMs, beyond 16 MiB; None: all that other steps leave.
        tiles: in how many, up to 16 MiB and beyond; of 4 to 256 KiB.
        push: as of `tilelink.sms`.
    """
    if _nbytes(x) <= IN_TURN:
        rows = _rows(x, tiles[0])
        warps = min(max(_padded(rows * _row(x) // A_WARP), 4), 16) if _by_words(_nbytes(x)) else 16
        return sms(M=rows, push=push, order="ring+1", num_warps=warps)
    return sms(part, M=_rows(x, tiles[1]), push=push, order=("ring+1", "across"), num_warps=16)


def adding(x: Any, most: int = 32 * 1024, *, pushed: bool = False) -> Sms:
    """Adding up a rank's part of what came of `x` by `moving`, in 128 tiles of at most so many elements: no more than registers
    hold of all ranks. No tile of sums needs two of those that came.

    Args:
        pushed: sums go on to peers, who take them by `moving`: where words tell that they have come, by tiles as large, since
            what peers wait for is then one tile of sums.
    """
    rows, columns = min(_rows(x, 128 if _nbytes(x) <= IN_TURN else 512), 16), _padded(x.shape[1])
    tiles = 128 * ranks_here()
    if _by_words(_nbytes(x) // ranks_here()):
        each, warps = _few(min(rows * columns, _room(x, most)) if pushed else math.prod(x.shape) // tiles)
    else:
        each, warps = _summed(x, tiles, most), 16
    return sms(M=rows, N=min(max(each // rows, 1), columns), num_warps=warps)


def exchanging(x: Any) -> Sms:
    """Sending all of `x` in 128 tiles, and adding up everyone's, tile by tile: no more than registers hold of all ranks. Where
    words tell by themselves that they have come, tiles may be as small as one likes."""
    if _by_words(_nbytes(x)):
        each, warps = _few(math.prod(x.shape) // 128)
    else:
        each = _summed(x, 128, 32 * 1024)
        warps = min(max(each // 512, 4), 16)
    columns = min(each, 2048, _padded(x.shape[1]))
    return sms(M=each // columns, N=columns, num_warps=warps)


def streaming(rows: Any, weight: Any) -> Sms:
    """The product of some rows and a weight, whose time is that of reading the weight: tiles enough for all SMs, each with as
    much on its way as shared memory holds.

    Args:
        rows: `[M, K]`.
        weight: `[K, N]`.
    """
    (m, n), most = (16, 32), min(_padded(rows.shape[0]), 128)
    while math.prod(-(-size // tile) for size, tile in ((rows.shape[0], m), (weight.shape[1], n))) > SMS:
        if m <= n and m < most:
            m *= 2
        elif n < 256:
            n *= 2
        else:
            break
    k = 256 if m + n < 64 else 128 if m + n <= 192 else 64
    stages = max(2, min(HELD // ((m + n) * k * rows.itemsize), 8))
    return sms(M=m, N=n, K=k, num_warps=8 if m * n > 128 * 128 else 4, num_stages=stages)


def _nbytes(x: Any) -> int:
    return x.itemsize * math.prod(x.shape)


def _row(x: Any) -> int:
    """Bytes of a row."""
    return max(_nbytes(x) // max(x.shape[0], 1), 1)


def _rows(x: Any, tiles: int) -> int:
    """Rows of a tile where all of `x` is to be so many tiles: a power of two."""
    tile = min(max(_nbytes(x) // tiles, LEAST), MOST)
    return 1 << max(0, (tile // _row(x)).bit_length() - 1)


def _by_words(nbytes: int) -> bool:
    """Whether so many bytes of each rank come by the LL protocol."""
    return nbytes * max(ranks_here() - 1, 1) <= LL_MOST


def _few(elements: int) -> tuple[int, int]:
    """Elements and warps of a tile of about so many sums, of parts that come by words."""
    each = max(_padded(elements), 256)
    return each, min(max(each // 128, 2), 8)


def _summed(x: Any, tiles: int, most: int) -> int:
    """Elements of a tile of sums where `x` is so many of them."""
    return 1 << (min(max(math.prod(x.shape) // tiles, LEAST // x.itemsize), _room(x, most)).bit_length() - 1)


def _room(x: Any, most: int) -> int:
    """Elements of a tile of which all ranks' parts may be on their way at once; `most` at most."""
    return min(UNDER_WAY // (x.itemsize * ranks_here()), most)


def _padded(length: int) -> int:
    """A power of two that has room for it."""
    return 1 << max(0, length - 1).bit_length()
