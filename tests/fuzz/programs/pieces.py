"""Tile programs drawn as text: each takes tensors of some kinds and gives others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.fuzz.programs.drafting import Draft, Lines, indented

SHAPES = {
    "split": "M/R N", "whole": "M N", "cols": "M N/R", "parts": "R M/R N", "slices": "R M N", "ids": "M i32 <M",
    "weight": "N N",
}  # fmt: skip
"""Kinds of tensors, as the operator has them. `parts`: what everyone has for this rank; `slices`: all of everyone's."""


@dataclass(frozen=True)
class Value:
    """A tensor in an operator's body. `reached`: peers write to it, or an argument: it cannot be a result."""

    name: str
    kind: str
    made: bool = True
    reached: bool = False
    word: str = ""
    """` once` or ` partial`, as its maker's signature says."""


@dataclass
class Writing:
    """An operator on its way. `steps`: path and what kind of program it is: `moves`, `computes` or `pins`."""

    rng: random.Random
    programs: Lines = field(default_factory=Lines)
    body: Lines = field(default_factory=Lines)
    values: list[Value] = field(default_factory=list[Value])
    steps: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    constants: dict[str, object] = field(default_factory=dict[str, object])
    taken: set[str] = field(default_factory=set[str])

    def of(self, *kinds: str) -> list[Value]:
        return [v for v in self.values if v.kind in kinds]

    def one(self, *kinds: str) -> Value:
        """More often what was made last."""
        found = self.of(*kinds)
        picked = found[-1] if self.rng.random() < 0.6 else self.rng.choice(found)
        self.taken.add(picked.name)
        return picked

    def write(
        self, signature: str, params: Sequence[str], lines: Lines, given: Sequence[str], made: Sequence[Value],
        how: str = "computes", constants: dict[str, object] | None = None, more: str = "",
    ) -> None:  # fmt: skip
        """A program, and the call of it."""
        name = f"f{len(self.steps)}"
        named = {f"{name}_{n}": (n, v) for n, v in (constants or {}).items()}
        said = ", ".join(f"{n}: {type(v).__name__}" for n, v in (constants or {}).items())
        self.programs += [
            "", "", f'@tilelink.program("{signature}")',
            f"def {name}({', '.join(params)}{', *, ' if said else ''}{said}):", *indented(lines),
        ]  # fmt: skip
        passed = ", ".join(self._passed(key, n, v) for key, (n, v) in named.items())
        call = f"{name}({', '.join([*given, *([passed] if passed else [])])}{more})"
        result = ", ".join(v.name for v in made)
        self.body.append(f"{result} = {call}" if result else call)
        self.values += made
        self.steps.append((name, how))

    def _passed(self, key: str, name: str, value: object) -> str:
        """Written out, or handed on from the operator's own constants."""
        if self.rng.random() < 0.5:
            return f"{name}={value!r}"
        self.constants[key] = value
        return f"{name}={key}"

    def name(self, word: str) -> str:
        return f"{word}{len(self.steps)}"

    def symmetric(self, kind: str, like: Value, owner: str = "") -> Value:
        made = Value(self.name("box"), kind, reached=True)
        more = f', owner="{owner}"' if owner else ""
        self.body.append(f'{made.name} = tilelink.symmetric("{SHAPES[kind]}", like={like.name}{more})')
        self.values.append(made)
        return made


