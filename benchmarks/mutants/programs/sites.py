"""What a tile program's text says: its writes, loads, loops and tests, and what their indices are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from tilelink.ir.program import Param
from tilelink.ir.shape import Axis
from tilelink.ir.wiring import Step

WRITES = ("tile_store", "tile_push_data", "tile_pull_data", "rank_copy_data")
Node = TypeVar("Node", bound=ast.AST)


def swapped(node: Node, old: ast.AST, new: ast.AST | list[ast.stmt]) -> Node:
    """A tree with another node, or other statements, in a node's place. What is not on the way is shared."""
    fields = {name: _in_field(value, old, new) for name, value in ast.iter_fields(node)}
    if all(value is getattr(node, name) for name, value in fields.items()):
        return node
    return ast.copy_location(type(node)(**fields), node)


def _in_field(value: object, old: ast.AST, new: ast.AST | list[ast.stmt]) -> object:
    if value is old:
        return new
    if isinstance(value, ast.AST):
        return swapped(value, old, new)
    if not isinstance(value, list):
        return value
    found: list[object] = []
    for item in value:
        made = _in_field(item, old, new)
        found += made if isinstance(made, list) else [made]
    if all(a is b for a, b in zip(found, value, strict=False)) and len(found) == len(value):
        return value
    return found or [ast.Pass()]


def word(node: ast.AST) -> str | None:
    """`tile_store` of `tl.tile_store(...)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr
    return None


def writes_in(node: ast.AST) -> list[ast.Call]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Call) and word(n) in WRITES]


def target(call: ast.Call) -> str:
    """The parameter that a write, a load or a walk is of."""
    first = call.args[0]
    assert isinstance(first, ast.Name)
    return first.id


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def with_keyword(call: ast.Call, name: str, value: ast.expr | None) -> ast.Call:
    """Another value of it; None: it is left out."""
    others = [k for k in call.keywords if k.arg != name]
    return ast.Call(call.func, call.args, others if value is None else [*others, ast.keyword(name, value)])


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an index, on an axis of the parameter. `sort`: tile, position (one element of an axis that is walked
    singly) or vector (whatever else)."""

    node: ast.expr
    axis: int
    sort: str


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a block of values, and which positions of the tensor lie along it; None: it cannot be said."""

    positions: str | None
    axis: int


class Reading:
    """A step's program as text."""

    def __init__(self, step: Step, node: ast.FunctionDef) -> None:
        self.step = step
        self.node = node
        self.tiles: dict[str, list[tuple[str, int]]] = {}
        """By name: of which axes of which parameters it is a tile, or a position. One name may stand for several."""
        self.domain: list[str] = []
        """The names that `tile_id` binds."""
        for found in ast.walk(node):
            self._bind(found)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Tuple):
            value, goal = node.value, node.targets[0]
            if isinstance(value, ast.Tuple) and isinstance(goal, ast.Tuple):  # `e, n = tl.tile_id(many), 0`
                for one, name in zip(value.elts, goal.elts, strict=False):
                    self._bind(ast.Assign([name], one))
            elif word(value) == "tile_id" and isinstance(value, ast.Call):
                param = target(value)
                names = goal.elts if isinstance(goal, ast.Tuple) else [goal]
                axes = [(param, a) for a, _ in enumerate(self.param(param).shape.axes)]
                for k, name in enumerate(names):
                    if isinstance(name, ast.Name) and name.id != "_":
                        self.tiles[name.id] = axes if len(names) < len(axes) else [axes[k]]
                        self.domain.append(name.id)
        elif isinstance(node, ast.For) and word(node.iter) == "tiles" and isinstance(node.iter, ast.Call):
            assert isinstance(node.target, ast.Name)
            self.tiles[node.target.id] = [(target(node.iter), self.axis(node.iter))]

    def param(self, name: str) -> Param:
        return self.step.program.param(name)

    def axis(self, walk: ast.Call) -> int:
        """Which axis `tl.tiles` walks."""
        said = keyword(walk, "axis") or (walk.args[1] if len(walk.args) > 1 else ast.Constant(0))
        return int(ast.literal_eval(said))

    def named(self, name: str) -> Axis:
        param, axis = self.tiles[name][0]
        return self.param(param).shape.axes[axis]

    def entries(self, call: ast.Call) -> list[Entry]:
        """Those that the index lists."""
        index = call.args[1]
        listed = index.elts if isinstance(index, ast.Tuple) else [index]
        if isinstance(index, ast.Name) and len(self.tiles.get(index.id, ())) > 1:
            listed = [ast.Subscript(index, ast.Constant(k)) for k, _ in enumerate(self.tiles[index.id])]
        return [Entry(node, axis, self._sort(node, target(call), axis)) for axis, node in enumerate(listed)]

    def _sort(self, node: ast.expr, param: str, axis: int) -> str:
        name = node.value if isinstance(node, ast.Subscript) else node
        axes = self.param(param).shape.axes
        unit = axis < len(axes) and axes[axis].unit
        return "position" if unit else "tile" if isinstance(name, ast.Name) and name.id in self.tiles else "vector"

    def dims(self, call: ast.Call) -> list[Dim]:
        """Of the block that a write takes, or a load gives."""
        param, entries = self.param(target(call)), self.entries(call)
        axes, rest = param.shape.axes, param.shape.rest
        found: list[Dim] = []
        for axis, _ in enumerate(axes):
            if axis == rest:
                found += self._rest(param)
            entry = entries[axis] if axis < len(entries) else None
            if entry is None:
                found.append(Dim(f"tl.tile_range({param.name}, axis={axis})", axis))
            elif entry.sort == "tile":
                found.append(Dim(f"tl.tile_range({param.name}, {ast.unparse(entry.node)})", axis))
            elif entry.sort == "vector":
                found.append(Dim(None, axis))
        return [*found, *(self._rest(param) if rest == len(axes) else [])]

    def _rest(self, param: Param) -> list[Dim]:
        view = self.step.binding(param.name).view
        return [Dim(None, -1)] * (len(view) - len(param.shape.axes))

    def is_data(self, node: ast.AST) -> bool:
        """Whether it names anything but tiles, positions, tensors and constants. (What was computed from these, too.)"""
        program = self.step.program
        known = {"tl", *self.tiles, *(p.name for p in program.params), *(c.name for c in program.constants)}
        return any(isinstance(n, ast.Name) and n.id not in known for n in ast.walk(node))

    def loops_around(self, statement: ast.stmt) -> list[ast.For]:
        loops = [s for s in self.statements() if isinstance(s, ast.For) and s is not statement]
        return [loop for loop in loops if any(n is statement for n in ast.walk(loop))]

    def statements(self) -> Iterator[ast.stmt]:
        for node in ast.walk(self.node):
            if isinstance(node, ast.stmt) and node is not self.node:
                yield node
