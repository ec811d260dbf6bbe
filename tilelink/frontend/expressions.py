"""Expressions: everything that is no primitive stays Triton code, checked node by node; primitives are taken out of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NoReturn

from tilelink.errors import Note
from tilelink.frontend import primitives, raw
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.refusals import BUILTINS, CONSTRUCTS, ONE_BLOCK, refused
from tilelink.frontend.scope import Builtin, Jitted, Language, Number, Opaque, Primitive, language_names
from tilelink.frontend.values import (
    RANKS,
    UNKNOWN,
    TileIndex,
    TileTuple,
    Value,
    Variable,
    all_bits,
    bounded,
    combined,
    common_rank,
    constant_of,
    either,
    integer_of,
    is_index,
    joined_names,
    named,
    needed,
    never_negative,
    number_of,
    rounded_down,
    shifted,
)
from tilelink.frontend.wording import READ_NOT_RUN, meant
from tilelink.frontend.words import tile_alias
from tilelink.ir.formula import Const, Formula, Sym, column, is_truth, negate, of, truth
from tilelink.ir.program import Param


def lower(state: Lowering, node: ast.expr) -> Value:
    """The value of an expression; ops that it needs are appended to the block in evaluation order.

    Raises:
        TilelinkError: TL111 and TL120 to TL144.
    """
    handler = _HANDLERS.get(type(node))
    if handler is None:
        unsupported(state, node)
    return handler(state, node)


def unsupported(state: Lowering, node: ast.AST, place: ast.AST | None = None) -> NoReturn:
    """Refuses Python that a tile program cannot contain (TL111)."""
    called, hint = CONSTRUCTS.get(type(node), (f"`{type(node).__name__}`", ONE_BLOCK))
    state.fail("TL111", place or node, f"{called} in a tile program", READ_NOT_RUN, hint)


def _combine(node: ast.expr, parts: Iterable[Value], formula: Formula | None = None, **more: Any) -> Value:
    """What is made of `parts`; their names, and their rank if no other is given."""
    parts = list(parts)
    known: dict[str, Any] = {"rank": common_rank(parts), "names": joined_names(p.names for p in parts)} | more
    return Value(node, positional=all(p.positional for p in parts), formula=formula, **known)


# ------------------------------------------------------------------------------------------------------ names and literals
def _constant(state: Lowering, node: ast.Constant) -> Value:
    if node.value is not None and not isinstance(node.value, (bool, int, float, str)):
        why, message = "Triton has numbers, strings and None", f"a literal of type `{type(node.value).__name__}`"
        state.fail("TL111", node, f"{message} in a tile program", why, "write a number")
    formula = of(node.value) if isinstance(node.value, (int, str)) else None
    return Value(node, formula=formula, bit=isinstance(node.value, bool))


def _name(state: Lowering, node: ast.Name) -> Value:
    binding = state.env.get(node.id)
    if isinstance(binding, Variable):
        return binding.value
    if isinstance(binding, Param):
        _tensor_as_value(state, node, binding)
    if isinstance(binding, (TileIndex, TileTuple)):
        _tile_as_value(state, node, node.id, binding)
    return _outer(state, node)


def _outer(state: Lowering, node: ast.Name | ast.Attribute) -> Value:
    """A name from outside the function."""
    found = state.look_up(node)
    if isinstance(found, Number):
        name = state.constant(found, node)
        formula = of(found.value) if isinstance(found.value, (int, str)) else None
        return named(name, formula=formula, bit=isinstance(found.value, bool))
    if isinstance(found, Language):
        _check_known(state, node, found)
        return Value(ast.parse(found.path, mode="eval").body)
    if isinstance(found, Jitted):
        state.alone(found.name, node)
        return named(state.helpers.add(found, state.loc(node)))
    if isinstance(found, Builtin):
        return Value(ast.Name(found.name, ast.Load()))
    if isinstance(found, Primitive):
        state.fail("TL131", node, f"`tl.{found.name}` is not called", "a primitive is no value", "write its arguments")
    if isinstance(found, Opaque):
        _object_as_value(state, node, found.object)
    owner = state.look_up(node.value) if isinstance(node, ast.Attribute) else None
    if (
        isinstance(node, ast.Attribute)
        and isinstance(owner, Opaque)
        and not isinstance(owner.object, ModuleType | type)
    ):
        _object_as_value(state, node.value, owner.object)
    _unknown(state, node)


def _object_as_value(state: Lowering, node: ast.expr, found: object) -> NoReturn:
    message = f"`{ast.unparse(node)}` is an object of type `{type(found).__name__}`"
    why = "a program sees its tensors, its constants, numbers and strings of its module, and `@triton.jit` functions"
    state.fail("TL124", node, message, why, "pass what you need of it as a keyword-only parameter")


_VERBS = {
    "write": "tile_store",
    "read": "tile_load",
    "push": "tile_push_data",
    "put": "tile_push_data",
    "pull": "tile_pull_data",
    "get": "tile_pull_data",
    "wait": "consumer_tile_wait",
    "notify": "producer_tile_notify",
}
"""The primitive that does to a tile what a word says; names alike in letters do something else."""


def check_allowed(state: Lowering, node: ast.Call, found: Language) -> None:
    """Refuses calls of what Triton's language does not have (TL120), or a program may not call (TL123)."""
    _check_known(state, node.func, found)
    if (reason := refused(found.name)) and not raw.allowed(state, found.name):
        state.fail("TL123", node, f"`{found.path}` in a tile program", *reason)


