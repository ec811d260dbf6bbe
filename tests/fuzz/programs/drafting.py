"""Lines of tile programs, drawn: how somebody waits, loads, decides, loops, stores and says so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

Lines = list[str]


def indented(lines: Sequence[str]) -> Lines:
    return ["    " + line for line in lines]


@dataclass
class Draft:
    """The body of one program. `tile`: what its tile is called, axis by axis; `ranks`: whether it may ask which rank this is."""

    rng: random.Random
    out: str
    tile: tuple[str, str] = ("m", "n")
    constants: dict[str, object] = field(default_factory=dict[str, object])
    number: int = 0
    ranks: bool = True
    by_data: set[str] = field(default_factory=set[str])
    """Outputs of which data decides what is stored."""

    def declared(self, name: str) -> str:
        """What a signature says of an output, mostly where it has to."""
        if name not in self.by_data:
            return " once" if self.chance(0.03) else ""
        return self.rng.choice([" once", " once", " once", " once", " partial", ""])

    def fresh(self, word: str) -> str:
        """Now and then a name that is taken."""
        if self.number and self.rng.random() < 0.15:
            return f"{word}0"
        self.number += 1
        return f"{word}{self.number - 1}"

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def index(self, m: str, n: str) -> str:
        return f"({m}, {n})"

    # ------------------------------------------------------------------------------------------------------------- waiting
    def wait(self, t: str, exact: str, panel: str = "") -> Lines:
        """For the tile, for its rows, or for everything."""
        named = self.rng.choice([exact, exact, panel or exact, ""])
        return [f"tl.consumer_tile_wait({t}{', ' if named else ''}{named})"]

    def notify(self, t: str, exact: str, panel: str = "") -> Lines:
        named = self.rng.choice([exact, exact, exact, panel or exact])
        return [f"tl.producer_tile_notify({t}, {named})"]

    # ------------------------------------------------------------------------------------------------------------- loading
    def load(self, t: str, waits: bool, *, whole: bool = True) -> tuple[Lines, str]:
        """Lines, and a value of the tile's shape. `whole`: all rows of `t` are there."""
        m, n = self.tile
        ways = [
            self._tile,
            self._tile,
            self._tile,
            self._row_sum,
            self._panel,
            self._column,
            self._each_column,
            self._twice,
        ]
        ways += [self._masked, self._nested]
        if whole:
            ways += [self._column_sum, self._row, self._shifted]
        return self.rng.choice(ways)(t, m, n, waits)

    def _tile(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v = self.fresh("v")
        wait = self.wait(t, f"({m}, {n})", m) if waits else []
        return [*wait, f"{v} = tl.tile_load({t}, ({m}, {n}))"], v

    def _twice(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        lines, v = self._tile(t, m, n, waits)
        more, w = self._row_sum(t, m, n, waits)
        return [*lines, *more], f"({v} - {w})"

    def _limits(self, t: str, axis: int) -> str:
        return self.rng.choice([
            "", "", "", f", start={self.rng.randint(0, 2)}", f", stop={self.rng.randint(1, 5)}",
            f", start=1, stop=tl.size({t}, {axis})", ", part=(0, 2)", f", stop={self.constant(2)}",
        ])  # fmt: skip

    def _row_sum(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v, k, before = self.fresh("sum"), self.fresh("k"), self.chance(0.5)
        inner = self.wait(t, f"({m}, {k})") if waits and not before else []
        inner += [f"{v} += tl.sum(tl.tile_load({t}, ({m}, {k})).to({v}.dtype), 1)[:, None]"]
        return [
            *([f"tl.consumer_tile_wait({t}, {m})"] if waits and before else []),
            f"{v} = tl.zeros(tl.tile_shape({self.out}), tl.acc_dtype({t}))",
            f"for {k} in tl.tiles({t}, axis=1{self._limits(t, 1)}):",
            *indented(inner),
        ], v

    def _masked(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        """Only some positions count; the mask may have the name of another one."""
        v, k, keep = self.fresh("sum"), self.fresh("k"), self.fresh("keep")
        limits = [
            f"stop={self.rng.randint(0, 5)}",
            f"stop=tl.tile_range({self.out}, {m}) + 1",
            f"start={self.rng.randint(0, 2)}",
        ]
        mask = f"tl.tile_mask({t}, {k}, {self.rng.choice(limits)})"
        return [
            *([f"tl.consumer_tile_wait({t}, {m})"] if waits else []),
            f"{v} = tl.zeros(tl.tile_shape({self.out}), tl.acc_dtype({t}))",
            f"for {k} in tl.tiles({t}, axis=1):",
            *indented([f"{keep} = {mask}", f"v = tl.where({keep}, tl.tile_load({t}, ({m}, {k})), 0)",
                       f"{v} += tl.sum(v.to({v}.dtype), 1)[:, None]"]),
        ], v  # fmt: skip

    def _nested(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        lines, v = self._row_sum(t, m, n, waits)
        at = next(i for i, line in enumerate(lines) if line.startswith("for "))
        return [*lines[:at], f"for i in {self.times()}:", *indented(lines[at:])], v

    def _column_sum(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v, k, before = self.fresh("sum"), self.fresh("k"), self.chance(0.4)
        inner = self.wait(t, f"({k}, {n})", k) if waits and not before else []
        inner += [f"{v} += tl.sum(tl.tile_load({t}, ({k}, {n})).to({v}.dtype), 0)[None, :]"]
        return [
            *([f"tl.consumer_tile_wait({t})"] if waits and before else []),
            f"{v} = tl.zeros(tl.tile_shape({self.out}), tl.acc_dtype({t}))",
            f"for {k} in tl.tiles({t}, axis=0{self._limits(t, 0)}):",
            *indented(inner),
        ], v

    def _panel(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v = self.fresh("v")
        wait = self.wait(t, m) if waits else []
        return [*wait, f"{v} = tl.sum(tl.tile_load({t}, {m}).to(tl.acc_dtype({t})), 1)[:, None]"], v

    def _column(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v, j = self.fresh("v"), self.rng.choice(["0", "0", f"tl.size({t}, 1) - 1"])
        wait = self.wait(t, f"({m}, {j})", m) if waits else []
        return [*wait, f"{v} = tl.tile_load({t}, ({m}, {j}))[:, None]"], v

    def _row(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v, j = self.fresh("v"), self.rng.choice(["0", "0", f"tl.size({t}, 0) - 1"])
        wait = self.wait(t, f"({j}, {n})") if waits else []
        return [*wait, f"{v} = tl.tile_load({t}, ({j}, {n}))[None, :]"], v

    def _shifted(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        rows, v = self.fresh("rows"), self.fresh("v")
        by = self.rng.choice(["AT + 1", "AT + 1", f"(AT + 1) % tl.size({t}, 0)", f"tl.size({t}, 0) - 1 - AT"])
        wait = self.wait(t, f"({rows}, {n})") if waits else []
        found = f"{rows} = {by.replace('AT', f'tl.tile_range({self.out}, {m})')}"
        return [found, *wait, f"{v} = tl.tile_load({t}, ({rows}, {n}))"], v

    def _each_column(self, t: str, m: str, n: str, waits: bool) -> tuple[Lines, str]:
        v, j = self.fresh("sum"), self.fresh("j")
        span = self.rng.choice(
            [f"tl.static_range(tl.size({t}, 1))", f"range(tl.size({t}, 1))", f"range({self.constant(1)})"]
        )
        inside = self.chance(0.3)
        wait = self.wait(t, m) if waits else []
        return [
            *([] if inside else wait),
            f"{v} = tl.zeros(tl.tile_shape({self.out}), tl.acc_dtype({t}))",
            f"for {j} in {span}:",
            *indented([*(wait if inside else []), f"{v} += tl.tile_load({t}, ({m}, {j})).to({v}.dtype)[:, None]"]),
        ], v

    # ---------------------------------------------------------------------------------------------------------- computing
    def constant(self, value: object) -> str:
        """A constant of the program of this value, or the value written out."""
        if self.chance(0.5):
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def test(self) -> str:
        """That no data decides."""
        rng, t, (m, n) = self.rng, self.out, self.tile
        ranks = ["tl.rank() == 0", "tl.rank() % 2 == 0", "tl.rank() == tl.num_ranks() - 1", "tl.num_ranks() > 1"]
        tiles = [
            f"tl.tile_begin({t}, {m}) == 0",
            f"tl.tile_begin({t}, {n}) > 0",
            f"tl.tile_end({t}, {m}) == tl.size({t}, 0)",
        ]
        constants: list[tuple[str, Sequence[object]]] = [
            ("{}", (True, True, False)), ("{} > 0", (0, 1, 2)), ("not {}", (True, False)), ("{} == 'a'", "ab"),
            ("{} != 'a'", "ab"), ("{} > 1.0", (0.5, 2.0)),
        ]  # fmt: skip
        kind = rng.random()
        if kind < 0.6:
            text, values = rng.choice(constants)
            return text.format(self.constant(rng.choice(values)))
        return rng.choice(ranks if self.ranks and kind < 0.8 else tiles)

    def times(self) -> str:
        """How often a loop goes round: 1 mostly, else 0 or 2."""
        once = self.rng.choice([1, 1, 1, 1, 2, 0])
        if self.ranks and self.chance(0.2):
            return f"range(tl.num_ranks() - {self.constant(self.rng.choice([1, 1, 2]))})"
        word = self.rng.choice(["range", "tl.static_range"])
        return f"range({3 - once}, 3)" if self.chance(0.2) else f"{word}({self.constant(once)})"

    def changed(self, values: Sequence[str]) -> tuple[Lines, str]:
        """One value of several, by a few lines."""
        rng, x, lines = self.rng, self.fresh("x"), Lines()
        one = f"{values[0]} * {rng.randint(1, 3)}" if self.chance(0.5) else values[0]
        lines.append(f"{x} = {' + '.join([one, *values[1:]])}")
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            step = rng.choice(
                [f"{x} += {rng.randint(1, 3)}", f"{x} = {x} - 1", f"{x} = tl.where({x} > 0, {x}, 1)", f"{x} *= 2"]
            )
            loop = f"for i in {self.times()}:"
            head = rng.choice(
                [f"if {self.test()}:", f"if tl.max(tl.max(tl.where({x} > 0, {x}, 0), 1), 0) > 0:", loop, "", ""]
            )
            lines += [head, *indented([step])] if head else [step]
        return lines, x

    # ------------------------------------------------------------------------------------------------------------- storing
    def store(self, x: str, *, to: str = "tile_store", index: str = "") -> Lines:
        """The whole tile, once, one way or another."""
        (m, n), rng, t = self.tile, self.rng, self.out
        index = index or f"({m}, {n})"
        one, other = f"tl.{to}({t}, {index}, {x})", f"tl.{to}({t}, {index}, {x} + 1)"
        kind = rng.random()
        if kind < 0.5:
            return [one]
        if kind < 0.65:
            return [f"if {self.test()}:", *indented([one]), "else:", *indented([other])]
        if kind < 0.7:
            self.by_data.add(t)
            return [
                f"if tl.max(tl.max(tl.where({x} > 0, {x}, 0), 1), 0) > 0:",
                *indented([one]),
                "else:",
                *indented([other]),
            ]
        if kind < 0.8:
            at, limit = rng.choice(
                [(f"tl.tile_range({t}, {m})[:, None]", 2), (f"tl.tile_range({t}, {n})[None, :]", 1), (x, 1)]
            )
            last = self.constant(limit)
            self.by_data |= {t} if at == x else set()
            return [f"{line[:-1]}, mask={at} {op} {last})" for line, op in ((one, "<"), (other, ">="))]
        if kind < 0.86:
            return [f"for i in {self.times()}:", *indented([one])]
        if kind < 0.9:
            return [f"if {self.test()}:", *indented([one])]
        if kind < 0.95:
            a = rng.choice(
                [f"tl.tile_range({t}, {m})[:, None] < 1000", f"tl.tile_range({t}, {m})[:, None] < tl.size({t}, 0)"]
            )
            return [f"{one[:-1]}, mask={a})"]
        return [
            f"while {self.constant(1)} < 0:" if self.chance(0.2) else f"if {self.test()} or True:",
            *indented([one]),
        ]
