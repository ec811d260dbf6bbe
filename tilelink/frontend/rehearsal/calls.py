"""A call of a rehearsal: what it stands in, what it takes together; and what is refused of what lies past an edge (TL143)."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tilelink.errors import Loc, Note
from tilelink.frontend.rehearsal.blocks import IN, Block, Edge
from tilelink.frontend.rehearsal.places import Trial
from tilelink.frontend.scope import Scope
from tilelink.frontend.source import FunctionSource
from tilelink.ir.program import Together

LANES = "a block has as many lanes as the tile"
FILLED = f"{LANES}: past an edge they hold 0, or what the load says by `other=`, and what is made of that"


@dataclass(frozen=True, slots=True)
class Frame(ABC):
    """A function that is being run, and its variables. `under`: what the branches hang on that it is in; `caller`: who has called
    it, and where, if it is not the program itself."""

    trial: Trial
    source: FunctionSource
    scope: Scope
    locals: frozenset[str]
    env: dict[str, Any]
    under: list[frozenset[Together]]
    caller: tuple[Frame, Loc] | None = None

    @property
    def callers(self) -> list[Loc]:
        """Where functions of the user's have called one another, this one first."""
        return [] if self.caller is None else [self.caller[1], *self.caller[0].callers]

    def fail(self, node: ast.AST, message: str, why: str, hint: str, code: str = "TL143") -> NoReturn:
        trial = self.trial
        values = {**trial.sizes, **{n: v.number for n, v in trial.constants.items() if isinstance(v, Block)}}
        shown = Note(f"it shows with {', '.join(f'{n}={v:g}' for n, v in values.items())}")
        self.source.fail(
            code, node, message, why, hint, (*(Note("it is called here", at) for at in self.callers), shown)
        )

    @abstractmethod
    def call(self, call: Call, function: Any, args: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Any:
        """What a function of the user's gives."""


@dataclass(frozen=True)
class Call:
    """A call in a function. Of its subclasses each method is a function of the language, and has its parameters."""

    frame: Frame
    node: ast.Call
    name: str

    @property
    def trial(self) -> Trial:
        return self.frame.trial

    @property
    def loc(self) -> Loc:
        return self.frame.source.loc(self.node)

    def note(self, edges: Iterable[Edge | None]) -> frozenset[Together]:
        """That the call takes tiles of the domain together, or may."""
        domain = self.trial.program.domain
        tiles = dict.fromkeys(e.var for e in edges if e is not None and e.var in domain)
        taken = [Together(var, self.name or ast.unparse(self.node.func), self.loc) for var in tiles]
        self.trial.found.notes.update(taken)
        return frozenset(taken)


def taken(call: Call, block: Block, axes: Sequence[int], nothing: float) -> NoReturn:
    """A call takes what lies past the end of one of these axes; `nothing` would count for nothing there."""
    odd = [k for k in axes if (block.marks.max(axis=tuple(j for j in range(block.rank) if j != k)) != IN).any()]
    edge = next((block.edges[k] for k in (*odd, *axes) if block.edges[k]), next((e for e in block.edges if e), None))
    filler = f"{nothing:g}" if np.isfinite(nothing) else f'float("{nothing}")'
    what, hint = "an edge", f"choose what counts: `tl.where(…, …, {filler})`"
    if edge is not None:
        what = f"the end of axis `{edge.dim}` of `{edge.param}`"
        if block.loaded and (block.value[0][block.marks != IN] != nothing).any():
            hint = f"say what counts for nothing there: `tl.tile_load({edge.param}, …, other={filler})`"
        else:
            by_tile = "by `tl.tile_mask`, or by `tl.tile_range(…) < tl.tile_end(…)`"
            hint = f"{hint}, {by_tile if edge.var else 'by `tl.tile_range(…) < tl.size(…)`'}"
    call.frame.fail(call.node, f"`{call.name}` takes what lies past {what}", FILLED, hint)


def positions(frame: Frame, node: ast.expr, at: Block) -> NoReturn:
    """Something is stored at positions that lie past an edge themselves."""
    edge = next((e for e in at.edges if e), Edge("…", "…", ""))
    message = f"`{ast.unparse(node)}` has positions past the end of axis `{edge.dim}` of `{edge.param}`"
    why = f"{LANES}: past an edge they hold 0 unless the load says `other=`, which is a position like any other"
    hint = f"say that they are no elements: `tl.tile_load({edge.param}, …, other=-1)`"
    if not at.loaded:
        hint = "choose the others, `tl.where(…, …, -1)`, or store under a mask"
    frame.fail(node, message, why, hint)


def stored(frame: Frame, node: ast.expr, value: Block, param: str) -> NoReturn:
    """What lies past an edge is stored where there are elements."""
    edge = next((e for e in value.edges if e), None)
    where = f"the end of axis `{edge.dim}` of `{edge.param}`" if edge else "an edge"
    message = f"`{ast.unparse(node)}` has what lies past {where} where there are elements of `{param}`"
    why = f"{LANES}, and these were moved, or are those of another tile"
    frame.fail(node, message, why, "load the elements that are meant, or choose what counts with `tl.where`")


def length(frame: Frame, node: ast.AST, what: str, do: str) -> NoReturn:
    """The length of a block is no number of elements to compute with."""
    why = f"{LANES}, whatever there is of the tensor"
    frame.fail(node, f"{what}, which counts what lies past an edge", why, f"{do} the length of the axis, `tl.size(…)`")


def rounded(frame: Frame, node: ast.AST) -> NoReturn:
    """What is stored hangs on which way a quotient of a negative number is rounded."""
    why = "Triton rounds a quotient towards 0, so that its rest is negative; Python rounds it down"
    hint = "add a multiple of the divisor first, and take that off behind: `(i - 3 + 2 * n) // n - 2`"
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mod):
        hint = "write `((i - 3) % n + n) % n`, or `(i - 3 + n) % n` where that is never negative"
    frame.fail(node, f"`{ast.unparse(node)}` is of a negative number", why, hint, "TL147")
