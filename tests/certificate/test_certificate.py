"""Certificates: `Lowered` as JSON and back, what the checker says of them, and what it is itself."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.mutants.lowered import KINDS, mutants
from benchmarks.mutants.lowered_table import verdict_on
from benchmarks.mutants.mappings import Mapping, mappings, operators
from tests.cli.commands import alone, command
from tests.mapping.oracle import reasons
from tests.selection import table
from tilelink.ir.certificate import certificate
from tilelink.ir.lowered import Copy, Lowered, Read, walk
from tilelink.mapping.lower import lower
from tilelink.proof.check import check
from tools import check_certificate

__all__ = ["alone"]  # in force here, too
CHECKER = Path(check_certificate.__file__)
SAMPLE = 60


@cache
def placed(name: str) -> list[tuple[Mapping, Lowered]]:
    return [(m, lower(m.plan)) for m in mappings(operators()[name])]


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(CHECKER), str(path)], capture_output=True, text=True, check=False)


# ------------------------------------------------------------------------------------------------------------ every plan
@pytest.mark.parametrize("name", operators())
def test_every_placement_is_accepted(name: str) -> None:
    for mapping, lowered in placed(name):
        assert reasons(lowered) == [], mapping.name


@pytest.mark.parametrize("name", operators())
def test_every_argument_and_all_workspace_is_read(name: str) -> None:
    """What nobody reads is not wrong; of operators of the library it is a read that lowering has lost."""
    for mapping, lowered in placed(name):
        ops = [op for e in lowered.executors for loop in e.loops for op in walk(loop.body)]
        read = {op.buffer for op in ops if isinstance(op, Read)} | {
            op.source.buffer for op in ops if isinstance(op, Copy)
        }
        assert {b.name for b in lowered.buffers if b.space != "result"} <= read, mapping.name


def test_a_size_and_a_variable_of_one_name_are_two() -> None:
    """`moe_rs` has a size `k`, and a program with a loop over `k`: what the loop reads is under a test of both."""
    (_, lowered), *_ = placed("moe_rs")
    events = check_certificate.Plan(json.loads(certificate(lowered))).events
    assert {e.box[1].start for e in events if e.kind == "read" and e.what == "slot"} == {0, 1}


# --------------------------------------------------------------------------------------------------------------- mutants
def test_a_sample_of_mutants_is_refused_or_does_no_harm() -> None:
    rng = random.Random(7)
    plans = [lower(rng.choice([*islice(mappings(operator), 4)]).plan) for operator in operators().values()]
    every = [(plan, *m) for plan in plans for m in mutants(plan)]
    found = Counter(verdict_on(plan, mutant) for plan, _, _, mutant in rng.sample(every, SAMPLE))
    assert found["survives"] == 0
    assert found["refused"] > SAMPLE // 2


@table("kind", [k for k in KINDS if k not in ("await doubled", "read dropped", "order reversed")])
def test_each_kind_of_mutant_is_refused_somewhere(kind: str) -> None:
    """But for three kinds: a wait twice is one; a read that is left out, and another order, harm nobody else."""
    plans = [placed(name)[k][1] for name, k in (("ag_gemm", 4), ("gemm_rs", 0), ("all_reduce", 0), ("ag_attention", 0))]
    assert any(reasons(mutant) for plan in plans for _, mutant in KINDS[kind](plan) if mutant != plan)


@pytest.mark.parametrize(
    ("name", "kind", "code", "said"),
    [
        (
            "ring_attention",
            "by data",
            "TL614",
            "coverage: data says whether it is written, and nothing is declared: write ",
        ),
        ("ep_dispatch_fp8", "box shrunk", "TL604", "coverage: nobody writes all of the result `scale` on rank 0"),
        (
            "ag_attention_varlen",
            "engine",
            "TL613",
            "residency: 12 workers are there at once, on 10 SMs, and wait: await ",
        ),
    ],
)
def test_what_data_decides_is_declared_and_whoever_waits_finds_an_sm(
    name: str, kind: str, code: str, said: str
) -> None:
    """The checker refuses what the proof refuses, and for the same reason."""
    plans = [lowered for m, lowered in placed(name) if m.name in ("SMs", "gather_v: copy engine push over 2 streams")]
    changed = (mutant for plan in plans for _, mutant in KINDS[kind](plan))
    refused = (m for m in changed if (error := check(m).error) is not None and error.code == code)
    assert any(reason.startswith(said) for m in refused for reason in reasons(m))


# ------------------------------------------------------------------------------------------------- the checker and the file
def test_the_checker_is_small_and_on_its_own() -> None:
    text = CHECKER.read_text()
    assert len(text.splitlines()) <= 500
    found = {
        (node.module if isinstance(node, ast.ImportFrom) else name.name) or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert {name.split(".")[0] for name in found} <= {"numpy", *sys.stdlib_module_names}


def test_the_command_writes_what_the_checker_accepts() -> None:
    said = command("verify", "gemm_rs", "--shape", "50x32x50", "--ranks", "3", "--certificate", "plan.json")
    assert "certificate  plan.json" in said.output
    done = checked(Path("plan.json"))
    assert (done.returncode, done.stdout) == (0, "every claim holds\n")


def test_a_wrong_plan_is_refused_with_the_line_of_the_user() -> None:
    _, lowered = placed("ag_gemm")[0]
    wrong = next(
        m for kind, where, m in mutants(lowered) if (kind, where) == ("flag + 1", "matmul: matmul, await rows")
    )
    Path("wrong.json").write_text(certificate(wrong))
    done = checked(Path("wrong.json"))
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("races"))
    assert line.startswith("races: write rows[0:16, 0:16] of rank 0 (rank 0, gather, tile 0, 0, at ")
    assert "does not come before read rows[0:16, 0:16] of rank 0 (rank 0, matmul, tile 0, 0, at " in line
    assert "programs.py:47)" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:50], "JSONDecodeError"),
        (lambda text: text.replace('"tilelink certificate": 2', '"tilelink certificate": 3'), "no certificate of version 2"),
        (lambda text: text.replace('"op": "signal"', '"op": "opaque"'), "the op `opaque`"),
        (lambda text: text.replace('"by": "host"', '"by": "fpga"'), "by: fpga"),
        (lambda text: text.replace('"min"', '"gcd"'), "gcd"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged(change: Callable[[str], str], said: str) -> None:
    Path("other.json").write_text(change(certificate(placed("ag_gemm")[0][1])))
    done = checked(Path("other.json"))
    assert done.returncode == 2
    assert said in done.stdout
    assert checked(Path("missing.json")).returncode == 2