def _check_known(state: Lowering, node: ast.expr, found: Language) -> None:
    """Refuses names that Triton's language does not have (TL120)."""
    if not found.known:
        known = {f"tl.{n}" for n in (*language_names(), *primitives.PRIMITIVES)}
        words = found.name.split("_") if "tile" in found.name else ()
        verb = next((_VERBS[word] for word in words if word in _VERBS), None)
        hint = f"did you mean `tl.{verb}`?" if verb else meant(found.path, known, "see the names of `triton.language`")
        state.fail("TL120", node, f"`{found.path}` does not exist", "Triton's language has no such name", hint)


def _unknown(state: Lowering, node: ast.Name | ast.Attribute) -> NoReturn:
    spelled = ast.unparse(node)
    if isinstance(node, ast.Name) and node.id in state.lost:
        why = "a name is bound in the branch or loop that assigns it; after that only if every path assigns it"
        note = Note(f"`{node.id}` is assigned here", state.lost[node.id])
        state.fail("TL125", node, f"`{node.id}` may not be bound here", why, f"assign `{node.id}` before", (note,))
    if isinstance(node, ast.Name) and node.id in state.locals:
        why = "a name is bound by the line that assigns it"
        state.fail("TL125", node, f"`{spelled}` is not bound yet", why, f"assign `{spelled}` before")
    known = {*state.env, *state.scope.names, "range", "min", "max"}
    hint = meant(spelled, known, "assign, import or define it")
    state.fail("TL120", node, f"`{spelled}` is not defined", "neither the program nor its module has this name", hint)


def _tensor_as_value(state: Lowering, node: ast.expr, tensor: Param) -> NoReturn:
    hint = f"load a part of it: `tl.tile_load({tensor.name}, ...)`"
    why = "the plan must know which tile of a tensor every expression touches"
    state.fail("TL121", node, f"the tensor `{tensor.name}` is used as a value", why, hint)


def _tile_as_value(state: Lowering, node: ast.expr, name: str, binding: TileIndex | TileTuple) -> NoReturn:
    why = "a tile is a range of positions, as long as the schedule says"
    if isinstance(binding, TileIndex):
        t = binding.param
        hint = f"write `tl.tile_begin({t}, {name})`, `tl.tile_end({t}, {name})` or `tl.tile_range({t}, {name})`"
    else:
        hint = "give every index a name of its own: `m, n = tl.tile_id(...)`"
    note = Note("it is bound here", binding.loc)
    state.fail("TL122", node, f"the tile `{name}` is used as a number", why, hint, (note,))


# ----------------------------------------------------------------------------------------------------------------- operators
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


def _binary(state: Lowering, node: ast.BinOp) -> Value:
    if isinstance(node.op, (ast.MatMult, ast.Pow)):
        unsupported(state, node.op, node)
    left, right = lower(state, node.left), lower(state, node.right)
    single = left.rank == 0 and right.rank == 0
    if isinstance(node.op, (ast.Add, ast.Sub)) and (left.coordinate or right.coordinate) and single:
        # A coordinate that is added to a block of values is a number like any other.
        return _around(state, node.op, left, right)
    if not (isinstance(node.op, ast.Mod) and right.formula == Sym(RANKS)):
        state.as_numbers(node, left, right)
    elif left.coordinate:
        return replace(left, coordinate=False, wrapped=False)
    op = _OPERATORS.get(type(node.op))
    if isinstance(node.op, (ast.BitAnd, ast.BitOr)) and is_truth(left.formula) and is_truth(right.formula):
        op = "and" if isinstance(node.op, ast.BitAnd) else "or"
    formula = _arithmetic(state, op, left, right) if op else None
    only_if = needed([left, right]) if isinstance(node.op, ast.BitAnd) else None
    bit = all_bits([left, right]) if isinstance(node.op, _OF_BITS) or not _known(state, left, right) else False
    made = ast.BinOp(_operand(state, left), node.op, _operand(state, right))
    return _combine(made, [left, right], formula, only_if=only_if, bit=bit)


