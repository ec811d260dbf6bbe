"""Fused tiles behind those of their host: whoever is free takes the next one, from memory.

The tiles of a rank's own rows come last in their host's order. Some workers have nothing to do while others make the last
tiles; and a fused tile that waits for other ranks would hold up a worker that has another tile to make. So each worker
that is through takes tickets, in the host's order, until there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.codegen import access, waits
from tilelink.codegen.epilogue import bounds_passed
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import atom
from tilelink.codegen.waits import Word
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import Await, For, formulas
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Store, Wait, walk


@dataclass(frozen=True, slots=True)
class Ticket:
    """Names in the loop over tickets: this one, the next one of this worker, the piece of its tile, the word that the worker
    has waited for last."""

    taken: str
    following: str
    piece: str
    waited: str


def say_made(host: Scope, step: StepPlan) -> None:
    """The host has stored its tile `t`: if it is this rank's, whoever takes its ticket may read it."""
    lines, depth = host.lines, host.lines.depth
    host.open_if(host.lowered.part(step.path).tests, step.step.program.loc)
    if host.stored_async:
        lines.add("shmem.async_store_quiet()")
    lines.add(f"shmem.local_set({' + '.join(_word(host, step))}, {_call(host)})")
    lines.depth = depth


def names_of_ticket(scope: Scope) -> Ticket:
    fresh = scope.names.fresh
    return Ticket(fresh("taken"), fresh("following"), fresh("piece"), fresh("waited"))


def open_tickets(scope: Scope, step: StepPlan, names: Ticket, word: Formula | None) -> None:
    """The head of the loop; further lines are in it. `word`: as of `word_awaited`, where the worker is to remember it."""
    lines = scope.lines
    draw = f"shmem.local_add({_tickets(scope, step)}, 1).to(tl.int32)"
    lines.say(
        f"whoever is free takes the next {'tile' if step.pieces == 1 else 'piece'} of `{step.path}`, a ticket each"
    )
    lines.add(f"{names.taken} = {draw}")
    if word is not None:
        lines.add(f"{names.waited} = -1")
    lines.add(f"while {names.taken} < {_count(scope, step)}:")
    lines.depth = 1
    lines.add(f"{names.following} = {draw}")
    tile = names.taken if step.pieces == 1 else f"{names.taken} // {step.pieces}"
    lines.add(f"t = {scope.text(_first(scope, step), F.SUMMAND)} + {tile}")
    if step.pieces > 1:
        lines.add(f"{names.piece} = {names.taken} % {step.pieces}")


def close_tickets(scope: Scope, step: StepPlan, names: Ticket, word: Formula | None) -> None:
    """Each worker has taken one ticket too many; whoever has taken the last one puts the counter back."""
    lines = scope.lines
    if word is not None:
        lines.add(f"{names.waited} = {scope.text(word)}")
    lines.add(f"{names.taken} = {names.following}")
    lines.depth = 0
    lines.say("the last ticket of all: the next call begins with the first again")
    lines.add(f"if {names.taken} == {_count(scope, step)} + workers - 1:")
    lines.add(f"    tl.store({_tickets(scope, step)}, tl.cast(0, tl.int64))")


def take(scope: Scope, step: StepPlan, names: Ticket) -> None:
    """The host's tile, or the piece of it, which is the scope's tile from here on, from memory."""
    lines, loc = scope.lines, step.step.program.loc
    pointer, index = _word(scope, step)
    waits.wait_until(scope, Word(pointer, index, "made", step.path, remote=False), _call(scope), loc)
    piece = _piece(scope, step, names) if step.pieces > 1 else None
    loads = [_load(scope, op) for op in _stores(scope, step)]
    if piece is not None:
        access.lane_lines(lines, piece)
    for held, load in loads:
        lines.add(f"{held} = {load}", loc)


def _piece(scope: Scope, step: StepPlan, names: Ticket) -> TileNames:
    """The columns of a piece, in place of those of the host's tile."""
    lines, loc, grid = scope.lines, step.step.program.loc, scope.step.grid[scope.step.columns]
    width = (grid.tile or 0) // step.pieces
    whole = scope.tiles[grid.var or ""]
    whole.used.add("end")
    columns = access.tile_names(scope, grid.var or "", replace(grid, tile=width))
    lines.add(f"{columns.begin} = {whole.begin} + {names.piece} * {width}", loc)
    lines.add(f"{columns.end} = tl.minimum({columns.begin} + {width}, {whole.end})", loc)
    return columns


def _load(scope: Scope, op: Store) -> tuple[str, str]:
    """What the host has stored, by name, and the load that brings it back."""
    tensor, view = scope.declared(op.param), scope.step.step.binding(op.param).view
    terms, blocks = access.terms(scope, tensor, view, access.index_of(scope, op), access.Accessed.of(scope.part.of(op)))
    where, mask = access.address(scope, scope.tensor(tensor.name), terms, blocks)
    held = scope.forwarded[tensor.name] = scope.names.fresh(f"{tensor.name}_tile")
    return held, f"tl.load({where}{f', mask={mask}, other=0' if mask else ''})"


def _stores(scope: Scope, step: StepPlan) -> list[Store]:
    """The host's stores of what the step takes, one of each tensor."""
    body = walk(scope.step.step.program.body)
    stored = {scope.declared(op.param).name: op for op in body if isinstance(op, Store) and op.to == "own"}
    taken = dict.fromkeys(scope.plan.wiring.moved_from(tensor, stored) for tensor in step.forwarded)
    return [stored[name] for name in taken]


def word_awaited(scope: Scope, step: StepPlan) -> Formula | None:
    """The word that the step waits for, of any rank, by its tile: a worker that has waited for it with its last tile need not
    again. None: it waits for more than one."""
    part = scope.lowered.part(step.path)
    found = [o for s, body in part.said if isinstance(s, Wait) for o in lowered_ops(body) if isinstance(o, For | Await)]
    if len(found) != 1 or not isinstance(found[0], Await):
        return None
    (word,) = formulas(found[0])
    at: dict[str, F.Like] = {}
    for var, begin, end in bounds_passed(scope, step):
        at |= {f"{var}.begin": Sym(atom(begin)), f"{var}.end": Sym(atom(end))}
    return F.substitute(word, {n: at.get(n, F.of(0)) for n in F.symbols(word) if "." in n})


def _own(scope: Scope, step: StepPlan) -> Formula:
    """How many tiles of the host this rank holds: the last ones in the host's order."""
    return scope.lowered.loop(step.path).total


def _first(scope: Scope, step: StepPlan) -> Formula:
    return scope.lowered.loop(step.executor).total - _own(scope, step)


def _count(scope: Scope, step: StepPlan) -> str:
    return scope.text(_own(scope, step) * step.pieces)


def _word(scope: Scope, step: StepPlan) -> tuple[str, str]:
    """The word of the host's own tile `t`, as a pointer and an index: the call in which it was made."""
    made = scope.arg(Arg(f"{scope.naming.functions[step.path]}_made", "made", step.path))
    return made, scope.text(Sym("t") - _first(scope, step), F.FACTOR)


def _tickets(scope: Scope, step: StepPlan) -> str:
    """How many tickets have been taken; 0 between calls."""
    return scope.arg(Arg(f"{scope.naming.functions[step.path]}_tickets", "tickets", step.path))


def _call(scope: Scope) -> str:
    """The number of this call. A kernel of its own has begun it: a stream beside this kernel moves the host's tiles."""
    return f"tl.load({scope.epoch()})"
