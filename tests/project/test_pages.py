"""README and documentation: their code runs, their links lead somewhere, their lists are complete."""

import ast
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project.users import Users
from tests.selection import table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\.venv/bin/tilelink (.*)$", README, re.MULTILINE)
PLANS = re.findall(r"^tilelink (plan (?:.*\\\n)*.*)$", (ROOT / "docs/running.md").read_text(), re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


Run = Callable[[list[str]], str]


@pytest.fixture(scope="module")
def _users() -> Iterator[Users]:
    """Users without GPUs."""
    launcher = {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    environment = {k: v for k, v in os.environ.items() if k not in launcher}
    users = Users(environment | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"})
    yield users
    users.leave()


@pytest.fixture
def run(_users: Users, tmp_path: Path) -> Run:
    """Run Python as a user would, in a folder of its own, and return what was printed."""

    def run(arguments: list[str]) -> str:
        status, printed = _users.run(arguments, tmp_path, {"TILELINK_CACHE": str(tmp_path / "cache")})
        assert status == 0, printed
        return printed

    return run


def test_the_readme_has_one_program() -> None:
    assert len(PYTHON_BLOCKS) == 1


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=["ag_gemm"])
def test_a_readme_block_runs(block: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block)
    printed = run(["block.py"])
    assert len(re.findall("relative error", printed)) == 4


def test_the_readme_shows_the_programs_of_the_library() -> None:
    """`make demo` runs those. The library has the body of `gather` once for several signatures."""
    shown, library = (_functions(text) for text in (PYTHON_BLOCKS[0], (ROOT / "tilelink/ops/programs.py").read_text()))
    assert {"gather": library["fetch"], "matmul": library["matmul"]} == {n: shown[n] for n in ("gather", "matmul")}


def _functions(text: str) -> dict[str, tuple[list[str], list[str]]]:
    """Parameters and statements by name, without annotations, docstrings and comments."""
    return {
        f.name: ([a.arg for a in f.args.args], [ast.unparse(line) for line in f.body if not _is_docstring(line)])
        for f in ast.parse(text).body
        if isinstance(f, ast.FunctionDef)
    }


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_readme_command_runs(command: str, run: Run) -> None:
    assert run(["-c", "from tilelink.cli import app; app()", *shlex.split(command)])


@pytest.mark.parametrize("command", PLANS)
def test_a_plan_of_the_running_page_is_proved(command: str, run: Run) -> None:
    assert run(["-c", "from tilelink.cli import app; app()", *shlex.split(command.replace("\\\n", " "))])


def test_the_readme_has_commands_and_the_project_examples() -> None:
    assert COMMANDS
    assert PLANS
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, run: Run) -> None:
    assert run([str(example)])


def test_what_fails_is_seen(run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import tilelink\nassert tilelink.rank is None, 'the user is told'")
    with pytest.raises(AssertionError, match="the user is told"):
        run(["wrong.py"])


def _links(page: Path) -> list[tuple[Path, str]]:
    """The pages of ours that it names, and what behind `#`."""
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    parts = (link.partition("#") for link in links)
    return [(page.parent / path if path else page, anchor) for path, _, anchor in parts]


@table("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_make_targets_exist(page: Path) -> None:
    assert [str(path) for path, _ in _links(page) if not path.exists()] == []
    used = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9.-]*)", page.read_text(), re.MULTILINE))
    targets = re.findall(r"^([a-z][a-z0-9.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert used <= set(targets)


def _anchors(page: Path) -> set[str]:
    """What links may name behind `#`: headings as Markdown's table of contents slugs them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[-\s]+", "-", w) for w in words}


@table("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_into_pages_name_a_heading(page: Path) -> None:
    named = [(path, anchor) for path, anchor in _links(page) if anchor]
    assert [(path.name, anchor) for path, anchor in named if anchor not in _anchors(path)] == []


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^  - (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/**/*.md"))


def test_the_glossary_is_in_order() -> None:
    words = re.findall(r"^\| ([a-z][a-z, ]*) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert words == sorted(words)
    assert len(words) == len(set(words))
