"""What is known of the lanes of a block of values, and which calls that forbids.

A block has as many lanes as its tile: past the edge of a tensor they hold 0, as loads fill them, or what has been made of that.
A reduction that this would change, such as the maximum of a row of negative values, is refused; a program says what counts
for nothing there by `other=`, or chooses with `tl.where`. How long tiles are is the schedule's matter, so a program also says
where it takes all of one together (`ir.program.Together`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, get_args

from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import (
    FLAT,
    Holds,
    Known,
    Lane,
    Lanes,
    Value,
    constant_of,
    integer_of,
    is_asked,
    met,
    never_negative,
    number_of,
)
from tilelink.ir.formula import COMPUTE, Binary
from tilelink.ir.program import Expr, Gather, Index, OfTile, Param, Together, Whole
from tilelink.ir.shape import Axis

OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.BitOr: "|", ast.BitXor: "|", ast.Mult: "*", ast.BitAnd: "&",
    ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "/", ast.LShift: "/", ast.RShift: "/",
}  # fmt: skip
"""An operator that does to 0 what this one does."""
COMPARE = ("==", "!=", "<", "<=", ">", ">=")
KEEP_ZERO = frozenset({"sqrt", "sqrt_rn", "erf", "floor", "ceil", "to", "cast"})
RISE = frozenset({"exp", "exp2", "log", "log2", "sigmoid"})
OF_ZERO = frozenset({*RISE, "cos", "rsqrt"})
"""Functions of each value, which make 0 of 0, and which make something else of it; of larger values larger ones."""
INFINITE = frozenset({"log", "log2", "rsqrt"})
"""Of which that is infinite."""
ORDER: Mapping[str, tuple[str, ...]] = {
    "where": ("condition", "x", "y"), "expand_dims": ("input", "axis"), "clamp": ("x", "min", "max"),
    "dot": ("input", "other"), "full": ("shape", "value"), **dict.fromkeys(("maximum", "minimum", "fdiv", "div_rn"), ("x", "y")),
    **dict.fromkeys(("softmax", "sort", "topk", "flip"), ("x",)),
}  # fmt: skip
"""What their first parameters are called, where it is not `input` or `x` alone."""
ALONG: Mapping[str, tuple[str, int | None]] = {
    **dict.fromkeys(("sum", "xor_sum", "reduce_or", "max", "min", "argmax", "argmin", "reduce"), ("axis", None)),
    "softmax": ("dim", 0),
    "sort": ("dim", -1),
    "topk": ("dim", -1),
    "histogram": ("", None),
}
"""Reductions, and what else takes the values of an axis together: the parameter that names the axis ("": it takes all), and its
default."""
KEEP_DIMS = {"max": 4, "min": 4, "argmax": 3, "argmin": 3, "reduce": 3}
"""Which argument says that a reduction keeps its axis, if not the third."""
MOVES = frozenset({"reshape", "view", "ravel"})
"""Functions that move values, by which those past an edge may come anywhere."""
SCANS: Mapping[str, int] = {"cumsum": 2, "cumprod": 2, "associative_scan": 3}
"""And which argument says that they begin at the end."""
TOGETHER = frozenset({*ALONG, *SCANS, "dot", "flip", "gather"})
"""Of which it is known that they take values together, and along which axis."""
SHAPED = frozenset({"zeros", "full", "zeros_like"})
OTHER = ("true", "position", "inner", "turned", "made", "infinite")
BELOW = ("low", "lowest")
CHANGES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "xor_sum", "reduce_or", "dot"), ("again", *BELOW, *OTHER)),
    **dict.fromkeys(("max", "argmax", "topk"), ("zero", *OTHER)),
    **dict.fromkeys(("min", "argmin"), ("zero", "least", *BELOW, *OTHER)),
    **dict.fromkeys(("sort", "reduce", "histogram"), ("zero", "least", "again", *BELOW, *OTHER)),
    "softmax": ("zero", "least", "filled", "again", *BELOW, *OTHER),
}
"""What lanes past an edge hold that changes what a function makes of all."""
NOTHING = {
    **dict.fromkeys(("sum", "xor_sum", "dot", "cumsum"), "0"), "cumprod": "1",
    **dict.fromkeys(("min", "argmin", "sort"), 'float("inf")'),
}  # fmt: skip
"""What counts for nothing there; of others what is below all numbers."""
ZEROS, LOW, POSITIONS = ("zero", "least", "filled"), ("least", *BELOW), ("position", "inner")
INDICES = (*POSITIONS, "turned")
"""What is no element of the axis past its end."""
KEPT = {"cumsum": ("said", "lowest"), "cumprod": ("said", *ZEROS), "associative_scan": ("said",)}
"""What past an end stays what it is, as infinite numbers do."""
LARGE = 1e20
"""A number that stands for infinity."""
OTHERS = frozenset({"arange", "expand_dims", "broadcast_to", "cdiv", "device_print"})
"""Other functions that take no values together."""


def of_axes(param: Param, index: Index, holds: Holds, vectors: Mapping[Expr, Lanes]) -> Lanes:
    """Of a load, which gives what it `holds` past an edge. One axis of the block is that of all vectors of positions: of those
    that are no positions the load gives the same, of those that are by chance an element."""
    if param.shape.rest is not None:
        return ()
    found: list[Lane | None] = []
    gathered = False
    for axis, e in zip(param.shape.axes, index, strict=True):
        if isinstance(e, OfTile | Whole):
            found.append(_lane(param, axis, e.var if isinstance(e, OfTile) else "", holds))
        elif isinstance(e, Gather) and not gathered:
            gathered = True
            lane = next((e for e in vectors.get(e.expr, ()) if isinstance(e, Lane)), None)
            none = lane is not None and lane.holds in ("said", *INDICES)
            counted = isinstance(e.expr.formula, Binary) and e.expr.formula.op == "arange"
            made = lane or (_lane(param, axis, "", "made") if counted else None)
            found.append(
                made and replace(made, param=param.name, dim=axis.name, holds=holds if none else "made", loaded=none)
            )
    return tuple(found)


def of_range(param: Param, at: int, var: str, *, inner: bool = False) -> Lanes:
    """Of the positions of an axis, or of its tile `var`, which may end before the axis does (`inner`)."""
    return (_lane(param, param.shape.axes[at], var, "inner" if inner else "position", loaded=False),)


def _lane(param: Param, axis: Axis, var: str, holds: Holds, *, loaded: bool = True) -> Lane | None:
    """Of an axis, or its tile `var`; None: a block that is all of it has no more lanes than it has elements."""
    full = not var and isinstance(axis.size, int) and axis.size.bit_count() == 1
    return None if full else Lane(param.name, axis.name, var, holds, loaded)


def elementwise(op: str, *values: Value) -> Lanes:
    """Of values that are broadcast together, by an operator or another function of each element."""
    axes = max(len(v.lanes) for v in values)
    along = [_spread(v, axes) for v in values]
    if any(len(lanes) != axes for lanes in along):
        return ()
    return tuple(_pair(op, values, each) for each in zip(*along, strict=True))


def _spread(value: Value, axes: int) -> Lanes:
    """What is known of a value among others of more axes: those that it does not have come before its own."""
    if value.rank == 0:
        return (FLAT,) * axes
    behind: Lanes = value.lanes or (None,) * axes
    missing = axes - len(behind) if value.rank == len(behind) else 0
    return (*(FLAT for _ in range(missing)), *behind)


def _literal(value: Value) -> float | None:
    number = constant_of(value.node)
    return number if isinstance(number, int | float) else None


def _rises(op: str, a: Value, *others: Value) -> bool:
    """Whether it makes larger values of larger ones; numbers that are not written out are taken to be above 0."""
    below = any((_literal(v) or 0) < 0 for v in (a, *others))
    return (op in ("+", "|", "max", "min") or (op == "*" and not below)) or (
        a.rank > 0 and all(v.rank == 0 for v in others) and (op == "-" or (op == "/" and not below))
    )


def _severity(lane: Known) -> int:
    return get_args(Holds).index(lane.holds) if isinstance(lane, Lane) else -1


def _pair(op: str, values: Sequence[Value], each: Sequence[Known]) -> Known:
    lanes, both = [e for e in each if isinstance(e, Lane)], op == "&"
    if not lanes:
        return FLAT if all(e == FLAT for e in each) else None
    if len({e.var for e in lanes}) > 1:  # tiles that are as long by chance end elsewhere
        worst = max(lanes, key=_severity)
        return replace(worst, holds=worst.holds if worst.holds in ("said", *ZEROS) else "made", loaded=False)
    op = "*" if both else op
    zeros, rises = [e.holds in ZEROS for e in lanes], _rises(op, *values)
    positions = [e.holds in POSITIONS for e in lanes]
    lowest = op == "*" and any(zeros) and any(e.holds == "lowest" for e in lanes)
    if any(e.holds == "infinite" for e in lanes) or lowest or (op == "/" and isinstance(each[-1], Lane) and zeros[-1]):
        holds: Any = "said" if None in each else "infinite"
    elif op == "*" and any(zeros):
        low = rises and all(e.holds == "least" for e in lanes)
        filled = any(e.holds == "filled" for e in lanes)
        holds = "filled" if filled else "least" if low else "zero"
    elif op in COMPARE and any(e.holds in INDICES for e in lanes):
        holds = "said" if _bounded(op, values, each) else "true" if _bounded(_TURNED[op], values, each) else "made"
    elif op == "|" and any(e.holds == "true" for e in lanes):
        holds = "true"
    elif not both and all(positions) and None not in each and _further(op, values, each):
        holds = "inner" if any(e.holds == "inner" for e in lanes) else "position"
    elif op == "-" and positions == [True] and isinstance(each[-1], Lane) and _below(values[0], lanes[0], 1):
        holds = "turned"
    elif op == "|" and any(e.holds == "said" for e in lanes):
        # What one of them has ruled out the other may let in.
        known = FLAT not in each and all(e.holds in ("said", *ZEROS) for e in lanes)
        holds = "said" if known else "made"
    elif None in each or any(e.holds == "said" for e in lanes):
        holds = "said"
    else:
        holds = _of_zeros(op, values, each, rises)
    return replace(lanes[0], holds=holds, loaded=False)


def _of_zeros(op: str, values: Sequence[Value], each: Sequence[Known], rises: bool) -> Holds:
    """What an operator makes of what lanes hold that the program has said nothing of, but perhaps 0."""
    lanes = [e for e in each if isinstance(e, Lane)]
    numbers = [0 if isinstance(e, Lane) else _literal(v) for e, v in zip(each, values, strict=True)]
    op = "+" if op == "|" else op
    known = op in COMPUTE and None not in numbers
    zero = all(e.holds in ZEROS for e in lanes) and (op == "/" or (known and not COMPUTE[op](*numbers)))
    if zero and any(e.holds == "filled" for e in lanes):
        return "filled"
    if op in COMPARE:
        return "least" if zero else "made"
    if rises and all(e.holds in (("least",) if op == "*" and len(lanes) > 1 else LOW) for e in lanes):
        return "least" if zero else "lowest" if any(e.holds == "lowest" for e in lanes) else "low"
    return "zero" if zero else "made"


_TURNED = {"==": "", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""The comparison that holds where another does not. (`==` would have to fail at one place to hold at all others.)"""


