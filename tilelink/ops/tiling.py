"""Tiles of collectives, by the bytes that there are: enough for all SMs, and few enough to be worth their signals."""

from __future__ import annotations

import math
from typing import Any

import tilelink

LEAST, MOST = 4 * 1024, 256 * 1024
"""Bytes of a tile."""


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
    """Adding up what came in these tiles, 8192 elements at a time: no tile of sums needs two of them."""
    rows = min(rows_of(x, tiles), 16)
    return tilelink.sms(M=rows, N=min(8192 // rows, 1 << max(0, x.shape[1] - 1).bit_length()), num_warps=16)