# ---------------------------------------------------------------------------------------------------------------- computing
def pointwise(w: Writing) -> None:
    """A tile of one tensor, or two, of one or two others."""
    rng = w.rng
    kind = rng.choice([v.kind for v in w.of("split", "whole", "cols")])
    mixed = kind == "split" and rng.random() < 0.4 and bool(w.of("whole"))
    given = [w.one(kind)]
    if mixed:
        given.append(w.one("whole"))
    elif rng.random() < 0.4:
        given.append(w.one(kind))
    shape = {"whole": "M N", "split": "M/R N" if mixed or rng.random() < 0.3 else "M N", "cols": "M N"}[kind]
    outs = [Value(w.name("y"), kind)]
    if rng.random() < 0.25:
        outs.append(Value(w.name("z"), kind))
    params = [f"a{k}" for k in range(len(given))]
    draft = Draft(rng, outs[0].name)
    lines = [f"m, n = tl.tile_id({outs[0].name})"]
    values: list[str] = []
    for p, v in zip(params, given, strict=True):
        whole = v.kind == "whole" or shape == "M N"
        more, found = draft.load(p, v.made or rng.random() < 0.6, whole=whole)
        lines += more
        values.append(found)
    more, x = draft.changed(values)
    lines += more
    for out in outs:
        draft.out = out.name
        lines += draft.store(x)
        lines += draft.notify(out.name, "(m, n)", "m") if rng.random() < 0.95 else []
    inputs = [shape if v.kind == kind else "M N" for v in given]
    outs = [replace(o, word=draft.declared(o.name)) for o in outs]
    signature = f"{', '.join(inputs)} -> {', '.join(shape + o.word for o in outs)}"
    w.write(
        signature, [*params, *(o.name for o in outs)], lines, [v.name for v in given], outs, "computes", draft.constants
    )


def walked(w: Writing) -> None:
    """Rows of a tensor, whose columns the program walks by itself."""
    rng, given = w.rng, w.one("split", "whole", "cols")
    out = Value(w.name("y"), given.kind)
    draft = Draft(rng, out.name)
    inner = rng.random() < 0.5
    wait = draft.wait("a", "(m, n)" if inner else "m", "m")
    one = [f"v = tl.tile_load(a, (m, n)) + {rng.randint(0, 2)}", f"tl.tile_store({out.name}, (m, n), v)"]
    notify = [f"tl.producer_tile_notify({out.name}, (m, n))"] if rng.random() < 0.5 else []
    each = [*(wait if inner else []), *one, *notify]
    half = draft.constant(rng.randint(1, 4))
    loops = rng.choice([
        [("", each)], [("", each)], [(f", stop={half}", each), (f", start={half}", each)],
        [(", part=(0, 2)", each), (", part=(1, 2)", each)], [(", start=0", each)], [(f", stop=tl.size({out.name}, 1)", each)],
        [(", start=1", each)], [(f", stop={half}", each)],
    ])  # fmt: skip
    lines = [f"m = tl.tile_id({'mine'})", *([] if inner else wait)]
    if rng.random() < 0.25:
        span = rng.choice(["range", "tl.static_range"])
        lines += [f"for j in {span}(tl.size({out.name}, 1)):", f"    v = tl.tile_load(a, (m, j)) + {rng.randint(0, 2)}",
                  f"    tl.tile_store({out.name}, (m, j), v)"]  # fmt: skip
        lines[1:1] = wait if inner else []
        notify = []
        lines = [line.replace("(m, n)", "m") for line in lines]
    else:
        for limits, body in loops:
            lines += [f"for n in tl.tiles({out.name}, axis=1{limits}):", *indented(body)]
    lines += [] if notify else [f"tl.producer_tile_notify({out.name}, m)"]
    mine = Value(w.name("mine"), "row")
    w.write("M N -> M N, M i32", ["a", out.name, "mine"], lines, [given.name], [out, mine], "computes", draft.constants)


def product(w: Writing) -> None:
    """A matmul, as it is usually written."""
    rng, x, y = w.rng, w.one("split", "whole"), w.one("weight")
    out = Value(w.name("y"), x.kind)
    draft = Draft(rng, out.name, ("m", "n"))
    panel = rng.random() < 0.6
    lines = [f"m, n = tl.tile_id({out.name})", *(draft.wait("a", "m") if panel else [])]
    lines += [f"acc = tl.zeros(tl.tile_shape({out.name}), tl.acc_dtype(a))", "for k in tl.tiles(b, axis=0):"]
    lines += indented([
        *([] if panel else ["tl.consumer_tile_wait(a, (m, k))"]),
        *(draft.wait("b", "(k, n)", "k") if y.made or rng.random() < 0.7 else []),
        "acc = tl.dot(tl.tile_load(a, (m, k)), tl.tile_load(b, (k, n)), acc, out_dtype=acc.dtype)",
    ])  # fmt: skip
    lines += [*draft.store("acc"), *draft.notify(out.name, "(m, n)", "m")]
    how = "product" if len(draft.constants) == 0 and rng.random() < 0.5 else "computes"
    out = replace(out, word=draft.declared(out.name))
    w.write(f"M K, K N -> M N{out.word}", ["a", "b", out.name], lines, [x.name, y.name], [out], how, draft.constants)


