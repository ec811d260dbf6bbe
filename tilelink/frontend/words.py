"""What every primitive's lowering is given: its call, with checked access to parameters, indices and axes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tilelink.errors import Loc, Note
from tilelink.frontend.indices import build_index
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import Tensor, constant_of
from tilelink.ir.program import Expr, Index, Param
from tilelink.ir.shape import Axis

WHILE_TEST = "the test of a `while`"
Node = ast.expr | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a primitive. `target`: the name that its op may have: its value is assigned to that, and nothing else is."""

    state: Lowering
    node: ast.Call
    name: str
    target: str | None

    @property
    def loc(self) -> Loc:
        return self.state.loc(self.node)

    def result(self, wish: str) -> str:
        return self.target or self.state.fresh(wish)

    def param(self, node: ast.expr) -> Param:
        """The tensor parameter that an argument names."""
        binding = self.state.env.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(binding, Tensor):
            return self.state.params[binding.param]
        known = ", ".join(f"`{p}`" for p in self.state.params)
        hint = self.state.suggestion(ast.unparse(node), self.state.params) or "name a parameter"
        why = f"the tensors of this program are {known}"
        self.state.fail("TL132", node, f"`tl.{self.name}` of `{ast.unparse(node)}`, which is no tensor", why, hint)

    def index(self, param: Param, node: Node) -> Index:
        return build_index(self.state, param, node)

    def whole_or_index(self, param: Param, node: Node) -> Index | None:
        return None if node is None else self.index(param, node)

    def expr(self, node: Node) -> Expr | None:
        return None if node is None else self.state.lower(node).expr()

    def value(self, node: ast.expr) -> Expr:
        return self.state.lower(node).expr()

    def literal(self, node: Node, default: int, what: str) -> int:
        if node is None:
            return default
        value = constant_of(node)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        why = "it decides which code is written"
        self.fail("TL135", node, f"the {what} of `tl.{self.name}` is `{ast.unparse(node)}`", why, "write a number")

    def axis(self, param: Param, node: Node) -> tuple[int, Axis]:
        """An axis by its number, 0 by default."""
        axes, number = param.shape.axes, self.literal(node, 0, "axis")
        at = number + len(axes) if number < 0 and param.shape.rest is None else number
        if 0 <= at < len(axes):
            return at, axes[at]
        rest = "; axes behind `...` have no number" if param.shape.rest is not None else ""
        hint = f"write a number below {len(axes)}" if axes else "name an axis in the signature"
        self.fail(
            "TL133", node or self.node, f"`{param.name}` has no axis {number}", f"it is `{param.shape}`{rest}", hint
        )

    def fail(
        self, code: str, node: ast.AST | Loc, message: str, why: str, hint: str, notes: tuple[Note, ...] = ()
    ) -> NoReturn:
        self.state.fail(code, node, message, why, hint, notes)


@dataclass(frozen=True, slots=True)
class Word:
    """`kind`: `value` (an expression), `effect` (a line of its own), `domain` (tile_id), `loop` (tiles)."""

    kind: str
    lower: Callable[..., Any]

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of the word itself."""
        whole = inspect.signature(self.lower)
        return whole.replace(parameters=list(whole.parameters.values())[1:])
