"""What functions of Triton's language give. Those that take values together are computed of all lanes and of those that count
alone: no list says which functions of what lies past an edge are harmless."""

from __future__ import annotations

import ast
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from inspect import BoundArguments, Parameter, Signature, signature
from typing import Any, TypeAlias

import numpy as np

from tilelink.frontend.rehearsal import blocks, calls
from tilelink.frontend.rehearsal.blocks import IN, INDEX, PAST, Array, Block, elementwise, flat, holds, integer
from tilelink.frontend.rehearsal.calls import Call, Frame
from tilelink.frontend.rehearsal.moves import Moves, counted_before
from tilelink.frontend.rehearsal.operators import ELEMENTWISE, OPAQUE, OPERANDS, opaque

Values: TypeAlias = "Block | tuple[Block, ...]"
Function: TypeAlias = "Callable[..., Any]"
LANES = 24
"""Of more lanes, how many a function of the user's takes together."""
SAME = frozenset({"multiple_of", "max_contiguous", "max_constancy", "constexpr", "to_tensor", "int", "float", "bool"})
LARGE = 1e20
"""What no data of a rehearsal is larger than."""


def _counting(block: Block) -> Array:
    """Which lanes count: in the first place all, in the second elements."""
    inside = block.marks == IN
    return np.stack([np.ones_like(inside), inside])


def _filled(block: Block, nothing: float) -> Array:
    """Values, with what counts for nothing in the place of what does not count."""
    value = block.value.astype(float)
    return value if block.mark is None else np.where(_counting(block), value, nothing)


def _axes(block: Block, axis: Any) -> tuple[int, ...]:
    """The axes that are taken; there is none that a block does not have, as Triton says."""
    return tuple(range(block.rank)) if axis is None or not block.rank else (integer(axis, 0) % block.rank,)


def _of_bits(function: np.ufunc) -> Function:
    def reduced(value: Array, axis: tuple[int, ...]) -> Array:
        return np.asarray(function.reduce(np.nan_to_num(value).astype(int), axis=axis))

    return reduced


def _taken(
    call: Call, block: Block, axes: Sequence[int], nothing: float, value: Array, marks: Array, edges: Sequence[Any]
) -> Block:
    """What comes of a block whose lanes along `axes` are taken together."""
    odd = block.odd
    if blocks.same(value, marks == IN):
        value = value[:1]
    elif odd is None:
        odd = partial(calls.taken, call, block, tuple(axes), nothing)
    inside = block.marks.min(axis=tuple(axes), keepdims=True) == IN
    one_shows_all = np.isfinite(nothing) or call.name == "softmax"  # a maximum only some data changes
    if not one_shows_all and ((block.marks == PAST) & inside & (np.abs(block.value[0]) < LARGE)).any():
        call.trial.found.doubtful = True
    taken = block.taken | call.note(block.edges[k] for k in axes)
    return Block(value, marks if marks.any() else None, tuple(edges), block.data, odd=odd, taken=taken)


def _without(call: Call, block: Block, axes: Sequence[int], nothing: float, value: Array, keep_dims: Any) -> Block:
    """The result of a reduction of these axes."""
    edges = [e for k, e in enumerate(block.edges) if k not in axes]
    found = _taken(call, block, axes, nothing, value, block.marks.min(axis=tuple(axes)), edges)
    if holds(keep_dims):
        for k in sorted(axes):
            edges.insert(k, None)
        found = found.moved(lambda v: np.expand_dims(v, tuple(k + 1 for k in axes)), edges)
    return found


def _kept(call: Call, block: Block, axis: int, nothing: float, value: Array) -> Block:
    """As many values as there were along an axis."""
    marks = np.where(block.marks == IN, IN, PAST)
    return _taken(call, block, (axis,), nothing, value, marks, block.edges)


def _reduction(function: Function, nothing: float) -> Function:
    def reduced(self: Language, input: Block, axis: Any = None, keep_dims: Any = None) -> Block:
        axes = _axes(input, axis)
        value = np.asarray(function(_filled(input, nothing), axis=tuple(k + 1 for k in axes)))
        return _without(self, input, axes, nothing, value, keep_dims)

    return reduced


