"""Rule 4, counts: each word is raised as often as the emitted target says.

The target is a formula. The notifies are counted from the producers' real cuts, tile by tile and axis by axis; the two
meet as products of one-axis tables, so that nothing is ever as large as ranks x tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.formula import Binary, Formula
from tilelink.ir.plan import Plan
from tilelink.ir.program import Loop, Notify
from tilelink.mapping.verify.geometry import Bools, Ints, World
from tilelink.mapping.verify.mistakes import REPORT
from tilelink.mapping.verify.reach import Key, Laid
from tilelink.mapping.verify.words import Delivery, Told, Words, delivery, signals_on, to_itself, unproven

DENSE = 6_000_000
"""Words over all ranks that may be looked at one by one, where a product will not do."""


@dataclass(frozen=True, slots=True)
class Product:
    """How often words are raised: `scalar` (ranks or 1, 1) times one table (ranks or 1, words) per channel axis."""

    scalar: Ints
    tables: tuple[Ints, ...]

    def dense(self, ranks: int) -> Ints:
        out = np.broadcast_to(self.scalar, (ranks, 1))
        for t in self.tables:
            out = (out[:, :, None] * np.broadcast_to(t, (ranks, t.shape[1]))[:, None, :]).reshape(ranks, -1)
        return out

    def most(self) -> int:
        """No word is raised more often than this."""
        out = int(self.scalar.max(initial=0))
        for t in self.tables:
            out *= int(t.max(initial=0))
        return out

    def equals(self, other: Product) -> bool:
        """Whether the products are the same, wherever a constant factor may have been put."""
        if any(t.shape[1] == 0 for t in self.tables):
            return True  # there are no words
        nothing = self.nothing()
        if not bool((nothing == other.nothing()).all()):
            return False
        mine, theirs = self.scalar, other.scalar
        for a, b in zip(self.tables, other.tables, strict=True):
            rows = max(len(a), len(b))
            pivot = np.broadcast_to(np.argmax(b, axis=1)[:, None], (rows, 1))
            top_a = np.take_along_axis(np.broadcast_to(a, (rows, a.shape[1])), pivot, axis=1)
            top_b = np.max(b, axis=1, keepdims=True)
            if not bool(((a * top_b == b * top_a) | nothing).all()):
                return False
            mine, theirs = mine * top_a, theirs * top_b
        return bool(((mine == theirs) | nothing).all())

    def beyond(self, other: Product) -> Bools:
        """Ranks with a word that this raises, and the other does not."""
        pairs = list(zip(self.tables, other.tables, strict=True))
        missed = other.scalar == 0
        for mine, theirs in pairs:
            missed = missed | ((mine > 0) & (theirs == 0)).any(axis=1, keepdims=True)
        return missed & ~self.nothing()

    def nothing(self) -> Bools:
        """Ranks none of whose words are raised."""
        out = self.scalar == 0
        for t in self.tables:
            out = out | ~t.any(axis=1, keepdims=True)
        return out


def check_counts(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Raises:
    TilelinkError: TL607; TL606 where the notifies cannot be counted.
    """
    words = 0
    for channel in plan.channels:
        told = signals_on(plan, laid, channel, "notify")
        waits = signals_on(plan, laid, channel, "await")
        widths = [world.number(a.count) for a in channel.axes]
        raised = [count(t, widths, delivery(t), world) for t in told]
        _Comparison(plan, world, channel, told, waits, widths, raised).run()
        words += int(np.prod(widths, dtype=np.int64)) if widths else 1
    return f"targets of {words} words on each of {world.ranks} ranks equal the notifies that exist"


# ------------------------------------------------------------------------------------------------------------- counting
def count(told: Told, widths: list[int], to: Delivery, world: World) -> Product | Ints:
    """How often a notify raises each word of each rank: as a product, or word by word (ranks, words) where it is none."""
    tables = [_table(w, width, to, world) for w, width in zip(told.words, widths, strict=True)]
    keys = [w.key for w in told.words if w.key is not None]
    if len(set(keys)) < len(keys):
        raise unproven(told, "one tile index stands on two axes")
    often = _repeats(told, set(keys), to)
    if to.kind == "tile" and to.key not in keys:
        tables.append(_unnamed(told, to, world))
    found = _meet(told, often, tables, to, world)
    if isinstance(found, Product) and len(found.tables) > len(widths):
        return Product(found.scalar * found.tables[-1], found.tables[:-1])
    return found