def _further(op: str, values: Sequence[Value], each: Sequence[Known]) -> bool:
    """Whether what is made of positions lies at them or further on, so that past an end it is past the end."""
    others = [v for v, e in zip(values, each, strict=True) if not isinstance(e, Lane)]
    if op == "*":
        return all((number_of(v) or 0) >= 1 for v in others)
    return op == "+" and all(v.ends or never_negative(v.formula) for v in others)


def _bounded(op: str, values: Sequence[Value], each: Sequence[Known]) -> bool:
    """Whether positions past an end do not pass such a test: they are above what they are compared with, or data says what that
    is. Where tiles may end before the axis does, its size is no such thing."""
    for at, wanted in ((0, ("<", "<=", "==")), (1, (">", ">=", "=="))):
        lane, other, value = each[at], each[1 - at], values[1 - at]
        if isinstance(lane, Lane) and lane.holds in POSITIONS and op in wanted and not isinstance(other, Lane):
            return not value.positional or _below(value, lane, int(op in ("<=", ">=", "==")))
        if isinstance(lane, Lane) and lane.holds == "turned" and op == ("<=" if at else ">="):
            return number_of(value) == 0
    return False


def _below(value: Value, lane: Lane, by: int) -> bool:
    """Whether a value lies so far below the end of the positions of a lane."""
    named, number = dict(value.ends), number_of(value)
    below = [named[n] for n in (lane.var, lane.dim) if n in named and (n == lane.var or lane.holds == "position")]
    if number is not None:  # where there is a position at all, there is the first
        below.append((int(lane.dim) if lane.dim.isdecimal() else 1) - number)
    return max(below, default=-1) >= by


