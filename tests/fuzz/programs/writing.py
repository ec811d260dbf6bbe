"""Whole operators drawn as text: programs wired, placed, called."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzz.programs.drafting import indented
from tests.fuzz.programs.judging import Call, Case
from tests.fuzz.programs.pieces import PIECES, SHAPES, Value, Writing, move

ARGUMENTS = {
    **{kind: SHAPES[kind] for kind in ("split", "whole", "cols", "ids", "weight")},
    "places": "M i32 permutation", "offsets": "e+1 i32 offsets",
}  # fmt: skip
TILES = [1, 2, 2, 4, 4, 8]


def written(seed: int, rng: random.Random) -> Case:
    """A program as somebody might write it."""
    ranks = rng.choice([1, 2, 2, 2, 3, 3, 4])
    w = Writing(rng)
    kinds = [
        rng.choice(["split", "whole", "split", "cols"]),
        *rng.sample(["split", "whole", "cols"], rng.choice([0, 1, 1])),
    ]
    kinds += [t for t in ("ids", "places", "offsets", "weight") if rng.random() < 0.12]
    if {"ids", "places", "offsets", "weight"} & {*kinds} and "whole" not in kinds:
        kinds[0] = "whole"
    w.values += [Value(f"x{k}", kind, made=False, reached=True) for k, kind in enumerate(kinds)]
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        _piece(w)
    results = _results(w)
    signature = (
        f"{', '.join(ARGUMENTS[k] for k in kinds)} -> {', '.join(RESULTS[v.kind] + _word(rng, v) for v in results)}"
    )
    text = text_of(w, signature, len(kinds), results)
    return Case(seed, text, signature, {"R": ranks}, _calls(rng, w, kinds, results), dtype_of(rng),
                sms=rng.choice([8, 16, 16, 32]), late=rng.random() < 0.2)  # fmt: skip


def _word(rng: random.Random, v: Value) -> str:
    return v.word if v.word == " partial" and rng.random() < 0.8 else ""


RESULTS = {k: v for k, v in SHAPES.items() if k not in ("ids", "weight")}


def _piece(w: Writing) -> None:
    fit = {p: often for p, (often, needs) in PIECES.items() if all(w.of(*kinds) for kinds in needs)}
    w.rng.choices([*fit], [*fit.values()])[0](w)


def _results(w: Writing) -> list[Value]:
    """What nobody takes, out of memory that peers reach; now and then not all of it, or as it is."""
    made = [v for v in w.values if v.made and v.kind in RESULTS and v.name not in w.taken]
    made = made or [v for v in w.values if v.made and v.kind in RESULTS][-1:]
    if not made:
        _piece(w)
        return _results(w)
    made = made if w.rng.random() < 0.9 else made[-1:]
    out: list[Value] = []
    for v in made[:3]:
        if v.reached and w.rng.random() < 0.95:
            kept = Value(w.name("k"), v.kind)
            move(w, "s M N -> s M N" if v.kind in ("parts", "slices") else "M N -> M N", v, kept, True, False)
            v = kept
        out.append(v)
    return out


def text_of(w: Writing, signature: str, arguments: int, results: list[Value], axes: str = "") -> str:
    rng = w.rng
    constants = [f"{n}={v!r}" if rng.random() < 0.5 else n for n, v in w.constants.items()]
    head = ", ".join([*(f"x{k}" for k in range(arguments)), *(["*", *constants] if constants else [])])
    body = [*w.body, f"return {', '.join(v.name for v in results)}"]
    placed = ", ".join(f"{path!r}: {p}" for path, how in w.steps if (p := _placement(rng, w, path, how)))
    more = rng.choice(["", "", "", ", slots=1", ", slots=3", ", ll=False"])
    schedule = f"op = made.schedule({{{placed}}}{more})"
    lines = ["import tilelink", "import tilelink.language as tl", *w.programs, "", "", f'@tilelink.operator("{signature}"{axes})',
             f"def made({head}):", *indented(body), "", "", schedule, ""]  # fmt: skip
    return "\n".join(lines)


def _placement(rng: random.Random, w: Writing, path: str, how: str) -> str:
    at = [s for s, _ in w.steps].index(path)
    sizes = [f"M={rng.choice(TILES)}", f"N={rng.choice(TILES)}"]
    order = rng.choice(
        ['"row"', '"row"', '"column"', '"ring"', '"ring+1"', '("ring", "group 2")', '("ring+1", "group 2")']
    )
    kind = rng.random()
    hosts = [s for s, h in w.steps[:at] if h in ("computes", "product")]
    push = rng.choice(["", "", ", push=True", ", push=False"])
    if how == "pins" or (how == "moves" and kind < 0.35):
        push = "" if how == "pins" else push
        chunk = rng.choice(["", f", M={rng.choice(TILES)}", f", M={rng.choice([3, 5])}"])
        return f"tilelink.copy_engine(streams={rng.choice([1, 1, 2])}{push}{chunk})"
    if how == "moves":
        if hosts and kind < 0.45:
            return f'tilelink.fused("{hosts[-1]}")'
        own = rng.choice(["", "", "", ", own_kernel=True"])
        return f"tilelink.sms({rng.choice([1, 2, 4])}, {sizes[0]}, order={order}{push}{own})"
    if how == "product" and kind < 0.4:
        size = rng.choice(["", 'M="M/R"', f"M={rng.choice([1, 2, 3, 4])}"])
        return f'tilelink.library("torch.mm"{size and ", "}{size})'
    if hosts and kind < 0.12:
        deferred = rng.choice(["", ", deferred=True", ", deferred=False", f", N={rng.choice([1, 2])}"])
        return f'tilelink.fused("{hosts[-1]}"{deferred})'
    more = rng.choice(["", "", "", ", own_kernel=True", f', joins="{hosts[-1]}"' if hosts else ""])
    count = rng.choice(["", "", "2, "]) if "joins" not in more else ""
    return f"tilelink.sms({count}{', '.join(sizes)}, order={order}{more})"


def dtype_of(rng: random.Random) -> str:
    return rng.choice(["f32", "f32", "f32", "f32", "i32", "bf16", "f16"])


def _calls(rng: random.Random, w: Writing, kinds: list[str], results: list[Value]) -> tuple[Call, ...]:
    """Several, with other data, now and then of other sizes, with other constants, and with results fed back."""
    calls: list[Call] = []
    sizes = sizes_of(rng)
    constants: dict[str, Any] = dict(w.constants)
    shared = frozenset(k for k, kind in enumerate(kinds) if kind in ("split", "whole") and rng.random() < 0.12)
    for k in range(rng.choice([1, 2, 2, 3])):
        fed: dict[int, int] = {}
        if k and rng.random() < 0.3:
            sizes = sizes_of(rng)
        elif k and rng.random() < 0.4:
            fed = {
                a: r
                for a, kind in enumerate(kinds)
                for r, v in enumerate(results)
                if v.kind == kind and rng.random() < 0.5
            }
        if k and rng.random() < 0.4:
            constants = {n: _other(rng, v) for n, v in constants.items()}
        used = {n: s for n, s in sizes.items() if n != "e" or "offsets" in kinds}
        calls.append(Call(used, constants, k, fed, shared - fed.keys()))
    return tuple(calls)


def sizes_of(rng: random.Random) -> dict[str, int]:
    return {
        "M": rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 8, 11]),
        "N": rng.choice([1, 2, 3, 4, 4, 6, 8]),
        "e": rng.choice([1, 2, 3]),
    }


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return rng.random() < 0.5
    if isinstance(value, str):
        return rng.choice("ab")
    return value + rng.choice([0, 0, 1, -1]) if isinstance(value, int) else rng.choice([0.5, 2.0])