def _places(function: Function, nothing: float) -> Function:
    def place(self: Language, input: Block, axis: Any = None, left: Any = None, keep_dims: Any = None) -> Block:
        """As those of a tensor: lanes past an edge are none of it."""
        axes, along, marks = _axes(input, axis), 0, input.marks.reshape(-1)
        value = np.nan_to_num(_filled(input, nothing), nan=nothing, posinf=np.inf, neginf=-np.inf)
        if len(axes) == 1:
            along, marks = axes[0], input.marks
        at = np.asarray(function(value.reshape(len(value), *marks.shape), axis=along + 1))
        if len(at) > 1:
            before = np.take_along_axis(counted_before(marks, along), np.expand_dims(at[1], along), along)
            at = np.stack([at[0], before.squeeze(along)])
        return _without(self, input, axes, nothing, at, keep_dims)

    return place


def _extreme(function: Function, place: Function, nothing: float) -> Function:
    reduced = _reduction(function, nothing)

    def extreme(
        self: Language,
        input: Block,
        axis: Any = None,
        return_indices: Any = None,
        left: Any = None,
        keep_dims: Any = None,
    ) -> Values:
        found = reduced(self, input, axis, keep_dims)
        return (found, place(self, input, axis, left, keep_dims)) if holds(return_indices) else found

    return extreme


def _scan(function: Function, nothing: float) -> Function:
    def scanned(self: Language, input: Block, axis: Any = None, reverse: Any = None) -> Block:
        if not input.rank:
            return input
        along = integer(axis, 0) % input.rank

        def turned(value: Array) -> Array:
            return np.flip(value, along + 1) if holds(reverse) else value

        scan = function(turned(_filled(input, nothing)), axis=along + 1)
        return _kept(self, input, along, nothing, turned(scan))

    return scanned


