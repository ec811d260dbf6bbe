"""What a row of a table touches, and how often: sums over the turns of the loops around it.

Arrays have the axes of the row: ranks, indices of the tile, turns. Along those on which a value does not depend, it is 1 long.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import Read, Write
from tilelink.ir.shape import ITEM_BYTES
from tilelink.proof.table import Row, Table, whole

Array: TypeAlias = Any


def access(row: Row) -> Read | Write:
    assert isinstance(row.op, Read | Write)
    return row.op


def where(row: Row, values: Array) -> Array:
    """Values, or one for all, and 0 where the op is not executed."""
    values = whole(values, row.depth)
    for condition in row.conditions:
        values = values * condition
    return values


# ---------------------------------------------------------------------------------------------------------------- sizes
def nbytes(table: Table, row: Row) -> Array:
    """Of an access, in each turn of each tile."""
    op = access(row)
    out = np.full((1,) * row.depth, float(ITEM_BYTES[table.lowered.buffer(op.buffer).dtype]))
    for low, high in op.box:
        out = out * np.maximum(row(high) - row(low), 0)
    return out


def volume(row: Row) -> float:
    """The most elements that an access touches in a turn."""
    return math.prod(max(float((row(high) - row(low)).max(initial=0)), 0.0) for low, high in access(row).box)


def columns(row: Row) -> float:
    """The most that it touches along the last axis."""
    *_, (low, high) = access(row).box
    return max(float((row(high) - row(low)).max(initial=0)), 1.0)


def touched(table: Table, row: Row) -> float:
    """Bytes from the first to the last element that all tiles of a rank touch."""
    op = access(row)
    axes, out = tuple(range(1, row.depth)), float(ITEM_BYTES[table.lowered.buffer(op.buffer).dtype])
    for low, high in op.box:
        long = row(high).max(axis=axes, initial=0) - row(low).min(axis=axes, initial=1 << 62)
        out *= max(float(long.max(initial=0)), 0.0)
    return out


def walked(row: Row, names: frozenset[str]) -> Array | None:
    """How far an access goes in a turn of the loop whose names these are; None: it is the same in each."""
    out, found = np.ones((1,) * row.depth), False
    for low, high in access(row).box:
        if (F.symbols(low) | F.symbols(high)) & names:
            out, found = out * np.maximum(row(high) - row(low), 0), True
    return out if found else None


# ---------------------------------------------------------------------------------------------------------------- turns
def lengths(row: Row) -> tuple[int, ...]:
    """Of the axes."""
    return tuple(max((c.shape[k] for c in row.taken), default=1) for k in range(row.depth))


def axes_of(row: Row) -> tuple[int, ...]:
    """Those of the turns of the loops around it, the outermost first."""
    return tuple(axis for _, axis in row.around)


def turns(row: Row, first: int) -> int:
    """How many turns the loops around it make together, but for the first few."""
    found = lengths(row)
    return max(math.prod(found[axis] for axis in axes_of(row)[first:]), 1)


def summed(row: Row, values: Array, first: int = 0) -> Array:
    """Over the turns of the loops around it but for the first few."""
    found = lengths(row)
    for axis in axes_of(row)[first:]:
        values = values.sum(axis=axis, keepdims=True) * (found[axis] if values.shape[axis] == 1 else 1)
    return values


def repeated(row: Row, values: Array) -> int:
    """How many tiles and turns of a rank each value stands for."""
    return math.prod(n for n, m in zip(lengths(row)[1:], values.shape[1:], strict=True) if m == 1)


def once(row: Row, values: Array) -> Array:
    """Values where the op is executed, those of turns that all touch the same spread over these: it comes from memory once."""
    same = tuple(axis for axis in axes_of(row) if values.shape[axis] == 1)
    there = where(row, 1.0)
    if not same:
        return values * there
    found = lengths(row)
    often = there.sum(axis=same, keepdims=True) * math.prod(found[axis] for axis in same if there.shape[axis] == 1)
    return values * there / np.maximum(often, 1)


def shared(a: Row, b: Row) -> int:
    """How many loops are around both."""
    both = zip(a.around, b.around, strict=False)
    return next((k for k, (x, y) in enumerate(both) if x != y), min(len(a.around), len(b.around)))


def in_turn(row: Row, values: Array, among: int, *, most: bool = False, own: bool = False) -> Array:
    """For each turn of the first loops around a row, the sum of the values of all turns before; `most`: the greatest of them;
    `own`: and of its own."""
    axes, found = axes_of(row)[:among], lengths(row)
    wide = np.broadcast_to(values, tuple(found[k] if k in axes else n for k, n in enumerate(values.shape)))
    moved = np.moveaxis(wide, axes, range(-among, 0))
    flat = moved.reshape(*moved.shape[:-among], -1)
    out = np.maximum.accumulate(flat, axis=-1) if most else np.cumsum(flat, axis=-1)
    if not own:
        out = np.concatenate([np.full_like(out[..., :1], -np.inf if most else 0.0), out[..., :-1]], axis=-1)
    return np.moveaxis(out.reshape(moved.shape), range(-among, 0), axes)
