"""Names from outside a program: the language under any alias, constants, closures, `@triton.jit` helpers."""

from __future__ import annotations

import ast

from tests.frontend.harness import message, run_cell
from tests.frontend.ops import captured, lines
from tests.selection import table
from tilelink.frontend import Program
from tilelink.ir.program import Helper, Let, Store, TileProgram

BODY = [
    "tile out ('m',)",
    "x = tl.zeros((4,), tl.float32)",
    "a_tile = load a[tile m]",
    "store own out[tile m] tl.math.exp(a_tile + x)",
]


@table(
    "imports, prefix",
    [
        ("import tilelink.language as tl", "tl"),
        ("import tilelink.language as LANG", "LANG"),
        ("import triton.language as tl", "tl"),
        ("import tilelink.language\nimport tilelink", "tilelink.language"),
        ("import triton\nimport triton.language", "triton.language"),
        ("from tilelink import language", "language"),
    ],
)
def test_the_language_under_any_name(imports: str, prefix: str) -> None:
    program = captured(
        "M -> M",
        "a, out",
        f"""
m = {prefix}.tile_id(out)
x = {prefix}.zeros((4,), {prefix}.float32)
{prefix}.tile_store(out, m, {prefix}.math.exp({prefix}.tile_load(a, m) + x))
""",
        f"{imports}\nfrom tilelink.frontend import program\n",
    )
    assert lines(program.body) == BODY


def test_names_imported_one_by_one() -> None:
    program = captured(
        "M -> M",
        "a, out",
        "m = tile_id(out)\nx = zeros((4,), dtype)\nput(out, m, tlm.exp(load(a, m) + x))",
        """
from tilelink.language import tile_id, tile_store as put, tile_load as load
from triton.language import zeros, float32 as dtype, math as tlm
from tilelink.frontend import program
""",
    )
    assert lines(program.body) == BODY


def test_modules_of_the_language() -> None:
    program = captured(
        "M -> M",
        "a, out",
        "m = tl.tile_id(out)\ntl.tile_store(out, m, libdevice.tanh(tl.tile_load(a, m)) + triton.cdiv(3, 2))",
        """
import triton
import tilelink.language as tl
from triton.language.extra import libdevice
from tilelink.frontend import program
""",
    )
    assert lines(program.body)[-1] == "store own out[tile m] tl.extra.libdevice.tanh(a_tile) + triton.cdiv(3, 2)"


def test_constants_of_the_module() -> None:
    program = captured(
        "M -> M",
        "a, out",
        """
m = tl.tile_id(out)
tl.tile_store(out, m, tl.tile_load(a, m) * LOG2E + math.pi + Config.eps + WRAPPED + (1 if ON else 0))
assert KIND == "x"
""",
        """
import math
import triton.language
import tilelink.language as tl
from tilelink.frontend import program
LOG2E, ON, KIND = 1.5, True, "x"
WRAPPED = triton.language.constexpr(7)
class Config:
    eps = 1e-6
""",
    )
    assert lines(program.body)[2] == (
        "store own out[tile m] a_tile * LOG2E + math_pi + Config_eps + WRAPPED + (1 if ON else 0)"
    )
    assert program.globals == (
        ("Config_eps", 1e-6),
        ("KIND", "x"),
        ("LOG2E", 1.5),
        ("ON", True),
        ("WRAPPED", 7),
        ("math_pi", 3.141592653589793),
    )


def test_builtins_by_another_name() -> None:
    header = "import tilelink.language as tl\nfrom tilelink.frontend import program\nlowest = min\n"
    program = captured("M -> M", "a, out", "m = tl.tile_id(out)\ntl.tile_store(out, m, lowest(3, 4))", header)
    assert lines(program.body)[-1] == "store own out[tile m] min(3, 4)"


