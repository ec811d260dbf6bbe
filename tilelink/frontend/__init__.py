"""Reads what users write: signatures, tile programs, operators.

Takes: Python functions and signature text. Gives: `ir.TileProgram` (`Program.captured`) and `ir.Wiring` (`trace`).
Knows: Python's `ast`, the lark grammars, scopes.
Never knows: rank numbers, channels, Triton text beyond the expressions that users wrote; torch, triton.
"""

from tilelink.frontend.binding import check_keywords, sizes_of
from tilelink.frontend.grammar import parse_owner, parse_shape, parse_signature
from tilelink.frontend.outside import Found, Outside, found_by, shown
from tilelink.frontend.program import Program, program
from tilelink.frontend.progress import ranks_here, symmetric
from tilelink.frontend.sizes import bind_sizes, slices_in
from tilelink.frontend.symbolic import Extent, SymbolicTensor
from tilelink.frontend.trace import inline, trace

__all__ = [
    "Extent",
    "Found",
    "Outside",
    "Program",
    "SymbolicTensor",
    "bind_sizes",
    "check_keywords",
    "found_by",
    "inline",
    "parse_owner",
    "parse_shape",
    "parse_signature",
    "program",
    "ranks_here",
    "shown",
    "sizes_of",
    "slices_in",
    "symmetric",
    "trace",
]
