"""Accesses of tensors that come by the low-latency protocol: words are made once, and a load waits for its own."""

from __future__ import annotations

from tilelink.codegen import access, words
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.ir.program import Let, Load, Store, Wait, walk
from tilelink.ir.wiring import TensorDecl


def packed(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> str:
    """The words of what is stored, by name."""
    if not _is_tile(scope, op):
        value = f"tl.broadcast_to({value}, {list(access.block_shape(scope, op))})"
    scope.lines.say("4 bytes of data a word, and the number of the call: whoever reads it waits for that")
    return scope.named(f"{tensor.name}_pack", f"shmem.ll_pack({value}, epoch, {TRITON_DTYPES[tensor.dtype]})")


def _is_tile(scope: Scope, op: Store) -> bool:
    """Whether the value is known to be a block of the tile's shape: a name that a load of this tile binds, and nothing else."""
    body = tuple(walk(scope.step.step.program.body))
    binding = [o for o in body if isinstance(o, Load) and o.name == op.value.text]
    again = any(isinstance(o, Let) and op.value.text in o.target for o in body)
    return len(binding) == 1 and binding[0].index == op.index and not again


def load(scope: Scope, op: Load, tensor: TensorDecl, pointer: str, mask: str | None) -> str:
    """What a load becomes."""
    given = f"{pointer}, epoch, {mask}, {TRITON_DTYPES[tensor.dtype]}"
    if not scope.watch.checks.watchdog:
        return f"shmem.ll_load({given})"
    channel = scope.plan.channel_of(tensor.name)
    assert channel is not None
    wait = Wait(param=op.param, index=op.index, loc=op.loc)
    spans = [words.span(scope, a, wait, None) for a in channel.axes]
    index = words.named(scope, "c", words.flat_of(channel, spans, first=True), op.loc)
    report = scope.report("channel", channel.name, op.loc)
    return f"shmem.ll_load_within({given}, {report}, t, {index})"
