"""Source is read where it stands: methods, nested functions, notebook cells, `__main__`, crooked continuation lines."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.frontend.harness import HEADER, load, message, run_cell
from tests.selection import table
from tilelink.errors import Loc
from tilelink.frontend import Program, parse_signature, program
from tilelink.ir.program import Let, Notify

ROOT = Path(__file__).parents[2]


def last_notify(found: object) -> Loc:
    assert isinstance(found, Program)
    op = found.captured.body[-1]
    assert isinstance(op, Notify)
    return op.loc


def marked(loc: Loc) -> str:
    """The text under the carets."""
    return loc.source_line()[loc.column : loc.end_column]


def test_a_method(tmp_path: Path) -> None:
    source = HEADER + (
        "class Programs:\n"
        "    class Inner:\n"
        '        @program(\n            "M -> M",\n        )\n'
        "        def f(a, out):\n"
        "            m = tl.tile_id(out)\n"
        "            tl.producer_tile_notify(out, m)\n"
        "\n"
        "    other = 3\n"
    )
    loc = last_notify(load(tmp_path, source).Programs.Inner.f)
    assert (loc.file, loc.line, loc.column) == (str(tmp_path / "user.py"), 12, 12)
    assert marked(loc) == "tl.producer_tile_notify(out, m)"


def test_a_static_method(tmp_path: Path) -> None:
    source = HEADER + (
        "class Programs:\n"
        '    @program("M -> M")\n'
        "    @staticmethod\n"
        "    def f(a, out):\n"
        "        m = tl.tile_id(out)\n"
        "        tl.producer_tile_notify(out, m)\n"
    )
    assert last_notify(load(tmp_path, source).Programs.f).line == 10


def test_a_nested_function_with_its_closure(tmp_path: Path) -> None:
    source = HEADER + (
        "def make(scale):\n"
        "    half = scale / 2\n"
        '    @program("M -> M")\n'
        "    def f(a, out):\n"
        "        m = tl.tile_id(out)\n"
        "        x = tl.tile_load(a, m) * half\n"
        "        tl.producer_tile_notify(out, m)\n"
        "    return f\n"
    )
    module = load(tmp_path, source)
    one, two = module.make(3.0), module.make(5.0)
    assert last_notify(one).line == 11
    assert one.captured.globals == (("half", 1.5),)
    assert two.captured.globals == (("half", 2.5),)


def test_lines_left_of_the_margin(tmp_path: Path) -> None:
    source = HEADER + (
        "if True:\n"
        '    @program("M -> M")\n'
        "    def f(a, out):\n"
        '        """A text that goes on\n'
        "left of the margin.\n"
        '        """\n'
        "        m = tl.tile_id(out)\n"
        "        x = (1 +\n"
        "2)\n"
        "# a remark at the margin\n"
        "        tl.producer_tile_notify(\n"
        "out,\n"
        " m)\n"
    )
    module = load(tmp_path, source)
    loc = last_notify(module.f)
    assert (loc.line, loc.column, marked(loc)) == (15, 8, "tl.producer_tile_notify(")
    (let,) = [op for op in module.f.captured.body if isinstance(op, Let)]
    assert (let.value.text, let.loc.line) == ("1 + 2", 12)


def test_letters_of_many_bytes(tmp_path: Path) -> None:
    source = HEADER + (
        '@program("M -> M")\n'
        "def f(a, out):\n"
        "    größe = tl.tile_id(out)\n"
        '    "µµµ"; tl.producer_tile_notify(out, größe)\n'
    )
    assert marked(last_notify(load(tmp_path, source).f)) == "tl.producer_tile_notify(out, größe)"


def test_on_one_line(tmp_path: Path) -> None:
    source = HEADER + '@program("M -> M")\ndef f(a, out): m = tl.tile_id(out); tl.producer_tile_notify(out, m)\n'
    assert marked(last_notify(load(tmp_path, source).f)) == "tl.producer_tile_notify(out, m)"


def test_a_notebook_cell() -> None:
    cell = run_cell(
        HEADER + '@program("M -> M")\ndef f(a, out):\n    m = tl.tile_id(out)\n    tl.producer_tile_notify(out, m)\n'
    )
    loc = last_notify(cell["f"])
    assert loc.file.startswith("<cell")
    assert (loc.line, loc.source_line()) == (8, "    tl.producer_tile_notify(out, m)")


def test_the_main_module(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        HEADER + '@program("M -> M")\ndef f(a, out):\n    m = tl.tile_id(out)\n    tl.producer_tile_notify(out, m)\n'
    )
    main = runpy.run_path(str(script), run_name="__main__")
    assert str(last_notify(main["f"])) == f"{script}:8"


