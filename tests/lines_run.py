"""A plugin of pytest: CPU seconds of each test, and the statements of tilelink/ that it runs, a line of JSON for each.

LINES_RUN=out/lines pytest -p tests.lines_run tests/cli

What takes long and runs no line that others do not run, `make test` leaves out; that list is made of such a run of all tests:

python -m tests.repeats out/lines

Modules are rewritten as they are imported, so that each statement marks itself: a twentieth of the time more, where
tracing takes as long again. What a test runs in other processes costs it CPU seconds and marks nothing.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest

ROOT = Path(__file__).parents[1]
OUT = Path(os.environ["LINES_RUN"])
places: list[tuple[str, int]] = []
marks: list[int] = []
setattr(builtins, "lines_run_marks", marks)  # noqa: B010


def _marked(body: list[ast.stmt], file: str) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    for n, statement in enumerate(body):
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (future or (n == 0 and text)):
            mark = ast.parse(f"lines_run_marks[{len(marks)}] = 1").body[0]
            for node in ast.walk(mark):
                ast.copy_location(node, statement)
            made.append(mark)
            marks.append(0)
            places.append((file, statement.lineno))
        made.append(statement)
    return made


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.get_filename(fullname))
        tree = ast.parse(path.read_bytes(), str(path))
        for node in list(ast.walk(tree)):
            for block in ("body", "orelse", "finalbody"):
                if isinstance(found := getattr(node, block, None), list) and found:
                    setattr(node, block, _marked(found, str(path.relative_to(ROOT))))
        return compile(tree, str(path), "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "tilelink":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())


def _seconds() -> float:
    return sum(os.times()[:4])


_begun: dict[str, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marks[:] = [0] * len(marks)
    _begun[item.nodeid] = _seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a fixture of the whole session leaves behind is no test's."""
    run: dict[str, set[int]] = {}
    for mark, (file, line) in zip(marks, places, strict=True):
        if mark:
            run.setdefault(file, set()).add(line)
    took = round(_seconds() - _begun.pop(item.nodeid), 3)
    row = {"test": item.nodeid, "cpu_s": took, "lines": {f: sorted(n) for f, n in run.items()}}
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