def ends_of(op: str, *values: Value) -> tuple[tuple[str, int], ...]:
    """How far what is made of values lies below ends."""
    a, b = (dict(v.ends) for v in values)
    number = number_of(values[1])
    if op == "min":
        return tuple((name, max(e[name] for e in (a, b) if name in e)) for name in {**a, **b})
    if number is None or op not in ("+", "-", "//"):
        return ()
    if op == "//":
        return tuple((name, max(n, 0)) for name, n in a.items()) if number > 0 else ()
    return tuple((name, n - number if op == "+" else n + number) for name, n in a.items())


def of_entry(value: Value, at: int | None) -> dict[str, Any]:
    """What is known of an entry of a tuple; `at` None: of whichever."""
    if value.lanes:  # a shape
        known = at is not None and -len(value.lanes) <= at < len(value.lanes)
        return {"length_of": value.lanes[at] if known and at is not None else None}
    parts = value.entries if at is None else value.entries[at:][:1]
    if not parts:
        return {}
    lanes = parts[0].lanes
    for part in parts[1:]:
        lanes = met(lanes, part.lanes)
    return {"lanes": lanes, "rank": parts[0].rank, "ends": parts[0].ends if len(parts) == 1 else ()}


def _where(test: Value, a: Value, b: Value) -> Lanes:
    """A test of what lies past an edge chooses there, too, and what it may choose counts; any other test has said what does."""
    axes = max(len(v.lanes) for v in (test, a, b))

    def along(value: Value) -> tuple[Any, ...]:
        number = _literal(value)
        if value.rank == 0:
            return (None if number is None else _filled(number),) * axes
        return _spread(value, axes)

    def one(asked: Any, *arms: Any) -> Any:
        lane = next((e for e in (asked, *arms) if isinstance(e, Lane)), None)
        holds = [e.holds if isinstance(e, Lane) else e or "said" for e in arms]
        holds = ["again" if held == FLAT else held for held in holds]  # the same value there as anywhere
        if isinstance(asked, Lane) and asked.holds == "true":
            found: Any = holds[0]
        elif asked == FLAT:
            found = _of_arms(holds)
        elif not isinstance(asked, Lane) and isinstance(arms[0], str) and arms[0] != FLAT and isinstance(arms[1], Lane):
            found = _of_arms(holds)  # a number for what passes: whoever masks has it the other way round
        elif not isinstance(asked, Lane) or asked.holds == "said":
            number = isinstance(arms[1], str) and arms[1] != FLAT and arms[1] != "filled"
            found = "said" if number else holds[1]
        else:
            found = _of_arms(holds[1:] if asked.holds in ZEROS else holds)
        return lane and replace(asked if isinstance(asked, Lane) else lane, holds=found, loaded=False)

    sides = (_spread(test, axes), along(a), along(b))
    return tuple(map(one, *sides)) if all(len(lanes) == axes for lanes in sides) else elementwise("", test, a, b)