class Language(Moves):
    """Functions that take values together. `nothing` is what counts for nothing in one. What is no number is neither the greatest
    nor the least, as on a GPU."""

    # ------------------------------------------------------------------------------------------------------- reductions
    sum = _reduction(np.add.reduce, 0)
    xor_sum = _reduction(_of_bits(np.bitwise_xor), 0)
    reduce_or = _reduction(_of_bits(np.bitwise_or), 0)
    argmax, argmin = _places(np.argmax, -np.inf), _places(np.argmin, np.inf)
    max, min = _extreme(np.fmax.reduce, argmax, -np.inf), _extreme(np.fmin.reduce, argmin, np.inf)

    def histogram(self, input: Block, num_bins: Block, mask: Any = None) -> Block:
        """Whatever lies in a bin is counted."""
        bins, counts = max(integer(num_bins, 1), 1), _counting(input)
        if isinstance(mask, Block):
            counts = counts & blocks.spread(mask.value.astype(bool), input.lengths)
        value = np.where(counts, input.value, -1)[..., None] == np.arange(bins)
        found = value.sum(axis=tuple(range(1, value.ndim - 1)))
        return _taken(self, input, range(input.rank), -np.inf, found, np.zeros(bins, np.int8), (None,))

    # ------------------------------------------------------------------------------------------------- scans and orders
    cumsum, cumprod = _scan(np.cumsum, 0), _scan(np.cumprod, 1)

    def softmax(self, x: Block, dim: Any = None) -> Block | None:
        if not x.rank:
            return None
        axis = integer(dim, 0) % x.rank
        value = _filled(x, -np.inf)
        weight = np.exp(value - value.max(axis=axis + 1, keepdims=True))
        return _kept(self, x, axis, -np.inf, weight / weight.sum(axis=axis + 1, keepdims=True))

    def sort(self, x: Block, dim: Any = None, descending: Any = None) -> Block | None:
        """What counts for nothing is last."""
        if not x.rank:
            return None
        axis, sign = integer(dim, -1) % x.rank, -1 if holds(descending) else 1
        value = sign * np.sort(sign * _filled(x, sign * np.inf), axis=axis + 1)
        places = np.arange(x.lengths[axis]).reshape([-1 if k == axis else 1 for k in range(x.rank)])
        marks = np.where(places < (x.marks == IN).sum(axis=axis, keepdims=True), IN, PAST)
        return _taken(self, x, (axis,), sign * np.inf, value, marks, x.edges)

    def topk(self, x: Block, k: Block, dim: Any = None, descending: Any = True) -> Block | None:
        found, axis = self.sort(x, dim, descending), integer(dim, -1) % max(x.rank, 1)
        return found and found.moved(
            lambda v: np.take(v, range(min(integer(k, 1), v.shape[axis + 1])), axis + 1), found.edges
        )

    # ------------------------------------------------------------------------------------------ by functions of the user's
    def _runs(self, parts: Sequence[Block], axis: int, function: Any, reverse: Any = None) -> list[list[Array]]:
        """By lane along an axis, what a function makes of all values that count up to there."""
        counts = np.logical_and.reduce([_counting(p) for p in parts])
        values = [np.broadcast_to(p.value, [2, *p.lengths]) for p in parts]
        lanes = parts[0].lengths[axis]
        order = np.unique(np.linspace(0, lanes - 1, min(lanes, LANES)).round().astype(int)).tolist()
        so_far, there = [np.take(v, 0, axis + 1) for v in values], np.zeros_like(np.take(counts, 0, axis + 1))
        found: list[list[Array]] = []
        for lane in reversed(order) if holds(reverse) else order:
            here, mine = np.take(counts, lane, axis + 1), [np.take(v, lane, axis + 1) for v in values]
            edges = (None,) * (parts[0].rank - 1)
            both = [*flat(self.frame.call(self, function, [Block(v, edges=edges) for v in (*so_far, *mine)]))]
            sides = zip([r.value for r in both] or so_far, mine, so_far, strict=False)
            so_far = [np.where(there & here, r, np.where(here, m, s)) for r, m, s in sides]
            there = there | here
            found.append(so_far)
        found = found[::-1] if holds(reverse) else found
        return [found[bisect(order, lane) - 1] for lane in range(lanes)]

    def reduce(self, input: Any, axis: Any = None, combine_fn: Any = None, keep_dims: Any = None) -> Values:
        parts = [*flat(input)]
        axes = _axes(parts[0], axis)
        if len(axes) != 1:
            axes, parts = (0,), [blocks.reshaped(p, [int(np.prod(p.lengths))]) for p in parts]
        last = self._runs(parts, axes[0], combine_fn)[-1]
        found = [_without(self, p, axes, -np.inf, made, keep_dims) for p, made in zip(parts, last, strict=False)]
        return found[0] if isinstance(input, Block) else tuple(found)

    def associative_scan(self, input: Any, axis: Any, combine_fn: Any, reverse: Any = None) -> Values:
        parts = [*flat(input)]
        if not parts[0].rank:
            return input
        (along,) = _axes(parts[0], axis)
        by_lane = self._runs(parts, along, combine_fn, reverse)
        scans = [np.stack(lanes, along + 1) for lanes in zip(*by_lane, strict=True)]
        found = [_kept(self, part, along, -np.inf, scan) for part, scan in zip(parts, scans, strict=False)]
        return found[0] if isinstance(input, Block) else tuple(found)

    # ----------------------------------------------------------------------------------------------- products and positions
    def dot(self, input: Block, other: Block, acc: Any = None) -> Block | None:
        """Along the inner axis both sides have to count."""
        a, b = input, other
        if not a.rank == b.rank >= 2:
            return None
        inner = min(a.lengths[-1], b.lengths[-2])
        rows, columns = [*a.lengths[:-1], inner], [*b.lengths[:-2], inner, b.lengths[-1]]
        a = a.moved(lambda v: blocks.spread(v, rows), a.edges)
        b = b.moved(lambda v: blocks.spread(v, columns), b.edges)
        # What lies past the other edges is as good as elements here: it makes what lies past them.
        left, right = ((b.marks == IN) | (b.marks.min(axis=k, keepdims=True) != IN) for b, k in ((a, -1), (b, -2)))
        sides = [
            np.where(np.stack([np.ones_like(on), on]), v.value.astype(float), 0) for on, v in ((left, a), (right, b))
        ]
        marks = np.maximum(a.marks.min(axis=-1)[..., :, None], b.marks.min(axis=-2)[..., None, :])
        infinite = not np.isfinite(np.where(right, 0, b.value)).all()
        side, axis = (b, b.rank - 2) if infinite or left.all() else (a, a.rank - 1)
        found = _taken(self, side, (axis,), 0, np.matmul(*sides), marks, (*a.edges[:-1], b.edges[-1]))
        taken = a.taken | b.taken | self.note([a.edges[-1], b.edges[-2]])
        found = replace(found, data=a.data or b.data, taken=taken, odd=a.odd or b.odd or found.odd)
        return elementwise(np.add, acc, found) if isinstance(acc, Block) else found

    def dot_scaled(
        self, lhs: Block, lhs_scale: Any, lhs_format: Any, rhs: Block, rhs_scale: Any, rhs_format: Any, acc: Any = None
    ) -> Block | None:
        return self.dot(lhs, rhs, acc)

    def arange(self, start: Block, end: Block) -> Block:
        """As many positions as there are lanes; of a length of a block, those past the end are positions past it."""
        first, last = int(start.number), max(int(end.number), int(start.number) + 1)
        mark, edge, value = None, None, np.arange(first, last)[None]
        if end.lanes is not None and first == 0:
            marks = end.lanes.marks
            mark, edge = np.where(marks == IN, IN, INDEX) if end.mark is not None else None, end.lanes.edges[0]
            value = np.where(marks == IN, np.stack([value[0], counted_before(marks)]), value)
        elif end.counts_lanes or start.counts_lanes:
            mark = np.full(last - first, PAST)
        odd = None
        if len(value) == 2 and end.lanes is not None and (value[0] != value[1]).any():
            odd = partial(calls.taken, self, end.lanes, (0,), -np.inf)
        return Block(value if odd else value[:1], mark, (edge,), bare=True, odd=odd)


