"""The words that tilelink adds to Triton's language, as a rehearsal has them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilelink.frontend.rehearsal import blocks, calls
from tilelink.frontend.rehearsal.blocks import IN, PAST, Array, Block, Edge, agreed, elementwise, flat, number, spread
from tilelink.frontend.rehearsal.calls import Call
from tilelink.frontend.rehearsal.drawn import SIZES
from tilelink.frontend.rehearsal.places import RANKS, Span, spanning
from tilelink.ir.program import Param
from tilelink.ir.shape import RANK_AXIS, Axis, dims_of

WALK = "(walk)"
"""The tiles of a loop, which are none of the domain."""


class Primitives(Call):
    """Those that give values, or store them."""

    def tile_id(self, t: Param) -> Any:
        trial, found, length = self.trial, list[Any](), self.trial.drawn.tile
        first = trial.which % len(SIZES) == 0 if trial.drawn.first is None else trial.drawn.first
        for on, name in zip(t.shape.axes, trial.program.domain, strict=True):
            low, high = trial.part(on)
            if on.unit:
                ranks = on.name == RANK_AXIS
                found.append(number(trial.rank if ranks else low, coordinate=ranks))
                continue
            begin = range(low, high, length)[0 if first and high - low > length else -1]
            end, lanes, half = min(begin + length, high), length, trial.drawn.half
            if name and half is not None and half[0] == name:
                begin, lanes = min(begin + length // 2 * half[1], end - 1), length // 2
            tile = spanning(Edge(t.name, on.name, name or ""), begin, min(begin + lanes, end), lanes)
            if name:
                trial.tiles[name] = tile
            found.append(tile)
        return tuple(found) if len(found) != 1 else found[0]

    def tile_load(self, t: Param, tile: Any = None, other: Any = None) -> Block:
        spans, filler = self.trial.index(t, tile), agreed(other)
        nothing = filler.value[0] if isinstance(filler, Block) and not filler.rank else 0
        found = elementwise(
            lambda *at: np.where(_there(spans, at), self.trial.data(t, *at), nothing), *(s.at for s in spans)
        )
        return replace(
            found,
            mark=None if found.mark is None else np.where(found.mark == IN, IN, PAST),
            edges=tuple(e and replace(e, param=t.name) for e in found.edges),
            data=True,
            bare=True,
            taken=found.taken.union(*(b.taken for b in flat(filler))),
        )

    def tile_store(self, t: Param, tile: Any, value: Any, mask: Any = None) -> None:
        trial, spans = self.trial, self.trial.index(t, tile)
        place = elementwise(lambda *at: _there(spans, at), *(s.at for s in spans))
        stored, lengths = place.value[0], place.lengths
        if isinstance(mask, Block) and mask.rank <= place.rank:
            agreed(mask)
            stored = stored & spread(mask.value.astype(bool), lengths)[0]
        for k, at in enumerate(s.at for s in spans):
            agreed(at)
            if at.rank and (stored & (spread(at.marks[None], lengths)[0] != IN)).any():
                index = self._written("tile", 1)
                calls.positions(self.frame, index.elts[k] if isinstance(index, ast.Tuple | ast.List) else index, at)
        if not isinstance(value, Block):
            return
        taken = value.taken.union(*self.frame.under, *(b.taken for b in flat(mask)))
        trial.found.notes.update(replace(t, stored=True) for t in taken)
        if value.rank > place.rank:  # Triton has something to say
            agreed(value)
            return
        sides = zip(value.edges, place.edges[place.rank - value.rank :], strict=True)
        other = any(a and b and a.dim == b.dim and a.var != b.var for a, b in sides)  # what that is the plan says
        written, whole = self._written("value", 2), replace(value, value=spread(value.value, lengths))
        if value.mark is not None and not other and (stored & (spread(value.mark[None], lengths)[0] == PAST)).any():
            calls.stored(self.frame, written, value, t.name)
        agreed(whole, stored)
        if trial.drawn.half is not None and not other:
            at = [np.broadcast_to(spread(s.at.value, lengths)[0], lengths) for s in spans]
            made, loc = np.broadcast_to(whole.value[0], lengths), self.frame.source.loc(written)
            lanes = [tuple(lane) for lane in np.argwhere(stored)]
            trial.stored.update({(t.name, *(int(a[i]) for a in at)): (float(made[i]), loc) for i in lanes})

    def tile_push_data(self, t: Param, tile: Any, data: Any, mask: Any = None) -> None:
        self.tile_store(t, tile, data, mask)

    def _written(self, word: str, at: int) -> ast.expr:
        """An argument as it is written, by its name or at its place."""
        words = ("data", word) if self.name == "tile_push_data" else (word,)
        return next((k.value for k in self.node.keywords if k.arg in words), *self.node.args[at : at + 1])

    def tile_range(self, t: Param, tile: Span | None = None, axis: Any = None) -> Block:
        at = self.trial.whole(t, self._axis(t, axis)).at if tile is None else tile.at
        return replace(at, edges=tuple(e and replace(e, param=t.name) for e in at.edges))

    def tile_mask(self, t: Param, tile: Span, start: Any = None, stop: Any = None) -> Block:
        """Of rows by positions."""
        lanes = self.tile_range(t, tile)
        row = lanes.moved(lambda v: v[:, None], (None, *lanes.edges))
        found = replace(row, value=(row.marks == IN)[None])
        for limit, function in ((start, np.greater_equal), (stop, np.less)):
            if isinstance(limit, Block):
                column = limit.moved(lambda v: v[..., None], (*limit.edges, None)) if limit.rank else limit
                found = elementwise(np.logical_and, found, blocks.compared(function, row, column))
        return found

    def tile_shape(self, t: Param) -> tuple[Block, ...]:
        trial, names = self.trial, self.trial.program.domain
        tiled = [(on, name or "") for on, name in zip(t.shape.axes, names, strict=False) if not on.unit]
        return tuple(trial.tiles.get(name, trial.whole(t, on)).at.along(0) for on, name in tiled)

    def tiles(
        self, var: str, t: Param, axis: Any = None, start: Any = None, stop: Any = None, part: Any = None
    ) -> Sequence[Any]:
        """What the variable of a loop over tiles stands for, turn by turn."""
        trial, on = self.trial, self._axis(t, axis)
        low, high = trial.part(on)
        low = self._limit(start, low, low, high - trial.once)
        high = self._limit(stop, high, low + trial.once, high)
        high = high if part is None else low + max((high - low) // 2, 1)
        if on.unit:
            return [number(n, coordinate=on.name == RANK_AXIS) for n in range(low, high)[: trial.turns]]
        trial.found.walks[var] = next((k for k, dim in enumerate(trial.sizes) if dim in dims_of(on.size)), -1)
        lanes = trial.drawn.half[1] if trial.drawn.half is not None and trial.drawn.half[0] == var else trial.drawn.tile
        edge = Edge(t.name, on.name, WALK)
        begins = range(low, high, lanes)[-trial.turns :]
        return [spanning(edge, begin, min(begin + lanes, high), lanes) for begin in begins]

    @staticmethod
    def _limit(limit: Any, otherwise: int, low: int, high: int) -> int:
        """Where a walk begins or ends: on its axis, wherever a program says."""
        if not isinstance(limit, Block):
            return otherwise
        return int(agreed(replace(limit, value=np.clip(limit.value, low, high))).number)

    def size(self, t: Param, axis: Any = None) -> Block:
        return number(self.trial.size(self._axis(t, axis)))

    def tile_begin(self, t: Param, tile: Span) -> Block:
        return number(tile.begin)

    def tile_end(self, t: Param, tile: Span) -> Block:
        return number(tile.end)

    def symm_at(self, ptr: Any, rank: Any) -> Any:
        return ptr

    def consume_token(self, value: Any, token: Any) -> Any:
        return value

    def segment(self, *_of: Any) -> Block:
        return number(self.trial.rank)

    rank = segment

    def rank_of(self, t: Param, tile: Any) -> Block:
        return number(self.trial.rank, coordinate=True)

    def num_ranks(self, *_of: Any) -> Block:
        return number(RANKS)

    def acc_dtype(self, t: Param) -> str:
        return "dtype"

    def pointer(self, *_of: Any, **_more: Any) -> Block:
        """From outside."""
        return number(0, data=True)

    wait = pointer

    @staticmethod
    def _axis(param: Param, number: Any) -> Axis:
        return param.shape.axes[blocks.integer(number, 0) % max(len(param.shape.axes), 1)]


def _there(spans: Sequence[Span], positions: Sequence[Array]) -> Array:
    """Which lanes of a block are elements of a tensor."""
    found = np.ones(1, bool)
    for span, at in zip(spans, positions, strict=True):
        found = found & span.there(at)
    return found
