"""What functions of Triton's language make of blocks by moving values."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from tilelink.frontend.rehearsal import blocks
from tilelink.frontend.rehearsal.blocks import IN, PAST, Array, Block, flat, integer, number
from tilelink.frontend.rehearsal.calls import Call


def counted_before(marks: Array, axis: int = -1) -> Array:
    """By lane, how many elements are before it."""
    return np.cumsum(marks == IN, axis) - (marks == IN)


class Moves(Call):
    """Functions that move values, or make blocks of one. A parameter that says `Block` is given one."""

    def to(self, input: Block, dtype: Any = None) -> Block:
        if "int" in str(dtype) and dtype != "tl.int1":
            return replace(input, value=np.trunc(np.nan_to_num(input.value.astype(float))).astype(int))
        return replace(input, value=input.value.astype(float)) if "float" in str(dtype) else input

    cast = to

    def expand_dims(self, input: Block, axis: Any) -> Block:
        for each in flat(axis):
            at = int(each.number) % (input.rank + 1)
            input = input.moved(
                lambda v, at=at: np.expand_dims(v, at + 1), (*input.edges[:at], None, *input.edges[at:])
            )
        return input

    def unsqueeze(self, x: Block, dim: Block) -> Block:
        return self.expand_dims(x, dim)

    def squeeze(self, x: Block, dim: Any = None) -> Block:
        axis = integer(dim, 0) % max(x.rank, 1)
        if x.lengths[axis : axis + 1] != (1,):
            return x
        return x.moved(lambda v: np.squeeze(v, axis + 1), (*x.edges[:axis], *x.edges[axis + 1 :]))

    def permute(self, input: Block, dims: Any = (), *more: Any) -> Block:
        rank = input.rank
        last_two = [*range(rank - 2), rank - 1, rank - 2][-rank:]
        order = [int(n.number) % max(rank, 1) for n in flat((dims, more))] or last_two
        if sorted(order) != [*range(rank)]:
            return input
        return input.moved(lambda v: np.transpose(v, [0, *(k + 1 for k in order)]), (input.edges[k] for k in order))

    trans = permute

    def reshape(self, input: Block, shape: Any = (), *more: Any) -> Block:
        self.note(input.edges)
        return blocks.reshaped(input, [int(n.number) for n in flat((shape, more))])

    view = reshape

    def ravel(self, x: Block) -> Block:
        return self.reshape(x, number(int(np.prod(x.lengths))))

    def broadcast_to(self, input: Block, shape: Any = (), *more: Any) -> Block:
        return blocks.like(input, blocks.filled([*flat((shape, more))], number(0)))

    def broadcast(self, input: Block, other: Block) -> tuple[Block, ...]:
        return tuple(blocks.like(a, b) for a, b in permutations((input, other)))

    def flip(self, x: Block, dim: Any = None) -> Block:
        axes = range(x.rank) if dim is None else (integer(dim, 0) % max(x.rank, 1),)
        self.note(x.edges[k] for k in axes)
        return x.moved(lambda v: np.flip(v, tuple(k + 1 for k in axes)), x.edges)

    def gather(self, src: Block, index: Block, axis: Block) -> Block | None:
        if not src.rank:
            return None
        along = integer(axis, 0) % src.rank
        lengths = [index.lengths[along] if k == along else n for k, n in enumerate(src.lengths)]
        at = np.broadcast_to(blocks.spread(index.value, lengths), [len(index.value), *lengths])[:1].astype(int)
        at = np.clip(at, 0, src.lengths[along] - 1)
        own = np.broadcast_to(blocks.spread(index.marks[None], lengths)[0], lengths)
        mark = np.maximum(np.take_along_axis(src.marks, at[0], along), np.where(own == IN, IN, PAST))
        value = np.take_along_axis(src.value, np.broadcast_to(at, [len(src.value), *lengths]), along + 1)
        edges = tuple(index.edges[k] if k == along else e for k, e in enumerate(src.edges))
        taken = src.taken | index.taken | self.note([src.edges[along]])
        return Block(value, mark if mark.any() else None, edges, True, odd=src.odd or index.odd, taken=taken)

    def join(self, a: Block, b: Block) -> Block:
        return blocks.stacked([a, b], max(a.rank, b.rank))

    def interleave(self, a: Block, b: Block) -> Block:
        both = self.join(a, b)
        return both if both.rank < 2 else blocks.reshaped(both, [*both.lengths[:-2], both.lengths[-2] * 2])

    def cat(self, input: Block, other: Block) -> Block:
        both = blocks.stacked([input, other], 0)
        return blocks.reshaped(both, [2 * both.lengths[1], *both.lengths[2:]] if both.rank > 1 else both.lengths)

    def split(self, a: Block) -> tuple[Block, ...] | None:
        if not a.rank:
            return None
        return tuple(a.moved(lambda v, k=k: v[..., k], a.edges[:-1]) for k in range(a.lengths[-1]))

    def zeros(self, shape: Any) -> Block:
        return blocks.filled([*flat(shape)], number(0.0))

    def full(self, shape: Any, value: Block) -> Block:
        return blocks.filled([*flat(shape)], value)

    def zeros_like(self, input: Block) -> Block:
        return blocks.like(number(0.0), input)

    def full_like(self, input: Block, value: Block) -> Block:
        return blocks.like(value, input)
