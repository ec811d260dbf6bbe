"""A rehearsal runs a function: statements and expressions of a program, and of functions that it calls, on blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, cast

import numpy as np

from tilelink.frontend.rehearsal import blocks, calls
from tilelink.frontend.rehearsal.blocks import IN, PAST, Block, Edge, agreed, elementwise, flat, number
from tilelink.frontend.rehearsal.calls import Call, Frame
from tilelink.frontend.rehearsal.drawn import Given
from tilelink.frontend.rehearsal.language import result
from tilelink.frontend.rehearsal.operators import CEILED, ELEMENTWISE, OPERATORS, ROUNDED, spoilt
from tilelink.frontend.rehearsal.places import ENOUGH, RANKS, Trial
from tilelink.frontend.rehearsal.primitives import Primitives
from tilelink.frontend.scope import Builtin, Jitted, Language, Number, Primitive, Scope
from tilelink.frontend.source import bound_names, read_source
from tilelink.ir.program import Together

HELPERS = 8
"""How deep functions of the user's call one another in a rehearsal."""
OF_NUMBERS = {"max": np.fmax, "min": np.fmin}
"""Python's, which take numbers."""


class _Returned(Exception):
    """A function of the user's is done."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Unread(Exception):
    """A function of the user's has what a rehearsal does not know; a program has no such thing."""


def rehearse(trial: Trial) -> None:
    """Runs the program; nothing is left of it but what the trial has found and stored."""
    program, variables = trial.program, {**trial.program.params, **trial.constants}
    run = Run(trial, program.source, program.scope, program.locals, variables, [])
    run.block(program.source.node.body)


