"""Which tile a matmul gets, in closed form: planning asks before there is a lowered plan, on which the tile depends.

The figures are those of `machine`, and tiles are dealt out by `turns`, as in the model of a whole call. Workers take tiles in
waves, and the last wave takes as long as a full one; a tile whose rows are not there waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilelink.cost.machine import H200, TILES, Machine, Tile
from tilelink.cost.turns import take_turns

MORE = 1 / 8
"""Tiles end where ranks' parts do unless that makes more than so many more of them."""
WAVES = 64
"""With more waves than these, the last one being half empty costs nothing that counts."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """Sizes of `[rows, depth] @ [depth, columns]`; `parts`: of its rows, which come or go one after the other. `coming`,
    `going`: bytes of a part of the rows that a copy engine brings, of which the first part is this rank's own; and of a part of
    the result that it takes away, of which the last part stays here."""

    rows: int
    columns: int
    depth: int
    parts: int = 1
    coming: float = 0.0
    going: float = 0.0

    def part(self, tile: Tile) -> int:
        """Tiles of a part; about so many where tiles do not end with it."""
        whole, each = -(-self.rows // tile.rows), -(-self.rows // self.parts)
        cut = self.parts * -(-each // tile.rows)
        rows = cut if cut - whole <= whole * MORE else whole
        return -(-rows * -(-self.columns // tile.columns) // self.parts)

    def waves(self, tile: Tile, sms: int) -> int:
        return -(-self.part(tile) * self.parts // sms)

    def ends(self, tile: Tile, sms: int, machine: Machine = H200) -> NDArray[np.float64]:
        """When each tile is made."""
        arrivals = np.arange(self.parts) * (machine.copied(self.coming, remote=True) if self.coming else 0.0)
        ready = np.repeat(arrivals, self.part(tile))[None]
        _, ends, _ = take_turns(np.zeros((1, sms)), ready, np.full_like(ready, machine.tile(tile, self.depth)))
        return ends[0]

    def us(self, tile: Tile, sms: int, machine: Machine = H200) -> float:
        """Microseconds until all is made, and is where it goes."""
        made = np.maximum.accumulate(self.ends(tile, sms, machine))
        if not self.going or self.parts < 2:
            return float(made[-1])
        ready = made[None, np.arange(1, self.parts) * self.part(tile) - 1]
        each = machine.doorbell + machine.copied(self.going, remote=True)
        _, _, sent = take_turns(np.zeros((1, 1)), ready, np.full_like(ready, each))
        return float(max(made[-1], sent[0, 0]))

    def best(self, sms: int, tiles: Sequence[Tile] = TILES) -> Tile:
        """The fastest of some tiles, the first of those that are equally fast."""
        if self.waves(tiles[0], sms) > WAVES:
            return tiles[0]
        return min(tiles, key=lambda tile: self.us(tile, sms))