def _table(w: Words, width: int, to: Delivery, world: World) -> Ints:
    """(source rank or 1, receiving rank or 1, words): tiles that touch each word."""
    receiver = to.to if to.kind == "tile" and to.key == w.key else None
    if receiver is None and _ascending(w, width):
        return _by_runs(w, width)
    arrays = (w.first, w.last, w.real, *(() if receiver is None else (receiver,)))
    rows, n = max(len(a) for a in arrays), w.first.shape[1]
    row, col = np.nonzero(np.broadcast_to(w.real, (rows, n)))
    first, last = np.broadcast_to(w.first, (rows, n)), np.broadcast_to(w.last, (rows, n))
    who = np.broadcast_to(receiver, (rows, n))[row, col] if receiver is not None else np.zeros_like(row)
    receivers = world.ranks if receiver is not None else 1
    lo, hi = first[row, col], np.maximum(last[row, col] + 1, first[row, col])
    # Words that do not exist are nobody's; rule 7 says where they are named.
    keep = (lo >= 0) & (hi <= width) & (who >= 0) & (who < receivers)
    row, who, lo, hi = row[keep], who[keep], lo[keep], hi[keep]
    out = np.zeros((rows, receivers, width + 1), dtype=np.int64)
    np.add.at(out, (row, who, lo), 1)
    if bool((hi == lo + 1).all()):
        return out[:, :, :width]
    np.add.at(out, (row, who, hi), -1)
    return np.cumsum(out, axis=2)[:, :, :width]


def _ascending(w: Words, width: int) -> bool:
    """Whether each tile has one word, the same on every rank, and words rise with tiles."""
    if len(w.first) > 1 or not w.first.size or w.first.min() < 0 or w.first.max() >= width:
        return False
    return bool((w.first == w.last).all()) and bool((np.diff(w.first, axis=1) >= 0).all())


def _by_runs(w: Words, width: int) -> Ints:
    starts = np.flatnonzero(np.diff(w.first[0], prepend=-1))
    real = np.broadcast_to(w.real, (len(w.real), w.first.shape[1]))
    one_each = len(starts) == real.shape[1]
    sums = real.astype(np.int64) if one_each else np.add.reduceat(real, starts, axis=1, dtype=np.int64)
    if len(starts) == width:
        return sums[:, None, :]
    out = np.zeros((len(w.real), 1, width), dtype=np.int64)
    out[:, 0, w.first[0, starts]] = sums
    return out


def _unnamed(told: Told, to: Delivery, world: World) -> Ints:
    """Tiles that go to each rank, along an axis that the channel does not tell apart."""
    assert to.key is not None
    spans = told.laid.spans[to.key]
    if spans is None:
        raise unproven(told, "data says which rank it is for")
    spans = told.mask.on(spans, to.key)
    zeros = np.zeros_like(spans.begin)
    return _table(Words(to.key, zeros, zeros, spans.real), 1, to, world)


def _repeats(told: Told, keys: set[Key], to: Delivery) -> Ints:
    """(source rank or 1, 1): how often the same words are raised, by tiles and loops that the index does not mention."""
    often = np.ones((1, 1), dtype=np.int64)
    rank_only = told.mask.by.get(None)
    if rank_only is not None:
        often = often * rank_only
    around: list[Key] = [a for a, g in enumerate(told.laid.step.grid) if g.kind != "own"]
    for loop in told.site.loops:
        if isinstance(loop, Loop):
            raise unproven(told, f"it stands in a loop whose length the plan does not know (`{loop.header}`)")
        around.append(loop.var)
    for key in around:
        if key in keys or (to.kind == "tile" and key == to.key) or _counted_on_device(told, key):
            continue
        spans = told.laid.spans[key]
        if spans is None:
            raise unproven(told, "data says for how many tiles it is given")
        often = often * told.mask.on(spans, key).real.sum(axis=1, keepdims=True)
    return often


