"""One rehearsal: statements and expressions of a program, and of the functions that it calls, on blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from tilelink.errors import Loc, Note
from tilelink.frontend.rehearsal import blocks, refusals
from tilelink.frontend.rehearsal.blocks import IN, PAST, Array, Block, Edge, elementwise, number, spread
from tilelink.frontend.rehearsal.functions import ELEMENTWISE, PARAMETERS, Called, Findings, flat, spoilt
from tilelink.frontend.rehearsal.operators import BINARY, CEILED, COMPARED, ROUNDED, UNARY
from tilelink.frontend.rehearsal.places import RANKS, SIZES, TILE, Drawn, Given, Paths, TileAt, Trial
from tilelink.frontend.rehearsal.reductions import result, same
from tilelink.frontend.scope import VOCABULARY, Builtin, Jitted, Language, Number, Primitive, Scope
from tilelink.frontend.source import FunctionSource, bound_names, read_source
from tilelink.ir.program import Constant, Param, Together
from tilelink.ir.shape import RANK_AXIS, Signature, dims_of

TURNS, ENOUGH = 4, 32
"""Turns of a loop that are rehearsed; in the first rehearsal, and of a loop that is unrolled, there are enough."""
HELPERS = 8
"""How deep functions of the user's call one another in a rehearsal."""
Arguments: TypeAlias = "dict[str, ast.expr]"
"""Of a primitive, by name."""
WALK = "(walk)"
"""The tiles of a loop, which are none of the domain."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A program. `domain`: what its ops call the indices of its tile; `given`: constants that have one value."""

    source: FunctionSource
    scope: Scope
    locals: frozenset[str]
    params: Mapping[str, Param]
    constants: Sequence[Constant]
    signature: Signature
    domain: Sequence[str | None]
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])


class _Returned(Exception):
    """A function of the user's is done."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Unread(Exception):
    """A function of the user's has what a rehearsal does not know; a program has no such thing."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The function that is being run. `called`: where, if it is not the program itself."""

    source: FunctionSource
    scope: Scope
    locals: frozenset[str]
    env: dict[str, Any]
    called: Loc | None = None