# ------------------------------------------------------------------------------------------------------------------ moving
MOVES: dict[str, tuple[str, str, bool]] = {
    "split": ("M/R {} -> M {}", "whole", True),
    "cols": ("M N/R -> M N", "whole", True),
    "whole": ("R/R M {} -> R M/R {}", "parts", False),
    "slice": ("R/R M {} -> R M {}", "slices", False),
    "to heads": ("M/R N -> M N/R", "cols", False),
    "to rows": ("M N/R -> M/R N", "split", False),
}
"""Kind, or what is done: signature, what it gives, and whether it is usually pulled."""


def copy_program(w: Writing) -> None:
    rng = w.rng
    ways = [k for k, source in (("split", "split"), ("split", "split"), ("cols", "cols"), ("whole", "whole"), ("slice", "whole"),
                                ("to heads", "split"), ("to rows", "cols")) if w.of(source)]  # fmt: skip
    way = rng.choice(ways)
    signature, gives, pull = MOVES[way]
    given = w.one({"slice": "whole", "to heads": "split", "to rows": "cols"}.get(way, way))
    rest = rng.choice(["N", "N", "..."])
    move(w, signature.format(rest, rest), given, Value(w.name("t"), gives, reached=not pull), pull, rest == "...")


def move(w: Writing, signature: str, given: Value, out: Value, pull: bool, short: bool) -> None:
    rng, domain = w.rng, out.name if pull else "src"
    axes = len(signature.split("->")[pull].split()) - short
    names = rng.choice([["tile"], list("smn")[-axes:] if axes > 1 else ["m"]])
    index = "tile" if names == ["tile"] else f"({', '.join(names)})" if axes > 1 else "m"
    pinned = rng.random() < 0.12
    wait, notify = ("rank_wait", "rank_notify") if pinned else ("consumer_tile_wait", "producer_tile_notify")
    if pinned:
        data = [f"tl.rank_copy_data({out.name}, {index}, source=src)"]
    elif pull:
        data = [f"tl.tile_pull_data({out.name}, {index}, source=src)"]
    elif rng.random() < 0.5:
        data = [f"v = tl.tile_load(src, {index})", f"tl.tile_push_data({out.name}, {index}, v)"]
    else:
        data = [f"tl.tile_push_data({out.name}, {index}, tl.tile_load(src, {index}))"]
    lines = [
        f"{', '.join(names)} = tl.tile_id({domain})", f"tl.{wait}(src, {index})", *data,
        f"tl.{notify}({out.name}, {index})",
    ]  # fmt: skip
    w.write(signature, ["src", out.name], lines, [given.name], [out], "pins" if pinned else "moves")


def kept(w: Writing) -> None:
    """Out of memory that peers reach."""
    given = w.one("whole", "split", "cols", "parts", "slices")
    rank = given.kind in ("parts", "slices")
    out = Value(w.name("k"), given.kind)
    move(w, "s M N -> s M N" if rank else "M N -> M N", given, out, True, False)