def _filled(number: float) -> Holds:
    """What lanes hold that are filled with a number: one that counts for nothing is the program's word for it."""
    return "filled" if not number else "said" if abs(number) > LARGE else "again"


def _of_arms(holds: Sequence[Any]) -> Any:
    """Of lanes of which nobody knows which arm they have."""
    known = {*holds}
    if len(known) == 1:
        return holds[0]
    return "again" if known - {*ZEROS, "said"} else "zero" if known & {"zero", "least"} else "said"


def of_subscript(value: Value, entries: Sequence[str]) -> Lanes:
    """Of `value[:, None]` and the like."""
    rest = list(value.lanes or (None,) * entries.count(":"))
    if not {*entries} <= {":", "None"} or entries.count(":") > len(rest):
        return ()
    return (*(rest.pop(0) if e == ":" else FLAT for e in entries), *rest)


@dataclass(frozen=True, slots=True)
class Called:
    """`tl.name(*args)`, or `args[0].name(*args[1:])`; `name` "": a function of the user's."""

    state: Lowering
    node: ast.Call
    name: str
    args: Sequence[Value]
    keywords: Mapping[str, Value]

    def given(self, word: str, at: int) -> Value | None:
        """An argument by its name or its place."""
        return self.keywords.get(word) or (self.args[at] if at < len(self.args) else None)

    def note(self, lane: object) -> None:
        """That the call takes a tile of the domain together, or may."""
        domain = self.state.domain
        if isinstance(lane, Lane) and lane.holds not in INDICES and domain and lane.var in domain.names:
            what = self.name or ast.unparse(self.node.func)
            self.state.together.append(Together(lane.var, what, self.state.loc(self.node)))


