"""Operators of one kernel, written at random: a program that pushes tiles to peers, and programs that take what has come.

Most have brief plans, whose tensors come by the low-latency protocol where their rows are whole words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests.frontend.harness import run_cell
from tests.operators.problems import part
from tilelink import Operator

Parts = Sequence[torch.Tensor]
"""What each rank has."""
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "value": lambda x: x,  # a movement, which is no load and store
    "value * 2": lambda x: x * 2,
    "value - 1": lambda x: x - 1,
    "tl.where(value > 0, value, 1)": lambda x: torch.where(x > 0, x, torch.ones_like(x)),
}
GUARDS: dict[str, Callable[[int], bool]] = {"q >= 1": lambda q: q >= 1, "q % 2 == 0": lambda q: q % 2 == 0}


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

    def come(self, x: Parts, rank: int) -> torch.Tensor:
        """What rank `rank` finds: a slice for each sender, or one for all."""
        if not self.sliced:
            return torch.cat([*x])[None]
        held = part(len(x[0]), rank, len(x)) if "/R" in self.box else slice(None)
        return torch.stack([t[held] for t in x])


SENT = (
    Sent("M N", "R/R M N", "R M N", "R/R M i32"),
    Sent("M N", "R/R M N", "R M/R N", "R/R M i32"),
    Sent("M/R N", "M/R N", "M N", "M/R i32"),
)


@dataclass(frozen=True)
class Taken:
    """A sum of what has come. `axes`: those of its result; along the other one it goes by tiles from `start` to `stop`, where
    positions before `mask` count, as often as their number says. `guard`: of which senders."""

    axes: str
    start: int = 0
    stop: int | None = None
    mask: int | None = None
    guard: str | None = None

    def text(self, sent: Sent, boxes: Sequence[str], name: str) -> str:
        walked, at = "MN".replace(self.axes, ""), ", ".join(self.axes.lower())
        index = ", ".join(["q"] * sent.sliced + ["k" if a == walked else a.lower() for a in "MN"])
        loops = ["for q in tl.tiles(box, axis=0):"] if sent.sliced else []
        if walked:
            limits = f", start={self.start}" + ("" if self.stop is None else f", stop={self.stop}")
            axis = "MN".index(walked) + sent.sliced
            loops.append(f"for k in tl.tiles(box, axis={axis}{limits if self.start or self.stop else ''}):")
        if self.guard is not None and sent.sliced:
            loops.append(f"if {self.guard}:")
        result = " ".join(sent.rows if a == "M" else a for a in self.axes)
        lines = [
            f'@tilelink.program("{", ".join([sent.box] * len(boxes))} -> {result}")',
            f"def {name}({', '.join(boxes)}, out):",
            f"    {at} = tl.tile_id(out)",
            "    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(box))",
            *("    " * (depth + 1) + loop for depth, loop in enumerate(loops)),
        ]
        for box in boxes:
            added = [f"tl.consumer_tile_wait({box}, ({index}))", f"got = tl.tile_load({box}, ({index})).to(acc.dtype)"]
            lines += ["    " * (len(loops) + 1) + line for line in (*added, *self._added(box, walked))]
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

    def of(self, come: torch.Tensor, sent: Sent) -> torch.Tensor:
        """The sum, of one box or of several that were added up."""
        taken = GUARDS[self.guard] if self.guard is not None and sent.sliced else lambda _: True
        found = sum((v for q, v in enumerate(come) if taken(q)), torch.zeros_like(come[0]))
        for axis, a in enumerate("MN"):
            if a not in self.axes:
                at = torch.arange(found.shape[axis])
                last = min(len(at) if end is None else end for end in (self.stop, self.mask))
                weights = (at * ((at >= self.start) & (at < last))).to(found.dtype)
                found = (found * (weights if axis else weights[:, None])).sum(axis)
        return found


@dataclass(frozen=True)
class Made:
    """An operator. `values`: of each box, what is pushed there; `whole`: the sender takes whole rows."""

    sent: Sent
    values: tuple[str, ...]
    whole: bool
    takers: tuple[Taken, ...]

    @property
    def text(self) -> str:
        sent, boxes = self.sent, ["box", "other"][: len(self.values)]
        names = [f"take_{k}" for k in range(len(self.takers))]
        at = ", ".join(["s"] * sent.sliced + ["m"] + ["n"] * (not self.whole))
        result, domain = (f" -> {sent.mine}", "mine") if self.whole else ("", "x")
        lines = [
            f'@tilelink.program("{", ".join([sent.x] + [sent.box] * len(boxes))}{result}")',
            f"def send({', '.join(['x', *boxes, *(['mine'] * self.whole)])}):",
            f"    {at} = tl.tile_id({domain})",
            f"    value = tl.tile_load(x, ({at}))",
        ]
        for box, value in zip(boxes, self.values, strict=True):
            lines += [f"    tl.tile_push_data({box}, ({at}), {value})", f"    tl.producer_tile_notify({box}, ({at}))"]
        results = [" ".join(sent.rows if a == "M" else a for a in t.axes) for t in self.takers]
        lines += [
            *(t.text(sent, boxes, name) for t, name in zip(self.takers, names, strict=True)),
            f'@tilelink.operator("{sent.given} -> {", ".join(results)}")',
            "def made(x):",
            *(f'    {box} = tilelink.symmetric("{sent.box}", like=x)' for box in boxes),
            f"    send(x, {', '.join(boxes)})",
            f"    return {', '.join(f'{name}({chr(44).join(boxes)})' for name in names)}",
        ]
        return "\n".join(["import tilelink", "import tilelink.language as tl", *lines, ""])

    def operator(self) -> Operator:
        found = run_cell(self.text)["made"]
        assert isinstance(found, Operator)
        return found

    def expected(self, x: Parts, rank: int) -> tuple[torch.Tensor, ...]:
        wide = torch.float64 if x[0].is_floating_point() else torch.int32
        come = sum(self.sent.come([VALUES[v](t) for t in x], rank).to(wide) for v in self.values)
        assert isinstance(come, torch.Tensor)
        return tuple(t.of(come, self.sent).to(x[0].dtype) for t in self.takers)
