"""Tiles of collectives, by the bytes that there are: enough for all SMs, and few enough to be worth their signals."""

from __future__ import annotations

import math
from typing import Any

import tilelink

LEAST, MOST = 4 * 1024, 256 * 1024
"""Bytes of a tile."""
UNDER_WAY = 128 * 1024
"""Bytes that a worker of 16 warps may have on their way to its registers."""
WIDEST = 32 * 1024
"""Elements whose sums such a worker holds in fp32, besides what is on its way."""


def ranks() -> int:
    """How many there are: a tensor with one element for each has as many. In an operator's body."""
    return int(tilelink.symmetric("R i32").size("R"))


def nbytes(x: Any) -> int:
    """Bytes of all of a tensor."""
    return x.itemsize * math.prod(x.shape)


def rows_of(x: Any, tiles: int) -> int:
    """Rows of a tile where all of `x` is to be so many tiles: a power of two."""
    row, tile = max(nbytes(x) // max(x.shape[0], 1), 1), min(max(nbytes(x) // tiles, LEAST), MOST)
    return 1 << max(0, (tile // row).bit_length() - 1)


def moving(x: Any, tiles: int, push: bool | None = None) -> Any:
    """A movement of all of `x` in so many tiles, by workers that take turns with other steps."""
    return tilelink.sms(M=rows_of(x, tiles), push=push, order="ring+1", num_warps=16)


def adding(x: Any, tiles: int) -> Any:
    """Adding up a rank's part of what came in these tiles, in as many of its own: no tile of sums needs two of them."""
    rows, each = min(rows_of(x, tiles), 16), summed(x, tiles * ranks())
    return tilelink.sms(M=rows, N=min(max(each // rows, 1), _padded(x.shape[1])), num_warps=16)


def exchanging(x: Any, tiles: int) -> Any:
    """Sending all of `x` in so many tiles, and adding up everyone's, tile by tile."""
    each = summed(x, tiles)
    columns = min(each, 2048, _padded(x.shape[1]))
    return tilelink.sms(M=each // columns, N=columns, num_warps=min(max(each // 512, 4), 16))


def summed(x: Any, tiles: int) -> int:
    """Elements of a tile of sums where `x` is so many of them: as many as registers hold, and worth a signal."""
    most = min(UNDER_WAY // (x.itemsize * ranks()), WIDEST)
    return 1 << (min(max(math.prod(x.shape) // tiles, LEAST // x.itemsize), most).bit_length() - 1)


def _padded(length: int) -> int:
    """A power of two that has room for it."""
    return 1 << max(0, length - 1).bit_length()
