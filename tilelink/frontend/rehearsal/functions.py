"""What functions of Triton's language make of blocks, value by value or by moving values; `reductions` has the others."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, permutations
from typing import Any, NoReturn, cast

import numpy as np

from tilelink.errors import Loc
from tilelink.frontend.rehearsal import blocks
from tilelink.frontend.rehearsal.blocks import IN, PAST, Array, Block, Edge, elementwise, made, number
from tilelink.ir.program import Together


@dataclass(slots=True)
class Findings:
    """What rehearsals find out. `doubtful`: something was taken together of which only some data shows that it changes. `loops`:
    tiles of the domain that are taken together to say how often a loop goes round. `walks`: loops over tiles, and the number of
    the dimension that they go along. `quotients`: there are some of positions or sizes."""

    domain: frozenset[str]
    notes: list[Together] = field(default_factory=list[Together])
    doubtful: bool = False
    loops: set[str] = field(default_factory=set[str])
    walks: dict[str, int] = field(default_factory=dict[str, int])
    quotients: bool = False


def flat(value: Any) -> Iterator[Block]:
    """The blocks in what may be one, or a tuple of some."""
    if isinstance(value, Block):
        yield value
    elif isinstance(value, tuple):
        yield from chain.from_iterable(map(flat, cast("tuple[Any, ...]", value)))


@dataclass(frozen=True, slots=True)
class Called:
    """`tl.name(…)`. `given`: its arguments by the names of its parameters; `extra`: those that have none. `call`: calls a
    function of the user's. `fail`: refuses something at its place in the source."""

    node: ast.Call
    loc: Loc
    name: str
    given: Mapping[str, Any]
    extra: tuple[Any, ...]
    found: Findings
    call: Callable[[Called, Any, Sequence[Any]], Any]
    fail: Callable[[ast.AST, str, str, str], NoReturn]

    @property
    def block(self) -> Block:
        """The first argument, which is a block."""
        return self.given[PARAMETERS.get(self.name, ("input",))[0]]

    @property
    def second(self) -> Block:
        return self.given[PARAMETERS[self.name][1]]

    def integer(self, word: str) -> int | None:
        """An option that is a number; None: it is not given, or None."""
        value = self.given.get(word)
        return int(value.number) if isinstance(value, Block) and value.rank == 0 else None

    def asked(self, word: str) -> bool:
        value = self.given.get(word)
        return bool(value.number) if isinstance(value, Block) else bool(value)

    def sizes(self, word: str) -> list[Block]:
        """A shape, as a tuple or number by number."""
        return [*flat(self.given.get(word)), *flat(self.extra)]

    def blocks(self) -> Iterator[Block]:
        """All blocks among the arguments."""
        return flat((*self.given.values(), *self.extra))

    def note(self, edges: Iterable[Edge | None]) -> frozenset[Together]:
        """That the call takes tiles of the domain together, or may."""
        tiles = dict.fromkeys(e.var for e in edges if e is not None and e.var in self.found.domain)
        taken = [Together(var, self.name or ast.unparse(self.node.func), self.loc) for var in tiles]
        self.found.notes += taken
        return frozenset(taken)


# --------------------------------------------------------------------------------------------------- of each value by itself
def _erf(x: Array) -> Array:
    return np.tanh(2 / np.sqrt(np.pi) * (x + 0.0894 * x**3))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _cdiv(x: Array, y: Array) -> Array:
    return np.trunc((x + y - 1) / np.where(y == 0, 1, y))


def _fma(x: Array, y: Array, z: Array) -> Array:
    return x * y + z


def _clamped(x: Array, low: Array, high: Array) -> Array:
    return np.fmin(np.fmax(x, low), high)


def _chosen(test: Array, x: Array, y: Array) -> Array:
    return np.where(test.astype(bool), x, y)


