"""The state of one capture: what names mean by now, the ops so far, what else the program needs.

The modules around it (`expressions`, `words`, `primitives`, `statements`) are functions over this state.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeAlias

from tilelink.errors import Loc, Note
from tilelink.frontend.jit import Helpers
from tilelink.frontend.outside import alike
from tilelink.frontend.scope import BUILTINS, Number, Reference, Scope
from tilelink.frontend.source import FunctionSource, bound_names
from tilelink.frontend.values import RANKS, Binding, Environment, Value, Variable, is_index
from tilelink.frontend.wording import numbered
from tilelink.ir.formula import Sym
from tilelink.ir.program import Let, Op, Param, Tile

RESERVED = frozenset({"tl", RANKS, *BUILTINS, *keyword.kwlist})
"""Names that emitted expressions use for themselves."""

Mark: TypeAlias = "tuple[int, set[str], dict[tuple[object, ...], str], dict[tuple[str, object], str]]"


class Lowering:
    """One capture in progress.

    Attributes:
        source: the function.
        scope: the names around it.
        params: tensor parameters by name.
        env: what each name of the function means at this point.
        ops: the block that is being written.
        domain: the `Tile` op, once there.
        around: of the loops and branches around, the variables as ops call them ("": it has none).
        bounds: generated names of bounds that are known here.
        conditional: why a load may not be taken out of the expression being lowered.
        raw: the program has a pointer.
        once: names that one line alone binds, so that they may be those of ops. Ops are told apart by their names alone, and
            formulas speak of these: no op has a name that another line binds.
        walks: what the ops call the variable of a loop, by its name and what it walks.
        assigned: what the ops call a name that lines assign, where that is not the name: a constant keeps its own.
    """

    def __init__(
        self,
        source: FunctionSource,
        scope: Scope,
        params: tuple[Param, ...],
        lower: Callable[[Lowering, ast.expr], Value],
    ) -> None:
        self.source = source
        self.loc, self.fail = source.loc, source.fail
        # The value of an expression: `expressions.lower`, handed in, for primitives and expressions need each other.
        self.lower = partial(lower, self)
        self.scope = scope
        self.params = {p.name: p for p in params}
        self.helpers = Helpers()
        self.globals: dict[str, bool | int | float | str] = {}
        self.env: Environment = {}
        self.lost: dict[str, Loc] = {}
        self.ops: list[Op] = []
        self.domain: Tile | None = None
        self.around = frozenset[str]()
        self.bounds: dict[tuple[object, ...], str] = {}
        self.conditional: str | None = None
        self.raw = False
        bound = list(bound_names(source.node))
        self.locals = frozenset(bound)
        self.once = frozenset(n for n in bound if bound.count(n) == 1)
        walked = [n.target for n in ast.walk(source.node) if isinstance(n, ast.For)]
        loops = [target.id for target in walked if isinstance(target, ast.Name)]
        self._of_loops = frozenset(n for n in loops if bound.count(n) == loops.count(n))
        self.walks: dict[tuple[str, object], str] = {}
        self.assigned: dict[str, str] = {}
        self._taken = {n.id for n in ast.walk(source.node) if isinstance(n, ast.Name)} | self.locals | RESERVED

    def as_numbers(self, node: ast.expr, *values: Value) -> None:
        """Refuses sums with an R coordinate where numbers are meant: there is no saying whether they are to wrap (TL145)."""
        if any(v.wrapped for v in values):
            message = f"in `{ast.unparse(node)}` a sum with an R coordinate is taken for a number"
            why = "such a sum is a coordinate again and counts round the ring: after the last rank comes the first"
            hint = "keep it apart (`r * part + part`, `r == tl.num_ranks() - 1`), or write `% tl.num_ranks()` behind it"
            self.fail("TL145", node, message, why, hint)

    # ------------------------------------------------------------------------------------------------------------ names
    def look_up(self, node: ast.expr) -> Reference | None:
        return self.scope.look_up(node, self.locals)

    def tensor(self, node: ast.expr) -> Param | None:
        return self.params.get(node.id) if isinstance(node, ast.Name) else None

    def constant(self, number: Number, node: ast.expr) -> str:
        """The name under which the program finds a constant of its module. TL126: it is that of something else."""
        self.alone(number.name, node)
        if not alike(self.globals.setdefault(number.name, number.value), number.value):
            why = "constants are written at the head of a file, those of modules and classes with `_` for dots"
            self.fail("TL126", node, f"two constants are called `{number.name}`", why, "rename one of them")
        return number.name

    def alone(self, name: str, node: ast.expr) -> None:
        """Refuses what is called like a variable of the program in the emitted file (TL126)."""
        if name in self.locals:
            message = f"`{ast.unparse(node)}` is called `{name}` in the emitted file, and so is a variable"
            why = "helpers keep the name of their `def` there, and constants theirs, with `_` for dots"
            self.fail("TL126", node, message, why, f"rename the variable `{name}`")

    def static(self, value: Value, *, spelled: bool = False) -> bool:
        """Whether a value is made of constants alone, so that the compiler knows it. `spelled`: of them by their own names, and
        of the number of ranks. What was assigned to a name is computed by the kernel, of whatever it is made."""
        for name in value.names:
            binding = self.env.get(name)
            if isinstance(binding, Variable):
                if not binding.static or (spelled and binding.value.formula != Sym(name)):
                    return False
            elif name not in self.globals and not (spelled and name == RANKS):
                return False
        return not any(isinstance(n, ast.Call) for n in ast.walk(value.node))

    def said(self, name: str) -> str:
        """What the ops call the variable that lines of the program assign by this name."""
        return self.assigned.get(name, name)

    def loop_variable(self, name: str, walked: object) -> str:
        """What the ops call the variable of a loop: its name, unless that stands for something else elsewhere."""
        if name in self.once:
            return name
        known = self.walks.get((name, walked))
        if known is None or known in self.around:
            first = name in self._of_loops and all(n != name for n, _ in self.walks)
            known = self.walks[name, walked] = name if first else self.fresh(name)
        return known

    def fresh(self, wish: str) -> str:
        """A name that nothing else has: `wish`, else `wish_2`, ..."""
        wish = "".join(c if c.isalnum() or c == "_" else "_" for c in wish)
        name = numbered(wish, self._taken)
        self._taken.add(name)
        return name

    def bind(self, name: str, binding: Binding, node: ast.AST) -> None:
        old = self.env.get(name)
        if is_index(old) and old != binding:
            self.bound_again(name, old.loc, node)
        self.env[name] = binding

    def keep(self, name: str, loc: Loc) -> None:
        """Copies what has been bound to a name, and is called otherwise, to the variable that other lines assign by it."""
        binding, said = self.env[name], self.said(name)
        if isinstance(binding, Variable) and binding.name != said:
            self.ops.append(Let(target=(said,), value=binding.value.expr(), loc=loc))

    def bound_again(self, name: str, before: Loc, node: ast.AST) -> NoReturn:
        """Refuses to bind the name of an index (TL153)."""
        why, note = "an index keeps its name while it lasts", Note(f"`{name}` is bound here", before)
        message = f"`{name}` is the name of an index and is bound again"
        self.fail("TL153", node, message, why, "use another name", (note,))

    def lose(self, name: str, binding: Binding | None, loc: Loc) -> None:
        """Remembers where a name was bound that is not bound on every path."""
        self.lost.setdefault(name, binding.loc if isinstance(binding, Variable) else loc)

    # ----------------------------------------------------------------------------------------------------------- blocks
    @contextmanager
    def block(self, var: str | None = None) -> Generator[list[Op]]:
        """Collects the ops of a branch's body, or a loop's, with its variable."""
        outer, bounds, around, ops = self.ops, self.bounds, self.around, list[Op]()
        self.ops, self.bounds, self.around = ops, dict(bounds), around | {var or ""}
        try:
            yield ops
        finally:
            self.ops, self.bounds, self.around = outer, bounds, around

    @contextmanager
    def under(self, reason: str) -> Generator[None]:
        """While an expression is lowered that is not always evaluated."""
        outer, self.conditional = self.conditional, self.conditional or reason
        try:
            yield
        finally:
            self.conditional = outer

    def mark(self) -> Mark:
        return len(self.ops), set(self._taken), dict(self.bounds), dict(self.walks)

    def rewind(self, mark: Mark) -> None:
        written, taken, bounds, walks = mark
        del self.ops[written:]
        self._taken, self.bounds, self.walks = set(taken), dict(bounds), dict(walks)