def test_a_name_that_the_enclosing_function_has_not_bound_yet() -> None:
    cell = run_cell("""
import tilelink.language as tl
from tilelink.frontend import program

def make():
    @program("M -> M")
    def f(a, out):
        m = tl.tile_id(out)
        tl.tile_store(out, m, scale)

    if f is None:
        scale = 3
    return f

f = make()
""")
    found = cell["f"]
    assert isinstance(found, Program)
    assert message(lambda: found.captured).startswith("TL120: `scale` is not defined\n")


def test_a_local_name_hides_the_module_s() -> None:
    program = captured(
        "M -> M",
        "a, out",
        "m = tl.tile_id(out)\nSCALE = 2\ntl.tile_store(out, m, SCALE)",
        "import tilelink.language as tl\nfrom tilelink.frontend import program\nSCALE = 1.5\n",
    )
    assert program.globals == ()


# ------------------------------------------------------------------------------------------------------------- helpers
HELPERS = """
import triton
import triton.language as lang
import tilelink.language as tl
from tilelink.frontend import program

SCALE = lang.constexpr(2.0)
LIMIT = 5

@triton.jit
def twice(x):
    return x * SCALE

@triton.jit
def clamp(x, LOW: lang.constexpr):
    # the upper end
    low = LOW if x.shape[0] > 1 else 0
    return lang.minimum(lang.maximum(twice(x), low), LIMIT)

renamed = clamp

"""


def with_helper(body: str, helpers: str = HELPERS) -> TileProgram:
    return captured("M -> M", "a, out", f"m = tl.tile_id(out)\n{body}", helpers)


def test_a_helper_brings_all_it_needs() -> None:
    program = with_helper("tl.tile_store(out, m, renamed(tl.tile_load(a, m), LOW=0))")
    assert lines(program.body)[-1] == "store own out[tile m] clamp(a_tile, LOW=0)"
    assert program.helpers == (
        Helper("twice", "@triton.jit\ndef twice(x):\n    return x * SCALE\n"),
        Helper(
            "clamp",
            "@triton.jit\ndef clamp(x, LOW: tl.constexpr):\n"
            "    low = LOW if x.shape[0] > 1 else 0\n    return tl.minimum(tl.maximum(twice(x), low), LIMIT)\n",
        ),
    )
    assert program.globals == (("LIMIT", 5), ("SCALE", 2.0))


def test_a_helper_in_tl_is_copied_as_it_is_written() -> None:
    program = with_helper(
        "tl.tile_store(out, m, soft(tl.tile_load(a, m)))",
        """
import triton
import triton.language as tl
from tilelink.frontend import program

@triton.jit
def soft(x):
    # Numerically the same.
    return x * tl.sigmoid(x)   # twice

""",
    )
    (helper,) = program.helpers
    assert helper.source == (
        "@triton.jit\ndef soft(x):\n    # Numerically the same.\n    return x * tl.sigmoid(x)   # twice\n"
    )


def test_what_a_helper_says_of_its_result_is_not_copied() -> None:
    """A file has none of the names that users import for it."""
    helper = "@triton.jit\ndef half(x) -> Optional[int]:\n    return x / 2\n\n"
    program = with_helper(
        "tl.tile_store(out, m, half(tl.tile_load(a, m)))", f"from typing import Optional\n{HELPERS}{helper}"
    )
    assert program.helpers == (Helper("half", "@triton.jit\ndef half(x):\n    return x / 2\n"),)


def test_a_nested_helper_is_moved_to_the_margin() -> None:
    cell = run_cell("""
import triton
import triton.language as tl
from tilelink.frontend import program

def make(scale):
    @triton.jit
    def inner(x):
        return x * scale

    @program("M -> M")
    def f(a, out):
        m = tl.tile_id(out)
        tl.tile_store(out, m, inner(tl.tile_load(a, m)))

    return f

f = make(3)
""")
    found = cell["f"]
    assert isinstance(found, Program)
    (helper,) = found.captured.helpers
    assert helper.source == "@triton.jit\ndef inner(x):\n    return x * scale\n"
    assert found.captured.globals == (("scale", 3),)


