"""What loads and stores of a program become: pointers, descriptors, or what the host of a fused step has in registers."""

from __future__ import annotations

from tilelink.codegen import access, descriptors, ll_protocol, ops, register_forwarding
from tilelink.codegen.access import expression
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.ir.program import At, Load, Store
from tilelink.ir.wiring import TensorDecl, indexed


def load(scope: Scope, op: Load) -> None:
    tensor = scope.declared(op.param)
    held = scope.forwarded.get(tensor.name)
    index = indexed(scope.step.step, op.param, op.index)
    name = scope.local(op.name)
    if held is None:
        _load_memory(scope, op, tensor, name)
        return
    held = register_forwarding.at_edges(scope, op, tensor, held, _other(scope, op, tensor))
    slices = [e for v, e in index if v.unit]
    if scope.plan.buffer_or_none(tensor.name) is None or not slices:
        scope.lines.add(f"{name} = {held}", op.loc)
        return
    at = next(e for e in slices if isinstance(e, At))
    slice_at = expression(scope, at.expr)
    # No branch: the loads of an unrolled loop are to go out together.
    _load_memory(scope, op, tensor, name, f"{slice_at} != {scope.rank}")
    scope.lines.add(f"{name} = tl.where({slice_at} == {scope.rank}, {held}, {name})", op.loc)


def _load_memory(scope: Scope, op: Load, tensor: TensorDecl, name: str, only_if: str | None = None) -> None:
    index = indexed(scope.step.step, op.param, op.index)
    plain = op.other is None or op.other.text in ("0", "0.0")
    place = scope.places.get(tensor.name)
    found = descriptors.tma(scope, tensor, op, index) if plain and only_if is None else None
    if found is not None and (place is None or place.tma):
        name_of = found.name if place is None else place.name
        shape = "" if found.shape is None else f".reshape({', '.join(map(str, found.shape))})"
        text = f"{name_of}.load({found.coordinates}){shape}"
        scope.async_tensors.add(tensor.name)
        scope.lines.add(f"{name} = " + (f"tl.trans({text})" if found.transposed else text), op.loc)
        return
    start = scope.tensor(tensor.name) if place is None else place.name
    pointer, mask = access.address(scope, start, tensor, index, access.Accessed.of(scope.part.of(op)))
    if only_if is not None:
        mask = f"{mask} & ({only_if})" if mask else only_if
    other = _other(scope, op, tensor)
    if scope.is_ll(tensor.name):
        scope.lines.add(f"{name} = {ll_protocol.load(scope, op, tensor, pointer, mask)}", op.loc)
        return
    tail = f", mask={mask}, other={other}" if mask else ""
    scope.lines.add(f"{name} = tl.load({pointer}{tail})", op.loc)


def _other(scope: Scope, op: Load, tensor: TensorDecl) -> str:
    """What a load gives past the edges."""
    # Triton turns no integer into fp8.
    nothing = "0.0" if tensor.dtype.startswith("f8") else "0"
    return expression(scope, op.other) if op.other is not None else nothing


def store(scope: Scope, op: Store) -> None:
    tensor = scope.declared(op.param)
    value = expression(scope, op.value)
    if scope.step.fused and op.to == "own" and _is_forwarded(scope, tensor):
        name = scope.names.fresh(f"{tensor.name}_tile")
        dtype = TRITON_DTYPES[tensor.dtype]
        scope.lines.add(f"{name} = tl.cast({value}, {dtype})", op.loc)
        scope.forwarded[tensor.name] = name
        value = name
    if scope.plan.buffer_or_none(tensor.name) is None:
        return
    if op.to == "own":
        _store_own(scope, op, tensor, value)
    else:
        _store_holders(scope, op, tensor, value)


def _is_forwarded(scope: Scope, tensor: TensorDecl) -> bool:
    steps = [scope.plan.step(p) for p in scope.step.fused]
    return any(b.tensor == tensor.name for s in steps for b in s.step.bindings) or any(s.forwarded for s in steps)


def _store_own(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> None:
    index = indexed(scope.step.step, op.param, op.index)
    found = descriptors.tma(scope, tensor, op, index) if op.mask is None else None
    if found is not None and not found.transposed and (found.shape is None or found.block):
        value = f"tl.cast({value}, {TRITON_DTYPES[tensor.dtype]})"
        value = f"{value}.reshape({', '.join(map(str, found.block))})" if found.block else value
        scope.lines.add(f"{found.name}.store({found.coordinates}, {value})", op.loc)
        scope.stored_async = True
        return
    _store_at(scope, op, tensor, value, scope.tensor(tensor.name), access.Accessed.of(scope.part.of(op)))


def _store_at(scope: Scope, op: Store, tensor: TensorDecl, value: str, pointer: str, found: access.Accessed) -> None:
    where, mask = access.address(scope, pointer, tensor, indexed(scope.step.step, op.param, op.index), found)
    masks = [m for m in (mask, expression(scope, op.mask) if op.mask is not None else None) if m]
    tail = ", mask=" + " & ".join(f"({m})" if len(masks) > 1 else m for m in masks) if masks else ""
    scope.lines.add(f"tl.store({where}, {value}{tail})", op.loc)


def _store_holders(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> None:
    """Of a vector of positions on a split axis each rank takes those that it has."""
    if scope.is_ll(tensor.name):
        value = ll_protocol.packed(scope, op, tensor, value)
    body = scope.part.of(op)
    found = access.Accessed.of(body)
    there = scope.names.fresh(f"{tensor.name}_there")
    with scope.keeping_names(), ops.turns(scope, body[-1], op.loc):
        pe = ops.name(scope, "owner", found.op.rank, op.loc)
        scope.lines.add(f"{there} = shmem.ptr({scope.tensor(tensor.name)}, {pe}, {scope.context(tensor.name)})", op.loc)
        _store_at(scope, op, tensor, value, there, found)
