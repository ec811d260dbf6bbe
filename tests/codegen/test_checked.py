"""Nothing but kernels gets into an emitted file, whatever it was made from."""

from __future__ import annotations

from tests.codegen.emitting import text
from tests.selection import table
from tilelink.codegen.syntax import check_text
from tilelink.errors import TilelinkError

HEAD = '"""Emitted."""\n\nimport triton\nimport triton.language as tl\n\nfrom tilelink.device import peer as shmem\n'
KERNEL = HEAD + "\n\n@triton.jit\ndef kernel(x, N: tl.constexpr):\n    at = tl.arange(0, N)\n    "


def refusal(source: str) -> TilelinkError | None:
    try:
        check_text(source, "op")
    except TilelinkError as error:
        return error
    return None


def assert_refused(source: str) -> str:
    """Gives what is said of it."""
    error = refusal(source)
    assert error is not None
    assert error.code == "TL406"
    return str(error)


def test_what_is_emitted_passes() -> None:
    for source in (
        text(),
        f"{HEAD}\nEPS = tl.constexpr(-1e-05)\nINF = tl.constexpr(float('inf'))\n",
        KERNEL + "tl.store(x + at, at)\n",
    ):
        assert refusal(source) is None
        assert_refused(source + "X = 1\n")


@table(
    "line",
    [
        "__import__('os').system('true')",
        "eval('1')",
        "exec('1')",
        "open('/etc/passwd')",
        "tl.core.__builtins__",
        "x._private",
        "import os",
        "global y",
        "y = lambda: 0",
        "unknown(x)",
        "def inner():\n        pass",
        "with x:\n        pass",
        "try:\n        pass\n    finally:\n        pass",
        "yield x",
        "del x",
        "y = (z := 1)",
        "os.system('true')",
    ],
)
def test_what_no_kernel_contains(line: str) -> None:
    assert_refused(KERNEL + line + "\n")


@table(
    "line",
    [
        "import os",
        "from tilelink.device import fences as shmem",
        "from benchmarks.mutants import weak",
        "print('x')",
        "X = 1",
        "X = tl.constexpr(print())",
        "class A: pass",
        "@other\ndef f(x):\n    pass",
        "def f(x):\n    pass",
        "if True:\n    pass",
    ],
)
def test_what_stands_at_the_top(line: str) -> None:
    assert_refused(f"{HEAD}\n{line}\n")


def test_text_that_breaks_out_of_the_docstring() -> None:
    assert_refused(HEAD.replace("Emitted.", 'Emitted."""\nimport os\n"""'))


def test_the_message() -> None:
    assert assert_refused(KERNEL + "open('x')\n") == (
        "TL406: the text emitted for `op` is not loaded: `open` is given by nobody\n"
        "  --> <emitted op>:12\n"
        "     |\n"
        "  12 |     open('x')\n"
        "     |     ^^^^^^^^^\n"
        "  why: emitted files are imported, so they may contain kernels and nothing else\n"
        "  do:  please report the operator with its schedule"
    )