def test_without_positions_in_the_byte_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from tilelink.frontend import symmetric\n\nsymmetric('M')\n")
    command = [sys.executable, "-X", "no_debug_ranges", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert "TL211: `tilelink.symmetric` outside an operator\n" in ran.stderr
    assert f"--> {script}:3\n" in ran.stderr


def test_the_same_function_twice_with_other_names() -> None:
    cell = run_cell(
        HEADER
        + "def f(a, out):\n    m = tl.tile_id(out)\n    tl.producer_tile_notify(out, m)\n"
        + 'one = program("M -> M", name="one")(f)\ntwo = program("M/R ... -> M ...")(f)\n'
    )
    one, two = cell["one"], cell["two"]
    assert isinstance(one, Program)
    assert isinstance(two, Program)
    assert (one.captured.name, two.captured.name) == ("one", "f")
    assert str(two.captured.param("a").shape) == "M/R ..."


# --------------------------------------------------------------------------------------------------------- diagnostics
def test_text_that_python_does_not_keep() -> None:
    namespace: dict[str, Callable[..., object]] = {}
    exec("def f(a, out):\n    pass\n", namespace)
    assert message(lambda: Program(namespace["f"], parse_signature("M -> M"), "f").captured) == (
        "TL110: the source of `f` cannot be read\n"
        "  why: Python does not keep the text of what is typed at its prompt or run by `exec`\n"
        "  do:  put it into a file or a notebook cell, and import or run that again"
    )


BODY = "def f(a, out):\n    m = tl.tile_id(out)\n    tl.tile_store(out, m, tl.tile_load(a, m) * 2)\n"


@table(
    "changed",
    [
        HEADER + BODY.replace("2)", "2.0)"),
        HEADER + BODY.replace("* 2", "- 2"),
        HEADER + BODY.replace("(a, m)", "(out, m)"),
        "# a line more\n" * 3,
        "x = (\n" * 20,
        "def g():\n    pass\n" * 10,
    ],
)
def test_a_file_that_has_changed(tmp_path: Path, changed: str) -> None:
    module = load(tmp_path, HEADER + BODY)
    (tmp_path / "user.py").write_text(changed)
    assert message(lambda: Program(module.f, parse_signature("M -> M"), "f").captured, tmp_path) == (
        "TL110: the source of `f` cannot be read\n"
        "  why: user.py has changed since it was imported\n"
        "  do:  put it into a file or a notebook cell, and import or run that again"
    )


def test_a_file_that_has_changed_elsewhere(tmp_path: Path) -> None:
    module = load(tmp_path, HEADER + BODY + "x = 1\n")
    (tmp_path / "user.py").write_text(HEADER + BODY.replace("* 2)", "*  2)  # twice") + "x = 2\n")
    assert Program(module.f, parse_signature("M -> M"), "f").captured.name == "f"


def test_a_helper_whose_file_has_changed(tmp_path: Path) -> None:
    helper = "import triton\n@triton.jit\ndef twice(x):\n    return x * 2\n\n"
    program_ = BODY.replace("tl.tile_load(a, m) * 2", "twice(tl.tile_load(a, m))")
    module = load(tmp_path, HEADER + helper + program_)
    (tmp_path / "user.py").write_text(HEADER + helper.replace("* 2", "* 3") + program_)
    assert "TL110: the source of `twice` cannot be read" in message(
        lambda: Program(module.f, parse_signature("M -> M"), "f").captured
    )


@table(
    "thing, shown",
    [(lambda: 0, "a lambda"), (3, "an object of type `int`"), (int, "an object of type `type`")],
)
def test_what_is_no_function(thing: Callable[..., object], shown: str) -> None:
    assert message(lambda: program("M -> M")(thing)) == (
        f"TL110: {shown} is not a function\n"
        "  why: a tile program is read from the source of a `def`\n"
        "  do:  write it as `def name(...):` and decorate that"
    )


def test_an_async_function(tmp_path: Path) -> None:
    module = load(tmp_path, HEADER + '@program("M -> M")\nasync def f(a, out):\n    pass\n')
    assert message(lambda: module.f.captured, tmp_path) == (
        "TL111: `async def` in a tile program\n"
        "  --> user.py:6\n"
        "    |\n"
        "  6 | async def f(a, out):\n"
        "    | ^^^^^^^^^^^^^^^^^^^^\n"
        "  why: it becomes a GPU kernel\n"
        "  do:  write `def`: waiting is said by `tl.consumer_tile_wait`"
    )


def test_a_signature_that_does_not_read_points_at_the_decorator(tmp_path: Path) -> None:
    source = HEADER + '@program("M/ K -> M")\ndef f(a, out):\n    pass\n'
    assert message(lambda: load(tmp_path, source), tmp_path) == (
        "TL101: nothing splits this axis\n"
        "  --> user.py:5\n"
        "    |\n"
        "  5 | M/ K -> M\n"
        "    |  ^\n"
        "  why: what splits an axis follows the `/` without a blank\n"
        "  do:  write `M/R`, or the name of the table after the slash"
    )


def test_a_name_that_is_no_name(tmp_path: Path) -> None:
    source = HEADER + '@program("M -> M", name="my program")\ndef f(a, out):\n    pass\n'
    assert message(lambda: load(tmp_path, source), tmp_path) == (
        "TL114: a program called `my program`\n"
        "  --> user.py:5\n"
        "    |\n"
        '  5 | @program("M -> M", name="my program")\n'
        "    |  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  why: schedules name it\n"
        "  do:  use a Python name"
    )