def of_call(call: Called) -> Lanes:
    """Of what a call gives.

    Raises:
        TilelinkError: TL143, a reduction of what lies past an edge.
    """
    name, args, keywords = call.name, _in_order(call), call.keywords
    call = replace(call, args=args)
    if name in ALONG and args:
        return _reduced(call)
    if name in KEEP_ZERO and args:
        return args[0].lanes
    if name == "abs" and args:
        return changed(args[0].lanes, zero="least", low="made", lowest="infinite")
    if name == "sin" and args:
        return changed(args[0].lanes, least="zero", low="made")
    if name in OF_ZERO and args:
        low, made = "low" if name in RISE else "made", "infinite" if name in INFINITE else "made"
        least = "lowest" if name in RISE & INFINITE else low
        return changed(args[0].lanes, zero=made, filled=made, again="made", least=least, low=low, lowest=low)
    if name in ("maximum", "minimum", "fdiv", "div_rn") and len(args) == 2:
        return elementwise("/" if "div" in name else name[:3], *args)
    if name == "where" and len(args) == 3:
        return _where(*args)
    if name == "fma" and len(args) == 3:
        return elementwise("+", replace(args[0], lanes=elementwise("*", *args[:2])), args[2])
    if name == "clamp" and len(args) == 3:
        low, high = map(_literal, args[1:])
        inside = low is not None and high is not None and low <= 0 <= high
        return args[0].lanes if inside else changed(args[0].lanes, zero="made", filled="made", least="low")
    if name in SHAPED and args:
        number = _literal(args[1]) if len(args) > 1 else None
        holds: Any = "zero" if name != "full" or number == 0 else "said" if number is None else _filled(number)
        lanes = args[0].lanes or tuple(p.length_of for p in args[0].entries)
        return tuple(replace(e, holds=holds, loaded=False) if isinstance(e, Lane) else e for e in lanes)
    if name == "arange" and len(args) == 2 and isinstance(args[1].length_of, Lane):
        # As many positions as there are lanes: of a whole axis from its first on.
        begins = not args[1].length_of.var and number_of(args[0]) == 0
        return (replace(args[1].length_of, holds="position" if begins else "made", loaded=False),)
    if name in ("trans", "permute") and len(args) > 1 and len(args[0].lanes) > 2:
        order = [number_of(v) for v in (args[1].entries or args[1:])]
        if sorted(k for k in order if k is not None) == [*range(len(args[0].lanes))]:
            return tuple(args[0].lanes[k] for k in order if k is not None)
    if name in ("trans", "permute") and args and len(args[0].lanes) == 2:
        first = args[1].node if len(args) > 1 else None
        first = first.elts[0] if isinstance(first, ast.Tuple | ast.List) else first
        return args[0].lanes[:: 1 if first is not None and integer_of(first) == 0 else -1]
    if name == "expand_dims" and len(args) == 2 and args[0].lanes and (at := number_of(args[1])) is not None:
        at += len(args[0].lanes) + 1 if at < 0 else 0
        return (*args[0].lanes[:at], FLAT, *args[0].lanes[at:])
    if name == "broadcast_to" and args:
        shape = args[1].lanes if len(args) > 1 and len(args[1].lanes) == len(args[0].lanes) else args[0].lanes
        spread = (replace(e, holds="made", loaded=False) if isinstance(e, Lane) else None for e in shape)
        return tuple(e if isinstance(e, Lane) else s for e, s in zip(args[0].lanes, spread, strict=True))
    if name in SCANS and args and args[0].lanes:
        return _scanned(call)
    if name == "dot" and len(args) >= 2:
        return _product(call)
    if name in ("flip", "gather") and args and args[0].lanes:
        return _moved_along(call)
    if name == "join" and len(args) == 2:
        return (*elementwise("+", *args), None)
    if name == "split" and args:
        return args[0].lanes[:-1]
    if name == "broadcast" and len(args) == 2:  # either of them
        return met(*(tuple(e if isinstance(e, Lane) else None for e in v.lanes) for v in args))
    if name == "interleave" and len(args) == 2:
        return elementwise("+", *args)
    blocks = [v for v in (*args, *keywords.values()) if v.length is None]
    if name not in OTHERS:
        for lane in (e for v in blocks for e in v.lanes):
            call.note(lane)
    if name in MOVES and args:
        return _moved(args)
    if not name:  # a helper of the user's, which makes of zeros what it likes
        return elementwise("", *blocks) if blocks else ()
    return ()


