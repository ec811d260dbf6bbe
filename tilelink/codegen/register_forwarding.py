"""What a fused step reads of its host's tile past the tensor's edges: there a load gives `other`, whatever the host has."""

from __future__ import annotations

import re

from tilelink.codegen.access import inside_of
from tilelink.codegen.names import expressions
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.ir.program import Load, TileProgram, walk
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


def at_edges(scope: Scope, op: Load, tensor: TensorDecl, held: str, other: str) -> str:
    """The host's tile as a load of it would be: `other` where the tensor has no elements, if that can make a difference."""
    inside = None if lanewise(scope.step.step.program) else inside_of(scope, op)
    return held if inside is None else f"tl.where({inside}, {held}, {other}).to({TRITON_DTYPES[tensor.dtype]})"


def lanewise(program: TileProgram) -> bool:
    """Whether all that the program computes of a block it computes lane by lane."""
    texts = [e.text for op in walk(program.body) for e in expressions(op)]
    called = {name for text in texts for name in _CALLED.findall(text)}
    return "@" not in "".join(texts) and all(name in LANEWISE or name.endswith(".to") for name in called)
