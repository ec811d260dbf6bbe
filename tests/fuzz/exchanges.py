"""Operators written at random: a program that pushes tiles to peers, and programs that take what has come.

Most are one kernel and have epoch-signalled plans, whose tensors come by the LL protocol where their rows are whole words. All
are right as they are drawn; one may be spoilt in one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.frontend.harness import run_cell
from tilelink import Operator

VALUES = ("value", "value * 2", "value - 1", "tl.where(value > 0, value, 1)")
"""The first makes a copy program, which is no load and store."""
GUARDS = ("q >= 1", "q % 2 == 0")


@dataclass(frozen=True)
class Sent:
    """What is pushed where. `given`: the operator's argument; `x`, `box`: as the sender has them; `mine`: what its tiles are
    of, where its rows are whole."""

    given: str
    x: str
    box: str
    mine: str

    @property
    def sliced(self) -> bool:
        """Whether a box has a slice for each rank that sends."""
        return self.box.startswith("R ")

    @property
    def rows(self) -> str:
        return "M/R" if "/R" in self.box else "M"


SENT = (
    Sent("M N", "R/R M N", "R M N", "R/R M i32"),
    Sent("M N", "R/R M N", "R M/R N", "R/R M i32"),
    Sent("M/R N", "M/R N", "M N", "M/R i32"),
)


@dataclass(frozen=True)
class Taken:
    """A sum of what has come. `axes`: those of its result; along the other one it goes by tiles from `start` to `stop`, where
    positions before `mask` count, as often as their number says. `guard`: of which senders. `waits`: for the `tile` that is
    loaded, all of its `row`, or `all` of the box; `early`: whether or not the guard holds."""

    axes: str
    start: int = 0
    stop: int | None = None
    mask: int | None = None
    guard: str | None = None
    waits: str = "tile"
    early: bool = False

    def text(self, sent: Sent, boxes: Sequence[str], name: str) -> str:
        walked, at = "MN".replace(self.axes, ""), ", ".join(self.axes.lower())
        index = ["q"] * sent.sliced + ["k" if a == walked else a.lower() for a in "MN"]
        loops = ["for q in tl.tiles(box, axis=0):"] if sent.sliced else []
        if walked:
            limits = f", start={self.start}" + ("" if self.stop is None else f", stop={self.stop}")
            axis = "MN".index(walked) + sent.sliced
            loops.append(f"for k in tl.tiles(box, axis={axis}{limits if self.start or self.stop else ''}):")
        guard = [f"if {self.guard}:"] if self.guard is not None and sent.sliced else []
        named = {"tile": f", ({', '.join(index)})", "row": f", ({', '.join(index[:-1])})", "all": ""}[self.waits]
        waits = [f"tl.consumer_tile_wait({box}{named})" for box in boxes]
        taken = [
            [f"got = tl.tile_load({b}, ({', '.join(index)})).to(acc.dtype)", *self._added(b, walked)] for b in boxes
        ]
        inside = self.waits != "all" and not self.early
        result = " ".join(sent.rows if a == "M" else a for a in self.axes)
        lines = [
            f'@tilelink.program("{", ".join([sent.box] * len(boxes))} -> {result}")',
            f"def {name}({', '.join(boxes)}, out):",
            f"    {at} = tl.tile_id(out)",
            *(f"    {wait}" for wait in waits if self.waits == "all"),
            "    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(box))",
            *("    " * depth + loop for depth, loop in enumerate(loops, 1)),
            *("    " * (len(loops) + 1) + wait for wait in waits if self.waits != "all" and self.early),
            *("    " * (len(loops) + 1) + test for test in guard),
        ]
        for wait, added in zip(waits, taken, strict=True):
            lines += ["    " * (len(loops + guard) + 1) + line for line in ([wait] * inside + added)]
        return "\n".join([*lines, f"    tl.tile_store(out, ({at}), acc)\n"])

    def _added(self, box: str, walked: str) -> list[str]:
        if not walked:
            return ["acc += got"]
        times, along = ("[None, :]", 1) if walked == "N" else ("[:, None]", 0)
        counted = f"got * tl.tile_range({box}, k){times}"
        if self.mask is not None:
            mask = f"tl.tile_mask({box}, k, stop={self.mask})"
            counted = f"tl.where({mask if along else f'tl.trans({mask})'}, {counted}, 0)"
        return [f"acc += tl.sum({counted}, {along}).to(acc.dtype)"]


@dataclass(frozen=True)
class Spoilt:
    """A line that is wrong: of those that `call` something the one with number `at`. `how`: left out, under a test, moved
    past its neighbour, or of the first place alone along the `first` or the `last` axis that it names."""

    call: str
    how: str
    at: int

    def apply(self, text: str) -> str:
        lines = text.split("\n")
        found = [k for k, line in enumerate(lines) if f"tl.{self.call}(" in line]
        k = found[self.at % len(found)]
        line, bare = lines[k], lines[k].lstrip()
        indent = line[: len(line) - len(bare)]
        named = re.search(r", \(([\w, ]+)\)", line)
        if self.how == "left out" or named is None:
            lines[k] = f"{indent}pass"
        elif self.how == "under a test":
            lines[k] = f"{indent}if {named[1].split(', ')[0]} >= 1:\n{indent}    {bare}"
        elif self.how == "moved":
            other = k + 1 if self.call == "consumer_tile_wait" else k - 1
            while lines[other + 1].startswith(f"{indent} "):
                other += 1  # what is inside a neighbour goes with it
            lines.insert(other, lines.pop(k))
        else:
            names = named[1].split(", ")
            names[0 if self.how == "first" else -1] = "0"
            lines[k] = line.replace(f"({named[1]})", f"({', '.join(names)})")
        return "\n".join(lines)


WITHOUT_WAIT, WITHOUT_NOTIFY, WITHOUT_PUSH = ("TL602",), ("TL603",), ("TL604",)
RANKS_ONLY = "TL122"
"""A program may test numbers of ranks, and none of tiles."""
SPOILT: dict[str, dict[str, tuple[str, ...]]] = {
    "consumer_tile_wait": {
        "left out": WITHOUT_WAIT,
        "under a test": (RANKS_ONLY, *WITHOUT_WAIT),
        "moved": WITHOUT_WAIT,
        "first": WITHOUT_WAIT,
        "last": WITHOUT_WAIT,
    },
    "producer_tile_notify": {
        "left out": ("TL301",),
        "under a test": (RANKS_ONLY, *WITHOUT_NOTIFY),
        "moved": WITHOUT_NOTIFY,
        "first": WITHOUT_NOTIFY,
        "last": WITHOUT_NOTIFY,
    },
    "tile_push_data": {"left out": WITHOUT_PUSH, "under a test": (RANKS_ONLY, *WITHOUT_PUSH)},
}
"""What is spoilt how, and what that is refused with, if it does harm. What is loaded and stored stays as it is: that is the
program's own affair."""