@lru_cache(maxsize=128)
def _signature(function: Callable[..., Any]) -> Signature:
    return signature(function)


def _fitting(
    function: Callable[..., Any], call: Call, args: Sequence[Any], keywords: Mapping[str, Any]
) -> BoundArguments | None:
    """The arguments as a function takes them; None: it takes others. What only Triton knows, such as how precise a product is, it
    is not given."""
    parameters = _signature(function).parameters
    if all(p.kind is not Parameter.VAR_POSITIONAL for p in parameters.values()):
        args = args[: len(parameters) - 1]
    try:
        found = _signature(function).bind(call, *args, **{k: v for k, v in keywords.items() if k in parameters})
    except TypeError:
        return None
    needed = (p.name for p in parameters.values() if p.annotation == "Block" and p.default is Parameter.empty)
    return found if all(isinstance(found.arguments[word], Block) for word in needed) else None


def result(
    frame: Frame, node: ast.Call, name: str, args: Sequence[Any], keywords: Mapping[str, Any], *, lanewise: bool
) -> Any:
    """What `tl.name(…)` gives. `lanewise`: what is not known is a function of each value."""
    if name in ELEMENTWISE:
        count, function = ELEMENTWISE[name]
        sides = (*args, *(keywords[word] for word in OPERANDS if word in keywords))[:count]
        if len(operands := [side for side in sides if isinstance(side, Block)]) == count:
            return elementwise(function, *operands)
    call, values = Language(frame, node, name), [*flat((*args, *keywords.values()))]
    function = None if name.startswith("_") or hasattr(Call, name) else getattr(Language, name, None)
    if function is not None and (given := _fitting(function, call, args, keywords)) is not None:
        return function(*given.args, **given.kwargs)
    if name in SAME:
        text = args[0] if args else None
        return blocks.number(float(text)) if name == "float" and isinstance(text, str) else next(iter(values), None)
    if name in OPAQUE or lanewise:
        return (opaque(name, values),) * 4 if name.endswith("4x") else opaque(name, values)
    for block in values:
        call.note(block.edges)
        if block.past:
            calls.taken(call, block, range(block.rank), -np.inf)
    return opaque(name, values)
