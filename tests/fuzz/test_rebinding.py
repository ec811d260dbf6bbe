"""A name means what was bound to it last: programs give what Python gives, however they are scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st

import tilelink
from tests.frontend.harness import run_cell
from tests.fuzz.programs.meaning import Meaning
from tests.fuzz.programs.memory import Ranks
from tests.fuzz.rebinding import RANKS, SHAPE, TILE, Text
from tests.selection import cases
from tilelink import Operator

SIZE = "M={}, N={}".format(*TILE)
SHARE, FIRST = (f"{path}=tilelink.sms({SIZE})" for path in ("share", "first"))
WAYS = {
    "kernels": f"one.schedule({SHARE}, {FIRST})",
    "LL protocol": f"one.schedule({SHARE}, first=tilelink.sms({SIZE}, joins='share'))",
    "one worker": f"two.schedule(dict.fromkeys(('share', 'first', 'last'), tilelink.sms(1, {SIZE})))",
    "fused": f"two.schedule({SHARE}, {FIRST}, last=tilelink.fused('first'))",
    "pieces": f"two.schedule({SHARE}, {FIRST}, last=tilelink.fused('first', N={TILE[1] // 2}))",
}


@pytest.fixture(autouse=True, scope="module")
def _any_numbers() -> Iterator[None]:
    """What the programs store hangs on how long tiles are (TL336), which says most of what their names stand for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilelink.mapping.planning.check_together", lambda _plan: None)
        yield


def check(written: Text, way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = [torch.randint(-3, 4, SHAPE, generator=generator).float() for _ in range(RANKS)]
    text = written.scheduled(WAYS[way])
    operator = run_cell(text)["op"]
    assert isinstance(operator, Operator)
    meaning = Meaning(text, Ranks({"R": RANKS}), dict(zip("MN", SHAPE, strict=True)))
    wanted = meaning.results([[t] for t in x], {})
    found = tilelink.launch(lambda: operator(x[tilelink.rank()]), RANKS, races=True)
    for got, (want,) in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, torch.as_tensor(want).float(), rtol=0, atol=0)


# --------------------------------------------------------------------------------------------------------- each by itself
def walked(*lines: str) -> list[str]:
    """In a loop over the tiles of the box; `x` is one."""
    load = "x = tl.tile_load(inbox, (q, m, k))"
    loops = ["for q in tl.tiles(inbox, axis=0):", "    for k in tl.tiles(inbox, axis=2):"]
    return [*loops, *("        " + line for line in (load, *lines))]


