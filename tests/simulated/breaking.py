"""Emitted text and SHMEM functions with one mistake each, run in the simulated backend as if they had been emitted so."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from tilelink.device import peer
from tilelink.ir.kernel import KernelSource
from tilelink.runtime.kernels import load

IMPORT = "from tilelink.device import peer as shmem"


@dataclass(frozen=True)
class Edit:
    """A change of the emitted file or, `device`, of the SHMEM functions."""

    apply: Callable[[str], str]
    device: bool = False


def changed(old: str, new: str, *, device: bool = False) -> Edit:
    def apply(text: str) -> str:
        assert old in text, f"nothing to break: {old!r}"
        return text.replace(old, new)

    return Edit(apply, device)


def dropped(call: str) -> Edit:
    """Lines that contain this do nothing."""

    def apply(text: str) -> str:
        lines = text.split("\n")
        assert any(call in line for line in lines), f"nothing to drop: {call!r}"
        return "\n".join(_indent(line) + "pass" if call in line else line for line in lines)

    return Edit(apply)


def moved(call: str, *, behind: str) -> Edit:
    """The first line that contains `call`, behind the first that contains `behind`, at its depth."""

    def apply(text: str) -> str:
        lines = text.split("\n")
        line = lines.pop(next(n for n, line in enumerate(lines) if call in line))
        at = next(n for n, line in enumerate(lines) if behind in line)
        lines.insert(at + 1, _indent(lines[at]) + line.strip())
        return "\n".join(lines)

    return Edit(apply)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


Break = Callable[[Edit], None]


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Break:
    """From its call on, what operators load has the mistake: operators that have not run before."""

    def install(edit: Edit) -> None:
        mistake = edit.apply
        if edit.device:
            name = f"broken_peer_{abs(hash(tmp_path))}"
            _module(name, tmp_path, edit.apply(Path(peer.__file__).read_text()))
            mistake = changed(IMPORT, f"import {name} as shmem").apply

        def broken(source: KernelSource) -> ModuleType:
            return load(replace(source, text=mistake(source.text)))

        monkeypatch.setattr("tilelink.runtime.kernels.load", broken)

    return install


def _module(name: str, folder: Path, text: str) -> None:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
