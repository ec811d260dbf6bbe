"""Copy programs: runs of elements that follow one another in both memories; one per tile where only its first axis is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilelink.codegen import access, memory, ops, signals
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import Await, Copy, Op, Read, Write, walk
from tilelink.ir.program import At, Expr, OfTile


def emit_tile(scope: Scope, held: str = "") -> None:
    """Wait, move, notify: for the tile whose bounds the loop has just set, or the host's, which it has in registers as `held`."""

    def leaf(op: Op) -> None:
        if isinstance(op, Await):
            if scope.lowered.flag(op.flags).style != "data":
                signals.await_one(scope, op, scope.step.step.moved_from or "")
        elif isinstance(op, Copy):
            _copy(scope, op)
        elif isinstance(op, Write):
            _push(scope, op, held)
        else:
            signals.signal(scope, op)

    # The rank at the other end gets its name first, where it follows from the tile alone.
    copy = next(o for o in walk(scope.part.body) if isinstance(o, Copy | Write))
    ends = (("source", copy.source), ("owner", copy.target)) if isinstance(copy, Copy) else (("owner", copy),)
    for wish, end in ends:
        if end.rank != scope.step.rank:
            ops.name(scope, wish, end.rank, None)
    ops.each(scope, scope.part.body, leaf)


# -------------------------------------------------------------------------------------------------------------- memory
@dataclass(frozen=True, slots=True)
class Axis:
    """Of a box of memory: the first position, how many, and how many there is room for."""

    first: Formula
    length: Formula
    extent: Formula

    @property
    def whole(self) -> bool:
        return self.first == F.of(0) and self.length == self.extent


def _axes(scope: Scope, end: Read | Write) -> list[Axis]:
    extents = scope.lowered.buffer(end.buffer).extents
    return [Axis(lo, _difference(hi, lo), n) for (lo, hi), n in zip(end.box, extents, strict=True)]


def _difference(hi: Formula, lo: Formula) -> Formula:
    while isinstance(hi, F.Binary) and isinstance(lo, F.Binary) and hi.op == lo.op == "-" and hi.right == lo.right:
        hi, lo = hi.left, lo.left
    return hi - lo


def _in_run(axes: list[Axis]) -> int:
    """How many of the axes that are longer than 1 lie in one run, the last of them cut."""
    count = 0
    for axis in reversed(axes):
        count += axis.length != F.of(1)
        if not axis.whole:
            break
    return count


def _copy(scope: Scope, op: Copy) -> None:
    lines, one = scope.lines, F.of(1)
    here, there = _axes(scope, op.target), _axes(scope, op.source)
    lengths = [a.length for a in here if a.length != one]
    run = min(_in_run(here), _in_run(there))
    walked = lengths[: len(lengths) - run]
    row = math.prod(reversed(lengths[len(lengths) - run + 1 :]), start=one)
    count = lengths[-run] * row if run else one
    depth, places = lines.depth, list[Formula]()
    for length in walked:
        places.append(Sym(scope.names.fresh("at")))
        lines.add(f"for {places[-1]} in range({scope.text(length)}):")
        lines.depth += 1
    source, target = scope.declared(op.source.param), scope.declared(op.target.param)
    staged, pushed = op.source.buffer != source.name, op.target.rank != scope.step.rank
    start = scope.arg(Arg(f"{source.name}_stage", "stage", source.name)) if staged else scope.tensor(source.name)
    to = scope.tensor(target.name)
    context, pe = scope.context((target if pushed else source).name), scope.text(op.target.rank)
    by_words = scope.is_ll(target.name)
    if by_words:
        to = scope.named(f"{target.name}_there", f"shmem.ptr({to}, {pe}, {context})")
    into, out = _offset(scope, to, op.target, here, places), _offset(scope, start, op.source, there, places)
    ends = f"{into}, {out}, {scope.text(count)}"
    if by_words:
        memory.say_words(scope)
        text = f"shmem.ll_store_block({ends}, epoch, {TRITON_DTYPES[target.dtype]})"
    elif pushed:
        text = f"shmem.putmem_nbi_block({ends}, {pe}, {context})"
    elif scope.is_ll(source.name):
        given = f"{ends}, epoch, {TRITON_DTYPES[source.dtype]}"
        text = memory.words_awaited(scope, "ll_load_block", given, source, op.source.loc)
    elif op.source.rank != scope.step.rank:
        text = f"shmem.getmem_nbi_block({ends}, {scope.text(op.source.rank)}, {context})"
    else:  # what stays on its rank may lie in memory that no peer reaches
        text = f"shmem.copy_block({ends})"
    lines.add(text, op.source.loc)
    lines.depth = depth


def _offset(scope: Scope, start: str, end: Read | Write, axes: list[Axis], places: list[Formula]) -> str:
    """Where a run begins. Products are 64 bits wide: offsets may pass 2**31. Of words of two elements, flags are counted."""
    extents, each = access.extents_and_elements(scope, end.buffer)
    walked, parts = iter(places), [start]
    for k, axis in enumerate(axes):
        at = axis.first + next(walked, F.of(0)) if axis.length != F.of(1) else axis.first
        at = at // each if k == len(axes) - 1 else at
        if at == F.of(0):
            continue
        stride = math.prod(reversed(extents[k + 1 :]), start=F.of(1))
        wide = f"tl.cast({scope.text(at)}, tl.int64)"
        parts.append(wide if stride == F.of(1) else f"{wide} * {scope.text(stride, F.DIVISOR)}")
    return " + ".join(parts)


def _push(scope: Scope, op: Write, held: str) -> None:
    """Store the host's tile where its holder has it."""
    at = At(Expr(scope.rank, formula=Sym(scope.rank)), coordinate=True)
    tile = [at if g.unit else OfTile(str(k)) for k, g in enumerate(scope.step.grid)]
    pe, context = scope.text(op.rank), scope.context(op.buffer)
    there = scope.named(f"{op.buffer}_there", f"shmem.ptr({scope.tensor(op.buffer)}, {pe}, {context})")
    index = list(zip(scope.step.step.binding(op.param).view, tile, strict=True))
    where, mask = access.address(scope, there, scope.declared(op.param), index, (op,))
    scope.lines.add(f"tl.store({where}, {held}{f', mask={mask}' if mask else ''})")