def _operand(state: Lowering, value: Value) -> ast.expr:
    """What an operator is given. `not` is Python's where kernels are interpreted, whose truth values are no bits: what it says is
    said by a comparison."""
    if isinstance(value.node, ast.UnaryOp) and isinstance(value.node.op, ast.Not) and not _known(state, value):
        return ast.Compare(value.node.operand, [ast.Eq()], [ast.Constant(0)])
    return value.node


_OF_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)
"""What of truth values Python, too, makes truth values with."""


def _known(state: Lowering, *values: Value) -> bool:
    """Whether the compiler computes with them, as Python does."""
    return all(state.static(v, spelled=True) for v in values)


def _arithmetic(state: Lowering, op: str, left: Value, right: Value) -> Formula | None:
    """The formula of `left op right`. Of what the compiler knows it computes all itself, as Python does; of a kernel's truth
    values, which are bits, one and one is nothing."""
    known = _known(state, left, right)
    if op in ("//", "%", "cdiv") and known:
        return rounded_down(op, left.formula, right.formula)
    bits = False if known else all_bits([left, right])
    if op in ("+", "-", "//", "%", "cdiv") and bits is not False:
        return combined("!=", left.formula, right.formula) if bits and op in ("+", "-") else None
    op = {"*": "and", "min": "and", "max": "or"}.get(op, op) if bits else op
    sides = (truth(v.formula) if v.bit and v.formula is not None and not known else v.formula for v in (left, right))
    return combined(op, *sides)


def _around(state: Lowering, op: ast.Add | ast.Sub, left: Value, right: Value) -> Value:
    """Arithmetic on the axis of ranks: it wraps, in operands that are never negative. (A rest that Triton takes of something
    negative is negative, and one round more makes up for it.)"""
    if isinstance(op, ast.Add) and (not left.coordinate or (left.ring is None and right.ring is not None)):
        left, right = right, left
    step = integer_of(right.node)
    if left.ring is not None and step is not None:
        return shifted(left.ring[0], left.ring[1] + (step if isinstance(op, ast.Add) else -step))
    if isinstance(op, ast.Add):
        text = "(A + B) % RANKS" if _counts(state, right) else "(A + B % RANKS + RANKS) % RANKS"
    elif not _counts(state, left):
        text = "(A % RANKS + RANKS + RANKS - B) % RANKS"
    else:
        text = "(A + RANKS - B) % RANKS" if right.coordinate else "(A + RANKS - B % RANKS) % RANKS"
    known = {"A": left, "B": right, RANKS: named(RANKS, formula=Sym(RANKS))}
    names = joined_names((left.names, right.names, (RANKS,)))
    return replace(_filled(ast.parse(text, mode="eval").body, known), coordinate=True, wrapped=True, names=names)


def _counts(state: Lowering, value: Value) -> bool:
    """Whether a number cannot be negative: a coordinate, a constant of the program that is not, or a place on an axis."""
    if isinstance(value.formula, Const):
        return never_negative(value.formula)
    return value.coordinate or is_index(state.env.get(value.text))


def _filled(tree: ast.expr, known: Mapping[str, Value]) -> Value:
    if isinstance(tree, ast.BinOp):
        left, right = _filled(tree.left, known), _filled(tree.right, known)
        formula = combined(_OPERATORS[type(tree.op)], left.formula, right.formula)
        return _combine(ast.BinOp(left.node, tree.op, right.node), [left, right], formula)
    assert isinstance(tree, ast.Name)
    return known[tree.id]