class Run:
    """A rehearsal of a program; nothing is left of it but what it has found."""

    def __init__(
        self, program: Rehearsed, of: Drawn, paths: Paths, found: Findings, way: Mapping[ast.AST, bool]
    ) -> None:
        self.program, self.paths, self.found, self.drawn, self.way = program, paths, found, of, way
        self.trial = Trial(program.signature, program.params, program.constants, of, program.given)
        self.once = of.half is None
        self.turns = TURNS if self.once and (of.which or of.near) else ENOUGH
        self.sides: dict[ast.AST, bool] = {}
        self.stored: dict[tuple[Any, ...], tuple[float, Loc]] = {}
        self.under: list[frozenset[Together]] = []
        self.tiles: dict[str, TileAt] = {}
        self.frames = [_Frame(program.source, program.scope, program.locals, {})]
        self.env.update(self.trial.constants)
        self.block(program.source.node.body)

    @property
    def frame(self) -> _Frame:
        return self.frames[-1]

    @property
    def env(self) -> dict[str, Any]:
        return self.frames[-1].env

    @property
    def fail(self) -> refusals.Fail:
        """Refuses something at its place in the function that is being run."""
        frames, trial = tuple(self.frames), self.trial

        def fail(node: ast.AST, message: str, why: str, hint: str, code: str = "TL143") -> NoReturn:
            values = {**trial.sizes, **{n: v.number for n, v in trial.constants.items() if isinstance(v, Block)}}
            shown = Note(f"it shows with {', '.join(f'{n}={v:g}' for n, v in values.items())}")
            called = (Note("it is called here", f.called) for f in reversed(frames) if f.called is not None)
            frames[-1].source.fail(code, node, message, why, hint, (*called, shown))

        return fail

    def agreed(self, value: Any, where: Array | None = None) -> Any:
        """Refuses a value that is another for what lies past an edge."""
        if not isinstance(value, Block) or not value.odd:
            return value
        if not same(value.value, value.marks == IN if where is None else where):
            value.odd()
        return value

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
            case ast.AugAssign(target=ast.Name(id=name) as target):
                sides = (target, self.env.get(name)), (node.value, self.value(node.value))
                self._assign(target, self._binary(node, node.op, *sides))
            case ast.If():
                taken, told = self._side(node, node.test)
                self.under.append(told)
                self.block(node.body if taken else node.orelse)
                if not any(isinstance(n, ast.Return) for n in ast.walk(node)):
                    self.under.pop()
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as call):
                for value in self._turns(call, name):
                    self.env[name] = value
                    self.block(node.body)
            case ast.While():
                for turn in range(self.turns):
                    if not blocks.holds(self._counted(self.value(node.test))) and (turn or not self.once):
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
            self.env[target.id] = replace(told, static=False) if isinstance(told, Block) else told
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
        found = self.agreed(self.value(test))
        side = self.way.get(node, blocks.holds(found))
        self.paths.ways.setdefault(node, (self.drawn, dict(self.sides)))
        self.sides[node] = side
        seen = self.paths.seen.setdefault(node, set())
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
            self.found.loops |= {t.var for t in value.taken}
        return self.agreed(value)

    def _turns(self, call: ast.Call, name: str) -> Sequence[Any]:
        """What a loop's variable `name` stands for, turn by turn. For what its lines do it goes round once at least."""
        if isinstance(found := self._reference(call.func), Primitive):
            return self._walk(self._given(call, found.name), name)
        given = [self._counted(self.value(a)) for a in call.args]
        words = ("stop",) if len(given) == 1 else ("start", "stop", "step")
        limits = dict(zip(words, given, strict=False)) | {
            str(k.arg): self._counted(self.value(k.value)) for k in call.keywords
        }
        start, stop, step = (blocks.integer(limits.get(w), d) for w, d in (("start", 0), ("stop", 1), ("step", 1)))
        data = any(isinstance(v, Block) and v.data for v in limits.values())
        unrolled = ast.unparse(call.func).endswith("static_range")
        turns = range(start, stop, step or 1)[: ENOUGH if unrolled else self.turns]
        return [number(n, data=data, static=unrolled) for n in turns or (start,) * self.once]

    def _walk(self, given: Arguments, name: str) -> Sequence[Any]:
        param = self.param(given["t"])
        axis = self.axis(param, given.get("axis"))
        on = param.shape.axes[axis]
        low, high = self.trial.part(on)
        low = self._limit(given.get("start"), low, low, high - self.once)
        high = self._limit(given.get("stop"), high, low + self.once, high)
        high = low + max((high - low) // 2, 1) if "part" in given else high
        if on.unit:
            return [number(n, coordinate=on.name == RANK_AXIS) for n in range(low, high)[: self.turns]]
        self.found.walks[name] = next((k for k, dim in enumerate(self.trial.sizes) if dim in dims_of(on.size)), -1)
        tile = self.drawn.half[1] if self.drawn.half is not None and self.drawn.half[0] == name else TILE
        begins = range(low, high, tile)
        return [self.trial.tile(param, axis, WALK, begin, high, tile) for begin in begins][-self.turns :]

    def _limit(self, node: ast.expr | None, otherwise: int, low: int, high: int) -> int:
        """Where a walk begins or ends: on its axis, wherever a program says."""
        found = None if node is None else self.value(node)
        if not isinstance(found, Block):
            return otherwise
        return blocks.integer(self.agreed(replace(found, value=np.clip(found.value, low, high))), otherwise)

    # ------------------------------------------------------------------------------------------------------ expressions
    def value(self, node: ast.expr) -> Any:
        """Blocks, tuples, tiles of axes, and texts; None: what is none of these."""
        match node:
            case ast.Constant(value=value):
                return value if value is None or isinstance(value, str) else number(value, known=True, static=True)
            case ast.Name(id=name):
                return self.env[name] if name in self.env else self._outer(node)
            case ast.Tuple() | ast.List():
                return tuple(self.value(e) for e in node.elts)
            case ast.BinOp():
                return self._binary(
                    node, node.op, (node.left, self.value(node.left)), (node.right, self.value(node.right))
                )
            case ast.UnaryOp():
                operand = self.value(node.operand)
                return UNARY[type(node.op)](operand) if isinstance(operand, Block) else None
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(node, op, (left, self.value(left)), (right, self.value(right)))
            case ast.BoolOp():
                given = [v for v in map(self.value, node.values) if isinstance(v, Block)]
                function = np.logical_and.reduce if isinstance(node.op, ast.And) else np.logical_or.reduce
                return elementwise(lambda *sides: function(np.broadcast_arrays(*sides)), *given) if given else None
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
        known = self.paths.known
        if node not in known:
            known[node] = self.frame.scope.look_up(node, self.frame.locals)
        return known[node]

    def _outer(self, node: ast.expr) -> Any:
        found = self._reference(node)
        if isinstance(found, Number):
            return found.value if isinstance(found.value, str) else number(found.value, known=True, static=True)
        return found.path if isinstance(found, Language) else found

    def _together(self, node: ast.AST, made: Block, *sides: tuple[ast.expr, Any]) -> Block:
        """What values make together. The length of a block is none of them."""
        for part, side in sides if made.rank else ():
            if isinstance(side, Block) and side.counts_lanes:
                refusals.length(self.fail, node, f"`{ast.unparse(part)}` beside values", "use")
        return made

    def _binary(self, node: ast.AST, op: ast.operator, left: tuple[ast.expr, Any], right: tuple[ast.expr, Any]) -> Any:
        a, b = left[1], right[1]
        if not (isinstance(a, Block) and isinstance(b, Block)):
            if isinstance(a, tuple) and isinstance(b, tuple):
                return cast("tuple[Any, ...]", a + b)
            return spoilt("", [*flat((a, b))])
        if (function := BINARY.get(type(op))) is None:
            raise _Unread
        if b.counts_lanes and (isinstance(op, ast.Div) or (isinstance(op, ast.FloorDiv | ast.Mod) and a.data)):
            refusals.length(self.fail, node, f"a division by `{ast.unparse(right[0])}`", "divide by")
        made = blocks.difference if isinstance(op, ast.Sub) else elementwise
        found = made(function, a, b)
        if (a.coordinate or b.coordinate) and isinstance(op, ast.Add | ast.Sub) and not found.rank:
            return number(int(found.number) % RANKS, coordinate=True)
        meant = ROUNDED.get(type(op))
        return self._together(node, found if meant is None else self._rounded(node, meant, found, a, b), left, right)

    def _rounded(self, node: ast.AST, function: Callable[..., Any], found: Block, a: Block, b: Block) -> Block:
        """A quotient or its rest: Python's of ranks and where Triton computes it when it compiles; else that is what is meant."""
        meant = elementwise(function, a, b)
        if found.static or a.coordinate:
            return replace(meant, coordinate=a.coordinate)
        self.found.quotients |= not found.data
        if found.data or self.drawn.first is None or (found.value[0] == meant.value[-1])[found.marks == IN].all():
            return found
        odd = found.odd or partial(refusals.rounded, self.fail, node)
        return replace(found, value=np.stack([found.value[0], meant.value[-1]]), odd=odd)

    def _compared(self, node: ast.expr, op: ast.cmpop, left: tuple[ast.expr, Any], right: tuple[ast.expr, Any]) -> Any:
        a, b = left[1], right[1]
        if isinstance(a, Block) and isinstance(b, Block):
            return self._together(node, blocks.compared(COMPARED[type(op)], a, b), left, right)
        alike = a == b if isinstance(a, str) and isinstance(b, str) else a is b
        known = not (isinstance(a, Given) or isinstance(b, Given))
        return number(alike == isinstance(op, ast.Eq | ast.Is), known=known, static=known)

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
            axes = [0, *range(found.rank, 0, -1)]
            return found.moved(lambda v: np.transpose(v, axes), found.edges[::-1])
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
            known = _PRIMITIVES.get(found.name)
            return None if known is None else known(self, self._given(node, found.name))
        args = [self.value(a) for a in node.args]
        keywords = {str(k.arg): self.value(k.value) for k in node.keywords}
        name, far = "", isinstance(found, Language) and found.path.count(".") > 1
        if isinstance(found, Language | Builtin):
            name = found.name
        elif isinstance(node.func, ast.Attribute) and found is None:
            name = node.func.attr
            args = [self.value(node.func.value), *args]
        called = self._called(node, name, args, keywords)
        if isinstance(found, Jitted):
            return self.helper(called, found, args, keywords)
        made = result(called, lanewise=far)
        if isinstance(made, Block) and name == "cdiv" and [*called.blocks()] == args:
            made = self._rounded(node, CEILED, made, *args)
        if isinstance(made, Block) and name in ELEMENTWISE:
            self._together(node, made, *zip(node.args, args, strict=False))
        return made

    def _called(self, node: ast.Call, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Called:
        words = PARAMETERS.get(name, ("input",))
        given = {**dict(zip(words, args, strict=False)), **keywords}
        if words[0] == "input" and "input" not in given and "x" in given:
            given["input"] = given.pop("x")
        if name == "arange" and "end" not in given and "start" in given:
            given = {"start": number(0), "end": given["start"]}
        return Called(
            node,
            self.frame.source.loc(node),
            name,
            given,
            tuple(args[len(words) :]),
            self.found,
            self.helper,
            self.fail,
        )

    def helper(
        self, called: Called, function: Any, args: Sequence[Any], keywords: Mapping[str, Any] | None = None
    ) -> Any:
        """What a function of the user's gives, by its own lines. Of one that has what no rehearsal knows, nothing is known."""
        if isinstance(function, Jitted) and len(self.frames) <= HELPERS:
            source = read_source(function.function)
            scope, arguments = Scope(function.function), source.node.args
            names, under = [a.arg for a in (*arguments.posonlyargs, *arguments.args)], [*self.under]
            self.frames.append(_Frame(source, scope, frozenset(bound_names(source.node)), {}, called.loc))
            defaults = [*zip(reversed(names), reversed(arguments.defaults), strict=False)]
            named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            defaults += [(a.arg, d) for a, d in named if d is not None]
            try:
                self.env.update({n: self.value(d) for n, d in defaults})
                self.env.update({**dict(zip(names, args, strict=False)), **(keywords or {})})
                self.block(source.node.body)
                return None
            except _Returned as done:
                return done.value
            except _Unread:
                pass
            finally:
                self.frames.pop()
                self.under = under
        values = [*called.blocks()]
        for block in values:
            called.note(block.edges)
        return spoilt("", values)

    # ------------------------------------------------------------------------------------------------------- primitives
    def param(self, node: ast.expr) -> Param:
        assert isinstance(node, ast.Name)
        return self.program.params[node.id]

    def axis(self, param: Param, node: ast.expr | None) -> int:
        return blocks.integer(None if node is None else self.value(node), 0) % max(len(param.shape.axes), 1)

    def _given(self, call: ast.Call, name: str) -> Arguments:
        """The arguments of a primitive, by name; `None` written out is the same as nothing."""
        found = dict(zip(VOCABULARY[name].parameters, call.args, strict=False))
        found |= {str(k.arg): k.value for k in call.keywords}
        return {k: v for k, v in found.items() if not (isinstance(v, ast.Constant) and v.value is None)}

    def tile_of(self, param: Param, node: ast.expr) -> tuple[int, TileAt]:
        """The axis of a parameter that a tile lies on, and the tile."""
        found: TileAt = self.value(node)
        named = (k for k, a in enumerate(param.shape.axes) if a.name == found.dim)
        return found.axis if found.param == param.name else next(named, 0), found


def _tile_id(run: Run, given: Arguments) -> Any:
    param, found = run.param(given["t"]), list[Any]()
    for k, (on, name) in enumerate(zip(param.shape.axes, run.program.domain, strict=True)):
        var = name or ""
        low, high = run.trial.part(on)
        if on.unit:
            ranks = on.name == RANK_AXIS
            found.append(number(run.trial.rank if ranks else low, coordinate=ranks))
            continue
        begins = range(low, high, TILE)
        first = run.trial.which % len(SIZES) == 0 if run.drawn.first is None else run.drawn.first
        begin = begins[0 if first and len(begins) > 1 else -1]
        tile = run.trial.tile(param, k, var, begin, high)
        if var and run.drawn.half is not None and run.drawn.half[0] == var:
            begin = min(begin + TILE // 2 * run.drawn.half[1], tile.end - 1)
            tile = run.trial.tile(param, k, var, begin, tile.end, TILE // 2)
        if var:
            run.tiles[var] = tile
        found.append(tile)
    return tuple(found) if len(found) != 1 else found[0]


def _tile_load(run: Run, given: Arguments) -> Block:
    param = run.param(given["t"])
    index = run.value(given["tile"]) if "tile" in given else None
    place = run.trial.place(param, index)
    other = run.agreed(run.value(given["other"])) if "other" in given else None
    filler = other.value[0] if isinstance(other, Block) and not other.rank else np.asarray(0)
    mark = np.zeros(place.lengths, np.int8)
    for e in place.entries:
        mark = np.maximum(mark, np.where(place.along(e.at.marks, e) == IN, IN, PAST))
    odd = next((b.odd for b in flat(index) if b.odd is not None and len(b.value) > 1), None)
    places = [place] if odd is None else [run.trial.place(param, blocks.row(index, k)) for k in (0, -1)]
    value = np.stack(
        [np.broadcast_to(np.where(p.there, run.trial.data(param, p), filler), place.lengths) for p in places]
    )
    edges = tuple(e and replace(e, param=param.name, loaded=True) for e in place.edges)
    of = [e.at.taken for e in place.entries] + ([other.taken] if isinstance(other, Block) else [])
    taken = frozenset[Together]().union(*of)
    return Block(value, mark if mark.any() else None, edges, True, bare=True, odd=odd, taken=taken)


def _tile_store(run: Run, given: Arguments) -> None:
    node, index = given["value"] if "value" in given else given["data"], given["tile"]
    param, value = run.param(given["t"]), run.value(node)
    place, mask = run.trial.place(param, run.value(index)), run.value(given["mask"]) if "mask" in given else None
    stored = place.there
    if isinstance(mask, Block) and mask.rank <= len(place.lengths):
        run.agreed(mask)
        stored = stored & spread(mask.value.astype(bool), place.lengths)[0]
    for k, e in enumerate(place.entries):
        run.agreed(e.at)
        if e.axis is not None and (stored & (place.along(e.at.marks, e) != IN)).any():
            refusals.positions(run.fail, index.elts[k] if isinstance(index, ast.Tuple | ast.List) else index, e.at)
    if not isinstance(value, Block):
        return
    taken = value.taken.union(*run.under, mask.taken if isinstance(mask, Block) else ())
    run.found.notes += [replace(t, stored=True) for t in taken]
    if value.rank > len(place.lengths):  # Triton has something to say
        run.agreed(value)
        return
    whole = replace(value, value=spread(value.value, place.lengths))
    sides = zip(value.edges, place.edges[len(place.lengths) - value.rank :], strict=True)
    other = any(a and b and a.dim == b.dim and a.var != b.var for a, b in sides)  # what that is the plan says
    if value.mark is not None and not other and (stored & (spread(value.marks[None], place.lengths)[0] == PAST)).any():
        refusals.stored(run.fail, node, value, param.name)
    run.agreed(whole, stored)
    if run.drawn.half is not None and not other:
        at = [np.broadcast_to(place.along(e.at.value[0], e), place.lengths) for e in place.entries]
        made, loc = np.broadcast_to(whole.value[0], place.lengths), run.frame.source.loc(node)
        lanes = [tuple(lane) for lane in np.argwhere(stored)]
        run.stored.update({(param.name, *(int(a[i]) for a in at)): (float(made[i]), loc) for i in lanes})


def _tile_range(run: Run, given: Arguments) -> Block:
    param = run.param(given["t"])
    axis, tile = run.tile_of(param, given["tile"]) if "tile" in given else (run.axis(param, given.get("axis")), None)
    found = run.trial.lanes(param, axis, tile)
    return replace(found, edges=blocks.made(found.edges))


def _tile_mask(run: Run, given: Arguments) -> Block:
    """Of rows by positions."""
    lanes = run.trial.lanes(param := run.param(given["t"]), *run.tile_of(param, given["tile"]))
    row = lanes.moved(lambda v: v[:, None], (None, *blocks.made(lanes.edges)))
    found = replace(row, value=(row.marks == IN)[None])
    for word, function in (("start", np.greater_equal), ("stop", np.less)):
        limit = run.value(given[word]) if word in given else None
        if isinstance(limit, Block):
            column = limit.moved(lambda v: v[..., None], (*limit.edges, None)) if limit.rank else limit
            found = elementwise(np.logical_and, found, blocks.compared(function, row, column))
    return found


def _tile_shape(run: Run, given: Arguments) -> tuple[Block, ...]:
    param, domain = run.param(given["t"]), run.program.domain
    tiled = [k for k, on in enumerate(param.shape.axes) if not on.unit]
    return tuple(run.trial.lanes(param, k, run.tiles.get(domain[k] or "")).along(0) for k in tiled)


def _size(run: Run, given: Arguments) -> Block:
    param = run.param(given["t"])
    return number(run.trial.size(param.shape.axes[run.axis(param, given.get("axis"))]))


def _begin(run: Run, given: Arguments) -> Block:
    return number(run.tile_of(run.param(given["t"]), given["tile"])[1].begin)


def _end(run: Run, given: Arguments) -> Block:
    return number(run.tile_of(run.param(given["t"]), given["tile"])[1].end)


def _first(run: Run, given: Arguments) -> Any:
    """What passes through: a pointer, a value behind its token."""
    return run.value(given["ptr"] if "ptr" in given else given["value"])


def _rank(run: Run, _given: Arguments) -> Block:
    return number(run.trial.rank)


def _coordinate(run: Run, _given: Arguments) -> Block:
    return number(run.trial.rank, coordinate=True)


def _from_outside(_run: Run, _given: Arguments) -> Block:
    return number(0, data=True)


_PRIMITIVES: Mapping[str, Callable[[Run, Arguments], Any]] = {
    "tile_id": _tile_id, "tile_load": _tile_load, "tile_store": _tile_store, "tile_push_data": _tile_store,
    "tile_range": _tile_range, "tile_mask": _tile_mask, "tile_begin": _begin, "tile_end": _end, "tile_shape": _tile_shape,
    "size": _size, "symm_at": _first, "consume_token": _first, **dict.fromkeys(("segment", "rank"), _rank),
    "rank_of": _coordinate, "num_ranks": lambda _run, _given: number(RANKS),
    "acc_dtype": lambda _run, _given: "dtype", **dict.fromkeys(("pointer", "wait"), _from_outside),
}  # fmt: skip
