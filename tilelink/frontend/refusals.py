"""Python that a tile program cannot contain: a table, and what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Mapping

ONE_BLOCK = "a tile program is one straight block of assignments, loops, `if` and primitives"
_IF = "write an `if` around what follows"
_HELPER = "write a `@triton.jit` function at the top of the module and call it"
_LOOP = "write a `for` loop over `tl.tiles(...)` or `range(...)`"
_OUTSIDE = "put it outside the program"

CONSTRUCTS: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("`try`", "nothing raises on a device: test the condition with `if` or `assert`"),
    ast.TryStar: ("`try`", "nothing raises on a device: test the condition with `if` or `assert`"),
    ast.Raise: ("`raise`", "write `assert condition, 'text'`"),
    ast.With: ("`with`", "take its body out of the block"),
    ast.AsyncWith: ("`async with`", "waiting is said by `tl.consumer_tile_wait`"),
    ast.AsyncFor: ("`async for`", "waiting is said by `tl.consumer_tile_wait`"),
    ast.Await: ("`await`", "waiting is said by `tl.consumer_tile_wait`"),
    ast.Lambda: ("a lambda", _HELPER),
    ast.FunctionDef: ("a nested function", _HELPER),
    ast.AsyncFunctionDef: ("a nested function", _HELPER),
    ast.ClassDef: ("a class", _OUTSIDE),
    ast.ListComp: ("a list comprehension", _LOOP),
    ast.SetComp: ("a set comprehension", _LOOP),
    ast.DictComp: ("a dict comprehension", _LOOP),
    ast.GeneratorExp: ("a generator expression", _LOOP),
    ast.Yield: ("`yield`", ONE_BLOCK),
    ast.YieldFrom: ("`yield from`", ONE_BLOCK),
    ast.Return: ("`return`", _IF + "; results are stored with `tl.tile_store`"),
    ast.Break: ("`break`", "put the condition into the loop's bounds, or " + _IF),
    ast.Continue: ("`continue`", _IF),
    ast.Match: ("`match`", "write `if` and `elif`"),
    ast.Import: ("`import`", "import at the top of the module"),
    ast.ImportFrom: ("`import`", "import at the top of the module"),
    ast.Global: ("`global`", "pass the value as a keyword-only parameter"),
    ast.Nonlocal: ("`nonlocal`", "pass the value as a keyword-only parameter"),
    ast.Delete: ("`del`", "leave it out: names cost nothing"),
    ast.Starred: ("a starred expression", "write the entries out"),
    ast.JoinedStr: ("an f-string", "write a plain string"),
    ast.NamedExpr: ("`:=`", "assign on a line of its own"),
    ast.Dict: ("a dict", "use separate names"),
    ast.Set: ("a set", "use separate names"),
    ast.MatMult: ("`@`", "write `tl.dot(a, b)`"),
    ast.Pow: ("`**`", "multiply, or write `tl.exp2(...)`"),
    ast.In: ("`in`", "compare with `==`"),
    ast.NotIn: ("`not in`", "compare with `!=`"),
}
"""Node type to (what it is called, what to do)."""

_LANGUAGE: Mapping[str, tuple[str, str]] = {
    "program_id": ("a program is for a tile, not for a worker", "use `tl.tile_id`"),
    "num_programs": ("a program is for a tile, not for a worker", "use `tl.size`"),
    "load": ("a program has no pointers", "use `tl.tile_load`"),
    "store": ("a program has no pointers", "use `tl.tile_store`"),
    "debug_barrier": ("the plan places it where it is needed", "leave it out"),
    "device_print": ("it prints, and has no value", "write it on a line of its own"),
    "static_print": ("it prints while Triton compiles, when no tile is there", "use `tl.device_print`"),
    "atomic_": ("a program has no pointers", "say what depends on what with `tl.producer_tile_notify`"),
    "make_": ("a program has no pointers", "use `tl.tile_load` and `tl.tile_store`"),
}
"""Functions of Triton's language, or how their names begin, to (why not, what to do)."""


def refused(name: str) -> tuple[str, str] | None:
    """Why a function of Triton's language is not for tile programs, and what to do; None if it is."""
    return next((v for k, v in _LANGUAGE.items() if name == k or (k.endswith("_") and name.startswith(k))), None)


BUILTINS: Mapping[str, str] = {
    "len": "write `x.shape[0]`",
    "print": "print in the emitted file",
    "pow": "multiply",
    "round": "write `tl.floor(x + 0.5)`",
    "abs": "write `tl.abs(...)`",
    "sum": "write `tl.sum(...)`",
}
"""Builtins of Python to what to write in their place."""