def _counted_on_device(told: Told, key: Key) -> bool:
    """Whether only the last tile along a run-time split notifies, for all of them."""
    return isinstance(key, int) and told.channel.joined is not None and told.laid.step.grid[key].kind == "table"


def _meet(told: Told, often: Ints, tables: list[Ints], to: Delivery, world: World) -> Product | Ints:
    """Sum over the source ranks whose notifies reach each rank."""
    skip = told.laid.keeps_own and isinstance(told.op, Notify)
    if to.kind == "one":
        assert to.to is not None
        return _one_source(often, tables, to.to, skip, world)
    ranks = world.ranks
    weight = np.broadcast_to(np.broadcast_to(often, (ranks, 1)), (ranks, ranks)) * (
        1 - np.eye(ranks, dtype=np.int64) * skip
    )
    if to.kind == "all":
        weight = weight * world.same_line(told.laid.step.axis)
    plain: list[Ints] = []
    for t in tables:
        found = _apart(t) if t.shape[0] > 1 else None
        if found is not None:
            weight = weight * found[0]
        plain.append(found[1] if found is not None else t)
    sourced = [k for k, t in enumerate(plain) if t.shape[0] > 1]
    if not sourced:
        return Product(weight.sum(axis=0)[:, None], tuple(t[0] for t in plain))
    if len(sourced) > 1:
        return _word_by_word(told, weight, plain, world)
    total = _weighted(weight, plain[sourced[0]])
    return Product(np.ones((1, 1), np.int64), tuple(total if k == sourced[0] else t[0] for k, t in enumerate(plain)))


def _apart(table: Ints) -> tuple[Ints, Ints] | None:
    """(source, receiver) and (1, receiver, words) whose product the table is: sources differ in whether, not in what."""
    whether: Ints = np.asarray(table.any(axis=2), dtype=np.int64)
    what: Ints = np.asarray(table.max(axis=0, keepdims=True), dtype=np.int64)
    return (whether, what) if bool((table == whether[:, :, None] * what).all()) else None


def _weighted(weight: Ints, table: Ints) -> Ints:
    """Sum over sources of weight (source, receiver) x table (source, receiver or 1, words)."""
    if table.shape[1] > 1:
        return np.einsum("qh,qhc->hc", weight, table)
    if bool((weight == weight[:, :1]).all()):
        return (weight[:, :1] * table[:, 0]).sum(axis=0, keepdims=True)
    # Exact: counts are far below 2**53, and floating point is much the faster here.
    return np.rint(weight.T.astype(np.float64) @ table[:, 0].astype(np.float64)).astype(np.int64)


