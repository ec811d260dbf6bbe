"""Every single change of a program's stores, pushes, pulls, loops, masks and indices."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.mutants.programs.sites import (
    Dim,
    Entry,
    Reading,
    keyword,
    swapped,
    target,
    with_keyword,
    word,
    writes_in,
)

NEVER = ("SWITCHED_ON", "FORM == 'this'", "tl.num_ranks() > 64")
"""Tests of constants that are false."""
EMPTY = ("range(0)", "range(5, 2)", "range(ROUNDS)", "range(tl.num_ranks() - 3)", "tl.static_range(0)")
"""Loops that go round never, on three ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """`kind`: what is done, `how` in the program's words, to `what`. `params`: whose elements it is about. `data`: what is
    written is then decided by data, so that the proof may trust in it."""

    kind: str
    how: str
    what: str
    params: tuple[str, ...]
    node: ast.FunctionDef
    data: bool = False


def changes(reading: Reading) -> Iterator[Change]:
    """All of one step's program, in a fixed order."""
    for statement in reading.statements():
        if isinstance(statement, ast.Expr) and writes_in(statement):
            yield from _of_write(_Write(reading, statement))
        elif isinstance(statement, ast.For) and writes_in(statement):
            yield from _of_loop(reading, statement)
        elif isinstance(statement, ast.If) and writes_in(statement):
            yield from _of_test(reading, statement)
        elif not isinstance(statement, ast.For | ast.If | ast.While):
            yield from _of_loads(reading, statement)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _block(head: str, body: list[ast.stmt]) -> ast.stmt:
    """`if test:` or `for x in y:`, with its statements."""
    made = ast.parse(f"{head}:\n    pass").body[0]
    assert isinstance(made, ast.If | ast.For | ast.While)
    made.body = body
    return made


# ---------------------------------------------------------------------------------------------------------- one write
class _Write:
    def __init__(self, reading: Reading, statement: ast.Expr) -> None:
        self.reading = reading
        self.statement = statement
        (self.call,) = writes_in(statement)
        self.param = target(self.call)
        mask = keyword(self.call, "mask")
        self.where = any(reading.is_data(n) for n in (self.call.args[1], *([] if mask is None else [mask])))
        """Whether data says which elements one execution writes."""
        self.whether = self.where or any(reading.is_data(loop.iter) for loop in reading.loops_around(statement))
        """Whether it says anything of them."""

    def change(self, kind: str, how: str, by: list[ast.stmt], *, data: bool = False) -> Change:
        said = ast.unparse(self.statement)
        return Change(kind, how, said, (self.param,), swapped(self.reading.node, self.statement, by), data)

    def indexed(self, entries: list[ast.expr]) -> ast.Expr:
        """The statement at another place."""
        index = ast.Tuple(entries, ast.Load()) if len(entries) > 1 else entries[0]
        args = [self.call.args[0], index, *self.call.args[2:]]
        return ast.Expr(ast.Call(self.call.func, args, self.call.keywords))

    def masked(self, mask: ast.expr | None) -> ast.Expr:
        return ast.Expr(with_keyword(self.call, "mask", mask))


def _of_write(write: _Write) -> Iterator[Change]:
    here: list[ast.stmt] = [write.statement]
    yield write.change("drop", "dropped", [])
    for test in ("tl.rank() == 0", *NEVER, "tl.num_ranks() > 0"):
        yield write.change("guard", f"if {test}", [_block(f"if {test}", here)])
    for test in _of_tiles(write):
        yield write.change("guard", f"if {test}", [_block(f"if {test}", here)], data=write.where)
    if word(write.call) in ("tile_store", "tile_push_data"):
        value = ast.unparse(write.call.args[2])
        test = f"tl.max(tl.ravel({value})) > 0" if write.reading.dims(write.call) else f"{value} > 0"
        yield write.change("guard", f"if {test}", [_block(f"if {test}", here)], data=True)
    for loop in (*(f"for again in {empty}" for empty in EMPTY), *_empty_walks(write)):
        yield write.change("loop", loop, [_block(loop, here)])
    yield write.change("loop", "for again in range(2)", [_block("for again in range(2)", here)], data=write.whether)
    counted = [*ast.parse("again = 0").body, _block("while again < 0", [*here, *ast.parse("again += 1").body])]
    yield write.change("loop", "while again < 0", counted, data=True)  # nothing is known of what a loop changes
    yield write.change("twice", "in the same place", here * 2, data=write.whether)
    yield from _elsewhere(write)
    if word(write.call) in ("tile_store", "tile_push_data"):
        yield from _masks(write)