def _unary(state: Lowering, node: ast.UnaryOp) -> Value:
    operand = lower(state, node.operand)
    state.as_numbers(node, operand)
    if isinstance(node.op, ast.Not) and operand.rank > 0:
        _of_blocks(state, node, "`not`", "write `~` before a block of truth values")
    formula: Formula | None = None
    of_bit = False if _known(state, operand) else operand.bit
    if of_bit is None and not isinstance(node.op, ast.Not):
        pass
    elif isinstance(node.op, ast.UAdd) or (isinstance(node.op, ast.USub) and of_bit):
        formula = operand.formula
    elif isinstance(node.op, ast.USub):
        formula = combined("-", Const(0), operand.formula)
    elif isinstance(node.op, ast.Invert) and not of_bit:
        formula = combined("-", Const(-1), operand.formula)
    elif operand.formula is not None:
        formula = bounded(negate(operand.formula))
    bit = True if isinstance(node.op, ast.Not) else of_bit
    return _combine(ast.UnaryOp(node.op, _operand(state, operand)), [operand], formula, bit=bit)


_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def _compare(state: Lowering, node: ast.Compare) -> Value:
    if len(node.ops) > 1:
        why = "Triton compares two values at a time"
        state.fail("TL111", node, "a chained comparison in a tile program", why, "write `(a < b) & (b < c)`")
    op = node.ops[0]
    if isinstance(op, (ast.In, ast.NotIn)):
        unsupported(state, op, node)
    left, right = lower(state, node.left), lower(state, node.comparators[0])
    if not isinstance(op, (ast.Eq, ast.NotEq)) or not (left.coordinate and right.coordinate):
        state.as_numbers(node, left, right)
    word = _COMPARISONS.get(type(op))
    if isinstance(op, (ast.Is, ast.IsNot)) and isinstance(constant_of(node.comparators[0]), bool):
        # Of a constant of the program that is declared as a bool, `is True` says what `== True` does.
        word = ("==" if isinstance(op, ast.Is) else "!=") if isinstance(left.formula, Sym) and left.bit else None
    formula = combined(word, left.formula, right.formula) if word else None
    return _combine(ast.Compare(left.node, [op], [right.node]), [left, right], formula, bit=True)


def _boolean(state: Lowering, node: ast.BoolOp) -> Value:
    word = "and" if isinstance(node.op, ast.And) else "or"
    parts = [lower(state, node.values[0])]
    with state.under(f"the right side of `{word}`"):
        parts += [lower(state, v) for v in node.values[1:]]
    known = _known(state, *parts)
    if any(p.rank > 0 for p in parts):
        _of_blocks(state, node, f"`{word}`", f"write `{'&' if word == 'and' else '|'}`, and comparisons in parentheses")
    if not known:
        parts = [_asked(p) for p in parts]
    formula = parts[0].formula
    for part in parts[1:]:
        last = part.formula
        if not known or formula is None or last is None or (is_truth(formula) and is_truth(last)):
            formula = combined(word, formula, last)
        else:  # one of the two, as Python has it
            formula = either(formula, last, formula) if word == "and" else either(formula, formula, last)
    only_if = needed(parts) if word == "and" else None
    bit = all_bits(parts)
    return _combine(ast.BoolOp(node.op, [p.node for p in parts]), parts, formula, only_if=only_if, bit=bit)


def _of_blocks(state: Lowering, node: ast.expr, what: str, hint: str) -> NoReturn:
    state.fail("TL142", node, f"{what} of a block of values", "Python asks for one value, and a block has many", hint)


def _asked(value: Value) -> Value:
    """What a kernel asks of a number beside `and` and `or`: whether it is 0. Triton would give one or the other number."""
    said = isinstance(value.formula, Const) and isinstance(value.formula.value, str)
    if value.formula is None or value.rank or said or value.bit:
        return value
    return _combine(ast.Compare(value.node, [ast.NotEq()], [ast.Constant(0)]), [value], truth(value.formula), bit=True)


def _choice(state: Lowering, node: ast.IfExp) -> Value:
    test = lower(state, node.test)
    with state.under("one side of a conditional expression"):
        body, orelse = lower(state, node.body), lower(state, node.orelse)
    formula = either(test.formula, body.formula, orelse.formula)
    made = ast.IfExp(test.node, body.node, orelse.node)
    same = body.coordinate and orelse.coordinate
    wrapped, rank = body.wrapped or orelse.wrapped, common_rank([body, orelse])
    bit = body.bit if body.bit == orelse.bit else None
    return _combine(made, [body, test, orelse], formula, rank=rank, coordinate=same, wrapped=wrapped, bit=bit)


# ------------------------------------------------------------------------------------------- tuples, attributes, subscripts
def _tuple(state: Lowering, node: ast.Tuple | ast.List) -> Value:
    parts = [lower(state, e) for e in node.elts]
    return _combine(ast.Tuple([p.node for p in parts], ast.Load()), parts, length=len(parts), entries=tuple(parts))