def _word_by_word(told: Told, weight: Ints, tables: list[Ints], world: World) -> Ints:
    size = world.ranks * int(np.prod([t.shape[2] for t in tables], dtype=np.int64))
    if size * world.ranks > DENSE:
        raise unproven(told, "how many tiles a rank has along two axes depends on the rank")
    out = np.zeros((world.ranks, size // world.ranks), dtype=np.int64)
    for source in range(world.ranks):
        mine = tuple(t[min(source, t.shape[0] - 1)] for t in tables)
        out = out + Product(weight[source][:, None], mine).dense(world.ranks)
    return out


def _one_source(often: Ints, tables: list[Ints], to: Ints, skip: bool, world: World) -> Product:
    """Each rank hears from those whose notifies go to it: one, unless the plan is wrong."""
    ranks = np.arange(world.ranks)
    reached = np.zeros((world.ranks, 1), dtype=np.int64)
    source = np.zeros(world.ranks, dtype=np.int64)
    np.add.at(reached, (to, np.zeros_like(to)), 1)
    source[to] = ranks
    scalar = np.broadcast_to(often, (world.ranks, 1))[source] * reached
    if skip:
        scalar = scalar * (source != ranks)[:, None]
    if (reached == 1).all() and (to == ranks).all() and often.shape[0] == 1 and not skip:
        scalar = often
    return Product(scalar, tuple(t[source, 0] if t.shape[0] > 1 else t[0] for t in tables))


# ----------------------------------------------------------------------------------------------------------- comparing
@dataclass(frozen=True, slots=True)
class _Comparison:
    plan: Plan
    world: World
    channel: Channel
    told: tuple[Told, ...]
    waits: tuple[Told, ...]
    widths: list[int]
    raised: list[Product | Ints]

    def run(self) -> None:
        self._check_symbols()
        self._check_writers()
        self._check_joined()
        self._check_lengths()
        wanted = self._target()
        first = self.raised[0] if len(self.raised) == 1 else None
        if wanted is not None and isinstance(first, Product) and self._same(first, wanted):
            self._check_set(first)
            return
        size = self.world.ranks * int(np.prod(self.widths, dtype=np.int64))
        if size > DENSE:
            raise unproven(self.told[0] if self.told else self.waits[0], "there are too many words to look at each")
        target = wanted.dense(self.world.ranks) if wanted is not None else self._dense_target()
        real = np.zeros_like(target)
        for p in self.raised:
            real = real + (p.dense(self.world.ranks) if isinstance(p, Product) else p)
        wrong = np.argwhere(real != target)
        if len(wrong):
            rank, flat = (int(i) for i in wrong[0])
            raise self._mismatch(rank, self._unflat(flat), int(real[rank, flat]), int(target[rank, flat]))
        self._check_stream(real)

    def _check_symbols(self) -> None:
        """The target may name the rank, sizes and the word's own indices."""
        known = {*self.plan.env(0), *(f"c{k}" for k in range(len(self.widths)))} - dict(self.plan.tables).keys()
        formulas = (self.channel.target, self.channel.guard, self.channel.rings)
        named = {name for formula in formulas if formula is not None for name in F.symbols(formula)}
        if named - known:
            raise TilelinkError(
                "TL607",
                f"the target of `{self.channel.tensor}` names {', '.join(f'`{n}`' for n in sorted(named - known))}",
                loc=(self.told or self.waits)[0].op.loc,
                why="both sides work it out from sizes, the rank and the word's own indices",
                hint=REPORT,
            )

    def _check_writers(self) -> None:
        """Workers add one each, a copy engine sets the call: no word can be had by both."""
        for t in self.told:
            engine = "stream" if t.laid.step.engine == "stream" else "workers"
            if engine != self.channel.writers:
                raise TilelinkError(
                    "TL607",
                    f"`{t.path}` notifies words of `{self.channel.tensor}` that are kept for another kind of engine",
                    loc=t.op.loc,
                    why="a wait looks for a count where workers add, and for the call where a copy engine sets",
                    hint=REPORT,
                )

    def _check_joined(self) -> None:
        """Tiles that the device counts are those of one notify, made and heard on one rank."""
        table = self.channel.joined
        for t in self.told:
            tables = {g.table for g in t.laid.step.grid if g.kind == "table"}
            alone = len(self.told) == 1 and t.signal.to == "self" and t.laid.step.engine == "workers"
            if tables == ({table} if table is not None else set[str]()) and (alone or table is None):
                continue
            raise TilelinkError(
                "TL607",
                f"the tiles of `{t.path}` that notify `{self.channel.tensor}` are not counted by the table that splits them",
                loc=t.op.loc,
                why="who waits for tiles of a run-time split waits for the last of them, which the device finds out",
                hint=REPORT,
            )

    def _check_lengths(self) -> None:
        """A copy engine sets one word per tile."""
        for t in self.told:
            if t.laid.keeps_own and self.world.along(t.laid.step.axis) == 1:
                continue  # nothing is moved
            longer = [bool((w.real & (w.last > w.first)).any()) for w in t.words if not w.by_data]
            if t.laid.step.engine == "stream" and any(longer):
                raise TilelinkError(
                    "TL607",
                    f"a tile that `{t.path}` moves lies in more than one word of `{self.channel.tensor}`",
                    loc=t.op.loc,
                    why="a copy engine sets one word behind each copy",
                    hint="give every transferred tile a word of its own: channels as long as the tiles of the step",
                )

    def _same(self, a: Product, b: Product) -> bool:
        if not a.equals(b):
            return False
        # A copy engine's words may be completed only once; where the greatest factors meet, look at each word.
        return self.channel.writers != "stream" or a.most() <= 1

    def _check_stream(self, real: Ints) -> None:
        if self.channel.writers == "stream" and (real > 1).any():
            rank, flat = (int(i) for i in np.argwhere(real > 1)[0])
            raise TilelinkError(
                "TL607",
                f"a copy engine completes word {self._unflat(flat)} of `{self.channel.tensor}` {int(real[rank, flat])} times",
                loc=self.told[0].op.loc,
                why="a copy engine says which call it is in, so the first of several tiles would count for all",
                hint="give every transferred tile a word of its own: the tile of the step, no larger channel",
            )

    def _check_set(self, set_: Product) -> None:
        """Who waits for a word of a copy engine looks for the call, also where its target is 0."""
        if self.channel.writers != "stream":
            return
        for w in self.waits:
            if any(a.by_data for a in w.words) or w.mask.data or w.mask.by.keys() - {a.key for a in w.words}:
                continue  # which words it looks at, something else says
            own = to_itself(self.world)
            tables = tuple(_table(a, n, own, self.world)[:, 0] for a, n in zip(w.words, self.widths, strict=True))
            if Product(1 - w.laid.idle(w.site).astype(np.int64), tables).beyond(set_).any():
                raise TilelinkError(
                    "TL607",
                    f"`{w.path}` waits for a word of `{self.channel.tensor}` that no copy engine sets",
                    loc=w.op.loc,
                    why="a wait looks for the number of the call, which nobody writes there",
                    hint=REPORT,
                )

    def _unflat(self, flat: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(flat, self.widths)) if self.widths else ()

    def _mismatch(self, rank: int, word: tuple[int, ...], real: int, target: int) -> TilelinkError:
        told = self.told[0] if self.told else self.waits[0]
        where = f"word {word} of `{self.channel.tensor}`" if word else f"the word of `{self.channel.tensor}`"
        return TilelinkError(
            "TL607",
            f"{where} is raised {_times(real)} on rank {rank}, and its target is {target}",
            loc=told.op.loc,
            why="a word is complete when it was raised as often as producer tiles notify it",
            hint="notify once per tile, behind the loop" if told.site.loops else REPORT,
            notes=tuple(Note("waited for here", w.op.loc) for w in self.waits[:1]),
        )

    # --------------------------------------------------------------------------------------------------------- target
    def _indices(self) -> dict[str, Any]:
        return {f"c{k}": np.arange(w, dtype=np.int64)[None, :] for k, w in enumerate(self.widths)}

    def _target(self) -> Product | None:
        """The emitted target as a product; None if some factor mixes axes."""
        scalar = np.ones((1, 1), dtype=np.int64)
        tables = [np.ones((1, w), dtype=np.int64) for w in self.widths]
        indices = self._indices()
        guards = _split("and", self.channel.guard) if self.channel.guard is not None else []
        factors = [*_split("*", self.channel.target), *(F.binary("!=", g, 0) for g in guards)]
        for factor in factors:
            used = sorted(F.symbols(factor) & indices.keys())
            if len(used) > 1:
                return None
            value = self.world.value(factor, indices).astype(np.int64)
            if used:
                k = int(used[0][1:])
                tables[k] = tables[k] * value
            else:
                scalar = scalar * value
        return Product(scalar, tuple(tables))

    def _dense_target(self) -> Ints:
        grids = np.meshgrid(*[np.arange(w) for w in self.widths], indexing="ij")
        env = {f"c{k}": g.ravel()[None, :] for k, g in enumerate(grids)}
        shape = (self.world.ranks, int(np.prod(self.widths, dtype=np.int64)))
        value = np.broadcast_to(self.world.value(self.channel.target, env), shape)
        if self.channel.guard is not None:
            value = value * (np.broadcast_to(self.world.value(self.channel.guard, env), shape) != 0)
        return value


def _split(op: str, formula: Formula) -> list[Formula]:
    if isinstance(formula, Binary) and formula.op == op:
        return _split(op, formula.left) + _split(op, formula.right)
    return [formula]


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"