# ---------------------------------------------------------------------------------------------- peers, and what they send
def pushed(w: Writing) -> None:
    """Computes a tile and pushes it to a box that peers have."""
    rng, given = w.rng, w.one("whole", "whole", "split")
    if given.kind == "split":
        kind, shapes, names = "whole", "M/R N, M N", ("m", "n")
    else:
        kind = rng.choice(["parts", "slices"])
        shapes, names = f"R/R M N, {SHAPES[kind]}", ("s", "m", "n")
    index = f"({', '.join(names)})"
    box = w.symmetric(kind, given)
    draft = Draft(rng, "box")
    lines = [
        f"{', '.join(names)} = tl.tile_id(x)",
        *(draft.wait("x", index) if given.made or rng.random() < 0.5 else []),
    ]
    lines += [f"v = tl.tile_load(x, {index})"]
    draft.tile = ("m", "n")
    more, x = draft.changed(["v"])
    store = [line.replace("tl.tile_begin(box, ", "tl.tile_begin(x, ").replace("tl.tile_end(box, ", "tl.tile_end(x, ")
             .replace("tl.tile_range(box, ", "tl.tile_range(x, ").replace("tl.size(box, 0)", "tl.size(x, 1)")
             for line in (*more, *draft.store(x, to="tile_push_data", index=index))]  # fmt: skip
    lines += [*store, f"tl.producer_tile_notify(box, {index})"]
    if kind == "slices" and rng.random() < 0.4:
        out = Value(w.name("y"), "whole")
        acc = draft.fresh("acc")
        lines += [f"{acc} = tl.zeros(tl.tile_shape(x), tl.acc_dtype(x))", *_sum(draft, "box", acc)]
        lines += [f"tl.tile_store({out.name}, (m, n), {acc})", f"tl.producer_tile_notify({out.name}, (m, n))"]
        w.write(
            f"{shapes} -> M N",
            ["x", "box", out.name],
            lines,
            [given.name, box.name],
            [out],
            "computes",
            draft.constants,
        )
        return
    if word := draft.declared("box"):
        shapes = shapes.replace(", ", " -> ") + word
    w.write(shapes, ["x", "box"], lines, [given.name, box.name], [], "computes", draft.constants)


def _sum(draft: Draft, box: str, acc: str) -> Lines:
    """Over what everyone has sent."""
    rng = draft.rng
    loop = rng.choice([f"for q in tl.tiles({box}, axis=0):"] * 3 + [f"for q in tl.tiles({box}, axis=0, start=1):"])
    inner = [*draft.wait(box, "(q, m, n)", "(q, m)"), f"{acc} += tl.tile_load({box}, (q, m, n)).to({acc}.dtype)"]
    if rng.random() < 0.3:
        test = rng.choice(["q >= 1", "q % 2 == 0", "q != tl.rank()", "q < 2"])
        weigh = [f"if {test}:", *indented(inner if rng.random() < 0.6 else inner[-1:])]
        inner = weigh if len(weigh) > 2 else [inner[0], *weigh]
    return [loop, *indented(inner)]


def summed(w: Writing) -> None:
    """The sum over `s` of parts or slices."""
    rng, given = w.rng, w.one("parts", "slices")
    out = Value(w.name("y"), "split" if given.kind == "parts" else "whole")
    draft = Draft(rng, out.name)
    lines = [f"m, n = tl.tile_id({out.name})", f"acc = tl.zeros(tl.tile_shape({out.name}), tl.acc_dtype(box))"]
    lines += _sum(draft, "box", "acc")
    lines += [*draft.store("acc"), *draft.notify(out.name, "(m, n)", "m")]
    out = replace(out, word=draft.declared(out.name))
    w.write(f"{rng.choice(['R', 's', 's', 's'])} M N -> M N{out.word}", ["box", out.name], lines, [given.name], [out],
            "computes", draft.constants)  # fmt: skip


def neighbour(w: Writing) -> None:
    """Takes the slices of neighbours in the ring: `s + 1`, `s - 1`."""
    rng, given = w.rng, w.one("slices")
    out, by = Value(w.name("y"), "whole"), rng.choice(["s + 1", "s - 1", "s"])
    mine = Value(w.name("mine"), "row")
    lines = [
        "s, m, n = tl.tile_id(mine)", *Draft(rng, "mine").wait("box", f"({by}, m, n)", f"({by}, m)"),
        f"v = tl.tile_load(box, ({by}, m, n))", f"tl.tile_store({out.name}, (m, n), v * 2)",
        f"tl.producer_tile_notify({out.name}, (m, n))",
    ]  # fmt: skip
    w.write("R M N -> M N, R/R M N i32", ["box", out.name, "mine"], lines, [given.name], [out, mine])


