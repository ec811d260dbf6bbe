"""Puts source text into a file, imports it, and gives back what it defines or the diagnostic that it causes."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tilelink.errors import TilelinkError

HEADER = """import tilelink.language as tl
from tilelink.frontend import program


"""
_NUMBERS = itertools.count()


def load(folder: Path, source: str) -> ModuleType:
    """The module that `source` is, read from a file named `user.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "user.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"user_{next(_NUMBERS)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tile_program(signature: str, parameters: str, body: str, header: str = HEADER) -> str:
    """Source of one program `f`; with the usual header its `def` is line 6, its body begins in line 7."""
    lines = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").splitlines())
    return f'{header}@program("{signature}")\ndef f({parameters}):\n{lines}\n'


def message(cause: Callable[[], object], folder: Path | None = None) -> str:
    """The whole text of the diagnostic that `cause` ends in; files of `folder` without their folder."""
    with pytest.raises(TilelinkError) as caught:
        cause()
    text = str(caught.value)
    return text.replace(f"{folder}/", "") if folder is not None else text


@dataclass(frozen=True)
class Section:
    """Of a file of messages: a program, and all that is said of it. `about`: more words of its title."""

    name: str
    about: tuple[str, ...]
    program: str
    text: str


def sections(path: Path, first: int) -> list[Section]:
    """`## name | about | …`, the program, `--`, and the message, without the places that it points at: `^` stand below the one
    that it begins with, `~` below that of the note that it ends with.

    `first`: which line of `user.py` is the program's first.
    """
    found: list[Section] = []
    for section in path.read_text(encoding="utf-8").split("## ")[1:]:
        given, _, said = section.partition("\n--\n")
        title, *lines = given.split("\n")
        program, text = list[str](), said.strip("\n").split("\n")
        for line in lines:
            if not line or (line.strip("^ ") and line.strip("~ ")):
                program.append(line)
                continue
            number = first + len(program) - 1
            gutter, marks = " " * (3 + len(str(number))) + "|", line.replace("~", "^")
            place = [f"  --> user.py:{number}", gutter, f"  {number} |     {program[-1]}", f"{gutter}     {marks}"]
            at = len(text) if "~" in line else 1
            text[at:at] = place
        name, *about = title.split(" | ")
        found.append(Section(name, tuple(about), "\n".join(program), "\n".join(text)))
    return found


def run_cell(source: str, names: dict[str, object] | None = None) -> dict[str, object]:
    """What a notebook cell defines: its text is known to Python's line cache and to no file."""
    file = f"<cell {next(_NUMBERS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, object] = {"__name__": "__main__", **(names or {})}
    exec(compile(source, file, "exec"), namespace)
    return namespace
