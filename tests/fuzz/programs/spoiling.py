"""One place of a program's text changed: a store that is dropped, guarded, shifted or doubled, a loop that is too short, a wait
too late."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass

WRITES = ("tile_store", "tile_push_data", "tile_pull_data", "rank_copy_data")
NOTIFIES = ("producer_tile_notify", "peer_tile_notify", "rank_notify")
WAITS = ("consumer_tile_wait", "peer_tile_wait", "rank_wait")
INDEXED = (*WRITES, *NOTIFIES, *WAITS, "tile_load")


@dataclass
class Site:
    """A statement of a program: where it stands."""

    body: list[ast.stmt]
    at: int

    @property
    def node(self) -> ast.stmt:
        return self.body[self.at]

    @property
    def word(self) -> str:
        """What it calls, if that is all that it does."""
        node = self.node
        return called(node.value) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""


def called(node: ast.expr) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def spoilt(text: str, rng: random.Random) -> tuple[str, str] | None:
    """What was done, and the changed text; None where it cannot be done."""
    tree = ast.parse(text)
    programs = [
        f for f in tree.body if isinstance(f, ast.FunctionDef) and any(called(d) == "program" for d in f.decorator_list)
    ]
    sites = [s for f in programs for s in _sites(f.body, skip=1)]
    name = rng.choice([*WAYS])
    way, words = WAYS[name]
    fit = [s for s in sites if s.word in words] if words else sites
    if not fit:
        return None
    site = rng.choice(fit)
    before = ast.unparse(site.node).splitlines()[0]
    if not way(site, rng):
        return None
    changed = ast.unparse(ast.fix_missing_locations(tree))
    return (f"{name}: {before}", changed + "\n") if changed != ast.unparse(ast.parse(text)) else None


def _sites(body: list[ast.stmt], skip: int = 0) -> list[Site]:
    """`skip`: statements at the beginning that stay, the tile's names. A `while` stays as it is: it might not end."""
    found: list[Site] = []
    for at, node in enumerate(body[skip:], skip):
        if isinstance(node, ast.While):
            continue
        found.append(Site(body, at))
        for inner in (getattr(node, "body", []), getattr(node, "orelse", [])):
            found += _sites(inner)
    return found


def statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def expression(text: str) -> ast.expr:
    node = statement(text)
    assert isinstance(node, ast.Expr)
    return node.value


def _call(site: Site, rng: random.Random, words: tuple[str, ...] = INDEXED) -> ast.Call | None:
    calls = [n for n in ast.walk(site.node) if isinstance(n, ast.Call) and called(n) in words]
    return rng.choice(calls) if calls else None


def _drop(site: Site, rng: random.Random) -> bool:
    del rng
    site.body[site.at] = ast.Pass()
    return True


def _twice(site: Site, rng: random.Random) -> bool:
    site.body.insert(rng.randint(site.at, len(site.body)), site.node)
    return True


def _guard(site: Site, rng: random.Random) -> bool:
    names = [n.id for n in ast.walk(site.node) if isinstance(n, ast.Name) and n.id[0] in "vxa"]
    data = (
        f"tl.max(tl.max(tl.where({rng.choice(names)} > 0, 1, 0), 1), 0) > 0"
        if names and rng.random() < 0.3
        else "tl.rank() == 0"
    )
    test = rng.choice([data, "tl.rank() == 0", "tl.rank() > 0", "False", "tl.num_ranks() > 2", "tl.rank() == tl.num_ranks() - 1",
                       "0 > 1", "not True", "'a' == 'b'", "m == 0"])  # fmt: skip
    site.body[site.at] = ast.If(expression(test), [site.node], [])
    return True


def _loop(site: Site, rng: random.Random) -> bool:
    head = rng.choice(["for _ in range(0)", "for _ in range(2)", "for _ in tl.static_range(0)", "for _ in range(5, 2)",
                       "for _ in range(tl.num_ranks() - 1)", "for _ in range(tl.num_ranks() - 3)",
                       "for _ in range(1)"])  # fmt: skip
    loop = statement(f"{head}:\n    pass")
    assert isinstance(loop, ast.For)
    loop.body = [site.node]
    site.body[site.at] = loop
    return True