@dataclass(frozen=True)
class Made:
    """An operator. `values`: of each box, what is pushed there; `whole`: the sender takes whole rows; `told`: its notifies name
    the `tile`, or the `row` that it is of; `spoilt`: one of its lines is wrong."""

    sent: Sent
    values: tuple[str, ...]
    whole: bool
    takers: tuple[Taken, ...]
    told: str = "tile"
    spoilt: Spoilt | None = None

    @property
    def text(self) -> str:
        sent, boxes = self.sent, ["box", "other"][: len(self.values)]
        names = [f"take_{k}" for k in range(len(self.takers))]
        index = ["s"] * sent.sliced + ["m"] + ["n"] * (not self.whole)
        at, told = ", ".join(index), ", ".join(index[:-1] if self.told == "row" and not self.whole else index)
        result, domain = (f" -> {sent.mine}", "mine") if self.whole else ("", "x")
        lines = [
            f'@tilelink.program("{", ".join([sent.x] + [sent.box] * len(boxes))}{result}")',
            f"def send({', '.join(['x', *boxes, *(['mine'] * self.whole)])}):",
            f"    {at} = tl.tile_id({domain})",
            f"    value = tl.tile_load(x, ({at}))",
        ]
        for box, value in zip(boxes, self.values, strict=True):
            lines += [f"    tl.tile_push_data({box}, ({at}), {value})", f"    tl.producer_tile_notify({box}, ({told}))"]
        results = [" ".join(sent.rows if a == "M" else a for a in t.axes) for t in self.takers]
        lines += [
            *(t.text(sent, boxes, name) for t, name in zip(self.takers, names, strict=True)),
            f'@tilelink.operator("{sent.given} -> {", ".join(results)}")',
            "def op(x):",
            *(f'    {box} = tilelink.symmetric("{sent.box}", like=x)' for box in boxes),
            f"    send(x, {', '.join(boxes)})",
            f"    return {', '.join(f'{name}({chr(44).join(boxes)})' for name in names)}",
        ]
        text = "\n".join(["import tilelink", "import tilelink.language as tl", *lines, ""])
        return text if self.spoilt is None else self.spoilt.apply(text)

    def operator(self) -> Operator:
        found = run_cell(self.text)["op"]
        assert isinstance(found, Operator)
        return found
