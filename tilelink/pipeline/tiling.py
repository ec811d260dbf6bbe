"""Schedules of collectives, by the bytes that there are: tiles enough for all SMs, and few enough to be worth their signals.

For an operator's body, which sees sizes. Numbers are those of H200s (`docs/performance.md`).
"""

from __future__ import annotations

import math
from typing import Any

from tilelink.frontend import ranks_here
from tilelink.ir.plan import LL_MOST
from tilelink.ir.schedule import Sms
from tilelink.pipeline.schedules import sms

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
