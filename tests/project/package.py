"""The modules of the package, each parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tilelink"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())
