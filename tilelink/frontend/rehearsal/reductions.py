"""Functions that take values together. Each is computed of all lanes and of those that count alone: no list says which functions
of what lies past an edge are harmless."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from tilelink.frontend.rehearsal import blocks, refusals
from tilelink.frontend.rehearsal.blocks import IN, INDEX, PAST, Array, Block, elementwise, made
from tilelink.frontend.rehearsal.functions import (
    ELEMENTWISE,
    MOVES,
    OPAQUE,
    PARAMETERS,
    SAME,
    Called,
    flat,
    opaque,
    places,
)

Values: TypeAlias = "Block | tuple[Block, ...]"
SUMS = frozenset({"sum", "xor_sum", "reduce_or", "cumsum", "cumprod", "softmax", "dot"})
"""Of which one rehearsal shows as much as many. A maximum only some data changes."""
LANES = 24
"""Of more lanes, how many a function of the user's takes together."""
LARGE = 1e20
"""What no data of a rehearsal is larger than."""


def counting(block: Block) -> Array:
    """Which lanes count: in the first place all, in the second elements."""
    inside = block.marks == IN
    return np.stack([np.ones_like(inside), inside])


def same(value: Array, where: Array) -> bool:
    """Whether all lanes make, at these, what those that count make."""
    if len(value) == 1:
        return True
    a, b = np.broadcast_to(value, [2, *where.shape])[:, where].astype(float)
    return bool((a == b).all() or np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True).all())


def _axes(block: Block, axis: int | None) -> tuple[int, ...]:
    """The axes that are taken; there is none that a block does not have, as Triton says."""
    return tuple(range(block.rank)) if axis is None or not block.rank else (axis % block.rank,)


def _result(
    called: Called, block: Block, axes: Sequence[int], value: Array, marks: Array, edges: Sequence[Any]
) -> Block:
    """What comes of a block whose lanes along `axes` are taken together."""
    odd = block.odd
    if same(value, marks == IN):
        value = value[:1]
    elif odd is None:
        odd = partial(refusals.taken, called, block, tuple(axes))
    inside = block.marks.min(axis=tuple(axes), keepdims=True) == IN
    if called.name not in SUMS and ((block.marks == PAST) & inside & (np.abs(block.value[0]) < LARGE)).any():
        called.found.doubtful = True
    taken = block.taken | called.note(block.edges[k] for k in axes)
    return Block(value, marks if marks.any() else None, tuple(edges), block.data, odd=odd, taken=taken)


def _reduced(called: Called) -> Values:
    if called.name == "reduce" or not isinstance(called.given["input"], Block):
        return _together(called, _folded(called, _parts(called)))
    block, name = called.block, called.name
    axes = _axes(block, called.integer("axis"))
    fold, nothing = FOLDS[name]
    value = block.value.astype(float)
    if block.mark is not None:
        value = np.where(counting(block), value, nothing)
    behind = tuple(k + 1 for k in axes)
    made = fold(value, behind)
    found = _without(called, block, axes, _counted(block, axes, made) if name.startswith("arg") else made)
    if called.asked("return_indices"):
        return found, _without(called, block, axes, _counted(block, axes, FOLDS["arg" + name][0](value, behind)))
    return found


def _counted(block: Block, axes: tuple[int, ...], at: Array) -> Array:
    """Places along axes as those of a tensor: lanes past an edge are none of it."""
    if block.mark is None or len(at) == 1:
        return at
    axis = axes[0] if len(axes) == 1 else block.rank - len(axes)
    kept = [n for k, n in enumerate(block.lengths) if k not in axes]
    marks = block.mark if len(axes) == 1 else block.mark.reshape(*kept, -1)
    before = np.take_along_axis(places(marks, axis), np.expand_dims(at[1], axis), axis)
    return np.stack([at[0], before.squeeze(axis)])


def _parts(called: Called) -> tuple[Block, ...]:
    """A block, or several that are taken side by side."""
    given = called.given["input"]
    return (given,) if isinstance(given, Block) else given


def _together(called: Called, found: Sequence[Block]) -> Values:
    return found[0] if isinstance(called.given["input"], Block) else tuple(found)