def _of_tiles(write: _Write) -> Iterator[str]:
    """Tests of whose the tile is that the program runs for."""
    for name in write.reading.domain[:3]:
        if len(write.reading.tiles[name]) > 1:
            continue
        param, axis = write.reading.tiles[name][0]
        if write.reading.named(name).unit:
            yield f"{name} == 0"
        else:
            yield f"tl.tile_begin({param}, {name}) == 0"
            yield f"tl.tile_end({param}, {name}) < tl.size({param}, {axis})"


def _empty_walks(write: _Write) -> Iterator[str]:
    axes = write.reading.param(write.param).shape.axes
    if axes:
        yield f"for again in tl.tiles({write.param}, axis={len(axes) - 1}, start=3, stop=3)"


def _elsewhere(write: _Write) -> Iterator[Change]:
    """At another place, at both, and always at the first one."""
    entries = write.reading.entries(write.call)
    nodes = [e.node for e in entries]
    for k, entry in enumerate(entries):
        data = write.whether or write.reading.is_data(entry.node)
        moved = write.indexed([*nodes[:k], _next(write.param, entry), *nodes[k + 1 :]])
        said = f"entry {k}: {ast.unparse(_next(write.param, entry))}"
        yield write.change("shift", said, [moved], data=data)
        yield write.change("twice", said, [write.statement, moved], data=data)
        if entry.sort == "position":
            first = write.indexed([*nodes[:k], ast.Constant(0), *nodes[k + 1 :]])
            yield write.change("fix", f"entry {k}: 0", [first], data=data)
    for k in range(len(entries)):
        for j in range(k):
            if entries[j].sort == entries[k].sort == "position":
                # As numbers: what names an axis belongs on that axis.
                turned = [*nodes]
                turned[j], turned[k] = (ast.BinOp(nodes[i], ast.Add(), ast.Constant(0)) for i in (k, j))
                yield write.change("swap", f"entries {j} and {k}", [write.indexed(turned)], data=write.whether)


def _next(param: str, entry: Entry) -> ast.expr:
    if entry.sort == "tile":
        return _expression(f"tl.tile_range({param}, {ast.unparse(entry.node)}) + 1")
    return ast.BinOp(entry.node, ast.Add(), ast.Constant(1))


def _masks(write: _Write) -> Iterator[Change]:
    old, dims = keyword(write.call, "mask"), write.reading.dims(write.call)
    if old is not None:
        yield write.change("mask", "none", [write.masked(None)], data=write.reading.is_data(old))
    masks = [(mask, False) for k, dim in enumerate(dims) for mask in _of_dim(write.param, dim, k, len(dims))]
    for mask, data in (*masks, (f"{ast.unparse(write.call.args[2])} > 0", True)):
        both = _expression(mask) if old is None else ast.BinOp(old, ast.BitAnd(), _expression(mask))
        yield write.change("mask", mask, [write.masked(both)], data=data)


def _of_dim(param: str, dim: Dim, at: int, dims: int) -> Iterator[str]:
    """Masks along one dimension of a block: of the first few positions, of all but the last, of all, of none."""
    if dim.positions is not None:
        lanes = "" if dims == 1 else f"[{', '.join(':' if k == at else 'None' for k in range(dims))}]"
        for limit in ("FIRST_FEW", f"tl.size({param}, {dim.axis}) - 1", f"tl.size({param}, {dim.axis})", "0"):
            yield f"({dim.positions}{lanes} < {limit})"


