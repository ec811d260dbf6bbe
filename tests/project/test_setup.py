"""The commands of the Makefile, and what they install with."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.project.package import MODULES, ROOT, tree
from tilelink.version import __version__

MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = re.findall(r"^([a-z][a-z0-9.-]*):", MAKEFILE, re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def everything() -> list[str]:
    """Every command that a fresh machine would run, none of them carried out."""
    return make("--always-make", "--dry-run", *(t for t in TARGETS if t not in ("help", "clean"))).splitlines()


def test_help_is_the_default_and_lists_every_target() -> None:
    listed = [line.split()[1] for line in make().splitlines()]
    assert listed == [line.split()[1] for line in make("help").splitlines()]
    assert listed == TARGETS
    assert f".PHONY: {' '.join(TARGETS)}\n" in MAKEFILE


def test_every_installation_is_constrained(everything: list[str]) -> None:
    installations = [line for line in everything if "pip install" in line]
    assert len(installations) == 5
    assert all("--constraint constraints.txt" in line for line in installations)
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_set_up_comes_before_use(everything: list[str]) -> None:
    first = {
        word: next(i for i, line in enumerate(everything) if word in line)
        for word in ("-m venv .venv", "--editable .", "tilelink demo", "--editable '.[dev]'", "-m pytest")
    }
    assert first["-m venv .venv"] < first["--editable ."] < first["tilelink demo"]
    assert first["--editable ."] < first["--editable '.[dev]'"] < first["-m pytest"]


def test_ci_runs_targets_that_exist() -> None:
    script = ROOT / ".ci" / "run"
    loop = re.search(r"for target in (.*); do", script.read_text())
    assert loop is not None
    assert {"check", "test"} <= set(loop.group(1).split()) <= set(TARGETS)
    assert script.stat().st_mode & 0o111


def test_the_distribution_is_what_users_install() -> None:
    assert PROJECT["name"] == "tilelink-triton"
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert "triton>=3.6" in PROJECT["dependencies"]


def test_every_import_is_a_declared_dependency() -> None:
    declared = {re.split(r"[<>=\[ ]", d)[0] for d in PROJECT["dependencies"]}
    optional = {"nvshmem", "cuda", "plotly", "ipywidgets", "IPython", "transformers"}
    imported = {name for path in MODULES for name in _imports(tree(path))}
    assert imported - sys.stdlib_module_names - {"tilelink"} - optional <= declared


def _imports(module: ast.Module) -> set[str]:
    """The packages that a module imports, at its top or later."""
    names = {alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(module) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names}