def ringed(w: Writing) -> None:
    """Partial sums once around the ring, or rows handed on."""
    rng = w.rng
    if w.of("whole") and (not w.of("split") or rng.random() < 0.5):
        given, out = w.one("whole"), Value(w.name("y"), "split")
        box = Value(w.name("box"), "ring", reached=True)
        w.body.append(f'{box.name} = tilelink.symmetric("R/R M N", like={given.name})')
        lines = [
            "s, m, n = tl.tile_id(box)", f"owner = tl.rank_of({out.name}, m)", "tl.consumer_tile_wait(x, (m, n))",
            "acc = tl.tile_load(x, (m, n)).to(tl.acc_dtype(x))", "if owner != s + 1:",
            "    tl.peer_tile_wait(box, (s, m, n), s + 1)", "    acc += tl.tile_load(box, (s, m, n))",
            "if owner == s:", f"    tl.tile_store({out.name}, (m, n), acc)",
            f"    tl.producer_tile_notify({out.name}, (m, n))", "else:", "    tl.tile_push_data(box, (s - 1, m, n), acc)",
            "    tl.peer_tile_notify(box, (s - 1, m, n), s - 1)",
        ]  # fmt: skip
        w.write("M N, R/R M N -> M/R N", ["x", "box", out.name], lines, [given.name, box.name], [out])
        return
    given, out = w.one("split"), Value(w.name("t"), "around", reached=True)
    lines = [
        f"s, m, n = tl.tile_id({out.name})", "owner = tl.rank_of(x, (m, n))", "if owner == s:",
        "    tl.consumer_tile_wait(x, (m, n))", f"    tl.tile_store({out.name}, (s, m, n), tl.tile_load(x, (m, n)))",
        f"    tl.producer_tile_notify({out.name}, (s, m, n))", "else:", f"    tl.peer_tile_wait({out.name}, (s, m, n), s + 1)",
        "if owner != s - 1:", f"    tl.tile_push_data({out.name}, (s - 1, m, n), tl.tile_load({out.name}, (s, m, n)))",
        f"    tl.peer_tile_notify({out.name}, (s - 1, m, n), s - 1)",
    ]  # fmt: skip
    w.write("M/R N -> R/R M N", ["x", out.name], lines, [given.name], [out])
    w.values.append(Value(out.name, "whole", reached=True))


def elsewhere(w: Writing) -> None:
    """Rows to the ranks that an owner map names, and something of them back."""
    rng, given = w.rng, w.one("split")
    rows = rng.choice([1, 2, 4])
    owner = rng.choice([f"m, n -> m // {rows} % R", f"m, n -> (m // {rows} + 1) % R", "m, n -> 0"])
    there = w.symmetric("whole", given, owner)
    w.values.remove(there)
    w.write("M/R N, M N", ["src", "dst"], [
        "m, n = tl.tile_id(src)", "tl.consumer_tile_wait(src, (m, n))",
        "tl.tile_push_data(dst, (m, n), tl.tile_load(src, (m, n)))", "tl.producer_tile_notify(dst, (m, n))",
    ], [given.name, there.name], [], "moves")  # fmt: skip
    back = w.symmetric("split", given)
    w.write("M N, M/R N", ["there", "back"], [
        "m, n = tl.tile_id(there)", "tl.consumer_tile_wait(there, (m, n))",
        f"tl.tile_push_data(back, (m, n), {rng.choice(['2 * ', ''])}tl.tile_load(there, (m, n)))",
        "tl.producer_tile_notify(back, (m, n))",
    ], [there.name, back.name], [])  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ tables
def looked_up(w: Writing) -> None:
    """Rows that a table names; -1 is no row."""
    rng, given, ids = w.rng, w.one("whole"), w.one("ids")
    out = Value(w.name("y"), "whole")
    draft = Draft(rng, out.name)
    lines = [f"m, n = tl.tile_id({out.name})", "at = tl.tile_load(ids, m, other=-1)"]
    lines += draft.wait("x", "(at, n)") if given.made else []
    lines += [f"v = tl.tile_load(x, (at, n){rng.choice(['', ', other=0', ', other=7'])})"]
    more, x = draft.changed(["v"])
    lines += [*more, *draft.store(x), *draft.notify(out.name, "(m, n)", "m")]
    out = replace(out, word=draft.declared(out.name))
    w.write(f"M N, M i32 <M -> M N{out.word}", ["x", "ids", out.name], lines, [given.name, ids.name], [out], "computes",
            draft.constants)  # fmt: skip


