"""A captured program's Python, and the program that a changed text is."""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tilelink.frontend import Program
from tilelink.ir.program import TileProgram

NUMBERS: Mapping[str, bool | int | str] = MappingProxyType(
    {"SWITCHED_ON": False, "ROUNDS": 0, "FIRST_FEW": 2, "FORM": "other"}
)
"""What changed programs may name beside what their modules have."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """`node`: the function without its decorators. `module`: the names around it."""

    program: TileProgram
    node: ast.FunctionDef
    module: Mapping[str, Any]

    def captured(self, node: ast.FunctionDef) -> TileProgram:
        """The program whose text is another one.

        Raises:
            TilelinkError: TL110 to TL164, what is no program.
        """
        text = ast.unparse(ast.fix_missing_locations(node)) + "\n"
        name = f"<{self.program.name} {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
        # As of a cell of a notebook: no file has it.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        names = {**self.module, **NUMBERS}
        exec(compile(text, name, "exec"), names)
        return Program(names[node.name], self.program.signature, self.program.name).captured


def source_of(program: TileProgram) -> Source:
    """Of a program whose function stands at the top of a module."""
    module = next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == program.loc.file)
    tree = ast.parse(Path(program.loc.file).read_text())
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.lineno == program.loc.line)
    node.decorator_list = []
    return Source(program, node, vars(module))
