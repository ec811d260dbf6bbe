"""Accesses of tensors that come by the LL protocol: words are made once, and a load waits for its own."""

from __future__ import annotations

from tilelink.codegen import access
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.errors import Loc
from tilelink.ir.program import Load, Store, walk
from tilelink.ir.wiring import TensorDecl


def packed(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> str:
    """The words of what is stored, by name."""
    if not _is_tile(scope, op):
        value = f"tl.broadcast_to({value}, {_shape(scope, op)})"
    _say_words(scope)
    return scope.named(f"{tensor.name}_pack", f"shmem.ll_pack({value}, epoch, {TRITON_DTYPES[tensor.dtype]})")


def _is_tile(scope: Scope, op: Store) -> bool:
    """Whether the value is known to be a block of the tile's shape: the name of a load of this tile."""
    body = tuple(walk(scope.step.step.program.body))
    binding = [o for o in body if isinstance(o, Load) and o.name == op.value.text]
    if len(binding) != 1 or binding[0].index != op.index:
        return False
    # Axes of other lengths may go by the same index.
    return _shape(scope, binding[0]) == _shape(scope, op)


def _shape(scope: Scope, op: Load | Store) -> list[int]:
    return [tile.extent for tile in access.tiles_of(scope, op)]


def load(scope: Scope, op: Load, tensor: TensorDecl, pointer: str, mask: str | None) -> str:
    """What a load becomes."""
    given = f"{pointer}, epoch, {mask}, {TRITON_DTYPES[tensor.dtype]}"
    if not scope.reports.checks.watchdog:
        return f"shmem.ll_load({given})"
    return f"shmem.ll_load_within({given}, {_report(scope, tensor, op.loc)})"


def _say_words(scope: Scope) -> None:
    scope.lines.say("4 bytes of data a word, and the number of the call: whoever reads it waits for that")


def store_block(scope: Scope, tensor: TensorDecl, ends: str) -> str:
    """What a copy to a rank's words becomes; `ends`: to where, from where and how many elements."""
    _say_words(scope)
    return f"ll_store_block({ends}, epoch, {TRITON_DTYPES[tensor.dtype]})"


def load_block(scope: Scope, tensor: TensorDecl, ends: str, loc: Loc) -> str:
    """What a copy of own words becomes."""
    given = f"{ends}, epoch, {TRITON_DTYPES[tensor.dtype]}"
    if not scope.reports.checks.watchdog:
        return f"ll_load_block({given})"
    return f"ll_load_block_within({given}, {_report(scope, tensor, loc)})"


def _report(scope: Scope, tensor: TensorDecl, loc: Loc) -> str:
    """The arguments of a report on the words of a tensor that are missing."""
    channel = scope.plan.channel_of(tensor.name)
    assert channel is not None
    return f"{scope.tensor(tensor.name)}, {scope.report('words', channel.name, loc)}, t"
