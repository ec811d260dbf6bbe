"""The escape hatch: pointers, ranks by number, and signals on words of one's own, under the names that low-level kernels
for overlapping know (Triton-distributed, arXiv:2504.19442, section 3). A plan with such a program is not verified.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tilelink.frontend.lowering import Lowering
from tilelink.frontend.values import RANKS, Value, constant_of, named
from tilelink.frontend.words import Call, Node, Word
from tilelink.ir.formula import Sym
from tilelink.ir.program import Expr, Param, Raw

WRITES = ("store", "atomic_", "debug_barrier")
"""Functions of Triton that are called for their effect, by how their names begin."""
SCOPES = ("gpu", "sys")
SEMANTICS = ("acquire", "acq_rel")
SPACES = ("gpu", "intra_node", "inter_node")


def _pointer(call: Call, t: Param) -> Value:
    call.state.raw = True
    return _value(call, f"{t.name}_pointer", param=t.name)


def _rank(call: Call, axis: Node = None) -> Value:
    _one_axis(call, axis)
    value = _value(call, "this_rank")
    return named(value.text, positional=False, formula=Sym(value.text))


def _num_ranks(call: Call, axis: Node = None) -> Value:
    _one_axis(call, axis)
    return named(RANKS, formula=Sym(RANKS))


def _one_axis(call: Call, axis: Node) -> None:
    if axis is not None and constant_of(axis) != -1 and ast.unparse(axis) != "-1":
        why = "the ranks of a call are numbered along one axis"
        call.fail("TL135", axis, f"the axis of `tl.{call.name}` is `{ast.unparse(axis)}`", why, "leave it out")


def _symm_at(call: Call, ptr: ast.expr, rank: ast.expr) -> Value:
    return _value(call, "there", ptr, rank)


def _wait(
    call: Call, ptrs: ast.expr, count: ast.expr, scope: ast.expr, semantic: ast.expr, waitValue: Node = None
) -> Value:
    words = _word(call, scope, SCOPES, "scope"), _word(call, semantic, SEMANTICS, "semantic")
    return _value(call, "token", ptrs, count, *words, waitValue or ast.Constant(1))


def _consume_token(call: Call, value: ast.expr, token: ast.expr) -> Value:
    return _value(call, "ready", value, token)


def _notify(
    call: Call, ptr: ast.expr, rank: ast.expr, signal: Node = None, sig_op: Node = None, comm_scope: Node = None
) -> None:
    how = _word(call, sig_op or ast.Constant("set"), ("set", "add"), "sig_op")
    _word(call, comm_scope or ast.Constant("inter_node"), SPACES, "comm_scope")
    values = tuple(call.state.lower(n).expr() for n in (ptr, rank, signal or ast.Constant(1)))
    call.add(Raw(what="notify", args=(*values, how), loc=call.loc))


def _word(call: Call, node: ast.expr, known: tuple[str, ...], what: str) -> Expr:
    word = constant_of(node)
    if word not in known:
        why = f"it is one of {', '.join(known)}"
        call.fail("TL135", node, f"the {what} of `tl.{call.name}` is `{ast.unparse(node)}`", why, "write one of them")
    return Expr(repr(word))


def _value(call: Call, wish: str, *args: ast.expr | Expr, param: str | None = None) -> Value:
    if call.state.conditional is not None:
        why = "it is taken out of the expression, and would happen once, in any case"
        hint = "assign it to a name before, or write an `if` with it inside"
        call.fail("TL134", call.node, f"`tl.{call.name}` in {call.state.conditional}", why, hint)
    given = [a if isinstance(a, Expr) else call.state.lower(a) for a in args]
    lowered = tuple(v if isinstance(v, Expr) else v.expr() for v in given)
    name = call.result(wish)
    call.add(Raw(what=call.name, name=name, param=param, args=lowered, loc=call.loc))
    like = given[0] if call.name in ("symm_at", "consume_token") else None
    return named(name, rank=like.rank if isinstance(like, Value) else 0, positional=False)


def effect(state: Lowering, node: ast.Call, name: str) -> bool:
    """A line that writes through a pointer, in a program that has one; False: it is none."""
    if not state.raw or not name.startswith(WRITES):
        return False
    state.ops.append(Raw(what="effect", args=(state.lower(node).expr(),), loc=state.loc(node)))
    return True


def allowed(state: Lowering, name: str) -> bool:
    """Whether a program with a pointer may call a function of Triton that others may not."""
    return state.raw and (name == "load" or name.startswith(WRITES))


WORDS: Mapping[str, Word] = {
    "pointer": Word("value", _pointer),
    "rank": Word("value", _rank),
    "num_ranks": Word("value", _num_ranks),
    "symm_at": Word("value", _symm_at),
    "wait": Word("value", _wait),
    "consume_token": Word("value", _consume_token),
    "notify": Word("effect", _notify),
}