_NUMPY = ("exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "floor", "ceil",
          "trunc", "rint", "abs", "isnan", "isinf", "isfinite")  # fmt: skip
ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    **{n: getattr(np, n) for n in _NUMPY}, "sqrt_rn": np.sqrt, "rsqrt": _rsqrt, "erf": _erf, "sigmoid": _sigmoid,
    "fdiv": np.divide, "div_rn": np.divide, "pow": np.float_power, "cdiv": _cdiv, "fma": _fma, "clamp": _clamped,
    "where": _chosen, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    **dict.fromkeys(("max", "maximum"), np.fmax), **dict.fromkeys(("min", "minimum"), np.fmin),
}  # fmt: skip
"""`max` and `min` are Python's, of numbers. What is no number is neither the greater nor the less of two, as on a GPU."""
OPAQUE = frozenset({
    "rand", "randn", "randint", "rand4x", "randn4x", "randint4x", "philox", "uint_to_uniform_float", "umulhi", "map_elementwise",
    "inline_asm_elementwise", "load",
})  # fmt: skip
"""Functions of each value for which a rehearsal has others that are as good: nobody looks at its results."""
SAME = frozenset({"multiple_of", "max_contiguous", "max_constancy", "constexpr", "to_tensor", "int", "float", "bool"})


def opaque(name: str, values: Sequence[Block]) -> Block:
    """A function of each value of which no more is known."""
    seed = zlib.crc32(name.encode()) % 97

    def mixed(*arrays: Array) -> Array:
        mixture = np.asarray(0.37)
        for k, a in enumerate(arrays):
            mixture = mixture + np.sin(np.nan_to_num(a.astype(float)) * (k + 1.7) + seed + k)
        return mixture

    return replace(elementwise(mixed, *values) if values else number(0.37), data=True)


def spoilt(name: str, values: Sequence[Block]) -> Block:
    """What nothing is known of: whatever lies past an edge may have come into all of it."""
    found = opaque(name, values)
    return replace(found, mark=np.full(found.lengths, PAST)) if any(b.past for b in values) else found


def _converted(called: Called) -> Block:
    block, dtype = called.block, str(called.given.get("dtype", ""))
    if "int" in dtype and dtype != "tl.int1":
        return replace(block, value=np.trunc(np.nan_to_num(block.value.astype(float))).astype(int))
    return replace(block, value=block.value.astype(float)) if "float" in dtype else block


# --------------------------------------------------------------------------------------------------- of values in other places
def _expanded(called: Called) -> Block:
    block = called.block
    for axis in (*called.sizes("axis"), *called.sizes("dim")):
        at = int(axis.number) % (block.rank + 1)
        block = block.moved(lambda v, at=at: np.expand_dims(v, at + 1), (*block.edges[:at], None, *block.edges[at:]))
    return block


def _squeezed(called: Called) -> Block:
    block = called.block
    axis = (called.integer("dim") or 0) % max(block.rank, 1)
    if block.lengths[axis : axis + 1] != (1,):
        return block
    return block.moved(lambda v: np.squeeze(v, axis + 1), (*block.edges[:axis], *block.edges[axis + 1 :]))


def _permuted(called: Called) -> Block:
    block, rank = called.block, called.block.rank
    order = [int(n.number) % max(rank, 1) for n in called.sizes("dims")] or [*range(rank - 2), rank - 1, rank - 2][
        -rank:
    ]
    if sorted(order) != [*range(rank)]:
        return block
    return block.moved(lambda v: np.transpose(v, [0, *(k + 1 for k in order)]), (block.edges[k] for k in order))


def _reshaped(called: Called) -> Block:
    called.note(called.block.edges)
    size = int(np.prod(called.block.lengths))
    return blocks.reshaped(
        called.block, [int(n.number) for n in called.sizes("shape")] if called.name != "ravel" else [size]
    )


def _flipped(called: Called) -> Block:
    block, axis = called.block, called.integer("dim")
    axes = tuple(range(block.rank)) if axis is None else (axis % max(block.rank, 1),)
    called.note(block.edges[k] for k in axes)
    return block.moved(lambda v: np.flip(v, tuple(k + 1 for k in axes)), made(block.edges))


def _gathered(called: Called) -> Block:
    block, index = called.block, called.second
    axis = (called.integer("axis") or 0) % block.rank
    lengths = [index.lengths[axis] if k == axis else n for k, n in enumerate(block.lengths)]
    at = np.broadcast_to(blocks.spread(index.value, lengths), [len(index.value), *lengths])[:1].astype(int)
    at = np.clip(at, 0, block.lengths[axis] - 1)
    own = np.broadcast_to(blocks.spread(index.marks[None], lengths)[0], lengths)
    mark = np.maximum(np.take_along_axis(block.marks, at[0], axis), np.where(own == IN, IN, PAST))
    value = np.take_along_axis(block.value, np.broadcast_to(at, [len(block.value), *lengths]), axis + 1)
    edges = (index.edges[k] if k == axis else e for k, e in enumerate(block.edges))
    taken = block.taken | index.taken | called.note([block.edges[axis]])
    return Block(value, mark if mark.any() else None, made(edges), True, odd=block.odd or index.odd, taken=taken)


