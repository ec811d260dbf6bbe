"""What may stand in an emitted file: a closed set of syntax, and names that the file itself, Triton or SHMEM gives it.

A file is built from formulas, from names that the grammar of signatures or Python's own syntax has let through, and from
expressions that capture has checked. This looks at the result once more before anybody imports it, so that no text from
outside can become code by a way that nobody thought of.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from tilelink.errors import Loc, TilelinkError

IMPORTS = frozenset(
    {
        "import triton",
        "import triton.language as tl",
        "from tilelink.device import peer as shmem",
        "from tilelink.device import nvshmem as shmem",
        "from tilelink.device import blocks",
    }
)
MODULES = frozenset({"triton", "tl", "shmem", "blocks"})
BUILTINS = frozenset(
    {
        *("range", "min", "max", "abs", "len", "float", "int", "bool", "str", "print"),
        *("isinstance", "list", "tuple", "getattr", "hasattr"),
    }
)
"""Those that Triton compiles; nothing that reads, writes or evaluates."""

SYNTAX = frozenset(
    {
        *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Pass, ast.Break, ast.Continue),
        *(ast.For, ast.While, ast.If, ast.Assert, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call),
        *(ast.Constant, ast.Attribute, ast.Subscript, ast.Name, ast.List, ast.Tuple, ast.Slice, ast.Starred),
        *(ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.GeneratorExp, ast.comprehension),
        *(ast.keyword, ast.arguments, ast.arg),
        *(
            kind
            for part in (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
            for kind in part.__subclasses__()
        ),
    }
)
"""Kinds of nodes that a kernel is made of."""


@lru_cache(128)  # one text may be emitted for many shapes
def check_text(text: str, name: str) -> None:
    """Refuse a file that contains anything but Triton functions, their constants and the imports above.

    Args:
        text: the whole file.
        name: whose it is, for diagnostics.

    Raises:
        TilelinkError: TL406.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(name, text, getattr(error, "lineno", None) or 1, f"it is no Python ({error})") from error
    given = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    given |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    for k, node in enumerate(tree.body):
        if not _may_stand(node, first=k == 0):
            raise _refused(name, text, node.lineno, "it is neither a Triton function nor a constant")
        if isinstance(node, ast.FunctionDef):
            _check_function(name, text, node, given)


def _may_stand(node: ast.stmt, *, first: bool) -> bool:
    """At the top of the file."""
    if isinstance(node, ast.FunctionDef):
        return [ast.unparse(d).split("(")[0] for d in node.decorator_list] == ["triton.jit"]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return ast.unparse(node) in IMPORTS
    if isinstance(node, ast.Expr):
        return first and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Assign) and _is_constant(node.value)


def _is_constant(value: ast.expr) -> bool:
    """`tl.constexpr(…)` of a literal, or of the text of a number that has no literal."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "tl.constexpr":
        return False
    given = value.args[0] if len(value.args) == 1 and not value.keywords else None
    if isinstance(given, ast.Call) and ast.unparse(given.func) == "float" and len(given.args) == 1:
        given = given.args[0]
    if isinstance(given, ast.UnaryOp) and isinstance(given.op, ast.USub):
        given = given.operand
    return isinstance(given, ast.Constant)


def _check_function(name: str, text: str, function: ast.FunctionDef, given: set[str]) -> None:
    nodes = [n for part in (function.args, *function.body) for n in ast.walk(part)]
    known = given | MODULES | BUILTINS
    known |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    known |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in nodes:
        if type(node) not in SYNTAX:
            what = f"`{type(node).__name__}` is no syntax of a kernel"
        elif isinstance(node, ast.Name) and node.id not in known:
            what = f"`{node.id}` is given by nobody"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            what = f"`.{node.attr}` reaches behind an object"
        else:
            continue
        raise _refused(name, text, getattr(node, "lineno", function.lineno), what)


def _refused(name: str, text: str, line: int, what: str) -> TilelinkError:
    lines = text.splitlines()
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    return TilelinkError(
        "TL406",
        f"the text emitted for `{name}` is not loaded: {what}",
        loc=Loc(f"<emitted {name}>", line, len(shown) - len(shown.lstrip()), text=shown),
        why="emitted files are imported, so they may contain kernels and nothing else",
        hint="please report the operator with its schedule",
    )
