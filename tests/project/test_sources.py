"""House rules that no linter of ours knows: sizes, names, and what each room says of itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from tests.project.package import MODULES, PACKAGE, ROOT, tree
from tests.selection import table

T = TypeVar("T", bound=ast.AST)

ROOMS = sorted(p.parent for p in PACKAGE.glob("*/__init__.py"))
THE_ONE_THAT_READS_THE_ENVIRONMENT = PACKAGE / "runtime" / "environment.py"


def nodes(*kinds: type[T]) -> Iterator[tuple[str, T]]:
    """Every node of some kinds in the package, with its place."""
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def test_there_are_sources() -> None:
    assert len(MODULES) > 20
    assert {"codegen", "device", "frontend", "ir", "mapping", "ops", "pipeline", "runtime"} <= {r.name for r in ROOMS}


def test_operators_are_short() -> None:
    """Programs, operator, docstring and reference."""
    lengths = {p.name: len(p.read_text().splitlines()) for p in (ROOT / "tilelink" / "ops").glob("*.py")}
    assert {"ag_gemm.py", "gemm_rs.py", "gemm_rs_ring.py"} <= set(lengths)
    # Where data goes by tables there are more arguments to describe, and more programs of one's own; attention's operators
    # share a kernel, and many their programs.
    longer = {
        "attention.py",
        "ep_dispatch.py",
        "ep_dispatch_fp8.py",
        "ep_combine.py",
        "flash_decode.py",
        "moe_rs.py",
        "moe_layer.py",
        "plain.py",
        "programs.py",
        "routing.py",
        "__init__.py",
    }
    assert {p: n for p, n in lengths.items() if n > (120 if p in longer else 60)} == {}


def test_no_module_is_over_600_lines() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in MODULES}
    assert {p: n for p, n in lengths.items() if n > 600} == {}


def test_no_function_is_over_80_lines() -> None:
    functions = nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {f"{at} {f.name}": (f.end_lineno or f.lineno) - f.lineno + 1 for at, f in functions}
    assert {at: n for at, n in lengths.items() if n > 80} == {}


def test_no_module_is_a_drawer() -> None:
    assert [p for p in MODULES if p.stem in ("utils", "util", "helpers", "common", "base", "misc")] == []


def test_no_handler_catches_everything() -> None:
    def names(handler: ast.ExceptHandler) -> set[str]:
        return {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"Exception"}

    found = [at for at, h in nodes(ast.ExceptHandler) if names(h) & {"Exception", "BaseException"}]
    assert found == []


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(TO" r"DO|FIX" r"ME|XXX|HACK)\b", line)
    ]
    assert found == []


def test_the_environment_is_read_in_one_module() -> None:
    found = set()
    for path in MODULES:
        nodes = [*ast.walk(tree(path))]
        words = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        words |= {a.name for n in nodes if isinstance(n, ast.ImportFrom) and n.module == "os" for a in n.names}
        if words & {"environ", "environb", "getenv", "putenv"}:
            found.add(path)
    assert found == {THE_ONE_THAT_READS_THE_ENVIRONMENT}


@table("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_it_knows(room: Path) -> None:
    docstring = ast.get_docstring(tree(room / "__init__.py")) or ""
    positions = [docstring.find(f"{word}:") for word in ("Takes", "Gives", "Knows", "Never knows")]
    assert -1 not in positions, docstring
    assert positions == sorted(positions)
