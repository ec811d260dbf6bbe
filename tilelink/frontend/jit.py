"""`@triton.jit` functions that a program calls, copied as source with everything they need.

An emitted file cannot import a notebook, so their text is copied; Triton's language is spelled `tl` in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from copy import deepcopy
from types import FunctionType

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.outside import Found, alike
from tilelink.frontend.scope import BUILTINS, Jitted, Language, Number, Opaque, Primitive, Scope
from tilelink.frontend.source import FunctionSource, bound_names, read_source
from tilelink.ir.program import Helper

_HELPER_BUILTINS = ("len", "print", "isinstance", "list", "tuple", "getattr", "hasattr")
"""Further builtins that Triton compiles."""


class Helpers:
    """The helpers of one program, callees before callers."""

    def __init__(self) -> None:
        self.globals: dict[str, bool | int | float | str] = {}
        self.found: list[Found] = []
        self.copied: list[Helper] = []
        self._known: dict[str, FunctionType] = {}

    def add(self, helper: Jitted, loc: Loc) -> str:
        """Copies a helper and all that it calls; the name that calls it."""
        if helper.name in self._known:
            if self._known[helper.name] is not helper.function:
                why, hint = "helpers of one program are copied into one file", "rename one of them"
                raise TilelinkError("TL126", f"two helpers are called `{helper.name}`", loc=loc, why=why, hint=hint)
            return helper.name
        self._check_name("helper", helper.name, loc)
        self._known[helper.name] = helper.function
        text = self._copy(helper.function)
        self.copied.append(Helper(helper.name, text))  # behind what it calls
        return helper.name

    def _copy(self, function: FunctionType) -> str:
        source, scope = read_source(function), Scope(function)
        own = frozenset(bound_names(source.node))
        self._check_defaults(function, source, scope)
        # A copy: the tree belongs to the whole file.
        tree = deepcopy(source.node)
        tree.decorator_list, tree.returns = [], None
        outer = _Outer(own, lambda node: self._need(source, scope, node, own))
        outer.visit(tree)
        self.found += scope.found
        if not outer.renamed and source.node.returns is None and source.node.col_offset == 0:
            # As it is written, where it stands at the margin and says nothing of its result; else as Python prints it.
            found = re.search(r"^def\s", source.text, re.MULTILINE)
            return "@triton.jit\n" + source.text[found.start() if found else 0 :]
        return "@triton.jit\n" + ast.unparse(tree) + "\n"

    def _need(self, source: FunctionSource, scope: Scope, node: ast.expr, own: frozenset[str]) -> str:
        """What a name from outside a helper is called in the file, where what it stands for is put."""
        spelled, found = ast.unparse(node), scope.look_up(node, own)
        if isinstance(found, Language):
            return found.path
        if isinstance(found, (Number, Jitted)):
            if found.name in own:
                message = (
                    f"`{spelled}` is called `{found.name}` in the emitted file, and so is a variable of the helper"
                )
                hint = f"rename the variable `{found.name}`"
                source.fail("TL126", node, message, "helpers are copied as source", hint)
            if isinstance(found, Jitted):
                return self.add(found, source.loc(node))
            self._check_name("constant", found.name, source.loc(node))
            old = self.globals.setdefault(found.name, found.value)
            if not alike(old, found.value):
                message = f"`{found.name}` is {old!r} in one function and {found.value!r} in another"
                why = "helpers of one program are copied into one file"
                source.fail("TL126", node, message, why, "rename one of them")
            return found.name
        if isinstance(found, Primitive):
            why = "helpers compute; they get no tensors"
            source.fail("TL124", node, f"`tl.{found.name}` in a helper", why, "call it in the program")
        if isinstance(found, Opaque) and spelled not in _HELPER_BUILTINS:
            why = "a helper is copied as source, with constants and `@triton.jit` functions"
            source.fail("TL124", node, f"`{spelled}` cannot be copied", why, "pass it to the helper as an argument")
        if found is None:
            message, why = f"`{spelled}` is not defined", "a helper is copied as source"
            source.fail("TL124", node, message, why, "define or import it")
        return spelled

    @staticmethod
    def _check_defaults(function: FunctionType, source: FunctionSource, scope: Scope) -> None:
        """Refuses a default that would not be copied as the number that Python has worked out (TL146)."""
        values = function.__defaults__ or ()
        for node, value in zip(reversed(source.node.args.defaults), reversed(values), strict=False):
            found, was = scope.look_up(node, frozenset()), getattr(value, "value", value)
            if isinstance(found, Number) and not alike(found.value, was):
                default = f"the default `{ast.unparse(node)}` of `{source.node.name}`"
                why = "Python keeps the one, and a helper is copied as source"
                hint = "write the number, or define the helper again"
                source.fail("TL146", node, f"{default} was {was!r} and is {found.value!r} now", why, hint)

    @staticmethod
    def _check_name(kind: str, name: str, loc: Loc) -> None:
        if name in BUILTINS or name in _HELPER_BUILTINS:
            why = f"the other functions of the file mean Python's `{name}`"
            raise TilelinkError("TL114", f"a {kind} called `{name}`", loc=loc, why=why, hint="use another name")


class _Outer(ast.NodeTransformer):
    """Spells the longest `name.attribute...` chains from names that are not a function's own, annotations included, as they are
    called in the file."""

    def __init__(self, own: frozenset[str], called: Callable[[ast.expr], str]) -> None:
        self._own = own
        self._called = called
        self.renamed = False

    def visit_Attribute(self, node: ast.Attribute | ast.Name) -> ast.AST:
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name) or base.id in self._own or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        new = self._called(node)
        if new == ast.unparse(node):
            return node
        self.renamed = True
        return ast.parse(new, mode="eval").body

    visit_Name = visit_Attribute