def _in_order(call: Called) -> list[Value]:
    """The first arguments by their places, those that are passed by name as well."""
    found, order = list(call.args), ORDER.get(call.name, ("input",))
    for word in order[len(found) :]:
        value = call.keywords.get(word) or (call.keywords.get("x") if word == "input" else None)
        if value is None:
            break
        found.append(value)
    return found


def _moved_along(call: Called) -> Lanes:
    """Of values that are taken from other places of an axis: what lies past its end comes before it.

    Raises:
        TilelinkError: TL143.
    """
    flips, args = call.name == "flip", call.args
    given = call.given("dim", 1) if flips else call.given("axis", 2)
    axis, lanes = None if given is None else number_of(given), args[0].lanes
    for k, lane in enumerate(lanes):
        if isinstance(lane, Lane) and axis in (None, k, k - len(lanes)):
            call.note(lane)
            if flips:
                message = f"`flip` brings what lies past the end of axis `{lane.dim}` of `{lane.param}` before it"
                hint = "load at the positions that are meant, a vector of them, or declare an axis of a constant power of two"
                call.state.fail("TL143", call.node, message, _FILLED, hint)
    return lanes if flips else changed(args[1].lanes, **dict.fromkeys(ZEROS, "made")) if len(args) > 1 else ()


def _moved(args: Sequence[Value]) -> Lanes:
    """Of values in another shape: any axis may have what one had."""
    lanes = [e for e in args[0].lanes if isinstance(e, Lane)]
    if not lanes:
        return ()
    axes = len(args) - 1 if len(args) != 2 or args[1].length is None else args[1].length
    holds = [*dict.fromkeys(e.holds for e in lanes if e.holds != "said")]
    return (replace(lanes[0], holds="made" if len(holds) > 1 else (*holds, "said")[0], loaded=False),) * max(axes, 1)


def changed(lanes: Lanes, **to: Any) -> Lanes:
    """Of a function of each value, by what it makes of what lanes hold."""
    return tuple(replace(e, holds=to.get(e.holds, e.holds), loaded=False) if isinstance(e, Lane) else e for e in lanes)


def _scanned(call: Called) -> Lanes:
    """Behind the last element a sum goes on as it is. Where it begins there, what lies past the edge counts."""
    given, lanes = call.given("axis", 1), call.args[0].lanes
    axis = 0 if given is None else number_of(given)
    if axis is None:  # whichever: the worst of them
        axis = max(range(len(lanes)), key=lambda k: _severity(lanes[k]))
    lane = lanes[axis] if -len(lanes) <= axis < len(lanes) else None
    call.note(lane)
    backwards = is_asked(call.given("reverse", SCANS[call.name]))
    harmless = ("said", *ZEROS) if call.name == "cumsum" else ("said", "filled")
    if backwards and isinstance(lane, Lane) and lane.holds not in harmless:
        _refuse(call, lane)
    kept = (*KEPT[call.name], "infinite")
    made = changed(lanes, **{held: "made" for held in get_args(Holds) if held not in kept})
    if call.name != "cumsum":  # of what lies past the end of another axis, too
        lanes = made
    if backwards or not isinstance(lane, Lane):
        return changed(lanes, least="zero")
    return tuple(made[k] if k == axis % len(lanes) else e for k, e in enumerate(lanes))


def _product(call: Called) -> Lanes:
    """A row of zeros, or a column of them, gives zeros."""
    (rows, left), (right, columns) = (v.lanes if len(v.lanes) == 2 else (None, None) for v in call.args[:2])
    for lane in (left, right):
        call.note(lane)
    if isinstance(left, Lane) and isinstance(right, Lane):
        holds = {left.holds, right.holds}
        if holds <= {*CHANGES["dot"]} or "infinite" in holds:  # 0 times infinity is no number
            _refuse(call, right if right.holds == "infinite" else left)
    sides = (e if isinstance(e, Lane) else None for e in (rows, columns))
    found = tuple(e and replace(e, holds=_of_product(e.holds), loaded=False) for e in sides)
    acc = call.given("acc", 2)
    return found if acc is None else elementwise("+", acc, replace(call.args[0], rank=2, lanes=found))


