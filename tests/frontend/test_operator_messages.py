"""Every diagnostic about an operator's body, whole: `operator_messages.txt` holds bodies and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend.harness import Section, load, message, sections
from tests.selection import table
from tilelink.frontend import parse_signature, trace

FILE = Path(__file__).parent / "operator_messages.txt"
HEADER = """import tilelink.language as tl
from tests.frontend.operators import *

pairs = program("M N ... -> M N", name="pairs")(move)
nine = program("M 9 -> M 9", name="nine")(move)


@program("R M N -> M N")
def onto(inbox, out):
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), 0)


@program("M/R ..., M/R ... -> M ...")
def both(a, b, out):
    m = tl.tile_id(out)
    tl.tile_store(out, m, 0)


@program("e+1 i32, e i32 -> e i32")
def grouped_like(start, counts, out):
    e = tl.tile_id(out)
    tl.tile_store(out, e, 0)


NEG = 3.0


@program("M N -> M N")
def lifted(x, out):
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), NEG)


@program("M N -> M N")
def scaled(x, out, *, times: int):
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), times)


"""


CASES = sections(FILE, 42)
USUAL = ("M/R K, K N -> M N", "x, weight", "M=16 K=8 N=6")
"""Signature, parameters and sizes of an operator whose title does not say them."""


def run(case: Section, folder: Path) -> object:
    """Traces `def op` of a module on four ranks; the header is above it."""
    text, parameters, sizes = case.about or USUAL
    lines = "\n".join(f"    {line}" for line in case.program.split("\n"))
    module = load(folder, f"{HEADER}def op({parameters}):\n{lines}\n")
    signature = parse_signature(text)
    dtypes = [shape.dtype or "bf16" for shape in signature.inputs]
    if case.name == "an argument of another dtype":
        dtypes = ["f16"]
    numbers = {k: int(v) for k, _, v in (word.partition("=") for word in sizes.split())}
    return trace("op", module.op, signature, numbers, dtypes, {}, axes={"R": 4})


@table("case", [pytest.param(c, id=c.name) for c in CASES])
def test_message(case: Section, tmp_path: Path) -> None:
    assert message(lambda: run(case, tmp_path), tmp_path) == case.text


def test_the_file_is_read() -> None:
    assert len(CASES) > 50