def put(w: Writing) -> None:
    """Rows stored, or pushed to everybody's slice, where a table says."""
    rng, given, ids = w.rng, w.one("whole"), w.one("places")
    draft = Draft(rng, "x")
    lines = ["m, n = tl.tile_id(x)", *(draft.wait("x", "(m, n)", "m") if given.made else [])]
    lines += ["at = tl.tile_load(ids, m, other=-1)", "v = tl.tile_load(x, (m, n))"]
    out = Value(w.name("y"), "whole", word=rng.choice([" once", " once", " once", " partial", ""]))
    lines += [f"tl.tile_store({out.name}, (at, n), v * 2)", f"tl.producer_tile_notify({out.name})"]
    w.write(f"M N, M i32 permutation -> M N{out.word}", ["x", "ids", out.name], lines, [given.name, ids.name], [out])


def counted(w: Writing) -> None:
    """Sums as far as a number says that is loaded."""
    rng, given, ids = w.rng, w.one("whole"), w.one("ids")
    out = Value(w.name("y"), "whole")
    draft = Draft(rng, out.name)
    axis = rng.choice([0, 1])
    at, over = ("(k, n)", "0)[None, :]") if axis == 0 else ("(m, k)", "1)[:, None]")
    lines = [f"m, n = tl.tile_id({out.name})", "c = tl.tile_load(ids, 0)"]
    lines += [
        f"acc = tl.zeros(tl.tile_shape({out.name}), tl.acc_dtype(x))",
        *([] if not given.made else ["tl.consumer_tile_wait(x)"]),
    ]
    lines += [f"for k in tl.tiles(x, axis={axis}, {rng.choice(['start', 'stop', 'stop'])}=c):"]
    lines += [f"    acc += tl.sum(tl.tile_load(x, {at}).to(acc.dtype), {over}"]
    if rng.random() < 0.3:
        lines += ["i = 0", "while i < c:", "    acc += 1", "    i += 1"]
    if rng.random() < 0.3:
        lines += ["for _ in range(c):", "    acc += 2"]
    lines += [*draft.store("acc"), *draft.notify(out.name, "(m, n)", "m")]
    out = replace(out, word=draft.declared(out.name))
    w.write(f"M N, M i32 <M -> M N{out.word}", ["x", "ids", out.name], lines, [given.name, ids.name], [out], "computes",
            draft.constants)  # fmt: skip


def grouped(w: Writing) -> None:
    """Rows by segments that a table of offsets makes."""
    rng, given, start = w.rng, w.one("whole"), w.one("offsets")
    out = Value(w.name("y"), "whole")
    lines = [f"m, n = tl.tile_id({out.name})", f"e = tl.segment({out.name}, m)"]
    lines += ["tl.consumer_tile_wait(x, (m, n))"] if given.made else []
    lines += [f"v = tl.tile_load(x, (m, n)) + {rng.choice(['e', '1', 'tl.tile_load(start, e)'])}"]
    lines += [f"tl.tile_store({out.name}, (m, n), v)", f"tl.producer_tile_notify({out.name}, (m, n))"]
    w.write("M N, e+1 i32 offsets -> M/start N", ["x", "start", out.name], lines, [given.name, start.name], [out])


PIECES: dict[Callable[[Writing], None], tuple[float, tuple[tuple[str, ...], ...]]] = {
    pointwise: (5, (("split", "whole", "cols"),)),
    walked: (1, (("split", "whole", "cols"),)),
    product: (3, (("split", "whole"), ("weight",))),
    copy_program: (5, (("split", "whole", "cols"),)),
    kept: (1, (("parts", "slices", "whole", "split"),)),
    pushed: (2, (("whole", "split"),)),
    summed: (5, (("parts", "slices"),)),
    neighbour: (2, (("slices",),)),
    ringed: (1, (("whole", "split"),)),
    elsewhere: (0.7, (("split",),)),
    looked_up: (1.5, (("whole",), ("ids",))),
    put: (1.5, (("whole",), ("places",))),
    counted: (1.5, (("whole",), ("ids",))),
    grouped: (1.5, (("whole",), ("offsets",))),
}
"""How often each is drawn, and what it needs: one of each."""