class Run(Frame):
    """A function that is being run."""

    # ------------------------------------------------------------------------------------------------------- statements
    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign(value=ast.expr() as given):
                self._assign(node.target, self.value(given))
            case ast.AugAssign(target=ast.Name() as target):
                self._assign(target, self._operator(node, node.op, target, node.value))
            case ast.If():
                taken, told = self._side(node, node.test)
                self.under.append(told)
                self.block(node.body if taken else node.orelse)
                if not told or not any(isinstance(n, ast.Return) for n in ast.walk(node)):
                    self.under.pop()
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as call):
                for value in self._turns(call, name):
                    self.env[name] = value
                    self.block(node.body)
            case ast.While():
                for turn in range(self.trial.turns):
                    if not blocks.holds(self._counted(self.value(node.test))) and (turn or not self.trial.once):
                        break
                    self.block(node.body)
            case ast.Return():
                raise _Returned(None if node.value is None else self._told(self.value(node.value)))
            case ast.Expr(value=ast.Call() as call) if isinstance(self._reference(call.func), Primitive):
                self.value(call)
            case ast.Pass() | ast.Expr() | ast.Assert() | ast.AnnAssign():
                pass
            case _:
                raise _Unread

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            told = self._told(value)
            self.env[target.id] = replace(told, static=False) if isinstance(told, Block) and told.static else told
        elif isinstance(target, ast.Tuple | ast.List):
            for k, each in enumerate(target.elts):
                self._assign(each, blocks.part(value, k))

    def _told(self, value: Any) -> Any:
        """A value that hangs on the branches around as well."""
        if isinstance(value, tuple):
            return tuple(map(self._told, cast("tuple[Any, ...]", value)))
        return (
            replace(value, taken=value.taken.union(*self.under)) if self.under and isinstance(value, Block) else value
        )

    def _side(self, node: ast.AST, test: ast.expr) -> tuple[bool, frozenset[Together]]:
        """Which side of a branch is taken, and what that hangs on. Of what is written out, no other is ever compiled."""
        found = agreed(self.value(test))
        side = self.trial.way.get(node, blocks.holds(found))
        self.trial.paths.ways.setdefault(node, (self.trial.drawn, dict(self.trial.sides)))
        self.trial.sides[node] = side
        seen = self.trial.paths.seen.setdefault(node, set())
        natural = not isinstance(found, Block) or found.known or found.static or self._is_sign(test)
        seen.update({True, False} if natural else {side})
        return side, found.taken if isinstance(found, Block) else frozenset()

    def _is_sign(self, test: ast.expr) -> bool:
        """Whether a constant is compared with 0: on other sides there are other constants."""
        match test:
            case ast.Compare(left=ast.Name(id=name), comparators=[ast.Constant(value=0)]):
                return name in self.trial.constants
            case _:
                return False

    def _counted(self, value: Any) -> Any:
        """What says how often a loop goes round."""
        if isinstance(value, Block):
            self.trial.found.loops |= {t.var for t in value.taken}
        return agreed(value)

    def _turns(self, call: ast.Call, name: str) -> Sequence[Any]:
        """What a loop's variable `name` stands for, turn by turn. For what its lines do it goes round once at least."""
        args, keywords = [self.value(a) for a in call.args], self._keywords(call)
        if isinstance(self._reference(call.func), Primitive):
            return Primitives(self, call, "tiles").tiles(name, *args, **keywords)
        words = ("stop",) if len(args) == 1 else ("start", "stop", "step")
        limits = {w: self._counted(v) for w, v in (*zip(words, args, strict=False), *keywords.items())}
        start, stop, step = (blocks.integer(limits.get(w), d) for w, d in (("start", 0), ("stop", 1), ("step", 1)))
        data = any(isinstance(v, Block) and v.data for v in limits.values())
        unrolled = ast.unparse(call.func).endswith("static_range")
        turns = range(start, stop, step or 1)[: ENOUGH if unrolled else self.trial.turns]
        return [number(n, data=data, static=unrolled) for n in turns or (start,) * self.trial.once]

    # ------------------------------------------------------------------------------------------------------ expressions
    def value(self, node: ast.expr) -> Any:
        """Blocks, tuples, tiles of axes, and texts; None: what is none of these."""
        match node:
            case ast.Constant(value=value):
                return blocks.literal(value)
            case ast.Name(id=name):
                return self.env[name] if name in self.env else self._outer(node)
            case ast.Tuple() | ast.List():
                return tuple(self.value(e) for e in node.elts)
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._operator(node, op, left, right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._operator(node, op, operand)
            case ast.BoolOp(op=op, values=parts):
                return self._operator(node, op, *parts)
            case ast.IfExp():
                taken, told = self._side(node, node.test)
                found = self.value(node.body if taken else node.orelse)
                return replace(found, taken=found.taken | told) if isinstance(found, Block) else found
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._subscript(node, self.value(node.value))
            case ast.Slice():
                bounds = (None if b is None else self.value(b) for b in (node.lower, node.upper, node.step))
                return slice(*(int(b.number) if isinstance(b, Block) else None for b in bounds))
            case ast.Call():
                return self._call(node)
            case _:
                raise _Unread

    def _reference(self, node: ast.expr) -> Any:
        known = self.trial.paths.known
        if node not in known:
            known[node] = self.scope.look_up(node, self.locals)
        return known[node]

    def _outer(self, node: ast.expr) -> Any:
        found = self._reference(node)
        if isinstance(found, Number):
            return blocks.literal(found.value)
        return found.path if isinstance(found, Language) else found

    def _operator(self, node: ast.AST, op: ast.AST, *parts: ast.expr) -> Any:
        sides: list[Any] = [self.value(part) for part in parts]
        if isinstance(op, ast.boolop):
            sides = [*flat(tuple(sides))] or [None]
        if not all(isinstance(side, Block) for side in sides):
            return self._of_others(op, *sides)
        if type(op) not in OPERATORS:
            raise _Unread
        a, b, function = sides[0], sides[-1], OPERATORS[type(op)]
        if b.counts_lanes and (isinstance(op, ast.Div) or (isinstance(op, ast.FloorDiv | ast.Mod) and a.data)):
            calls.length(self, node, f"a division by `{ast.unparse(parts[-1])}`", "divide by")
        if isinstance(op, ast.cmpop):
            found = blocks.compared(function, a, b)
        elif isinstance(op, ast.Sub):
            found = blocks.difference(function, a, b)
        else:
            found = elementwise(function, *sides)
        if (a.coordinate or b.coordinate) and isinstance(op, ast.Add | ast.Sub) and not found.rank:
            return number(int(found.number) % RANKS, coordinate=True)
        if type(op) in ROUNDED:
            found = self._rounded(node, ROUNDED[type(op)], found, a, b)
        return self._together(node, found, parts, sides)

    def _of_others(self, op: ast.AST, *sides: Any) -> Any:
        """An operator of what are not all blocks: tuples beside one another, texts that are compared."""
        a, b = sides[0], sides[-1]
        if isinstance(op, ast.cmpop):
            alike = a == b if isinstance(a, str) and isinstance(b, str) else a is b
            known = not (isinstance(a, Given) or isinstance(b, Given))
            return number(alike == isinstance(op, ast.Eq | ast.Is), known=known, static=known)
        if isinstance(a, tuple) and isinstance(b, tuple):
            return cast("tuple[Any, ...]", a + b)
        return spoilt("", [*flat(sides)]) if len(sides) > 1 else None

    def _together(self, node: ast.AST, made: Block, parts: Sequence[ast.expr], sides: Sequence[Any]) -> Block:
        """What values make together. The length of a block is none of them."""
        for part, side in zip(parts, sides, strict=False) if made.rank else ():
            if isinstance(side, Block) and side.counts_lanes:
                calls.length(self, node, f"`{ast.unparse(part)}` beside values", "use")
        return made

    def _rounded(self, node: ast.AST, function: Callable[..., Any], found: Block, a: Block, b: Block) -> Block:
        """A quotient or its rest: Python's of ranks and where Triton computes it when it compiles; else that is what is meant."""
        meant = elementwise(function, a, b)
        if found.static or a.coordinate:
            return replace(meant, coordinate=a.coordinate)
        self.trial.found.quotients |= not found.data
        if found.data or self.trial.drawn.first is None or (found.value[0] == meant.value[-1])[found.marks == IN].all():
            return found
        odd = found.odd or partial(calls.rounded, self, node)
        return replace(found, value=np.stack([found.value[0], meant.value[-1]]), odd=odd)

    def _attribute(self, node: ast.Attribute) -> Any:
        base = node.value
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Name) and base.id not in self.env:
            return self._outer(node)
        found = self.value(node.value)
        if not isinstance(found, Block):
            return None
        if node.attr == "shape":
            return tuple(found.along(k) for k in range(found.rank))
        if node.attr == "T":
            return found.moved(lambda v: np.moveaxis(v.T, -1, 0), found.edges[::-1])
        if node.attr == "numel":
            counted = number(int(np.prod(found.lengths)))
            return counted if found.mark is None else replace(counted, mark=np.asarray(PAST))
        return node.attr

    def _subscript(self, node: ast.Subscript, found: Any) -> Any:
        if isinstance(found, tuple):
            at, parts = self.value(node.slice), list[Any](found)  # pyright: ignore[reportUnknownArgumentType]
            return tuple(parts[at]) if isinstance(at, slice) else blocks.part(found, blocks.integer(at, 0))
        if not isinstance(found, Block):
            return None
        entries = [self.value(e) for e in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
        if sum(e is not None for e in entries) > found.rank:
            return spoilt("", [found])
        kept, edges = iter(found.edges), list[Edge | None]()
        for e in entries:
            edge = None if e is None else next(kept)
            edges += [edge] if e is None or isinstance(e, slice) else []
        picked = [slice(None) if isinstance(e, slice) else 0 if isinstance(e, Block) else None for e in entries]
        return found.moved(lambda v: v[(slice(None), *picked)], (*edges, *kept))

    # ------------------------------------------------------------------------------------------------------------ calls
    def _call(self, node: ast.Call) -> Any:
        found = self._reference(node.func)
        if found is None and isinstance(node.func, ast.Name):  # a function that a function of the user's was given
            found = self.env.get(node.func.id)
        if isinstance(found, Primitive):
            call = Primitives(self, node, found.name)
            known = None if hasattr(Call, found.name) else getattr(call, found.name, None)
            return None if known is None else known(*map(self.value, node.args), **self._keywords(node))
        args, keywords = [self.value(a) for a in node.args], self._keywords(node)
        name, far = "", isinstance(found, Language) and found.path.count(".") > 1
        if isinstance(found, Language | Builtin):
            name = found.name
        elif isinstance(node.func, ast.Attribute) and found is None:
            name, args = node.func.attr, [self.value(node.func.value), *args]
        if isinstance(found, Jitted):
            return self.call(Call(self, node, name), found, args, keywords)
        if isinstance(found, Builtin) and name in OF_NUMBERS:
            return reduce(partial(elementwise, OF_NUMBERS[name]), flat(tuple(args)))
        made = result(self, node, name, args, keywords, lanewise=far)
        if isinstance(made, Block) and name == "cdiv" and len(args) == 2:
            made = self._rounded(node, CEILED, made, *args)
        if isinstance(made, Block) and name in ELEMENTWISE:
            self._together(node, made, node.args, args)
        return made

    def _keywords(self, node: ast.Call) -> dict[str, Any]:
        return {str(k.arg): self.value(k.value) for k in node.keywords}

    def call(self, call: Call, function: Any, args: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Any:
        """What a function of the user's gives, by its own lines. Of one that has what no rehearsal knows, nothing is known."""
        if isinstance(function, Jitted) and len(self.callers) < HELPERS:
            source = read_source(function.function)
            scope, arguments = Scope(function.function), source.node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            defaults = [*zip(reversed(names), reversed(arguments.defaults), strict=False)]
            named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            defaults += [(a.arg, d) for a, d in named if d is not None]
            local = frozenset(bound_names(source.node))
            run = Run(self.trial, source, scope, local, {}, [*self.under], (self, call.loc))
            try:
                run.env.update({n: run.value(d) for n, d in defaults})
                run.env.update({**dict(zip(names, args, strict=False)), **(keywords or {})})
                run.block(source.node.body)
                return None
            except _Returned as done:
                return done.value
            except _Unread:
                pass
        values = [*flat((*args, *(keywords or {}).values()))]
        for block in values:
            call.note(block.edges)
        return spoilt("", values)