def _attribute(state: Lowering, node: ast.Attribute) -> Value:
    base = node
    while isinstance(base, ast.Attribute):
        base = base.value
    if isinstance(base, ast.Name) and base.id not in state.locals:
        return _outer(state, node)
    if tensor := state.tensor(node.value):
        _attribute_of_tensor(state, node, tensor)
    value = lower(state, node.value)
    made = _combine(ast.Attribute(value.node, node.attr, ast.Load()), [value])
    if node.attr == "shape":
        # A shape is known to the compiler; no data flows through it.
        return replace(made, rank=0, positional=True, length=value.rank if value.rank != UNKNOWN else None)
    return replace(made, rank=0, positional=True) if node.attr == "dtype" else made


def _attribute_of_tensor(state: Lowering, node: ast.Attribute, tensor: Param) -> NoReturn:
    hints = {
        "shape": f"write `tl.size({tensor.name}, axis)`, or `tl.tile_shape(...)` for a block",
        "dtype": "leave the conversion out: `tl.tile_store` converts; a loaded tile has a `.dtype`",
    }
    hint = hints.get(node.attr, f"load a part of it: `tl.tile_load({tensor.name}, ...)`")
    why = "a parameter is a tensor of the operator, not a block of values"
    state.fail("TL121", node, f"`.{node.attr}` of the tensor `{tensor.name}`", why, hint)


def _subscript(state: Lowering, node: ast.Subscript) -> Value:
    alias = tile_alias(state, node)
    if isinstance(alias, Variable):
        return alias.value
    if alias is not None:
        _tile_as_value(state, node, ast.unparse(node), alias)
    if tensor := state.tensor(node.value):
        _tensor_as_value(state, node, tensor)
    value = lower(state, node.value)
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not entries:
        state.fail("TL111", node, "an empty subscript in a tile program", "it chooses nothing", "write what it chooses")
    lowered = [lower(state, e) for e in entries]
    inner: ast.expr = ast.Tuple([v.node for v in lowered], ast.Load()) if len(lowered) > 1 else lowered[0].node
    made = _combine(ast.Subscript(value.node, inner, ast.Load()), [value, *lowered])
    if value.length is not None:
        at = number_of(lowered[0]) if len(lowered) == 1 else None
        parts = value.entries if at is None else value.entries[at:][:1]
        return replace(made, rank=parts[0].rank if parts else value.rank)
    said = [ast.unparse(e) for e in entries]
    if value.rank == 1 and value.formula is not None and sorted(said) == [":", "None"]:
        # A vector becomes a column, `[:, None]`, or a row, `[None, :]`, of a block.
        formula = column(value.formula) if said[0] == ":" else value.formula
        return replace(made, rank=2, formula=formula, bit=value.bit)
    kept = [e for e in entries if isinstance(e, ast.Slice) or constant_of(e) is None]
    return replace(made, rank=len(kept) or (UNKNOWN if value.rank else 0))


def _slice(state: Lowering, node: ast.Slice) -> Value:
    bounds = [None if b is None else lower(state, b) for b in (node.lower, node.upper, node.step)]
    made = ast.Slice(*(None if b is None else b.node for b in bounds))
    return _combine(made, [b for b in bounds if b is not None])


# --------------------------------------------------------------------------------------------------------------------- calls
_FORMULAS: Mapping[str, str] = {"min": "min", "max": "max", "minimum": "min", "maximum": "max", "cdiv": "cdiv"}
_OF_NUMBERS = frozenset({*_FORMULAS, "range", "static_range", "int", "float"})


def _call(state: Lowering, node: ast.Call) -> Value:
    found = state.look_up(node.func)
    if isinstance(found, Primitive):
        return primitives.value_of(state, node, found.name, None)
    if isinstance(found, (Language, Jitted, Builtin)):
        if isinstance(found, Language):
            check_allowed(state, node, found)
        return call_of_language(state, node, None if isinstance(found, Jitted) else found.name)
    if isinstance(node.func, ast.Attribute) and found is None:
        if tensor := state.tensor(node.func.value):
            _attribute_of_tensor(state, node.func, tensor)
        value = lower(state, node.func.value)
        callee = _combine(ast.Attribute(value.node, node.func.attr, ast.Load()), [value])
        return _finish_call(state, node, callee, [value], node.func.attr)
    if isinstance(found, Opaque):
        why = "what a program calls is compiled with it"
        hint = f"decorate `{ast.unparse(node.func)}` with `@triton.jit`, or use a function of `tl`"
        if getattr(found.object, "__module__", None) == "builtins":
            hint = BUILTINS.get(ast.unparse(node.func), "use a function of `tl`")
        state.fail("TL123", node, f"`{ast.unparse(node.func)}` is plain Python", why, hint)
    if tensor := state.tensor(node.func):
        _tensor_as_value(state, node, tensor)
    if isinstance(node.func, ast.Name) and node.func.id not in state.env:
        _unknown(state, node.func)
    why = "functions come from `tl`, from `@triton.jit`, or belong to a block, such as `x.to(tl.float32)`"
    state.fail("TL123", node, f"`{ast.unparse(node.func)}` is not a function", why, "call one of those")


