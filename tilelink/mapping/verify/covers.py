"""Whether intervals tile an axis: exactly once, with gaps, or with overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilelink.mapping.verify.geometry import Bools, Ints, Spans


@dataclass(frozen=True, slots=True)
class Cover:
    """Per row, the intervals in ascending order. `twice`, `never`: (row, first, last position) of an offence, if any."""

    spans: Spans
    twice: tuple[int, int, int] | None
    never: tuple[int, int, int] | None

    def gaps(self, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
        """(row, first, last) of everything that no interval covers."""
        spans, filled = self.spans, self.spans.filled
        filled = np.broadcast_to(filled, (max(len(filled), len(low), len(high)), filled.shape[1]))
        end = np.maximum.accumulate(np.where(filled, spans.end, low), axis=1)
        before = np.concatenate([np.broadcast_to(low, (filled.shape[0], 1)), end], axis=1)
        after = np.concatenate(
            [np.where(filled, spans.begin, high), np.broadcast_to(high, (filled.shape[0], 1))], axis=1
        )
        # Where an interval is missing, the next one decides.
        after = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
        row, at = np.nonzero(before < after)
        return row, before[row, at], after[row, at]

    @property
    def exact(self) -> bool:
        return self.twice is None and self.never is None


def cover(spans: Spans, low: Ints, high: Ints, exempt: Bools | None = None) -> Cover:
    """Compare the intervals of each row with `[low, high)`, both of shape (1 or rows, 1); `exempt` rows may be empty."""
    if len(spans.real) > 1 and all(len(a) == 1 for a in (spans.begin, spans.end, low, high)):
        # Rows that leave out something of one sequence.
        whole = cover(Spans(spans.begin, spans.end, np.asarray(spans.real.any(axis=0, keepdims=True))), low, high)
        if whole.exact and bool((whole.spans.begin == spans.begin).all()) and (exempt is None or not exempt.any()):
            left_out = whole.spans.filled & ~spans.real
            return Cover(spans, None, _first(left_out, spans.begin, spans.end))
    spans = _sorted(spans)
    filled = spans.filled
    end = np.where(filled, spans.end, np.int64(-1))
    reach = np.maximum.accumulate(end, axis=1) if end.shape[1] else end
    before = np.maximum(np.concatenate([np.full((end.shape[0], 1), -1), reach[:, :-1]], axis=1), low)
    before = before[:, : filled.shape[1]]
    twice = filled & (spans.begin < before)
    missing = filled & (spans.begin > before)
    last = np.maximum(reach[:, -1:], low) if reach.shape[1] else np.broadcast_to(low, (filled.shape[0], 1))
    ends: Bools = np.asarray((last < high) & (low < high))
    if exempt is not None:
        ends = np.asarray(ends & ~exempt)
    return Cover(spans, _first(twice, spans.begin, spans.end), _gap(missing, before, spans.begin, ends, last, high))


def _sorted(spans: Spans) -> Spans:
    if spans.begin.shape[1] < 2 or bool((np.diff(spans.begin, axis=1) >= 0).all()):
        return spans
    spans = spans.evened()
    order = np.argsort(np.where(spans.filled, spans.begin, np.iinfo(np.int64).max), axis=1, kind="stable")

    def sort(a: Any) -> Any:
        return np.take_along_axis(a, order, axis=1)

    return Spans(sort(spans.begin), sort(spans.end), sort(spans.real))


def _first(where: Bools, begin: Ints, end: Ints) -> tuple[int, int, int] | None:
    if not where.any():
        return None
    row, at = divmod(int(np.argmax(where)), where.shape[1])
    return row, int(_of(begin, row)[at]), int(_of(end, row)[at])


def _of(array: Any, row: int) -> Any:
    return array[min(row, array.shape[0] - 1)]


def _gap(
    inside: Bools, before: Ints, begin: Ints, behind: Bools, last: Ints, high: Ints
) -> tuple[int, int, int] | None:
    if inside.any():
        row, at = divmod(int(np.argmax(inside)), inside.shape[1])
        return row, int(_of(before, row)[at]), int(_of(begin, row)[at])
    if behind.any():
        row = int(np.argmax(behind[:, 0]))
        return row, int(_of(last, row)[0]), int(_of(high, row)[0])
    return None


def flattened(parts: list[Spans], ranks: int, lines: Ints | None = None) -> Spans:
    """All rows of all parts in one row; a part with one row is the same on every rank and counts as often.

    `lines`: (rank, place) the ranks whose rows meet on each rank; None: all of them on all.
    """
    if lines is not None:
        return beside([_meeting(p.evened(), lines) for p in parts])
    # Twice is enough to show an overlap.
    times = [min(ranks, 2) if p.rows == 1 else 1 for p in parts]
    parts = [p.evened() for p in parts]

    def flat(arrays: list[Any]) -> Any:
        return np.concatenate([np.tile(a.ravel(), n) for a, n in zip(arrays, times, strict=True)])[None, :]

    return Spans(flat([p.begin for p in parts]), flat([p.end for p in parts]), flat([p.real for p in parts]))


def _meeting(part: Spans, lines: Ints) -> Spans:
    """In each rank's row, the rows of all ranks of its line."""

    def met(a: Any) -> Any:
        wide = np.broadcast_to(a, (len(lines), a.shape[1]))
        return wide[lines].reshape(len(lines), -1)

    return Spans(met(part.begin), met(part.end), met(part.real))


def beside(parts: list[Spans]) -> Spans:
    """The intervals of all parts, row by row."""
    if len(parts) == 1:
        return parts[0]
    rows = max(p.rows for p in parts)

    def wide(arrays: list[Any]) -> Any:
        return np.concatenate([np.broadcast_to(a, (rows, a.shape[1])) for a in arrays], axis=1)

    return Spans(wide([p.begin for p in parts]), wide([p.end for p in parts]), wide([p.real for p in parts]))


def contains(written: Spans, read: Spans) -> tuple[int, int, int] | None:
    """(row, first, last) of an interval that is read and not all written; `written` is ascending in each row."""
    if written.begin.shape[1] == read.begin.shape[1] and bool((written.begin == read.begin).all()):
        inside = written.real & (written.end >= read.end)
        return _first(read.filled & ~inside, read.begin, read.end)
    for row in range(max(written.rows, read.rows)):
        found = _row(written, read, row)
        if found is not None:
            return row, *found
    return None


def _row(written: Spans, read: Spans, row: int) -> tuple[int, int] | None:
    begin, end, real = (_of(a, row) for a in (written.begin, written.end, written.real))
    filled = real & (begin < end)
    lo, hi, wanted = (_of(a, row) for a in (read.begin, read.end, read.real))
    wanted = wanted & (lo < hi)
    begin, end, lo, hi = begin[filled], end[filled], lo[wanted], hi[wanted]
    if not len(lo):
        return None
    if not len(begin):
        return int(lo[0]), int(hi[0])
    # Runs of intervals that join.
    starts: Bools = np.ones(len(begin), dtype=np.bool_)
    starts[1:] = begin[1:] > np.maximum.accumulate(end)[:-1]
    run_begin = begin[starts]
    run_end: Ints = np.maximum.reduceat(end, np.flatnonzero(starts))
    at: Ints = np.asarray(np.searchsorted(run_begin, lo, side="right"), dtype=np.int64) - 1
    bad: Bools = (at < 0) | (run_end[np.maximum(at, 0)] < hi)
    return (int(lo[bad][0]), int(hi[bad][0])) if bad.any() else None
