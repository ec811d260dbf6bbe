"""Every code of a diagnostic has one meaning: one row in docs/errors.md, and one place that gives it, or places that say
the same."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from tests.project.package import MODULES, PACKAGE, ROOT, tree

ROW = re.compile(r"^\| (TL\d{3}) \| (.+) \|$", re.MULTILINE)
CODE = re.compile(r"TL\d{3}")
ASKING = (ast.Compare, ast.Dict, ast.Tuple)

SAME = {
    "TL306": "mapping/arrivals mapping/placement_rules",
    "TL312": "mapping/kernels mapping/placement_rules",
    "TL313": "mapping/kernels mapping/placement_rules",
    "TL450": "runtime/launching runtime/simulated/interpreter",
    "TL454": "runtime/launching runtime/processes runtime/simulated/backend",
    "TL464": "runtime/launching runtime/refusals",
    "TL473": "pipeline/reports runtime/watchdog",
    "TL505": "runtime/simulated/builder runtime/simulated/interpreter",
    "TL605": "proof/check proof/counts",
    "TL609": "mapping/lower/call proof/check",
    "TL614": "mapping/judge proof/coverage",
    "TL704": "bench/running explore/cases",
}
"""Codes behind the frontend that more than one module gives. Add to it only what means the same."""


@cache
def given() -> dict[str, set[str]]:
    """Code -> the modules that give it; where one is only looked for, in a table or a comparison, nobody gives it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        nodes = [*ast.walk(tree(path))]
        asked = {id(n) for at in nodes if isinstance(at, ASKING) for n in ast.iter_child_nodes(at)}
        for node in nodes:
            if isinstance(node, ast.Constant) and id(node) not in asked and CODE.fullmatch(str(node.value)):
                found[str(node.value)].add(str(path.relative_to(PACKAGE).with_suffix("")))
    return found


def test_one_row_and_one_meaning_per_code() -> None:
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text())
    assert [code for code, _ in rows] == sorted(given()), "docs/errors.md lists what is raised, in order, each once"
    assert [meaning for meaning, n in Counter(meaning for _, meaning in rows).items() if n > 1] == []


def test_two_modules_do_not_take_one_code_for_two_things() -> None:
    """Two people who each take the next free code meet here: whoever comes second takes another, or adds to `SAME`."""
    several = {code: " ".join(sorted(modules)) for code, modules in given().items() if len(modules) > 1}
    behind = {code: modules for code, modules in several.items() if "frontend" not in modules}
    assert behind == SAME


def test_what_the_frontend_gives_nobody_else_does() -> None:
    """Its codes and their meanings are a table of its own, and every text is pinned."""
    mixed = {code: modules for code, modules in given().items() if any("frontend" in m for m in modules)}
    assert {code for code, modules in mixed.items() if not all(m.startswith("frontend") for m in modules)} == set()


UNTESTED = {"TL421", "TL430", "TL431", "TL435", "TL438", "TL442", "TL443", "TL444", "TL460"}
"""Codes that no test without a GPU provokes: what drivers, heaps and clocks say."""


def test_every_other_code_is_provoked() -> None:
    tests = {p for p in (ROOT / "tests").rglob("*") if p.suffix in (".py", ".txt") and p != Path(__file__)}
    named = {code for p in tests for code in CODE.findall(p.read_text())}
    assert given().keys() - named == UNTESTED


def test_every_text_of_the_frontend_is_pinned() -> None:
    """Whole, but for those of the grammar, which its tests put together."""
    tests = ROOT / "tests" / "frontend"
    texts = [p.read_text() for p in tests.rglob("*") if p.suffix in (".py", ".txt")]
    pinned = {code for text in texts for code in re.findall(r"(TL\d{3}): ", text)}
    grammar = set(CODE.findall((tests / "test_grammar.py").read_text()))
    raised = {code for code, modules in given().items() if any(m.startswith(("frontend", "language")) for m in modules)}
    assert raised - pinned - grammar == set()


def test_codes_go_by_rooms() -> None:
    """The first digit says which page of docs/errors.md: 1 and 2 what users write and pass, 3 plans, 4 and 5 running, ..."""
    rooms = {
        "1": {"frontend", "language"},
        "2": {"frontend", "nn", "ops", "pipeline", "runtime"},
        "3": {"mapping", "pipeline"},
        "4": {"codegen", "inductor", "pipeline", "runtime", "torch_ops", "tuning"},
        "5": {"runtime"},
        "6": {"mapping", "proof", "validation"},
        "7": {"bench", "cli", "cost", "explore"},
    }
    for code, modules in given().items():
        assert {m.split("/")[0] for m in modules} <= rooms[code[2]], code
