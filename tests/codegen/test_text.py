"""Emitted text is a product: the same plan gives the same text, and every stanza says where it comes from."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.codegen.emitting import GOLDEN, text
from tests.mapping.plans import emitted, form
from tilelink.ops import programs

ROOT = Path(__file__).parents[2]


def function(name: str) -> str:
    """The text of one emitted function."""
    return re.split(r"(?m)^def ", text())[1:][[f.name for f in functions()].index(name)]


def functions() -> list[ast.FunctionDef]:
    return [n for n in ast.parse(text()).body if isinstance(n, ast.FunctionDef)]


def test_the_golden_file() -> None:
    assert text() == GOLDEN.read_text()


def test_the_text_is_the_same_in_every_process() -> None:
    """Sets and hashes differ between processes; what is emitted does not. Of this process nobody has chosen the seed."""
    command = [sys.executable, "-c", "from tests.codegen.emitting import text; print(text(), end='')"]
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert found.stdout == text()


def test_it_is_python_with_the_users_lines() -> None:
    """Each line of the tile programs that does something stands above what it became, in the order of the program."""
    assert [f.name for f in functions()] == ["call_entry", "ready", "gather", "matmul", "ag_gemm_matmul"]
    source = Path(programs.__file__).read_text().splitlines()
    for name in ("gather", "matmul"):
        noted = re.findall(r"# programs\.py:(\d+)  (.*)", function(name))
        assert noted
        assert [int(line) for line, _ in noted] == sorted(int(line) for line, _ in noted)
        assert all(source[int(line) - 1].strip() == said for line, said in noted)


def test_waits_stand_before_the_loads_and_notifies_after_the_stores() -> None:
    gather, matmul = function("gather"), function("matmul")
    assert gather.index("signal_wait_until") < gather.index("getmem_nbi_block") < gather.index("local_add")
    assert (
        matmul.index("local_wait_until")
        < matmul.index("for k_begin")
        < matmul.index("tl.dot")
        < matmul.index("tl.store")
    )


def test_a_call_ends_when_what_descriptors_store_is_there() -> None:
    plan = form("gemm_rs_ring", 2, {"M": 64, "K": 64, "N": 64}, 32)
    lines = [line.strip() for line in emitted(plan).text.splitlines()]
    (over,) = [k for k, line in enumerate(lines) if line.startswith("if shmem.is_last(through_at")]
    before = [line for line in lines[:over] if not line.startswith("#")]
    assert before[-1] == "shmem.async_store_quiet()"