def _of_product(holds: Holds) -> Holds:
    """What the sums of a product hold past an edge, by what a side of it does there."""
    return "zero" if holds in ZEROS else "said" if holds == "said" else "made"


def _reduced(call: Called) -> Lanes:
    name, lanes = call.name, call.args[0].lanes
    word, axis = ALONG[name]
    given = call.given(word, 2 if name == "topk" else 1) if word else None
    unknown = given is not None and constant_of(given.node) is not None
    if given is not None and unknown:
        axis = number_of(given)
        unknown = axis is None
    if not lanes:
        return ()
    axis = axis if axis is None or axis >= 0 else axis + len(lanes)
    for k, lane in enumerate(lanes):
        if axis in (None, k) and isinstance(lane, Lane):
            if lane.holds in CHANGES[name]:
                _refuse(call, lane)
            call.note(lane)
    if unknown and name not in ("softmax", "sort", "topk"):  # a constant that each kernel has its own of
        return (met(lanes[:1], lanes[-1:])[0] if len(lanes) == 2 else None,) * (len(lanes) - 1)
    if name in ("softmax", "sort", "topk") or axis is None:
        return ()
    if is_asked(call.given("keep_dims", KEEP_DIMS.get(name, 2))):
        return tuple(FLAT if k == axis else e for k, e in enumerate(lanes))
    return tuple(e for k, e in enumerate(lanes) if k != axis)


# ------------------------------------------------------------------------------------------------------- what is refused
_FILLED = "a block has as many lanes as the tile, and `tl.tile_load` fills those past an edge with 0"


def _refuse(call: Called, lane: Lane) -> NoReturn:
    why, name, falling = _FILLED, call.name, call.keywords.get("descending")
    nothing = NOTHING.get(name, 'float("-inf")')
    if name == "sort" and falling is not None and constant_of(falling.node) is True:
        nothing = 'float("-inf")'
    hint = f"say what counts for nothing there: `tl.tile_load({lane.param}, …, other={nothing})`"
    if lane.holds not in ZEROS:
        why += ", of which something else has been made"
    if not lane.loaded:
        by = (
            "by `tl.tile_mask`, or by `tl.tile_range(…) < tl.tile_end(…)`"
            if lane.var
            else "by `tl.tile_range(…) < tl.size(…)`"
        )
        hint = f"choose what counts: `tl.where(…, …, {nothing})`, {by}"
    message = f"`{name}` takes what lies past the end of axis `{lane.dim}` of `{lane.param}`"
    call.state.fail("TL143", call.node, message, why, hint)


def check_positions(state: Lowering, node: ast.expr, value: Value) -> None:
    """Of a vector of positions at which something is stored: what lies past an edge is none.

    Raises:
        TilelinkError: TL143.
    """
    lane = next(
        (e for e in value.lanes if isinstance(e, Lane) and e.holds not in ("said", "filled", "again", *INDICES)), None
    )
    if lane is not None:
        message = f"`{ast.unparse(node)}` has positions past the end of axis `{lane.dim}` of `{lane.param}`"
        why = f"{_FILLED}, which is a position like any other, and something would be stored there"
        hint = f"say that they are no elements: `tl.tile_load({lane.param}, …, other=-1)`"
        if not lane.loaded:
            hint = "choose the others, `tl.where(…, …, -1)`, or store under a mask"
        state.fail("TL143", node, message, why, hint)


def check_divisor(state: Lowering, node: ast.BinOp, left: Value, right: Value) -> None:
    """The length of a block is no number of elements to divide data by.

    Raises:
        TilelinkError: TL143.
    """
    divides = isinstance(node.op, ast.Div) or (not left.positional and isinstance(node.op, ast.FloorDiv | ast.Mod))
    if right.counts_lanes and divides:
        message = f"a division by `{ast.unparse(node.right)}`, which counts what lies past an edge"
        why = "a block has as many lanes as the tile, whatever there is of the tensor"
        state.fail("TL143", node, message, why, "divide by the length of the axis, `tl.size(…)`")
