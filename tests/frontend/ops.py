"""Programs from text, and their ops in few words."""

from __future__ import annotations

from typing import TypeVar

from tests.frontend.harness import HEADER, run_cell, tile_program
from tilelink.frontend import Program
from tilelink.ir.program import (
    At,
    Bounds,
    Check,
    Gather,
    Holder,
    If,
    Let,
    Load,
    Loop,
    Move,
    Notify,
    OfTile,
    Op,
    Raw,
    Store,
    Tile,
    TileProgram,
    Tiles,
    Wait,
    Whole,
    walk,
)

T = TypeVar("T", bound=Op)


def only(kind: type[T], program: TileProgram) -> list[T]:
    return [op for op in walk(program.body) if isinstance(op, kind)]


def short(op: Op) -> str:
    """An op in few words: kind, tensor, index, names."""
    kind = type(op).__name__.lower()
    match op:
        case Tile():
            return f"tile {op.param} {op.names}"
        case Bounds():
            return f"{op.name} = {op.what} {op.param} {op.axis} {op.var}"
        case Holder():
            return f"{op.name} = holder {op.param}{index(op.index)}"
        case Load():
            return f"{op.name} = load {op.param}{index(op.index)}"
        case Store():
            return f"store {op.to} {op.param}{index(op.index)} {op.value}"
        case Move():
            return f"move {op.by} {op.source} {op.param}{index(op.index)}"
        case Notify() | Wait():
            peer = f" peer {op.peer.expr}" if op.peer else ""
            return f"{kind} {op.by} {op.param}{index(op.index)}{peer}"
        case Let():
            return f"{', '.join(op.target)} = {op.value}"
        case Tiles():
            return f"tiles {op.var} {op.param} {op.axis}"
        case Loop():
            return str(op.header)
        case If():
            return f"if {op.test}"
        case Check():
            return f"check {op.condition}: {op.text}"
        case Raw():
            return f"{op.name} = {op.what} {op.param} ({', '.join(map(str, op.args))})"


def index(entries: tuple[object, ...] | None) -> str:
    if entries is None:
        return "[all]"
    return f"[{', '.join(map(entry, entries))}]"


def entry(one: object) -> str:
    match one:
        case Whole():
            return ":"
        case OfTile():
            return f"tile {one.var}"
        case At():
            return str(one.expr)
        case Gather():
            return f"vector {one.expr}"
        case _:
            raise AssertionError(one)


def lines(body: tuple[Op, ...], depth: int = 0) -> list[str]:
    out: list[str] = []
    for op in body:
        out.append("  " * depth + short(op))
        if isinstance(op, (Tiles, Loop, If)):
            out += lines(op.body, depth + 1)
        if isinstance(op, If) and op.orelse:
            out += ["  " * depth + "else", *lines(op.orelse, depth + 1)]
    return out


def captured(signature: str, parameters: str, body: str, header: str = HEADER) -> TileProgram:
    program = run_cell(tile_program(signature, parameters, body, header))["f"]
    assert isinstance(program, Program)
    return program.captured