def _mask(site: Site, rng: random.Random) -> bool:
    call = _call(site, rng, ("tile_store", "tile_push_data"))
    if call is None or len(call.args) < 3 or not isinstance(call.args[1], ast.Tuple):
        return False
    tile = ast.unparse(call.args[1].elts[-2] if len(call.args[1].elts) > 1 else call.args[1].elts[0])
    t, value = ast.unparse(call.args[0]), ast.unparse(call.args[2])
    mask = rng.choice([f"tl.tile_range({t}, {tile})[:, None] < {rng.randint(0, 3)}", f"tl.tile_range({t}, {tile})[:, None] > 0",
                       f"({value}) > 0", f"tl.tile_mask({t}, {tile}, stop=2)",
                       f"tl.trans(tl.tile_mask({t}, {tile}, stop=2))"])  # fmt: skip
    call.keywords = [k for k in call.keywords if k.arg != "mask"] + [ast.keyword("mask", expression(mask))]
    return True


def _index(site: Site, rng: random.Random) -> bool:
    call = _call(site, rng)
    if call is None or len(call.args) < 2:
        return False
    index = call.args[1]
    if not isinstance(index, ast.Tuple):
        call.args[1] = expression(rng.choice(["0", f"{ast.unparse(index)} + 1"]))
        return True
    at, how = rng.randrange(len(index.elts)), rng.choice(["zero", "shift", "swap", "shorter", "next"])
    name = ast.unparse(index.elts[at])
    if how == "swap" and len(index.elts) > 1:
        other = (at + 1) % len(index.elts)
        index.elts[at], index.elts[other] = index.elts[other], index.elts[at]
    elif how == "shorter" and len(index.elts) > 1:
        index.elts.pop()
    elif how == "shift":
        index.elts[at] = expression(f"tl.tile_range({ast.unparse(call.args[0])}, {name}) + 1")
    elif how == "next":
        index.elts[at] = expression(f"{name} + {rng.choice([1, -1])}")
    else:
        index.elts[at] = ast.Constant(0)
    return True


def _shrink(site: Site, rng: random.Random) -> bool:
    if not isinstance(site.node, ast.For) or not isinstance(site.node.iter, ast.Call):
        return False
    call = site.node.iter
    if called(call) == "tiles":
        word, text = rng.choice(
            [("start", "1"), ("start", "3"), ("stop", "1"), ("stop", "0"), ("part", "(0, 2)"), ("part", "(1, 2)")]
        )
        call.keywords = [k for k in call.keywords if k.arg != word] + [ast.keyword(word, expression(text))]
    else:
        call.args[-1] = ast.BinOp(call.args[-1], rng.choice([ast.Sub(), ast.Add()]), ast.Constant(1))
    return True


def _moved(site: Site, rng: random.Random, by: int) -> bool:
    to = max(0, min(site.at + by * rng.randint(1, 3), len(site.body) - 1))
    site.body.insert(to, site.body.pop(site.at))
    return True


def _earlier(site: Site, rng: random.Random) -> bool:
    return _moved(site, rng, -1)


def _later(site: Site, rng: random.Random) -> bool:
    return _moved(site, rng, 1)


def _number(site: Site, rng: random.Random) -> bool:
    numbers = [n for n in ast.walk(site.node) if isinstance(n, ast.Constant) and type(n.value) is int]
    if not numbers:
        return False
    found = rng.choice(numbers)
    assert isinstance(found.value, int)
    found.value += rng.choice([-1, 1]) if found.value else 1
    return True


WAYS: dict[str, tuple[Callable[[Site, random.Random], bool], tuple[str, ...]]] = {
    "dropped": (_drop, (*WRITES, *WRITES)),
    "signal dropped": (_drop, (*NOTIFIES, *WAITS)),
    "something dropped": (_drop, ()),
    "guarded": (_guard, WRITES),
    "something guarded": (_guard, ()),
    "in a loop": (_loop, WRITES),
    "something in a loop": (_loop, ()),
    "masked": (_mask, WRITES),
    "other index": (_index, WRITES),
    "another index": (_index, ()),
    "shorter loop": (_shrink, ()),
    "notify earlier": (_earlier, NOTIFIES),
    "wait later": (_later, WAITS),
    "twice": (_twice, ()),
    "another number": (_number, ()),
}
"""How a statement is spoilt, and what it calls; (): any."""