def _joined(called: Called) -> Block:
    a, b, *_ = called.blocks()
    if called.name == "cat":
        both = blocks.stacked([a, b], 0)
        return blocks.reshaped(both, [2 * both.lengths[1], *both.lengths[2:]] if both.rank > 1 else both.lengths)
    both = blocks.stacked([a, b], max(a.rank, b.rank))
    if called.name == "join" or both.rank < 2:
        return both
    return blocks.reshaped(both, [*both.lengths[:-2], both.lengths[-2] * 2])


def _split(called: Called) -> tuple[Block, ...]:
    block = called.block
    return tuple(block.moved(lambda v, k=k: v[..., k], block.edges[:-1]) for k in range(block.lengths[-1]))


def places(marks: Array, axis: int = -1) -> Array:
    """By lane, how many elements are before it."""
    return np.cumsum(marks == IN, axis) - (marks == IN)


PARAMETERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("maximum", "minimum", "fdiv", "div_rn", "pow", "cdiv", "add", "sub", "mul"), ("x", "y")),
    "fma": ("x", "y", "z"), "clamp": ("x", "min", "max"), "where": ("condition", "x", "y"),
    **dict.fromkeys(("to", "cast"), ("input", "dtype")),
    **dict.fromkeys(("sum", "xor_sum", "reduce_or"), ("input", "axis", "keep_dims")),
    **dict.fromkeys(("max", "min"), ("input", "axis", "return_indices", "return_indices_tie_break_left", "keep_dims")),
    **dict.fromkeys(("argmax", "argmin"), ("input", "axis", "tie_break_left", "keep_dims")),
    "reduce": ("input", "axis", "combine_fn", "keep_dims"), "associative_scan": ("input", "axis", "combine_fn", "reverse"),
    **dict.fromkeys(("cumsum", "cumprod"), ("input", "axis", "reverse")), "softmax": ("input", "dim", "keep_dims"),
    "sort": ("input", "dim", "descending"), "topk": ("input", "k", "dim", "descending"),
    "histogram": ("input", "num_bins", "mask"),
    **dict.fromkeys(("join", "interleave", "cat", "broadcast"), ("input", "other")), "dot": ("input", "other", "acc"),
    "dot_scaled": ("lhs", "lhs_scale", "lhs_format", "rhs", "rhs_scale", "rhs_format", "acc"),
    "expand_dims": ("input", "axis"), **dict.fromkeys(("squeeze", "unsqueeze"), ("input", "dim")),
    "flip": ("input", "dim"), "gather": ("src", "index", "axis"), "arange": ("start", "end"),
    **dict.fromkeys(("trans", "permute"), ("input", "dims")),
    **dict.fromkeys(("reshape", "view", "broadcast_to"), ("input", "shape")),
    "zeros": ("shape",), "full": ("shape", "value"), "full_like": ("input", "value"),
}  # fmt: skip
"""Parameters; of other functions the first is `input`."""
MOVES: Mapping[str, Callable[[Called], Any]] = {
    **dict.fromkeys(("to", "cast"), _converted),
    **dict.fromkeys(("trans", "permute"), _permuted),
    **dict.fromkeys(("reshape", "view", "ravel"), _reshaped),
    **dict.fromkeys(("join", "interleave", "cat"), _joined),
    "expand_dims": _expanded,
    "unsqueeze": _expanded,
    "squeeze": _squeezed,
    "broadcast_to": lambda c: blocks.like(c.block, blocks.filled(c.sizes("shape"), number(0))),
    "broadcast": lambda c: tuple(blocks.like(a, b) for a, b in permutations(c.blocks(), 2)),
    "flip": _flipped,
    "gather": _gathered,
    "split": _split,
    "zeros": lambda c: blocks.filled(c.sizes("shape"), number(0.0)),
    "full": lambda c: blocks.filled(c.sizes("shape"), c.second),
    "zeros_like": lambda c: blocks.like(number(0.0), c.block),
    "full_like": lambda c: blocks.like(c.second, c.block),
}
