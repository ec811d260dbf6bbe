"""What a stream does, as the exact graph works it out by itself: runs of memory that are flat, and words by their kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class BellWait:
    """The stream waits until word `word` of a channel is complete, when its bell has been rung so many `times`, and resets
    the bell."""

    channel: str
    word: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class WordWait:
    """The stream waits for a word that another rank raises: of a channel (`of`), or `ready` / `entered` of rank `word`."""

    of: str
    kind: str
    word: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Runs of `count` elements; offsets in elements. `at`: whose instance is `pe`'s, `source` or `target`; the other is
    one's own. `outer`: how the runs lie, from the outermost axis in: how many, and elements from one to the next in the
    target and in the source; nothing where there is one run.
    """

    target: str
    target_offset: int
    source: str
    source_offset: int
    count: int
    pe: int
    at: str
    outer: tuple[tuple[int, int, int], ...] = ()

    def runs(self) -> Iterator[tuple[int, int]]:
        """(target offset, source offset) of each run."""
        for at in itertools.product(*(range(times) for times, _, _ in self.outer)):
            steps = list(zip(at, self.outer, strict=True))
            yield (
                self.target_offset + sum(i * there for i, (_, there, _) in steps),
                self.source_offset + sum(i * here for i, (_, _, here) in steps),
            )


@dataclass(frozen=True, slots=True)
class SetWord:
    """Write the epoch to word `word` of a channel on rank `pe`, after the copies before it."""

    channel: str
    word: int
    pe: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions `[begin, end)` along each stored axis of this rank's own instance of a tensor."""

    tensor: str
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """The library function of a step, once: `inputs` in the program's order. It reads these, and writes all of `output`."""

    inputs: tuple[Piece, ...]
    output: Piece


@dataclass(frozen=True, slots=True)
class ComputeRun:
    """The library function of a step on one run of the axis that its program walks: what it gives is kept for `MergeRuns`.

    `at`: dimension, begin and end, of the tile and of the run, as the program counts them. `tile`: which of the stream's
    tiles.
    """

    inputs: tuple[Piece, ...]
    at: tuple[tuple[str, int, int], ...]
    tile: int


@dataclass(frozen=True, slots=True)
class MergeRuns:
    """What all runs of a tile gave becomes the tile: all of `output` is written."""

    output: Piece
    tile: int


StreamOp: TypeAlias = BellWait | WordWait | Copy | SetWord | Compute | ComputeRun | MergeRuns
