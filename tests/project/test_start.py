"""What starts, and what it must not bring along: each in an interpreter of its own."""

import os
import subprocess
import sys

import pytest

from benchmarks.compiler.start_time import ROOT

HEAVY = ("torch", "triton", "sympy", "matplotlib", "tilelink.bench")
"""Packages that take long to import."""

PLANNED = """
import contextlib, io, sys
from tilelink.cli import app
with contextlib.redirect_stdout(io.StringIO()):
    app({arguments!r}, standalone_mode=False)
"""
SHAPE = ["--shape", "512x512x512"]


def command(*arguments: str) -> str:
    return PLANNED.format(arguments=[*arguments])


COMPILER = ("numpy", "networkx", "lark", "tilelink.ops", "tilelink.pipeline", "tilelink.mapping")
PLANS = ("torch", "sympy", "matplotlib", "tilelink.bench")
STARTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "commands": {
        "tilelink": ("import tilelink", (*HEAVY, "typer", "rich", *COMPILER)),
        "--help": (command("--help"), (*HEAVY, *COMPILER)),
        "--version": (command("--version"), (*HEAVY, *COMPILER)),
        "a typo": ("from tilelink.cli import app\ntry: app(['pln'])\nexcept SystemExit: pass", (*HEAVY, *COMPILER)),
        "plan": (command("plan", "ag_gemm", *SHAPE), PLANS),
        "verify": (command("verify", "ag_gemm", *SHAPE), PLANS),
        "emit": (command("emit", "ag_gemm", *SHAPE), PLANS),
        "emit, by a library": (
            command("emit", "ag_attention", "--shape", "S=512,h=8,g=2,D=64", "--target", "h200"),
            ("torch", "sympy", "matplotlib"),
        ),
    },
    "rooms": {
        **{
            room: (f"import tilelink.{room}", HEAVY)
            for room in ("frontend", "ir", "mapping", "proof", "codegen", "cost")
        },
        "ops": ("import tilelink.ops", ("torch", "sympy", "matplotlib", "rich")),
    },
}
"""What is run, in an interpreter one after the other, and the modules that it must not import: those that come later may
import more."""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("what", STARTS)
def test_nothing_is_imported_that_is_not_needed(what: str) -> None:
    steps = "".join(
        f"{code}\nfound[{name!r}] = [m for m in {unwanted!r} if m in sys.modules]\n"
        for name, (code, unwanted) in STARTS[what].items()
    )
    assert run(f"import sys\nfound = {{}}\n{steps}print(found)") == str({name: [] for name in STARTS[what]})


def test_what_is_reachable_from_the_package() -> None:
    missing = "import tilelink\ntry: tilelink.nothing\nexcept AttributeError as error: print(error, end='. ')"
    names = "ops.ag_gemm nn.functional language.tile_load launch sms moving install program __version__"
    checks = "\n".join(f"tilelink.{name}" for name in names.split())
    stars = "from tilelink import *\nprint(sms is tilelink.sms, set(tilelink.__all__) <= set(dir(tilelink)))"
    assert run(f"{missing}\n{checks}\n{stars}") == "module 'tilelink' has no attribute 'nothing'. True True"