def call_of_language(state: Lowering, node: ast.Call, name: str | None) -> Value:
    """A call of a function of Triton (`name`), or of a `@triton.jit` one (None), as it stands."""
    assert isinstance(node.func, (ast.Name, ast.Attribute))
    return _finish_call(state, node, _outer(state, node.func), [], name)


def _finish_call(state: Lowering, node: ast.Call, callee: Value, owner: list[Value], name: str | None) -> Value:
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            unsupported(state, argument)
    for keyword in node.keywords:
        if keyword.arg is None:
            message = "`**` in a call in a tile program"
            state.fail("TL111", keyword, message, READ_NOT_RUN, "write the arguments out")
    args = [lower(state, a) for a in node.args]
    keywords = {str(k.arg): lower(state, k.value) for k in node.keywords}
    if name in _OF_NUMBERS:
        state.as_numbers(node, *args, *keywords.values())
    if name in ("min", "max") and isinstance(state.look_up(node.func), Builtin) and any(a.rank > 0 for a in args):
        _of_blocks(state, node, f"`{name}`", f"write `tl.{name}imum(…)`, or reduce it, `tl.{name}(…, axis)`")
    made = ast.Call(callee.node, [a.node for a in args], [ast.keyword(k, v.node) for k, v in keywords.items()])
    everything = [*owner, *args, *keywords.values()]
    formula = None if keywords else _formula_of_call(state, name, args)
    rank = _rank_of_call(name, [*owner, *args], keywords)
    entries = tuple(args) if name in ("range", "static_range") else ()
    bit = all_bits(args[name == "where" :]) if name in _OF_ALIKE else False
    return _combine(made, [callee, *everything], formula, rank=rank, entries=entries, bit=bit)


_OF_ALIKE = frozenset({"where", "trans", "min", "max", "minimum", "maximum"})
"""Functions with a formula, whose result a kernel has as what they choose from."""


def _formula_of_call(state: Lowering, name: str | None, args: list[Value]) -> Formula | None:
    if name == "int" and len(args) == 1:
        return args[0].formula
    if name == "arange" and len(args) == 2 and all(isinstance(a.formula, Const) for a in args):
        return combined("arange", args[0].formula, args[1].formula)
    if name == "where" and len(args) == 3:
        return either(*(a.formula for a in args))
    if name == "trans" and len(args) == 1 and args[0].rank == 2 and args[0].formula is not None:
        return column(args[0].formula)
    if name is None or name not in _FORMULAS or len(args) != 2:
        return None
    return _arithmetic(state, _FORMULAS[name], args[0], args[1])


# ------------------------------------------------------------------------------ how many dimensions the result of a call has
_REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum", "reduce_or"})
_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "view": 1, "broadcast_to": 1}
"""Callee to the position of its shape."""


def _rank_of_call(name: str | None, args: Sequence[Value], keywords: Mapping[str, Value]) -> int:
    """The rank of what a call gives: enough to tell one value from a block of values."""

    def given(word: str, at: int) -> Value | None:
        return keywords.get(word) or (args[at] if at < len(args) else None)

    if name in ("arange", "ravel"):
        return 1
    if name in _SHAPED:
        shape = given("shape", _SHAPED[name])
        return (shape.length or UNKNOWN) if shape is not None else UNKNOWN
    first = args[0].rank if args else 0
    if name in _REDUCTIONS:
        kept = keywords.get("keep_dims")
        if kept is not None and constant_of(kept.node) is not False:
            return first
        axis = given("axis", 1)
        everything = axis is None or constant_of(axis.node) is None
        return 0 if everything else first - 1 if first > 0 else first
    if name in ("expand_dims", "join") and first != UNKNOWN:
        return first + 1
    return common_rank((*args, *keywords.values()))


_HANDLERS: Mapping[type[ast.expr], Callable[[Lowering, Any], Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _choice,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Call: _call,
}