# ------------------------------------------------------------------------------------------- loops and tests of writes
def _changing(reading: Reading, statement: ast.stmt, what: str) -> Callable[..., Change]:
    """Makes changes of a loop or a test: of all of it, or of one node."""
    params = tuple(dict.fromkeys(target(call) for call in writes_in(statement)))

    def change(
        kind: str, how: str, by: ast.AST | list[ast.stmt], old: ast.AST = statement, *, data: bool = False
    ) -> Change:
        return Change(kind, how, what, params, swapped(reading.node, old, by), data)

    return change


def _of_loop(reading: Reading, loop: ast.For) -> Iterator[Change]:
    change = _changing(reading, loop, f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}")
    yield change("drop", "dropped", [])
    for test in ("tl.rank() == 0", *NEVER):
        yield change("guard", f"if {test}", [_block(f"if {test}", [loop])])
    assert isinstance(loop.iter, ast.Call)
    for shorter in _shorter(reading, loop.iter):
        yield change("shrink", ast.unparse(shorter), shorter, loop.iter, data=reading.is_data(shorter))


def _shorter(reading: Reading, walk: ast.Call) -> Iterator[ast.Call]:
    if word(walk) != "tiles":
        last = walk.args[1] if len(walk.args) > 1 else walk.args[0]
        nothing: ast.expr = ast.Constant(0)
        first = walk.args[0] if len(walk.args) > 1 else nothing
        less = ast.BinOp(last, ast.Sub(), ast.Constant(1))
        shorter: list[list[ast.expr]] = [[first, less], [ast.BinOp(first, ast.Add(), ast.Constant(1)), last], [nothing]]
        for args in shorter:
            yield ast.Call(walk.func, args, walk.keywords)
        return
    start, stop, part = (keyword(walk, name) for name in ("start", "stop", "part"))
    size = _expression(f"tl.size({target(walk)}, {reading.axis(walk)})")
    yield with_keyword(walk, "start", ast.BinOp(start or ast.Constant(0), ast.Add(), ast.Constant(1)))
    yield with_keyword(walk, "stop", ast.BinOp(stop or size, ast.Sub(), ast.Constant(1)))
    yield with_keyword(with_keyword(walk, "start", ast.Constant(3)), "stop", ast.Constant(3))
    yield with_keyword(walk, "stop", ast.Constant(0))
    yield with_keyword(walk, "start", size)
    if isinstance(part, ast.Tuple):
        more = ast.Tuple([part.elts[0], ast.BinOp(part.elts[1], ast.Add(), ast.Constant(1))], ast.Load())
        yield with_keyword(walk, "part", more)


def _of_test(reading: Reading, branch: ast.If) -> Iterator[Change]:
    change = _changing(reading, branch, f"if {ast.unparse(branch.test)}")
    data = reading.is_data(branch.test)
    yield change("drop", "dropped", [])
    yield change("drop", "the test", [*branch.body, *branch.orelse], data=data)
    yield change("test", "turned", ast.UnaryOp(ast.Not(), branch.test), branch.test, data=data)
    yield change("guard", "if tl.rank() == 0", [_block("if tl.rank() == 0", [branch])])
    for test in NEVER:
        yield change("test", f"and {test}", ast.BoolOp(ast.And(), [branch.test, _expression(test)]), branch.test)
    if branch.orelse:
        yield change("drop", "else", ast.If(branch.test, branch.body, []))


# ------------------------------------------------------------------------------------------------------------- loads
def _of_loads(reading: Reading, statement: ast.stmt) -> Iterator[Change]:
    """Of what steps make, at a place beside: where nobody writes, or that was not waited for."""
    for call in [n for n in ast.walk(statement) if isinstance(n, ast.Call) and word(n) == "tile_load"]:
        param = target(call)
        if len(call.args) < 2:
            continue
        entries = reading.entries(call)
        nodes = [e.node for e in entries]
        for k, entry in enumerate(entries):
            moved = [*nodes[:k], _next(param, entry), *nodes[k + 1 :]]
            index = ast.Tuple(moved, ast.Load()) if len(moved) > 1 else moved[0]
            by = ast.Call(call.func, [call.args[0], index, *call.args[2:]], call.keywords)
            how, data = f"entry {k}: {ast.unparse(moved[k])}", reading.is_data(entry.node)
            yield Change("load", how, ast.unparse(call), (param,), swapped(reading.node, call, by), data)