def test_a_helper_used_twice_is_copied_once() -> None:
    program = with_helper("x = clamp(tl.tile_load(a, m), 0)\ntl.tile_store(out, m, twice(clamp(x, 1)))")
    assert [h.name for h in program.helpers] == ["twice", "clamp"]


def test_a_helper_that_calls_itself() -> None:
    program = with_helper(
        "tl.tile_store(out, m, down(3))",
        HELPERS + "@triton.jit\ndef down(n: lang.constexpr):\n    return down(n - 1) if n > 0 else 0\n\n",
    )
    assert [h.name for h in program.helpers] == ["down"]


def test_copied_helpers_are_python() -> None:
    for helper in with_helper("tl.tile_store(out, m, clamp(tl.tile_load(a, m), 0))").helpers:
        (function,) = ast.parse(helper.source).body
        assert isinstance(function, ast.FunctionDef)
        assert function.name == helper.name


def test_values_of_helpers() -> None:
    program = with_helper("x = clamp(3, 0)\ny = clamp(tl.tile_load(a, m), 0)\ntl.tile_store(out, m, y)")
    values = [op.value for op in program.body if isinstance(op, (Let, Store))]
    assert [v.vector for v in values] == [False, True, True]


# --------------------------------------------------------------------------------------------------------- diagnostics
def said(body: str, helpers: str) -> str:
    text = message(lambda: with_helper(body, helpers))
    return "\n".join(line for line in text.splitlines() if not line.startswith("  -->"))


def test_two_helpers_of_one_name() -> None:
    other = HELPERS + "first = twice\n\n@triton.jit\ndef twice(x):\n    return x\n\n"
    assert said("x = first(1)\ny = twice(x)", other) == (
        "TL126: two helpers are called `twice`\n"
        "     |\n"
        "  32 |     y = twice(x)\n"
        "     |         ^^^^^\n"
        "  why: helpers of one program are copied into one file\n"
        "  do:  rename one of them"
    )


def test_a_helper_that_cannot_be_copied() -> None:
    other = HELPERS + "import os\n\n@triton.jit\ndef odd(x):\n    return os.path(x)\n\n"
    assert said("y = odd(1)", other) == (
        "TL124: `os.path` cannot be copied\n"
        "     |\n"
        "  26 |     return os.path(x)\n"
        "     |            ^^^^^^^\n"
        "  why: a helper is copied as source, with constants and `@triton.jit` functions\n"
        "  do:  pass it to the helper as an argument"
    )


def test_a_helper_with_an_unknown_name() -> None:
    other = HELPERS + "@triton.jit\ndef odd(x):\n    return x + nothing\n\n"
    assert said("y = odd(1)", other) == (
        "TL124: `nothing` is not defined\n"
        "     |\n"
        "  24 |     return x + nothing\n"
        "     |                ^^^^^^^\n"
        "  why: a helper is copied as source\n"
        "  do:  define or import it"
    )


def test_a_primitive_in_a_helper() -> None:
    other = HELPERS + "@triton.jit\ndef odd(x):\n    return tl.tile_load(x)\n\n"
    assert said("y = odd(1)", other) == (
        "TL124: `tl.tile_load` in a helper\n"
        "     |\n"
        "  24 |     return tl.tile_load(x)\n"
        "     |            ^^^^^^^^^^^^\n"
        "  why: helpers compute; they get no tensors\n"
        "  do:  call it in the program"
    )


