"""Operators of two axes of ranks, drawn as text."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.fuzz.programs.drafting import Draft
from tests.fuzz.programs.judging import Call, Case
from tests.fuzz.programs.pieces import Value, Writing, move
from tests.fuzz.programs.writing import dtype_of, sizes_of, text_of


@dataclass
class Mesh:
    """`rows`, `cols`: the axis of ranks over which they are split now."""

    w: Writing
    value: Value
    rows: str | None
    cols: str | None
    pushes: bool = field(default=False)

    def step(self) -> None:
        rng = self.w.rng
        ways = [
            self._compute,
            *([self._gather] * 3 if self.rows else [self._scatter] * 2),
            *([self._columns] * 2 if self.cols else []),
        ]
        rng.choice(ways)()

    def _moved(self, signature: str, out: str, pull: bool, more: str = "") -> None:
        made = Value(self.w.name(out), "", reached=not pull)
        before = len(self.w.body)
        move(self.w, signature, self.value, made, pull, False)
        if more:
            self.w.body[before] = self.w.body[before][:-1] + more + ")"
        self.value = made

    def _gather(self) -> None:
        push = self.w.rng.random() < 0.5
        self._moved("M/R N -> M N", "t", not push, f', over="{self.rows}"' if self.w.rng.random() < 0.3 else "")
        self.rows = None

    def _columns(self) -> None:
        self._moved("M N/R -> M N", "t", self.w.rng.random() < 0.5)
        self.cols = None

    def _scatter(self) -> None:
        w, axis = self.w, self.w.rng.choice("AB" if self.cols is None else "A")
        self._moved("R/R M N -> R M/R N", "t", False, f', over="{axis}"')
        out = Value(w.name("y"), "")
        lines = [
            f"m, n = tl.tile_id({out.name})", f"acc = tl.zeros(tl.tile_shape({out.name}), tl.acc_dtype(box))",
            "for q in tl.tiles(box, axis=0):", "    tl.consumer_tile_wait(box, (q, m, n))",
            "    acc += tl.tile_load(box, (q, m, n))", *Draft(w.rng, out.name, ranks=False).store("acc"),
            f"tl.producer_tile_notify({out.name}, (m, n))",
        ]  # fmt: skip
        w.write("s M N -> M N", ["box", out.name], [li for li in lines if "c0" not in li], [self.value.name], [out])
        self.value, self.rows = out, axis

    def _compute(self) -> None:
        w, out = self.w, Value(self.w.name("y"), "")
        draft = Draft(w.rng, out.name, ranks=False)
        more, found = draft.load("a", True)
        changed, x = draft.changed([found])
        lines = [
            f"m, n = tl.tile_id({out.name})",
            *more,
            *changed,
            *draft.store(x),
            *draft.notify(out.name, "(m, n)", "m"),
        ]
        w.write(
            f"M N -> M N{draft.declared(out.name)}",
            ["a", out.name],
            lines,
            [self.value.name],
            [out],
            "computes",
            draft.constants,
        )
        self.value = out


def meshed(seed: int, rng: random.Random) -> Case:
    axes = {"A": rng.choice([1, 2, 2, 3]), "B": rng.choice([1, 2, 2])}
    w = Writing(rng)
    mesh = Mesh(w, Value("x0", "", made=False), rng.choice(["A", "A", None]), rng.choice(["B", "B", None]))
    given = _shape(mesh)
    for _ in range(rng.choice([1, 2, 2, 3])):
        mesh.step()
    if mesh.value.reached:
        mesh._moved("M N -> M N", "k", True)
    signature = f"{given} -> {_shape(mesh)}"
    text = text_of(w, signature, 1, [mesh.value], ', axes="A B"')
    calls = [
        Call({n: s for n, s in sizes_of(rng).items() if n in "MN"}, dict(w.constants), k, {})
        for k in range(rng.choice([1, 2]))
    ]
    return Case(seed, text, signature, axes, tuple(calls), dtype_of(rng), sms=rng.choice([8, 16, 32]))


def _shape(mesh: Mesh) -> str:
    return " ".join(f"{d}/{axis}" if axis else d for d, axis in (("M", mesh.rows), ("N", mesh.cols)))
