"""What loads and stores of a program become: pointers, descriptors, or what the host of a fused step has in registers."""

from __future__ import annotations

import re

from tilelink.codegen import access, descriptors, ops
from tilelink.codegen.names import expressions
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.errors import Loc
from tilelink.ir.program import At, Load, Store, TileProgram, walk
from tilelink.ir.wiring import TensorDecl

LANEWISE = frozenset(
    f"tl.{name}"
    for name in (
        "abs", "cast", "exp", "exp2", "fma", "full", "log", "log2", "maximum", "minimum", "rsqrt", "sigmoid", "sqrt", "trans",
        "where", "zeros",
    )
)  # fmt: skip
"""Functions whose lanes do not see one another, so that nothing of a lane past an edge reaches one that is stored."""
_CALLED = re.compile(r"([\w.]+)\s*\(")


def load(scope: Scope, op: Load) -> None:
    tensor = scope.declared(op.param)
    held = scope.forwarded.get(tensor.name)
    name = scope.local(op.name)
    if held is None:
        _load_memory(scope, op, tensor, name)
        return
    # Past the tensor's edges a load gives `other`, whatever the host has there.
    inside = None if lanewise(scope.step.step.program) else access.inside_of(scope, op)
    if inside is not None:
        held = f"tl.where({inside}, {held}, {_other(scope, op, tensor)}).to({TRITON_DTYPES[tensor.dtype]})"
    slices = [e for v, e in scope.indexed(op) if v.unit]
    if scope.plan.buffer_or_none(tensor.name) is None or not slices:
        scope.lines.add(f"{name} = {held}", op.loc)
        return
    at = next(e for e in slices if isinstance(e, At))
    slice_at = scope.expression(at.expr)
    # No branch: the loads of an unrolled loop are to go out together.
    _load_memory(scope, op, tensor, name, f"{slice_at} != {scope.rank}")
    scope.lines.add(f"{name} = tl.where({slice_at} == {scope.rank}, {held}, {name})", op.loc)


def _load_memory(scope: Scope, op: Load, tensor: TensorDecl, name: str, only_if: str | None = None) -> None:
    plain = op.other is None or op.other.text in ("0", "0.0")
    place = scope.places.get(tensor.name)
    found = descriptors.tma(scope, tensor, op) if plain and only_if is None else None
    if found is not None and (place is None or place.tma):
        name_of = found.name if place is None else place.name
        shape = "" if found.shape is None else f".reshape({', '.join(map(str, found.shape))})"
        text = f"{name_of}.load({found.coordinates}){shape}"
        scope.async_tensors.add(tensor.name)
        scope.lines.add(f"{name} = " + (f"tl.trans({text})" if found.transposed else text), op.loc)
        return
    start = scope.tensor(tensor.name) if place is None else place.name
    pointer, mask = access.address_of(scope, start, op)
    if only_if is not None:
        mask = f"{mask} & ({only_if})" if mask else only_if
    other = _other(scope, op, tensor)
    if scope.is_ll(tensor.name):
        given = f"{pointer}, epoch, {mask}, {TRITON_DTYPES[tensor.dtype]}"
        scope.lines.add(f"{name} = {words_awaited(scope, 'll_load', given, tensor, op.loc)}", op.loc)
        return
    tail = f", mask={mask}, other={other}" if mask else ""
    scope.lines.add(f"{name} = tl.load({pointer}{tail})", op.loc)


def _other(scope: Scope, op: Load, tensor: TensorDecl) -> str:
    """What a load gives past the edges."""
    # Triton turns no integer into fp8.
    nothing = "0.0" if tensor.dtype.startswith("f8") else "0"
    return scope.expression(op.other) if op.other is not None else nothing