def test_one_constant_of_two_values() -> None:
    cell = run_cell(HELPERS)
    other = """
from tilelink.frontend import program
import tilelink.language as tl
LIMIT = 6
@program("M -> M")
def f(a, out):
    m = tl.tile_id(out)
    tl.tile_store(out, m, clamp(LIMIT, 0))
"""
    found = run_cell(other, {"clamp": cell["clamp"]})["f"]
    assert isinstance(found, Program)
    text = message(lambda: found.captured)
    assert [line for line in text.splitlines() if "-->" not in line] == [
        "TL126: `LIMIT` is 6 in the program and 5 in a helper",
        "    |",
        "  6 | def f(a, out):",
        "    | ^^^^^^^^^^^^^^",
        "  why: a program and its helpers are written into one file",
        "  do:  rename one of them",
    ]


def test_one_constant_of_two_values_in_two_helpers() -> None:
    clamp = run_cell(HELPERS)["clamp"]
    thrice = run_cell("""
import triton
SCALE = 3.0
@triton.jit
def thrice(x):
    return x * SCALE
""")["thrice"]
    found = run_cell(
        """
from tilelink.frontend import program
import tilelink.language as tl
@program("M -> M")
def f(a, out):
    m = tl.tile_id(out)
    tl.tile_store(out, m, clamp(thrice(3), 0))
""",
        {"clamp": clamp, "thrice": thrice},
    )["f"]
    assert isinstance(found, Program)
    text = message(lambda: found.captured)
    assert [line for line in text.splitlines() if "-->" not in line] == [
        "TL126: `SCALE` is 2.0 in one function and 3.0 in another",
        "    |",
        "  6 |     return x * SCALE",
        "    |                ^^^^^",
        "  why: helpers of one program are copied into one file",
        "  do:  rename one of them",
    ]


CLASSES = (
    HELPERS
    + """
import enum
import math

class A:
    b_c = 1.5

class A_b:
    c = 2.5

class Kind(enum.IntEnum):
    LAST = 3

class Word(str, enum.Enum):
    FIRST = "first"

@triton.jit
def spoilt(x):
    A_b_c = 2 * x
    return A_b_c + A.b_c

@triton.jit
def aliased(x):
    clamp = 2 * x
    return renamed(clamp, 0)

"""
)


@table(
    "body, message",
    [
        ("A_b_c = 2\nx = A.b_c + A_b_c", "`A.b_c` is called `A_b_c` in the emitted file, and so is a variable"),
        ("clamp = 2\nx = renamed(clamp, 0)", "`renamed` is called `clamp` in the emitted file, and so is a variable"),
        ("x = A.b_c + A_b.c", "two constants are called `A_b_c`"),
        ("x = spoilt(3)", "`A.b_c` is called `A_b_c` in the emitted file, and so is a variable of the helper"),
        ("x = aliased(3)", "`renamed` is called `clamp` in the emitted file, and so is a variable of the helper"),
    ],
)
def test_one_name_for_two_things_in_the_emitted_file(body: str, message: str) -> None:
    assert said(body, CLASSES).startswith(f"TL126: {message}\n")


def test_not_a_number_is_one_constant() -> None:
    program = with_helper(
        "x = float_(NAN)\ny = NAN", HELPERS + "NAN = float('nan')\n@triton.jit\ndef float_(x):\n    return x + NAN\n\n"
    )
    ((name, value),) = program.globals
    assert (name, str(value)) == ("NAN", "nan")


def test_constants_of_enumerations_are_numbers_and_strings() -> None:
    program = with_helper("x = Kind.LAST\nassert Word.FIRST == 'first'", CLASSES)
    assert repr(program.globals) == "(('Kind_LAST', 3), ('Word_FIRST', 'first'))"


def test_a_default_that_is_another_number_by_now() -> None:
    helper = "START = 2\n@triton.jit\ndef from_(x, start=START):\n    return x + start\n\nSTART = 3\n"
    assert said("x = from_(1)", HELPERS + helper) == (
        "TL146: the default `START` of `from_` was 2 and is 3 now\n"
        "     |\n"
        "  24 | def from_(x, start=START):\n"
        "     |                    ^^^^^\n"
        "  why: Python keeps the one, and a helper is copied as source\n"
        "  do:  write the number, or define the helper again"
    )