TAKE = "acc += tl.sum(tl.where(keep, x, 0), 1)[:, None]"
RIGHT = "if tl.tile_begin(out, n) > 0:"
BOUND = {
    "a mask twice": walked(
        "keep = tl.tile_mask(inbox, k, stop=9)", TAKE, "keep = tl.tile_mask(inbox, k, stop=17)", TAKE
    ),
    "masks of two loops": [
        *walked("keep = tl.tile_mask(inbox, k, stop=tl.tile_range(out, m) + 3)", TAKE),
        *walked("keep = tl.tile_mask(inbox, k, stop=tl.tile_range(out, m) * 2)", TAKE),
    ],
    "a mask on one path": walked(
        "keep = tl.tile_mask(inbox, k, stop=9)", RIGHT, "    keep = tl.tile_mask(inbox, k, start=3)", TAKE
    ),
    "a bound on each path": [
        RIGHT,
        "    a = tl.tile_begin(out, m)",
        "else:",
        "    a = tl.tile_end(out, m)",
        "acc += a",
    ],
    "a bound, in a loop": ["a = tl.tile_begin(out, m)", "for i in range(3):", "    acc += a", "    a = tl.tile_end(out, n)"],
    "a bound, then data": ["a = tl.tile_begin(out, n)", "acc += a", "a = tl.tile_load(inbox, (0, m, n))", "acc += a"],
    "a size twice": [
        "a = tl.size(inbox, 1)",
        *("for i in tl.static_range(a):", "    acc += i"),
        "a = tl.size(inbox, 2)",
        *("for i in tl.static_range(a):", "    acc += i"),
    ],
    "a constant": ["count = count + 1", "acc += count"],
    "a constant on one path": [RIGHT, "    count = 7", "acc += count"],
    "a scalar": ["scale *= 2", "acc += scale"],
    "both": ["count, scale = count + 1, scale + count", "acc += count * scale"],
    "the variable of a loop": ["for i in range(4):", "    if i > 1:", "        i = 10", "    acc += i"],
    "an index, on two paths": [
        RIGHT,
        "    a = tl.tile_begin(out, m)",
        "else:",
        "    a = tl.tile_end(out, m) - 1",
        "acc += tl.tile_load(inbox, (0, a, n))[None, :]",
    ],
    "loops inside one another": [
        "i = 0",
        *("for i in range(3):", "    y = i"),
        *("    for i in range(2):", "        acc += tl.tile_load(inbox, (0, y, n))[None, :] + i"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", ["LL protocol", "one worker"])
@pytest.mark.parametrize("bound", BOUND)
def test_names(bound: str, way: str) -> None:
    check(Text.of(BOUND[bound], BOUND[bound]), way)


# ----------------------------------------------------------------------------------------------------------------- drawn
NUMBERS, ROW, MASK, SCALAR = "number", "row", "mask", "scalar"
NAMES = ("a", "b", "count", "scale")


@dataclass
class Writer:
    """Lines of a program, and of what kind each name is by now."""

    draw: Any
    kinds: dict[str, str] = field(default_factory=lambda: {"count": NUMBERS, "scale": SCALAR})
    lines: list[str] = field(default_factory=list[str])
    depth: int = 0
    walks: bool = False
    outer: dict[str, str] = field(default_factory=dict[str, str])
    """Of names that the block around this one has: they keep their kinds."""

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def pick(self, of: Any) -> Any:
        return self.draw(st.sampled_from([*of]))

    def named(self, kind: str) -> list[str]:
        return [n for n, k in self.kinds.items() if k == kind]

    def number(self) -> str:
        places = [f"tl.tile_{side}(out, {axis})" for side in ("begin", "end") for axis in "mn"]
        places += [f"tl.tile_{side}(inbox, k)" for side in ("begin", "end") if self.walks]
        others = [str(self.draw(st.integers(0, 9))), "LIMIT", "tl.size(inbox, 2)", "tl.num_ranks()"]
        one = self.pick([*places, *others, *self.named(NUMBERS) * 4])
        if self.draw(st.integers(0, 2)):
            return one
        return f"({one} {self.pick('+-*')} {self.pick([*others, *self.named(NUMBERS) * 4])} & 15)"

    def value(self, kind: str) -> str:
        if kind == NUMBERS:
            return self.number()
        if kind == SCALAR:
            return self.pick([*self.named(SCALAR), "2.0"]) + f" + {self.number()}"
        if kind == ROW:
            return self.pick([*self.named(ROW) * 2, "tl.tile_range(out, n)"]) + self.pick(["", f" + {self.number()}"])
        limits = [f"{side}={self.number()}" for side in ("start", "stop") if self.draw(st.booleans())]
        limits += ["stop=tl.tile_range(out, m) + " + self.number()] if not limits else []
        return f"tl.tile_mask(inbox, k, {', '.join(limits)})"

    def assign(self) -> None:
        name = self.pick(NAMES)
        free = [MASK, MASK, NUMBERS] if self.walks else [NUMBERS, NUMBERS, ROW, SCALAR]
        kind = self.outer.get(name) or self.pick(free)
        if kind == MASK and not self.walks:
            return
        other = self.pick([n for n in NAMES if n != name])
        if kind == NUMBERS == self.kinds.get(other) == self.kinds.get(name) and self.draw(st.booleans()):
            self.add(self.pick([f"{name}, {other} = {other}, {name}", f"{name} += {other}"]))
            return
        self.add(f"{name} = {self.value(kind)}")
        self.kinds[name] = kind
        if self.draw(st.booleans()):
            self.use()

    def use(self) -> None:
        found = [f"acc += {n}" for n in (*self.named(NUMBERS), *self.named(SCALAR))]
        found += [f"acc += {n}[None, :]" for n in self.named(ROW)]
        found += [f"acc += tl.tile_load(inbox, (0, {n} & 7, n))[None, :]" for n in self.named(NUMBERS)]
        if self.walks:
            found += [f"acc += tl.sum(tl.where({n}, x, 0), 1)[:, None]" for n in self.named(MASK) * 6]
        if found:
            self.add(self.pick(found))

    def block(self, head: str, size: int, first: str = "pass") -> dict[str, str]:
        """A nested block; the kinds of names at its end."""
        before, outer, self.outer = dict(self.kinds), self.outer, dict(self.kinds)
        self.add(head)
        self.depth += 1
        self.add(first)
        self.statements(size)
        self.use()
        self.depth -= 1
        after, self.kinds, self.outer = self.kinds, before, outer
        return after

    def branch(self) -> None:
        after = self.block(f"if {self.number()} > {self.draw(st.integers(0, 12))}:", 2)
        other = self.block("else:", 2) if self.draw(st.booleans()) else dict(self.kinds)
        self.kinds = {n: k for n, k in after.items() if other.get(n) == k}

    def count(self) -> None:
        # What a loop counts by is not bound behind it, and so not at the head of one around it.
        name = self.pick([*(n for n in NAMES if n not in self.outer), f"i{self.depth}"])
        before = dict(self.kinds)
        head = f"for {name} in range({self.pick(['3', '2', '(' + self.number() + ') & 3'])}):"
        self.kinds[name] = NUMBERS
        self.block(head, 3)
        self.kinds = {n: k for n, k in before.items() if n != name}

    def walk(self) -> None:
        limits = self.pick(["", "", f", stop={self.number()}", f", start={self.number()}"])
        self.add("for q in tl.tiles(inbox, axis=0):")
        self.depth, self.walks = 1, True
        self.block(f"for k in tl.tiles(inbox, axis=2{limits}):", 4, "x = tl.tile_load(inbox, (q, m, k))")
        self.depth, self.walks = 0, False

    def statements(self, size: int) -> None:
        kinds = [self.assign, self.assign, self.assign, self.use, self.use, self.branch, self.count]
        kinds = kinds if self.depth < 4 else kinds[:5]
        for _ in range(self.draw(st.integers(1, size))):
            self.pick([*kinds, *([self.walk, self.walk] if not self.depth else [])])()


@st.composite
def bodies(draw: Any) -> list[str]:
    writer = Writer(draw)
    writer.statements(7)
    for name in writer.kinds:
        writer.kinds, kinds = {name: writer.kinds[name]}, writer.kinds
        writer.use()
        writer.kinds = kinds
    return writer.lines


@cases(16)
@given(bodies(), bodies(), st.sampled_from([*WAYS]))
def test_programs(first: list[str], last: list[str], way: str) -> None:
    written = Text.of(first, last)
    note(written.scheduled(WAYS[way]))
    check(written, way)