def store(scope: Scope, op: Store) -> None:
    tensor = scope.declared(op.param)
    value = scope.expression(op.value)
    fused = [scope.plan.step(p) for p in scope.step.fused] if op.to == "own" else []
    if any(s.forwarded or any(b.tensor == tensor.name for b in s.step.bindings) for s in fused):
        name = scope.forwarded[tensor.name] = scope.names.fresh(f"{tensor.name}_tile")
        scope.lines.add(f"{name} = tl.cast({value}, {TRITON_DTYPES[tensor.dtype]})", op.loc)
        value = name
    if scope.plan.buffer_or_none(tensor.name) is None:
        return
    if op.to != "own":
        _store_holders(scope, op, tensor, value)
        return
    found = descriptors.tma(scope, tensor, op) if op.mask is None else None
    if found is not None and not found.transposed and (found.shape is None or found.block):
        value = f"tl.cast({value}, {TRITON_DTYPES[tensor.dtype]})"
        value = f"{value}.reshape({', '.join(map(str, found.block))})" if found.block else value
        scope.lines.add(f"{found.name}.store({found.coordinates}, {value})", op.loc)
        scope.stored_async = True
        return
    _store_at(scope, op, value, scope.tensor(tensor.name))


def _store_at(scope: Scope, op: Store, value: str, pointer: str) -> None:
    where, mask = access.address_of(scope, pointer, op)
    masks = [m for m in (mask, scope.expression(op.mask) if op.mask is not None else None) if m]
    tail = ", mask=" + " & ".join(f"({m})" if len(masks) > 1 else m for m in masks) if masks else ""
    scope.lines.add(f"tl.store({where}, {value}{tail})", op.loc)


def _store_holders(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> None:
    """Of a vector of positions on a split axis each rank takes those that it has."""
    if scope.is_ll(tensor.name):
        if not _is_tile(scope, op):
            value = f"tl.broadcast_to({value}, {[tile.extent for tile in access.tiles_of(scope, op)]})"
        say_words(scope)
        pack = f"shmem.ll_pack({value}, epoch, {TRITON_DTYPES[tensor.dtype]})"
        value = scope.named(f"{tensor.name}_pack", pack)
    body = scope.part.of(op)
    there = scope.names.fresh(f"{tensor.name}_there")
    with scope.keeping_names(), ops.turns(scope, body[-1], op.loc):
        pe = ops.name(scope, "owner", access.Accessed.of(body).op.rank, op.loc)
        scope.lines.add(f"{there} = shmem.ptr({scope.tensor(tensor.name)}, {pe}, {scope.context(tensor.name)})", op.loc)
        _store_at(scope, op, value, there)


def lanewise(program: TileProgram) -> bool:
    """Whether all that the program computes of a block it computes lane by lane."""
    texts = [e.text for op in walk(program.body) for e in expressions(op)]
    called = {name for text in texts for name in _CALLED.findall(text)}
    return "@" not in "".join(texts) and all(name in LANEWISE or name.endswith(".to") for name in called)


# -------------------------------------------------------------------------------------- tensors that come by the LL protocol
def say_words(scope: Scope) -> None:
    scope.lines.say("4 bytes of data a word, and the number of the call: whoever reads it waits for that")


def words_awaited(scope: Scope, function: str, given: str, tensor: TensorDecl, loc: Loc | None) -> str:
    """The call of a device function that reads words, and waits for them; with a time limit where the plan is emitted so."""
    if not scope.reports.checks.watchdog:
        return f"shmem.{function}({given})"
    report = scope.report("words", tensor.name, loc)
    return f"shmem.{function}_within({given}, {scope.tensor(tensor.name)}, {report}, t)"


def _is_tile(scope: Scope, op: Store) -> bool:
    """Whether the value is known to be a block of the tile's shape: the name of a load of this tile."""
    binding = [o for o in walk(scope.body) if isinstance(o, Load) and o.name == op.value.text]
    if len(binding) != 1 or binding[0].index != op.index:
        return False
    # Axes of other lengths may go by the same index.
    there, here = ([tile.extent for tile in access.tiles_of(scope, o)] for o in (binding[0], op))
    return there == here