def _without(called: Called, block: Block, axes: Sequence[int], value: Array) -> Block:
    """The result of a reduction of these axes."""
    edges = [e for k, e in enumerate(block.edges) if k not in axes]
    found = _result(called, block, axes, value, block.marks.min(axis=tuple(axes)), edges)
    if called.asked("keep_dims"):
        for k in sorted(axes):
            edges.insert(k, None)
        found = found.moved(lambda v: np.expand_dims(v, tuple(k + 1 for k in axes)), edges)
    return found


def _arg(function: Any, value: Array, axes: tuple[int, ...]) -> Array:
    if len(axes) != 1:
        value, axes = value.reshape(len(value), *[1] * (value.ndim - 1 - len(axes)), -1), (-1,)
    return np.asarray(function(value, axis=axes[0]))


def _bits(function: Any, value: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(function.reduce(np.nan_to_num(value).astype(int), axis=axes))


FOLDS: Mapping[str, tuple[Callable[[Array, Any], Array], float]] = {
    "sum": (lambda v, axes: np.sum(v, axis=axes), 0),
    "max": (lambda v, axes: np.asarray(np.fmax.reduce(v, axis=axes)), -np.inf),
    "min": (lambda v, axes: np.asarray(np.fmin.reduce(v, axis=axes)), np.inf),
    "argmax": (
        lambda v, axes: _arg(np.argmax, np.nan_to_num(v, nan=-np.inf, posinf=np.inf, neginf=-np.inf), axes),
        -np.inf,
    ),
    "argmin": (
        lambda v, axes: _arg(np.argmin, np.nan_to_num(v, nan=np.inf, posinf=np.inf, neginf=-np.inf), axes),
        np.inf,
    ),
    "xor_sum": (lambda v, axes: _bits(np.bitwise_xor, v, axes), 0),
    "reduce_or": (lambda v, axes: _bits(np.bitwise_or, v, axes), 0),
}
"""Reductions, and what counts for nothing in them. What is no number is neither the greatest nor the least, as on a GPU."""


def _runs(called: Called, parts: tuple[Block, ...], axis: int) -> list[list[Array]]:
    """By lane along an axis, what a function of the user's makes of all values that count up to there."""
    counts = np.logical_and.reduce([counting(p) for p in parts])
    values = [np.broadcast_to(p.value, [2, *p.lengths]) for p in parts]
    lanes = parts[0].lengths[axis]
    order = np.unique(np.linspace(0, lanes - 1, min(lanes, LANES)).round().astype(int)).tolist()
    so_far, there = [np.take(v, 0, axis + 1) for v in values], np.zeros_like(np.take(counts, 0, axis + 1))
    found: list[list[Array]] = []
    for lane in reversed(order) if called.asked("reverse") else order:
        here, mine = np.take(counts, lane, axis + 1), [np.take(v, lane, axis + 1) for v in values]
        edges = (None,) * (parts[0].rank - 1)
        both: Any = called.call(
            called, called.given.get("combine_fn"), [Block(v, edges=edges) for v in (*so_far, *mine)]
        )
        results = [both.value] if isinstance(both, Block) else [r.value for r in both or so_far if isinstance(r, Block)]
        so_far = [
            np.where(there & here, r, np.where(here, m, s)) for r, m, s in zip(results, mine, so_far, strict=False)
        ]
        there = there | here
        found.append(so_far)
    found = found[::-1] if called.asked("reverse") else found
    return [found[bisect(order, lane) - 1] for lane in range(lanes)]


def _folded(called: Called, parts: tuple[Block, ...]) -> tuple[Block, ...]:
    """`tl.reduce`, of one block or of several side by side."""
    axes = _axes(parts[0], called.integer("axis"))
    flat = tuple(blocks.reshaped(p, [int(np.prod(p.lengths))]) for p in parts) if len(axes) > 1 else parts
    axis = axes[0] if len(axes) == 1 else 0
    last = _runs(called, flat, axis)[-1]
    return tuple(_without(called, p, (axis,), made) for p, made in zip(flat, last, strict=False))


def _scanned(called: Called) -> Values:
    parts = _parts(called)
    if not parts[0].rank:
        return called.given["input"]
    (axis,) = _axes(parts[0], called.integer("axis") or 0)
    if called.name == "associative_scan":
        by_lane = _runs(called, parts, axis)
        scans = [np.stack(lanes, axis + 1) for lanes in zip(*by_lane, strict=True)]
    else:
        function, nothing = (np.cumsum, 0) if called.name == "cumsum" else (np.cumprod, 1)
        value = np.where(counting(parts[0]), parts[0].value, nothing)
        turned = np.flip(value, axis + 1) if called.asked("reverse") else value
        scan = np.asarray(function(turned, axis=axis + 1))
        scans = [np.flip(scan, axis + 1) if called.asked("reverse") else scan]
    found: list[Block] = []
    for part, scan in zip(parts, scans, strict=False):
        found.append(_result(called, part, (axis,), scan, np.where(part.marks == IN, IN, PAST), made(part.edges)))
    return _together(called, found)


def _softmax(called: Called) -> Block:
    block = called.block
    (axis,) = _axes(block, called.integer("dim") or 0)
    value = np.where(counting(block), block.value, -np.inf)
    weight = np.exp(value - value.max(axis=axis + 1, keepdims=True))
    weight = weight / weight.sum(axis=axis + 1, keepdims=True)
    return _result(called, block, (axis,), weight, np.where(block.marks == IN, IN, PAST), made(block.edges))


def _sorted(called: Called) -> Block:
    """`tl.sort` and `tl.topk`: what counts for nothing is last."""
    block, kept = called.block, called.integer("k")
    dim = called.integer("dim")
    (axis,) = _axes(block, -1 if dim is None else dim)
    sign = -1 if called.asked("descending") or (called.name == "topk" and "descending" not in called.given) else 1
    counts = counting(block)
    value = sign * np.sort(np.where(counts, sign * block.value.astype(float), np.inf), axis=axis + 1)
    places = np.arange(block.lengths[axis]).reshape([-1 if k == axis else 1 for k in range(block.rank)])
    marks = np.where(places < counts[1].sum(axis=axis, keepdims=True), IN, PAST)
    found = _result(called, block, (axis,), value, marks, made(block.edges))
    return (
        found
        if kept is None
        else found.moved(lambda v: np.take(v, range(min(kept, v.shape[axis + 1])), axis + 1), found.edges)
    )


def _histogram(called: Called) -> Block:
    """Whatever lies in a bin is counted."""
    block, bins, mask = called.block, called.integer("num_bins") or 1, called.given.get("mask")
    counts = counting(block)
    if isinstance(mask, Block):
        counts = counts & blocks.spread(mask.value.astype(bool), block.lengths)
    value = np.where(counts, block.value, -1)[..., None] == np.arange(bins)
    found = value.sum(axis=tuple(range(1, value.ndim - 1)))
    return _result(called, block, range(block.rank), found, np.zeros(bins, np.int8), (None,))


def _product(called: Called) -> Block:
    """`tl.dot`: along the inner axis both sides have to count."""
    a, acc = called.block, called.given.get("acc")
    b: Block = called.given["rhs"] if called.name == "dot_scaled" else called.second
    inner = min(a.lengths[-1], b.lengths[-2])
    rows, columns = [*a.lengths[:-1], inner], [*b.lengths[:-2], inner, b.lengths[-1]]
    a = a.moved(lambda v: blocks.spread(v, rows), a.edges)
    b = b.moved(lambda v: blocks.spread(v, columns), b.edges)
    # What lies past the other edges is as good as elements here: it makes what lies past them.
    left, right = ((b.marks == IN) | (b.marks.min(axis=k, keepdims=True) != IN) for b, k in ((a, -1), (b, -2)))
    sides = [np.where(np.stack([np.ones_like(on), on]), v.value.astype(float), 0) for on, v in ((left, a), (right, b))]
    marks = np.maximum(a.marks.min(axis=-1)[..., :, None], b.marks.min(axis=-2)[..., None, :])
    edges = (*a.edges[:-1], b.edges[-1])
    infinite = not np.isfinite(np.where(right, 0, b.value)).all()
    side, axis = (b, b.rank - 2) if infinite or left.all() else (a, a.rank - 1)
    found = _result(called, side, (axis,), np.matmul(*sides), marks, made(edges))
    taken = a.taken | b.taken | called.note([a.edges[-1], b.edges[-2]])
    found = replace(found, data=a.data or b.data, taken=taken, odd=a.odd or b.odd or found.odd)
    return elementwise(np.add, acc, found) if isinstance(acc, Block) else found


def _ranged(called: Called) -> Block:
    """As many positions as there are lanes; of a length of a block, those past the end are positions past it."""
    start, end = called.given["start"], called.given["end"]
    first, last = int(start.number), max(int(end.number), int(start.number) + 1)
    mark, edge, value = None, None, np.arange(first, last)[None]
    if end.lanes is not None and first == 0:
        marks = end.lanes.marks
        mark, edge = np.where(marks == IN, IN, INDEX) if end.mark is not None else None, end.lanes.edges[0]
        value = np.where(marks == IN, np.stack([value[0], places(marks)]), value)
    elif end.counts_lanes or start.counts_lanes:
        mark = np.full(last - first, PAST)
    odd = None
    if len(value) == 2 and end.lanes is not None and (value[0] != value[1]).any():
        odd = partial(refusals.taken, called, end.lanes, (0,))
    return Block(value if odd else value[:1], mark, made([edge]), bare=True, odd=odd)


TABLE: Mapping[str, Callable[[Called], Any]] = {
    **MOVES,
    "arange": _ranged,
    **dict.fromkeys((*FOLDS, "reduce"), _reduced),
    **dict.fromkeys(("cumsum", "cumprod", "associative_scan"), _scanned),
    **dict.fromkeys(("sort", "topk"), _sorted),
    "softmax": _softmax,
    "histogram": _histogram,
    **dict.fromkeys(("dot", "dot_scaled"), _product),
}


NEEDS = {**dict.fromkeys(("dot", "gather", "full", "full_like", "arange", "join", "broadcast"), 2)}
"""How many arguments a function has to get, if it is not one."""


def result(called: Called, *, lanewise: bool) -> Any:
    """What a function of Triton's language gives. `lanewise`: what is not known is a function of each value."""
    name, values = called.name, [*called.blocks()]
    if name in ELEMENTWISE:
        operands = [v for w in PARAMETERS.get(name, ("input",)) if isinstance(v := called.given.get(w), Block)]
        if name in TABLE and len(operands) > 1 and all(not b.rank for b in operands):  # Python's, of numbers
            return reduce(lambda a, b: elementwise(ELEMENTWISE[name], a, b), operands)
        if name not in TABLE and len(operands) == len(PARAMETERS.get(name, ("input",))):
            return elementwise(ELEMENTWISE[name], *operands)
    if name in TABLE and (fits := _fits(called)) is not None:
        return TABLE[name](called) if fits else None  # Triton has something to say
    if name in SAME:
        text = called.given.get("input")
        return blocks.number(float(text)) if name == "float" and isinstance(text, str) else next(iter(values), None)
    if name in OPAQUE or lanewise:
        return (opaque(name, values),) * 4 if name.endswith("4x") else opaque(name, values)
    for block in values:
        called.note(block.edges)
        if block.past:
            refusals.taken(called, block, range(block.rank))
    return opaque(name, values)


def _fits(called: Called) -> bool | None:
    """Whether blocks have as many axes as a function asks for; None: arguments are not what it takes."""
    name, given = called.name, called.given
    words = PARAMETERS.get(name, ("input",))
    needed = words[: NEEDS.get(name, 1)]
    if not all([*flat(given.get(w))] for w in needed):
        return None
    if name in ("dot", "dot_scaled"):
        other = given.get("rhs", given.get("other"))
        return isinstance(other, Block) and called.block.rank == other.rank >= 2
    if name in ("sort", "topk", "softmax", "split", "gather"):
        return called.block.rank > 0
    return name in ("reduce", "associative_scan", *FOLDS, "zeros", "full") or isinstance(given[words[0]], Block)
